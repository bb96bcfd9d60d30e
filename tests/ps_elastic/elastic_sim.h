// Simulated jobs whose workers die and come back (--elastic), or come too late (ps:backup:B, ps:quorum:Q), and the plain trainer
// that is told who belonged to each step and whose gradients counted.
#ifndef STARRING_TESTS_PS_ELASTIC_ELASTIC_SIM_H
#define STARRING_TESTS_PS_ELASTIC_ELASTIC_SIM_H

#include "tests/ps/test_ps_sim.h"

// The outcome of the workers, and what the scheduler made of it.
struct fate {
    struct sim *sim;
    uint64_t members[SIM_STEPS + 1], set[SIM_STEPS];  // of each step
    int kills, joins;                                 // that are left to happen, at random; joins done
    bool told;  // the scheduler hears of a death from a launcher; else from the process that takes the rank
    double dead_s[SIM_WORKERS];
    bool dead[SIM_WORKERS], hears[SIM_WORKERS];  // dead; its successor has come and waits
    uint64_t book[SIM_WORKERS];   // the life that the registry has; 0: none, or not looked at yet
    double reads_s[SIM_WORKERS];  // until then it reads its files
    bool ready[SIM_WORKERS], started[SIM_WORKERS], asked[SIM_WORKERS];
    struct step_opening opening[SIM_WORKERS];
    bool dealt[SIM_WORKERS];
    int slow[SIM_WORKERS];                       // of 100 turns it does nothing in so many
    bool behind[SIM_WORKERS];                    // the last step was over before it came to it
    int64_t jump[SIM_WORKERS];                   // the step whose weights it has asked for
    bool uneven;                                 // workers' batches have tokens_of them; else they do not say
    int late[SIM_WORKERS], missed[SIM_WORKERS];  // steps that it has computed in vain; that were over
    int further;    // answers to pushes with weights of a later step than the one behind them
    int stale;      // pushes acknowledged as of no update
    char *old[64];  // segments of dead processes: mapped as long as a server may look
    int olds;
    uint64_t incarnations;
};
static struct fate *fate;  // one simulation at a time

static inline int64_t tokens_of(int64_t sample) { return fate->uneven ? 1 + sample * 7919 % 97 : 0; }
// The samples of the global batch that begins with sample `dealt`.
static inline int64_t mean_tokens_of(const struct sim *s, int64_t dealt) {
    int64_t sum = 0;
    for (int i = 0; i < s->t.workers; i++) sum += tokens_of(dealt + i);
    return sum;
}

static inline int process_of(const struct sim_worker *x) {
    return (int)(x->end.incarnation ? x->end.incarnation : 100 + (uint64_t)x->end.index);
}

// ---------------------------------------------------------------- death
static inline void kill_worker(struct sim *s, int w) {
    struct sim_worker *x = &s->workers[w];
    for (int i = 0; i < s->count; i++)
        if (s->packets[i].from.role == PS_WORKER && s->packets[i].from.index == w)
            s->packets[i].inflight = NULL;  // what has left goes on its way
    link_destroy(&x->link);
    worker_core_destroy(&x->core);
    fate->dead[w] = true;
    fate->hears[w] = fate->ready[w] = fate->started[w] = fate->asked[w] = fate->dealt[w] = false;
    fate->dead_s[w] = s->now;
}

// Its connection has closed.
static inline void book_loses(struct sim *s, int w, const char *how) {
    uint64_t life = sim_process(&s->workers[w].end);
    if (s->met.out[w] != life && fate->book[w] != life) sim_news(s, met_lost(w, life, how, 0));
    fate->book[w] = life;  // once
}

// Another process is started for the rank.
static inline void replace_worker(struct sim *s, int w) {
    struct sim_worker *x = &s->workers[w];
    fate->old[fate->olds++] = x->segment;
    for (int u = 0; u < s->l->count; u++) free(x->seen[u]);
    sim_place(s, x);
    book_loses(s, w, "replaced");
    x->end = (struct sim_end){
        .sim = s, .role = PS_WORKER, .index = w, .incarnation = 70000 + ++fate->incarnations};
    x->link = sim_link(&x->end, s->map->shards);
    sim_news(s, met_came(w, x->end.incarnation, process_of(x)));
    fate->hears[w] = true;
    fate->reads_s[w] = s->now + 0.001 * (double)sim_draw(s, 200);
}

