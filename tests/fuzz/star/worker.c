// One worker's state machine, and peers that say anything: shards and a scheduler whose answers are of any kind, for any
// key and step, with weights of any size. A worker's steps never go back; weights change, and land, by the answer of their
// own shard to what was asked last, once; what the worker holds does not grow with what it hears.
#include <xxhash.h>

#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_sim.h"

#define KEYS_MAX 64

struct life {
    struct sim *s;
    struct sim_worker *x;
    struct fuzz_bytes in;
    int64_t landed[TOY_UNITS], done;
    // For each key: the weights that were asked for last, and not answered yet.
    struct {
        uint64_t seq;
        int64_t want;
        bool open;
    } asked[KEYS_MAX];
};

static void note_asked(struct life *l) {
    for (int i = 0; i < l->s->count; i++) {
        const struct wire_header *h = &l->s->packets[i].header;
        bool asks = h->kind == WIRE_PULL || (h->kind == WIRE_PUSH && h->flags & WIRE_PULLS);
        if (l->s->packets[i].from.role != PS_WORKER || !asks || h->seq <= l->asked[h->key].seq) continue;
        l->asked[h->key].seq = h->seq;
        l->asked[h->key].want = h->step + (h->kind == WIRE_PUSH);
        l->asked[h->key].open = true;
    }
}

static void forget(struct life *l) {
    struct sim *s = l->s;
    note_asked(l);
    for (int i = 0; i < s->count; i++)
        if (s->packets[i].inflight) atomic_fetch_sub(s->packets[i].inflight, 1);
    sim_forget(s);
}

// An answer of the kind that the worker waits for is likelier than others.
static struct wire_header answer(struct life *l) {
    static const enum wire_kind kinds[] = {WIRE_PULL_REPLY, WIRE_PUSH_ACK,  WIRE_INIT_ACK,
                                           WIRE_WORD,       WIRE_STEP_DONE, WIRE_GATHER_DONE};
    struct wire_header h = star_header(&l->in, l->s->map->count);
    uint8_t likely = fuzz_u8(&l->in);
    if (likely & 1) h.kind = kinds[(likely >> 1) % 6];
    if (likely & 16) h.step = l->x->step + (likely >> 7);
    if (likely & 32) h.seq = 1 + fuzz_below(&l->in, 32);
    h.has_sum = h.kind == WIRE_SHARD_SUM;
    return h;
}

static void hash_weights(const struct life *l, uint64_t out[KEYS_MAX]) {
    const struct shard_map *m = l->s->map;
    size_t size = dtype_size(l->s->t.dtype);
    for (int k = 0; k < m->count; k++) {
        const struct partition *p = &m->parts[k];
        const char *unit = l->x->weights[p->unit];
        out[k] = XXH64(unit + (size_t)p->begin * size, (size_t)(p->end - p->begin) * size, 0);
    }
}

// The memory that it shares next to the weights of `key` (-1: next to nothing).
static uint64_t hash_rest(const struct life *l, int key) {
    const struct partition *p = key < 0 ? NULL : &l->s->map->parts[key];
    size_t size = dtype_size(l->s->t.dtype), all = l->x->segment_bytes, at = all, end = all;
    if (p && l->s->t.share != SHARE_IN_PLACE) {
        at = (size_t)l->x->weight_at[p->unit] + (size_t)p->begin * size;
        end = at + (size_t)(p->end - p->begin) * size;
    }
    return XXH64(l->x->segment, at, XXH64(l->x->segment + end, all - end, 0));
}

