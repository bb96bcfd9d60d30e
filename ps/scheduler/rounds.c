#include "ps/scheduler/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/budget.h"
#include "ps/agree/deal.h"
#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/net/clock.h"
#include "shared/core/error.h"

// One step, as the workers and shards report it, and the answer.
struct round {
    int64_t step;
    bool *reported;  // (N)
    bool *summed;    // (shards)
    bool *told;      // (N + shards) that the member is slow
    int reports, sums;
    double *loss;  // (N)
    float lr, loss_scale, clip;
    int first_worker;
    struct exact_sum sum;
    double first_s, last_s;  // when the first and the last report or sum of this step came
    int64_t ready_ns;        // the latest of them: of a report its own, of a sum that of its pushes
};

struct gather {
    uint64_t seq;
    bool *have;        // (N)
    bool *told;        // (N) that the worker is slow
    int count, words;  // workers heard; values each
    double *values;    // (N, WIRE_VALUES_MAX)
    double first_s;
};

struct rounds {
    struct scheduler_options o;
    const struct membership *members;
    struct consistency_rule rule;
    int workers, shards;
    int full_shards;  // shards that own keys
    struct round round;
    struct gather gather;
    struct step_figures figures;  // of the last decision, at decided_s
    double decided_s;
    struct wire_header decision;  // the last one; kind NONE: none yet
    struct budget *budget;        // NULL: workers go step by step
    struct step_set *set;         // NULL: every worker belongs to every step
    struct wire_header joined;    // of it, the last one; kind NONE: none yet
    struct absences *absences;
    char error[WIRE_TEXT_MAX];
};

// ---------------------------------------------------------------- one step
static void round_clear(struct rounds *c, int64_t step) {
    struct round *r = &c->round;
    memset(r->reported, 0, (size_t)c->workers * sizeof *r->reported);
    memset(r->summed, 0, (size_t)c->shards * sizeof *r->summed);
    memset(r->told, 0, (size_t)(c->workers + c->shards) * sizeof *r->told);
    memset(&r->sum, 0, sizeof r->sum);
    r->step = step;
    r->reports = r->sums = 0;
    r->ready_ns = 0;
}

static bool is_live(const struct rounds *c, int w) {
    return !c->set || (step_set_live(c->set) & elastic_bit(w)) != 0;
}

static void tell_workers(const struct rounds *c, const struct wire_header *h) {
    for (int w = 0; w < c->workers; w++)
        if (is_live(c, w)) port_tell(&c->o.port, w, h);
}

static void tell_shards(const struct rounds *c, const struct wire_header *h) {
    for (int i = 0; i < c->shards; i++)
        if (c->o.map->shard_keys[i]) port_tell(&c->o.port, membership_shard(c->members, i), h);
}

// The mean over those who contributed: shares added in worker order.
static double mean_loss(const struct rounds *c) {
    uint64_t set = c->set ? step_set_fixed(c->set) : 0;
    double loss = c->round.loss[0];  // worker 0 belongs to every set
    for (int w = 1; w < c->workers; w++)
        if (!set || (set & elastic_bit(w))) loss += c->round.loss[w];
    return set && elastic_count(set) < c->workers ? loss * c->workers / elastic_count(set) : loss;
}

// The step is over: who belongs to the next one is told with it.
static void close_set(struct rounds *c, bool skipped, struct wire_header *step_done) {
    struct step_deal deal = {.contributors = elastic_count(step_set_fixed(c->set))};
    uint64_t before = step_set_live(c->set);
    bool more = c->round.step + 1 < c->o.config->steps && !c->members->stop;
    absences_step(c->absences, c->round.step + 1, step_set_fixed(c->set));
    step_set_close(c->set, skipped, more);
    deal.members = step_set_members(c->set);
    deal.state = *step_set_state(c->set);
    deal_write(&deal, step_done);
    uint64_t came = deal.members & ~before;
    if (!came) return;
    c->joined = (struct wire_header){.kind = WIRE_JOINED, .step = deal.state.step, .seq = c->gather.seq};
    deal_write(&deal, &c->joined);
    for (int w = 0; w < c->workers; w++)
        if (came & elastic_bit(w)) port_tell(&c->o.port, w, &c->joined);
}

