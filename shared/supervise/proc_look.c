#include "shared/supervise/proc_look.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_line(const char *path, char *line, size_t size) {
    FILE *f = fopen(path, "re");
    bool got = f && fgets(line, (int)size, f);
    if (f) fclose(f);
    return got;
}

int proc_look(pid_t pid, struct proc_look *out) {
    char path[64], line[512];
    int parent;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_line(path, line, sizeof line)) return -1;
    char *open = strchr(line, '('), *close = strrchr(line, ')');  // a name may contain both
    if (!open || !close || sscanf(close + 1, " %c %d", &out->state, &parent) != 2) return -1;
    out->parent = parent;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(close - open - 1), open + 1);
    return 0;
}

// Its time slices; where the kernel does not count them, its time.
static uint64_t thread_runs(pid_t pid, const char *thread, bool *waits) {
    char path[400], line[512], state = 'S';
    uint64_t slices = 0, user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%s/stat", (int)pid, thread);
    const char *close = read_line(path, line, sizeof line) ? strrchr(line, ')') : NULL;
    if (close)
        sscanf(close + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &state, &user,
               &system);
    *waits |= state == 'R' || state == 'D';
    snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, thread);
    if (read_line(path, line, sizeof line)) sscanf(line, "%*u %*u %" SCNu64, &slices);
    return slices ? slices : user + system;
}

bool proc_is_stopped(pid_t pid) {
    struct proc_look look;
    return proc_look(pid, &look) == 0 && (look.state == 'T' || look.state == 't');
}

uint64_t proc_runs(pid_t pid, bool *waits) {
    char path[64];
    uint64_t sum = 0;
    *waits = false;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    for (struct dirent *e = tasks ? readdir(tasks) : NULL; e; e = readdir(tasks))
        if (e->d_name[0] != '.') sum += thread_runs(pid, e->d_name, waits);
    if (tasks) closedir(tasks);
    return sum;
}

bool proc_variable(pid_t pid, const char *name, char *out, size_t size) {
    char path[64], *entry = NULL;
    size_t room = 0, length = strlen(name);
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&entry, &room, '\0', f) > 0)
        found = !strncmp(entry, name, length) && entry[length] == '=';
    if (found) snprintf(out, size, "%s", entry + length + 1);
    if (f) fclose(f);
    free(entry);
    return found;
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
