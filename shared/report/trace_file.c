// trace.json: the spans of a run, in Chrome's trace event format, one event per line, timestamps in microseconds.
//
// Its parts, DIR/ranks/trace-*.json, are lines of events with commas between them and without brackets.
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/config/config.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/report/span_files.h"
#include "shared/time/stall_report.h"
#include "shared/time/thread_time.h"

// Thread ids above those of the device's streams.
enum { GAPS_TID = 900, STALLS_TID, STEPS_TID, PHASES_TID };

// ---------------------------------------------------------------- events
struct trace {
    struct new_file file;
    FILE *f;  // NULL: the file could not be created
    int pid;
    int64_t shift;  // added to times to get the job's clock
    int64_t from;   // start of its first step: stalls that ended earlier are left out; 0: none are left out
    bool any;
};

static bool begin(struct trace *t, const char *path) {
    t->f = new_file_begin(&t->file, path, false) ? t->file.file : NULL;
    return t->f;
}

static void put_text(FILE *f, const char *text) {
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            fprintf(f, "\\%c", *p);
        else if (*p < 0x20)
            fprintf(f, "\\u%04x", *p);
        else
            fputc(*p, f);
    }
    fputc('"', f);
}

// Begins an event; the caller closes it.
static void event(struct trace *t, char ph, int tid, const char *name) {
    fprintf(t->f, "%s{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d,\"name\":", t->any ? ",\n" : "", ph, t->pid, tid);
    t->any = true;
    put_text(t->f, name);
}

// what: "process_name" or "thread_name"
static void put_name(struct trace *t, const char *what, int tid, const char *name) {
    event(t, 'M', tid, what);
    fputs(",\"args\":{\"name\":", t->f);
    put_text(t->f, name);
    fputs("}}", t->f);
}

static void put_lost(struct trace *t, int tid, const char *name, uint64_t lost) {
    if (!lost) return;
    warn("trace.json: %" PRIu64 " spans of the thread `%s` found no room and are not there", lost, name);
    event(t, 'M', tid, "spans_dropped");
    fprintf(t->f, ",\"args\":{\"count\":%" PRIu64 "}}", lost);
}

// Writes the largest error of the process's times on the job's clock.
static void put_clock_error(struct trace *t, int64_t ns) {
    event(t, 'M', 0, "clock_error");
    fprintf(t->f, ",\"args\":{\"ns\":%" PRId64 "}}", ns);
}

// A span without its arguments; the caller closes the event.
static void put_span(struct trace *t, int tid, const struct span *s, const char *name, const char *category) {
    event(t, 'X', tid, name);
    fprintf(t->f, ",\"cat\":\"%s\",\"ts\":%.3f,\"dur\":%.3f", category, (double)(s->begin + t->shift) * 1e-3,
            (double)span_length(s) * 1e-3);
}

// ---------------------------------------------------------------- a worker's last steps
// Cuts spans at the ends of the step: a span across two steps appears in both.
static void put_phases(struct trace *t, const struct timeline_view *v) {
    for (size_t i = 0; i < v->compute_count; i++) {
        struct span s = v->compute[i];
        if (s.begin < v->begin) s.begin = v->begin;
        if (s.end > v->end) s.end = v->end;
        put_span(t, PHASES_TID, &s, phase_name(s.phase), "phase");
        fputs("}", t->f);
    }
}

