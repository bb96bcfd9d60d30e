#include "ps/agree/key_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "shared/core/error.h"

#define KEY_WORDS 3
// The upper limit of any count: sums over workers, and products with their number, do not overflow.
#define COUNT_MAX (INT64_C(1) << 40)

// The arrays of a table, in the order in which they are hashed. `batches` follows the budget.
enum { KEYS, VERSION, UPDATES, PUSHED, BATCHES, ARRAYS };
static const char *const array_names[ARRAYS] = {"star/keys", "star/version", "star/updates", "star/pushed",
                                                "star/batches"};

struct key_table {
    const struct shard_map *map;
    int64_t shape[2];
    int64_t budget[2];       // samples of a batch, words of a row; 0: not in the checkpoint
    int64_t *array[ARRAYS];  // (keys, width_of)
    int64_t check;
};

// The number of integers that an array has per key.
static int64_t width_of(const struct key_table *t, int array) {
    const int64_t width[ARRAYS] = {KEY_WORDS, 1, 1, t->shape[1], t->budget[1]};
    return width[array];
}

static void table_make(struct key_table *t) {
    for (int a = 0; a < ARRAYS; a++)
        t->array[a] = xcalloc((unsigned long)(t->shape[0] * width_of(t, a)) + 1, sizeof(int64_t));
}

static void table_free(struct key_table *t) {
    for (int a = 0; a < ARRAYS; a++) free(t->array[a]);
}

static int64_t check_of(const struct key_table *t) {
    uint64_t h = XXH64(t->shape, sizeof t->shape, 0);
    for (int a = 0; a < ARRAYS; a++) {
        if (a == BATCHES) h = XXH64(t->budget, sizeof t->budget, h);
        h = XXH64(t->array[a], (size_t)(t->shape[0] * width_of(t, a)) * sizeof(int64_t), h);
    }
    return (int64_t)h;
}

struct key_table *key_table_create(const struct shard_map *map, int keys, const struct config *c) {
    struct key_table *t = xcalloc(1, sizeof *t);
    *t = (struct key_table){
        .map = map, .shape = {keys, c->workers}, .budget = {config_own_sequences(c), batches_words(c)}};
    table_make(t);
    return t;
}

void key_table_destroy(struct key_table **at) {
    if (*at) table_free(*at);
    free(*at);
    *at = NULL;
}

void key_table_put(struct key_table *t, int i, const struct key_counts *k) {
    const struct partition *p = &t->map->parts[k->key];
    const int64_t key[KEY_WORDS] = {p->unit, p->begin, p->end};
    const int64_t *const row[ARRAYS] = {key, &k->version, &k->updates, k->pushed, k->batches};
    for (int a = 0; a < ARRAYS; a++) {
        size_t width = (size_t)width_of(t, a);
        memcpy(t->array[a] + width * (size_t)i, row[a], width * sizeof(int64_t));
    }
}

void key_table_complete(struct key_table *t) { t->check = check_of(t); }

void key_table_extras(const struct key_table *t, struct part_extra out[KEY_TABLE_EXTRAS]) {
    *out++ = (struct part_extra){"star/shape", t->shape, 2};
    for (int a = 0; a < ARRAYS; a++) {
        if (a == BATCHES) *out++ = (struct part_extra){"star/budget", t->budget, 2};
        *out++ = (struct part_extra){array_names[a], t->array[a], (int)(t->shape[0] * width_of(t, a))};
    }
    *out = (struct part_extra){"star/check", &t->check, 1};
}

// ---------------------------------------------------------------- reading
// A server's arrays; without memory for them: only checks that they exist with so many numbers. Returns 0, or -1 after
// logging.
static int read_arrays(struct checkpoint *c, const char *who, const struct key_table *t) {
    for (int a = 0; a < ARRAYS; a++) {
        int64_t width = width_of(t, a), count = t->shape[0] * width, *to = t->array[a];
        if (a == BATCHES && !width) continue;
        int rc = checkpoint_extra_alone(c, who, array_names[a], to, (int)count);
        if (rc == 1)
            return fail("%s: %s does not record the progress of its keys: it has no %s", checkpoint_path(c),
                        who, array_names[a]);
        if (rc) return -1;
        for (int64_t i = 0; to && a != KEYS && i < count; i++) {
            // A row of batches is the batch after all of them, then holes below it.
            bool hole = a == BATCHES && i % width;
            if (hole ? to[i] >= -1 && to[i] < to[i - i % width] : to[i] >= 0 && to[i] <= COUNT_MAX) continue;
            return fail("%s: %s: %s holds %lld, which is no %s of a run", checkpoint_path(c), who,
                        array_names[a], (long long)to[i], a == BATCHES ? "batch" : "count");
        }
    }
    return 0;
}

