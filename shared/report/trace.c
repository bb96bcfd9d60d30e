#include "shared/report/trace.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/files/regular_file.h"
#include "shared/report/run_file.h"

int trace_write_rank(const char *dir, int rank, struct device *dev) {
    char *path = xasprintf("%s/ranks/trace-%d.json", dir, rank);
    FILE *f = file_create_stream(path);
    int rc = f ? dev_trace_write(dev, rank, f) : -1;
    if (f && fclose(f)) rc = -1;
    if (rc) fail("%s: cannot write the trace: %s", path, strerror(errno));
    free(path);
    return rc;
}

// The text without commas and white space at its ends, so that one comma can go between two of them.
static char *trimmed(char *text) {
    char *end = text + strlen(text);
    while (end > text && strchr(", \n\t", end[-1])) *--end = 0;
    while (*text && strchr(", \n\t", *text)) text++;
    return text;
}

struct joined {
    const char *dir;
    FILE *out;
    bool any;
};

// Appends DIR/ranks/NAME. 0, or -1 when it cannot be read.
static int join(struct joined *j, const char *name) {
    char *file = xasprintf("ranks/%s", name);
    char *text = run_file_read(j->dir, file, false);
    char *events = text ? trimmed(text) : "";
    fprintf(j->out, "%s%s", *events && j->any ? ",\n" : "", events);
    if (*events) j->any = true;
    int rc = text ? 0 : -1;
    free(text);
    free(file);
    return rc;
}

static bool is_rank(const char *name, int ranks) {
    char *end;
    long rank = strtol(name + 6, &end, 10);
    return end > name + 6 && !strcmp(end, ".json") && rank >= 0 && rank < ranks;
}

static int is_trace(const struct dirent *e) {
    return !strncmp(e->d_name, "trace-", 6) && ends_with(e->d_name, ".json");
}

// What else has left a trace, in order of names: communication threads, servers, a scheduler.
static int join_others(struct joined *j, int ranks) {
    char *dir = xasprintf("%s/ranks", j->dir);
    struct dirent **names = NULL;
    int count = scandir(dir, &names, is_trace, alphasort), rc = 0;
    for (int i = 0; i < count; i++) {
        if (!is_rank(names[i]->d_name, ranks) && join(j, names[i]->d_name)) rc = -1;
        free(names[i]);
    }
    free(names);
    free(dir);
    return rc;
}

// Only when all of them are in the one file are they no longer needed.
static void remove_parts(const char *dir) {
    char *ranks = xasprintf("%s/ranks", dir);
    struct dirent **names = NULL;
    int count = scandir(ranks, &names, is_trace, alphasort);
    for (int i = 0; i < count; i++) {
        char *path = xasprintf("%s/%s", ranks, names[i]->d_name);
        unlink(path);
        free(path);
        free(names[i]);
    }
    free(names);
    free(ranks);
}

int trace_merge(const char *dir, int ranks) {
    char *path = xasprintf("%s/trace.json", dir);
    char *part = xasprintf("%s.part", path);
    struct joined j = {.dir = dir, .out = file_create_stream(part)};
    int rc = 0;
    if (j.out) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", j.out);
    for (int r = 0; j.out && r < ranks; r++) {
        char *name = xasprintf("trace-%d.json", r);
        if (join(&j, name)) rc = -1;
        free(name);
    }
    if (j.out && join_others(&j, ranks)) rc = -1;
    if (j.out) fputs("\n]}\n", j.out);
    bool written = j.out && !ferror(j.out);
    if (j.out && fclose(j.out)) written = false;
    if (!written || (!rc && rename(part, path)))
        rc = fail("%s: cannot write: %s: %s/ranks/trace-*.json hold its parts", path, strerror(errno), dir);
    if (!rc)
        remove_parts(dir);
    else if (j.out)
        unlink(part);
    free(part);
    free(path);
    return rc;
}
