#include "ps/server/keeper.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/state/checkpoint.h"
#include "shared/state/part_file.h"

#define SLICE (1 << 20)  // elements: a request to stop waits for at most one slice

enum { NO_STEP = -1 };

struct keeper {
    struct keeper_options o;
    int states, count;
    int *keys;                    // (count) in the order of the file
    int *place;                   // (map->count) of a key in that order
    bool *there;                  // (count) the key's copy for the current checkpoint is complete
    struct key_table *table;      // the current checkpoint's rows; NULL: all keys are at the same step
    struct background *writer;    // a job for each checkpoint
    struct background *refusals;  // jobs that refuse the checkpoints that arrive while the writer is busy
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    // The current checkpoint: twice its steps, plus one if it is the last; NO_STEP: none. Guarded by mutex, as all
    // below.
    int64_t order;
    int64_t over;  // checkpoints up to this one were written or refused, except the current one
    bool ending;
    double begin_s, copy_s;  // of the current one
    struct keeper_figures figures;
};

static struct keeper_file file_of(const struct keeper *k, int64_t step) {
    struct keeper_file o = k->o.file;
    o.step = step;
    return o;
}

// The directory is named after the run's step: with local steps the last step of a whole round.
static char *partial_of(const struct keeper_file *o) {
    return checkpoint_partial(o->run_dir, CHECKPOINT_ALL, o->step * config_round(o->config), o->job);
}

// ---------------------------------------------------------------- shards
static int64_t order_of(const struct kept_key *x) { return 2 * x->step + x->last; }

static int write_checkpoint(void *keeper);

// Whether the key goes into the current checkpoint; the first key of a step begins one.
static bool joins_checkpoint(struct keeper *k, int64_t order, bool *busy) {
    *busy = false;
    if (k->order == order) return true;
    if (order <= k->over) return false;
    k->over = order;
    *busy = k->order != NO_STEP;
    if (*busy) return false;
    k->order = order;
    k->begin_s = now_seconds();
    background_submit(k->writer, write_checkpoint, k, NULL);
    return true;
}

// Worker 0 reads the reason and logs it.
static int leave_reason(void *arg) {
    const struct keeper_file *o = arg;
    char who[32], why[160], *dir = partial_of(o);
    snprintf(who, sizeof who, "server-%d", o->rank);
    snprintf(why, sizeof why, "server %d is still writing the previous checkpoint", o->rank);
    part_file_refuse(dir, who, why);
    free(dir);
    return 0;
}

void keeper_keep(void *keeper, const struct kept_key *x) {
    struct keeper *k = keeper;
    int i = k->place[x->counts.key];
    bool busy = false;
    pthread_mutex_lock(&k->mutex);
    bool mine = !k->ending && joins_checkpoint(k, order_of(x), &busy);
    if (busy) k->figures.failed++;
    pthread_mutex_unlock(&k->mutex);
    if (busy) {
        // In the background: the disk may be slow or not answer, and the shard must not wait for it.
        struct keeper_file *o = xcalloc(1, sizeof *o);
        *o = file_of(k, x->step);
        background_submit(k->refusals, leave_reason, o, free);
    }
    if (!mine) return;
    double begin = now_seconds();
    if (k->table) key_table_put(k->table, i, &x->counts);
    const struct partition *p = &k->o.file.map->parts[x->counts.key];
    const struct server_buffers *copy = &k->o.copies[x->counts.key];
    size_t bytes = (size_t)(p->end - p->begin) * sizeof(float);
    memcpy(copy->master, x->buf->master, bytes);
    for (int n = 0; n < k->states; n++) memcpy(copy->state[n], x->buf->state[n], bytes);
    double seconds = now_seconds() - begin;
    pthread_mutex_lock(&k->mutex);
    if (k->order == order_of(x)) {  // the checkpoint may have been given up since
        k->there[i] = true;
        k->copy_s += seconds;
        pthread_cond_broadcast(&k->changed);
    }
    pthread_mutex_unlock(&k->mutex);
}

bool keeper_idle(struct keeper *k) {
    pthread_mutex_lock(&k->mutex);
    bool idle = k->order == NO_STEP;
    pthread_mutex_unlock(&k->mutex);
    return idle;
}

// ---------------------------------------------------------------- the writer
// Waits for key i of the file. Returns whether it is there: it may never arrive.
static bool await_key(struct keeper *k, int i) {
    pthread_mutex_lock(&k->mutex);
    while (!k->there[i] && !k->ending) pthread_cond_wait(&k->changed, &k->mutex);
    bool there = k->there[i] && !*background_flag(k->writer);
    pthread_mutex_unlock(&k->mutex);
    return there;
}

// The file of the current checkpoint, and what it contains so far.
struct writing {
    struct part_file *part;
    int ranges;  // ranges written so far
};

