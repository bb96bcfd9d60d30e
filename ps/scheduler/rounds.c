#include "ps/scheduler/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/budget.h"
#include "ps/agree/step_set.h"
#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/net/clock.h"
#include "shared/core/error.h"

// One step, as the workers and shards report it, and the answer.
struct round {
    int64_t step;
    bool *reported;  // (N)
    bool *summed;    // (shards)
    bool *named;     // (N + shards) the member was already reported as slow
    int reports, sums;
    double *loss;         // (N)
    int64_t *tokens;      // (N) tokens of the workers' batches
    int64_t mean_tokens;  // as in the first report
    float lr, loss_scale, clip;
    int first_worker;
    struct exact_sum sum;
    double first_s, last_s;  // when the first and the last report or sum of this step arrived
    int64_t ready_ns;        // the latest of a report's own time and a sum's, which is that of its pushes
};

struct gather {
    uint64_t seq;
    bool *have;        // (N)
    bool *named;       // (N) the worker was already reported as slow
    int count, words;  // workers that have sent; values of each
    double *values;    // (N, WIRE_VALUES_MAX)
    double first_s;
};

struct rounds {
    struct scheduler_options o;
    const struct membership *members;
    struct consistency_rule rule;
    int workers, shards;
    int full_shards;       // shards that own keys
    int64_t step;          // the oldest open step
    struct round *rounds;  // (1 + lead), by step % (1 + lead)
    struct gather gather;
    struct budget *budget;  // NULL: workers share steps
    struct step_set *set;   // NULL: every worker belongs to every step
    int *arrived;           // (N) shards that have the worker's last push, where pushes are ordered
    int64_t ordered;        // pushes with a position in the order
    uint64_t away;          // workers that the last step ran without
    struct loss *losses;    // (N) the last loss of each; it owns the texts
    char error[WIRE_TEXT_MAX];
};

// ---------------------------------------------------------------- one step
static struct round *round_of(const struct rounds *c, int64_t step) {
    return &c->rounds[step % (1 + c->o.lead)];
}

static void round_open(struct rounds *c, int64_t step) {
    struct round *r = round_of(c, step);
    memset(r->reported, 0, (size_t)c->workers * sizeof *r->reported);
    memset(r->summed, 0, (size_t)c->shards * sizeof *r->summed);
    memset(r->named, 0, (size_t)(c->workers + c->shards) * sizeof *r->named);
    memset(&r->sum, 0, sizeof r->sum);
    r->step = step;
    r->reports = r->sums = 0;
    r->ready_ns = 0;
}

static bool is_live(const struct rounds *c, int w) {
    return !c->set || (step_set_live(c->set) & elastic_bit(w)) != 0;
}

static void send_to_shards(const struct rounds *c, const struct wire_header *h) {
    for (int i = 0; i < c->shards; i++)
        if (c->o.map->shard_keys[i]) port_tell(&c->o.port, membership_shard(c->members, i), h);
}

static struct set_share share_of(const struct rounds *c, const struct round *r, uint64_t set) {
    struct set_share s = {c->workers, elastic_count(set), r->mean_tokens, 0};
    for (int w = 0; w < c->workers; w++)
        if (set & elastic_bit(w)) s.tokens += r->tokens[w];
    return s;
}

// The mean over the contributing workers: shares added in worker order.
static double mean_loss(const struct rounds *c, const struct round *r) {
    uint64_t set = c->set ? step_set_fixed(c->set) : 0;
    int first = set ? __builtin_ctzll(set) : 0;
    double loss = r->loss[first];
    for (int w = first + 1; w < c->workers; w++)
        if (!set || (set & elastic_bit(w))) loss += r->loss[w];
    if (!set || elastic_count(set) == c->workers) return loss;
    struct set_share s = share_of(c, r, set);
    return set_is_even(&s) ? loss * s.workers / s.contributors
                           : loss * (double)s.mean_tokens / (double)s.tokens;
}

static void refuse_join(const struct rounds *c, int w) {
    struct wire_header h = {.kind = WIRE_REFUSED, .flags = WIRE_FINAL};
    snprintf(h.text, sizeof h.text, "the job is complete: there is nothing left to join");
    port_tell(&c->o.port, w, &h);
}

