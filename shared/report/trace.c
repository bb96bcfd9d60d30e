#include "shared/report/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/report/run_file.h"

int trace_write_rank(const char *dir, int rank, struct device *dev) {
    char *path = xasprintf("%s/ranks/trace-%d.json", dir, rank);
    FILE *f = fopen(path, "w");
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

int trace_merge(const char *dir, int ranks) {
    char *path = xasprintf("%s/trace.json", dir);
    char *part = xasprintf("%s.part", path);
    FILE *f = fopen(part, "w");
    int rc = 0;
    bool first = true;
    if (f) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    for (int r = 0; f && r < ranks; r++) {
        char *name = xasprintf("ranks/trace-%d.json", r);
        char *text = run_file_read(dir, name, false);
        char *events = text ? trimmed(text) : "";
        if (!text) rc = -1;
        fprintf(f, "%s%s", *events && !first ? ",\n" : "", events);
        if (*events) first = false;
        free(text);
        char *spent = xasprintf("%s/%s", dir, name);
        unlink(spent);
        free(spent);
        free(name);
    }
    if (f) fputs("\n]}\n", f);
    if (!f || fclose(f) || (!rc && rename(part, path)))
        rc = fail("%s: cannot write: %s", path, strerror(errno));
    free(part);
    free(path);
    return rc;
}
