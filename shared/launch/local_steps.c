// The decorator of local steps. Rank i has weights x_i, masters and an optimizer of its own, in a local topology. The
// inner topology has the anchor a, which all ranks share. A round is
//
//     x_i = a                                           elastic: only in the first round
//     H times: x_i = local optimizer(x_i, mean gradient of i's own samples)
//     pass a - x_i to the inner topology as rank i's gradient; its optimizer, the outer one, computes the next a
//
// "local_steps.outer.type" names the outer optimizer's update from the sum over the N ranks; lr is its learning rate:
//
//     mean         a = a - lr/N sum (a - x_i); lr 1: the mean of the x_i. Local SGD (Stich 2019), FedAvg (McMahan et al. 2017)
//     momentum     the same gradient by SGD with momentum; lr 1, momentum 0.9: FedAvgM (Hsu et al.
//                  2019), SlowMo (Wang et al. 2020, where ranks have a constant learning rate)
//     nesterov     the same gradient by SGD with Nesterov's momentum; lr 0.7, momentum 0.9: DiLoCo (Douillard et al. 2023,
//                  algorithm 1, with the paper's outer optimizer)
//     elastic      x_i = x_i + lr (a - x_i) and a = a - lr sum (a - x_i), both from the old values: synchronous EASGD
//                  (Zhang, Choromanska and LeCun 2015, equations 5 and 6, where lr is alpha and N alpha is beta)
//
// If each rank's gradient is an update of its own (ps:async), there is no sum and no 1/N: a = a - lr (a - x_i) on
// arrival. Only there:
//
//     cgad         Adam with beta1 = momentum and beta2 = 0.999, on s (a - x_i); the server's s = gate e^(-alpha age)
//                  (ps/server/push_on_arrival.c): CGAD (Shah and Sun 2026, arXiv 2605.09126)
//
// Numbers     A rank's anchor is the weights of the inner topology in the run's type. The rank starts from it and
//             subtracts from it. So all ranks start from the same values, for any masters; the values are widened to
//             fp32 for the masters of x_i. a - x_i is one subtraction in fp32, rounded once to the gradients' type.
//             Sums follow the inner topology's rules: the same bits from the star and the ring.
// Memory      In addition to the inner topology's: that of a local topology, and a unit in fp32.
// Learning rate   of a rank's own optimizer: the schedule's, at the rank's current step (set_schedule_position)
// Checkpoints, snapshots and the run's end   happen only at the end of a round (before: plan.not_resumable). Their
//             shared state is the anchor's, like the last weights. Each rank adds its own masters, moments and number
//             of updates.
// The record of a step   has rank 0's own loss and gradient norm.
#include "shared/launch/local_steps.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/launch/local.h"
#include "shared/state/checkpoint_read.h"

struct local_steps {
    struct topology base;
    struct topology *local, *inner;
    const struct config *c;
    struct arena arena;
    struct update_scalars *scalars;
    float *delta;       // a - x of one unit
    float **master;     // (units) the local topology's masters
    void **weight;      // (units) the local topology's weights; in fp32 the masters
    bool *anchored;     // (units) the unit has received this round's anchor
    int64_t at, round;  // steps done in this round; rounds done by this rank
    int64_t samples;    // samples of the job that the anchor contains
    int64_t seen;       // independent ranks: the schedule's position, in samples
    int64_t first;      // independent ranks: first sample of all ranks' round that has this rank's batch
    bool begun, stop;   // begun: a round is done; stop: this rank was asked to stop in this round
};

static struct local_steps *steps_of(struct topology *t) { return (struct local_steps *)t; }

static bool elastic(const struct local_steps *d) { return outer_rows[d->c->local_steps.outer].elastic; }

// ---------------------------------------------------------------- the inner configuration
struct config local_steps_inner(const struct config *c) {
    struct config in = *c;
    int64_t every = c->local_steps.steps;
    if (!every) return in;
    bool summed =
        !outer_rows[c->local_steps.outer].elastic && !(c->row->is_independent && c->row->is_independent(c));
    in.outer_run = c;
    in.local_steps.steps = 0;
    in.micro_batch *= c->accumulation * every;
    in.accumulation = 1;
    in.train_batch *= every;
    in.steps /= every;
    in.recovery.checkpoint_every /= every;
    in.clip = 0;
    in.schedule = (struct schedule_config){0};
    in.optimizer = *config_kept_optimizer(c);
    in.optimizer.lr = c->local_steps.lr / (float)(summed ? c->workers : 1);
    return in;
}

