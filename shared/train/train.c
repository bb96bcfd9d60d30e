// The training loop, from the first batch to the report, in order of execution. `run`, at the end, calls the
// functions above it.
#include "shared/train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/data/vocabulary.h"
#include "shared/hf/hf_dir.h"
#include "shared/report/metrics.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/weights_hash.h"
#include "shared/time/gate.h"
#include "shared/time/timeline.h"
#include "shared/train/batch_feed.h"
#include "shared/train/frozen.h"
#include "shared/train/pace.h"
#include "shared/train/saver.h"
#include "shared/train/slowdown.h"

// After so many consecutive steps without a finite gradient, a run whose loss scale does not change has diverged.
#define DIVERGED_STEPS 8
#define WHERE_BYTES    320  // bytes of a text that names the overflowed tensor

// A step from its begin until its outcome counts: plan.lag steps later, or where all outcomes must be known.
struct step_slot {
    struct step_input in;
    struct step_stats stats;
    struct batch_count mean;  // the counts that the step's mean is over
    bool watched;             // the run ends if this step overflows
    int64_t now_ns;
    double seconds, elapsed;
    size_t memory_bytes;
};

struct train {
    const struct train_options *o;
    const struct job *job;
    const struct config *c;
    struct topology *t;
    const struct layout *l;  // the layout of the trained units
    struct frozen
        *frozen;  // on this rank; NULL: all weights are trained, or the topology shards the frozen ones
    bool shards_frozen;
    struct train_parts *parts;
    struct train_result *r;
    struct scaler scaler;
    struct step_slot *slots;   // (1 + plan.lag): step t has slots[t % (1 + plan.lag)]
    int64_t outcomes_known;    // steps whose outcomes are known
    int64_t outcomes_applied;  // steps whose outcomes count: loss scale, learning rate and skips follow them
    int64_t updates;           // updates applied so far
    struct pace pace;          // only if ranks do not wait for each other
    int skipped_in_a_row;
    // Set after the last step: updates of this start; summed over all ranks if each has its own steps.
    double applied;
    double last_loss;  // loss of the last step that counts
    bool stopping;     // some rank was asked to stop
    struct gate_rank gate;
    double steps_s;        // seconds of all steps
    double job_s;          // the same, with earlier starts, until the last worker has ended its steps
    uint64_t allocations;  // after the first step
};

static struct step_slot *slot_of(const struct train *x, int64_t step) {
    return &x->slots[step % (1 + x->t->plan.lag)];
}

static struct train_state state_now(const struct train *x) {
    int64_t steps = step_plan_steps_of_run(x->t);  // steps of the run, if ranks share a budget of batches
    return (struct train_state){.step = x->r->steps,
                                .updates = x->updates,
                                .samples = x->t->plan.samples,
                                .unapplied = x->t->plan.unapplied,
                                .steps_of_run = steps != x->r->steps ? steps : 0,
                                .handed_out = step_plan_handed_out(&x->t->plan),
                                .skipped_in_a_row = x->skipped_in_a_row,
                                .scaler = x->scaler};
}

// The state that a snapshot records. Its steps are the job's, not this rank's.
static struct train_state weights_now(const struct train *x) {
    int64_t skipped = 0;  // steps whose outcome is known and does not count yet
    for (int64_t step = x->outcomes_applied; step < x->outcomes_known; step++)
        skipped += slot_of(x, step)->stats.skipped;
    return (struct train_state){.step = step_plan_steps_of_run(x->t),
                                .updates = x->t->plan.version - skipped,
                                .samples = x->t->plan.samples - skipped * x->t->plan.mean};
}

static int step_failed(const struct train *x, int64_t step) {
    return fail("step %lld: %s", (long long)step + 1, topology_why(x->t));
}

static double seconds_between(int64_t begin, int64_t end) { return 1e-9 * (double)(end - begin); }

// ---------------------------------------------------------------- before the first step
struct model_options train_model_options(const struct config *c, const struct model_spec *s,
                                         const struct layout *l) {
    struct model_options o = {.spec = s,
                              .layout = l,
                              .dtype = c->dtype,
                              .batch = c->micro_batch,
                              .seq = c->seq,
                              .micro_batches = config_added_in_place(c),
                              .logits_bytes = c->logits_bytes,
                              .gpu = config_device(c)->gpu,
                              .watch_gradients = c->scaler.enabled && c->scaler.static_scale <= 0,
                              .recompute = c->recompute};
    o.recompute.gelu_apart = c->cuda.gelu == CUDA_GELU_APART;
    return o;
}

int train_parts_create(struct train_parts *p, const struct job *j, struct device *dev,
                       struct stream *compute) {
    const struct batch_feed_options feed = {
        .dev = dev, .compute = compute, .config = j->config, .data = j->data};
    struct model_options model = train_model_options(j->config, &j->spec, j->layout);
    model.dev = dev;
    model.compute = compute;
    if (!(p->model = model_create(&model))) return -1;
    if (!(p->feed = batch_feed_create(&feed))) return fail("out of memory for batches: %s", dev_error(dev));
    return slowdown_create(j->config, dev, compute, &p->slowdown);
}