static struct step_figures figures_of(struct rounds *c, double loss, const struct update_scalars *s) {
    const struct round *r = &c->round;
    double before_s = c->decided_s;
    c->decided_s = r->last_s;
    return (struct step_figures){.loss = loss,
                                 .norm = s->norm,
                                 .lr = r->lr,
                                 .loss_scale = r->loss_scale,
                                 .seconds = before_s > 0 ? r->last_s - before_s : 0,
                                 .skipped = s->skip != 0};
}

static int decide(struct rounds *c) {
    struct round *r = &c->round;
    struct update_scalars s = update_decide(&r->sum, r->loss_scale, r->clip);
    double loss = mean_loss(c);
    if (s.skip && !commit_round(c->o.config))
        return core_fail(
            c->error,
            "step %lld: %lld gradient elements are not finite, and without gradient_clipping the "
            "servers had nothing to wait for; lower the learning rate or set gradient_clipping",
            (long long)r->step, (long long)r->sum.nonfinite);
    uint32_t flags = s.skip ? WIRE_SKIP : 0;
    c->decision = (struct wire_header){.kind = WIRE_DECISION,
                                       .step = r->step,
                                       .grad_scale = s.grad_scale,
                                       .norm = s.norm,
                                       .flags = flags,
                                       .peers_ready_ns = r->ready_ns};
    struct wire_header step_done = {.kind = WIRE_STEP_DONE,
                                    .step = r->step,
                                    .loss = loss,
                                    .norm = s.norm,
                                    .flags = flags | membership_stop_flag(c->members),
                                    .peers_ready_ns = r->ready_ns};
    c->figures = figures_of(c, loss, &s);
    tell_shards(c, &c->decision);
    if (c->set) close_set(c, s.skip != 0, &step_done);
    tell_workers(c, &step_done);
    round_clear(c, r->step + 1);
    return 0;
}

static int close_round(struct rounds *c) {
    bool complete = c->set ? step_set_fixed(c->set) != 0 : consistency_completes(&c->rule, c->round.reports);
    return complete && c->round.sums == c->full_shards ? decide(c) : 0;
}

// Each member's part may be here now, or the member lost.
static int settle(struct rounds *c) {
    if (!c->set || !step_set_fix(c->set)) return close_round(c);
    const struct wire_header fixed = {
        .kind = WIRE_SET, .step = c->round.step, .mask = step_set_fixed(c->set)};
    tell_shards(c, &fixed);
    return 0;
}

// Worker 0 knows what a job that goes on from a checkpoint has behind it.
static void take_part(struct rounds *c, int w, const struct wire_header *h) {
    struct step_deal deal;
    step_set_reported(c->set, w);
    if (w == 0 && h->step > 0 && h->step == c->o.start && deal_read(h, &deal) == 0)
        step_set_begin(c->set, &deal.state);
}

int rounds_report(struct rounds *c, int w, const struct wire_header *h, double now) {
    struct round *r = &c->round;
    if (h->step < r->step) return 0;
    if (h->step > r->step)
        return core_fail(c->error, "worker %d reported step %lld while the job is at step %lld", w,
                         (long long)h->step, (long long)r->step);
    if (r->reported[w] || (c->set && !(step_set_members(c->set) & elastic_bit(w)))) return 0;
    if (!r->reports) {
        r->first_worker = w;
        r->lr = h->lr;
        r->loss_scale = h->loss_scale;
        r->clip = h->clip;
    } else if (f32_to_bits(r->lr) != f32_to_bits(h->lr) ||
               f32_to_bits(r->loss_scale) != f32_to_bits(h->loss_scale) ||
               f32_to_bits(r->clip) != f32_to_bits(h->clip)) {
        return core_fail(
            c->error,
            "step %lld: worker %d has lr %.9g, loss scale %.9g, clip %.9g, worker %d has %.9g, %.9g, %.9g",
            (long long)r->step, w, (double)h->lr, (double)h->loss_scale, (double)h->clip, r->first_worker,
            (double)r->lr, (double)r->loss_scale, (double)r->clip);
    }
    if (!r->reports && !r->sums) r->first_s = now;
    r->last_s = now;
    r->reported[w] = true;
    r->loss[w] = h->loss;
    r->ready_ns = ps_later(r->ready_ns, h->ready_ns);
    r->reports++;
    if (c->set) take_part(c, w, h);
    return settle(c);
}

