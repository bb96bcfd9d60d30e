#include "ps/record/staleness_log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <pthread.h>

#include "kernels/spans.h"
#include "ps/job/push_code.h"
#include "shared/core/background.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"

struct tally {
    uint64_t count, max;
    double sum;  // sum of tau
    // Sum of the updates' numbers 1, 2, ..: divided by count, a point's position in the series.
    double updates;
};

struct staleness_log {
    struct staleness_log_options o;
    struct tally *units;  // (units)
    struct tally points[STALENESS_POINTS];
    int64_t *pushed;  // (map->count)
    struct updates_file *log;
    char *path;
    bool loss_reported;  // lost lines of the log were reported; used by the main thread
};

struct staleness_log *staleness_log_create(const struct staleness_log_options *o) {
    struct staleness_log *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->units = xcalloc((unsigned long)o->layout->count, sizeof *s->units);
    s->pushed = xcalloc((unsigned long)o->map->count, sizeof *s->pushed);
    if (!o->dir) return s;
    s->path = xasprintf("%s/ranks/updates-%d.jsonl", o->dir, o->shard);
    s->log = updates_file_open(s->path);
    if (s->log) return s;
    fail("--log-updates: %s cannot be written: %s", s->path, strerror(errno));
    staleness_log_destroy(&s);
    return NULL;
}

void staleness_log_destroy(struct staleness_log **at) {
    struct staleness_log *s = *at;
    if (!s) return;
    int64_t step;
    if (s->log) updates_file_close(&s->log, &step);
    free(s->path);
    free(s->units);
    free(s->pushed);
    free(s);
    *at = NULL;
}

static void count(struct tally *t, uint64_t tau, int64_t number) {
    t->count++;
    t->sum += (double)tau;
    t->updates += (double)number;
    if (tau > t->max) t->max = tau;
}

// The number of updates that so many pushes of a key make; the last update may be of fewer pushes.
static int64_t updates_of(const struct staleness_log *s, int64_t pushes) {
    int64_t per = s->o.per_update > 1 ? s->o.per_update : 1;
    return (pushes + per - 1) / per;
}

static void log_push(struct staleness_log *s, const struct wire_header *h, const void *grad, uint64_t tau) {
    const struct partition *p = &s->o.map->parts[h->key];
    // The norm of the gradient, or of its decoded code, as it is applied: clipped and without the loss scale if its
    // worker decides that.
    struct exact_sum sum;
    bool finite = push_squares(&s->o.code, s->o.dtype, grad, p->end - p->begin, &sum) == 0 && !sum.nonfinite;
    double norm = finite ? sqrt(exact_sum_value(&sum)) * (double)h->grad_scale : NAN;
    char text[32] = "null";
    if (isfinite(norm)) snprintf(text, sizeof text, "%.9g", norm);
    char *line = xasprintf(
        "{\"worker\":%d,\"unit\":\"%s\",\"key\":%d,\"step\":%lld,\"batch\":%lld,\"version\":%lld,\"tau\":%llu,"
        "\"norm\":%s,\"time_ns\":%lld}\n",
        h->rank, s->o.layout->units[p->unit].name, h->key, (long long)h->step + 1, (long long)h->batch,
        (long long)updates_of(s, h->version), (unsigned long long)tau, text, (long long)now_ns());
    updates_file_add(s->log, line, h->step + 1);
    free(line);
}

void staleness_log_report_lost(struct staleness_log *s) {
    int64_t step = 0;
    int error = s && s->log && !s->loss_reported ? updates_file_lost(s->log, &step) : 0;
    if (!error) return;
    s->loss_reported = true;
    fail(
        "--log-updates: %s: cannot write: %s: the lines from step %lld on are lost; training continues, and ends with exit "
        "status %d",
        s->path, strerror(error), (long long)step, EXIT_RUN_FAILED);
}

void staleness_log_push(struct staleness_log *s, const struct wire_header *h, const void *grad,
                        uint64_t tau) {
    int64_t number = s->pushed[h->key]++,
            point = s->o.pushes > STALENESS_POINTS ? number * STALENESS_POINTS / s->o.pushes : number;
    if (point >= STALENESS_POINTS) point = STALENESS_POINTS - 1;
    count(&s->units[s->o.map->parts[h->key].unit], tau, updates_of(s, number + 1));
    count(&s->points[point], tau, updates_of(s, number + 1));
    if (s->log) log_push(s, h, grad, tau);
}

void staleness_log_begin(struct staleness_log *s, int key, int64_t pushes) { s->pushed[key] = pushes; }

// ---------------------------------------------------------------- the file
static void merge(struct tally *into, const struct tally *t) {
    into->count += t->count;
    into->sum += t->sum;
    into->updates += t->updates;
    if (t->max > into->max) into->max = t->max;
}

static cJSON *tally_json(const struct tally *t, const char *unit) {
    cJSON *o = cJSON_CreateObject();
    if (unit) cJSON_AddStringToObject(o, "unit", unit);
    cJSON_AddNumberToObject(o, "count", (double)t->count);
    cJSON_AddNumberToObject(o, "sum", t->sum);
    cJSON_AddNumberToObject(o, "max", (double)t->max);
    if (!unit) cJSON_AddNumberToObject(o, "updates", t->updates);
    return o;
}

