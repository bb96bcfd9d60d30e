// The whole star without sockets or threads: cores joined by a network that shuffles, drops, repeats
// and delays messages as a counter-based generator says, so that every run can be repeated.
#ifndef STARRING_TESTS_PS_TEST_PS_SIM_H
#define STARRING_TESTS_PS_TEST_PS_SIM_H
#include "ps/job/batches.h"
#include "ps/net/medium.h"
#include "tests/ps_loss/sim_network.h"

// The address of scheduler member i, whose process is 100 * (role + 1) + its index.
static inline void sim_come(struct sim *s, enum ps_role role, int index) {
    bool server = role == PS_SERVER;
    met_joins_epoch(s->scheduler, index + (server ? s->t.workers : 0), sim_incarnation(role, index),
                    100 * ((int)role + 1) + index, server ? s->t.threads : 0, s->now);
}

// Where the worker's buffers lie: what frames leave where it is may as well lie in a segment.
static inline void sim_place(struct sim *s, struct sim_worker *x) {
    uint64_t at = 64, unit_at[TOY_UNITS];
    int slots = 1 + s->t.lead;
    for (int u = 0; u < s->l->count; u++) {
        unit_at[u] = at;
        at += (1 + (uint64_t)slots) * (uint64_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
    }
    x->segment_bytes = (size_t)at;
    x->segment = xcalloc(x->segment_bytes, 1);
    x->buffers = (struct worker_buffers){.units = s->l->count,
                                         .lead = s->t.lead,
                                         .wire_weights = x->weights,
                                         .wire_grads = x->grads,
                                         .grad_at = x->grad_at,
                                         .weight_at = x->weight_at};
    // Two units at a time: all even ones lie at one place, and all odd ones, each as large as the last unit is.
    size_t slot = (size_t)s->l->units[s->l->count - 1].n_pad * dtype_size(s->t.dtype);
    for (int u = 0; u < s->l->count && s->t.micro; u++) unit_at[u] = 64 + (uint64_t)(u & 1) * 2 * slot;
    for (int u = 0; u < s->l->count; u++) {
        size_t bytes = (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype);
        if (s->t.micro) bytes = slot;
        x->weight_at[u] = unit_at[u];
        for (int i = 0; i < slots; i++) {
            x->grad_at[i * s->l->count + u] = unit_at[u] + (1 + (uint64_t)i) * bytes;
            x->grads[i * s->l->count + u] = x->segment + x->grad_at[i * s->l->count + u];
        }
        x->weights[u] = s->t.share == SHARE_IN_PLACE ? s->published[u] : x->segment + x->weight_at[u];
        x->seen[u] = xcalloc(bytes, 1);
    }
}

static inline int sim_lag(const struct sim *s) {
    int least = s->t.micro ? consistency_of(&s->c).lag : s->t.lead;
    return s->t.lag > least ? s->t.lag : least;
}

// With a lead workers may be as far behind the newest weights, too.
static inline struct consistency_rule sim_rule(const struct sim *s) {
    struct consistency_rule rule = consistency_of(&s->c);
    if (s->t.lead) rule.delay = rule.lead = s->t.lead;
    return rule;
}

static inline void sim_start_worker(struct sim *s, struct sim_worker *x) {
    if (!x->link) x->link = sim_link(&x->end, s->map->shards);
    struct worker_core_options o = {.rank = x->end.index,
                                    .rule = sim_rule(s),
                                    .layout = s->l,
                                    .map = s->map,
                                    .dtype = s->t.dtype,
                                    .buffers = &x->buffers,
                                    .shared = x->shared,
                                    .in_place = s->t.share == SHARE_IN_PLACE,
                                    .credit_bytes = s->t.credit_bytes ? s->t.credit_bytes : 4096,
                                    .heartbeat_s = 0.1,
                                    .lost_s = 1e6,
                                    .clock.other_host = s->skew != 0,
                                    .port = star_link_port(x->link)};
    o.rule.lag = sim_lag(s);
    x->core = worker_core_create(&o);
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
    x->end = (struct sim_end){.sim = s, .role = PS_WORKER, .index = w, .life = ps_elastic(&s->c) ? 1 : 0};
    sim_start_worker(s, x);
}

// The recordings and replays of shards, (shards) each; NULL: nothing. The workers that keep their keys; the step
// that the job begins with.
struct sim_order {
    struct arrivals **record, **replay;
    int64_t (*recorded)(void *ctx, int worker, int64_t step);
    void *ctx;
    struct keep_port keep;
    int64_t start;
};

static inline void sim_add_shard(struct sim *s, int g, const struct sim_order *order) {
    s->shard_ends[g] = (struct sim_end){.sim = s, .role = PS_SHARD, .index = g};
    s->shard_links[g] = sim_link(&s->shard_ends[g], s->t.workers);
    const struct consistency_rule rule = sim_rule(s);
    struct server_core_options o = {.config = &s->c,
                                    .rule = &rule,
                                    .layout = s->l,
                                    .map = s->map,
                                    .shard = g,
                                    .buffers = s->buffers,
                                    .job = SIM_JOB,
                                    .record = order && order->record ? order->record[g] : NULL,
                                    .replay = order && order->replay ? order->replay[g] : NULL,
                                    .keep = order ? order->keep : (struct keep_port){0},
                                    .port = star_link_port(s->shard_links[g])};
    s->shards[g] = server_core_create(&o);
    for (int w = 0; w < s->t.workers; w++)
        server_core_member(s->shards[g], w, sim_incarnation(PS_WORKER, w), s->workers[w].end.life);
    for (int w = 0; w < s->t.workers; w++) {
        const struct sim_worker *x = &s->workers[w];
        struct server_segment segment = {x->segment, x->segment_bytes};
        if (x->shared[g]) server_core_attach(s->shards[g], w, &segment);
    }
}

static inline struct sim *sim_create_ordered(const struct toy_case *t, double skew,
                                             const struct sim_order *order) {
    struct sim *s = xcalloc(1, sizeof *s);
    assert_true(t->steps <= SIM_STEPS && t->workers <= SIM_WORKERS && t->lead < SIM_SLOTS);
    s->t = *t;
    s->asleep = -1;
    s->repeat_s = t->repeat_s > 0 ? t->repeat_s : 0.2;
    s->skew = skew;
    s->l = toy_layout(t->workers, t->rows ? t->rows : 80);
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
        bool table = consistency_of(&s->c).row->ordered;  // a sum and the model of each worker
        bool keeps = t->oldest || (t->lead && order && order->replay);
        void *old = keeps ? xcalloc(n * (unsigned long)t->lead, dtype_size(t->dtype)) : NULL;
        s->buffers[k] =
            (struct server_buffers){xcalloc(n, 4),
                                    {xcalloc(n, 4), xcalloc(n, 4)},
                                    weight,
                                    xcalloc(n, 4),
                                    t->micro > 1 || t->group || table ? xcalloc(n, 4) : NULL,
                                    t->lambda > 0 || table ? xcalloc(n * (unsigned long)t->workers, 4) : NULL,
                                    t->decay > 0 || table ? xcalloc(n * (unsigned long)t->workers, 4) : NULL,
                                    old};
    }
    s->workers = xcalloc((unsigned long)t->workers, sizeof *s->workers);
    s->shards = xcalloc((unsigned long)s->map->shards, sizeof(void *));
    s->shard_ends = xcalloc((unsigned long)s->map->shards, sizeof *s->shard_ends);
    s->routes = xcalloc((unsigned long)((s->map->shards + 1) * t->workers), sizeof *s->routes);
    s->shard_links = xcalloc((unsigned long)s->map->shards, sizeof(void *));
    s->scheduler_end = (struct sim_end){.sim = s, .role = PS_SCHEDULER};
    s->scheduler_link = sim_link(&s->scheduler_end, t->workers + t->servers + s->map->shards);
    struct scheduler_options so = {.config = &s->c,
                                   .map = s->map,
                                   .lead = sim_lag(s),
                                   .manifest = {.hash = 5},
                                   .job = SIM_JOB,
                                   .start.step = order ? order->start : 0,
                                   .host.recorded = order ? order->recorded : NULL,
                                   .host.ctx = order ? order->ctx : NULL,
                                   .port = star_link_port(s->scheduler_link),
                                   .publish = met_port(&s->met)};
    s->scheduler = scheduler_core_create(&so);
    for (int w = 0; w < t->workers; w++) sim_add_worker(s, w);
    for (int g = 0; g < s->map->shards; g++) sim_add_shard(s, g, order);
    for (int w = 0; w < t->workers; w++) sim_come(s, PS_WORKER, w);
    for (int i = 0; i < t->servers; i++) sim_come(s, PS_SERVER, i);
    assert_int_equal(scheduler_core_tick(s->scheduler, s->now), 0);
    return s;
}
static inline struct sim *sim_create_skewed(const struct toy_case *t, double skew) {
    return sim_create_ordered(t, skew, NULL);
}
static inline struct sim *sim_create(const struct toy_case *t) { return sim_create_skewed(t, 0); }