void train_parts_destroy(struct train_parts *p) {
    model_destroy(&p->model);
    batch_feed_destroy(&p->feed);
    slowdown_destroy(&p->slowdown);
    timeline_destroy(&p->timeline);
}

// Loads the weights from the checkpoint (all state, or weights only), from a file, or from the seed. Frozen ones are in no
// checkpoint.
static int load_initial_weights(struct train *x) {
    const struct layout *model = layout_of_model(x->l);
    struct hf_reader *reader = NULL;
    int64_t most = layout_largest(model);
    bool whole = x->o->checkpoint && !x->c->recovery.resume_weights_only;
    bool loads = !x->t->joined_running_job && !whole;  // unit by unit
    if (!x->l->model && x->t->joined_running_job) return 0;
    if (!x->l->model && whole) return topology_load(x->t, x->o->checkpoint);
    bool file = x->job->weights_in && (x->l->model || !x->o->checkpoint);
    if (file && !(reader = hf_open(x->job->weights_in, &x->job->spec, x->l))) return -1;
    float *values = xcalloc((size_t)most, sizeof *values);
    int rc = 0;
    for (int u = 0; u < model->count && !rc; u++) {
        int trained = layout_trained(x->l, u);
        rc = hf_initial_unit(reader, x->l, u, x->c->seed, values);
        if (x->shards_frozen && !rc) rc = x->t->ops->load_frozen(x->t, u, values + model->units[u].trained);
        if (x->frozen && !rc) rc = frozen_load(x->frozen, x->t->compute, u, values + model->units[u].trained);
        if (!loads || trained < 0) continue;
        if (x->o->checkpoint && !rc)
            rc = checkpoint_read(x->o->checkpoint, x->l, trained, STATE_MASTER, 0, x->l->units[trained].n_pad,
                                 values);
        if (!rc) rc = topology_load_unit(x->t, trained, values);
    }
    free(values);
    if (reader) hf_close(&reader);
    return rc || loads || x->t->joined_running_job ? rc : topology_load(x->t, x->o->checkpoint);
}

// ---------------------------------------------------------------- one attempt at an update
// Acquires the model's unit u. The topology has its trained tensors; the frozen ones are this rank's own, or the topology's
// if it shards them.
static int acquire(struct train *x, int u, enum pass pass, struct unit_view *view) {
    int trained = layout_trained(x->l, u);
    const void *frozen = frozen_unit(x->frozen, u);
    if (x->shards_frozen && x->t->ops->acquire_frozen(x->t, u, pass, &frozen)) return -1;
    *view = (struct unit_view){.weights = frozen};
    if (trained < 0) return 0;
    if (topology_acquire(x->t, trained, pass, view)) return -1;
    view->frozen = frozen;
    return 0;
}

static void prefetch(struct train *x, int u, enum pass pass) {
    int trained = layout_trained(x->l, u);
    if (x->shards_frozen) x->t->ops->prefetch_frozen(x->t, u, pass);
    if (trained >= 0) topology_prefetch(x->t, trained, pass);
}

static int release_frozen(struct train *x, int u) {
    return x->shards_frozen ? x->t->ops->release_frozen(x->t, u) : 0;
}

static int forward(struct train *x) {
    int last = layout_of_model(x->l)->count - 1;
    for (int u = 0; u <= last; u++) {
        struct unit_view view;
        int trained = layout_trained(x->l, u);
        if (acquire(x, u, PASS_FORWARD, &view)) return -1;
        if (u < last) prefetch(x, u + 1, PASS_FORWARD);
        slowdown_before(x->parts->slowdown);
        model_forward(x->parts->model, u, &view, NULL, false);
        slowdown_after(x->parts->slowdown);
        if (trained >= 0 && topology_release(x->t, trained, PASS_FORWARD)) return -1;
        if (release_frozen(x, u)) return -1;
    }
    return 0;
}

static int backward(struct train *x, int micro, bool watched) {
    // The lowest unit with trained weights: backward ends there.
    int last = layout_of_model(x->l)->count - 1, lowest = x->l->model ? 1 : 0;
    for (int u = last; u >= lowest; u--) {
        struct unit_view view, tied;
        int trained = layout_trained(x->l, u);
        bool needs_tied = u == last && x->job->spec.tied;
        if (acquire(x, u, PASS_BACKWARD, &view)) return -1;
        if (needs_tied && acquire(x, 0, PASS_BACKWARD, &tied)) return -1;
        if (u > lowest) prefetch(x, u - 1, PASS_BACKWARD);
        slowdown_before(x->parts->slowdown);
        model_backward(x->parts->model, u, &view, needs_tied ? &tied : NULL);
        slowdown_after(x->parts->slowdown);
        if (release_frozen(x, u) || (needs_tied && release_frozen(x, 0))) return -1;
        if (trained < 0) continue;
        if (watched) grad_watch_unit(x->parts->model, trained, view.grad, micro);
        if (topology_grad_ready(x->t, trained)) return -1;
    }
    return 0;
}

// Does nothing if the batch has been read ahead. Reading ahead overlaps the device's work, so it costs no time
// while that work takes longer.
static int read_batch(struct train *x, int64_t step, int64_t first) {
    int64_t start = now_ns();
    if (batch_feed_read(x->parts->feed, step, first)) return -1;
    timeline_data(x->t->timeline, start, now_ns());
    return 0;
}