int rounds_sum(struct rounds *c, int shard, const struct wire_header *h, double now) {
    struct round *r = &c->round;
    if (h->step != r->step || r->summed[shard] || !c->o.map->shard_keys[shard]) return 0;
    if (!r->reports && !r->sums) r->first_s = now;
    r->last_s = now;
    r->summed[shard] = true;
    exact_sum_merge(&r->sum, &h->sum);
    r->ready_ns = ps_later(r->ready_ns, h->peers_ready_ns);
    r->sums++;
    return close_round(c);
}

// ---------------------------------------------------------------- gathers
// Answers once all have come.
static void close_gather(struct rounds *c) {
    struct gather *g = &c->gather;
    int owed = c->set ? elastic_count(step_set_live(c->set)) : c->workers;
    if (!g->count || g->count < owed) return;
    struct wire_header gathered = {.kind = WIRE_GATHER_DONE, .seq = g->seq, .count = g->words};
    for (int i = 0; i < g->words; i++) {
        double total = g->values[i];
        for (int r = 1; r < c->workers; r++)
            if (g->have[r]) total += g->values[(size_t)r * WIRE_VALUES_MAX + i];
        gathered.values[i] = total;
    }
    tell_workers(c, &gathered);
    memset(g->have, 0, (size_t)c->workers * sizeof *g->have);
    memset(g->told, 0, (size_t)c->workers * sizeof *g->told);
    g->count = 0;
    g->seq++;
}

int rounds_gather(struct rounds *c, int w, const struct wire_header *h, double now) {
    struct gather *g = &c->gather;
    if (h->seq < g->seq) return 0;
    if (h->seq > g->seq)
        return core_fail(c->error, "worker %d is %llu gathers ahead of the job", w,
                         (unsigned long long)(h->seq - g->seq));
    if (g->have[w]) return 0;
    if (g->count && g->words != h->count)
        return core_fail(c->error, "gather %llu: worker %d sent %d values, another worker %d",
                         (unsigned long long)h->seq, w, h->count, g->words);
    if (!g->count) g->first_s = now;
    g->have[w] = true;
    g->words = h->count;
    memcpy(g->values + (size_t)w * WIRE_VALUES_MAX, h->values, sizeof h->values);
    g->count++;
    close_gather(c);
    return 0;
}

// ---------------------------------------------------------------- one budget
static void answer_takes(struct rounds *c) {
    struct wire_header h;
    for (int w; (w = budget_ready(c->budget, &h)) >= 0;) port_tell(&c->o.port, w, &h);
}

void rounds_take(struct rounds *c, int w, const struct wire_header *h) {
    struct wire_header taken;
    if (!c->budget || !is_live(c, w)) return;
    if (budget_take(c->budget, w, h, &taken)) port_tell(&c->o.port, w, &taken);
    answer_takes(c);
}

void rounds_stop(struct rounds *c) {
    if (!c->budget) return;
    budget_stop(c->budget);
    answer_takes(c);
}

// ---------------------------------------------------------------- workers that come and go
bool rounds_has(const struct rounds *c, int w) { return is_live(c, w); }

bool rounds_bears(const struct rounds *c, int w) { return c->set && step_set_bears(c->set, w); }