// ---------------------------------------------------------------- values
static void cast(struct local_steps *d, void *to, enum dtype to_dt, const void *from, enum dtype from_dt,
                 int64_t n) {
    if (to == from) return;
    if (to_dt == from_dt)
        dev_copy(d->base.compute, to, from, (size_t)n * dtype_size(to_dt));
    else
        op_cast(d->base.compute, &(struct cast_args){to, from, n, from_dt, to_dt, 1});
}

// Sets the schedule's position if ranks are independent (plan.independent). A batch of the budget is one rank's
// round, and N batches are a round of all ranks. While a rank takes a step, each other rank is assumed to take one,
// too. So ranks of equal speed have the learning rates of synchronous ranks, and the last round ends where the schedule
// ends. The position never decreases: a rank ahead of the job keeps its learning rate until the job catches up.
static void set_schedule_position(struct local_steps *d) {
    struct step_plan *p = &d->base.plan;
    int64_t seen = d->first + d->at * d->c->train_batch;
    if (seen > d->seen) d->seen = seen;
    p->samples = d->samples + d->at * d->c->micro_batch * d->c->accumulation;
    p->unapplied = d->seen > p->samples ? d->seen - p->samples : 0;
}

static int pull_anchor(struct local_steps *d, int u) {
    struct unit_view v;
    int64_t n = d->base.layout->units[u].n_pad;
    d->anchored[u] = true;
    if (elastic(d) && d->begun) return 0;
    if (topology_acquire(d->inner, u, PASS_FORWARD, &v)) return -1;
    cast(d, d->master[u], DT_F32, v.weights, d->base.dtype, n);
    cast(d, d->weight[u], d->base.dtype, v.weights, d->base.dtype, n);
    // The number of samples in the new anchor is known when all units have arrived.
    if (d->base.plan.independent && u == d->base.layout->count - 1) {
        d->samples = d->inner->plan.samples;
        set_schedule_position(d);
    }
    return topology_release(d->inner, u, PASS_FORWARD);
}

// Passes a - x of a unit to the inner topology as its gradient.
static int push_delta(struct local_steps *d, int u) {
    struct unit_view v;
    int64_t n = d->base.layout->units[u].n_pad;
    if (topology_acquire(d->inner, u, PASS_BACKWARD, &v)) return -1;
    cast(d, d->delta, DT_F32, v.weights, d->base.dtype, n);
    optimizer_add_scaled(d->base.compute, d->scalars, d->delta, -1, d->master[u], n);
    if (elastic(d)) {
        optimizer_add_scaled(d->base.compute, d->scalars, d->master[u], d->c->local_steps.lr, d->delta, n);
        cast(d, d->weight[u], d->base.dtype, d->master[u], DT_F32, n);
    }
    cast(d, v.grad, d->base.dtype, d->delta, DT_F32, n);
    return topology_grad_ready(d->inner, u);
}

// ---------------------------------------------------------------- a step
// Sets the counters of the inner topology, in rounds, from those of the loop, in steps. Called before the first step,
// with the state of a checkpoint if the run resumes.
static void set_inner_counters(struct local_steps *d) {
    const struct train_state *s = &d->base.start;
    int64_t every = d->c->local_steps.steps;
    struct step_plan *p = &d->inner->plan;
    d->inner->start = *s;
    d->inner->start.step /= every;
    d->inner->start.steps_of_run /= every;
    d->inner->start.updates = d->inner->start.step;
    p->mean = (p->independent ? d->c->micro_batch * d->c->accumulation : d->c->train_batch) * every;
    p->samples = s->samples;
    p->handed_out = s->handed_out;
    p->steps = p->version = d->inner->start.step;
}

// Copies the inner topology's counters of the job and of bytes to the outer one, where the loop reads them.
static void copy_counters(struct local_steps *d) {
    struct topology *t = &d->base, *in = d->inner;
    t->plan.version = in->plan.version;
    if (t->plan.independent) t->plan.handed_out = in->plan.handed_out;
    t->staleness = in->staleness;
    wire_count_copy(&t->wire, &in->wire);
}