// Writes a transfer from the time when every rank was ready, as far as known, until its arrival. Transfers overlap, so
// each is its own pair of events.
static void put_transfer(struct trace *t, const struct layout *l, const struct transfer_times *m) {
    int64_t begin = m->peers_ready > m->own_ready ? m->peers_ready : m->own_ready ? m->own_ready : m->asked;
    bool named = m->what.unit >= 0 && m->what.unit < layout_units(l);
    char name[128];
    if (m->done <= begin) return;
    snprintf(name, sizeof name, "%s%s%s", transfer_kind_name(m->what.kind), named ? " of " : "",
             named ? l->units[m->what.unit].name : "");
    for (int end = 0; end < 2; end++) {
        event(t, end ? 'e' : 'b', 0, name);
        fprintf(t->f, ",\"cat\":\"transfer\",\"id\":\"0x%" PRIx64 "\",\"ts\":%.3f",
                ((uint64_t)t->pid + 1) << 40 | m->id, (double)((end ? m->done : begin) + t->shift) * 1e-3);
        if (!end) fprintf(t->f, ",\"args\":{\"bytes\":%" PRIu64 "}", m->what.bytes);
        fputs("}", t->f);
    }
}

// Writes a step, the spans of its computing, and its transfers that no earlier step has written.
static void put_step(struct trace *t, const struct layout *l, const struct timeline_view *v,
                     uint64_t *transfers) {
    char name[40];
    snprintf(name, sizeof name, "step %" PRId64, v->step + 1);
    put_span(t, STEPS_TID, &(struct span){.begin = v->begin, .end = v->end}, name, "step");
    fprintf(t->f, ",\"args\":{\"step\":%" PRId64 "}}", v->step + 1);
    put_phases(t, v);
    for (size_t i = 0; i < v->transfer_count; i++) {
        if (v->transfers[i].id <= *transfers) continue;
        *transfers = v->transfers[i].id;
        put_transfer(t, l, &v->transfers[i]);
    }
}

// ---------------------------------------------------------------- a worker's streams, and its gaps
// The cause of a section of a gap: the part of the time it counts for, and the rank that was waited for (role NULL: unknown).
struct gap_cause {
    const char *part;  // "host", "wait", "comm_exposed"
    const char *role;
    int rank;
};

// stalled: index of the rank that was stalled; -1: the gap's own data decide. own: index of the gap's rank.
static struct gap_cause gap_cause_of(const struct stall_reports *m, const struct span *piece, int stalled,
                                     int own) {
    if (stalled >= 0 && stalled == own) return (struct gap_cause){"host", NULL, -1};
    if (stalled >= 0) return (struct gap_cause){"wait", m->roles[stalled], m->ranks[stalled]};
    if (piece->kind != SPAN_WAIT) return (struct gap_cause){"comm_exposed", NULL, -1};
    return (struct gap_cause){"wait", piece->peer >= 0 ? "worker" : NULL, piece->peer};
}

static void put_gap(struct trace *t, const struct span *g, const char *transfer, struct gap_cause of) {
    char name[96] = "exposed communication";
    if (!strcmp(of.part, "host")) snprintf(name, sizeof name, "this rank stood still");
    if (!strcmp(of.part, "wait")) snprintf(name, sizeof name, "wait");
    if (of.role) snprintf(name, sizeof name, "wait for %s %d", of.role, of.rank);
    put_span(t, GAPS_TID, g, name, of.part);
    fputs(",\"args\":{\"transfer\":", t->f);
    put_text(t->f, transfer);
    if (of.role) fprintf(t->f, ",\"%s\":%d", of.role, of.rank);
    fputs("}}", t->f);
}

static int end(struct trace *t, char *path) {
    int rc = new_file_end(&t->file, true);
    if (rc) fail("%s: cannot write the trace: %s", path, strerror(errno));
    free(path);
    return rc;
}

// Writes a gap as the worker saw it itself.
static void put_own_gap(struct trace *t, const struct span *g) {
    char transfer[128];
    snprintf(transfer, sizeof transfer, "%s%s%s", transfer_kind_name(g->part), g->name ? " of " : "",
             g->name ? g->name : "");
    put_gap(t, g, transfer, gap_cause_of(NULL, g, -1, -1));
}