// Computes all micro-batches of a step.
static int compute(struct train *x, int64_t step, const struct step_slot *slot) {
    double tokens = (double)slot->mean.tokens;
    if (read_batch(x, step, x->t->plan.first)) return step_failed(x, step);
    for (int k = 0; k < (int)x->c->accumulation; k++) {
        if (topology_begin_micro(x->t, k, (int)x->c->accumulation)) return -1;
        struct batch b = batch_feed_micro(x->parts->feed, step, k);
        slowdown_micro(x->parts->slowdown, x->t->rank, step, k);
        stream_phase(x->t->compute, PHASE_FORWARD);
        model_set_seq(x->parts->model, b.seq);
        model_set_batch(x->parts->model, b.tokens, b.targets, (float)(x->scaler.scale / tokens), k == 0);
        if (forward(x)) return -1;
        stream_phase(x->t->compute, PHASE_BACKWARD);
        if (backward(x, k, slot->watched)) return -1;
        stream_phase(x->t->compute, PHASE_OTHER);
    }
    batch_feed_sent(x->parts->feed, step);
    int64_t next = x->t->plan.next;
    bool ahead = step + 1 < x->c->steps && next >= 0;
    return ahead && read_batch(x, step + 1, next) ? step_failed(x, step) : 0;
}

// One attempt at an update: computes the step, unless it was closed without this rank; then calls the topology's step.
static int attempt(struct train *x, int64_t step) {
    struct step_slot *slot = slot_of(x, step);
    struct step_input *in = &slot->in;
    struct step_plan *p = &x->t->plan;
    // 1. Count the samples and tokens of the batch over which the step takes its mean: this rank's own batch, or the
    // global batch that contains it. Each rank counts the global batch itself.
    int64_t own = config_own_sequences(x->c), first = p->first - (p->mean == own ? 0 : own * p->slice);
    *slot = (struct step_slot){.watched = scaler_at_end(&x->scaler, &x->c->scaler),
                               .mean = batch_feed_count(x->parts->feed, first, p->mean)};
    in->step = step;
    in->loss_scale = (float)x->scaler.scale;
    in->clip = x->c->clip;
    p->loss_scale = in->loss_scale;
    p->tokens = batch_feed_count(x->parts->feed, p->first, own).tokens;
    p->mean_tokens = slot->mean.tokens;
    // 2. Forward and backward.
    if (x->t->writes_early) saver_delay_updates(x->o->saver);
    if (!p->closed_without_rank && compute(x, step, slot)) return -1;
    // 3. The update.
    in->updates = x->updates;
    in->lr = schedule_lr(&x->c->schedule, x->c->optimizer.lr,
                         schedule_steps(step_plan_seen(p), x->c->train_batch));
    in->loss_sum = model_loss_on_device(x->parts->model);
    in->loss_tokens = (double)slot->mean.tokens;
    in->stop = x->job->stop && *x->job->stop;
    in->snapshot = saver_wants_snapshot(x->o->saver);
    saver_delay_updates(x->o->saver);
    return topology_step(x->t, in, &slot->stats);
}

// ---------------------------------------------------------------- outcomes
// found[r]: 1 + the index of rank r's first tensor with non-finite values, 0: none. elements[r]: how many values.
static void describe_overflow(const struct topology *t, const double *found, const double *elements,
                              char *where) {
    int first = -1, others = 0, used = 0;
    for (int r = 0; r < t->size; r++) {
        if (found[r] <= 0) continue;
        if (first < 0)
            first = r;
        else
            others++;
    }
    if (first < 0 && t->size == 1) return;
    if (first < 0) {
        snprintf(where, WHERE_BYTES,
                 "each rank's own gradient is finite, and the sum over the %d ranks is not; ", t->size);
        return;
    }
    used = snprintf(where, WHERE_BYTES, "rank %d has %.0f such values in %s, its first such tensor", first,
                    elements[first], grad_watch_name(t->layout, (int64_t)found[first] - 1));
    if (others > 0)
        used += snprintf(where + used, (size_t)(WHERE_BYTES - used), ", and %d other rank%s too", others,
                         others > 1 ? "s have some" : " has some");
    snprintf(where + used, (size_t)(WHERE_BYTES - used), "; ");
}

// Ends a run whose gradients are not finite although the loss scale is at its minimum. The message names the rank
// and the tensor. Where all ranks end at the same step, they exchange their counts and print the same message.
// Otherwise a rank reports its own values only. Where later steps have been counted already (lag), it names no
// tensor. Logs; returns -1.
static int fail_at_lowest_scale(struct train *x) {
    struct topology *t = x->t;
    bool alone = t->plan.independent || t->plan.partial;
    char where[WHERE_BYTES] = "";
    struct grad_watched own;
    if (t->plan.lag > 0 || grad_watch_read(x->parts->model, &own))
        return scaler_ended(&x->scaler, &x->c->scaler, "");
    double *found = xcalloc(2 * (size_t)t->size, sizeof *found);
    found[t->rank] = (double)(own.tensor + 1);
    found[t->size + t->rank] = (double)own.elements;
    bool summed = alone || !topology_sum(t, found, 2 * t->size);
    if (summed && (!alone || own.tensor >= 0)) describe_overflow(t, found, found + t->size, where);
    free(found);
    return scaler_ended(&x->scaler, &x->c->scaler, where);
}

