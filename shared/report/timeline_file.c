// timeline.json: the last steps of a run, moment by moment.
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "shared/config/config.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/run_file.h"
#include "shared/core/topology_row.h"
#include "shared/report/span_files.h"
#include "shared/time/moments.h"

// ---------------------------------------------------------------- one rank
// DIR/ranks/timeline-ROLE-RANK.json, which is there when it is whole.
struct output {
    struct new_file file;
    char *path;
    FILE *f;
    int64_t shift;  // to the job's clock
};

static bool begin(struct output *o, const char *dir, const char *role, int rank, int64_t shift,
                  int64_t error) {
    o->path = xasprintf("%s/ranks/timeline-%s-%d.json", dir, role, rank);
    o->shift = shift;
    o->f = new_file_begin(&o->file, o->path, false) ? o->file.file : NULL;
    if (o->f) fprintf(o->f, "{\"role\":\"%s\",\"rank\":%d,\"clock_error_ns\":%" PRId64, role, rank, error);
    return o->f;
}

static int end(struct output *o) {
    int rc = new_file_end(&o->file, true);
    if (rc) fail("%s: cannot write: %s", o->path, strerror(errno));
    free(o->path);
    return rc;
}

// A moment that is not known stays 0.
static void put_moment(const struct output *o, const char *name, int64_t ns) {
    fprintf(o->f, ",\"%s\":%" PRId64, name, ns ? ns + o->shift : 0);
}

void span_put_members(void *file, const char *comma, const struct span *s) {
    const struct {
        const char *name;
        int64_t value;
        bool known;
    } members[] = {{"key", s->key, s->key >= 0},
                   {"step", s->step + 1, s->step >= 0},
                   {"worker", s->peer, s->peers == 1 && s->peer >= 0}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (!members[i].known) continue;
        fprintf(file, "%s\"%s\":%" PRId64, comma, members[i].name, members[i].value);
        comma = ",";
    }
}

static void put_span(const struct output *o, const char *comma, const char *what, const struct span *s) {
    fprintf(o->f, "%s{\"%s\":\"%s\"", comma, what, s->kind == SPAN_PART ? s->name : phase_name(s->phase));
    if (s->kind == SPAN_PART) span_put_members(o->f, ",", s);
    put_moment(o, "begin", s->begin);
    put_moment(o, "end", s->end);
    fputs("}", o->f);
}

static void put_step(const struct output *o, const struct layout *l, const struct timeline_view *v) {
    FILE *f = o->f;
    fprintf(f, "{\"step\":%" PRId64, v->step + 1);
    put_moment(o, "begin", v->begin);
    put_moment(o, "end", v->end);
    fputs(",\n\"compute\":[", f);
    for (size_t i = 0; i < v->compute_count; i++) put_span(o, i ? "," : "", "phase", &v->compute[i]);
    fputs("],\n\"gaps\":[", f);
    for (size_t i = 0; i < v->gap_count; i++) {
        const struct span *g = &v->gaps[i];
        bool wait = g->kind == SPAN_WAIT;
        int transfer = -1;  // of those below
        for (size_t t = 0; t < v->transfer_count && transfer < 0; t++)
            if (v->transfers[t].id == g->id) transfer = (int)t;
        fprintf(f, "%s{\"transfer\":%d,\"wait\":%s,\"peer\":%d", i ? "," : "", transfer,
                wait ? "true" : "false", wait ? g->peer : -1);
        put_moment(o, "begin", g->begin);
        put_moment(o, "end", g->end);
        fputs("}", f);
    }
    fputs("],\n\"transfers\":[", f);
    for (size_t i = 0; i < v->transfer_count; i++) {
        const struct transfer_times *t = &v->transfers[i];
        bool named = t->what.unit >= 0 && t->what.unit < l->count;
        fprintf(f, "%s{\"kind\":\"%s\",\"unit\":\"%s\",\"bytes\":%" PRIu64, i ? "," : "",
                transfer_kind_name(t->what.kind), named ? l->units[t->what.unit].name : "", t->what.bytes);
        put_moment(o, "asked", t->asked);
        put_moment(o, "own_ready", t->own_ready);
        put_moment(o, "peers_ready", t->peers_ready);
        put_moment(o, "first_byte", t->first_byte);
        put_moment(o, "done", t->done);
        fputs("}", f);
    }
    fputs("]}", f);
}

int timeline_write_worker(const char *dir, int rank, struct timeline *tl) {
    struct timeline_clock clock = timeline_clock(tl);
    struct output o;
    if (begin(&o, dir, "worker", rank, clock.offset_ns, clock.error_ns)) {
        const char *comma = "\n";
        fputs(",\"steps\":[", o.f);
        for (int back = TIMELINE_KEPT - 1; back >= 0; back--) {
            struct timeline_view v;
            if (!timeline_view(tl, back, &v)) continue;
            fputs(comma, o.f);
            put_step(&o, timeline_layout(tl), &v);
            timeline_view_free(&v);
            comma = ",\n";
        }
        fputs("]}\n", o.f);
    }
    return end(&o);
}