// Such a process does this until it has joined: it is ready, receives where to join, meets the servers and sends
// JOIN, once.
static inline bool meet(struct sim *s, int w);
static inline void say(struct sim *s, int w) {
    struct sim_worker *x = &s->workers[w];
    link_tick(x->link, s->now);
    if (!fate->ready[w] && s->now > fate->reads_s[w]) {
        struct notice_ready r = {.epoch = 1, .manifest = 5};
        sim_news(s, met_ready(w, x->end.incarnation, &r));
        fate->ready[w] = true;
    }
    if (s->met.joined[w] == x->end.incarnation && !x->end.life) x->end.life = s->met.lives[w];
    if (!fate->started[w] && x->end.life) fate->started[w] = meet(s, w);
    const struct ps_port port = star_link_port(x->link);
    if (fate->started[w] && !fate->asked[w])
        port_tell(&port, PEER_SCHEDULER, &(struct wire_header){.kind = WIRE_JOIN});
    fate->asked[w] = fate->started[w];
}

// It meets the servers: each has heard of the new life from the scheduler, or is asked again, and hears of its memory.
static inline bool meet(struct sim *s, int w) {
    struct sim_worker *x = &s->workers[w];
    struct server_segment segment = {x->segment, x->segment_bytes};
    for (int g = 0; g < s->map->shards; g++) {
        struct wire_header h = {.role = PS_WORKER,
                                .rank = w,
                                .job = SIM_JOB,
                                .incarnation = x->end.incarnation,
                                .process_no = x->end.life};
        if (!x->shared[g]) continue;
        if (!server_core_accepts_sender(s->shards[g], &h)) return false;
        server_core_attach(s->shards[g], w, &segment);
    }
    return true;
}

static inline void enter(struct sim *s, int w, const struct wire_header *h) {
    struct sim_worker *x = &s->workers[w];
    assert_int_equal(opening_read(h, &fate->opening[w]), 0);
    fate->dead[w] = fate->hears[w] = false;
    fate->dealt[w] = true;
    fate->joins++;
    x->asked = 0;
    sim_start_worker(s, x);
    worker_core_gathers(x->core, h->seq);
    sim_resume(s, w, fate->opening[w].state.step);
    x->updates = fate->opening[w].state.updates;
    assert_true(fate->opening[w].members & elastic_bit(w));
}

// Packets for the dead, and for processes that come.
static inline bool takes(struct sim *s, const struct sim_packet *p, struct wire_header *h,
                         struct ps_frame *frame) {
    int w = p->to.index;
    if (p->to.role == PS_SHARD && h->kind == WIRE_SET) {
        assert_true(fate->set[h->step] == 0 || fate->set[h->step] == h->mask);  // ONE for all keys
        fate->set[h->step] = h->mask;
    }
    fate->stale += p->to.role == PS_WORKER && h->kind == WIRE_PUSH_ACK && h->flags & WIRE_UNUSED;
    if (p->to.role != PS_WORKER) return false;
    struct sim_worker *x = &s->workers[w];
    fate->further += h->kind == WIRE_PULL_REPLY && !(h->flags & WIRE_FINAL) && h->step > x->step + 1;
    bool other = p->to.incarnation != x->end.incarnation;
    if (!other && !fate->dead[w]) return false;
    if (!other && fate->hears[w] && p->from.role == PS_SCHEDULER)
        star_link_receive(x->link, PEER_SCHEDULER, h, s->now);
    if (!other && fate->started[w] && h->kind == WIRE_JOINED) enter(s, w, h);
    ps_frame_release(frame);
    return true;
}

// ---------------------------------------------------------------- life
// Where worker w's samples of its step begin; what it says of the step goes by their numbers.
static inline int64_t first_of(const struct sim *s, int w) {
    const struct sim_worker *x = &s->workers[w];
    if (!fate->dealt[w]) return w;  // of the first step
    assert_int_equal(fate->opening[w].state.step, x->step);
    return opening_first(&fate->opening[w], w, 1);
}

