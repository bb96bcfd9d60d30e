// The whole star without sockets or threads: cores joined by a network that shuffles, drops, repeats
// and delays messages as a counter-based generator says, so that every run can be repeated.
#ifndef STARRING_TESTS_PS_TEST_PS_SIM_H
#define STARRING_TESTS_PS_TEST_PS_SIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ps/scheduler/scheduler_core.h"
#include "ps/server/server_core.h"
#include "ps/worker/worker_core.h"
#include "shared/core/rng.h"
#include "test_ps_toy.h"

#define SIM_JOB     4711
#define SIM_STEPS   8
#define SIM_WORKERS 4

struct sim_end {  // one port
    struct sim *sim;
    enum ps_role role;
    int index;  // worker rank, shard number
};

struct sim_packet {
    struct sim_end from, to;
    struct wire_header header;
    void *payload;
    size_t bytes;
    _Atomic int *inflight;
};

enum sim_phase { SIM_LOADING, SIM_BARRIER, SIM_COMPUTE, SIM_PUSHING, SIM_CLOSING, SIM_OVER };

struct sim_worker {
    struct sim_end end;
    struct worker_core *core;
    char *segment;  // holds the grads, and the weights unless they are in place
    size_t segment_bytes;
    uint64_t grad_at[TOY_UNITS], weight_at[TOY_UNITS];
    bool *shared;                                                   // (shards)
    void *weights[TOY_UNITS], *grads[TOY_UNITS], *seen[TOY_UNITS];  // seen: what the step computes on
    float *init[TOY_UNITS];
    enum sim_phase phase;
    int64_t step, updates;
    int pushed;
    struct step_stats last;
};

struct sim;
struct sim {
    struct toy_case t;
    struct layout *l;
    struct config c;
    struct shard_map *map;
    struct server_buffers *buffers;
    void *published[TOY_UNITS];  // (n_pad) each: the servers' weights, which workers may read in place
    struct sim_worker *workers;
    struct server_core **shards;
    struct sim_end *shard_ends;
    struct sim_end scheduler_end, sender;
    struct scheduler_core *scheduler;
    struct sim_packet *packets;
    int count, capacity;
    double now;
    int drop_percent, repeat_percent;
    bool in_order;
    bool
        report_first;  // a device's gradients may still be on their way to the host when its step is reported
    uint64_t draws;
    int frames;   // alive
    double skew;  // worker w's clock is (w + 1) * skew seconds ahead of the scheduler's
    int looks;    // for on_landed
    // Moments of the scheduler's clock, nanoseconds.
    int64_t handed[SIM_STEPS][TOY_UNITS][SIM_WORKERS], reported[SIM_STEPS][SIM_WORKERS];
    void (*on_landed)(struct sim *s,
                      struct sim_worker *x);  // x->step's weights have, its own next one begins
};

static inline uint64_t sim_draw(struct sim *s, uint64_t n) { return rng_below(s->t.seed, s->draws++, 99, n); }

static inline void sim_queue(struct sim *s, const struct sim_packet *p) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 256;
        s->packets = xrealloc(s->packets, (unsigned long)s->capacity * sizeof *s->packets);
    }
    s->packets[s->count++] = *p;
}

// Numbers of the scheduler's members, the other way round.
static inline struct sim_end sim_member(const struct sim *s, int i) {
    if (i < s->t.workers) return s->workers[i].end;
    i -= s->t.workers;
    if (i < s->t.servers) return (struct sim_end){(struct sim *)s, PS_SERVER, i};
    return s->shard_ends[i - s->t.servers];
}

