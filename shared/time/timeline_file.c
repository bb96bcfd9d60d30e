#include "shared/time/timeline_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/report/run_file.h"
#include "shared/time/moments.h"

// ---------------------------------------------------------------- one rank
static const char *phase_word(enum phase p) {
    static const char *const words[PHASES] = {"other", "data", "forward", "backward", "optimizer", "comm"};
    return words[p];
}

static const char *unit_word(const struct layout *l, int unit) {
    return unit >= 0 && unit < l->count ? l->units[unit].name : "";
}

// On rank 0's clock.
static void shift(struct timeline_view *v, int64_t by) {
    v->begin += by;
    v->end += by;
    for (size_t i = 0; i < v->compute_count; i++) {
        v->compute[i].begin += by;
        v->compute[i].end += by;
    }
    for (size_t i = 0; i < v->gap_count; i++) {
        v->gaps[i].begin += by;
        v->gaps[i].end += by;
    }
    for (size_t i = 0; i < v->transfer_count; i++) {
        struct transfer_times *t = &v->transfers[i];
        int64_t *at[] = {&t->asked, &t->own_ready, &t->peers_ready, &t->first_byte, &t->done};
        for (size_t j = 0; j < sizeof at / sizeof *at; j++)
            if (*at[j]) *at[j] += by;
    }
}

// Of the view's transfers the one with this id; -1: none of them.
static int transfer_at(const struct timeline_view *v, uint64_t id) {
    for (size_t i = 0; i < v->transfer_count; i++)
        if (v->transfers[i].id == id) return (int)i;
    return -1;
}

static void put_step(FILE *f, const struct layout *l, const struct timeline_view *v) {
    const char *comma = "";
    fprintf(f, "{\"step\":%" PRId64 ",\"begin\":%" PRId64 ",\"end\":%" PRId64 ",\n\"compute\":[", v->step + 1,
            v->begin, v->end);
    for (size_t i = 0; i < v->compute_count; i++, comma = ",")
        fprintf(f, "%s{\"phase\":\"%s\",\"begin\":%" PRId64 ",\"end\":%" PRId64 "}", comma,
                phase_word(v->compute[i].phase), v->compute[i].begin, v->compute[i].end);
    fputs("],\n\"gaps\":[", f);
    comma = "";
    for (size_t i = 0; i < v->gap_count; i++, comma = ",") {
        const struct split_gap *g = &v->gaps[i];
        fprintf(f, "%s{\"transfer\":%d,\"begin\":%" PRId64 ",\"end\":%" PRId64 ",\"wait\":%s,\"peer\":%d}",
                comma, transfer_at(v, g->id), g->begin, g->end, g->wait ? "true" : "false",
                g->wait ? g->peer : -1);
    }
    fputs("],\n\"transfers\":[", f);
    comma = "";
    for (size_t i = 0; i < v->transfer_count; i++, comma = ",") {
        const struct transfer_times *t = &v->transfers[i];
        fprintf(f,
                "%s{\"kind\":\"%s\",\"unit\":\"%s\",\"bytes\":%" PRIu64 ",\"asked\":%" PRId64
                ",\"own_ready\":%" PRId64 ",\"peers_ready\":%" PRId64 ",\"first_byte\":%" PRId64
                ",\"done\":%" PRId64 "}",
                comma, transfer_kind_name(t->what.kind), unit_word(l, t->what.unit), t->what.bytes, t->asked,
                t->own_ready, t->peers_ready, t->first_byte, t->done);
    }
    fputs("]}", f);
}

int timeline_write(const char *dir, const char *role, int rank, struct timeline *tl) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return fail("%s: no memory for the timeline", dir);
    fprintf(f, "{\"role\":\"%s\",\"rank\":%d,\"clock_error_ns\":%" PRId64 ",\"steps\":[", role, rank,
            timeline_clock(tl).error_ns);
    const char *comma = "\n";
    for (int back = TIMELINE_KEPT - 1; back >= 0; back--) {
        struct timeline_view v;
        if (!timeline_view(tl, back, &v)) continue;
        fputs(comma, f);
        shift(&v, timeline_clock(tl).offset_ns);
        put_step(f, timeline_layout(tl), &v);
        timeline_view_free(&v);
        comma = ",\n";
    }
    fputs("]}\n", f);
    fclose(f);
    char *name = xasprintf("ranks/timeline-%s-%d.json", role, rank);
    int rc = run_file_write(dir, name, text);
    free(name);
    free(text);
    return rc;
}

// ---------------------------------------------------------------- all ranks
static cJSON *read_rank(const char *dir, const char *role, int rank) {
    char *name = xasprintf("ranks/timeline-%s-%d.json", role, rank), *text = run_file_read(dir, name, true);
    cJSON *o = text ? cJSON_Parse(text) : NULL;
    free(text);
    free(name);
    return o;
}

struct cJSON *timeline_ranks(void) {
    return cJSON_CreateArray();
}

void timeline_add(struct cJSON *ranks, const char *dir, const char *role, int count) {
    for (int i = 0; i < count; i++) {
        cJSON *o = read_rank(dir, role, i);
        if (o) cJSON_AddItemToArray(ranks, o);
    }
}

struct pieces {
    cJSON *out;
    const struct meeting *m;
    const cJSON *gap;
    int index;  // of the rank among the reports
};

static void put_piece(void *ctx, const struct split_gap *g, int rank) {
    const struct pieces *p = ctx;
    bool own = rank >= 0 && rank == p->index, wait = rank >= 0 ? !own : g->wait;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(p->out, o);
    json_put(o, "transfer", json_number(p->gap, "transfer"));
    json_put(o, "begin", (double)g->begin);
    json_put(o, "end", (double)g->end);
    json_put_text(o, "part", own ? "host" : wait ? "wait" : "comm_exposed");
    json_put_text(o, "role",
                  !wait || (rank < 0 && g->peer < 0) ? NULL
                  : rank >= 0                        ? p->m->roles[rank]
                                                     : "worker");
    json_put(o, "rank", !wait ? NAN : rank >= 0 ? p->m->ranks[rank] : g->peer >= 0 ? g->peer : NAN);
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
            struct split_gap g = {.begin = (int64_t)json_number(p.gap, "begin"),
                                  .end = (int64_t)json_number(p.gap, "end"),
                                  .wait = cJSON_IsTrue(json_item(p.gap, "wait")),
                                  .peer = (int)json_number(p.gap, "peer")};
            moments_settle(blame, parts, &at, &g, put_piece, &p);
        }
        cJSON_ReplaceItemInObject(step, "gaps", p.out);
    }
    free(blame);
}

int timeline_merge(struct cJSON *ranks, const char *dir, const struct meeting *m) {
    cJSON *all = cJSON_CreateObject(), *rank;
    const cJSON *r;
    double error = 0;
    int rc = 0;
    cJSON_ArrayForEach(rank, ranks) if (!strcmp(json_text(rank, "role", ""), "worker")) settle_gaps(rank, m);
    cJSON_ArrayForEach(r, ranks) error = fmax(error, json_number(r, "clock_error_ns"));
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