// The worker hears it. Only the answer to what was asked last of a key changes its weights.
static void take(struct life *l, int peer, const struct wire_header *h, struct ps_frame *f) {
    const struct shard_map *m = l->s->map;
    uint64_t before[KEYS_MAX], after[KEYS_MAX];
    note_asked(l);
    bool answer = h->kind == WIRE_PULL_REPLY && h->key < m->count && peer == m->parts[h->key].shard &&
                  l->asked[h->key].open && h->seq == l->asked[h->key].seq && h->step == l->asked[h->key].want;
    uint64_t rest = hash_rest(l, answer ? h->key : -1);
    hash_weights(l, before);
    void *to = worker_core_target(l->x->core, peer, h, f);
    if (to) memcpy(to, f->data, f->bytes);
    worker_core_message(l->x->core, peer, h, f, l->s->now);
    hash_weights(l, after);
    FUZZ_CHECK(rest == hash_rest(l, answer ? h->key : -1), "a %s of key %d changes something else",
               wire_kind_name(h->kind), h->key);
    for (int k = 0; k < m->count; k++)
        FUZZ_CHECK(before[k] == after[k] || (answer && k == h->key),
                   "the weights of key %d change with a %s of key %d", k, wire_kind_name(h->kind), h->key);
    for (int u = 0; u < l->s->l->count; u++)
        FUZZ_CHECK(
            worker_core_landed(l->x->core, u) == l->landed[u] || (answer && m->parts[h->key].unit == u),
            "unit %d lands with a %s", u, wire_kind_name(h->kind));
    if (answer) l->asked[h->key].open = false;
}

// Passes the codec as all that comes from a socket.
static void hear(struct life *l) {
    struct sim *s = l->s;
    struct wire_header h = answer(l);
    uint8_t bytes[WIRE_HEADER_MAX], from = fuzz_u8(&l->in);
    int peer = from & 1 ? PEER_SCHEDULER : (int)(from >> 2) % s->map->shards;
    size_t payload = 0;
    if (from & 2) {
        int key = h.key < s->map->count ? h.key : 0;
        const struct partition *p = &s->map->parts[key];
        payload = (size_t)(p->end - p->begin) * dtype_size(s->t.dtype) + (from & 64 ? 1 : 0);
        h.data_bytes = 0;
    }
    size_t n = wire_encode(&h, bytes);
    if (!n || wire_decode(bytes, n, payload, &h) != 0) return;
    struct ps_frame *f = payload ? sim_frame(s, xcalloc(payload, 1), payload) : NULL;
    if (f) memset((void *)f->data, from, payload);
    take(l, peer, &h, f);
}

static void check(struct life *l) {
    const struct worker_status *now = worker_core_status(l->x->core);
    for (int u = 0; u < l->s->l->count; u++) {
        int64_t landed = worker_core_landed(l->x->core, u);
        FUZZ_CHECK(landed >= l->landed[u], "unit %d goes from step %lld back to %lld", u,
                   (long long)l->landed[u], (long long)landed);
        l->landed[u] = landed;
        FUZZ_CHECK(worker_core_busy(l->x->core, u, 0) >= 0, "a negative number of keys");
    }
    FUZZ_CHECK(now->steps_done >= l->done && now->pulling >= 0, "steps go back, or fewer than no pulls");
    l->done = now->steps_done;
}

static void turn(struct life *l) {
    struct sim *s = l->s;
    uint8_t what = fuzz_u8(&l->in);
    char text[128];
    s->now += 0.001;
    switch (what & 7) {
        case 0:
        case 1:
        case 2:
            hear(l);
            break;
        case 3:
            s->now += (what >> 3) * 0.1;
            break;
        case 4:
            if (!worker_core_error(l->x->core)[0]) sim_work(s, l->x);
            break;
        case 5:
            forget(l);
            break;
        case 6:
            worker_core_describe(l->x->core, (what >> 3) % s->l->count, text, sizeof text);
            break;
        default:
            for (int i = what >> 3; i > 0 && !worker_core_error(l->x->core)[0]; i--) sim_work(s, l->x);
    }
    worker_core_tick(l->x->core, s->now);
    if (s->count > 512) forget(l);
    check(l);
}

FUZZ_TARGET(worker) {
    struct life l = {.in = {data, size}};
    struct toy_case t = star_case(&l.in);
    l.s = sim_create(&t);
    l.x = &l.s->workers[0];
    forget(&l);
    size_t before = fuzz_allocated();
    for (int u = 0; u < l.s->l->count; u++) worker_core_init_unit(l.x->core, u, l.x->init[u], 1);
    while (l.in.left) turn(&l);
    forget(&l);
    size_t now = fuzz_allocated() - (size_t)l.s->capacity * sizeof *l.s->packets;
    FUZZ_CHECK(now < before + 65536, "%zu bytes more than at the beginning", now - before);
    sim_destroy(l.s);
}
