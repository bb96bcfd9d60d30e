// One worker's state machine, and peers that say anything: shards and a scheduler whose answers are of any kind, for any
// key and step, with weights of any size. A worker's steps never go back, weights change only where they were asked for,
// and what it holds does not grow with what it hears.
#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_sim.h"

struct life {
    struct sim *s;
    struct sim_worker *x;
    struct fuzz_bytes in;
    int64_t landed[TOY_UNITS], done;
};

static void forget(struct sim *s) {
    for (int i = 0; i < s->count; i++)
        if (s->packets[i].inflight) atomic_fetch_sub(s->packets[i].inflight, 1);
    sim_forget(s);
}

// An answer of the kind that the worker waits for is likelier than others.
static struct wire_header answer(struct life *l) {
    static const enum wire_kind kinds[] = {WIRE_PULL_REPLY, WIRE_PUSH_ACK,    WIRE_INIT_ACK,   WIRE_PULL_SENT,
                                           WIRE_STEP_DONE,  WIRE_GATHER_DONE, WIRE_GOODBYE_ACK};
    struct wire_header h = star_header(&l->in, l->s->map->count);
    uint8_t likely = fuzz_u8(&l->in);
    if (likely & 1) h.kind = kinds[(likely >> 1) % 7];
    if (likely & 16) h.step = l->x->step + (likely >> 7);
    if (likely & 32) h.seq = 1 + fuzz_below(&l->in, 32);
    h.has_sum = h.kind == WIRE_SHARD_SUM;
    return h;
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
        h.place_bytes = 0;
    }
    size_t n = wire_encode(&h, bytes);
    if (!n || wire_decode(bytes, n, payload, &h) != 0) return;
    struct ps_frame *f = payload ? sim_frame(s, xcalloc(payload, 1), payload) : NULL;
    if (f) memset((void *)f->data, from, payload);
    worker_core_message(l->x->core, peer, &h, f, s->now);
}

static void check(struct life *l) {
    const struct worker_status *now = worker_core_status(l->x->core);
    for (int u = 0; u < l->s->l->count; u++) {
        int64_t landed = worker_core_landed(l->x->core, u);
        FUZZ_CHECK(landed >= l->landed[u], "unit %d goes from step %lld back to %lld", u,
                   (long long)l->landed[u], (long long)landed);
        l->landed[u] = landed;
        FUZZ_CHECK(worker_core_busy(l->x->core, u) >= 0, "a negative number of keys");
    }
    FUZZ_CHECK(now->steps_done >= l->done && now->pulling >= 0, "steps go back, or fewer than no pulls");
    l->done = now->steps_done;
    FUZZ_CHECK(!now->parted || now->told || l->x->phase >= SIM_LOADING, "parted");
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
            forget(s);
            break;
        case 6:
            worker_core_describe(l->x->core, (what >> 3) % s->l->count, text, sizeof text);
            break;
        default:
            for (int i = what >> 3; i > 0 && !worker_core_error(l->x->core)[0]; i--) sim_work(s, l->x);
    }
    worker_core_tick(l->x->core, s->now);
    if (s->count > 512) forget(s);
    check(l);
}

FUZZ_TARGET(worker) {
    struct life l = {.in = {data, size}};
    struct toy_case t = star_case(&l.in);
    l.s = sim_create(&t);
    l.x = &l.s->workers[0];
    forget(l.s);
    size_t before = fuzz_allocated();
    for (int u = 0; u < l.s->l->count; u++) worker_core_init_unit(l.x->core, u, l.x->init[u], 1);
    while (l.in.left) turn(&l);
    forget(l.s);
    size_t now = fuzz_allocated() - (size_t)l.s->capacity * sizeof *l.s->packets;
    FUZZ_CHECK(now < before + 65536, "%zu bytes more than at the beginning", now - before);
    sim_destroy(l.s);
}
