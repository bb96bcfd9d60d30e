#include "ps/record/arrivals.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"

struct key_arrivals {
    struct arrival *all;  // (count)
    int64_t count, room;
    // After reading: the indices in `all` of the workers' pushes, one worker after the other; where each worker begins
    // (workers + 1).
    uint32_t *by_worker, *first;
};

struct arrivals {
    struct arrivals_options o;
    struct key_arrivals *keys;  // (map->count); those of other shards are empty
};

#define ENTRY_BYTES     24  // of a typical arrival
#define ENTRY_BYTES_MAX 44
static_assert(sizeof(struct key_arrivals) <= ARRIVALS_KEY_BYTES, "counted before the run");

struct arrivals_options arrivals_options_of(const struct config *c, const struct shard_map *map,
                                            const struct manifest *order, int shard) {
    const struct consistency_rule rule = consistency_of(c);
    return (struct arrivals_options){.map = map,
                                     .manifest = order,
                                     .shard = shard,
                                     .workers = c->workers,
                                     .steps = c->steps,
                                     .sets = consistency_drops(rule),
                                     .reads = consistency_reads_vary(rule),
                                     .per_update = rule.per_update};
}

int64_t arrivals_bytes(int64_t pushes, bool replay) {
    const struct key_arrivals *k = NULL;
    // Recording: the array doubles, and so does the text. Reading: the text, all arrivals, and their indices.
    int64_t each = replay ? ENTRY_BYTES + (int64_t)(sizeof *k->all + sizeof *k->by_worker)
                          : 2 * (int64_t)sizeof *k->all + 2 * ENTRY_BYTES;
    return size_times(pushes, each);
}

struct arrivals *arrivals_create(const struct arrivals_options *o) {
    struct arrivals *a = xcalloc(1, sizeof *a);
    a->o = *o;
    a->keys = xcalloc((unsigned long)o->map->count, sizeof *a->keys);
    return a;
}

void arrivals_destroy(struct arrivals **at) {
    struct arrivals *a = *at;
    if (!a) return;
    for (int key = 0; key < a->o.map->count; key++) {
        free(a->keys[key].all);
        free(a->keys[key].by_worker);
        free(a->keys[key].first);
    }
    free(a->keys);
    free(a);
    *at = NULL;
}

void arrivals_note(struct arrivals *a, int key, const struct arrival *x) {
    struct key_arrivals *k = &a->keys[key];
    if (k->count == k->room) {
        k->room = k->room ? 2 * k->room : 64;
        k->all = xrealloc(k->all, (unsigned long)k->room * sizeof *k->all);
    }
    k->all[k->count++] = *x;
}

const struct arrival *arrivals_at(const struct arrivals *a, int key, int64_t i) {
    const struct key_arrivals *k = &a->keys[key];
    return i < k->count ? &k->all[i] : NULL;
}

const struct arrival *arrivals_of(const struct arrivals *a, int key, int worker, int64_t step) {
    const struct key_arrivals *k = &a->keys[key];
    if (!k->first || step < 0 || worker >= a->o.workers) return NULL;
    return step < k->first[worker + 1] - k->first[worker] ? &k->all[k->by_worker[k->first[worker] + step]]
                                                          : NULL;
}

// Returns the batch of the worker's step, or -1 if the worker is not in that step's set. Searches the first key that
// has arrivals; its batches ascend, and all keys have the same sets.
static int64_t batch_in_set(const struct arrivals *a, int worker, int64_t step) {
    int64_t batch = step * a->o.workers + worker, low = 0;
    const struct key_arrivals *k = a->keys;
    while (!k->count && k + 1 < a->keys + a->o.map->count) k++;
    for (int64_t high = k->count; low < high;) {
        int64_t middle = low + (high - low) / 2;
        if (k->all[middle].batch < batch)
            low = middle + 1;
        else
            high = middle;
    }
    return low < k->count && k->all[low].batch == batch ? batch : -1;
}

int64_t arrivals_batch(const struct arrivals *a, int worker, int64_t step) {
    if (a->o.sets) return batch_in_set(a, worker, step);
    const struct arrival *x = NULL;
    for (int key = 0; key < a->o.map->count && !x; key++) x = arrivals_of(a, key, worker, step);
    return x ? x->batch : -1;
}

// ---------------------------------------------------------------- writing
static void write_head(FILE *f, const struct arrivals_options *o) {
    fprintf(f, "starring arrivals 2 shard %d workers %d steps %lld manifest %016llx (%s)\n", o->shard,
            o->workers, (long long)o->steps, (unsigned long long)o->manifest->hash, o->manifest->text);
}

