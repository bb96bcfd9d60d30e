// One shard's state machine under any history of messages: its workers push, pull and load in any order, more than once,
// too early and too late; strangers and processes of earlier lives speak for them. In every case a key's masters are
// those of a plain trainer after as many updates as its version: each gradient was applied once, in its step, and no
// other was; outgoing messages stay as they are.
#include <xxhash.h>

#include "tests/fuzz/star/star_case.h"
#include "tests/ps/test_ps_log.h"

#define STEPS       3
#define LEAVING_MAX 64

// The workers' pushes, and their outcome.
struct truth {
    struct toy_case t;
    struct toy_ref at[STEPS + 1];  // before each step
};

struct life {
    struct config config;
    struct sim *s;  // lends layout, map and buffers
    struct log log;
    struct server_core *core;
    struct fuzz_bytes in;
    struct truth truth;
    uint64_t incarnation[SIM_WORKERS];  // that the shard has heard first
    int64_t *versions;
    struct server_buffers *buffers;
    char *segment[SIM_WORKERS];
    // Replies that the transport still reads, the oldest first.
    struct leaving {
        _Atomic int *inflight;
        const void *payload;
        size_t bytes;
        uint64_t hash;
    } leaving[LEAVING_MAX];
    int leaves;
};

static struct toy_ref copy_ref(const struct toy_case *t, const struct layout *l, const struct toy_ref *from) {
    struct toy_ref r = toy_ref_start(t, l);
    for (int u = 0; u < l->count; u++) {
        size_t n = (size_t)l->units[u].n_pad;
        memcpy(r.weight[u], from->weight[u], n * dtype_size(t->dtype));
        memcpy(r.master[u], from->master[u], n * 4);
        memcpy(r.m[u], from->m[u], n * 4);
        memcpy(r.v[u], from->v[u], n * 4);
    }
    r.updates = from->updates;
    return r;
}

static void make_truth(struct life *x) {
    struct truth *y = &x->truth;
    y->t = x->s->t;
    y->at[0] = toy_ref_start(&y->t, x->s->l);
    for (int i = 0; i < STEPS; i++) {
        y->at[i + 1] = copy_ref(&y->t, x->s->l, &y->at[i]);
        toy_ref_step(&y->t, x->s->l, &x->s->c, &y->at[i + 1], i);
    }
}

static void send(void *ctx, int peer, const struct ps_message *m) {
    struct life *x = ctx;
    log_send(&x->log, peer, m);
    if (!m->inflight || x->leaves == LEAVING_MAX) return;
    atomic_fetch_add(m->inflight, 1);
    x->leaving[x->leaves++] =
        (struct leaving){m->inflight, m->payload, m->bytes, XXH64(m->payload, m->bytes, 0)};
}

// The transport has sent what it has had for longest.
static void leave(struct life *x) {
    if (!x->leaves) return;
    const struct leaving *l = &x->leaving[0];
    FUZZ_CHECK(XXH64(l->payload, l->bytes, 0) == l->hash, "weights change while they leave");
    atomic_fetch_sub(l->inflight, 1);
    memmove(x->leaving, x->leaving + 1, (size_t)--x->leaves * sizeof *l);
}

static void create(struct life *x) {
    struct sim *s = x->s;
    x->buffers = xcalloc((unsigned long)s->map->count, sizeof *x->buffers);
    x->versions = xcalloc((unsigned long)s->map->count, sizeof *x->versions);
    for (int k = 0; k < s->map->count; k++) {
        unsigned long n = (unsigned long)(s->map->parts[k].end - s->map->parts[k].begin);
        x->buffers[k] = (struct server_buffers){xcalloc(n, 4),
                                                {xcalloc(n, 4), xcalloc(n, 4)},
                                                xcalloc(n, dtype_size(s->t.dtype)),
                                                xcalloc(n, 4),
                                                NULL,
                                                NULL,
                                                NULL,
                                                NULL};
    }
    x->config = s->c;
    struct server_core_options o = {.config = &x->config,
                                    .layout = s->l,
                                    .map = s->map,
                                    .shard = 0,
                                    .buffers = x->buffers,
                                    .job = SIM_JOB,
                                    .port = {x, send}};
    x->core = server_core_create(&o);
    for (int w = 0; w < s->t.workers; w++)
        if (s->t.share == SHARE_WRITTEN) {
            x->segment[w] = xcalloc(s->workers[w].segment_bytes, 1);
            server_core_attach(x->core, w,
                               &(struct server_segment){x->segment[w], s->workers[w].segment_bytes});
        }
}