static void put_streams(struct trace *t, struct device *dev) {
    const struct spans *spans;
    const char *name;
    for (int i = 0; (spans = dev_spans(dev, i, &name)); i++) {
        put_name(t, "thread_name", i + 1, name);
        for (size_t k = 0; k < spans_count(spans); k++) {
            const struct span *s = spans_at(spans, k);
            put_span(t, i + 1, s, s->name, s->kind == SPAN_BLOCKED ? "blocked" : phase_name(s->phase));
            fputs("}", t->f);
        }
        put_lost(t, i + 1, name, spans->lost);
    }
}

int trace_write_worker(const char *dir, int rank, struct device *dev, struct timeline *tl, bool whole) {
    struct timeline_clock clock = timeline_clock(tl);
    struct trace t = {.pid = rank, .shift = clock.offset_ns};
    char *path = xasprintf("%s/ranks/trace-%d.json", dir, rank);
    const struct spans *gaps = &timeline_gaps(tl)->all;
    uint64_t transfers = 0;
    if (!begin(&t, path)) return end(&t, path);
    put_name(&t, "process_name", 0, dev_label(dev));
    put_clock_error(&t, clock.error_ns);
    if (whole) put_streams(&t, dev);
    put_name(&t, "thread_name", GAPS_TID, "standing still");
    put_name(&t, "thread_name", STEPS_TID, "the last steps");
    put_name(&t, "thread_name", PHASES_TID, "their phases");
    for (int back = TIMELINE_KEPT - 1; back >= 0; back--) {
        struct timeline_view v;
        if (!timeline_view(tl, back, &v)) continue;
        put_step(&t, timeline_layout(tl), &v, &transfers);
        for (size_t i = 0; i < v.gap_count && !whole; i++) put_own_gap(&t, &v.gaps[i]);
        timeline_view_free(&v);
    }
    for (size_t i = 0; i < spans_count(gaps) && whole; i++) put_own_gap(&t, spans_at(gaps, i));
    put_lost(&t, GAPS_TID, "standing still", gaps->lost);
    return end(&t, path);
}

// ---------------------------------------------------------------- threads of a role
// An arrow passes each kind of span once; repeated messages have none. passed: (parts, keys, workers) the last step
// whose arrow passed here, + 1.
static void put_arrows(struct trace *t, int tid, const struct span_role *r, const struct span *s,
                       int64_t *passed) {
    char ph = r->arrow ? r->arrow(s) : 0;
    if (!ph || s->key < 0 || s->key >= r->keys || s->step < 0) return;
    for (int worker = s->peer; worker < s->peer + s->peers && worker < r->workers; worker++) {
        int64_t *last = &passed[((size_t)s->part * (size_t)r->keys + (size_t)s->key) * (size_t)r->workers +
                                (size_t)worker];
        if (*last > s->step) continue;
        *last = s->step + 1;
        const int64_t words[3] = {s->key, s->step, worker};
        uint64_t id = XXH64(words, sizeof words, 0) & (UINT64_MAX >> 1);
        event(t, ph, tid, "partition");
        fprintf(t->f, ",\"cat\":\"partition\",\"id\":\"0x%" PRIx64 "\"%s,\"ts\":%.3f}", id ? id : 1,
                ph == 's' ? "" : ",\"bp\":\"e\"", (double)(s->begin + t->shift) * 1e-3);
    }
}

static void put_members(struct trace *t, const struct span *s) {
    const struct {
        const char *name;
        int64_t value;
        bool known;
    } members[] = {{"key", s->key, s->key >= 0},
                   {"step", s->step + 1, s->step >= 0},
                   {"worker", s->peer, s->peers == 1 && s->peer >= 0}};
    const char *comma = "";
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (!members[i].known) continue;
        fprintf(t->f, "%s\"%s\":%" PRId64, comma, members[i].name, members[i].value);
        comma = ",";
    }
}