int arrivals_write(const struct arrivals *a, const char *dir) {
    char *text = NULL, *name = xasprintf("arrivals.%d", a->o.shard);
    size_t size = 0;
    int keys = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) {
        free(name);
        return fail("%s/arrivals.%d: out of memory", dir, a->o.shard);
    }
    write_head(f, &a->o);
    for (int key = 0; key < a->o.map->count; key++) {
        const struct key_arrivals *k = &a->keys[key];
        if (a->o.map->parts[key].shard != a->o.shard) continue;
        fprintf(f, "key %d:", key);
        for (int64_t i = 0; i < k->count; i++) {
            fprintf(f, " %d#%lld@%u", k->all[i].worker, (long long)k->all[i].batch, k->all[i].version);
            if (k->all[i].staleness) fprintf(f, "+%u", k->all[i].staleness);
        }
        fputc('\n', f);
        keys++;
    }
    fprintf(f, "end %d\n", keys);
    int rc = fclose(f) ? fail("%s/%s: out of memory", dir, name) : run_file_write(dir, name, text);
    free(text);
    free(name);
    return rc;
}

// ---------------------------------------------------------------- reading
struct reading {
    struct arrivals *a;
    const char *path;
    int line;
};

static int refuse(const struct reading *r, const char *why) {
    return fail("%s, line %d: %s; --replay-arrivals needs what --record-arrivals left of the same run",
                r->path, r->line, why);
}

// WORKER#BATCH@VERSION[+STALENESS], digits only. Returns the text after it, or NULL if it is none.
static const char *read_arrival(const char *at, struct arrival *x) {
    uint64_t number[4] = {0};
    for (int i = 0; i < 4; i++) {
        int digits = 0;
        for (; isdigit((unsigned char)*at) && digits < 10; digits++)
            number[i] = number[i] * 10 + (uint64_t)(*at++ - '0');
        if (!digits || number[i] > UINT32_MAX / 2) return NULL;
        if (i < 3 && *at != "#@+"[i]) {
            if (i < 2) return NULL;
            break;
        }
        if (i < 3) at++;
    }
    *x = (struct arrival){(int32_t)number[0], (uint32_t)number[2], (uint32_t)number[3], (int64_t)number[1]};
    return *at == ' ' || !*at ? at : NULL;
}

// Rules of any run. Versions grow by at most the pushes of one update. They do not grow if the push was skipped or
// waits for others. A worker computes on weights that are not older than those that its last push was applied to.
static int check_arrival(const struct reading *r, struct key_arrivals *k, const struct arrival *x, bool *had,
                         uint32_t *own) {
    const struct arrival *before = k->count ? &k->all[k->count - 1] : NULL;
    uint32_t now = x->version + x->staleness, last = before ? before->version + before->staleness : 0;
    if (x->worker >= r->a->o.workers) return refuse(r, "names a worker that the run does not have");
    if (x->batch >= k->room || had[x->batch])
        return refuse(r, "has a batch twice, or one that the run does not have");
    had[x->batch] = true;
    uint32_t most = r->a->o.per_update > 1 ? (uint32_t)r->a->o.per_update : 1;
    int64_t workers = r->a->o.workers;
    bool behind = x->batch < workers || had[x->batch - workers];
    if (r->a->o.reads &&
        (x->batch % workers != x->worker || !behind || x->staleness || x->version > x->batch / workers))
        return refuse(r, "has a step before its worker's last one, or on weights that are not there yet");
    if (!r->a->o.reads && (now < last || now > last + (before ? most : 0)))
        return refuse(r, "has versions that do not follow each other");
    if (x->version < own[x->worker]) return refuse(r, "has a push on weights older than its worker's last");
    return 0;
}

// Checks that the steps follow each other, that each has at least one worker, and that its workers ascend.
static int check_sets(const struct reading *r, const struct key_arrivals *k) {
    int64_t workers = r->a->o.workers, step = -1;
    for (int64_t i = 0; i < k->count; i++) {
        const struct arrival *x = &k->all[i];
        bool follows =
            x->batch / workers == step + 1 || (i && x->batch / workers == step && x->batch > x[-1].batch);
        if (x->batch % workers != x->worker || !follows)
            return refuse(r, "has steps, or workers of a step, that do not follow each other");
        step = x->batch / workers;
    }
    return step + 1 == r->a->o.steps ? 0 : refuse(r, "has fewer steps than the run: torn, or interrupted");
}

// Indexes each worker's pushes.
static void index_by_worker(struct key_arrivals *k, int workers) {
    k->first = xcalloc((unsigned long)workers + 1, sizeof *k->first);
    k->by_worker = xcalloc((unsigned long)k->count, sizeof *k->by_worker);
    for (int64_t i = 0; i < k->count; i++) k->first[k->all[i].worker + 1]++;
    for (int w = 0; w < workers; w++) k->first[w + 1] += k->first[w];
    uint32_t *next = xcalloc((unsigned long)workers, sizeof *next);
    memcpy(next, k->first, (size_t)workers * sizeof *next);
    for (int64_t i = 0; i < k->count; i++) k->by_worker[next[k->all[i].worker]++] = (uint32_t)i;
    free(next);
}