// Adds the counts of the sequences whose gradients were used: the run's tokens.
static void count_tokens(struct train *x, const struct batch_count *mean) {
    struct batch_count *all = &x->r->counted;
    const struct step_plan *p = &x->t->plan;
    double share = p->partial ? (double)p->counted / (double)mean->tokens : 1;  // share of the mean's tokens
    all->tokens += p->partial ? p->counted : mean->tokens;
    all->padded_tokens += (int64_t)(share * (double)mean->padded_tokens);
    all->squares += share * mean->squares;
    x->r->sequences += p->partial ? p->workers * config_own_sequences(x->c) : p->mean;
}

// Adjusts the loss scale after an attempt; ends a run that no longer produces finite gradients.
static int apply_outcome(struct train *x, int64_t step, const struct step_slot *slot) {
    const struct step_stats *stats = &slot->stats;
    if (!stats->skipped) x->updates++;
    if (!stats->skipped) count_tokens(x, &slot->mean);
    if (stats->skipped && x->t->plan.lag > 0) step_plan_undo(x->t);
    x->skipped_in_a_row = stats->skipped ? x->skipped_in_a_row + 1 : 0;
    x->last_loss = stats->loss;
    if (slot->watched && stats->skipped) return fail_at_lowest_scale(x);
    if (x->c->scaler.enabled && x->c->scaler.static_scale <= 0)
        return scaler_update(&x->scaler, &x->c->scaler, stats->skipped);
    if (x->skipped_in_a_row >= DIVERGED_STEPS)
        return fail(
            "step %lld: the last %d gradients held infinities or NaN: the run has diverged; "
            "lower the learning rate, lengthen the warm-up or set gradient_clipping",
            (long long)step + 1, DIVERGED_STEPS);
    return 0;
}

static void report_step(const struct train *x, const struct step_slot *slot) {
    const struct step_plan *p = &x->t->plan;
    const struct step_input *in = &slot->in;
    if (!x->o->observer) return;
    // Tokens of the workers whose gradients counted.
    int64_t tokens = slot->mean.tokens;
    if (p->independent)
        tokens = batch_feed_count(x->parts->feed, x->pace.samples, p->samples - x->pace.samples).tokens;
    if (p->partial) tokens = p->counted;
    struct step_record record = {.step = in->step + 1,
                                 .loss = slot->stats.loss,
                                 .grad_norm = slot->stats.grad_norm,
                                 .lr = in->lr,
                                 .loss_scale = in->loss_scale,
                                 .tokens = tokens,
                                 .place = p->independent ? step_plan_steps_of_run(x->t) : 0,
                                 .workers = p->partial ? p->workers : 0,
                                 .samples = p->samples - (x->r->steps - in->step - 1) * p->mean,
                                 .seconds = slot->seconds,
                                 .elapsed = slot->elapsed,
                                 .skipped = slot->stats.skipped,
                                 .memory_bytes = slot->memory_bytes};
    x->o->observer->on_step(x->o->observer->ctx, &record);
}

// Receives the outcomes of the steps before `end`. Blocks until they are known.
static int receive_outcomes(struct train *x, int64_t end) {
    for (; x->outcomes_known < end; x->outcomes_known++)
        if (x->t->plan.lag > 0 && x->t->ops->outcome &&
            x->t->ops->outcome(x->t, x->outcomes_known, &slot_of(x, x->outcomes_known)->stats))
            return -1;
    return 0;
}

// Applies the outcomes of the steps before `end`, in order, each once. *stop becomes true if one of them asks to stop.
static int apply_outcomes(struct train *x, int64_t end, bool *stop) {
    if (receive_outcomes(x, end)) return -1;
    for (; x->outcomes_applied < end; x->outcomes_applied++) {
        const struct step_slot *slot = slot_of(x, x->outcomes_applied);
        if (apply_outcome(x, x->outcomes_applied, slot)) return -1;
        report_step(x, slot);
        pace_step(&x->pace, x->outcomes_applied, x->t->plan.samples, slot->now_ns, slot->stats.skipped);
        *stop |= slot->stats.stop;
    }
    return 0;
}

// Returns whether the run ends early after this step, because some rank was asked to stop. It ends at the first step
// after which it can be resumed. Where servers hold the state, the gradients of a step tell them to keep it, so the run
// does one more step.
static bool stops_after(struct train *x, int64_t step, bool stop) {
    bool before = x->stopping;
    int64_t every = x->c->recovery.checkpoint_every;
    bool kept = before || every == 0 || !x->t->state_servers || (step + 1) % every == 0;
    x->stopping |= stop;
    if (x->t->plan.not_resumable) return false;
    if (x->t->plan.independent) return x->stopping;  // `finish` keeps the state after the last step
    return x->stopping && kept && step + 1 < x->c->steps;
}