// Returns the start of the last steps: the earliest span of one of them. 0: all spans are wanted.
static int64_t steps_begin(const struct span_role *r) {
    int64_t last = -1, begin_ns = INT64_MAX;
    if (!r->steps) return 0;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < r->count; t++)
            for (size_t i = 0; i < spans_count(r->threads[t].spans); i++) {
                const struct span *s = spans_at(r->threads[t].spans, i);
                if (pass == 0 && s->step > last) last = s->step;
                if (pass == 1 && s->step > last - r->steps && s->step >= 0 && s->begin < begin_ns)
                    begin_ns = s->begin;
            }
    return begin_ns;
}

static void put_thread(struct trace *t, int tid, const struct span_role *r, const struct span_thread *thread,
                       int64_t from_ns) {
    size_t cells = (size_t)THREAD_PARTS * (size_t)r->keys * (size_t)r->workers;
    int64_t *passed = xcalloc(cells + 1, sizeof *passed);
    put_name(t, "thread_name", tid, thread->name);
    for (size_t i = 0; i < spans_count(thread->spans); i++) {
        const struct span *s = spans_at(thread->spans, i);
        if (s->begin < from_ns) continue;
        put_span(t, tid, s, s->name, r->role);
        fputs(",\"args\":{", t->f);
        put_members(t, s);
        fputs("}}", t->f);
        put_arrows(t, tid, r, s, passed);
    }
    if (!r->steps) put_lost(t, tid, thread->name, thread->spans->lost);
    free(passed);
}

int trace_write_threads(const struct span_role *r) {
    bool scheduler = !strcmp(r->role, "scheduler"), server = !strcmp(r->role, "server");
    struct trace t = {.shift = r->shift_ns};
    char *path = xasprintf("%s/ranks/trace-%s-%d.json", r->dir, r->role, r->rank), label[64];
    t.pid = r->rank + (server ? r->workers : scheduler ? r->workers + r->servers : 0);
    snprintf(label, sizeof label, scheduler ? "%s" : "%s %d", r->role, r->rank);
    if (begin(&t, path)) {
        put_name(&t, "process_name", 0, label);
        put_clock_error(&t, r->error_ns);
        for (int i = 0; i < r->count; i++)
            put_thread(&t, r->first_tid + i, r, &r->threads[i], steps_begin(r));
    }
    return end(&t, path);
}

// ---------------------------------------------------------------- all ranks
// A gap in a worker's file, which is split into pieces.
struct gap_line {
    struct trace *t;
    const struct stall_reports *m;
    int index;  // index of the worker's report
    const char *transfer;
};

static void put_piece(void *ctx, const struct span *g, int stalled) {
    const struct gap_line *l = ctx;
    put_gap(l->t, g, l->transfer, gap_cause_of(l->m, g, stalled, l->index));
}

static int64_t nanoseconds(double us) { return isfinite(us) && fabs(us) < 1e15 ? llround(us * 1e3) : 0; }

// Appends the events of DIR/ranks/NAME; the causes of gaps are found in all ranks' reports. Returns 0, or -1 if it cannot be
// read. may_lack: a missing file is allowed.
static int join(struct trace *t, const char *dir, const char *name, const struct stall_reports *m,
                bool may_lack) {
    char *file = xasprintf("ranks/%s", name), *text = run_file_read(dir, file, may_lack), *rest = text, *line;
    size_t parts = 0, at = 0;
    struct blame *blame = NULL;
    int index = -1, rc = text || may_lack ? 0 : -1;
    while (rest && (line = strsep(&rest, "\n"))) {
        size_t length = strlen(line);
        if (length && line[length - 1] == ',') line[--length] = 0;
        if (!length) continue;
        bool step = strstr(line, "\"cat\":\"step\"") != NULL;
        cJSON *o = step || strstr(line, ",\"tid\":900,") ? cJSON_Parse(line) : NULL;
        if (step || !json_text(o, "cat", NULL)) {
            int64_t ns = nanoseconds(json_number(o, "ts"));
            if (step && (!t->from || ns < t->from)) t->from = ns;
            fprintf(t->f, "%s%s", t->any ? ",\n" : "", line);
            t->any = true;
            cJSON_Delete(o);
            continue;
        }
        const cJSON *args = json_item(o, "args"), *peer = json_item(args, "worker");
        t->pid = (int)json_number(o, "pid");
        if (index < 0 && (index = stall_reports_index(m, "worker", t->pid)) >= 0)
            blame = stall_blame(m->all, m->count, (size_t)index, &parts);
        struct span g = {.begin = nanoseconds(json_number(o, "ts")),
                         .kind = strcmp(json_text(o, "cat", ""), "wait") ? SPAN_EXPOSED : SPAN_WAIT,
                         .peer = cJSON_IsNumber(peer) ? peer->valueint : -1};
        g.end = g.begin + nanoseconds(json_number(o, "dur"));
        struct gap_line l = {t, m, index, json_text(args, "transfer", "")};
        stall_cut_gap(blame, parts, &at, &g, put_piece, &l);
        cJSON_Delete(o);
    }
    free(blame);
    free(text);
    free(file);
    return rc;
}