// Messages in flight are lost.
static inline void sim_forget(struct sim *s) {
    for (int i = 0; i < s->count; i++) free(s->packets[i].payload);
    s->count = 0;
}

static inline void sim_destroy(struct sim *s) {
    sim_forget(s);
    for (int g = 0; g < s->map->shards; g++) {
        link_destroy(&s->shard_links[g]);
        server_core_destroy(&s->shards[g]);
    }
    for (int w = 0; w < s->t.workers; w++) {
        link_destroy(&s->workers[w].link);
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
        free(s->buffers[k].part_acc);
        free(s->buffers[k].pulled);
        free(s->buffers[k].own);
        free(s->buffers[k].old);
    }
    assert_int_equal(s->frames, 0);  // every received payload was released
    scheduler_core_destroy(&s->scheduler);
    shard_map_destroy(&s->map);
    layout_destroy(&s->l);
    for (int i = 0; i < s->news_count; i++) free(s->news[i].n.data);
    free(s->news);
    free(s->packets);
    free(s->buffers);
    free(s->workers);
    free(s->shards);
    free(s->shard_ends);
    free(s->shard_links);
    free(s->routes);
    link_destroy(&s->scheduler_link);
    free(s);
}

static inline void sim_report(struct sim *s, struct sim_worker *x) {
    struct step_report r = {
        .in = {.step = x->step, .lr = TOY_LR, .clip = s->t.clip, .loss_scale = toy_loss_scale(&s->t)},
        .loss = toy_loss(&s->t, x->end.index, x->step),
        .ready_ns = ps_clock_ns(sim_clock(s, x))};
    if (consistency_of(&s->c).row->on_arrival) return;
    s->reported[x->step][x->end.index] = ps_clock_ns(s->now);
    worker_core_report(x->core, &r);
}

