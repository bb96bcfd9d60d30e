#include "shared/report/trace.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
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

// Appends DIR/ranks/NAME and removes it. 0, or -1 when it cannot be read.
static int join(struct joined *j, const char *name) {
    char *file = xasprintf("ranks/%s", name), *path = xasprintf("%s/%s", j->dir, file);
    char *text = run_file_read(j->dir, file, false);
    char *events = text ? trimmed(text) : "";
    fprintf(j->out, "%s%s", *events && j->any ? ",\n" : "", events);
    if (*events) j->any = true;
    int rc = text ? 0 : -1;
    free(text);
    unlink(path);
    free(path);
    free(file);
    return rc;
}

static int is_trace(const struct dirent *e) { return !strncmp(e->d_name, "trace-", 6); }

// What else has left a trace, in order of names: communication threads, servers, a scheduler.
static int join_others(struct joined *j) {
    char *ranks = xasprintf("%s/ranks", j->dir);
    struct dirent **names = NULL;
    int count = scandir(ranks, &names, is_trace, alphasort), rc = 0;
    for (int i = 0; i < count; i++) {
        size_t end = strlen(names[i]->d_name);
        if (end > 5 && !strcmp(names[i]->d_name + end - 5, ".json") && join(j, names[i]->d_name)) rc = -1;
        free(names[i]);
    }
    free(names);
    free(ranks);
    return rc;
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
    if (j.out && join_others(&j)) rc = -1;
    if (j.out) fputs("\n]}\n", j.out);
    if (!j.out || fclose(j.out) || (!rc && rename(part, path)))
        rc = fail("%s: cannot write: %s", path, strerror(errno));
    free(part);
    free(path);
    return rc;
}
