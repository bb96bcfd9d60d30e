// The simulated star's state, and the network between its cores: it shuffles, drops, repeats and delays messages as a
// counter-based generator says, or passes them in order at a rate.
#ifndef STARRING_TESTS_PS_LOSS_SIM_NETWORK_H
#define STARRING_TESTS_PS_LOSS_SIM_NETWORK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ps/net/link.h"
#include "ps/scheduler/scheduler_core.h"
#include "ps/server/server_core.h"
#include "ps/worker/worker_core.h"
#include "shared/core/numbers.h"
#include "tests/ps/test_ps_toy.h"
#include "tests/ps_loss/sim_meeting.h"

#define SIM_JOB     4711
#define SIM_STEPS   8
#define SIM_WORKERS 4
#define SIM_SLOTS   3  // steps that are open at once, at most

struct sim_end {  // one port
    struct sim *sim;
    enum ps_role role;
    int index;             // worker rank, shard number
    uint64_t incarnation;  // 0: sim_incarnation's
    uint32_t life;
};

struct sim_packet {
    struct sim_end from, to;
    struct wire_header header;
    void *payload;
    size_t bytes;
    _Atomic int *inflight;
    double due;  // with a rate: when its last byte arrives
};

// Payloads of one kind that were sent behind headers, and those of them that were lost.
struct sim_payloads {
    uint64_t sent, lost;
};

enum sim_phase { SIM_LOADING, SIM_RESUMING, SIM_BARRIER, SIM_COMPUTE, SIM_PUSHING, SIM_CLOSING, SIM_OVER };

struct sim_worker {
    struct sim_end end;
    struct worker_core *core;
    struct link *link;
    char *segment;  // holds the grads, and the weights unless they are in place
    size_t segment_bytes;
    uint64_t grad_at[SIM_SLOTS * TOY_UNITS], weight_at[TOY_UNITS];
    bool *shared;  // (shards)
    void *weights[TOY_UNITS], *grads[SIM_SLOTS * TOY_UNITS],
        *seen[TOY_UNITS];  // seen: what the step computes on
    float *init[TOY_UNITS];
    struct worker_buffers buffers;  // of the arrays above
    enum sim_phase phase;
    int64_t step, updates;
    int pushed;
    struct step_stats last;
    // Where workers share a budget: steps asked for; the batch in hand; what is done already (first step), or NULL.
    int64_t asked, batch, batches;
    const struct wire_header *done;
    int64_t tokens, mean_tokens;  // that it says of the batch in hand; 0: nothing
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
    struct link **shard_links, *scheduler_link;
    // (shards + 1, workers): incarnation of the process that each shard, and behind them the scheduler, answers to; 0: the first
    uint64_t *routes;
    struct sim_end scheduler_end;
    struct scheduler_core *scheduler;
    struct met met;
    struct sim_news {
        struct member_news n;
        double due;
    } * news;  // that are on their way, in order of each member
    int news_count, news_room;
    struct sim_packet *packets;
    int count, capacity;
    double now;
    int drop_percent, repeat_percent;
    bool in_order;
    bool
        report_first;  // a device's gradients may still be on their way to the host when its step is reported
    uint64_t draws;
    // Where chances come from: below n. NULL: numbers that the case's seed makes.
    uint64_t (*draw)(struct sim *s, uint64_t n);
    int frames;   // alive
    double skew;  // worker w's clock is (w + 1) * skew seconds ahead of the scheduler's
    int looks;    // for on_landed
    // Moments of the scheduler's clock, nanoseconds.
    int64_t handed[SIM_STEPS * SIM_WORKERS][TOY_UNITS][SIM_WORKERS],
        reported[SIM_STEPS * SIM_WORKERS][SIM_WORKERS];
    double repeat_s;           // of all links
    double rate;               // bytes a second that leave one end, in order; 0: no time passes
    double free[PS_ROLES][8];  // with a rate: when an end has sent all
    int asleep;  // this worker neither computes nor speaks in its second step before wake; -1: none
    double wake;
    uint64_t sent;  // messages
    struct sim_payloads payloads[WIRE_KINDS];
    // May take a packet for itself: the frame is then its own to release. NULL: all go where they go.
    bool (*takes)(struct sim *s, const struct sim_packet *p, struct wire_header *h, struct ps_frame *frame);
    // Of shards that are the test's own (takes): star_link_options.renew. NULL: they are the star's.
    bool (*renews)(struct sim *s, int g, int peer, struct ps_message *m);
    bool ahead;  // with a lead: weights of so many steps before will do to compute on
    void (*on_landed)(struct sim *s,
                      struct sim_worker *x);  // x->step's weights have, its own next one begins
    int keep_every;                           // steps; 0: worker 0 marks none
    void (*on_turn)(struct sim *s);
    // The report of a worker that decides by itself about its step: scale, skip.
    void (*decides)(const struct sim *s, const struct sim_worker *x, struct push_info *p);
    void *ctx;  // of on_turn
};