static int steps_plan(struct topology *t, int64_t step) {
    struct local_steps *d = steps_of(t);
    int64_t every = d->c->local_steps.steps, own = d->c->micro_batch * d->c->accumulation;
    d->at = step % every;
    d->inner->timeline = t->timeline;
    if (d->at == 0) {
        int more = topology_plan(d->inner, d->round);
        if (t->plan.independent) copy_counters(d);
        if (more <= 0) return more;
        memset(d->anchored, 0, (size_t)t->layout->count * sizeof *d->anchored);
        d->samples = d->inner->plan.samples;
        d->first = d->inner->plan.first - d->inner->plan.first % (d->c->train_batch * every);
    }
    t->plan.not_resumable = d->at + 1 < every;
    if (!t->plan.independent) return step_plan_together(t);
    set_schedule_position(d);
    t->plan.first = d->inner->plan.first + d->at * own;
    t->plan.next = t->plan.not_resumable ? t->plan.first + own : -1;
    return 1;
}

static int steps_begin_micro(struct topology *t, int i, int n) {
    return topology_begin_micro(steps_of(t)->local, i, n);
}

static int steps_acquire(struct topology *t, int u, enum pass p, struct unit_view *v) {
    struct local_steps *d = steps_of(t);
    if (p == PASS_EVAL) return topology_acquire(d->inner, u, p, v);
    if (!d->anchored[u] && pull_anchor(d, u)) return -1;
    return topology_acquire(d->local, u, p, v);
}

static int steps_release(struct topology *t, int u, enum pass p) {
    struct local_steps *d = steps_of(t);
    return topology_release(p == PASS_EVAL ? d->inner : d->local, u, p);
}

static int steps_grad_ready(struct topology *t, int u) { return topology_grad_ready(steps_of(t)->local, u); }

// Ends a round with a step of the inner topology.
static int exchange(struct local_steps *d, const struct step_input *in, struct step_stats *out) {
    struct topology *inner = d->inner;
    struct step_input round = {.step = d->round,
                               .updates = d->round,
                               .lr = local_steps_inner(d->c).optimizer.lr,
                               .loss_scale = 1,
                               .loss_sum = in->loss_sum,
                               .loss_tokens = in->loss_tokens,
                               .stop = d->stop};
    struct step_stats done;
    inner->plan.keep = d->base.plan.keep;
    inner->plan.drain = true;
    inner->plan.loss_scale = 1;
    if (topology_begin_micro(inner, 0, 1)) return -1;
    for (int u = d->base.layout->count - 1; u >= 0; u--)
        if (push_delta(d, u)) return -1;
    if (topology_step(inner, &round, &done)) return -1;
    if (done.skipped)
        return fail(
            "step %lld: the change of the weights over the last %lld steps is not finite: lower the learning rate, or "
            "local_steps.steps",
            (long long)in->step + 1, (long long)d->c->local_steps.steps);
    d->begun = true;
    d->stop = false;
    d->round++;
    out->stop = done.stop;
    copy_counters(d);
    return 0;
}

// The loop scales a gradient for the mean over the global batch. This rank has 1/N of the samples: its own mean is N
// times that.
static int steps_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct local_steps *d = steps_of(t);
    struct step_input own = *in;
    int part = t->plan.independent ? 1 : t->size;
    own.loss_scale = in->loss_scale / (float)part;
    own.loss_tokens = in->loss_tokens / part;
    if (topology_step(d->local, &own, out)) return -1;
    d->stop |= in->stop;
    out->stop = out->snapshot = false;
    t->own_number.value = in->updates + !out->skipped;
    if (!t->plan.not_resumable && exchange(d, in, out)) return -1;
    int64_t version = t->plan.version;  // the anchor's version
    step_plan_advance(t, false);        // the job's samples are done, even if this rank skipped the update
    t->plan.version = version;
    return 0;
}

// ---------------------------------------------------------------- the other hooks
static void steps_prefetch(struct topology *t, int u, enum pass p) {
    topology_prefetch(p == PASS_EVAL ? steps_of(t)->inner : steps_of(t)->local, u, p);
}

static int steps_sum(struct topology *t, double *values, int count) {
    int rc = topology_sum(steps_of(t)->inner, values, count);
    copy_counters(steps_of(t));
    return rc;
}

