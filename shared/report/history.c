#include "shared/report/history.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"

static const char *const kinds[] = {"life", "away", "back"};
#define KINDS (sizeof kinds / sizeof *kinds)

static void put_if(cJSON *o, const char *key, bool there, double x) { json_put(o, key, there ? x : NAN); }

// All rows have the same keys; a key that does not apply to the kind is null.
void history_add(const char *dir, const struct history_row *r) {
    char job[24], utc[32];
    bool life = r->kind == HISTORY_START;
    const char *slash = r->checkpoint ? strrchr(r->checkpoint, '/') : NULL;
    snprintf(job, sizeof job, "%016" PRIx64, r->job);
    cJSON *o = cJSON_CreateObject();
    json_put_text(o, "kind", kinds[r->kind]);
    json_put_text(o, "time", format_utc(utc, time(NULL)));
    put_if(o, "step", r->step > 0, (double)r->step);
    put_if(o, "start", life, r->start);
    put_if(o, "epoch", life, r->epoch);
    json_put_text(o, "job", r->job ? job : NULL);
    json_put_text(o, "resumed_from", slash ? slash + 1 : r->checkpoint);
    put_if(o, "restarts", life, r->restarts);
    put_if(o, "steps_lost", r->counted, (double)r->lost);
    put_if(o, "worker", !life, r->worker);
    json_put_text(o, "cause", r->cause);
    json_put_text(o, "why", r->why);
    char *text = cJSON_PrintUnformatted(o), *line = text ? xasprintf("%s\n", text) : NULL;
    cJSON_Delete(o);
    free(text);
    if (line) run_file_add(dir, HISTORY_FILE, line);
    free(line);
}

// Returns a whole number of at least `least`, or -1.
static int64_t whole(const cJSON *o, const char *key, int least) {
    double x = json_number(o, key);
    return x >= least && x < INT32_MAX ? (int64_t)x : -1;
}

struct reading {
    void (*take)(void *ctx, const struct history_row *row);
    void *ctx;
};

static void take_line(void *ctx, const cJSON *o) {
    const struct reading *to = ctx;
    size_t kind = 0;
    while (kind < KINDS && strcmp(json_text(o, "kind", ""), kinds[kind]) != 0) kind++;
    if (kind == KINDS) return;
    int64_t step = whole(o, "step", 1), lost = whole(o, "steps_lost", 0);
    struct history_row r = {.kind = (enum history_kind)kind,
                            .step = step > 0 ? step : 0,
                            .why = json_text(o, "why", NULL),
                            .job = strtoull(json_text(o, "job", "0"), NULL, 16),
                            .checkpoint = json_text(o, "resumed_from", NULL),
                            .counted = lost >= 0,
                            .lost = lost >= 0 ? lost : 0,
                            .cause = json_text(o, "cause", NULL)};
    int64_t start = whole(o, "start", 1), epoch = whole(o, "epoch", 1), restarts = whole(o, "restarts", 0),
            worker = whole(o, "worker", 0);
    bool good = kind == HISTORY_START ? start > 0 && epoch > 0 && restarts >= 0 : worker >= 0 && step > 0;
    if (!good) return;
    if (kind == HISTORY_START) {
        r.start = (int)start;
        r.epoch = (uint32_t)epoch;
        r.restarts = (int)restarts;
    } else {
        r.worker = (int)worker;
    }
    to->take(to->ctx, &r);
}

void history_each(const char *dir, void (*take)(void *ctx, const struct history_row *row), void *ctx) {
    run_file_each(dir, HISTORY_FILE, take_line, &(struct reading){take, ctx});
}

static void take_life(void *ctx, const struct history_row *r) {
    struct history_row *last = ctx;
    if (r->kind != HISTORY_START) return;
    *last = *r;
    last->why = last->checkpoint = NULL;
}

struct history_row history_last_start(const char *dir) {
    struct history_row last = {0};
    history_each(dir, take_life, &last);
    return last;
}

void history_remove(const char *dir) {
    char *path = xasprintf("%s/" HISTORY_FILE, dir);
    unlink(path);
    free(path);
}
