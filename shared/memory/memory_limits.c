#include "shared/memory/memory_limits.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

// Version 1 says "no limit" as a number: LONG_MAX rounded down to a page.
#define NO_LIMIT 9.0e18

// The files of one version of control groups. Both count file cache as in use; the kernel gives it up before
// it kills. (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the kernel.)
struct version {
    const char *limit, *used;
    const char *cache[3];  // lines of memory.stat
};
static const struct version v1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file ", "total_active_file ", NULL}};
static const struct version v2 = {
    "memory.max", "memory.current", {"inactive_file ", "active_file ", "slab_reclaimable "}};

static FILE *open_below(const char *root, const char *path, const char *name) {
    char *full = xasprintf("%s%s%s%s", root, path, name ? "/" : "", name ? name : "");
    FILE *f = fopen(full, "r");
    free(full);
    return f;
}

// A count of bytes and nothing else; -1 for anything else.
static double count_of(const char *text) {
    char *end;
    if (*text < '0' || *text > '9') return -1;
    errno = 0;
    double value = (double)strtoull(text, &end, 10);
    return errno || (*end && *end != '\n') ? -1 : value;
}

static double read_count(const char *root, const char *folder, const char *name) {
    char line[64] = "";
    FILE *f = open_below(root, folder, name);
    if (!f) return -1;
    bool got = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    return got ? count_of(line) : -1;
}

int memory_limit_of_machine(const char *root, struct memory_limit *out) {
    static const char key[] = "MemAvailable:";
    char line[256];
    double kib = -1;
    FILE *f = open_below(root, "/proc/meminfo", NULL);
    while (f && kib < 0 && fgets(line, sizeof line, f)) {
        char unit[8];
        unsigned long long value;
        if (!strncmp(line, key, strlen(key)) && sscanf(line + strlen(key), " %llu %7s", &value, unit) == 2 &&
            !strcmp(unit, "kB"))
            kib = (double)value;
    }
    if (f) fclose(f);
    if (kib < 0) return -1;
    *out = (struct memory_limit){.free_bytes = kib * 1024, .name = "MemAvailable"};
    return 0;
}

// ---------------------------------------------------------------- control groups
static double reclaimable(const char *root, const char *folder, const struct version *v) {
    char line[256];
    double sum = 0;
    FILE *f = open_below(root, folder, "memory.stat");
    while (f && fgets(line, sizeof line, f))
        for (int i = 0; i < 3 && v->cache[i]; i++) {
            size_t n = strlen(v->cache[i]);
            double value = strncmp(line, v->cache[i], n) ? -1 : count_of(line + n);
            if (value > 0) sum += value;
        }
    if (f) fclose(f);
    return sum;
}

static bool one_group(const char *root, const char *folder, const char *group, const struct version *v,
                      struct memory_limit *out) {
    double limit = read_count(root, folder, v->limit), used = read_count(root, folder, v->used);
    if (limit < 0 || limit >= NO_LIMIT || used < 0) return false;
    double left = limit - used + fmin(reclaimable(root, folder, v), used);
    left = left > 0 ? left : 0;
    *out = (struct memory_limit){.free_bytes = left};
    snprintf(out->name, sizeof out->name, "%s of the control group %s", v->limit, *group ? group : "/");
    return true;
}

// The place at which one version is mounted, and the group that is its root there: a container sees a part.
struct mount {
    const struct version *version;
    char *root, *folder;
};

// A line of /proc/self/mountinfo: "ID PARENT MAJOR:MINOR ROOT FOLDER OPTIONS.. - TYPE SOURCE SUPER-OPTIONS"
static bool mount_parse(char *line, struct mount *m) {
    char *words[5], *rest = line;
    char *tail = strstr(line, " - ");
    if (!tail) return false;
    for (int i = 0; i < 5; i++)
        if (!(words[i] = strsep(&rest, " ")) || !rest || rest > tail + 1) return false;
    char *type = tail + 3, *options = strrchr(type, ' ');
    if (!options) return false;
    options[strcspn(options, "\n")] = 0;
    bool second = !strncmp(type, "cgroup2 ", 8), first = !strncmp(type, "cgroup ", 7);
    bool memory = false;
    for (char *o = options + 1, *name; first && (name = strsep(&o, ","));) memory |= !strcmp(name, "memory");
    if (!second && !memory) return false;
    *m =
        (struct mount){second ? &v2 : &v1, xstrdup(strcmp(words[3], "/") ? words[3] : ""), xstrdup(words[4])};
    return true;
}

// The process's group in the hierarchy of m, a malloc'd path without a closing slash; NULL: it is in none.
// Lines of /proc/self/cgroup: "0::/path" for version 2, "4:memory:/path" for version 1.
static char *own_group(const char *root, const struct version *v) {
    char line[4096];
    char *group = NULL;
    FILE *f = open_below(root, "/proc/self/cgroup", NULL);
    while (f && !group && fgets(line, sizeof line, f)) {
        char *rest = line, *number = strsep(&rest, ":"), *controllers = rest ? strsep(&rest, ":") : NULL;
        if (!controllers || !rest) continue;
        bool mine = v == &v2 && !strcmp(number, "0") && !*controllers;
        for (char *name; v == &v1 && (name = strsep(&controllers, ","));) mine |= !strcmp(name, "memory");
        rest[strcspn(rest, "\n")] = 0;
        if (mine && *rest == '/') group = xstrdup(strcmp(rest, "/") ? rest : "");
    }
    if (f) fclose(f);
    return group;
}

// From the process's own group up to the root of the mount.
static bool tightest(const char *root, const struct mount *m, struct memory_limit *out) {
    bool any = false;
    char *group = own_group(root, m->version);
    if (!group) return false;
    size_t n = strlen(m->root);
    bool below = !strncmp(group, m->root, n) && (!group[n] || group[n] == '/');
    char *at = xstrdup(below ? group + n : "");  // elsewhere: its files are not to be seen from here
    for (;;) {
        struct memory_limit l;
        char *folder = xasprintf("%s%s", m->folder, at), *name = xasprintf("%s%s", m->root, at);
        if (one_group(root, folder, name, m->version, &l) && (!any || l.free_bytes < out->free_bytes)) {
            *out = l;
            any = true;
        }
        free(folder);
        free(name);
        char *slash = strrchr(at, '/');
        if (!slash) break;
        *slash = 0;
    }
    free(at);
    free(group);
    return any;
}

int memory_limit_of_groups(const char *root, struct memory_limit *out) {
    char line[4096];
    bool any = false;
    FILE *f = open_below(root, "/proc/self/mountinfo", NULL);
    while (f && fgets(line, sizeof line, f)) {
        struct mount m;
        struct memory_limit l;
        if (!mount_parse(line, &m)) continue;
        if (tightest(root, &m, &l) && (!any || l.free_bytes < out->free_bytes)) {
            *out = l;
            any = true;
        }
        free(m.root);
        free(m.folder);
    }
    if (f) fclose(f);
    return any ? 0 : -1;
}

int memory_limit_read(const char *root, struct memory_limit *out) {
    struct memory_limit group;
    bool machine = !memory_limit_of_machine(root, out);
    if (memory_limit_of_groups(root, &group)) return machine ? 0 : -1;
    if (!machine || group.free_bytes < out->free_bytes) *out = group;
    return 0;
}