static void destroy(struct life *x) {
    server_core_destroy(&x->core);
    for (int k = 0; k < x->s->map->count; k++) {
        free(x->buffers[k].master);
        free(x->buffers[k].state[0]);
        free(x->buffers[k].state[1]);
        free(x->buffers[k].weight);
        free(x->buffers[k].acc);
    }
    for (int i = 0; i <= STEPS; i++) toy_ref_free(&x->truth.at[i]);
    for (int w = 0; w < SIM_WORKERS; w++) free(x->segment[w]);
    free(x->buffers);
    free(x->versions);
    sim_destroy(x->s);
}

// ---------------------------------------------------------------- messages
static struct wire_header from(const struct life *x, int worker, enum wire_kind kind) {
    return (struct wire_header){.kind = kind,
                                .role = PS_WORKER,
                                .rank = worker,
                                .job = SIM_JOB,
                                .incarnation = x->incarnation[worker]};
}

static void say(struct life *x, struct wire_header h, void *payload, size_t bytes) {
    uint8_t wire[WIRE_HEADER_MAX];
    size_t n = wire_encode(&h, wire);
    x->log.count = 0;
    if (!n || wire_decode(wire, n, bytes, &h) != 0) {
        free(payload);
        return;
    }
    server_core_message(x->core, &h, sim_frame(x->s, payload, bytes), x->s->now);
    if (!bytes) free(payload);
}

// The gradient of a step, as this worker has it; a repetition is the same again.
static void push(struct life *x) {
    struct sim *s = x->s;
    int w = (int)fuzz_below(&x->in, (uint64_t)s->t.workers),
        key = (int)fuzz_below(&x->in, (uint64_t)s->map->count);
    uint8_t how = fuzz_u8(&x->in);
    int64_t step = (how & 3) % STEPS;
    const struct partition *p = &s->map->parts[key];
    size_t size = dtype_size(s->t.dtype), bytes = (size_t)(p->end - p->begin) * size;
    const struct sim_worker *v = &s->workers[w];
    char *unit = xcalloc((unsigned long)s->l->units[p->unit].n_pad, size), *payload = NULL;
    struct wire_header h = from(x, w, WIRE_PUSH);
    h.key = key;
    h.step = h.version = step;
    h.lr = TOY_LR;
    h.grad_scale = 1;
    if (how & 4) h.flags |= WIRE_PULLS, h.seq = (uint64_t)step + 1 + (how >> 7);
    toy_grad(&x->truth.t, s->l, p->unit, w, step, x->truth.at[step].weight[p->unit], unit);
    if (x->segment[w]) {
        h.data_offset = v->grad_at[p->unit] + (uint64_t)p->begin * size;
        h.data_bytes = bytes;
        // A gradient stays as it is until the shard has taken it: a later one is another's place.
        if (server_core_version(x->core, key) == step)
            memcpy(x->segment[w] + h.data_offset, unit + (size_t)p->begin * size, bytes);
        if (server_core_version(x->core, key) < step) h.kind = WIRE_NONE;
    } else {
        payload = xcalloc(bytes, 1);
        memcpy(payload, unit + (size_t)p->begin * size, bytes);
    }
    free(unit);
    say(x, h, payload, x->segment[w] ? 0 : bytes);
}

static void load(struct life *x) {
    struct sim *s = x->s;
    int key = (int)fuzz_below(&x->in, (uint64_t)s->map->count);
    const struct partition *p = &s->map->parts[key];
    size_t bytes = (size_t)(p->end - p->begin) * 4;
    struct wire_header h = from(x, 0, WIRE_INIT);
    void *payload = xcalloc(bytes, 1);
    memcpy(payload, x->truth.at[0].master[p->unit] + p->begin, bytes);
    h.key = key;
    h.seq = 1 + fuzz_below(&x->in, 3);
    say(x, h, payload, bytes);
}

static void load_all(struct life *x) {
    for (int key = 0; key < x->s->map->count; key++) {
        uint8_t bytes[2] = {(uint8_t)key, 0};
        struct fuzz_bytes in = x->in;
        x->in = (struct fuzz_bytes){bytes, 2};
        load(x);
        x->in = in;
    }
}

// The scheduler decides a step once all have reported.
static void decide(struct life *x) {
    int64_t step = (int64_t)fuzz_below(&x->in, STEPS);
    const struct update_scalars *u = &x->truth.at[step + 1].scalars;
    struct wire_header h = {.kind = WIRE_DECISION,
                            .role = PS_SCHEDULER,
                            .step = step,
                            .grad_scale = u->grad_scale,
                            .norm = u->norm,
                            .flags = u->skip ? WIRE_SKIP : 0};
    server_core_decision(x->core, &h, x->s->now);
}

