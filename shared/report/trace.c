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

// DIR/ranks/gaps-R.txt: this rank's gaps on the job's clock, a line each: begin, end, wait, peer, kind, unit; until all ranks'
// reports say which of them were another one's doing.
static int write_gaps(const char *dir, int rank, struct timeline *tl) {
    char *path = xasprintf("%s/ranks/gaps-%d.txt", dir, rank);
    FILE *f = file_create_stream(path);
    const struct gaps *gaps = timeline_gaps(tl);
    const struct layout *l = timeline_layout(tl);
    int64_t offset = timeline_clock(tl).offset_ns;
    int rc = f ? 0 : -1;
    if (f) fprintf(f, "%" PRIu64 "\n", gaps->lost);
    for (size_t i = 0; f && i < gaps->all_count; i++) {
        const struct split_gap *g = &gaps->all[i].of;
        const struct transfer *t = &gaps->all[i].what;
        bool named = t->unit >= 0 && t->unit < l->count;
        fprintf(f, "%" PRId64 " %" PRId64 " %d %d %d %s\n", g->begin + offset, g->end + offset, g->wait,
                g->peer, t->kind, named ? l->units[t->unit].name : "-");
    }
    if (f && fclose(f)) rc = -1;
    if (rc) fail("%s: cannot write the trace: %s", path, strerror(errno));
    free(path);
    return rc;
}

