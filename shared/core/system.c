#include "shared/core/system.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/file.h"

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

// Slurm says whether it binds tasks. If it does not, the tasks of a node share the job's processors; their parent has more
// processors, so a comparison with the parent's mask would be wrong.
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

// ---------------------------------------------------------------- control groups
FILE *control_groups_open(const char *root, const char *folder, const char *name) {
    char *full = xasprintf("%s%s%s%s", root, folder, name ? "/" : "", name ? name : "");
    FILE *f = fopen(full, "r");
    free(full);
    return f;
}

static bool has_word(char *list, const char *word) {
    bool found = false;
    for (char *name; (name = strsep(&list, ","));) found |= !strcmp(name, word);
    return found;
}

// The directory where one version is mounted, and the group at the root of that mount. A container sees only a
// subtree.
struct mount {
    bool second;
    char *root, *folder;
};

// A line of /proc/self/mountinfo: "ID PARENT MAJOR:MINOR ROOT FOLDER OPTIONS.. - TYPE SOURCE SUPER-OPTIONS"
static bool mount_parse(char *line, const char *controller, struct mount *m) {
    char *words[5], *rest = line;
    char *tail = strstr(line, " - ");
    if (!tail) return false;
    for (int i = 0; i < 5; i++)
        if (!(words[i] = strsep(&rest, " ")) || !rest || rest > tail + 1) return false;
    char *type = tail + 3, *options = strrchr(type, ' ');
    if (!options) return false;
    options[strcspn(options, "\n")] = 0;
    bool second = !strncmp(type, "cgroup2 ", 8), first = !strncmp(type, "cgroup ", 7);
    if (!second && !(first && has_word(options + 1, controller))) return false;
    *m = (struct mount){second, xstrdup(strcmp(words[3], "/") ? words[3] : ""), xstrdup(words[4])};
    return true;
}

// Returns the process's group in one hierarchy, a malloc'd path without a trailing slash. Returns NULL if it has
// none.
// Lines of /proc/self/cgroup: "0::/path" for version 2, "4:memory:/path" for version 1.
static char *own_group(const char *root, const char *controller, bool second) {
    char line[4096];
    char *group = NULL;
    FILE *f = control_groups_open(root, "/proc/self/cgroup", NULL);
    while (f && !group && fgets(line, sizeof line, f)) {
        char *rest = line, *number = strsep(&rest, ":"), *controllers = rest ? strsep(&rest, ":") : NULL;
        if (!controllers || !rest) continue;
        bool mine = second ? !strcmp(number, "0") && !*controllers : has_word(controllers, controller);
        rest[strcspn(rest, "\n")] = 0;
        if (mine && *rest == '/') group = xstrdup(strcmp(rest, "/") ? rest : "");
    }
    if (f) fclose(f);
    return group;
}

// Visits the groups from the process's own up to the root of the mount.
static void walk(const char *root, const char *controller, const struct mount *m, control_group_visit *visit,
                 void *ctx) {
    char *group = own_group(root, controller, m->second);
    if (!group) return;
    size_t n = strlen(m->root);
    bool below = !strncmp(group, m->root, n) && (!group[n] || group[n] == '/');
    char *at =
        xstrdup(below ? group + n : "");  // a group outside that root has no visible files: start at the root
    for (;;) {
        char *folder = xasprintf("%s%s", m->folder, at), *name = xasprintf("%s%s", m->root, at);
        visit(ctx, m->second, folder, *name ? name : "/");
        free(folder);
        free(name);
        char *slash = strrchr(at, '/');
        if (!slash) break;
        *slash = 0;
    }
    free(at);
    free(group);
}

void control_groups_each(const char *root, const char *controller, control_group_visit *visit, void *ctx) {
    char line[4096];
    FILE *f = control_groups_open(root, "/proc/self/mountinfo", NULL);
    while (f && fgets(line, sizeof line, f)) {
        struct mount m;
        if (!mount_parse(line, controller, &m)) continue;
        walk(root, controller, &m, visit, ctx);
        free(m.root);
        free(m.folder);
    }
    if (f) fclose(f);
}

// ---------------------------------------------------------------- other processes
int proc_look(pid_t pid, struct proc_look *out) {
    char path[64], line[512];
    int parent;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    path_first_line(path, line, sizeof line);
    char *open = strchr(line, '('), *close = strrchr(line, ')');  // a name may contain parentheses
    if (!open || !close || sscanf(close + 1, " %c %d", &out->state, &parent) != 2) return -1;
    out->parent = parent;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(close - open - 1), open + 1);
    return 0;
}

bool proc_is_stopped(pid_t pid) {
    struct proc_look look;
    return proc_look(pid, &look) == 0 && (look.state == 'T' || look.state == 't');
}

void proc_each(bool (*visit)(void *ctx, pid_t pid), void *ctx) {
    DIR *proc = opendir("/proc");
    bool on = true;
    for (struct dirent *e = proc ? readdir(proc) : NULL; e && on; e = readdir(proc)) {
        int pid = atoi(e->d_name);
        if (pid > 0) on = visit(ctx, pid);
    }
    if (proc) closedir(proc);
}