static inline void sim_send(void *ctx, int peer, const struct ps_message *m) {
    struct sim_end *from = ctx;
    struct sim *s = from->sim;
    struct sim_packet p = {.from = *from, .header = m->header, .bytes = m->bytes};
    if (from->role == PS_SCHEDULER)
        p.to = peer == PEER_SENDER ? s->sender : sim_member(s, peer);
    else if (peer == PEER_SCHEDULER)
        p.to = s->scheduler_end;
    else
        p.to = from->role == PS_WORKER ? s->shard_ends[peer] : s->workers[peer].end;
    if (p.to.role == PS_SERVER) return;  // a server's main thread is not part of the simulation
    p.header.role = from->role;
    p.header.rank = from->role == PS_SHARD ? from->index / s->t.threads : from->index;
    p.header.thread = from->role == PS_SHARD ? from->index % s->t.threads : 0;
    p.header.job = SIM_JOB;
    p.header.incarnation = 1000 + (uint64_t)from->index;
    for (int copies = sim_draw(s, 100) < (uint64_t)s->repeat_percent ? 2 : 1; copies > 0; copies--) {
        p.payload = NULL;
        if (m->bytes) {
            p.payload = xcalloc(m->bytes, 1);
            memcpy(p.payload, m->payload, m->bytes);
        }
        p.inflight = copies == 1 ? m->inflight : NULL;
        if (p.inflight) atomic_fetch_add(p.inflight, 1);
        sim_queue(s, &p);
    }
}

struct sim_frame {
    struct ps_frame frame;
    struct sim *sim;
};

static inline void sim_frame_release(struct ps_frame *f) {
    ((struct sim_frame *)f)->sim->frames--;
    free((void *)f->data);
    free(f);
}

static inline struct ps_frame *sim_frame(struct sim *s, void *data, size_t bytes) {
    if (!bytes) return NULL;
    struct sim_frame *f = xcalloc(1, sizeof *f);
    f->frame = (struct ps_frame){data, bytes, sim_frame_release};
    f->sim = s;
    s->frames++;
    return &f->frame;
}

static inline double sim_clock(const struct sim *s, const struct sim_worker *x) {
    return s->now + s->skew * (x->end.index + 1);
}

// Takes one packet off the network: the oldest, or any. Every header passes the codec on its way.
static inline int sim_deliver(struct sim *s) {
    int i = s->in_order ? 0 : (int)sim_draw(s, (uint64_t)s->count);
    struct sim_packet p = s->packets[i];
    uint8_t bytes[WIRE_HEADER_MAX];
    memmove(&s->packets[i], &s->packets[i + 1], (size_t)(s->count - i - 1) * sizeof p);
    s->count--;
    if (p.inflight) atomic_fetch_sub(p.inflight, 1);
    if (sim_draw(s, 100) < (uint64_t)s->drop_percent) {
        free(p.payload);
        return 0;
    }
    struct wire_header h;
    size_t n = wire_encode(&p.header, bytes);
    assert_int_equal(wire_decode(bytes, n, p.bytes, &h), 0);
    struct ps_frame *f = sim_frame(s, p.payload, p.bytes);
    if (p.to.role == PS_SCHEDULER) {
        s->sender = p.from;
        scheduler_core_message(s->scheduler, &h, f, s->now);
        return scheduler_core_error(s->scheduler)[0] ? -1 : 0;
    }
    if (p.to.role == PS_WORKER) {
        int peer = p.from.role == PS_SCHEDULER ? PEER_SCHEDULER : p.from.index;
        struct sim_worker *x = &s->workers[p.to.index];
        return worker_core_message(x->core, peer, &h, f, sim_clock(s, x));
    }
    if (p.from.role == PS_SCHEDULER) {
        ps_frame_release(f);
        return h.kind == WIRE_DECISION ? server_core_decision(s->shards[p.to.index], &h) : 0;
    }
    return server_core_message(s->shards[p.to.index], &h, f, s->now);
}

static inline void sim_login(struct sim *s, enum ps_role role, int rank, int thread, int index) {
    struct wire_header h = {.kind = WIRE_HELLO,
                            .role = role,
                            .rank = rank,
                            .thread = thread,
                            .incarnation = 1000 + (uint64_t)index,
                            .manifest = 5};
    struct ps_frame *f = role == PS_SERVER ? sim_frame(s, xstrdup("tcp://x:1\n"), 10) : NULL;
    s->sender = (struct sim_end){s, PS_SERVER, 0};  // answers go nowhere
    assert_true(scheduler_core_message(s->scheduler, &h, f, s->now) >= 0);
}