static inline void report(struct sim *s, struct sim_worker *x, int64_t first) {
    struct step_report r = {
        .in = {.step = x->step, .lr = TOY_LR, .clip = s->t.clip, .loss_scale = toy_loss_scale(&s->t)},
        .loss = toy_loss(&s->t, (int)(first % s->t.workers), first / s->t.workers),
        .tokens = x->tokens,
        .mean_tokens = x->mean_tokens};
    worker_core_report(x->core, &r);
}

// Goes through a step that is over, as ps/worker/worker.c does. Whether there is nothing to compute yet.
static inline bool passes(struct sim *s, struct sim_worker *x) {
    int w = x->end.index;
    bool over = worker_core_status(x->core)->steps_closed > x->step, landed = true;
    for (int u = 0; u < s->l->count; u++) landed = landed && worker_core_landed(x->core, u) >= x->step;
    if (!over && fate->behind[w] && fate->jump[w] < x->step) {
        fate->jump[w] = x->step;
        worker_core_jump(x->core, x->step, sim_clock(s, x));
        return true;
    }
    if (!over) {
        fate->behind[w] = fate->behind[w] && !landed;
        return fate->behind[w];
    }
    worker_core_report(x->core, &(struct step_report){.in.step = x->step});
    fate->behind[w] = true;
    fate->missed[w]++;
    x->phase = SIM_CLOSING;
    return true;
}