// The furthest step that a worker of the job has named.
static int64_t furthest(const struct rounds *c) {
    int64_t step = c->o.start;
    for (int w = 0; w < c->workers; w++)
        if (c->members->m[w].step > step) step = c->members->m[w].step;
    return step;
}

// Where each goes at its own pace: who is there from about that step on.
static void note_live(struct rounds *c, int64_t step) {
    if (c->rule.row->on_arrival) absences_step(c->absences, step + 1, step_set_live(c->set));
}

int rounds_lost(struct rounds *c, int w, const struct loss *loss) {
    struct gather *g = &c->gather;
    step_set_lost(c->set, w);
    absences_lost(c->absences, w, loss);
    if (c->budget) budget_lost(c->budget, w);
    if (c->budget) answer_takes(c);
    note_live(c, furthest(c));
    g->count -= g->have[w];
    g->have[w] = false;
    close_gather(c);
    return settle(c);
}

// The place of a shard among those that have keys.
static int place_of(const struct rounds *c, int shard) {
    int place = 0;
    for (int i = 0; i < shard; i++) place += c->o.map->shard_keys[i] > 0;
    return place;
}

int rounds_arrived(struct rounds *c, int shard, const struct wire_header *h) {
    if (!c->set || !c->o.map->shard_keys[shard] || h->step > c->round.step) return 0;
    if (h->step == c->round.step) step_set_arrived(c->set, place_of(c, shard), h->mask);
    return settle(c);
}

// Where each goes at its own pace, a worker that comes is as far as the foremost.
static void join_at_once(struct rounds *c, int w) {
    struct step_deal deal = {.state = {.step = furthest(c) + 1}};
    step_set_join(c->set, w);
    step_set_admit(c->set);
    note_live(c, deal.state.step);
    scaler_init(&deal.state.scaler, &c->o.config->scaler);
    c->joined = (struct wire_header){.kind = WIRE_JOINED, .step = deal.state.step, .seq = c->gather.seq};
    deal_write(&deal, &c->joined);
    port_tell(&c->o.port, w, &c->joined);
}

void rounds_join(struct rounds *c, int w) {
    bool alone = c->rule.row->on_arrival;
    bool over = c->budget ? budget_empty(c->budget) : c->round.step >= c->o.config->steps;
    if (!c->set || (is_live(c, w) && !c->joined.kind)) return;
    if (is_live(c, w)) {
        port_tell(&c->o.port, w, &c->joined);  // the answer was lost
    } else if (over || c->members->stop) {
        struct wire_header h = {.kind = WIRE_REFUSED, .flags = WIRE_FINAL};
        snprintf(h.text, sizeof h.text, "the job has come to its end: there is nothing left to join");
        port_tell(&c->o.port, w, &h);
    } else if (alone) {
        join_at_once(c, w);
    } else {
        step_set_join(c->set, w);
    }
}

bool rounds_lets_in(const struct rounds *c, int w) {
    if (!c->set || is_live(c, w)) return false;
    if (c->rule.row->on_arrival) return furthest(c) > c->o.start;
    return !(step_set_members(c->set) & elastic_bit(w));
}

// ---------------------------------------------------------------- time
// The moment from which worker w has been waited for: the others, the first of whom came at first_s, wait for it. One that
// still pushes is on its way: workers that decide alone may be far apart when they come to a barrier.
static double idle_since(const struct rounds *c, int w, double first_s) {
    double progress_s = c->members->m[w].progress_s;
    return progress_s > first_s ? progress_s : first_s;
}

static bool is_slow(const struct rounds *c, double since_s, double now, bool *told) {
    if (*told || now - since_s <= ps_overdue_s(c->o.config)) return false;
    *told = true;
    return true;
}