// Anything but a gradient or weights of the right size, which would be a worker's lie; or all of that, of somebody else.
static void anything(struct life *x) {
    struct wire_header h = star_header(&x->in, x->s->map->count);
    uint8_t who = fuzz_u8(&x->in);
    size_t bytes = fuzz_below(&x->in, 256) * 8;
    h.role = who & 1 ? PS_WORKER : (enum ps_role)fuzz_below(&x->in, PS_ROLES);
    h.rank = (int32_t)fuzz_below(&x->in, 5) - 1;
    h.job = who & 2 ? SIM_JOB : (uint64_t)fuzz_number(&x->in);
    bool member = h.rank >= 0 && h.rank < x->s->t.workers;
    h.incarnation = who & 4 && member ? x->incarnation[h.rank] : 1 + fuzz_below(&x->in, 64);
    if (h.kind == WIRE_PUSH || h.kind == WIRE_INIT) {
        const struct partition *p = &x->s->map->parts[h.key < x->s->map->count ? h.key : 0];
        size_t one = h.kind == WIRE_PUSH ? dtype_size(x->s->t.dtype) : 4;
        bool stranger = !(who & 4) || !member || h.job != SIM_JOB;
        if (!stranger) h.data_bytes |= 1, bytes = who & 16 ? 0 : bytes | 1;
        if (stranger && who & 8) bytes = (size_t)(p->end - p->begin) * one;
    }
    if (bytes) h.data_bytes = 0;
    say(x, h, bytes ? xcalloc(bytes, 1) : NULL, bytes);
}

static void check(struct life *x) {
    struct sim *s = x->s;
    for (int k = 0; k < s->map->count; k++) {
        const struct partition *p = &s->map->parts[k];
        int64_t now = server_core_version(x->core, k), most = x->truth.at[STEPS].updates;
        if (p->shard != 0 || now == x->versions[k]) continue;
        FUZZ_CHECK(now == x->versions[k] + 1 && now <= most, "key %d goes from version %lld to %lld of %lld",
                   k, (long long)x->versions[k], (long long)now, (long long)most);
        x->versions[k] = now;
        int64_t step = 0;
        while (x->truth.at[step].updates < now) step++;
        FUZZ_CHECK(memcmp(x->buffers[k].master, x->truth.at[step].master[p->unit] + p->begin,
                          (size_t)(p->end - p->begin) * 4) == 0,
                   "key %d has other masters than a plain trainer after update %lld", k, (long long)now);
    }
}

static void turn(struct life *x) {
    uint8_t what = fuzz_u8(&x->in);
    x->s->now += 0.001 * (1 + (what >> 4));
    switch (what & 7) {
        case 0:
        case 1:
        case 2:
            push(x);
            break;
        case 3:
            load(x);
            break;
        case 4:
            decide(x);
            break;
        case 5:
        case 6:
            anything(x);
            break;
        default:
            if (what & 8) load_all(x);
    }
    x->log.count = 0;
    if (!(what & 128)) leave(x);
    server_core_tick(x->core, x->s->now);
    x->log.count = 0;
    check(x);
}

FUZZ_TARGET(server) {
    struct life x = {.in = {data, size}};
    struct toy_case t = star_case(&x.in);
    t.consistency = "sync";
    t.share = t.share == SHARE_WRITTEN ? SHARE_WRITTEN : SHARE_NOTHING;
    t.overflow_step = -1;
    x.s = sim_create(&t);
    make_truth(&x);
    create(&x);
    for (int w = 0; w < SIM_WORKERS; w++) x.incarnation[w] = 100 + (uint64_t)w;
    for (int w = 0; w < t.workers; w++) server_core_member(x.core, w, x.incarnation[w], 0);
    size_t before = fuzz_allocated(), held = 0;
    while (x.in.left) turn(&x);
    while (x.leaves) leave(&x);
    // At most a gradient of each worker and key waits here.
    for (int k = 0; k < x.s->map->count; k++)
        held += (size_t)(x.s->map->parts[k].end - x.s->map->parts[k].begin) * 4 + 256;
    size_t now = fuzz_allocated();
    FUZZ_CHECK(now < before + held * (size_t)t.workers + 16384, "%zu bytes more than at the beginning",
               now - before);
    destroy(&x);
}