static inline uint64_t sim_incarnation(enum ps_role role, int index) {
    return 1000 + 100 * (uint64_t)role + (uint64_t)index;
}
// A shard is of its server's process.
static inline uint64_t sim_process(const struct sim_end *e) {
    int threads = e->sim->t.threads;
    if (e->incarnation) return e->incarnation;
    return e->role == PS_SHARD ? sim_incarnation(PS_SERVER, e->index / threads)
                               : sim_incarnation(e->role, e->index);
}

static inline uint64_t sim_draw(struct sim *s, uint64_t n) {
    return s->draw ? s->draw(s, n) : rng_below(s->t.seed, s->draws++, 99, n);
}

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
    if (i < s->t.servers) return (struct sim_end){.sim = (struct sim *)s, .role = PS_SERVER, .index = i};
    return s->shard_ends[i - s->t.servers];
}

// When a message that its end sends now has arrived.
static inline void sim_time(struct sim *s, struct sim_packet *p) {
    double *end = &s->free[p->from.role][p->from.index];
    if (s->rate == 0) return;
    *end = fmax(*end, s->now) + (double)(p->bytes + 100) / s->rate;
    p->due = *end;
}

static inline void sim_send(void *ctx, int peer, const struct ps_message *m) {
    struct sim_end *from = ctx;
    struct sim *s = from->sim;
    struct sim_packet p = {.from = *from, .header = m->header, .bytes = m->bytes};
    if (from->role == PS_SCHEDULER)
        p.to = sim_member(s, peer);
    else if (peer == PEER_SCHEDULER)
        p.to = s->scheduler_end;
    else if (from->role == PS_WORKER)
        p.to = s->shard_ends[peer];
    else
        p.to = s->workers[peer].end;
    int row = from->role == PS_SCHEDULER ? s->map->shards : from->index;
    bool routed = p.to.role == PS_WORKER && s->routes;
    uint64_t route = routed ? s->routes[row * s->t.workers + peer] : 0;
    if (route) p.to.incarnation = route == sim_incarnation(PS_WORKER, peer) ? 0 : route;
    if (p.to.role == PS_SERVER) return;  // a server's main thread is not part of the simulation
    p.header.role = from->role;
    p.header.rank = from->role == PS_SHARD ? from->index / s->t.threads : from->index;
    p.header.thread = from->role == PS_SHARD ? from->index % s->t.threads : 0;
    p.header.job = SIM_JOB;
    p.header.incarnation = sim_process(from);
    if (from->role == PS_WORKER) p.header.process_no = from->life;
    // As the scheduler's sockets do: workers compare their clocks with it.
    if (p.header.kind == WIRE_HEARTBEAT_ACK) p.header.peers_ready_ns = ps_clock_ns(s->now);
    // The receiver hears what the wire carries of it.
    uint8_t bytes[WIRE_HEADER_MAX];
    size_t n = wire_encode(&p.header, bytes);
    if (!n || wire_decode(bytes, n, p.bytes, &p.header) != 0)
        fail_msg("a %s cannot be said on the wire", wire_kind_name(p.header.kind));
    for (int copies = sim_draw(s, 100) < (uint64_t)s->repeat_percent ? 2 : 1; copies > 0; copies--) {
        p.payload = NULL;
        if (m->bytes) {
            p.payload = xcalloc(m->bytes, 1);
            memcpy(p.payload, m->payload, m->bytes);
        }
        s->sent++;
        if (m->bytes) s->payloads[m->header.kind].sent++;
        sim_time(s, &p);
        // On a slow link the kernel has taken what nobody has got yet.
        p.inflight = copies == 1 && s->rate == 0 ? m->inflight : NULL;
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

// The packet that is next: the oldest, or any; with a rate the first to arrive, -1 before it has.
static inline int sim_next(struct sim *s) {
    int first = 0;
    if (s->rate == 0) return s->in_order ? 0 : (int)sim_draw(s, (uint64_t)s->count);
    for (int i = 1; i < s->count; i++)
        if (s->packets[i].due < s->packets[first].due) first = i;
    return s->packets[first].due <= s->now ? first : -1;
}

// ---------------------------------------------------------------- links
static inline bool sim_renew(void *ctx, int peer, struct ps_message *m) {
    const struct sim_end *end = ctx;
    struct sim *s = end->sim;
    if (end->role == PS_WORKER) return worker_core_renew(s->workers[end->index].core, &m->header);
    if (s->renews) return s->renews(s, end->index, peer, m);
    return server_core_renew(s->shards[end->index], peer, m);
}

static inline struct link *sim_link(struct sim_end *end, int peers) {
    return star_link_create(&(struct star_link_options){.peers = peers,
                                                        .repeat_most_s = end->sim->repeat_s,
                                                        .network = {end, sim_send},
                                                        .renew = end->role == PS_SCHEDULER ? NULL : sim_renew,
                                                        .ctx = end});
}

static inline int sim_tick_worker(struct sim *s, struct sim_worker *x) {
    for (int g = 0; g < s->map->shards; g++) link_await(x->link, g, worker_core_awaits_answer(x->core, g));
    link_tick(x->link, sim_clock(s, x));
    return worker_core_tick(x->core, sim_clock(s, x));
}
static inline int sim_tick_shard(struct sim *s, int g) {
    link_tick(s->shard_links[g], s->now);
    return server_core_tick(s->shards[g], s->now);
}
// The registry says something of a member; it comes behind what it has said of it before.
static inline void sim_news(struct sim *s, struct member_news n) {
    double due = s->now + 0.001 * (double)sim_draw(s, 40);
    for (int i = 0; i < s->news_count; i++)
        if (s->news[i].n.member == n.member) due = fmax(due, s->news[i].due);
    if (s->news_count == s->news_room) {
        s->news_room = s->news_room ? 2 * s->news_room : 16;
        s->news = xrealloc(s->news, (unsigned long)s->news_room * sizeof *s->news);
    }
    s->news[s->news_count++] = (struct sim_news){n, due};
}

static inline int sim_tick_scheduler(struct sim *s) {
    for (int i = 0; i < s->news_count;) {
        struct member_news n = s->news[i].n;
        if (s->news[i].due > s->now) {
            i++;
            continue;
        }
        memmove(&s->news[i], &s->news[i + 1], (size_t)(--s->news_count - i) * sizeof *s->news);
        met_tell(s->scheduler, n, s->now);
    }
    link_tick(s->scheduler_link, s->now);
    return scheduler_core_tick(s->scheduler, s->now);
}

static inline int sim_hear_scheduler(struct sim *s, struct wire_header *h, struct ps_frame *f) {
    int member = scheduler_core_sender_of(s->scheduler, h);
    if (member >= 0) star_link_receive(s->scheduler_link, member, h, s->now);
    if (member >= 0 && member < s->t.workers)
        s->routes[s->map->shards * s->t.workers + member] = h->incarnation;
    scheduler_core_message(s->scheduler, h, s->now);
    ps_frame_release(f);
    return scheduler_core_error(s->scheduler)[0] ? -1 : 0;
}

static inline int sim_hear_shard(struct sim *s, const struct sim_packet *p, struct wire_header *h,
                                 struct ps_frame *f) {
    struct server_core *core = s->shards[p->to.index];
    struct link *link = s->shard_links[p->to.index];
    if (p->from.role == PS_SCHEDULER) {
        ps_frame_release(f);
        star_link_receive(link, PEER_SCHEDULER, h, s->now);
        if (h->kind != WIRE_DECISION && h->kind != WIRE_SET && h->kind != WIRE_MEMBER) return 0;
        return server_core_decision(core, h, s->now);
    }
    if (server_core_accepts_sender(core, h)) {
        s->routes[p->to.index * s->t.workers + p->from.index] = h->incarnation;
        if (!star_link_receive(link, p->from.index, h, s->now)) {
            ps_frame_release(f);
            return 0;
        }
    }
    return server_core_message(core, h, f, s->now);
}

// Takes one packet off the network. Every header passes the codec on its way.
static inline int sim_deliver(struct sim *s) {
    int i = sim_next(s);
    if (i < 0) return 0;
    struct sim_packet p = s->packets[i];
    uint8_t bytes[WIRE_HEADER_MAX];
    memmove(&s->packets[i], &s->packets[i + 1], (size_t)(s->count - i - 1) * sizeof p);
    s->count--;
    if (p.inflight) atomic_fetch_sub(p.inflight, 1);
    if (sim_draw(s, 100) < (uint64_t)s->drop_percent) {
        if (p.bytes) s->payloads[p.header.kind].lost++;
        free(p.payload);
        return 0;
    }
    struct wire_header h;
    size_t n = wire_encode(&p.header, bytes);
    assert_int_equal(wire_decode(bytes, n, p.bytes, &h), 0);
    struct ps_frame *f = sim_frame(s, p.payload, p.bytes);
    if (s->takes && s->takes(s, &p, &h, f)) return 0;
    if (p.to.role == PS_SCHEDULER) return sim_hear_scheduler(s, &h, f);
    if (p.to.role == PS_SHARD) return sim_hear_shard(s, &p, &h, f);
    int peer = p.from.role == PS_SCHEDULER ? PEER_SCHEDULER : p.from.index;
    struct sim_worker *x = &s->workers[p.to.index];
    star_link_receive(x->link, peer, &h, sim_clock(s, x));
    void *to = worker_core_target(x->core, peer, &h, f);
    if (to) memcpy(to, f->data, f->bytes);
    return worker_core_message(x->core, peer, &h, f, sim_clock(s, x));
}

#endif