// Called when the workers of the steps from `step` on are known. Reports workers that are missing from now on, and
// workers that are back:
//
//     step       1 2 3 4 5 6 7 8            worker 1 away from step 4 on, "died"
//     worker 1   x x x . . x x x            worker 1 there from step 6 on
//
// A worker that is lost after its gradients have arrived, or that is back before the next step, is not reported.
static void note_absences(struct rounds *c, int64_t step, uint64_t present) {
    uint64_t away = elastic_all(c->workers) & ~present, changed = away ^ c->away;
    c->away = away;
    for (int w = 0; w < c->workers && c->o.host.absent; w++) {
        struct absence x = {.step = step, .worker = w, .away = (away & elastic_bit(w)) != 0};
        if (!(changed & elastic_bit(w))) continue;
        if (x.away) x.loss = c->losses[w];
        c->o.host.absent(c->o.host.ctx, &x);
    }
}

// The step is over: fills STEP_DONE with the workers that belong to the step that opens.
static void close_set(struct rounds *c, const struct round *r, bool skipped, struct wire_header *step_done) {
    uint64_t set = step_set_fixed(c->set), before = step_set_live(c->set);
    bool more = r->step + 1 < c->o.config->steps && !c->members->stop;
    note_absences(c, r->step + 1, set | before);  // a straggler still belongs to the job
    step_set_close(c->set, skipped, more);
    struct step_opening opening = {.members = step_set_members(c->set),
                                   .contributors = elastic_count(set),
                                   .tokens = share_of(c, r, set).tokens,
                                   .state = *step_set_state(c->set)};
    struct wire_header joined = {.kind = WIRE_JOINED, .step = opening.state.step, .seq = c->gather.seq};
    opening_write(&opening, step_done);
    opening_write(&opening, &joined);
    for (int w = 0; w < c->workers; w++) {
        if (opening.members & ~before & elastic_bit(w)) port_tell(&c->o.port, w, &joined);
        if (!more && step_set_joining(c->set) & elastic_bit(w)) refuse_join(c, w);
    }
}

static int decide(struct rounds *c, struct round *r) {
    struct update_scalars s = update_decide(&r->sum, r->loss_scale, r->clip);
    if (s.skip && !commit_round(c->o.config))
        return core_fail(
            c->error,
            "step %lld: %lld gradient elements are not finite; without gradient_clipping " PS_UNSKIPPED
            ": lower the learning rate, or set gradient_clipping, to 1e30 if nothing is to be clipped",
            (long long)r->step + 1, (long long)r->sum.nonfinite);
    uint32_t flags = s.skip ? WIRE_SKIP : 0;
    struct wire_header decision = {.kind = WIRE_DECISION,
                                   .step = r->step,
                                   .grad_scale = s.grad_scale,
                                   .norm = s.norm,
                                   .flags = flags,
                                   .peers_ready_ns = r->ready_ns};
    struct wire_header step_done = {.kind = WIRE_STEP_DONE,
                                    .step = r->step,
                                    .loss = mean_loss(c, r),
                                    .norm = s.norm,
                                    .flags = flags | membership_stop_flag(c->members),
                                    .peers_ready_ns = r->ready_ns};
    send_to_shards(c, &decision);
    uint64_t set = c->set ? step_set_fixed(c->set) : 0;
    if (c->set) close_set(c, r, s.skip != 0, &step_done);
    for (int w = 0; w < c->workers; w++) {
        struct wire_header h = step_done;
        if (set && !(set & elastic_bit(w))) h.flags |= WIRE_LATE;
        if (is_live(c, w)) port_tell(&c->o.port, w, &h);
    }
    c->step++;
    round_open(c, c->step + c->o.lead);
    return 0;
}

// Whether all reports that the step needs are here; with sets, whether the set is fixed.
static bool is_reported(const struct rounds *c, const struct round *r) {
    return c->set ? step_set_fixed(c->set) != 0 : consistency_completes(c->rule, r->reports);
}

// Fixes sets and decides steps, in order, as far as possible now.
static int settle(struct rounds *c, double now) {
    if (c->set && step_set_fix(c->set, now))
        send_to_shards(
            c, &(struct wire_header){.kind = WIRE_SET, .step = c->step, .mask = step_set_fixed(c->set)});
    for (struct round *r; (r = round_of(c, c->step))->sums == c->full_shards && is_reported(c, r);)
        if (decide(c, r) != 0) return -1;
    return 0;
}