// Asks for the batch of its step.
static inline void sim_take(struct sim_worker *x) {
    worker_core_take(x->core, x->step, x->asked ? NULL : x->done);
    x->asked = x->step + 1;
}

// One turn of a worker's training loop.
static inline void sim_work(struct sim *s, struct sim_worker *x) {
    const struct worker_status *now = worker_core_status(x->core);
    int busy = 0, lead = s->t.lead, slot = worker_slot_of(x->step, lead) * s->l->count;
    bool landed = true, alone = consistency_of(&s->c).row->on_arrival;
    for (int u = 0; u < s->l->count; u++) {
        busy += worker_core_busy(x->core, u, x->step);
        landed = landed && worker_core_landed(x->core, u) >= x->step - (s->ahead ? lead : 0);
    }
    if (x->phase == SIM_LOADING && busy == 0) {
        worker_core_gather(x->core, NULL, 0);
        x->phase = SIM_BARRIER;
    } else if ((x->phase == SIM_BARRIER && now->gathers_done == 1) ||
               (x->phase == SIM_RESUMING && now->pulling == 0)) {
        x->phase = SIM_COMPUTE;
    } else if (x->phase == SIM_COMPUTE && landed && busy == 0) {
        if (alone && x->asked <= x->step) sim_take(x);
        if (alone && now->taken_step != x->step) return;
        if (x->step == s->t.steps && lead && (now->steps_done < x->step || worker_core_transferring(x->core)))
            return;
        if (s->on_landed && x->step > 0 && (!lead || x->step < s->t.steps)) s->on_landed(s, x);
        if (alone ? now->taken < 0 : x->step == s->t.steps) {
            x->phase = SIM_OVER;
            return;
        }
        x->batch = alone ? now->taken : x->step * s->t.workers + x->end.index;
        x->batches++;
        for (int u = 0; u < s->l->count; u++) {
            toy_grad(&s->t, s->l, u, (int)(x->batch % s->t.workers), x->batch / s->t.workers, x->weights[u],
                     x->grads[slot + u]);
            memcpy(x->seen[u], x->weights[u], (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
        }
        x->pushed = 0;
        if (s->report_first) sim_report(s, x);
        x->phase = SIM_PUSHING;
    } else if (x->phase == SIM_PUSHING && x->pushed < s->l->count) {
        struct push_info p = {
            .step = x->step, .lr = TOY_LR, .grad_scale = 1.0f, .ready_ns = ps_clock_ns(sim_clock(s, x))};
        p.batch = x->batch;
        p.tokens = x->tokens;
        p.mean_tokens = x->mean_tokens;
        p.keep = x->end.index == 0 && s->keep_every && (x->step + 1) % s->keep_every == 0;
        if (s->decides) s->decides(s, x, &p);
        p.drain = lead && s->keep_every && (x->step + 1) % s->keep_every == 0;
        int u = s->l->count - 1 - x->pushed++;
        s->handed[x->step][u][x->end.index] = ps_clock_ns(s->now);
        // Until its push a unit's weights are what the step has computed on.
        if (!s->ahead)
            assert_memory_equal(x->seen[u], x->weights[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
        worker_core_push_unit(x->core, u, &p);
    } else if (x->phase == SIM_PUSHING) {
        if (!s->report_first) sim_report(s, x);
        x->phase = SIM_CLOSING;
    } else if (x->phase == SIM_CLOSING) {
        int lag = sim_lag(s);
        if (!alone && now->steps_done + lag <= x->step) return;
        if (!alone && x->step >= lag) x->last = worker_core_outcome(x->core, x->step - lag)->stats;
        if (!x->last.skipped) x->updates++;
        x->step++;
        x->phase = SIM_COMPUTE;
        if (alone) sim_take(x);  // the answer is on its way while the weights are
    }
}

static inline bool sim_over(const struct sim *s) {
    for (int w = 0; w < s->t.workers; w++)
        if (s->workers[w].phase != SIM_OVER) return false;
    return true;
}

// Runs until every worker has finished its steps, or for so many turns.
static inline void sim_go_on(struct sim *s, int64_t turns) {
    for (int64_t i = 0; !sim_over(s) && i < turns; i++) {
        assert_true(i < 4000000);
        s->now += 0.001;
        if (s->on_turn) s->on_turn(s);
        if (s->count > 0) assert_int_equal(sim_deliver(s), 0);
        struct sim_worker *x = &s->workers[sim_draw(s, (uint64_t)s->t.workers)];
        if (x->end.index != s->asleep || x->step != 1 || s->now >= s->wake) {
            sim_work(s, x);
            assert_int_equal(sim_tick_worker(s, x), 0);
        }
        assert_int_equal(sim_tick_shard(s, (int)sim_draw(s, (uint64_t)s->map->shards)), 0);
        assert_int_equal(sim_tick_scheduler(s), 0);
    }
}

static inline void sim_run_for(struct sim *s, int64_t turns) {
    for (int u = 0; u < s->l->count; u++)
        worker_core_init_unit(s->workers[0].core, u, s->workers[0].init[u], 1);
    sim_go_on(s, turns);
}
static inline void sim_run(struct sim *s) { sim_run_for(s, INT64_MAX); }

// No worker pushes any more, and all pull the last weights.
static inline void sim_end(struct sim *s) {
    for (int w = 0; w < s->t.workers; w++)
        worker_core_pull_all(s->workers[w].core, WIRE_STOP, sim_clock(s, &s->workers[w]));
    for (int open = 1, i = 0; open; i++) {
        assert_true(i < 4000000);
        s->now += 0.001;
        if (s->on_turn) s->on_turn(s);
        if (s->count > 0) assert_int_equal(sim_deliver(s), 0);
        assert_int_equal(sim_tick_worker(s, &s->workers[sim_draw(s, (uint64_t)s->t.workers)]), 0);
        assert_int_equal(sim_tick_shard(s, (int)sim_draw(s, (uint64_t)s->map->shards)), 0);
        assert_int_equal(sim_tick_scheduler(s), 0);
        open = 0;
        for (int w = 0; w < s->t.workers; w++) open += worker_core_status(s->workers[w].core)->pulling;
    }
}

// A worker goes on at a step, with weights that it has yet to pull.
static inline void sim_resume(struct sim *s, int w, int64_t step) {
    struct sim_worker *x = &s->workers[w];
    for (int u = 0; u < s->l->count && s->t.share != SHARE_IN_PLACE; u++)
        memset(x->weights[u], 0, (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
    x->step = step;
    x->phase = SIM_RESUMING;
    worker_core_begin(x->core, step);
    worker_core_pull_all(x->core, 0, sim_clock(s, x));
}

#endif