static int open_file(const struct keeper *k, struct writing *w, char **why) {
    const struct keeper_file o = file_of(k, k->order / 2);
    struct part_extra extra[KEY_TABLE_EXTRAS];
    struct state_range *ranges =
        xcalloc((unsigned long)k->count * (unsigned long)(1 + k->states) + 1, sizeof *ranges);
    int count = 0;
    for (int i = 0; i < k->count; i++) {
        const struct partition *p = &o.map->parts[k->keys[i]];
        for (int kind = STATE_MASTER; kind <= k->states; kind++)
            ranges[count++] =
                (struct state_range){.unit = p->unit, .kind = kind, .begin = p->begin, .end = p->end};
    }
    if (k->table) key_table_extras(k->table, extra);
    char who[32], *dir = partial_of(&o);
    snprintf(who, sizeof who, "server-%d", o.rank);
    w->part = part_file_create(&(struct part_options){.dir = dir,
                                                      .participant = who,
                                                      .layout = o.layout,
                                                      .ranges = ranges,
                                                      .count = count,
                                                      .extra = k->table ? extra : NULL,
                                                      .extras = k->table ? KEY_TABLE_EXTRAS : 0},
                               why);
    free(ranges);
    free(dir);
    return w->part ? 0 : -1;
}

static int write_range(const struct keeper *k, struct writing *w, const struct partition *p,
                       const float *data) {
    int range = w->ranges++, rc = 0;
    for (int64_t at = p->begin; at < p->end && !rc; at += SLICE) {
        int64_t end = p->end - at < SLICE ? p->end : at + SLICE;
        if (*background_flag(k->writer)) return -1;
        rc = part_file_write(w->part, range, at, end, data + (at - p->begin));
    }
    return rc;
}

// Writes keys as they arrive. Returns 0, or -1 with *why; the file is closed in both cases.
static int write_keys(struct keeper *k, struct writing *w, char **why) {
    bool there = true;
    int rc = 0;
    for (int i = 0; i < k->count && !rc && (there = await_key(k, i)); i++) {
        const struct partition *p = &k->o.file.map->parts[k->keys[i]];
        const struct server_buffers *copy = &k->o.copies[k->keys[i]];
        rc = write_range(k, w, p, copy->master);
        for (int kind = 0; kind < k->states && !rc; kind++) rc = write_range(k, w, p, copy->state[kind]);
    }
    if (k->table && there) key_table_complete(k->table);
    if (there && !*background_flag(k->writer)) return part_file_finish(&w->part, why);  // it sets *why
    *why = xstrdup("the job ended before it was complete");
    part_file_discard(&w->part, *why);
    return -1;
}

static int write_checkpoint(void *keeper) {
    struct keeper *k = keeper;
    char *why = NULL;
    int64_t bytes = 0, step = k->order / 2;
    struct writing w = {0};
    int rc = open_file(k, &w, &why);
    if (rc == 0) bytes = part_file_bytes(w.part);
    if (rc == 0) rc = write_keys(k, &w, &why);
    pthread_mutex_lock(&k->mutex);
    memset(k->there, 0, (size_t)k->count * sizeof *k->there);
    if (rc == 0) k->figures.complete++, k->figures.bytes += bytes;
    if (rc != 0) k->figures.failed++;
    if (rc == 0) k->figures.write_seconds += now_seconds() - k->begin_s;
    k->figures.copy_seconds += k->copy_s;
    if (k->copy_s > k->figures.copy_seconds_most) k->figures.copy_seconds_most = k->copy_s;
    k->copy_s = 0;
    k->order = NO_STEP;
    pthread_mutex_unlock(&k->mutex);
    if (rc != 0)
        warn("the checkpoint of step %lld is given up: %s", (long long)step, why ? why : "no reason");
    free(why);
    return 0;
}

// ---------------------------------------------------------------- create and destroy
struct keeper *keeper_create(const struct keeper_options *o) {
    struct keeper *k = xcalloc(1, sizeof *k);
    unsigned long all = (unsigned long)o->file.map->count;
    k->o = *o;
    k->states = o->file.config->optimizer.row->states;
    k->keys = xcalloc(all + 1, sizeof *k->keys);
    k->place = xcalloc(all + 1, sizeof *k->place);
    for (int key = o->file.map->trained - 1; key >= 0; key--) {
        if (o->file.map->parts[key].shard / o->file.map->threads != o->file.rank) continue;
        k->place[key] = k->count;
        k->keys[k->count++] = key;
    }
    k->there = xcalloc((unsigned long)k->count + 1, sizeof *k->there);
    if (consistency_of(o->file.config).row->on_arrival)
        k->table = key_table_create(o->file.map, k->count, o->file.config);
    k->order = k->over = NO_STEP;
    pthread_mutex_init(&k->mutex, NULL);
    pthread_cond_init(&k->changed, NULL);
    char label[32];
    snprintf(label, sizeof label, "server %d", o->file.rank);
    k->writer = background_create("writes checkpoints", label);
    k->refusals = k->writer ? background_create("writes checkpoints", label) : NULL;
    if (k->refusals) return k;
    keeper_destroy(&k);
    return NULL;
}

void keeper_end(struct keeper *k, bool orderly) {
    if (!k || k->ending) return;
    if (!orderly && k->writer) background_quit(k->writer);
    pthread_mutex_lock(&k->mutex);
    k->ending = true;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->mutex);
    background_destroy(&k->writer);
    background_destroy(&k->refusals);
}

struct keeper_figures keeper_figures(const struct keeper *k) {
    return k ? k->figures : (struct keeper_figures){0};
}

void keeper_destroy(struct keeper **at) {
    struct keeper *k = *at;
    if (!k) return;
    keeper_end(k, false);
    pthread_mutex_destroy(&k->mutex);
    pthread_cond_destroy(&k->changed);
    key_table_destroy(&k->table);
    free(k->keys);
    free(k->place);
    free(k->there);
    free(k);
    *at = NULL;
}