// Finds the round of a report or a sum. No member is further ahead than its consistency allows: a message of a later
// step ends the job.
static int round_for(struct rounds *c, int member, const struct wire_header *h, struct round **r) {
    char name[48];
    *r = h->step < c->step ? NULL : round_of(c, h->step);
    if (h->step <= c->step + c->o.lead) return 0;
    return core_fail(c->error, "%s reported step %lld while the job is at step %lld",
                     member_name(c->members, member, name), (long long)h->step, (long long)c->step);
}

static void round_note_time(struct round *r, int64_t ready_ns, double now) {
    if (!r->reports && !r->sums) r->first_s = now;
    r->last_s = now;
    r->ready_ns = ps_later(r->ready_ns, ready_ns);
}

int rounds_report(struct rounds *c, int w, const struct wire_header *h, double now) {
    struct round *r;
    if (round_for(c, w, h, &r) != 0) return -1;
    if (!r || r->reported[w] || (c->set && !(step_set_members(c->set) & elastic_bit(w)))) return 0;
    if (c->set && step_set_fixed(c->set)) return 0;  // the report is too late
    if (!r->reports) {
        r->first_worker = w;
        r->lr = h->lr;
        r->loss_scale = h->loss_scale;
        r->clip = h->clip;
        r->mean_tokens = h->mean_tokens;
    } else if (f32_to_bits(r->lr) != f32_to_bits(h->lr) ||
               f32_to_bits(r->loss_scale) != f32_to_bits(h->loss_scale) ||
               f32_to_bits(r->clip) != f32_to_bits(h->clip)) {
        return core_fail(
            c->error,
            "step %lld: worker %d has lr %.9g, loss scale %.9g, clip %.9g, worker %d has %.9g, %.9g, %.9g",
            (long long)r->step, w, (double)h->lr, (double)h->loss_scale, (double)h->clip, r->first_worker,
            (double)r->lr, (double)r->loss_scale, (double)r->clip);
    }
    round_note_time(r, h->ready_ns, now);
    r->reported[w] = true;
    r->loss[w] = h->loss;
    r->tokens[w] = h->tokens;
    r->reports++;
    if (c->set) step_set_reported(c->set, w);
    // In a job that resumes from a checkpoint, the workers' reports give the state.
    struct step_opening opening;
    if (c->set && h->step > 0 && h->step == c->o.start.step && opening_read(h, &opening) == 0)
        step_set_begin(c->set, &opening.state);
    return settle(c, now);
}

int rounds_sum(struct rounds *c, int shard, const struct wire_header *h, double now) {
    struct round *r;
    if (round_for(c, membership_shard(c->members, shard), h, &r) != 0) return -1;
    if (!r || r->summed[shard] || !c->o.map->shard_keys[shard]) return 0;
    round_note_time(r, h->peers_ready_ns, now);
    r->summed[shard] = true;
    exact_sum_merge(&r->sum, &h->sum);
    r->sums++;
    return settle(c, now);
}

// Where weights may wait for a worker's pushes, informs the shards that it no longer pushes: no batch is left for it,
// or it has finished.
static void report_no_more_pushes(const struct rounds *c, int w) {
    if (!arrivals_wait(c->o.config)) return;
    send_to_shards(c, &(struct wire_header){.kind = WIRE_MEMBER, .key = w, .flags = WIRE_FINAL});
}

// ---------------------------------------------------------------- gathers
// Answers once all workers have sent.
static void close_gather(struct rounds *c) {
    struct gather *g = &c->gather;
    int wanted = c->set ? elastic_count(step_set_live(c->set)) : c->workers;
    if (!g->count || g->count < wanted) return;
    struct wire_header gathered = {.kind = WIRE_GATHER_DONE, .seq = g->seq, .count = g->words};
    for (int i = 0; i < g->words; i++) {
        double total = g->values[i];
        for (int r = 1; r < c->workers; r++)
            if (g->have[r]) total += g->values[(size_t)r * WIRE_VALUES_MAX + i];
        gathered.values[i] = total;
    }
    for (int w = 0; w < c->workers; w++)
        if (is_live(c, w)) port_tell(&c->o.port, w, &gathered);
    memset(g->have, 0, (size_t)c->workers * sizeof *g->have);
    memset(g->named, 0, (size_t)c->workers * sizeof *g->named);
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
    if (c->budget && budget_has_asked(c->budget, w)) report_no_more_pushes(c, w);
    g->have[w] = true;
    g->words = h->count;
    memcpy(g->values + (size_t)w * WIRE_VALUES_MAX, h->values, sizeof h->values);
    g->count++;
    close_gather(c);
    return 0;
}