static int end_log(struct staleness_log *s) {
    if (!s->log) return 0;
    staleness_log_report_lost(s);
    int64_t step = 0;
    int error = updates_file_close(&s->log, &step);
    if (!error) return 0;
    if (!step) return fail("--log-updates: %s: cannot write: %s", s->path, strerror(error));
    return fail("--log-updates: %s: its lines from step %lld on are missing: %s", s->path, (long long)step,
                strerror(error));
}

int staleness_log_write(struct staleness_log *const *all, int shards, const char *dir, int rank) {
    const struct layout *l = all[0]->o.layout;
    cJSON *o = cJSON_CreateObject(), *units = cJSON_AddArrayToObject(o, "units"),
          *points = cJSON_AddArrayToObject(o, "points");
    int rc = 0;
    for (int i = 0; i < shards; i++)
        if (end_log(all[i]) != 0) rc = -1;
    for (int u = 0; u < l->count; u++) {
        struct tally sum = {0};
        for (int i = 0; i < shards; i++) merge(&sum, &all[i]->units[u]);
        cJSON_AddItemToArray(units, tally_json(&sum, l->units[u].name));
    }
    for (int p = 0; p < STALENESS_POINTS; p++) {
        struct tally sum = {0};
        for (int i = 0; i < shards; i++) merge(&sum, &all[i]->points[p]);
        cJSON_AddItemToArray(points, tally_json(&sum, NULL));
    }
    char *text = cJSON_PrintUnformatted(o), *name = xasprintf("ranks/staleness-%d.json", rank);
    if (run_file_write(dir, name, text) != 0) rc = -1;
    free(name);
    free(text);
    cJSON_Delete(o);
    return rc;
}

// ---------------------------------------------------------------- the log
#define WAITING_MAX ((size_t)16 << 20)  // bytes

struct updates_file {
    struct background *writer;
    char *path;
    struct log_file file;
    int error;              // errno of opening or closing the file
    pthread_mutex_t mutex;  // guards all fields below
    char *lines;            // lines that the writer has not taken yet
    size_t length, room;
    int64_t step;  // step of the first of these lines
    int lost;      // errno; 0: none
    int64_t lost_step;
};

// ---------------------------------------------------------------- on the writer's thread
static int open_file(void *arg) {
    struct updates_file *l = arg;
    unlink(l->path);  // removes the file of an earlier run
    l->error = log_file_open(&l->file, l->path, NULL, NULL) ? errno : 0;
    return 0;
}

static int write_lines(void *arg) {
    struct updates_file *l = arg;
    pthread_mutex_lock(&l->mutex);
    char *lines = l->lines;
    size_t length = l->length;
    int64_t step = l->step;
    l->lines = NULL;
    l->length = l->room = 0;
    pthread_mutex_unlock(&l->mutex);
    if (!l->file.error && log_file_add(&l->file, lines, length)) {
        int error = errno;
        pthread_mutex_lock(&l->mutex);
        l->lost = error;
        l->lost_step = step;
        pthread_mutex_unlock(&l->mutex);
    }
    free(lines);
    return 0;
}

static int close_file(void *arg) {
    struct updates_file *l = arg;
    l->error = log_file_close(&l->file) ? errno : 0;
    return 0;
}

static void wait_for(struct updates_file *l, int (*what)(void *)) {
    uint64_t number = background_submit(l->writer, what, l, NULL);
    while (!background_wait(l->writer, number, 1)) continue;
}

// ---------------------------------------------------------------- create and destroy
static void log_free(struct updates_file *l) {
    background_destroy(&l->writer);
    pthread_mutex_destroy(&l->mutex);
    free(l->lines);
    free(l->path);
    free(l);
}

struct updates_file *updates_file_open(const char *path) {
    struct updates_file *l = xcalloc(1, sizeof *l);
    l->path = xstrdup(path);
    pthread_mutex_init(&l->mutex, NULL);
    l->writer = background_create("writes the log of updates", error_label());
    l->error = EAGAIN;
    if (l->writer) wait_for(l, open_file);
    if (!l->error) return l;
    int error = l->error;
    log_free(l);
    errno = error;
    return NULL;
}

void updates_file_add(struct updates_file *l, const char *line, int64_t step) {
    size_t bytes = strlen(line);
    pthread_mutex_lock(&l->mutex);
    bool ask = !l->length, fits = l->length + bytes <= WAITING_MAX;
    if (!l->lost && fits) {
        if (ask) l->step = step;
        if (l->length + bytes > l->room) {
            l->room = 2 * (l->length + bytes);
            l->lines = xrealloc(l->lines, l->room);
        }
        memcpy(l->lines + l->length, line, bytes);
        l->length += bytes;
    } else if (!l->lost) {
        l->lost = ENOBUFS;
        l->lost_step = step;
    }
    ask = ask && l->length;
    pthread_mutex_unlock(&l->mutex);
    if (ask) background_submit(l->writer, write_lines, l, NULL);
}

int updates_file_lost(struct updates_file *l, int64_t *step) {
    pthread_mutex_lock(&l->mutex);
    int lost = l->lost;
    *step = l->lost_step;
    pthread_mutex_unlock(&l->mutex);
    return lost;
}

int updates_file_close(struct updates_file **at, int64_t *step) {
    struct updates_file *l = *at;
    wait_for(l, close_file);
    int error = l->lost ? l->lost : l->error;
    *step = l->lost ? l->lost_step : 0;
    log_free(l);
    *at = NULL;
    return error;
}
