#include "shared/core/processors.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/control_groups.h"

#define CPUS_MAX 8192

static int mask_of(pid_t pid, cpu_set_t *set) {
    CPU_ZERO_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
    return sched_getaffinity(pid, CPU_ALLOC_SIZE(CPUS_MAX), set) ? 0
                                                                 : CPU_COUNT_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
}

// Counts the mask of this process (pid 0) or of another one; 0: unknown.
static int count_of(pid_t pid) {
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    int count = set ? mask_of(pid, set) : 0;
    if (set) CPU_FREE(set);
    return count;
}

struct quota {
    const char *root;
    double tightest;  // 0: none found yet
};

static void look(void *ctx, bool second, const char *folder, const char *name) {
    struct quota *q = ctx;
    double quota = -1, period = 0;
    (void)name;
    FILE *f = control_groups_open(q->root, folder, second ? "cpu.max" : "cpu.cfs_quota_us");
    if (f && fscanf(f, second ? "%lf %lf" : "%lf", &quota, &period) < 1) quota = -1;
    if (f) fclose(f);
    if (!second && (f = control_groups_open(q->root, folder, "cpu.cfs_period_us"))) {
        if (fscanf(f, "%lf", &period) != 1) period = 0;
        fclose(f);
    }
    if (quota > 0 && period > 0 && (!q->tightest || quota / period < q->tightest))
        q->tightest = quota / period;
}

double processors_quota(const char *root) {
    struct quota q = {.root = root};
    control_groups_each(root, "cpu", look, &q);
    return q.tightest;
}

int processors_share_of(int mask, double quota, int ranks, bool bound) {
    int share = bound ? mask : mask / ranks;
    if (quota > 0 && quota / ranks < share) share = (int)(quota / ranks);
    return share > 1 ? share : 1;
}

int processors_share(int ranks, bool bound) {
    int mask = count_of(0);
    if (!mask) mask = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return processors_share_of(mask, processors_quota(""), ranks > 0 ? ranks : 1, bound);
}

// Slurm reports whether it binds. Without binding the tasks of a node share the job's processors, and their parent
// has more.
bool processors_bound(void) {
    const char *slurm = getenv("SLURM_CPU_BIND_TYPE");
    bool binds = !getenv("SLURM_STEP_ID") || (slurm && *slurm && strncmp(slurm, "none", 4) != 0);
    return binds && count_of(0) < count_of(getppid());
}

int processors_given(void) { return processors_share(1, false); }

int processors_numa_nodes(int *node) {
    cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
    int count = 0, given = set ? mask_of(0, set) : 0, in_one = 0;
    char path[96];
    for (;; count++) {
        int here = 0;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d", count);
        if (access(path, F_OK)) break;
        for (int cpu = 0; cpu < CPUS_MAX && given; cpu++) {
            if (!CPU_ISSET_S(cpu, CPU_ALLOC_SIZE(CPUS_MAX), set)) continue;
            snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpu%d", count, cpu);
            here += !access(path, F_OK);
        }
        if (here == given && given) in_one = count + 1;
    }
    if (set) CPU_FREE(set);
    *node = in_one;
    return count;
}
