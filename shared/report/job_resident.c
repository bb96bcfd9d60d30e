#include "shared/report/job_resident.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/system.h"

struct count {
    char program[PATH_MAX];  // path of this process's program
    pid_t root;
    struct job_resident sum;
    bool unknown;
};

static bool program_of(pid_t pid, char out[PATH_MAX]) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    ssize_t n = readlink(path, out, PATH_MAX - 1);
    if (n > 0) out[n] = 0;
    return n > 0;
}

// Returns the top process above pid that is reached through processes of this program and of Open MPI's starters.
// Returns 0 if pid is not such a process.
static pid_t root_of(const struct count *c, pid_t pid) {
    static const char *const starters[] = {"mpirun", "mpiexec", "orterun", "prterun", "orted", "prted"};
    struct proc_look look;
    pid_t root = 0;
    while (pid > 0 && !proc_look(pid, &look) && look.state != 'Z') {
        char program[PATH_MAX];
        bool belongs = program_of(pid, program) && !strcmp(program, c->program);
        for (size_t i = 0; i < sizeof starters / sizeof *starters; i++)
            belongs = belongs || !strcmp(look.name, starters[i]);
        if (!belongs) break;
        root = pid;
        pid = look.parent;
    }
    return root;
}

static bool read_pss(pid_t pid, size_t *bytes) {
    char path[64], line[128];
    size_t kib;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && fgets(line, sizeof line, f)) found = sscanf(line, "Pss: %zu", &kib) == 1;
    if (f) fclose(f);
    if (found) *bytes = kib * 1024;
    return found;
}

static bool visit(void *ctx, pid_t pid) {
    struct count *c = ctx;
    size_t bytes;
    if (root_of(c, pid) != c->root) return true;
    if (read_pss(pid, &bytes)) {
        c->sum.pss_bytes += bytes;
        c->sum.processes++;
    } else {
        c->unknown = root_of(c, pid) == c->root;  // unless the process has ended since
    }
    return !c->unknown;
}

int job_resident_read(struct job_resident *out) {
    struct count c = {.root = 0};
    *out = (struct job_resident){0};
    if (!program_of(getpid(), c.program) || !(c.root = root_of(&c, getpid()))) return -1;
    proc_each(visit, &c);
    if (c.unknown || !c.sum.processes) return -1;
    *out = c.sum;
    return 0;
}