// ---------------------------------------------------------------- steps
static int run_step(struct train *x, int64_t step, int64_t start, int64_t begin) {
    struct step_slot *slot = slot_of(x, step);
    struct step_plan *plan = &x->t->plan;
    bool stop = false;
    // 1. Every outcome must be known after a step from whose checkpoint a run may resume. This depends on the
    // configuration and the steps only: other ranks do not know whether this rank writes checkpoints.
    int64_t every = x->c->recovery.checkpoint_every;
    plan->drain = every > 0 && (x->stopping || step + 1 == x->c->steps || (step + 1) % every == 0);
    // 2. If the state is to be kept, the previous checkpoint must be complete. Where steps go on without late ranks,
    // all ranks must agree on which steps' state is kept.
    plan->keep =
        saver_is_checkpoint_due(x->o->saver, step, x->stopping) || (plan->may_miss_steps && plan->drain);
    if (plan->keep) saver_wait_previous(x->o->saver);
    // 3. The step, and the outcomes that are applied now.
    if (attempt(x, step)) return -1;
    // A snapshot records how many updates its weights hold.
    bool skips = x->c->clip > 0 || x->c->dtype == DT_F16;
    bool snapshot = slot->in.snapshot || (x->c->eval_every > 0 && (step + 1) % x->c->eval_every == 0);
    int64_t end = plan->drain ? step + 1 : step + 1 - plan->lag;
    if (receive_outcomes(x, snapshot && skips ? step + 1 : end)) return -1;
    slot->now_ns = now_ns();
    slot->seconds = seconds_between(begin, slot->now_ns);
    slot->elapsed = x->o->elapsed_before + seconds_between(start, slot->now_ns);
    struct mem_usage usage;
    dev_usage(x->t->dev, &usage);
    slot->memory_bytes = mem_device_bytes(usage.current_bytes);
    if (step == x->t->start.step) x->allocations = usage.allocations;
    x->r->steps = step + 1;
    if (apply_outcomes(x, end, &stop)) return -1;
    // 4. Snapshot and checkpoint.
    struct train_state weights = weights_now(x);
    saver_take_snapshot(x->o->saver, &weights, slot->elapsed, slot->stats.snapshot);
    x->r->interrupted = stops_after(x, step, stop);
    if (x->r->interrupted && apply_outcomes(x, step + 1, &stop)) return -1;
    struct train_state state = state_now(x);
    if (plan->keep || (x->r->interrupted && !x->t->state_servers))
        saver_write_checkpoint(x->o->saver, &state);
    return 0;
}

// Plans step `step`. Returns 1, 0 if this rank does no such step, -1 on failure.
static int plan_next_step(struct train *x, int64_t step) {
    if (x->r->interrupted) return 0;
    if (!x->t->plan.independent && step >= x->c->steps) return 0;
    int more = topology_plan(x->t, step);  // 0 before all samples are handed out: some rank was asked to stop
    if (more == 0) x->r->interrupted = x->t->plan.handed_out < x->c->steps * x->c->train_batch;
    return more;
}

static int open_gate(struct train *x) {
    int64_t group = x->c->local_steps.steps > 0 ? x->c->local_steps.steps : 1;
    const struct gate_facts facts = {.rank = x->t->rank,
                                     .ranks = x->t->size,
                                     .own = config_own_sequences(x->c),
                                     .unit = x->c->train_batch * group,
                                     .total = x->c->steps * x->c->train_batch,
                                     .pace = x->t->plan.independent      ? GATE_PACE_OWN
                                             : x->t->plan.may_miss_steps ? GATE_PACE_FASTEST
                                                                         : GATE_PACE_SLOWEST,
                                     .stop = x->job->stop};
    return gate_join(&x->gate, &facts);
}

// Waits at the gate (shared/time/gate.h) until it is open for a step that begins with this sample, after all work
// enqueued so far. The waiting time belongs to no step: *start (of the first step) and *begin (of this step) move
// forward by it. Where the slowest rank sets the pace, a rank that arrives first would wait for the others even without
// a gate: after the first step that time counts for the run.
static int wait_at_gate(struct train *x, int64_t sample, int64_t *start, int64_t *begin) {
    if (gate_is_open(&x->gate, sample)) return 0;
    if (stream_sync(x->t->compute)) return step_failed(x, x->r->steps - 1);
    int64_t arrived = now_ns(), all_waited_before = gate_held_ns();
    timeline_pause_at(x->t->timeline, *begin);
    if (gate_wait(&x->gate, sample)) return -1;
    bool slowest = x->gate.facts.pace == GATE_PACE_SLOWEST && x->r->steps > x->t->start.step;
    int64_t waited = slowest ? gate_held_ns() - all_waited_before : now_ns() - arrived;
    x->r->report.span.not_training_s += 1e-9 * (double)waited;
    *start += waited;
    *begin += waited;
    return 0;
}