// As sim_work, with the samples that the worker was dealt.
static inline void work(struct sim *s, struct sim_worker *x) {
    int w = x->end.index;
    if (x->phase != SIM_COMPUTE && x->phase != SIM_CLOSING && x->phase != SIM_PUSHING) {
        sim_work(s, x);
        return;
    }
    const struct worker_status *now = worker_core_status(x->core);
    if (x->phase == SIM_COMPUTE && consistency_drops(consistency_of(&s->c)) && passes(s, x)) return;
    int64_t first = x->phase == SIM_CLOSING ? 0 : first_of(s, w);
    bool ready = true;
    for (int u = 0; u < s->l->count; u++)
        ready = ready && !worker_core_busy(x->core, u, x->step) && worker_core_landed(x->core, u) >= x->step;
    if (x->phase == SIM_COMPUTE && ready && x->step < s->t.steps) {
        for (int u = 0; u < s->l->count; u++) {
            toy_grad(&s->t, s->l, u, (int)(first % s->t.workers), first / s->t.workers, x->weights[u],
                     x->grads[u]);
            memcpy(x->seen[u], x->weights[u], (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
        }
        x->tokens = tokens_of(first);
        x->mean_tokens = mean_tokens_of(s, fate->dealt[w] ? fate->opening[w].state.handed_out : 0);
        x->pushed = 0;
        x->phase = SIM_PUSHING;
    } else if (x->phase == SIM_PUSHING && x->pushed == s->l->count) {
        report(s, x, first);
        x->phase = SIM_CLOSING;
    } else if (x->phase == SIM_CLOSING) {
        if (now->steps_done <= x->step) return;
        const struct step_outcome *out = worker_core_outcome(x->core, x->step);
        if (!out->stats.skipped) x->updates++;
        if (out->late && !fate->behind[w]) fate->late[w]++;
        x->last = out->stats;
        x->step++;
        x->phase = SIM_COMPUTE;
        fate->opening[w] = out->opening;
        fate->dealt[w] = true;
        fate->members[x->step] = out->opening.members;
        assert_int_equal(out->opening.state.updates, x->updates);
    } else {
        sim_work(s, x);
    }
}

static inline bool over(const struct sim *s) {
    for (int w = 0; w < s->t.workers; w++)
        if (!fate->dead[w] && s->workers[w].phase != SIM_OVER) return false;
    return true;
}

static inline int alive(const struct sim *s) {
    int n = 0;
    for (int w = 0; w < s->t.workers; w++) n += !fate->dead[w];
    return n;
}

static inline void worker_dies(struct sim *s, int w, double now) {
    char name[32];
    snprintf(name, sizeof name, "worker %d", w);
    tell_dead(s->scheduler, name, process_of(&s->workers[w]), "it was killed", now);
}

static inline void something_happens(struct sim *s) {
    int w = 1 + (int)sim_draw(s, (uint64_t)s->t.workers - 1);
    uint64_t dice = sim_draw(s, 900);
    bool loaded = s->workers[0].step > 0;
    if (fate->kills && !fate->dead[w] && dice == 0 && loaded && alive(s) > s->t.elastic_min) {
        kill_worker(s, w);
        fate->kills--;
    } else if (fate->dead[w] && !fate->hears[w] && s->now - fate->dead_s[w] > 0.3 && dice < 9) {
        if (fate->told) worker_dies(s, w, s->now);
        replace_worker(s, w);
    } else if (fate->told && fate->dead[w] && !fate->hears[w] && dice < 3) {
        worker_dies(s, w, s->now);
    } else if (fate->dead[w] && !fate->hears[w] && dice < 6) {
        book_loses(s, w, "gone");
    }
}

static inline void run(struct sim *s, struct fate *f) {
    fate = f;
    f->sim = s;
    s->takes = takes;
    f->members[0] = elastic_all(s->t.workers);
    for (int u = 0; u < s->l->count; u++)
        worker_core_init_unit(s->workers[0].core, u, s->workers[0].init[u], 1);
    for (int64_t i = 0; !over(s); i++) {
        if (i >= 4000000) fail_msg("seed %d hangs", (int)s->t.seed);
        s->now += 0.001;
        something_happens(s);
        if (s->count > 0) assert_int_equal(sim_deliver(s), 0);
        int w = (int)sim_draw(s, (uint64_t)s->t.workers);
        struct sim_worker *x = &s->workers[w];
        bool idle = f->slow[w] && (int)sim_draw(s, 100) < f->slow[w];
        if (!f->dead[w]) {
            if (!idle) work(s, x);
            assert_int_equal(sim_tick_worker(s, x), 0);
        } else if (f->hears[w]) {
            say(s, w);
        }
        assert_int_equal(sim_tick_shard(s, (int)sim_draw(s, (uint64_t)s->map->shards)), 0);
        assert_int_equal(sim_tick_scheduler(s), 0);
    }
}

static inline void end(struct sim *s, struct fate *f) {
    for (int w = 0; w < s->t.workers; w++)  // what a shard may still hold of the dead
        if (f->dead[w]) s->workers[w].core = NULL;
    sim_destroy(s);
    for (int i = 0; i < f->olds; i++) free(f->old[i]);
}

// ---------------------------------------------------------------- the plain trainer, told who belonged to each step
struct told_step {
    int64_t step, dealt;
    uint64_t members, set;
};

// The tokens of those whose gradients counted.
static inline int64_t counted(const struct sim *s, const struct told_step *x) {
    int64_t sum = 0;
    for (int w = 0; w < s->t.workers; w++)
        if (x->set & elastic_bit(w)) sum += tokens_of(x->dealt + elastic_index(x->members, w));
    return sum;
}

static inline void ref_sum(const struct sim *s, const struct toy_ref *r, int u, const struct told_step *x,
                           void *out) {
    size_t n = (size_t)s->l->units[u].n_pad;
    int workers = s->t.workers, contributors = elastic_count(x->set);
    float *sum = xcalloc(n, sizeof *sum), scale = (float)((double)workers / contributors);
    if (fate->uneven) scale = (float)((double)mean_tokens_of(s, x->dealt) / (double)counted(s, x));
    void *grad = xcalloc(n, dtype_size(s->t.dtype));
    bool first = true;
    for (int w = 0; w < workers; w++) {
        if (!(x->set & elastic_bit(w))) continue;
        int64_t sample = x->dealt + elastic_index(x->members, w);
        toy_grad(&s->t, s->l, u, (int)(sample % workers), sample / workers, r->weight[u], grad);
        for (size_t i = 0; i < n; i++) {
            float g = dtype_load(s->t.dtype, grad, i);
            sum[i] = first ? g : sum[i] + g;
        }
        first = false;
    }
    for (size_t i = 0; i < n; i++)
        dtype_store(s->t.dtype, out, i, contributors == workers ? sum[i] : sum[i] * scale);
    free(grad);
    free(sum);
}

static inline void ref_step(const struct sim *s, struct toy_ref *r, const struct told_step *x) {
    struct exact_sum sum = {{0}, 0};
    void *total[TOY_UNITS];
    const char *why = "";
    for (int u = 0; u < s->l->count; u++) {
        int64_t n = s->l->units[u].n_pad;
        total[u] = xcalloc((unsigned long)n, dtype_size(s->t.dtype));
        ref_sum(s, r, u, x, total[u]);
        struct sumsq_args a = {.out = &sum, .x = total[u], .n = n, .dt = s->t.dtype};
        cpu_ops[OP_SUMSQ](1, &a, &why);
    }
    struct update_scalars scalars = update_decide(&sum, toy_loss_scale(&s->t), s->t.clip);
    for (int u = 0; u < s->l->count; u++) {
        struct update_range range = {.unit = &s->l->units[u],
                                     .end = s->l->units[u].n_pad,
                                     .master = r->master[u],
                                     .state = {r->m[u], r->v[u]},
                                     .weight = r->weight[u],
                                     .grad = total[u],
                                     .dtype = s->t.dtype};
        const struct update_step update = {TOY_LR, r->updates + 1, &scalars};
        if (!scalars.skip) optimizer_apply(&s->c.optimizer, &range, &update, 1);
        free(total[u]);
    }
    if (!scalars.skip) r->updates++;
    int n = elastic_count(x->set);
    r->last = (struct step_stats){.grad_norm = scalars.norm, .skipped = scalars.skip != 0};
    for (int w = 0; w < s->t.workers; w++) {
        int64_t sample = x->dealt + elastic_index(x->members, w);
        if (x->set & elastic_bit(w))
            r->last.loss += toy_loss(&s->t, (int)(sample % s->t.workers), sample / s->t.workers);
    }
    double mean = (double)mean_tokens_of(s, x->dealt), of_set = (double)counted(s, x);
    // Sets of uneven work may have an even share: N/n of the sum then, in this order.
    bool even = !fate->uneven || mean * n == of_set * s->t.workers;
    if (n < s->t.workers)
        r->last.loss = even ? r->last.loss * s->t.workers / n : r->last.loss * mean / of_set;
}

static inline void compare(const struct sim *s, const struct fate *f) {
    struct toy_ref r = toy_ref_start(&s->t, s->l);
    struct told_step x = {0};
    int64_t samples = 0, late = 0, tokens = 0;
    for (; x.step < s->t.steps; x.step++) {
        x.members = f->members[x.step];
        x.set = f->set[x.step];
        assert_true(x.set && !(x.set & ~x.members) &&
                    (consistency_drops(consistency_of(&s->c)) || x.set & 1));
        int64_t before = r.updates;
        ref_step(s, &r, &x);
        tokens = counted(s, &x);
        x.dealt += elastic_count(x.members);
        samples += r.updates > before ? elastic_count(x.set) : 0;
        late += r.updates > before ? elastic_count(x.members & ~x.set) : 0;
    }
    for (int w = 0; w < s->t.workers; w++) {
        if (f->dead[w]) continue;
        const struct sim_worker *v = &s->workers[w];
        for (int u = 0; u < s->l->count; u++)
            assert_memory_equal(v->weights[u], r.weight[u],
                                (size_t)s->l->units[u].n_pad * dtype_size(s->t.dtype));
        assert_true(v->last.loss == r.last.loss && v->last.grad_norm == r.last.grad_norm);
        assert_int_equal(v->updates, r.updates);
        assert_int_equal(f->opening[w].state.handed_out, x.dealt);
        assert_int_equal(f->opening[w].state.samples, samples);
        assert_true(f->opening[w].state.unapplied <= late);  // of these some may be dead
        if (!ps_elastic(&s->c)) assert_int_equal(f->opening[w].state.unapplied, late);
        assert_int_equal(f->opening[w].tokens, tokens);  // of the last step
    }
    for (int k = 0; k < s->map->count; k++) {
        const struct partition *p = &s->map->parts[k];
        assert_memory_equal(s->buffers[k].master, r.master[p->unit] + p->begin,
                            (size_t)(p->end - p->begin) * sizeof(float));
        assert_int_equal(server_core_version(s->shards[p->shard], k), r.updates);
    }
    for (int g = 0; g < s->map->shards; g++) {
        struct server_totals totals;
        server_core_totals(s->shards[g], &totals);
        assert_int_equal(totals.held_bytes, 0);  // of the dead neither
    }
    toy_ref_free(&r);
}

#endif