// Where the worker's buffers lie: what frames leave where it is may as well lie in a segment.
static inline void sim_place(struct sim *s, struct sim_worker *x) {
    uint64_t at = 64, unit_at[TOY_UNITS];
    for (int u = 0; u < s->l->count; u++) {
        unit_at[u] = at;
        at += 2 * (uint64_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
    }
    x->segment_bytes = (size_t)at;
    x->segment = xcalloc(x->segment_bytes, 1);
    for (int u = 0; u < s->l->count; u++) {
        size_t bytes = (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
        x->grad_at[u] = unit_at[u];
        x->weight_at[u] = unit_at[u] + bytes;
        x->grads[u] = x->segment + x->grad_at[u];
        x->weights[u] = s->t.share == SHARE_IN_PLACE ? s->published[u] : x->segment + x->weight_at[u];
        x->seen[u] = xcalloc(bytes, 1);
    }
}

static inline void sim_add_worker(struct sim *s, int w) {
    struct sim_worker *x = &s->workers[w];
    sim_place(s, x);
    x->shared = xcalloc((unsigned long)s->map->shards, sizeof *x->shared);
    for (int g = 0; g < s->map->shards; g++)
        x->shared[g] = s->t.share != SHARE_NOTHING && (s->t.share != SHARE_MIXED || w > 0 || g % 2 == 0);
    for (int u = 0; u < s->l->count; u++) {
        unsigned long n = (unsigned long)s->l->units[u].n_pad;
        x->init[u] = xcalloc(n, sizeof(float));
        toy_init(s->l, u, x->init[u]);
        if (s->t.share == SHARE_IN_PLACE) continue;  // they are loaded where they are read
        for (unsigned long i = 0; i < n; i++) dtype_store(s->t.dtype, x->weights[u], i, x->init[u][i]);
    }
    x->end = (struct sim_end){s, PS_WORKER, w};
    struct worker_core_options o = {.layout = s->l,
                                    .map = s->map,
                                    .dtype = s->t.dtype,
                                    .weights = x->weights,
                                    .grads = (const void *const *)x->grads,
                                    .shared = x->shared,
                                    .grad_at = x->grad_at,
                                    .weight_at = s->t.share == SHARE_IN_PLACE ? NULL : x->weight_at,
                                    .credit_bytes = 4096,
                                    .resend_s = 0.2,
                                    .heartbeat_s = 0.1,
                                    .lost_s = 1e6,
                                    .clock.apart = s->skew != 0,
                                    .start_s = sim_clock(s, x),
                                    .port = {&x->end, sim_send}};
    x->core = worker_core_create(&o);
}

// What shards record and replay, (shards) each; NULL: nothing.
struct sim_order {
    struct arrivals **record, **replay;
};

static inline void sim_add_shard(struct sim *s, int g, const struct sim_order *order) {
    s->shard_ends[g] = (struct sim_end){s, PS_SHARD, g};
    struct server_core_options o = {.layout = s->l,
                                    .map = s->map,
                                    .shard = g,
                                    .buffers = s->buffers,
                                    .rule = consistency_of(&s->c),
                                    .optimizer = s->c.optimizer,
                                    .dtype = s->t.dtype,
                                    .commit_round = commit_round(&s->c),
                                    .resend_s = 0.2,
                                    .job = SIM_JOB,
                                    .record = order && order->record ? order->record[g] : NULL,
                                    .replay = order && order->replay ? order->replay[g] : NULL,
                                    .port = {&s->shard_ends[g], sim_send}};
    s->shards[g] = server_core_create(&o);
    for (int w = 0; w < s->t.workers; w++) {
        const struct sim_worker *x = &s->workers[w];
        struct server_segment segment = {x->segment, x->segment_bytes};
        if (x->shared[g]) server_core_attach(s->shards[g], w, &segment);
    }
}

static inline struct sim *sim_create_ordered(const struct toy_case *t, double skew,
                                             const struct sim_order *order) {
    struct sim *s = xcalloc(1, sizeof *s);
    assert_true(t->steps <= SIM_STEPS && t->workers <= SIM_WORKERS);
    s->t = *t;
    s->skew = skew;
    s->l = toy_layout(t->workers, 80);
    s->c = toy_config(t);
    s->c.ps.deadline_ms = 1000000000;
    s->map = shard_map_of(&s->c, s->l);
    s->buffers = xcalloc((unsigned long)s->map->count, sizeof *s->buffers);
    for (int u = 0; u < s->l->count; u++)
        s->published[u] = xcalloc((unsigned long)s->l->units[u].n_pad, dtype_size(t->dtype));
    for (int k = 0; k < s->map->count; k++) {
        const struct partition *p = &s->map->parts[k];
        unsigned long n = (unsigned long)(p->end - p->begin);
        char *weight = (char *)s->published[p->unit] + (size_t)p->begin * dtype_size(t->dtype);
        s->buffers[k] =
            (struct server_buffers){xcalloc(n, 4), {xcalloc(n, 4), xcalloc(n, 4)}, weight, xcalloc(n, 4)};
    }
    s->workers = xcalloc((unsigned long)t->workers, sizeof *s->workers);
    s->shards = xcalloc((unsigned long)s->map->shards, sizeof(void *));
    s->shard_ends = xcalloc((unsigned long)s->map->shards, sizeof *s->shard_ends);
    s->scheduler_end = (struct sim_end){s, PS_SCHEDULER, 0};
    struct scheduler_options so = {.config = &s->c,
                                   .map = s->map,
                                   .manifest = {.hash = 5},
                                   .job = SIM_JOB,
                                   .port = {&s->scheduler_end, sim_send}};
    s->scheduler = scheduler_core_create(&so);
    for (int w = 0; w < t->workers; w++) sim_add_worker(s, w);
    for (int g = 0; g < s->map->shards; g++) sim_add_shard(s, g, order);
    for (int w = 0; w < t->workers; w++) sim_login(s, PS_WORKER, w, 0, w);
    for (int i = 0; i < t->servers; i++) sim_login(s, PS_SERVER, i, 0, i);
    for (int g = 0; g < s->map->shards; g++) sim_login(s, PS_SHARD, g / t->threads, g % t->threads, g);
    assert_int_equal(scheduler_core_tick(s->scheduler, s->now), 0);
    return s;
}
static inline struct sim *sim_create_skewed(const struct toy_case *t, double skew) {
    return sim_create_ordered(t, skew, NULL);
}
static inline struct sim *sim_create(const struct toy_case *t) { return sim_create_skewed(t, 0); }

// What is under way is lost.
static inline void sim_forget(struct sim *s) {
    for (int i = 0; i < s->count; i++) free(s->packets[i].payload);
    s->count = 0;
}

static inline void sim_destroy(struct sim *s) {
    sim_forget(s);
    for (int g = 0; g < s->map->shards; g++) server_core_destroy(&s->shards[g]);
    for (int w = 0; w < s->t.workers; w++) {
        worker_core_destroy(&s->workers[w].core);
        for (int u = 0; u < s->l->count; u++) {
            free(s->workers[w].seen[u]);
            free(s->workers[w].init[u]);
        }
        free(s->workers[w].segment);
        free(s->workers[w].shared);
    }
    for (int u = 0; u < s->l->count; u++) free(s->published[u]);
    for (int k = 0; k < s->map->count; k++) {
        free(s->buffers[k].master);
        for (int i = 0; i < OPTIMIZER_STATES_MAX; i++) free(s->buffers[k].state[i]);
        free(s->buffers[k].acc);
    }
    assert_int_equal(s->frames, 0);  // every received payload was released
    scheduler_core_destroy(&s->scheduler);
    shard_map_destroy(&s->map);
    layout_destroy(&s->l);
    free(s->packets);
    free(s->buffers);
    free(s->workers);
    free(s->shards);
    free(s->shard_ends);
    free(s);
}

static inline void sim_report(struct sim *s, struct sim_worker *x) {
    struct step_report r = {
        .in = {.step = x->step, .lr = TOY_LR, .clip = s->t.clip, .loss_scale = toy_loss_scale(&s->t)},
        .loss = toy_loss(&s->t, x->end.index, x->step),
        .ready_ns = ps_clock_ns(sim_clock(s, x))};
    if (consistency_of(&s->c).row->on_arrival) return;
    s->reported[x->step][x->end.index] = ps_clock_ns(s->now);
    worker_core_report(x->core, &r, sim_clock(s, x));
}

// One turn of a worker's training loop.
static inline void sim_work(struct sim *s, struct sim_worker *x) {
    const struct worker_status *now = worker_core_status(x->core);
    int busy = 0;
    bool landed = true, alone = consistency_of(&s->c).row->on_arrival;
    for (int u = 0; u < s->l->count; u++) {
        busy += worker_core_busy(x->core, u);
        landed = landed && worker_core_landed(x->core, u) >= x->step;
    }
    if (x->phase == SIM_LOADING && busy == 0) {
        worker_core_gather(x->core, NULL, 0, sim_clock(s, x));
        x->phase = SIM_BARRIER;
    } else if (x->phase == SIM_BARRIER && now->gathers_done == 1) {
        x->phase = SIM_COMPUTE;
    } else if (x->phase == SIM_COMPUTE && landed && busy == 0) {
        if (s->on_landed && x->step > 0) s->on_landed(s, x);
        if (x->step == s->t.steps) {
            x->phase = SIM_OVER;
            return;
        }
        for (int u = 0; u < s->l->count; u++) {
            toy_grad(&s->t, s->l, u, x->end.index, x->step, x->weights[u], x->grads[u]);
            memcpy(x->seen[u], x->weights[u], (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
        }
        x->pushed = 0;
        if (s->report_first) sim_report(s, x);
        x->phase = SIM_PUSHING;
    } else if (x->phase == SIM_PUSHING && x->pushed < s->l->count) {
        struct push_info p = {
            .step = x->step, .lr = TOY_LR, .grad_scale = 1.0f, .ready_ns = ps_clock_ns(sim_clock(s, x))};
        int u = s->l->count - 1 - x->pushed++;
        s->handed[x->step][u][x->end.index] = ps_clock_ns(s->now);
        // Until its push a unit's weights are what the step has computed on.
        assert_memory_equal(x->seen[u], x->weights[u], (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
        worker_core_push_unit(x->core, u, &p);
    } else if (x->phase == SIM_PUSHING) {
        if (!s->report_first) sim_report(s, x);
        x->phase = SIM_CLOSING;
    } else if (x->phase == SIM_CLOSING) {
        x->last = now->stats;
        if (!alone && now->steps_done <= x->step) return;
        if (!x->last.skipped) x->updates++;
        x->step++;
        x->phase = SIM_COMPUTE;
    }
}

static inline bool sim_over(const struct sim *s) {
    for (int w = 0; w < s->t.workers; w++)
        if (s->workers[w].phase != SIM_OVER) return false;
    return true;
}

// Runs until every worker has finished its steps.
static inline void sim_run(struct sim *s) {
    for (int u = 0; u < s->l->count; u++)
        worker_core_init_unit(s->workers[0].core, u, s->workers[0].init[u], 1);
    for (int64_t i = 0; !sim_over(s); i++) {
        assert_true(i < 4000000);
        s->now += 0.001;
        if (s->count > 0) assert_int_equal(sim_deliver(s), 0);
        struct sim_worker *x = &s->workers[sim_draw(s, (uint64_t)s->t.workers)];
        sim_work(s, x);
        assert_int_equal(worker_core_tick(x->core, sim_clock(s, x)), 0);
        assert_int_equal(server_core_tick(s->shards[sim_draw(s, (uint64_t)s->map->shards)], s->now), 0);
        assert_int_equal(scheduler_core_tick(s->scheduler, s->now), 0);
    }
}

#endif
