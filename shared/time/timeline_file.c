#include "shared/time/timeline_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <cjson/cJSON.h>

#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/report/run_file.h"

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
    for (size_t i = 0; i < v->blocked_count; i++) {
        v->blocked[i].begin += by;
        v->blocked[i].end += by;
    }
    for (size_t i = 0; i < v->transfer_count; i++) {
        struct transfer_times *t = &v->transfers[i];
        int64_t *at[] = {&t->asked, &t->own_ready, &t->peers_ready, &t->first_byte, &t->done};
        for (size_t j = 0; j < sizeof at / sizeof *at; j++)
            if (*at[j]) *at[j] += by;
    }
}

static void put_step(FILE *f, const struct layout *l, const struct timeline_view *v) {
    const char *comma = "";
    fprintf(f, "{\"step\":%" PRId64 ",\"begin\":%" PRId64 ",\"end\":%" PRId64 ",\n\"compute\":[", v->step + 1,
            v->begin, v->end);
    for (size_t i = 0; i < v->compute_count; i++, comma = ",")
        fprintf(f, "%s{\"phase\":\"%s\",\"begin\":%" PRId64 ",\"end\":%" PRId64 "}", comma,
                phase_word(v->compute[i].phase), v->compute[i].begin, v->compute[i].end);
    fputs("],\n\"blocked\":[", f);
    comma = "";
    for (size_t i = 0; i < v->blocked_count; i++, comma = ",")
        fprintf(f, "%s{\"transfer\":%zu,\"begin\":%" PRId64 ",\"end\":%" PRId64 "}", comma,
                v->blocked[i].transfer, v->blocked[i].begin, v->blocked[i].end);
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

int timeline_merge(struct cJSON *ranks, const char *dir) {
    cJSON *all = cJSON_CreateObject();
    const cJSON *r;
    double error = 0;
    int rc = 0;
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