static int run_steps(struct train *x) {
    struct step_plan *p = &x->t->plan;
    struct rank_span *span = &x->r->report.span;
    double nothing = 0;
    // 1. Ranks that do not wait for each other begin together. Otherwise, while rank 0 still prints its first lines,
    // the others would use up the shared budget before its clock runs. They would also pass the first version that a
    // snapshot needs. Not where a rank may join later (elastic): it would miss this sum.
    bool independent = p->independent || p->may_miss_steps;
    x->pace.samples = p->samples;
    saver_request_first(x->o->saver, x->o->elapsed_before);
    if (independent && !x->c->recovery.elastic && topology_sum(x->t, &nothing, 1)) return -1;
    saver_start(x->o->saver, x->o->elapsed_before);
    rank_span_begin(span);
    // 2. A resumed run: its last snapshot may have been unfinished when the run was killed. If no step is left, a run
    // with other ranks, or another directory, than the checkpoint's keeps the state too.
    if (x->t->start.step > 0) {
        struct train_state weights = weights_now(x);
        weights.step = x->t->start.step;
        saver_take_snapshot(x->o->saver, &weights, x->o->elapsed_before, false);
    }
    int64_t start = now_ns(), begin = start;
    if (x->t->start.step >= x->c->steps && !x->t->state_servers)
        saver_write_checkpoint(x->o->saver, &x->t->start);
    // 3. The steps. Ranks that step together wait at the gate by the run's step; a rank with its own steps by its own
    // batch. A group of local steps is never interrupted: other ranks would wait for it.
    int more;
    bool in_group = false;
    for (int64_t step = x->t->start.step; (more = plan_next_step(x, step)) > 0; step++) {
        int64_t sample = p->independent ? p->first : step * x->c->train_batch;
        if (!in_group && wait_at_gate(x, sample, &start, &begin)) return -1;
        timeline_step_at(x->t->timeline, step, begin);
        if (run_step(x, step, start, begin)) return -1;
        begin = now_ns();
        in_group = p->not_resumable;
        gate_step(&x->gate, p->partial ? p->counted / x->t->size : p->tokens, begin);
    }
    bool stop = false;  // not used: no step is left
    if (more < 0 || apply_outcomes(x, x->r->steps, &stop)) return -1;
    if (stream_sync(x->t->compute)) return step_failed(x, x->r->steps - 1);  // updates belong to the step
    // 4. The end of this rank's steps. Time in which other ranks use the rest of the budget is not this rank's.
    int64_t end = p->independent ? begin : now_ns();
    timeline_pause_at(x->t->timeline, end);
    rank_span_end(span);
    if (p->independent) span->end_ns = end;
    x->steps_s = seconds_between(start, end);
    x->job_s = x->o->elapsed_before + x->steps_s;
    const struct pace_end at = {x->t, x->t->timeline, end, x->c->recovery.elastic ? end : now_ns()};
    double not_training_s = span->not_training_s;
    int64_t left = end;
    if (wait_at_gate(x, GATE_END, &start, &left)) return -1;
    span->not_training_s = not_training_s;  // the span ended before this wait
    x->applied = (double)(x->updates - x->t->start.updates);
    if (!p->independent) return 0;
    // 5. Ranks with steps of their own stop at different steps, so each reports here whether it stopped early.
    double sums[2] = {x->r->interrupted, x->applied};
    if (topology_sum(x->t, sums, 2)) return -1;
    x->r->interrupted |= sums[0] > 0;
    x->applied = sums[1];
    int rc = pace_report(&x->pace, &at, &x->r->report);
    x->job_s += seconds_between(left, now_ns());  // only then do the weights hold all workers' gradients
    return rc;
}

// ---------------------------------------------------------------- after the last step
// Checks a run that was too short for `apply_outcome` to end it. Fails if no update was applied, or if the weights no
// longer give a finite gradient. While the loss is finite, an fp16 run may still be searching for its loss scale:
// then it only warns.
static int check_learned(const struct train *x) {
    int64_t steps = x->r->steps - x->t->start.step;
    bool lost = !isfinite(x->last_loss), none = x->applied <= 0, searches = x->c->scaler.enabled && !lost;
    if (steps <= 0 || x->r->interrupted || (!none && !(lost && x->skipped_in_a_row > 1))) return 0;
    if (!searches)
        return fail(
            "step %lld: the last %d gradients held infinities or NaN%s: the run has diverged, or began with such weights; "
            "lower the learning rate, lengthen the warm-up or set gradient_clipping",
            (long long)x->r->steps, x->skipped_in_a_row, none ? ", and no step was applied" : "");
    warn(
        "no step was applied: all %lld overflowed, and the loss scale is %g now: take more steps, or set "
        "fp16.initial_scale_power lower",
        (long long)steps, x->scaler.scale);
    return 0;
}

// Where ranks share a budget, the last step is unknown in advance: the final state is kept here.
static int finish(struct train *x) {
    x->t->plan.keep = x->t->plan.independent && x->o->saver;
    if (x->t->plan.keep) saver_wait_previous(x->o->saver);
    int file_failed = topology_finish(x->t);
    if (file_failed < 0) return -1;
    x->r->file_failed = file_failed > 0;
    x->r->steps_of_run = step_plan_steps_of_run(x->t);
    // A request to stop during the last batch does not matter: the run is complete.
    x->r->interrupted &= x->r->steps_of_run < x->c->steps;
    struct train_state state = state_now(x);
    if (x->t->plan.keep) saver_write_checkpoint(x->o->saver, &state);
    return 0;
}

