// Recorded arrivals, as --replay-arrivals reads them (ps/record/arrivals.h): a shard's file. The first byte says whether a
// good head goes before the rest, whether it is of a run with bounded delay, and whether updates are of two pushes. An
// accepted file holds each batch of each key once, pushed by whichever worker, on versions that follow each other; with
// bounded delay each worker's steps are in their order, on versions that exist. The file that is written and read again
// is the same. A shard repeats it (ps/server/push_replayed.c): workers push and pull as it says, and in the end all pushes
// are in, or the shard has said why that cannot be. No worker waits for ever, and no sum has more pushes than it has
// room for.
#include "ps/record/arrivals.h"

#include <stdlib.h>
#include <string.h>

#include "ps/server/server_core.h"
#include "shared/core/error.h"
#include "tests/fuzz/star/star_case.h"

#define WORKERS 2
#define STEPS   3
#define KEYS    3
#define HEAD    "starring arrivals 2 shard 0 workers 2 steps 3 manifest 0000000000000005 (ours)\n"

// Keys 0 and 2 are the shard's.
static struct partition parts[KEYS] = {{0, 0, 4, 0}, {0, 4, 8, 1}, {1, 0, 4, 0}};
static int shard_keys[] = {2, 1};
static const struct shard_map map = {
    .count = KEYS, .parts = parts, .servers = 2, .threads = 1, .shards = 2, .shard_keys = shard_keys};

static void check_key(const struct arrivals *a, int key, bool reads, int per_update) {
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
        FUZZ_CHECK(reads || last < 0 || (now >= last && now <= last + per_update), "version %lld after %lld",
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

// ---------------------------------------------------------------- a shard repeats it
struct replayed {
    int64_t step[WORKERS], version[WORKERS];
    bool waits[WORKERS], refused;
    int key;
};

static void hear(void *ctx, int peer, const struct ps_message *m) {
    struct replayed *r = ctx;
    const struct wire_header *h = &m->header;
    r->refused |= h->kind == WIRE_REFUSED;
    if (h->kind != WIRE_PULL_REPLY || peer < 0 || peer >= WORKERS || h->key != r->key) return;
    r->step[peer] = h->step;
    r->version[peer] = h->version;
    r->waits[peer] = false;
}

static struct ps_frame *zeros(size_t bytes) {
    struct ps_frame *f = xcalloc(1, sizeof *f + bytes);
    *f = (struct ps_frame){f + 1, bytes, (void (*)(struct ps_frame *))free};
    return f;
}

static void replay_key(struct server_core *c, struct replayed *r, const struct arrivals *a, int key) {
    struct wire_header h = {.role = PS_WORKER, .job = 9, .incarnation = 1, .key = key};
    *r = (struct replayed){.key = key};
    h.kind = WIRE_INIT;
    h.seq = 1;
    FUZZ_CHECK(!server_core_message(c, &h, zeros(4 * sizeof(float)), 0), "%s", server_core_error(c));
    h.kind = WIRE_PUSH;
    h.flags = WIRE_PULLS;
    h.grad_scale = 1;
    h.lr = TOY_LR;
    for (bool goes = true; goes && !r->refused;) {
        goes = false;
        for (int w = 0; w < WORKERS; w++) {
            const struct arrival *x = arrivals_of(a, key, w, r->step[w]);
            if (r->waits[w] || !x) continue;
            h.rank = w;
            h.incarnation = (uint64_t)w + 1;
            h.step = r->step[w];
            h.seq = (uint64_t)r->step[w] + 1;
            h.version = r->version[w];
            h.batch = x->batch;
            r->waits[w] = goes = true;
            if (server_core_message(c, &h, zeros(4 * sizeof(float)), 0)) return;
        }
    }
    for (int w = 0; w < WORKERS && !r->refused; w++)
        FUZZ_CHECK(!arrivals_of(a, key, w, r->step[w] + r->waits[w]), "key %d: worker %d waits for ever", key,
                   w);
}

static void replay(struct arrivals *a, int per_update) {
    const struct toy_case t = {.dtype = DT_F32,
                               .consistency = "async",
                               .workers = WORKERS,
                               .servers = 2,
                               .threads = 1,
                               .steps = STEPS,
                               .overflow_step = -1,
                               .per_update = per_update,
                               .rows = 4};
    struct config config = toy_config(&t);
    struct layout *l = toy_layout(WORKERS, 4);
    float values[KEYS][4][4] = {{{0}}};
    struct server_buffers buffers[KEYS] = {{0}};
    struct replayed r = {.key = 0};
    for (int k = 0; k < KEYS; k++)
        buffers[k] = (struct server_buffers){.master = values[k][0],
                                             .state = {values[k][1], values[k][2]},
                                             .weight = values[k][0],
                                             .acc = values[k][3]};
    config.ps.replay_arrivals = (char *)"here";
    struct server_core *c = server_core_create(&(struct server_core_options){.config = &config,
                                                                             .layout = l,
                                                                             .map = &map,
                                                                             .shard = 0,
                                                                             .buffers = buffers,
                                                                             .job = 9,
                                                                             .replay = a,
                                                                             .port = {&r, hear}});
    for (int w = 0; w < WORKERS; w++) server_core_member(c, w, (uint64_t)w + 1, 1);
    for (int k = 0; k < KEYS && !server_core_error(c)[0]; k += 2) replay_key(c, &r, a, k);
    server_core_destroy(&c);
    layout_destroy(&l);
}

FUZZ_TARGET(arrivals) {
    static const struct manifest manifest = {.hash = 5, .text = "ours"};
    struct fuzz_bytes in = {data, size};
    uint64_t how = fuzz_below(&in, 8);
    int per_update = how & 4 ? 2 : 1;
    const struct arrivals_options o = {.map = &map,
                                       .manifest = &manifest,
                                       .shard = 0,
                                       .workers = WORKERS,
                                       .steps = STEPS,
                                       .reads = how & 2,
                                       .per_update = per_update};
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
        check_key(a, 0, o.reads, per_update);
        check_key(a, 2, o.reads, per_update);
        if (!o.reads) replay(a, per_update);
        FUZZ_CHECK(!arrivals_at(a, 1, 0), "pushes of another shard's key");
        check_same(a, &o);
    }
    arrivals_destroy(&a);
}
