#include "ps/checkpoint/key_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define KEY_WORDS 3
// The most that any count can be: sums over workers, and products with how many there are, stay in range.
#define COUNT_MOST (INT64_C(1) << 40)

struct key_table {
    const struct shard_map *map;
    int64_t shape[2];
    int count;
    int64_t *keys, *version, *updates, *pushed;
};

static void table_make(struct key_table *t) {
    unsigned long n = (unsigned long)t->shape[0];
    t->keys = xcalloc(KEY_WORDS * n + 1, sizeof *t->keys);
    t->version = xcalloc(n + 1, sizeof *t->version);
    t->updates = xcalloc(n + 1, sizeof *t->updates);
    t->pushed = xcalloc(n * (unsigned long)t->shape[1] + 1, sizeof *t->pushed);
}

static void table_free(struct key_table *t) {
    free(t->keys);
    free(t->version);
    free(t->updates);
    free(t->pushed);
}

struct key_table *key_table_create(const struct shard_map *map, int keys, int workers) {
    struct key_table *t = xcalloc(1, sizeof *t);
    *t = (struct key_table){.map = map, .shape = {keys, workers}};
    table_make(t);
    return t;
}

void key_table_destroy(struct key_table **at) {
    if (*at) table_free(*at);
    free(*at);
    *at = NULL;
}

void key_table_add(struct key_table *t, const struct key_counts *k) {
    const struct partition *p = &t->map->parts[k->key];
    const int64_t key[KEY_WORDS] = {p->unit, p->begin, p->end};
    size_t workers = (size_t)t->shape[1], i = (size_t)t->count++;
    memcpy(t->keys + KEY_WORDS * i, key, sizeof key);
    memcpy(t->pushed + workers * i, k->pushed, workers * sizeof *t->pushed);
    t->version[i] = k->version;
    t->updates[i] = k->updates;
}

void key_table_extras(const struct key_table *t, struct part_extra out[KEY_TABLE_EXTRAS]) {
    int keys = (int)t->shape[0], workers = (int)t->shape[1];
    out[0] = (struct part_extra){"star/shape", t->shape, 2};
    out[1] = (struct part_extra){"star/keys", t->keys, KEY_WORDS * keys};
    out[2] = (struct part_extra){"star/version", t->version, keys};
    out[3] = (struct part_extra){"star/updates", t->updates, keys};
    out[4] = (struct part_extra){"star/pushed", t->pushed, keys * workers};
}

// ---------------------------------------------------------------- reading
// One array of a server's table. to NULL: only whether it is there with so many numbers.
static int read_array(struct checkpoint *c, const char *who, const char *name, int64_t *to, int64_t count) {
    int rc = checkpoint_extra(c, who, name, to, (int)count);
    return rc == 1
               ? fail("%s: %s does not say how far its keys are: it has no %s", checkpoint_path(c), who, name)
               : rc;
}

// The same, of counts.
static int read_counts(struct checkpoint *c, const char *who, const char *name, int64_t *to, int64_t count) {
    if (read_array(c, who, name, to, count)) return -1;
    for (int64_t i = 0; to && i < count; i++)
        if (to[i] < 0 || to[i] > COUNT_MOST)
            return fail("%s: %s: %s holds %lld, which is no count of a run", checkpoint_path(c), who, name,
                        (long long)to[i]);
    return 0;
}

static int read_arrays(struct checkpoint *c, const char *who, const struct key_table *t) {
    int64_t keys = t->shape[0], pushes = keys * t->shape[1];
    return read_array(c, who, "star/keys", t->keys, KEY_WORDS * keys) ||
                   read_counts(c, who, "star/version", t->version, keys) ||
                   read_counts(c, who, "star/updates", t->updates, keys) ||
                   read_counts(c, who, "star/pushed", t->pushed, pushes)
               ? -1
               : 0;
}