static int steps_finish(struct topology *t) {
    struct local_steps *d = steps_of(t);
    d->inner->plan.keep = t->plan.keep;
    if (topology_finish(d->local)) return -1;
    int rc = topology_finish(d->inner);
    copy_counters(d);
    if (!t->plan.independent) return rc;
    t->plan.samples = d->inner->plan.samples;
    t->plan.unapplied = 0;
    return rc;
}

static int steps_weights(struct topology *t, int i, struct state_range *out) {
    struct topology *in = steps_of(t)->inner;
    return in->ops->weights(in, i, out);
}

static void steps_snapshot(struct topology *t, int64_t version, struct snapshot *s) {
    topology_snapshot(steps_of(t)->inner, version, s);
}

// The inner topology's state, then the rank's own.
static int steps_state(struct topology *t, int i, struct state_range *out) {
    struct local_steps *d = steps_of(t);
    int held = 0;
    while (held <= i && !topology_state(d->inner, held, out)) held++;
    return held > i ? 0 : local_own_state(d->local, i - held, out);
}

static int steps_load(struct topology *t, struct checkpoint *c) {
    struct local_steps *d = steps_of(t);
    char who[32];
    snprintf(who, sizeof who, "worker-%d", t->rank);
    set_inner_counters(d);
    d->round = d->inner->start.step;
    d->begun = d->round > 0;
    if (topology_load(d->inner, c)) return -1;
    int rc = checkpoint_extra(c, who, t->own_number.name, &t->start.updates, 1);
    t->own_number.value = t->start.updates;
    d->local->start = t->start;
    if (!rc) rc = local_load_own(d->local, c, t->rank, t->size);
    copy_counters(d);
    if (rc <= 0) return rc;
    return fail(
        "--resume: %s holds no masters and moments of each of %d ranks' own, which local_steps goes on with: give as many "
        "--workers as it had, or start a new run from its weights with --resume-weights-only",
        checkpoint_path(c), t->size);
}

static int steps_load_unit(struct topology *t, int u, const float *values) {
    struct local_steps *d = steps_of(t);
    if (u == 0) set_inner_counters(d);
    return topology_load_unit(d->inner, u, values);
}

static void steps_abort(struct topology *t, const char *why) { topology_abort(steps_of(t)->inner, why); }
static const char *steps_why(struct topology *t) { return topology_why(steps_of(t)->inner); }

static void steps_destroy(struct topology *t) {
    struct local_steps *d = steps_of(t);
    if (t->compute) stream_sync(t->compute);
    topology_destroy(&d->inner);
    topology_destroy(&d->local);
    arena_release(&d->arena);
    free(d->master);
    free(d->weight);
    free(d->anchored);
    free((void *)(uintptr_t)t->ops);
    free(d);
}

static const struct topology_ops steps_ops = {.prefetch = steps_prefetch,
                                              .acquire = steps_acquire,
                                              .release = steps_release,
                                              .begin_micro = steps_begin_micro,
                                              .grad_ready = steps_grad_ready,
                                              .plan = steps_plan,
                                              .step = steps_step,
                                              .sum = steps_sum,
                                              .finish = steps_finish,
                                              .state = steps_state,
                                              .load = steps_load,
                                              .load_unit = steps_load_unit,
                                              .abort = steps_abort,
                                              .why = steps_why,
                                              .destroy = steps_destroy};

// ---------------------------------------------------------------- memory and bytes
static void carve(const struct layout *l, struct arena *a, struct local_steps *d) {
    int64_t most = layout_largest(l);
    float *delta = arena_take(a, MEM_WORKSPACE, (size_t)most * sizeof(float));
    struct update_scalars *scalars = arena_take(a, MEM_WORKSPACE, sizeof *scalars);
    if (!d) return;
    d->delta = delta;
    d->scalars = scalars;
}

static void predict_memory(const struct config *c, const struct layout *l, struct topology_memory *m) {
    struct local_options o = local_options_of(c, l);
    struct topology_memory own;
    struct arena a;
    local_predict(&o, &own);
    arena_init(&a, NULL);
    carve(l, &a, NULL);
    for (int k = 0; k < MEM_CLASSES; k++) m->predicted_bytes[k] += own.predicted_bytes[k] + a.bytes[k];
    m->formula_bytes += own.formula_bytes;
}

