#include "ps/diary/diary_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/files/regular_file.h"

// DIR/ranks/KIND-ROLE-RANK.json.
static bool output_open(struct new_file *o, const struct diary_role *r, const char *kind) {
    char *path = xasprintf("%s/ranks/%s-%s-%d.json", r->dir, kind, r->role, r->rank);
    bool made = new_file_begin(o, path, false);
    free(path);
    return made;
}

static int output_close(struct new_file *o, const struct diary_role *r, const char *kind) {
    if (new_file_end(o, true) == 0) return 0;
    return fail("%s/ranks/%s-%s-%d.json: cannot write: %s", r->dir, kind, r->role, r->rank, strerror(errno));
}

// ---------------------------------------------------------------- the picture of the last steps
// When the last steps began: the first moment that work belonged to one of them.
static int64_t steps_begin(const struct diary_role *r, int steps) {
    int64_t last = -1, begin_ns = INT64_MAX;
    for (int pass = 0; pass < 2; pass++) {
        for (int t = 0; t < r->count; t++) {
            const struct diary *d = r->threads[t].diary;
            for (size_t i = 0; i < diary_last(d); i++) {
                const struct diary_span *s = diary_last_span(d, i);
                if (pass == 0 && s->of.step > last) last = s->of.step;
                if (pass == 1 && s->of.step > last - steps && s->of.step >= 0 && s->begin_ns < begin_ns)
                    begin_ns = s->begin_ns;
            }
        }
    }
    return begin_ns;
}

// What the span was for, as far as it was for something. comma: before the first member.
static void write_of(FILE *f, const char *comma, const struct diary_of *of) {
    const struct {
        const char *name;
        int64_t value;
        bool known;
    } members[] = {{"key", of->key, of->key >= 0},
                   {"step", of->step + 1, of->step >= 0},
                   {"worker", of->worker, of->count == 1 && of->worker >= 0}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (!members[i].known) continue;
        fprintf(f, "%s\"%s\":%" PRId64, comma, members[i].name, members[i].value);
        comma = ",";
    }
}

static void write_span(FILE *f, const struct diary_role *r, const struct diary *d,
                       const struct diary_span *s) {
    fprintf(f, "{\"part\":\"%s\"", diary_part_name(d, s->part));
    write_of(f, ",", &s->of);
    fprintf(f, ",\"begin\":%" PRId64 ",\"end\":%" PRId64 "}", s->begin_ns + r->shift_ns,
            s->end_ns + r->shift_ns);
}

int diary_write_timeline(const struct diary_role *r, int steps) {
    struct new_file o;
    int64_t from_ns = steps_begin(r, steps);
    if (output_open(&o, r, "timeline")) {
        fprintf(o.file, "{\"role\":\"%s\",\"rank\":%d,\"clock_error_ns\":%" PRId64 ",\"shards\":[", r->role,
                r->rank, r->error_ns);
        for (int t = 0; t < r->count; t++) {
            const struct diary *d = r->threads[t].diary;
            const char *before = "\n";
            fputs(t ? ",[" : "[", o.file);
            for (size_t i = 0; i < diary_last(d); i++) {
                const struct diary_span *s = diary_last_span(d, i);
                if (s->begin_ns < from_ns || s->end_ns == s->begin_ns) continue;
                fputs(before, o.file);
                write_span(o.file, r, d, s);
                before = ",\n";
            }
            fputs("]", o.file);
        }
        fputs("]}\n", o.file);
    }
    return output_close(&o, r, "timeline");
}

// ---------------------------------------------------------------- traces
static void metadata(FILE *f, const char *what, int pid, int tid, const char *name, int number) {
    fprintf(f, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s", what, pid, tid,
            name);
    if (number >= 0) fprintf(f, " %d", number);
    fputs("\"}}", f);
}

static uint64_t arrow_id(int key, int64_t step, int worker) {
    const int64_t words[3] = {key, step, worker};
    uint64_t id = XXH64(words, sizeof words, 0) & (UINT64_MAX >> 1);
    return id ? id : 1;
}

struct trace_out {
    FILE *file;
    const struct diary_role *role;
    int tid;
    int64_t *passed;  // (keys, workers) the last step whose arrow has come through here, + 1
};

// An arrow goes through each kind of span once: a repeated message has none.
static void write_arrow(struct trace_out *x, const struct diary_span *s, char ph, int worker) {
    const struct diary_role *r = x->role;
    if (s->of.key < 0 || s->of.key >= r->keys || s->of.step < 0 || worker >= r->workers) return;
    int64_t *passed =
        &x->passed[((size_t)s->part * (size_t)r->keys + (size_t)s->of.key) * (size_t)r->workers +
                   (size_t)worker];
    if (*passed > s->of.step) return;
    *passed = s->of.step + 1;
    fprintf(x->file,
            ",\n{\"ph\":\"%c\",\"name\":\"partition\",\"cat\":\"partition\",\"id\":\"0x%" PRIx64 "\"%s", ph,
            arrow_id(s->of.key, s->of.step, worker), ph == 's' ? "" : ",\"bp\":\"e\"");
    fprintf(x->file, ",\"pid\":%d,\"tid\":%d,\"ts\":%.3f}", r->pid, x->tid,
            (double)(s->begin_ns + r->shift_ns) * 1e-3);
}

static void write_event(struct trace_out *x, const struct diary *d, const struct diary_span *s) {
    const struct diary_role *r = x->role;
    const char *name = r->name ? r->name(s) : diary_part_name(d, s->part);
    fprintf(x->file, ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d", name, r->role,
            r->pid, x->tid);
    fprintf(x->file, ",\"ts\":%.3f,\"dur\":%.3f,\"args\":{", (double)(s->begin_ns + r->shift_ns) * 1e-3,
            (double)(s->end_ns - s->begin_ns) * 1e-3);
    write_of(x->file, "", &s->of);
    fputs("}}", x->file);
    char ph = r->arrow ? r->arrow(s) : 0;
    if (!ph) return;
    for (int i = 0; i < s->of.count; i++) write_arrow(x, s, ph, s->of.worker + i);
}

static void write_thread(struct trace_out *x, const struct diary_thread *t) {
    const struct diary_role *r = x->role;
    size_t cells = (size_t)DIARY_PARTS_MAX * (size_t)r->keys * (size_t)r->workers;
    x->passed = xcalloc(cells + 1, sizeof *x->passed);
    fputs(",\n", x->file);
    metadata(x->file, "thread_name", r->pid, x->tid, t->name, -1);
    for (size_t i = 0; i < diary_all(t->diary); i++) {
        const struct diary_span *s = diary_all_span(t->diary, i);
        if (!diary_is_idle(t->diary, s->part)) write_event(x, t->diary, s);
    }
    if (diary_dropped(t->diary))
        fprintf(x->file,
                ",\n{\"ph\":\"M\",\"name\":\"spans_dropped\",\"pid\":%d,\"tid\":%d,\"args\":{\"count\":%zu}}",
                r->pid, x->tid, diary_dropped(t->diary));
    free(x->passed);
}

int diary_write_trace(const struct diary_role *r) {
    struct new_file o;
    if (output_open(&o, r, "trace")) {
        struct trace_out x = {.file = o.file, .role = r, .tid = r->first_tid};
        metadata(o.file, "process_name", r->pid, 0, r->role, strcmp(r->role, "scheduler") ? r->rank : -1);
        for (int t = 0; t < r->count; t++, x.tid++) write_thread(&x, &r->threads[t]);
    }
    return output_close(&o, r, "trace");
}