// What one server wrote: 0, 1 where it wrote none or there is no such server, -1 after logging. Memory is taken for what
// is there, whatever the shape says.
static int read_table(struct checkpoint *c, int server, struct key_table *t) {
    char who[32];
    snprintf(who, sizeof who, "server-%d", server);
    int rc = checkpoint_extra(c, who, "star/shape", t->shape, 2);
    if (rc) return rc;
    if (t->shape[0] < 0 || t->shape[0] > INT32_MAX / KEY_WORDS || t->shape[1] < 1 || t->shape[1] > 1 << 20 ||
        t->shape[0] * t->shape[1] > INT32_MAX)
        return fail("%s: %s has %lld keys of %lld workers", checkpoint_path(c), who, (long long)t->shape[0],
                    (long long)t->shape[1]);
    if (read_arrays(c, who, t)) return -1;
    t->count = (int)t->shape[0];
    table_make(t);
    return read_arrays(c, who, t);
}

// Every worker has pushed every step; updates are counted in samples where pushes are applied on arrival.
static void rows_of_steps(struct key_rows *r, const struct train_state *now, const struct config *c) {
    bool alone = consistency_of(c).row->on_arrival;
    int64_t own = c->micro_batch * c->accumulation;
    for (int k = 0; k < r->count; k++) {
        struct key_counts *x = &r->keys[k];
        x->version = alone ? now->samples / own : now->updates;
        x->updates = now->updates;
        x->clock = alone ? 0 : now->step;
        for (int w = 0; w < r->workers; w++) r->pushed[(int64_t)k * r->workers + w] = now->step;
    }
}

// The row of a key that shares elements with an old one, if that is further than what it has.
static void take_row(struct key_rows *r, int key, const struct key_table *t, int64_t i) {
    struct key_counts *x = &r->keys[key];
    int64_t workers = t->shape[1], total = 0;
    if (x->updates >= t->updates[i]) return;
    for (int64_t w = 0; w < workers; w++) total += t->pushed[i * workers + w];
    x->updates = t->updates[i];
    x->version = t->version[i] * r->workers / workers;
    for (int w = 0; w < r->workers; w++)
        r->pushed[(int64_t)key * r->workers + w] =
            r->workers == workers ? t->pushed[i * workers + w] : total / workers;
}

static void take_table(struct key_rows *r, const struct shard_map *m, const struct key_table *t, int units) {
    for (int64_t i = 0; i < t->count; i++) {
        const int64_t *old = t->keys + KEY_WORDS * i;
        if (old[0] < 0 || old[0] >= units) continue;
        for (int key = m->first[old[0]]; key < m->first[old[0] + 1]; key++)
            if (m->parts[key].begin < old[2] && old[1] < m->parts[key].end) take_row(r, key, t, i);
    }
}

int key_rows_read(struct key_rows *r, struct checkpoint *c, const struct config *config,
                  const struct shard_map *map) {
    bool alone = consistency_of(config).row->on_arrival;
    int rc = 0, rows = 0, units = map->count ? map->parts[map->count - 1].unit + 1 : 0;
    unsigned long n = (unsigned long)map->count, workers = (unsigned long)config->workers;
    *r = (struct key_rows){.count = map->count, .workers = config->workers};
    r->keys = xcalloc(n + 1, sizeof *r->keys);
    r->pushed = xcalloc(n * workers + 1, sizeof *r->pushed);
    for (int k = 0; k < r->count; k++)
        r->keys[k] = (struct key_counts){.key = k, .updates = -1, .pushed = r->pushed + (size_t)k * workers};
    for (int s = 0; alone && rc == 0; s++) {
        struct key_table t = {.map = map};
        rc = read_table(c, s, &t);
        if (rc == 0) take_table(r, map, &t, units);
        table_free(&t);
    }
    if (rc < 0) return -1;
    for (int k = 0; k < r->count; k++) rows += r->keys[k].updates >= 0;
    if (rows && rows < r->count)
        return fail("%s: it says of %d of %d keys how far they are", checkpoint_path(c), rows, r->count);
    if (!rows) rows_of_steps(r, checkpoint_train(c), config);
    return 0;
}

void key_rows_free(struct key_rows *r) {
    free(r->keys);
    free(r->pushed);
    *r = (struct key_rows){0};
}

int64_t key_rows_step(const struct key_rows *r, int worker) {
    int64_t least = INT64_MAX;
    for (int k = 0; k < r->count; k++)
        if (r->keys[k].pushed[worker] < least) least = r->keys[k].pushed[worker];
    return least;
}

int64_t key_rows_version(const struct key_rows *r) {
    int64_t least = INT64_MAX;
    for (int k = 0; k < r->count; k++)
        if (r->keys[k].version < least) least = r->keys[k].version;
    return least;
}
