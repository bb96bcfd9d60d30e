#include "shared/predict/memory_limits.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/system.h"

// Version 1 writes "no limit" as a number: LONG_MAX rounded down to a page.
#define NO_LIMIT 9.0e18

// The files of one version of control groups. Both versions count file cache as used; the kernel frees it before it
// kills. (Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the kernel.)
struct version {
    const char *limit, *used;
    const char *cache[3];  // lines of memory.stat
};
static const struct version v1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file ", "total_active_file ", NULL}};
static const struct version v2 = {
    "memory.max", "memory.current", {"inactive_file ", "active_file ", "slab_reclaimable "}};

// Parses a count of bytes and nothing else. Returns -1 for anything else.
static double count_of(const char *text) {
    char *end;
    if (*text < '0' || *text > '9') return -1;
    errno = 0;
    double value = (double)strtoull(text, &end, 10);
    return errno || (*end && *end != '\n') ? -1 : value;
}

static double read_count(const char *root, const char *folder, const char *name) {
    char line[64] = "";
    FILE *f = control_groups_open(root, folder, name);
    if (!f) return -1;
    bool got = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    return got ? count_of(line) : -1;
}

int memory_limit_of_machine(const char *root, struct memory_limit *out) {
    static const char key[] = "MemAvailable:";
    char line[256];
    double kib = -1;
    FILE *f = control_groups_open(root, "/proc/meminfo", NULL);
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
    FILE *f = control_groups_open(root, folder, "memory.stat");
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
    snprintf(out->name, sizeof out->name, "%s of the control group %s", v->limit, group);
    return true;
}

struct tightest {
    const char *root;
    struct memory_limit *out;
    bool any;
};

static void look(void *ctx, bool second, const char *folder, const char *name) {
    struct tightest *t = ctx;
    struct memory_limit l;
    if (!one_group(t->root, folder, name, second ? &v2 : &v1, &l)) return;
    if (!t->any || l.free_bytes < t->out->free_bytes) *t->out = l;
    t->any = true;
}

int memory_limit_of_groups(const char *root, struct memory_limit *out) {
    struct tightest t = {.root = root, .out = out};
    control_groups_each(root, "memory", look, &t);
    return t.any ? 0 : -1;
}

int memory_limit_read(const char *root, struct memory_limit *out) {
    struct memory_limit group;
    bool machine = !memory_limit_of_machine(root, out);
    if (memory_limit_of_groups(root, &group)) return machine ? 0 : -1;
    if (!machine || group.free_bytes < out->free_bytes) *out = group;
    return 0;
}