// ---------------------------------------------------------------- one budget
void rounds_take(struct rounds *c, int w, const struct wire_header *h) {
    struct wire_header taken;
    if (!c->budget) return;
    if (h->flags & WIRE_STOP) budget_stop(c->budget);
    if (!budget_take(c->budget, w, h, &taken)) return;
    port_tell(&c->o.port, w, &taken);
    if (taken.flags & WIRE_FINAL) report_no_more_pushes(c, w);
}

void rounds_stop(struct rounds *c) {
    if (c->budget) budget_stop(c->budget);
}

// ---------------------------------------------------------------- workers that join and leave
bool rounds_has_worker(const struct rounds *c, int w) { return is_live(c, w); }

bool rounds_can_lose(const struct rounds *c, int w) { return c->set && step_set_can_lose(c->set, w); }

int rounds_lost(struct rounds *c, int w, const struct loss *loss, double now) {
    struct gather *g = &c->gather;
    step_set_lost(c->set, w);
    // Keeps the older loss if the rank is still away: its new process had not joined yet.
    if (!(c->away & elastic_bit(w))) {
        free((char *)c->losses[w].why);
        c->losses[w] = (struct loss){loss->cause, xstrdup(loss->why)};
    }
    g->count -= g->have[w];
    g->have[w] = false;
    close_gather(c);
    return settle(c, now);
}

int rounds_arrived(struct rounds *c, int shard, const struct wire_header *h, double now) {
    struct round *r;
    int index = 0, w = h->mask ? __builtin_ctzll(h->mask) : c->workers;
    if (!c->o.map->shard_keys[shard]) return 0;
    // One order of pushes for all keys: every shard has the worker's push, which gets the next position. A worker pushes
    // again only after it was answered.
    if (c->rule.row->ordered && w < c->workers && ++c->arrived[w] == c->full_shards) {
        c->arrived[w] = 0;
        send_to_shards(c,
                       &(struct wire_header){.kind = WIRE_SET, .step = c->ordered++, .mask = elastic_bit(w)});
    }
    if (!c->set) return 0;
    if (round_for(c, membership_shard(c->members, shard), h, &r) != 0) return -1;
    // Counts only shards that have keys.
    for (int i = 0; i < shard; i++) index += c->o.map->shard_keys[i] > 0;
    if (r) step_set_arrived(c->set, index, h->mask);
    return settle(c, now);
}

// Whether no step is left to join.
static bool all_steps_done(const struct rounds *c) { return c->step >= c->o.config->steps; }

void rounds_join(struct rounds *c, int w) {
    if (!c->set || is_live(c, w)) return;
    if (all_steps_done(c) || c->members->stop) {
        refuse_join(c, w);
        return;
    }
    step_set_join(c->set, w);  // the worker's first step is the next one that opens
}

bool rounds_admits(const struct rounds *c, int w) {
    if (!c->set || is_live(c, w)) return false;
    // If all steps are over, the worker is refused: the step after the last one has members, but never closes.
    return all_steps_done(c) || !(step_set_members(c->set) & elastic_bit(w));
}

// ---------------------------------------------------------------- time
// Returns since when worker w is waited for: the later of first_s, when the first of the others arrived, and its last
// progress. A worker that makes progress is not slow: workers that decide by themselves may arrive at a barrier at very
// different times.
static double idle_since(const struct rounds *c, int w, double first_s) {
    double progress_s = c->members->m[w].progress_s;
    return progress_s > first_s ? progress_s : first_s;
}

static bool is_slow(const struct rounds *c, double since_s, double now, bool *named) {
    if (*named || now - since_s <= ps_overdue_s(c->o.config)) return false;
    *named = true;
    return true;
}