static int read_key(const struct reading *r, const char *text, int wanted) {
    struct arrivals *a = r->a;
    int key = -1, used = 0, rc = 0;
    if (sscanf(text, "key %d:%n", &key, &used) != 1 || !used)
        return refuse(r, "is torn: a line \"key K: ..\" was expected");
    if (key != wanted) return refuse(r, "is of another key than the shard's next one");
    struct key_arrivals *k = &a->keys[key];
    unsigned long workers = (unsigned long)a->o.workers;
    // The exact number: a file with fewer or more is refused.
    k->room = (int64_t)workers * a->o.steps;
    k->all = xcalloc((unsigned long)k->room, sizeof *k->all);
    uint32_t *own = xcalloc(workers, sizeof *own);
    bool *had = xcalloc((unsigned long)k->room, sizeof *had);
    for (const char *at = text + used; *at == ' ' && !rc;) {
        struct arrival x;
        if (!(at = read_arrival(at + 1, &x))) {
            rc = refuse(r, "is torn: WORKER#BATCH@VERSION+STALENESS was expected");
            break;
        }
        if ((rc = check_arrival(r, k, &x, had, own))) break;
        own[x.worker] = x.version + x.staleness;  // plus 1 unless skipped, which the next arrival shows
        arrivals_note(a, key, &x);
    }
    if (!rc && a->o.sets) rc = check_sets(r, k);
    if (!rc && !a->o.sets && k->count < k->room)
        rc = refuse(r, "has fewer pushes than the run has batches: torn, or interrupted");
    if (!rc) index_by_worker(k, a->o.workers);
    free(own);
    free(had);
    return rc;
}

static int read_head(const struct reading *r, const char *text) {
    const struct arrivals_options *o = &r->a->o;
    char *wanted = NULL;
    size_t size = 0;
    if (strncmp(text, "starring arrivals 2 ", 20) != 0) return refuse(r, "is no head of recorded arrivals");
    FILE *f = open_memstream(&wanted, &size);
    if (!f) return fail("%s: out of memory", r->path);
    write_head(f, o);
    fclose(f);
    wanted[strcspn(wanted, "\n")] = 0;
    bool same = !strcmp(text, wanted);
    if (!same)
        fail(
            "%s, line 1: is of another run: it has \"%.300s\", this one \"%.300s\"; --replay-arrivals needs the same "
            "model, workers, servers, steps and settings",
            r->path, text + 20, wanted + 20);
    free(wanted);
    return same ? 0 : -1;
}

// The next line, cut at its end; NULL: there is none, or it has no end.
static char *next_line(char **rest, struct reading *r) {
    char *line = *rest, *end = strchr(line, '\n');
    r->line++;
    if (!end) return NULL;
    *end = 0;
    *rest = end + 1;
    return line;
}

static int read_all(struct reading *r, char *text) {
    struct arrivals *a = r->a;
    int keys = 0, count = -1, used = 0;
    char *line = next_line(&text, r);
    if (!line) return refuse(r, "is torn");
    if (read_head(r, line)) return -1;
    for (int key = 0; key < a->o.map->count; key++) {
        if (a->o.map->parts[key].shard != a->o.shard) continue;
        if (!(line = next_line(&text, r))) return refuse(r, "is torn or missing");
        if (read_key(r, line, key)) return -1;
        keys++;
    }
    if (!(line = next_line(&text, r))) return refuse(r, "is torn or missing: \"end\" was expected");
    if (sscanf(line, "end %d%n", &count, &used) != 1 || line[used] || count != keys)
        return refuse(r, "is not the \"end\" of this shard's keys");
    return *text ? refuse(r, "is followed by more") : 0;
}

struct arrivals *arrivals_read(const struct arrivals_options *o, const char *dir) {
    char *name = xasprintf("arrivals.%d", o->shard), *path = xasprintf("%s/%s", dir, name);
    // A longer file belongs to another run.
    int64_t keys = o->map->shard_keys[o->shard], pushes = size_times(o->workers, o->steps);
    size_t most =
        (size_t)size_plus(size_times(keys, size_plus(size_times(pushes, ENTRY_BYTES_MAX), 32)), 8192);
    char why[FILE_WHY_MAX], *text = run_file_read_up_to(dir, name, most, why);
    struct arrivals *a = arrivals_create(o);
    struct reading r = {.a = a, .path = path};
    int rc =
        text
            ? read_all(&r, text)
            : fail(
                  "--replay-arrivals: %s cannot be read: %s; a run with --record-arrivals leaves one for each "
                  "thread of its servers",
                  path, why);
    if (rc) arrivals_destroy(&a);
    free(text);
    free(path);
    free(name);
    return a;
}