// Reads one server's rows. Returns 0, 1 if it wrote none or does not exist, -1 after logging. Allocates only for data
// that exists, whatever the shape claims.
static int read_table(struct checkpoint *c, int server, struct key_table *t) {
    char who[32];
    snprintf(who, sizeof who, "server-%d", server);
    if (checkpoint_extra_alone(c, who, "star/shape", t->shape, 2))
        return checkpoint_extra(c, who, "star/shape", NULL, 2);
    if (t->shape[0] < 0 || t->shape[0] > INT32_MAX / KEY_WORDS || t->shape[1] < 1 || t->shape[1] > 1 << 20 ||
        t->shape[0] * t->shape[1] > INT32_MAX)
        return fail("%s: %s has %lld keys of %lld workers", checkpoint_path(c), who, (long long)t->shape[0],
                    (long long)t->shape[1]);
    int rc = checkpoint_extra_alone(c, who, "star/budget", t->budget, 2);
    // A checkpoint of an earlier version of the program has none.
    if (rc) memset(t->budget, 0, sizeof t->budget);
    if (rc == 0 && (t->budget[0] < 1 || t->budget[0] > COUNT_MAX || t->budget[1] < 1 ||
                    t->budget[1] > 1 << 24 || t->shape[0] * t->budget[1] > INT32_MAX))
        return fail("%s: %s has batches of %lld samples in rows of %lld", checkpoint_path(c), who,
                    (long long)t->budget[0], (long long)t->budget[1]);
    if (read_arrays(c, who, t)) return -1;
    table_make(t);
    if (read_arrays(c, who, t)) return -1;
    int64_t check;
    bool valid = !checkpoint_extra_alone(c, who, "star/check", &check, 1) && check == check_of(t);
    // The checkpoint is of an earlier version, or damaged.
    return valid ? 0 : checkpoint_extra(c, who, "star/shape", NULL, 2);
}

// Every worker has pushed every step; where pushes are applied on arrival updates are counted in samples.
static void rows_of_steps(struct key_rows *r, const struct train_state *now, const struct config *c) {
    bool on_arrival = consistency_of(c).row->on_arrival;
    int64_t own = config_own_sequences(c);
    int words = r->words;
    for (int k = 0; k < r->count; k++) {
        struct key_counts *x = &r->keys[k];
        int64_t clock = train_state_steps(now) / config_round(c);
        // With an outer optimizer, rounds are never skipped.
        x->updates = c->outer_run ? clock : now->updates;
        x->version = on_arrival ? now->samples / own : x->updates;
        x->clock = on_arrival ? 0 : clock;
        for (int w = 0; w < r->workers; w++)
            r->pushed[(int64_t)k * r->workers + w] = on_arrival ? now->step : x->clock;
        r->batches[(int64_t)k * words] = now->handed_out / own;
        batches_clear(r->batches + (int64_t)k * words, words);
    }
}

// Sets the batches that a key holds from an old row of it. Returns whether the new row has room for the open ones.
static bool take_batches(int64_t *row, int words, const struct key_table *t, int64_t i, int64_t own) {
    int64_t total = 0, old_words = t->budget[1];
    const int64_t *old = t->array[BATCHES] + i * old_words;
    batches_clear(row, words);
    for (int64_t w = 0; w < t->shape[1]; w++) total += t->array[PUSHED][i * t->shape[1] + w];
    row[0] = old_words ? batches_count(old, (int)old_words) * t->budget[0] / own : total;
    if (!old_words || t->budget[0] != own) return true;
    if (batches_holes(old, (int)old_words) >= words) return false;
    row[0] = old[0];
    for (int64_t at = 1, to = 1; at < old_words; at++)
        if (old[at] >= 0) row[to++] = old[at];
    return true;
}