bool rounds_slow(struct rounds *c, double now, char text[ROUNDS_TEXT_MAX]) {
    struct round *r = round_of(c, c->step);
    struct gather *g = &c->gather;
    long long step = (long long)r->step + 1;
    for (int w = 0; w < c->workers; w++) {
        double since = idle_since(c, w, r->first_s), at_barrier = idle_since(c, w, g->first_s);
        if (!is_live(c, w)) continue;
        if ((r->reports || r->sums) && !r->reported[w] && is_slow(c, since, now, &r->named[w])) {
            snprintf(text, ROUNDS_TEXT_MAX, "waiting for worker %d: %.0f s in step %lld, it is alive", w,
                     now - since, step);
            return true;
        }
        if (g->count && !g->have[w] && is_slow(c, at_barrier, now, &g->named[w])) {
            snprintf(text, ROUNDS_TEXT_MAX, "waiting for worker %d: %.0f s at a barrier, it is alive", w,
                     now - at_barrier);
            return true;
        }
    }
    if (!is_reported(c, r)) return false;
    for (int i = 0; i < c->shards; i++) {
        char name[48];
        bool *named = &r->named[c->workers + i];
        if (!c->o.map->shard_keys[i] || r->summed[i] || !is_slow(c, r->last_s, now, named)) continue;
        snprintf(text, ROUNDS_TEXT_MAX, "waiting for %s: %.0f s in step %lld, it is alive",
                 member_name(c->members, membership_shard(c->members, i), name), now - r->last_s, step);
        return true;
    }
    return false;
}

int rounds_tick(struct rounds *c, double now) {
    return c->set && step_set_in_grace(c->set) ? settle(c, now) : 0;
}
bool rounds_in_grace(const struct rounds *c) { return c->set && step_set_in_grace(c->set); }

int64_t rounds_step(const struct rounds *c) { return c->step; }
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
    c->step = o->start.step;
    c->rounds = xcalloc(1 + (unsigned long)o->lead, sizeof *c->rounds);
    for (int64_t step = c->step; step <= c->step + o->lead; step++) {
        struct round *r = round_of(c, step);
        r->reported = xcalloc(n, sizeof(bool));
        r->summed = xcalloc((unsigned long)c->shards, sizeof(bool));
        r->named = xcalloc(n + (unsigned long)c->shards, sizeof(bool));
        r->loss = xcalloc(n, sizeof(double));
        r->tokens = xcalloc(n, sizeof *r->tokens);
        r->step = step;
    }
    c->gather.have = xcalloc(n, sizeof(bool));
    c->gather.named = xcalloc(n, sizeof(bool));
    c->gather.values = xcalloc(n * WIRE_VALUES_MAX, sizeof(double));
    const struct budget_options bo = {.workers = c->workers,
                                      .total = batches_total(o->config),
                                      .recorded = o->host.recorded,
                                      .ctx = o->host.ctx};
    if (c->rule.row->on_arrival) c->budget = budget_create(&bo);
    c->arrived = xcalloc(n, sizeof *c->arrived);
    if (!ps_elastic(o->config) && !consistency_drops(c->rule)) return c;
    struct step_set_options so = {.workers = c->workers,
                                  .min = o->config->recovery.elastic_min,
                                  .needs = c->rule.needs,
                                  .exact = c->rule.row->exact,
                                  .grace_s = c->rule.row->graces ? 1e-3 * (double)o->config->ps.grace_ms : 0,
                                  .recorded = o->host.recorded,
                                  .ctx = o->host.ctx,
                                  .shards = c->full_shards,
                                  .own = config_own_sequences(o->config),
                                  .scaler = o->config->scaler,
                                  .start.step = o->start.step};
    scaler_init(&so.start.scaler, &so.scaler);
    c->set = step_set_create(&so);
    c->losses = xcalloc(n, sizeof *c->losses);
    return c;
}

void rounds_destroy(struct rounds **at) {
    struct rounds *c = *at;
    if (!c) return;
    for (struct round *r = c->rounds; r <= c->rounds + c->o.lead; r++) {
        free(r->reported);
        free(r->summed);
        free(r->named);
        free(r->loss);
        free(r->tokens);
    }
    free(c->rounds);
    free(c->gather.have);
    free(c->gather.named);
    free(c->gather.values);
    free(c->arrived);
    budget_destroy(&c->budget);
    step_set_destroy(&c->set);
    for (int w = 0; w < c->workers && c->losses; w++) free((char *)c->losses[w].why);
    free(c->losses);
    free(c);
    *at = NULL;
}
