#include "shared/core/proc_look.h"

#include <dirent.h>
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