// Takes the row of an old key that overlaps the key, if it has more updates than the row so far. Returns 0, or -1 after
// logging.
static int take_row(struct key_rows *r, int key, const struct key_table *t, int64_t i, int64_t own) {
    struct key_counts *x = &r->keys[key];
    int64_t workers = t->shape[1];
    int words = r->words;
    if (x->updates >= t->array[UPDATES][i]) return 0;
    x->updates = t->array[UPDATES][i];
    x->version = t->array[VERSION][i] * r->workers / workers;
    for (int w = 0; w < r->workers; w++)
        r->pushed[(int64_t)key * r->workers + w] =
            t->array[PUSHED][i * workers + (r->workers == workers ? w : 0)];
    if (take_batches(r->batches + (int64_t)key * words, words, t, i, own)) return 0;
    return fail(
        "key %d: more batches are open than %d workers can have: resume with %lld workers and pushes_per_update as before",
        key, r->workers, (long long)workers);
}

static int take_table(struct key_rows *r, const struct shard_map *m, const struct key_table *t, int64_t own) {
    int units = m->trained ? m->parts[m->trained - 1].unit + 1 : 0, rc = 0;
    for (int64_t i = 0; i < t->shape[0]; i++) {
        const int64_t *old = t->array[KEYS] + KEY_WORDS * i;
        if (old[0] < 0 || old[0] >= units) continue;
        for (int key = m->first[old[0]]; key < m->first[old[0] + 1]; key++)
            if (m->parts[key].begin < old[2] && old[1] < m->parts[key].end && !rc)
                rc = take_row(r, key, t, i, own);
    }
    return rc;
}

int key_rows_read(struct key_rows *r, struct checkpoint *c, const struct config *config,
                  const struct shard_map *map) {
    bool on_arrival = consistency_of(config).row->on_arrival;
    int rc = 0, rows = 0;
    unsigned long n = (unsigned long)map->trained, workers = (unsigned long)config->workers;
    unsigned long words = (unsigned long)batches_words(config);
    *r = (struct key_rows){.count = map->trained, .workers = config->workers, .words = (int)words};
    r->keys = xcalloc(n + 1, sizeof *r->keys);
    r->pushed = xcalloc(n * workers + 1, sizeof *r->pushed);
    r->batches = xcalloc(n * words + 1, sizeof *r->batches);
    for (int k = 0; k < r->count; k++)
        r->keys[k] = (struct key_counts){.key = k,
                                         .updates = -1,
                                         .pushed = r->pushed + (size_t)k * workers,
                                         .batches = r->batches + (size_t)k * words};
    for (int s = 0; on_arrival && rc == 0; s++) {
        struct key_table t = {.map = map};
        rc = read_table(c, s, &t);
        if (rc == 0) rc = take_table(r, map, &t, config_own_sequences(config));
        table_free(&t);
    }
    if (rc < 0) return -1;
    for (int k = 0; k < r->count; k++) rows += r->keys[k].updates >= 0;
    if (rows && rows < r->count)
        return fail("%s: it records the progress of %d of %d keys", checkpoint_path(c), rows, r->count);
    if (!rows) rows_of_steps(r, checkpoint_train(c), config);
    // A worker's next step is the same for all keys: keys recognize a push that they have by its batch.
    for (int w = 0; on_arrival && w < r->workers; w++) {
        int64_t step = key_rows_step(r, w);
        for (int k = 0; k < r->count; k++) r->pushed[(int64_t)k * r->workers + w] = step;
    }
    return 0;
}

void key_rows_free(struct key_rows *r) {
    free(r->keys);
    free(r->pushed);
    free(r->batches);
    *r = (struct key_rows){0};
}

int64_t key_rows_step(const struct key_rows *r, int worker) {
    int64_t least = INT64_MAX;
    for (int k = 0; k < r->count; k++)
        if (r->keys[k].pushed[worker] < least) least = r->keys[k].pushed[worker];
    return least;
}

bool key_rows_has(const struct key_rows *r, int64_t batch) {
    for (int k = 0; k < r->count; k++)
        if (!batches_has(r->keys[k].batches, r->words, batch)) return false;
    return true;
}

int64_t key_rows_low(const struct key_rows *r) {
    int64_t low = INT64_MAX;
    for (int k = 0; k < r->count; k++)
        for (int i = 0; i < r->words; i++) {
            int64_t batch = r->keys[k].batches[i];
            if (batch >= 0 && batch < low) low = batch;
        }
    return low;
}

int64_t key_rows_next(const struct key_rows *r) {
    int64_t next = 0;
    for (int k = 0; k < r->count; k++)
        if (r->keys[k].batches[0] > next) next = r->keys[k].batches[0];
    return next;
}