struct wire_prediction local_steps_wire(struct wire_prediction w, int64_t steps) {
    uint64_t *const all[] = {
        &w.sent_per_step,           &w.received_per_step,        &w.local_sent_per_step,
        &w.local_received_per_step, &w.across_sent_per_step,     &w.across_received_per_step,
        &w.messages_per_step,       &w.messages_across_per_step, &w.flat_across_sent_per_step};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) *all[i] /= (uint64_t)steps;
    return w;
}

void local_steps_predict(const struct config *c, const struct layout *l, struct prediction *p) {
    if (!c->local_steps.steps) return;
    predict_memory(c, l, &p->memory);
    p->wire = local_steps_wire(p->wire, c->local_steps.steps);
    p->state_bytes += (size_t)l->padded * optimizer_bytes(c->optimizer.row, true);
}

void local_steps_formula(const struct config *c, struct topology_formula *f) {
    if (!c->local_steps.steps) return;
    char inner[TEXTBOOK_TEXT], own[TEXTBOOK_TEXT];
    size_t n = strlen(f->wire);
    memcpy(inner, f->memory, sizeof inner);
    textbook_text(own, local_textbook(c->optimizer.row, c->dtype), 'N');
    snprintf(f->memory, sizeof f->memory, "%.12s+%.16s", own, inner);
    snprintf(f->wire + n, sizeof f->wire - n, "; of a round, which is %lld steps",
             (long long)c->local_steps.steps);
}

// Stars and rings with the same local steps give the same bits. `differs` stays the inner topology's.
void local_steps_explain(const struct config *c, struct topology_texts *w) {
    if (c->local_steps.steps) w->loss_of = LOSS_OF_RANK_0;
}

// ---------------------------------------------------------------- create
static int make(struct local_steps *d) {
    struct topology *t = &d->base;
    struct local_options o = local_options_of(d->c, t->layout);
    const struct update_scalars one = {.grad_scale = 1};
    struct state_range r;
    size_t units = (size_t)t->layout->count;
    d->master = xcalloc(units, sizeof *d->master);
    d->weight = xcalloc(units, sizeof *d->weight);
    d->anchored = xcalloc(units, sizeof *d->anchored);
    arena_init(&d->arena, t->dev);
    carve(t->layout, &d->arena, d);
    o.dev = t->dev;
    o.compute = t->compute;
    if (d->arena.failed || !(d->local = local_create(&o))) return -1;
    for (int i = 0; !topology_state(d->local, i, &r); i++)
        if (r.kind == STATE_MASTER) d->master[r.unit] = (float *)(uintptr_t)r.data;
    for (int i = 0; !d->local->ops->weights(d->local, i, &r); i++)
        d->weight[r.unit] = (void *)(uintptr_t)r.data;
    dev_copy(t->compute, d->scalars, &one, sizeof one);
    return stream_sync(t->compute) ? fail("local steps: %s", dev_error(t->dev)) : 0;
}

struct topology *local_steps_around(const struct config *c, struct topology *inner) {
    if (!inner || !c->local_steps.steps) return inner;
    struct local_steps *d = xcalloc(1, sizeof *d);
    struct topology_ops *ops = xcalloc(1, sizeof *ops);
    struct topology *t = &d->base;
    const size_t wire = offsetof(struct topology, wire), behind = wire + sizeof t->wire;
    // 1. The loop sees a copy of the inner topology, without its byte counters, which may already be in use.
    *ops = steps_ops;
    ops->name = inner->ops->name;
    ops->weights = inner->ops->weights ? steps_weights : NULL;
    ops->snapshot = inner->ops->snapshot ? steps_snapshot : NULL;
    memcpy((void *)t, (const void *)inner, wire);
    memcpy((char *)t + behind, (const char *)inner + behind, sizeof *t - behind);
    t->ops = ops;
    t->lag = 0;
    t->writes_early = true;  // the anchor is written to the local masters
    t->own_number.name = "updates";
    t->own_number.value = 0;
    d->c = c;
    d->inner = inner;
    // 2. Add the rank's own local topology.
    predict_memory(c, t->layout, &t->memory);
    t->wire_predicted = local_steps_wire(t->wire_predicted, c->local_steps.steps);
    if (make(d)) {
        topology_abort(inner, error_last());
        topology_destroy(&t);
        return NULL;
    }
    return t;
}