// The beginning of the last steps: the first moment at which work belonged to one of them.
static int64_t steps_begin(const struct span_role *r, int steps) {
    int64_t last = -1, begin_ns = INT64_MAX;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < r->count; t++)
            for (size_t i = 0; i < spans_count(r->threads[t].last); i++) {
                const struct span *s = spans_at(r->threads[t].last, i);
                if (pass == 0 && s->step > last) last = s->step;
                if (pass == 1 && s->step > last - steps && s->step >= 0 && s->begin < begin_ns)
                    begin_ns = s->begin;
            }
    return begin_ns;
}

int timeline_write_threads(const struct span_role *r, int steps) {
    int64_t from_ns = steps_begin(r, steps);
    struct output o;
    if (begin(&o, r->dir, r->role, r->rank, r->shift_ns, r->error_ns)) {
        fputs(",\"shards\":[", o.f);
        for (int t = 0; t < r->count; t++) {
            const char *comma = "\n";
            fputs(t ? ",[" : "[", o.f);
            for (size_t i = 0; i < spans_count(r->threads[t].last); i++) {
                const struct span *s = spans_at(r->threads[t].last, i);
                if (s->begin < from_ns || s->end == s->begin) continue;
                put_span(&o, comma, "part", s);
                comma = ",\n";
            }
            fputs("]", o.f);
        }
        fputs("]}\n", o.f);
    }
    return end(&o);
}

// ---------------------------------------------------------------- all ranks
struct settled_gap gap_settle(const struct meeting *m, const struct span *piece, int stood, int own) {
    if (stood >= 0 && stood == own) return (struct settled_gap){"host", NULL, -1};
    if (stood >= 0) return (struct settled_gap){"wait", m->roles[stood], m->ranks[stood]};
    if (piece->kind != SPAN_WAIT) return (struct settled_gap){"comm_exposed", NULL, -1};
    return (struct settled_gap){"wait", piece->peer >= 0 ? "worker" : NULL, piece->peer};
}

struct pieces {
    cJSON *out;
    const struct meeting *m;
    const cJSON *gap;
    int index;  // of the rank among the reports
};

static void put_piece(void *ctx, const struct span *g, int stood) {
    const struct pieces *p = ctx;
    struct settled_gap settled = gap_settle(p->m, g, stood, p->index);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(p->out, o);
    json_put(o, "transfer", json_number(p->gap, "transfer"));
    json_put(o, "begin", (double)g->begin);
    json_put(o, "end", (double)g->end);
    json_put_text(o, "part", settled.part);
    json_put_text(o, "role", settled.role);
    json_put(o, "rank", settled.role ? settled.rank : NAN);
}

// The gaps of a worker's steps, as all ranks' reports settle them.
static void settle_gaps(cJSON *worker, const struct meeting *m) {
    int index = meeting_index(m, "worker", (int)json_number(worker, "rank"));
    size_t parts = 0, at = 0;
    struct blame *blame = index >= 0 ? moments_blame(m->moments, m->count, (size_t)index, &parts) : NULL;
    cJSON *step;
    cJSON_ArrayForEach(step, json_item(worker, "steps")) {
        struct pieces p = {.out = cJSON_CreateArray(), .m = m, .index = index};
        cJSON_ArrayForEach(p.gap, json_item(step, "gaps")) {
            struct span g = {.begin = (int64_t)json_number(p.gap, "begin"),
                             .end = (int64_t)json_number(p.gap, "end"),
                             .kind = cJSON_IsTrue(json_item(p.gap, "wait")) ? SPAN_WAIT : SPAN_EXPOSED,
                             .peer = (int)json_number(p.gap, "peer")};
            moments_settle(blame, parts, &at, &g, put_piece, &p);
        }
        cJSON_ReplaceItemInObject(step, "gaps", p.out);
    }
    free(blame);
}

int timeline_merge(const struct config *c, const char *dir, const struct meeting *m) {
    cJSON *all = cJSON_CreateObject(), *ranks = cJSON_CreateArray();
    double error = 0;
    int rc = 0;
    for (const struct topology_role *role = c->row->roles; role->name; role++)
        for (int i = 0; i < config_ranks(c, role->name); i++) {
            char *name = xasprintf("ranks/timeline-%s-%d.json", role->name, i);
            char *text = run_file_read(dir, name, true);
            cJSON *rank = text ? cJSON_Parse(text) : NULL;
            free(text);
            free(name);
            if (!rank) continue;
            cJSON_AddItemToArray(ranks, rank);
            error = fmax(error, json_number(rank, "clock_error_ns"));
            if (!strcmp(json_text(rank, "role", ""), "worker")) settle_gaps(rank, m);
        }
    json_put(all, "clock_error_ns", error);
    cJSON_AddItemToObject(all, "ranks", ranks);
    if (cJSON_GetArraySize(ranks)) {
        char *text = cJSON_PrintUnformatted(all);
        rc = run_file_write(dir, "timeline.json", text);
        free(text);
    }
    cJSON_Delete(all);
    return rc;
}