// Writes the base model of an adapter next to it, where it was drawn from the seed: nothing else has it. The other ranks
// wait unit by unit, as below.
static int write_drawn_base(struct train *x, struct hf_writer *adapter) {
    const struct layout *model = layout_of_model(x->l);
    char *dir = xasprintf("%s/base", x->o->weights_out ? x->o->weights_out : "");
    struct hf_writer *writer = adapter ? hf_writer_create(dir, &x->job->spec, model, x->t->dtype) : NULL;
    int rc = adapter && !writer ? -1 : 0;
    for (int u = 0; u < model->count && !rc; u++) {
        int64_t n = model->units[u].n_pad;
        if (writer) {
            float *values = xcalloc((size_t)n, sizeof *values);
            void *rounded = xcalloc((size_t)n, dtype_size(x->t->dtype));
            model_init_unit(x->l, u, x->c->seed, values);
            for (int64_t i = 0; i < n; i++) dtype_store(x->t->dtype, rounded, (size_t)i, values[i]);
            rc = hf_write_unit(writer, u, rounded);
            free(rounded);
            free(values);
        }
        double nothing = 0;
        if (!rc) rc = topology_sum(x->t, &nothing, 1);
    }
    if (writer && !rc && !(rc = hf_writer_finish(&writer))) hf_writer_base(adapter, dir);
    if (writer) hf_writer_discard(&writer);
    free(dir);
    return rc;
}

// Hashes the final weights on rank 0, and writes them when asked. Every rank takes part, unit by unit. After each
// unit the others wait for rank 0's disk, so that no timeout must cover the writing of a whole model.
static int write_final_weights(struct train *x) {
    const struct train_options *o = x->o;
    struct train_result *r = x->r;
    struct topology *t = x->t;
    const struct layout *l = x->l;
    bool first = t->rank == 0;
    struct hf_writer *writer = NULL;
    if (first && o->weights_out && !(writer = hf_writer_create(o->weights_out, &x->job->spec, l, t->dtype)))
        return -1;
    struct weights_hash *hash = weights_hash_create();
    int rc = 0;
    struct train_state now = weights_now(x);
    now.step = x->c->steps;
    if (first && !r->interrupted) saver_final_begin(o->saver, &now, x->job_s);
    for (int u = 0; u < l->count && !rc; u++) {
        struct unit_view view;
        if ((rc = topology_acquire(t, u, PASS_EVAL, &view))) break;
        size_t bytes = (size_t)l->units[u].n_pad * dtype_size(t->dtype);
        if (first) {
            void *host = xcalloc(1, bytes);
            dev_copy(t->compute, host, view.weights, bytes);
            rc = stream_sync(t->compute);
            if (!rc) weights_hash_unit(hash, l, u, host, t->dtype);
            if (!rc && writer) rc = hf_write_unit(writer, u, host);
            if (!rc && !r->interrupted) saver_final_unit(o->saver, u, host);
            free(host);
        }
        if (!rc) rc = topology_release(t, u, PASS_EVAL);
        double nothing = 0;
        if (!rc) rc = topology_sum(t, &nothing, 1);
    }
    if (l->model && !x->job->weights_in && !rc)
        rc = write_drawn_base(x, writer);
    else if (l->model && writer)
        hf_writer_base(writer, x->job->weights_in);
    r->weights_hash = weights_hash_finish(&hash);
    r->has_hash = first && !rc;
    if (writer && !rc) {
        rc = hf_writer_finish(&writer);
        if (!rc && o->tokenizer_in) rc = tokenizer_copy(o->tokenizer_in, o->weights_out);
    }
    if (writer) hf_writer_discard(&writer);
    return rc;
}

// Splits the time of all steps, and compares the sum of the parts with the loop's own clock.
static void split_time(struct train *x) {
    struct rank_report *r = &x->r->report;
    timeline_end(x->t->timeline);
    timeline_split(x->t->timeline, &r->time);
    bool any = x->r->steps > x->t->start.step;
    r->time_check = any && x->steps_s > 0 ? time_split_parts(&r->time) / x->steps_s : 1;
    r->clock_error_ns = timeline_clock(x->t->timeline).error_ns;
    uint64_t lost = timeline_lost(x->t->timeline);
    if (fabs(r->time_check - 1) > TIME_TOLERANCE)
        warn("the parts of the time add up to %.3f s, the steps took %.3f s: the split is off by %.1f%%",
             time_split_parts(&r->time), x->steps_s, 100 * fabs(r->time_check - 1));
    if (lost)
        warn("%llu intervals of the compute stream could not be recorded: their time counts as host time",
             (unsigned long long)lost);
}

static size_t peak_rss_bytes(void) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    size_t kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %zu", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

size_t train_predict(const struct config *c, const struct model_spec *s, const struct layout *l, int rank,
                     size_t state_bytes, bool gpu, bool snapshots, size_t bytes[MEM_CLASSES]) {
    size_t model_bytes[MEM_CLASSES], of_snapshots = 0;
    struct model_options m = train_model_options(c, s, l);
    model_predict(&m, model_bytes);
    if (!shards_frozen(c)) frozen_predict(l, c->dtype, model_bytes);
    batch_feed_predict(c, gpu, model_bytes);
    slowdown_predict(c, model_bytes);
    struct saver_bytes kept = saver_predict(c, l, rank, state_bytes, gpu);
    for (int k = 0; k < MEM_CLASSES; k++) {
        size_t own = snapshots ? kept.snapshots[k] : 0;
        bytes[k] += model_bytes[k] + kept.checkpoints[k] + own;
        of_snapshots += own;
    }
    return of_snapshots;
}