int trace_write_rank(const char *dir, int rank, struct device *dev, struct timeline *tl) {
    char *path = xasprintf("%s/ranks/trace-%d.json", dir, rank);
    FILE *f = file_create_stream(path);
    int rc = f ? dev_trace_write(dev, rank, f) : -1;
    if (f && fclose(f)) rc = -1;
    if (rc) fail("%s: cannot write the trace: %s", path, strerror(errno));
    free(path);
    return write_gaps(dir, rank, tl) ? -1 : rc;
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

static int is_part(const struct dirent *e) {
    return is_trace(e) || (!strncmp(e->d_name, "gaps-", 5) && ends_with(e->d_name, ".txt"));
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

static void begin_event(struct joined *j) {
    fputs(j->any ? ",\n" : "", j->out);
    j->any = true;
}

static void name_thread(struct joined *j, int pid, int tid, const char *name) {
    begin_event(j);
    fprintf(j->out,
            "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", pid,
            tid, name);
}

// When a rank's process, or its part of the transfers, did not run, from its report: a row of its own.
static void write_stalls(struct joined *j, const struct moments *m, int pid) {
    static const char *const names[STALL_KINDS] = {"the process did not run", "its transfers had no core"};
    bool named = false;
    for (int k = 0; m && k < STALL_KINDS; k++)
        for (size_t i = 0; i < m->stall_count[k]; i++) {
            const struct stall *s = &m->stalls[k][i];
            if (!named) name_thread(j, pid, STALLS_TID, "stood still");
            named = true;
            begin_event(j);
            fprintf(j->out,
                    "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"stood_still\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
                    "\"dur\":%.3f}",
                    names[k], pid, STALLS_TID, (double)s->begin * 1e-3, (double)(s->end - s->begin) * 1e-3);
        }
}

struct gap_words {
    struct joined *j;
    const struct meeting *m;
    int pid;
    int index;  // of this rank among the reports
    int kind;
    char unit[64];
};

static void write_gap(void *ctx, const struct split_gap *g, int rank) {
    const struct gap_words *w = ctx;
    bool own = rank >= 0 && rank == w->index, wait = rank >= 0 ? !own : g->wait;
    const char *role = rank >= 0 ? w->m->roles[rank] : "worker";
    int peer = rank >= 0 ? w->m->ranks[rank] : g->peer;
    begin_event(w->j);
    fprintf(w->j->out, "{\"ph\":\"X\",\"name\":\"%s",
            own    ? "this rank stood still"
            : wait ? "wait"
                   : "exposed communication");
    if (wait && peer >= 0) fprintf(w->j->out, " for %s %d", role, peer);
    fprintf(w->j->out,
            "\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"transfer\":\"%s",
            own    ? "host"
            : wait ? "wait"
                   : "comm_exposed",
            w->pid, GAPS_TID, (double)g->begin * 1e-3, (double)(g->end - g->begin) * 1e-3,
            transfer_kind_name((enum transfer_kind)w->kind));
    if (strcmp(w->unit, "-") != 0) fprintf(w->j->out, " of %s", w->unit);
    fputs("\"", w->j->out);
    if (wait && peer >= 0) fprintf(w->j->out, ",\"%s\":%d", role, peer);
    fputs("}}", w->j->out);
}

// A worker's gaps, as all ranks' reports settle them. 0, or -1 when they cannot be read.
static int join_gaps(struct joined *j, const struct meeting *m, int worker) {
    char *name = xasprintf("ranks/gaps-%d.txt", worker), *text = run_file_read(j->dir, name, false),
         *rest = text;
    int index = meeting_index(m, "worker", worker);
    size_t parts = 0, at = 0;
    struct blame *blame = index >= 0 ? moments_blame(m->moments, m->count, (size_t)index, &parts) : NULL;
    const char *line = text ? strsep(&rest, "\n") : NULL;
    uint64_t lost = line ? strtoull(line, NULL, 10) : 0;
    free(name);
    if (text) name_thread(j, worker, GAPS_TID, "standing still");
    if (lost) begin_event(j);
    if (lost)
        fprintf(j->out,
                "{\"ph\":\"M\",\"name\":\"spans_dropped\",\"pid\":%d,\"tid\":%d,\"args\":{\"count\":%" PRIu64
                "}}",
                worker, GAPS_TID, lost);
    while (text && (line = strsep(&rest, "\n"))) {
        struct gap_words w = {.j = j, .m = m, .pid = worker, .index = index};
        struct split_gap g = {0};
        int wait;
        if (sscanf(line, "%" SCNd64 " %" SCNd64 " %d %d %d %63s", &g.begin, &g.end, &wait, &g.peer, &w.kind,
                   w.unit) != 6 ||
            w.kind < 0 || w.kind >= TRANSFER_KINDS)
            continue;
        g.wait = wait;
        moments_settle(blame, parts, &at, &g, write_gap, &w);
    }
    free(blame);
    free(text);
    return text ? 0 : -1;
}

// Only when all of them are in the one file are they no longer needed.
static void remove_parts(const char *dir) {
    char *ranks = xasprintf("%s/ranks", dir);
    struct dirent **names = NULL;
    int count = scandir(ranks, &names, is_part, alphasort);
    for (int i = 0; i < count; i++) {
        char *path = xasprintf("%s/%s", ranks, names[i]->d_name);
        unlink(path);
        free(path);
        free(names[i]);
    }
    free(names);
    free(ranks);
}

int trace_merge(const char *dir, int ranks, const struct meeting *m) {
    char *path = xasprintf("%s/trace.json", dir);
    struct new_file n;
    int rc = 0;
    struct joined j = {.dir = dir};
    if (new_file_begin(&n, path, false)) j.out = n.file;
    if (j.out) fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", j.out);
    for (int r = 0; j.out && r < ranks; r++) {
        char *name = xasprintf("trace-%d.json", r);
        if (join(&j, name)) rc = -1;
        free(name);
    }
    if (j.out && join_others(&j, ranks)) rc = -1;
    for (int r = 0; j.out && r < ranks; r++)
        if (join_gaps(&j, m, r)) rc = -1;
    for (size_t i = 0; j.out && i < m->count; i++)
        write_stalls(&j, m->moments[i], m->ranks[i] + (strcmp(m->roles[i], "worker") ? ranks : 0));
    if (j.out) fputs("\n]}\n", j.out);
    if (new_file_end(&n, !rc) && !rc)
        rc = fail("%s: cannot write: %s: %s/ranks/trace-*.json hold its parts", path, strerror(errno), dir);
    if (!rc) remove_parts(dir);
    free(path);
    return rc;
}
