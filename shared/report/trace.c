#include "shared/report/trace.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/core/path.h"
#include "shared/files/regular_file.h"
#include "shared/report/run_file.h"
#include "shared/time/moments.h"
#include "shared/time/timeline.h"

#define GAPS_TID   900  // behind those of the device's streams
#define STALLS_TID 901

static void write_gaps(FILE *f, int rank, struct timeline *tl) {
    const struct gaps *gaps = timeline_gaps(tl);
    const struct layout *l = timeline_layout(tl);
    int64_t offset = timeline_clock(tl).offset_ns;
    fprintf(
        f,
        ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"standing still\"}}",
        rank, GAPS_TID);
    if (gaps->lost)
        fprintf(
            f,
            ",\n{\"ph\":\"M\",\"name\":\"spans_dropped\",\"pid\":%d,\"tid\":%d,\"args\":{\"count\":%" PRIu64
            "}}",
            rank, GAPS_TID, gaps->lost);
    for (size_t i = 0; i < gaps->all_count; i++) {
        const struct split_gap *g = &gaps->all[i].of;
        const struct transfer *t = &gaps->all[i].what;
        bool named = g->wait && g->peer >= 0;
        fprintf(f, ",\n{\"ph\":\"X\",\"name\":\"%s", g->wait ? "wait" : "exposed communication");
        if (named) fprintf(f, " for worker %d", g->peer);
        fprintf(
            f, "\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"transfer\":\"%s",
            g->wait ? "wait" : "comm_exposed", rank, GAPS_TID, (double)(g->begin + offset) * 1e-3,
            (double)(g->end - g->begin) * 1e-3, transfer_kind_name(t->kind));
        if (t->unit >= 0 && t->unit < l->count) fprintf(f, " of %s", l->units[t->unit].name);
        fputs("\"", f);
        if (named) fprintf(f, ",\"worker\":%d", g->peer);
        fputs("}}", f);
    }
}

int trace_write_rank(const char *dir, int rank, struct device *dev, struct timeline *tl) {
    char *path = xasprintf("%s/ranks/trace-%d.json", dir, rank);
    FILE *f = file_create_stream(path);
    int rc = f ? dev_trace_write(dev, rank, f) : -1;
    if (f) write_gaps(f, rank, tl);
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

// When a rank's process did not run, from its report: a row of its own. False: there is no report.
static bool write_stalls(struct joined *j, const char *role, int rank, int pid) {
    char *name = xasprintf("ranks/%s-%d.json", role, rank), *text = run_file_read(j->dir, name, true);
    cJSON *report = text ? json_parse(text, strlen(text)) : NULL;
    struct moments *m = moments_read(report);
    bool there = report;
    for (size_t i = 0; m && i < m->stall_count; i++) {
        const struct stall *s = &m->stalls[i];
        if (i == 0)
            fprintf(
                j->out,
                "%s{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"stood still\"}}",
                j->any ? ",\n" : "", pid, STALLS_TID);
        fprintf(
            j->out,
            ",\n{\"ph\":\"X\",\"name\":\"the process did not run\",\"cat\":\"stood_still\",\"pid\":%d,\"tid\":%d,"
            "\"ts\":%.3f,\"dur\":%.3f}",
            pid, STALLS_TID, (double)s->begin * 1e-3, (double)(s->end - s->begin) * 1e-3);
        j->any = true;
    }
    moments_free(&m);
    cJSON_Delete(report);
    free(text);
    free(name);
    return there;
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
    for (int r = 0; j.out && r < ranks; r++) write_stalls(&j, "worker", r, r);
    for (int r = 0; j.out && write_stalls(&j, "server", r, ranks + r); r++) continue;
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