// Writes the times in which a rank's process, or the threads of its transfers, did not run, from its report: a
// separate thread.
static void put_stalls(struct trace *t, const struct stall_report *m) {
    static const char *const names[STALL_KINDS] = {"the process did not run", "its transfers had no core"};
    bool named = false;
    for (int k = 0; m && k < STALL_KINDS; k++)
        for (size_t i = 0; i < spans_count(&m->stalls[k]); i++) {
            if (spans_at(&m->stalls[k], i)->end < t->from) continue;
            if (!named) put_name(t, "thread_name", STALLS_TID, "stood still");
            named = true;
            put_span(t, STALLS_TID, spans_at(&m->stalls[k], i), names[k], "stood_still");
            fputs("}", t->f);
        }
}

static int is_part(const struct dirent *e) {
    return !strncmp(e->d_name, "trace-", 6) && ends_with(e->d_name, ".json");
}

int trace_merge(const struct config *c, const char *dir, const struct stall_reports *m) {
    struct trace t = {0};
    const int workers = c->workers;
    char *path = xasprintf("%s/trace.json", dir), *ranks = xasprintf("%s/ranks", dir);
    struct dirent **names = NULL;
    int rc = 0, count = scandir(ranks, &names, is_part, alphasort);
    bool any = count > 0 || c->trace;
    if (any && begin(&t, path)) {
        fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", t.f);
        // 1. The workers' streams and gaps. With --trace, no file may be missing.
        for (int r = 0; r < workers; r++) {
            char *name = xasprintf("trace-%d.json", r);
            if (join(&t, dir, name, m, !c->trace)) rc = -1;
            free(name);
        }
        // 2. Other files in order of names: communication threads, servers, a scheduler.
        for (int i = 0; i < count; i++) {
            const char *of = names[i]->d_name + strlen("trace-");
            if (!(isdigit((unsigned char)*of) && atoi(of) < workers) &&
                join(&t, dir, names[i]->d_name, m, false))
                rc = -1;
        }
        // 3. The stalls of all processes; with --trace, from the beginning on.
        if (c->trace) t.from = 0;
        for (size_t i = 0; i < m->count; i++) {
            t.pid = m->ranks[i] + (strcmp(m->roles[i], "worker") ? workers : 0);
            put_stalls(&t, m->all[i]);
        }
        fputs("\n]}\n", t.f);
    }
    if (any && new_file_end(&t.file, !rc) && !rc)
        rc = fail("%s: cannot write: %s: %s/trace-*.json hold its parts", path, strerror(errno), ranks);
    // Remove the parts only after all of them are in trace.json.
    for (int i = 0; i < count; i++) {
        char *part = xasprintf("%s/%s", ranks, names[i]->d_name);
        if (!rc) unlink(part);
        free(part);
        free(names[i]);
    }
    free(names);
    free(ranks);
    free(path);
    return rc;
}