static void fill_report(struct train *x) {
    struct rank_report *r = &x->r->report;
    struct mem_usage usage;
    snprintf(r->role, sizeof r->role, "worker");
    r->rank = x->t->rank;
    r->job = x->t->job;
    r->updates = x->updates - x->t->start.updates;
    r->independent = x->t->plan.independent;
    if (r->independent) r->batches = x->r->steps - x->t->start.step;
    if (r->independent) r->tokens = x->r->counted.tokens;
    r->samples_per_update = x->t->plan.mean;
    r->may_be_left_out = x->t->plan.may_miss_steps;
    r->late_steps = x->t->plan.late;
    r->missed_steps = x->t->plan.missed;
    r->samples_counted = x->t->plan.partial ? x->t->plan.samples - x->t->start.samples : 0;
    dev_usage(x->t->dev, &usage);
    memcpy(r->peak_bytes, usage.peak_bytes, sizeof r->peak_bytes);
    r->memory = x->t->memory;
    r->memory.formula_bytes += frozen_formula(x->c, x->l);
    train_predict(x->c, &x->job->spec, x->l, x->t->rank, saver_state_bytes(x->o->saver),
                  !dev_host_memory(x->t->dev), saver_takes_snapshots(x->o->saver), r->memory.predicted_bytes);
    r->rss_bytes = peak_rss_bytes();
    r->late_allocations = x->allocations ? usage.allocations - x->allocations : 0;
    r->wire = x->t->wire_predicted;
    r->wire_later = x->t->wire_later;
    rank_report_count(r, &x->t->wire, (double)(x->r->steps - x->t->start.step - r->missed_steps));
    r->staleness = x->t->staleness;
    r->consensus_distance = x->t->consensus_distance;
    r->checkpoints = saver_report(x->o->saver);
}

static int prepare_and_run(struct train *x) {
    const struct config *c = x->c;
    struct topology *t = x->t;
    const struct train_state *from = &t->start;
    // 1. Model, batches and slowdown, unless the caller has created them.
    if (!x->parts->model && train_parts_create(x->parts, x->o->job, t->dev, t->compute)) return -1;
    // 2. The plan and the weights of the first step.
    t->plan.mean = t->plan.independent ? config_own_sequences(x->c) : c->train_batch;
    t->plan.samples = from->samples;
    t->plan.unapplied = from->unapplied;
    t->plan.version = from->updates;
    t->plan.steps = from->step;
    t->plan.handed_out = from->handed_out;
    t->plan.lag = t->lag;
    if (open_gate(x)) return -1;
    x->slots = xcalloc(1 + (unsigned long)t->lag, sizeof *x->slots);
    bool failed = false;
    x->shards_frozen = x->l->model && shards_frozen(c);
    x->frozen = x->shards_frozen ? NULL : frozen_create(t->dev, x->l, c->dtype, &failed);
    if (failed) return fail("out of device memory for the frozen weights: %s", dev_error(t->dev));
    if (load_initial_weights(x)) return -1;
    x->r->steps = x->outcomes_known = x->outcomes_applied = from->step;
    // In an asynchronous job's checkpoint, this worker may have done no step yet while others had.
    if (from->step > 0 || from->updates > 0) {
        x->updates = from->updates;
        x->skipped_in_a_row = from->skipped_in_a_row;
        x->scaler = from->scaler;
    }
    // 3. The steps.
    struct timeline_options to = {t->compute, x->l, c->accumulation, t->size, c->trace, x->o->watch};
    if (!(t->timeline = x->parts->timeline = timeline_create(&to))) return -1;
    const struct train_observer *o = x->o->observer;
    if (o && o->on_start) o->on_start(o->ctx, c, &x->job->spec, x->l);
    if (run_steps(x) || check_learned(x) || finish(x)) return -1;
    // 4. Time and memory: transfers of the last step are done, the peers have reported when they were ready, and every
    // rank still holds its memory. If the device or the kernel cannot report its memory, the report has no such
    // figures.
    struct rank_report *report = &x->r->report;
    split_time(x);
    if (t->rank == 0) job_resident_read(&report->resident);
    report->on_gpu =
        !dev_facts(t->dev, &report->device) && !device_memory_read(t->dev, &report->device_memory);
    // 5. The final weights, in which all ranks take part.
    bool keep = !x->r->interrupted || x->job->save_on_interrupt;
    if (keep && write_final_weights(x)) return -1;
    saver_finish(x->o->saver);
    return 0;
}

int train_run(const struct train_options *o, struct train_result *result) {
    *result = (struct train_result){0};
    struct train x = {.o = o,
                      .job = o->job,
                      .c = o->job->config,
                      .t = o->topology,
                      .l = o->topology->layout,
                      .parts = o->parts,
                      .r = result};
    scaler_init(&x.scaler, &x.c->scaler);
    int rc = prepare_and_run(&x);
    if (rc) topology_abort(x.t, error_last());
    if (rc) saver_abandon(x.o->saver);
    if (rc) stream_sync(x.t->compute);  // enqueued work still uses the model's buffers
    fill_report(&x);
    frozen_destroy(&x.frozen);
    free(x.slots);
    return rc;
}