bool rounds_slow(struct rounds *c, double now, char text[ROUNDS_TEXT_MAX]) {
    struct round *r = &c->round;
    struct gather *g = &c->gather;
    long long step = (long long)r->step + 1;
    for (int w = 0; w < c->workers; w++) {
        double since = idle_since(c, w, r->first_s), there = idle_since(c, w, g->first_s);
        if (!is_live(c, w)) continue;
        if ((r->reports || r->sums) && !r->reported[w] && is_slow(c, since, now, &r->told[w])) {
            snprintf(text, ROUNDS_TEXT_MAX, "waiting for worker %d: %.0f s in step %lld, it is alive", w,
                     now - since, step);
            return true;
        }
        if (g->count && !g->have[w] && is_slow(c, there, now, &g->told[w])) {
            snprintf(text, ROUNDS_TEXT_MAX, "waiting for worker %d: %.0f s at a barrier, it is alive", w,
                     now - there);
            return true;
        }
    }
    if (c->set ? !step_set_fixed(c->set) : !consistency_completes(&c->rule, r->reports)) return false;
    for (int i = 0; i < c->shards; i++) {
        char name[48];
        bool *told = &r->told[c->workers + i];
        if (!c->o.map->shard_keys[i] || r->summed[i] || !is_slow(c, r->last_s, now, told)) continue;
        snprintf(text, ROUNDS_TEXT_MAX, "waiting for %s: %.0f s in step %lld, it is alive",
                 member_name(c->members, membership_shard(c->members, i), name), now - r->last_s, step);
        return true;
    }
    return false;
}

const struct wire_header *rounds_decision(const struct rounds *c) { return &c->decision; }
const struct step_figures *rounds_figures(const struct rounds *c) { return &c->figures; }
int64_t rounds_step(const struct rounds *c) { return c->round.step; }
const char *rounds_error(const struct rounds *c) { return c->error; }

// ---------------------------------------------------------------- create and destroy
struct rounds *rounds_create(const struct scheduler_options *o, const struct membership *members) {
    struct rounds *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->members = members;
    c->rule = consistency_of(o->config);
    c->workers = members->workers;
    c->shards = members->shards;
    for (int i = 0; i < c->shards; i++) c->full_shards += o->map->shard_keys[i] > 0;
    unsigned long n = (unsigned long)c->workers;
    c->round.reported = xcalloc(n, sizeof(bool));
    c->round.summed = xcalloc((unsigned long)c->shards, sizeof(bool));
    c->round.told = xcalloc(n + (unsigned long)c->shards, sizeof(bool));
    c->round.loss = xcalloc(n, sizeof(double));
    c->gather.have = xcalloc(n, sizeof(bool));
    c->gather.told = xcalloc(n, sizeof(bool));
    c->gather.values = xcalloc(n * WIRE_VALUES_MAX, sizeof(double));
    c->round.step = o->start;
    const struct budget_options bo = {.workers = c->workers,
                                      .total = batches_total(o->config),
                                      .returns = ps_elastic(o->config),
                                      .recorded = o->recorded,
                                      .ctx = o->recorded_ctx};
    if (c->rule.row->on_arrival) c->budget = budget_create(&bo);
    if (!ps_elastic(o->config)) return c;
    struct step_set_options so = {.workers = c->workers,
                                  .min = o->config->recovery.elastic_min,
                                  .shards = c->full_shards,
                                  .own = o->config->micro_batch * o->config->accumulation,
                                  .scaler = o->config->scaler,
                                  .start.step = o->start};
    scaler_init(&so.start.scaler, &so.scaler);
    c->set = step_set_create(&so);
    c->absences = absences_create(c->workers, &o->absent);
    return c;
}

void rounds_destroy(struct rounds **at) {
    struct rounds *c = *at;
    if (!c) return;
    free(c->round.reported);
    free(c->round.summed);
    free(c->round.told);
    free(c->round.loss);
    free(c->gather.have);
    free(c->gather.told);
    free(c->gather.values);
    budget_destroy(&c->budget);
    step_set_destroy(&c->set);
    absences_destroy(&c->absences);
    free(c);
    *at = NULL;
}
