// Recorded arrivals, as --replay-arrivals reads them (ps/record/arrivals.h): a shard's file. The first byte says whether a
// good head goes before the rest, and whether it is of a run with bounded delay. What is accepted holds each batch of each key once, pushed by whichever worker, on versions
// that follow each other; of bounded delay each worker's steps are in their order, on versions that there are. Written and read again it is the
// same.
#include "ps/record/arrivals.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

#define WORKERS 2
#define STEPS   3
#define KEYS    3
#define HEAD    "starring arrivals 2 shard 0 workers 2 steps 3 manifest 0000000000000005 (ours)\n"

// Keys 0 and 2 are the shard's.
static struct partition parts[KEYS] = {{0, 0, 4, 0}, {0, 4, 8, 1}, {1, 0, 4, 0}};
static int shard_keys[] = {2, 1};
static const struct shard_map map = {
    .count = KEYS, .parts = parts, .servers = 2, .threads = 1, .shards = 2, .shard_keys = shard_keys};

static void check_key(const struct arrivals *a, int key, bool reads) {
    int64_t count = 0, last = -1, steps[WORKERS] = {0};
    bool had[WORKERS * STEPS] = {0};
    for (const struct arrival *x; (x = arrivals_at(a, key, count)); count++) {
        int64_t now = (int64_t)x->version + x->staleness;
        FUZZ_CHECK(x->worker >= 0 && x->worker < WORKERS, "a push of worker %d", x->worker);
        FUZZ_CHECK(x->batch >= 0 && x->batch < WORKERS * STEPS && !had[x->batch],
                   "batch %lld of key %d twice", (long long)x->batch, key);
        had[x->batch] = true;
        if (reads)
            FUZZ_CHECK(x->batch == steps[x->worker] * WORKERS + x->worker && now <= steps[x->worker],
                       "step %lld of worker %d on version %lld", (long long)steps[x->worker], x->worker,
                       (long long)now);
        steps[x->worker]++;
        FUZZ_CHECK(reads || last < 0 || now == last || now == last + 1, "version %lld after %lld",
                   (long long)now, (long long)last);
        last = now;
    }
    FUZZ_CHECK(count == WORKERS * STEPS, "%lld pushes of key %d", (long long)count, key);
    for (int w = 0; w < WORKERS; w++)
        for (int64_t step = 0; step < steps[w]; step++) {
            const struct arrival *x = arrivals_of(a, key, w, step), *before = step ? x : NULL;
            if (before) before = arrivals_of(a, key, w, step - 1);
            FUZZ_CHECK(x && x->worker == w && (!before || before < x), "worker %d has no push of step %lld",
                       w, (long long)step);
            FUZZ_CHECK(!before || x->version >= before->version + before->staleness,
                       "worker %d computes on weights without its own push", w);
        }
    FUZZ_CHECK(
        !arrivals_of(a, key, 0, steps[0]) && !arrivals_of(a, key, 0, -1) && !arrivals_of(a, key, WORKERS, 0),
        "pushes of nobody");
}

static void check_same(const struct arrivals *a, const struct arrivals_options *o) {
    fuzz_make_dir("again");
    char *dir = fuzz_path("again");
    FUZZ_CHECK(arrivals_write(a, dir) == 0, "not written: %s", error_last());
    struct arrivals *b = arrivals_read(o, dir);
    FUZZ_CHECK(b, "as written it is refused: %s", error_last());
    for (int key = 0; key < KEYS; key++)
        for (int64_t i = 0; arrivals_at(a, key, i) || arrivals_at(b, key, i); i++) {
            const struct arrival *x = arrivals_at(a, key, i), *y = arrivals_at(b, key, i);
            FUZZ_CHECK(x && y && x->worker == y->worker && x->batch == y->batch && x->version == y->version &&
                           x->staleness == y->staleness,
                       "push %lld of key %d is another", (long long)i, key);
        }
    arrivals_destroy(&b);
    free(dir);
}

FUZZ_TARGET(arrivals) {
    static const struct manifest manifest = {.hash = 5, .text = "ours"};
    struct fuzz_bytes in = {data, size};
    uint64_t how = fuzz_below(&in, 4);
    const struct arrivals_options o = {
        .map = &map, .manifest = &manifest, .shard = 0, .workers = WORKERS, .steps = STEPS, .reads = how > 1};
    size_t head = how % 2 ? strlen(HEAD) : 0;
    char *text = xcalloc(head + in.left + 1, 1);
    memcpy(text, HEAD, head);
    if (in.left) memcpy(text + head, in.p, in.left);
    fuzz_put("arrivals.0", text, head + in.left);
    free(text);
    error_clear();
    struct arrivals *a = arrivals_read(&o, fuzz_dir());
    FUZZ_CHECK(a || error_last()[0], "refused in silence");
    if (a) {
        check_key(a, 0, o.reads);
        check_key(a, 2, o.reads);
        FUZZ_CHECK(!arrivals_at(a, 1, 0), "pushes of another shard's key");
        check_same(a, &o);
    }
    arrivals_destroy(&a);
}
