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
#include "shared/model/grad_watch.h"
#include "shared/report/metrics.h"
#include "shared/state/checkpoint_read.h"
#include "shared/state/weights_hash.h"
#include "shared/time/gate.h"
#include "shared/time/timeline.h"
#include "shared/train/batch_feed.h"
#include "shared/train/pace.h"
#include "shared/train/saver.h"
#include "shared/train/slowdown.h"

// After so many consecutive steps without a finite gradient, a run whose loss scale does not change has diverged.
#define DIVERGED_STEPS 8
#define WHERE_BYTES    320  // of a text that names the overflowed tensor

// A step from its begin until its outcome counts: plan.lag steps later, or where all outcomes must be known.
struct made {
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
    const struct config *c;
    struct topology *t;
    const struct layout *l;
    struct model *model;
    struct train_result *r;
    struct scaler scaler;
    struct made *made;  // (1 + plan.lag), of step t made[t % (1 + plan.lag)]
    int64_t heard;      // steps whose outcomes are known
    int64_t judged;     // steps whose outcomes count: loss scale, learning rate and skips follow them
    int64_t updates;    // applied so far
    struct pace pace;   // where ranks do not wait for each other
    int skipped_in_a_row;
    double applied;  // after the last step: updates of this start; of all ranks where each has its own steps
    double last_loss;  // of the last step that counts
    bool leaving;      // some rank was asked to stop
    struct batch_feed *feed;
    struct slowdown *slowdown;  // NULL: no trouble was asked for
    struct gate_rank gate;
    double steps_s;        // all steps
    double job_s;          // as steps_s, plus earlier starts, and until the last worker has ended its steps
    uint64_t allocations;  // after the first step
};

static struct made *made_of(const struct train *x, int64_t step) {
    return &x->made[step % (1 + x->t->plan.lag)];
}

static int64_t own_sequences(const struct train *x) { return x->c->micro_batch * x->c->accumulation; }

// The counts that the step's mean is over: this rank's own batch, or the global batch that it is a slice of. Each
// rank counts them itself.
static struct batch_count count_mean(const struct train *x) {
    const struct step_plan *p = &x->t->plan;
    int64_t own = own_sequences(x);
    return batch_feed_count(x->feed, p->first - (p->mean == own ? 0 : own * p->slice), p->mean);
}

static struct train_state state_now(const struct train *x) {
    int64_t place = step_plan_place(x->t);
    return (struct train_state){.step = x->r->steps,
                                .updates = x->updates,
                                .samples = x->t->plan.samples,
                                .unapplied = x->t->plan.unapplied,
                                .place = place != x->r->steps ? place : 0,
                                .dealt = step_plan_dealt(&x->t->plan),
                                .skipped_in_a_row = x->skipped_in_a_row,
                                .scaler = x->scaler};
}

// The state that a snapshot records: steps of the job, of any rank.
static struct train_state weights_now(const struct train *x) {
    int64_t skipped = 0;  // steps whose outcome is known and does not count yet
    for (int64_t step = x->judged; step < x->heard; step++) skipped += made_of(x, step)->stats.skipped;
    return (struct train_state){.step = step_plan_place(x->t),
                                .updates = x->t->plan.version - skipped,
                                .samples = x->t->plan.samples - skipped * x->t->plan.mean};
}

static int step_failed(const struct train *x, int64_t step) {
    return fail("step %lld: %s", (long long)step + 1, topology_why(x->t));
}

static double seconds_since(int64_t begin, int64_t now) { return 1e-9 * (double)(now - begin); }

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

// Loads the weights from the checkpoint (all state, or weights only), from a file, or from the seed.
static int initial_weights(struct train *x) {
    struct hf_reader *reader = NULL;
    int64_t most = 0;
    bool weights_only = x->c->recovery.resume_weights_only;
    if (x->t->under_way) return 0;
    if (x->o->checkpoint && !weights_only) return topology_load(x->t, x->o->checkpoint);
    for (int u = 0; u < x->l->count; u++) most = x->l->units[u].n_pad > most ? x->l->units[u].n_pad : most;
    bool file = x->o->weights_in && !x->o->checkpoint;
    if (file && !(reader = hf_open(x->o->weights_in, x->o->spec, x->l))) return -1;
    float *values = xcalloc((size_t)most, sizeof *values);
    int rc = 0;
    for (int u = 0; u < x->l->count && !rc; u++) {
        if (reader)
            rc = hf_read_unit(reader, u, values);
        else if (x->o->checkpoint)
            rc = checkpoint_read(x->o->checkpoint, x->l, u, STATE_MASTER, 0, x->l->units[u].n_pad, values);
        else
            model_init_unit(x->l, u, x->c->seed, values);
        if (!rc) rc = topology_load_unit(x->t, u, values);
    }
    free(values);
    if (reader) hf_close(&reader);
    return rc;
}

static void go_on_from(struct train *x, const struct train_state *s) {
    x->r->steps = x->heard = x->judged = s->step;
    // In an asynchronous job's checkpoint, this worker may have done no step yet while others had.
    if (s->step == 0 && s->updates == 0) return;
    x->updates = s->updates;
    x->skipped_in_a_row = s->skipped_in_a_row;
    x->scaler = s->scaler;
}

// ---------------------------------------------------------------- one attempt at an update
static int forward(struct train *x) {
    struct topology *t = x->t;
    int last = x->l->count - 1;
    for (int u = 0; u <= last; u++) {
        struct unit_view view;
        if (topology_acquire(t, u, PASS_FORWARD, &view)) return -1;
        if (u < last) topology_prefetch(t, u + 1, PASS_FORWARD);
        slowdown_before(x->slowdown);
        model_forward(x->model, u, &view, NULL, false);
        slowdown_after(x->slowdown);
        if (topology_release(t, u, PASS_FORWARD)) return -1;
    }
    return 0;
}

static int backward(struct train *x, int micro, bool watched) {
    struct topology *t = x->t;
    int last = x->l->count - 1;
    for (int u = last; u >= 0; u--) {
        struct unit_view view, tied;
        bool needs_tied = u == last && x->l->tied;
        if (topology_acquire(t, u, PASS_BACKWARD, &view)) return -1;
        if (needs_tied && topology_acquire(t, 0, PASS_BACKWARD, &tied)) return -1;
        if (u > 0) topology_prefetch(t, u - 1, PASS_BACKWARD);
        slowdown_before(x->slowdown);
        model_backward(x->model, u, &view, needs_tied ? &tied : NULL);
        slowdown_after(x->slowdown);
        if (watched) grad_watch_unit(x->model, u, view.grad, micro);
        if (topology_grad_ready(t, u)) return -1;
    }
    return 0;
}

// Does nothing if the batch has been read ahead. Reading ahead overlaps the device's work, so it costs no time
// while that work takes longer.
static int read_batch(struct train *x, int64_t step, int64_t first) {
    int64_t start = now_ns();
    if (batch_feed_read(x->feed, step, first)) return -1;
    timeline_data(x->r->timeline, start, now_ns());
    return 0;
}

// Computes all micro-batches of a step.
static int compute(struct train *x, int64_t step, const struct made *made) {
    double tokens = (double)made->mean.tokens;
    if (read_batch(x, step, x->t->plan.first)) return step_failed(x, step);
    for (int k = 0; k < (int)x->c->accumulation; k++) {
        if (topology_begin_micro(x->t, k, (int)x->c->accumulation)) return -1;
        struct batch b = batch_feed_micro(x->feed, step, k);
        slowdown_micro(x->slowdown, x->t->rank, step, k);
        stream_phase(x->t->compute, PHASE_FORWARD);
        model_set_seq(x->model, b.seq);
        model_set_batch(x->model, b.tokens, b.targets, (float)(x->scaler.scale / tokens), k == 0);
        if (forward(x)) return -1;
        stream_phase(x->t->compute, PHASE_BACKWARD);
        if (backward(x, k, made->watched)) return -1;
        stream_phase(x->t->compute, PHASE_OTHER);
    }
    batch_feed_sent(x->feed, step);
    int64_t next = x->t->plan.next;
    bool ahead = step + 1 < x->c->steps && next >= 0;
    return ahead && read_batch(x, step + 1, next) ? step_failed(x, step) : 0;
}

// One attempt at an update: computes the step, unless it was closed without this rank; then calls the topology's step.
static int attempt(struct train *x, int64_t step) {
    struct made *made = made_of(x, step);
    *made = (struct made){.watched = scaler_at_end(&x->scaler, &x->c->scaler), .mean = count_mean(x)};
    struct step_input *in = &made->in;
    in->step = step;
    in->loss_scale = (float)x->scaler.scale;
    in->clip = x->c->clip;
    x->t->plan.loss_scale = in->loss_scale;
    x->t->plan.tokens = batch_feed_count(x->feed, x->t->plan.first, own_sequences(x)).tokens;
    x->t->plan.mean_tokens = made->mean.tokens;
    if (x->t->writes_early) saver_hold(x->o->saver);
    if (!x->t->plan.over && compute(x, step, made)) return -1;
    in->updates = x->updates;
    in->lr = schedule_lr(&x->c->schedule, x->c->optimizer.lr,
                         schedule_steps(step_plan_seen(&x->t->plan), x->c->train_batch));
    in->loss_sum = model_loss_on_device(x->model);
    in->loss_tokens = (double)made->mean.tokens;
    in->stop = x->o->stop && *x->o->stop;
    in->snapshot = saver_wants(x->o->saver);
    saver_hold(x->o->saver);
    return topology_step(x->t, in, &made->stats);
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
static int end_of_scale(struct train *x) {
    struct topology *t = x->t;
    bool alone = t->plan.alone || t->plan.in_part;
    char where[WHERE_BYTES] = "";
    struct grad_watched own;
    if (t->plan.lag > 0 || grad_watch_read(x->model, &own))
        return scaler_ended(&x->scaler, &x->c->scaler, "");
    double *found = xcalloc(2 * (size_t)t->size, sizeof *found);
    found[t->rank] = (double)(own.tensor + 1);
    found[t->size + t->rank] = (double)own.elements;
    bool told = alone || !topology_sum(t, found, 2 * t->size);
    if (told && (!alone || own.tensor >= 0)) describe_overflow(t, found, found + t->size, where);
    free(found);
    return scaler_ended(&x->scaler, &x->c->scaler, where);
}

// Adds the counts of the sequences whose gradients were used: the run's tokens.
static void count_tokens(struct train *x, const struct batch_count *mean) {
    struct batch_count *all = &x->r->counted;
    const struct step_plan *p = &x->t->plan;
    double share = p->in_part ? (double)p->counted / (double)mean->tokens : 1;  // of the mean
    all->tokens += p->in_part ? p->counted : mean->tokens;
    all->places += (int64_t)(share * (double)mean->places);
    all->squares += share * mean->squares;
    x->r->sequences += p->in_part ? p->workers * own_sequences(x) : p->mean;
}

// Adjusts the loss scale after an attempt; ends a run that no longer produces finite gradients.
static int judge(struct train *x, int64_t step, const struct made *made) {
    const struct step_stats *stats = &made->stats;
    if (!stats->skipped) x->updates++;
    if (!stats->skipped) count_tokens(x, &made->mean);
    if (stats->skipped && x->t->plan.lag > 0) step_plan_undo(x->t);
    x->skipped_in_a_row = stats->skipped ? x->skipped_in_a_row + 1 : 0;
    x->last_loss = stats->loss;
    if (made->watched && stats->skipped) return end_of_scale(x);
    if (x->c->scaler.enabled && x->c->scaler.static_scale <= 0)
        return scaler_update(&x->scaler, &x->c->scaler, stats->skipped);
    if (x->skipped_in_a_row >= DIVERGED_STEPS)
        return fail(
            "step %lld: the last %d gradients held infinities or NaN: the run has diverged; "
            "lower the learning rate, lengthen the warm-up or set gradient_clipping",
            (long long)step + 1, DIVERGED_STEPS);
    return 0;
}

static void tell_step(const struct train *x, const struct made *made) {
    const struct step_plan *p = &x->t->plan;
    const struct step_input *in = &made->in;
    if (!x->o->observer) return;
    // Tokens of the workers whose gradients counted.
    int64_t tokens = made->mean.tokens;
    if (p->alone) tokens = batch_feed_count(x->feed, x->pace.samples, p->samples - x->pace.samples).tokens;
    if (p->in_part) tokens = p->counted;
    struct step_record record = {.step = in->step + 1,
                                 .loss = made->stats.loss,
                                 .grad_norm = made->stats.grad_norm,
                                 .lr = in->lr,
                                 .loss_scale = in->loss_scale,
                                 .tokens = tokens,
                                 .place = p->alone ? step_plan_place(x->t) : 0,
                                 .workers = p->in_part ? p->workers : 0,
                                 .samples = p->samples - (x->r->steps - in->step - 1) * p->mean,
                                 .seconds = made->seconds,
                                 .elapsed = made->elapsed,
                                 .skipped = made->stats.skipped,
                                 .memory_bytes = made->memory_bytes};
    x->o->observer->on_step(x->o->observer->ctx, &record);
}

// Receives the outcomes of the steps before `end`. Blocks until they are known.
static int hear(struct train *x, int64_t end) {
    for (; x->heard < end; x->heard++)
        if (x->t->plan.lag > 0 && x->t->ops->outcome &&
            x->t->ops->outcome(x->t, x->heard, &made_of(x, x->heard)->stats))
            return -1;
    return 0;
}

// Applies the outcomes of the steps before `end`, in order, each once. *stop becomes true if one of them asks to stop.
static int count(struct train *x, int64_t end, bool *stop) {
    if (hear(x, end)) return -1;
    for (; x->judged < end; x->judged++) {
        const struct made *made = made_of(x, x->judged);
        if (judge(x, x->judged, made)) return -1;
        tell_step(x, made);
        pace_step(&x->pace, x->judged, x->t->plan.samples, made->now_ns, made->stats.skipped);
        *stop |= made->stats.stop;
    }
    return 0;
}

// Returns whether the run ends early after this step, because some rank was asked to stop. Where servers hold the
// state, a step's gradients tell them to keep it: then the run does one more step.
static bool leaves(struct train *x, int64_t step, bool told) {
    bool before = x->leaving;
    int64_t every = x->c->recovery.checkpoint_every;
    bool kept = before || every == 0 || !x->t->elsewhere || (step + 1) % every == 0;
    x->leaving |= told;
    if (x->t->plan.open) return false;
    if (x->t->plan.alone) return x->leaving;  // finish keeps the state
    return x->leaving && kept && step + 1 < x->c->steps;
}

// ---------------------------------------------------------------- steps
// Returns whether every outcome must be known after the step, because a run resumed from its checkpoint begins that
// way. Depends on the configuration and the steps only: other ranks do not know whether this rank writes checkpoints.
static bool is_drained(const struct train *x, int64_t step) {
    int64_t every = x->c->recovery.checkpoint_every;
    return every > 0 && (x->leaving || step + 1 == x->c->steps || (step + 1) % every == 0);
}

static int one_step(struct train *x, int64_t step, int64_t start, int64_t begin) {
    struct made *made = made_of(x, step);
    struct step_plan *plan = &x->t->plan;
    bool told = false;
    // 1. Waits for room for the state, if the state is kept.
    plan->drain = is_drained(x, step);
    // Where steps go on without late ranks, all ranks must agree on which steps' state is kept.
    plan->keep = saver_due(x->o->saver, step, x->leaving) || (plan->drops && plan->drain);
    if (plan->keep) saver_gate(x->o->saver);
    // 2. The step, and the outcomes that count now.
    if (attempt(x, step)) return -1;
    // A snapshot records how many updates its weights hold.
    bool skips = x->c->clip > 0 || x->c->dtype == DT_F16;
    bool snapshot = made->in.snapshot || (x->c->eval_every > 0 && (step + 1) % x->c->eval_every == 0);
    int64_t end = plan->drain ? step + 1 : step + 1 - plan->lag;
    if (hear(x, snapshot && skips ? step + 1 : end)) return -1;
    made->now_ns = now_ns();
    made->seconds = seconds_since(begin, made->now_ns);
    made->elapsed = x->o->elapsed_before + seconds_since(start, made->now_ns);
    struct mem_usage usage;
    dev_usage(x->t->dev, &usage);
    made->memory_bytes = mem_device_bytes(usage.current_bytes);
    if (step == x->t->start.step) x->allocations = usage.allocations;
    x->r->steps = step + 1;
    if (count(x, end, &told)) return -1;
    // 3. Snapshot and checkpoint.
    struct train_state weights = weights_now(x);
    saver_step(x->o->saver, &weights, made->elapsed, made->stats.snapshot);
    x->r->interrupted = leaves(x, step, told);
    if (x->r->interrupted && count(x, step + 1, &told)) return -1;
    struct train_state state = state_now(x);
    if (plan->keep || (x->r->interrupted && !x->t->elsewhere)) saver_keep(x->o->saver, &state);
    return 0;
}

// Returns 1 if this rank does a step `step`, 0 if not, -1 on failure.
static int has_step(struct train *x, int64_t step) {
    if (x->r->interrupted) return 0;
    if (!x->t->plan.alone && step >= x->c->steps) return 0;
    int more = topology_plan(x->t, step);  // 0 before all samples are handed out: some rank was asked to stop
    if (more == 0) x->r->interrupted = x->t->plan.dealt < x->c->steps * x->c->train_batch;
    return more;
}

static int take_seat(struct train *x) {
    int64_t round = x->c->local_steps.steps > 0 ? x->c->local_steps.steps : 1;
    const struct gate_facts facts = {.rank = x->t->rank,
                                     .ranks = x->t->size,
                                     .own = own_sequences(x),
                                     .unit = x->c->train_batch * round,
                                     .total = x->c->steps * x->c->train_batch,
                                     .pace = x->t->plan.alone   ? GATE_PACE_OWN
                                             : x->t->plan.drops ? GATE_PACE_FASTEST
                                                                : GATE_PACE_SLOWEST,
                                     .stop = x->o->stop};
    return gate_join(&x->gate, &facts);
}

// Waits until the gate (shared/time/gate.h) is open for a step at `place`, after all work enqueued so far. The
// waiting time belongs to no step: *start (of the first step) and *begin (of this step) move forward by it. Where
// the slowest rank sets the pace, a rank that arrives first would wait for the others even without a gate: after
// the first step that time counts for the run.
static int stand(struct train *x, int64_t place, int64_t *start, int64_t *begin) {
    if (gate_is_open(&x->gate, place)) return 0;
    if (stream_sync(x->t->compute)) return step_failed(x, x->r->steps - 1);
    int64_t came = now_ns(), all_stood = gate_held_ns();
    timeline_pause_at(x->r->timeline, *begin);
    if (gate_wait(&x->gate, place)) return -1;
    bool waits = x->gate.facts.pace == GATE_PACE_SLOWEST && x->r->steps > x->t->start.step;
    int64_t stood = waits ? gate_held_ns() - all_stood : now_ns() - came;
    x->r->report.span.not_training_s += 1e-9 * (double)stood;
    *start += stood;
    *begin += stood;
    return 0;
}

// Waits before step `step`. Ranks that step together use the run's step as the place; a rank with its own steps
// uses its own batch. A group of local steps is never interrupted: other ranks would wait for it. within: this step
// is inside a group.
static int stand_before(struct train *x, int64_t step, bool within, int64_t *start, int64_t *begin) {
    int64_t place = x->t->plan.alone ? x->t->plan.first : step * x->c->train_batch;
    return within ? 0 : stand(x, place, start, begin);
}

static int64_t tokens_told(const struct train *x) {
    const struct step_plan *p = &x->t->plan;
    return p->in_part ? p->counted / x->t->size : p->tokens;
}

// Ranks that do not wait for each other begin together. Otherwise, while rank 0 still prints its first lines, the
// others would use up the shared budget before its clock runs. They would also pass the first version that a snapshot
// needs. Not used where a rank may join later (elastic): it would miss these sums.
static int begin_together(struct train *x) {
    double nothing = 0;
    bool may_be_left_out = x->t->plan.alone || x->t->plan.drops;
    saver_ask(x->o->saver, x->o->elapsed_before);
    return may_be_left_out && !x->c->recovery.elastic ? topology_sum(x->t, &nothing, 1) : 0;
}

static int run_steps(struct train *x) {
    x->pace.samples = x->t->plan.samples;
    if (begin_together(x)) return -1;
    saver_begin(x->o->saver, x->o->elapsed_before);
    rank_span_begin(&x->r->report.span);
    if (x->t->start.step > 0) {  // its snapshot may have been unfinished when the run was killed
        struct train_state weights = weights_now(x);
        weights.step = x->t->start.step;
        saver_step(x->o->saver, &weights, x->o->elapsed_before, false);
    }
    int64_t start = now_ns(), begin = start;
    // No step is left. A run with other ranks, or another directory, than the checkpoint's keeps the state too.
    bool over = x->t->start.step >= x->c->steps;
    int more;
    bool within = false;
    if (over && !x->t->elsewhere) saver_keep(x->o->saver, &x->t->start);
    for (int64_t step = x->t->start.step; (more = has_step(x, step)) > 0; step++) {
        if (stand_before(x, step, within, &start, &begin)) return -1;
        timeline_step_at(x->r->timeline, step, begin);
        if (one_step(x, step, start, begin)) return -1;
        begin = now_ns();
        within = x->t->plan.open;
        gate_step(&x->gate, tokens_told(x), begin);
    }
    bool stop = false;  // ignored: no step is left to stop
    if (more < 0 || count(x, x->r->steps, &stop)) return -1;
    if (stream_sync(x->t->compute)) return step_failed(x, x->r->steps - 1);  // updates belong to the step
    // Time in which other ranks use the rest of the budget is not this rank's.
    int64_t end = x->t->plan.alone ? begin : now_ns();
    timeline_pause_at(x->r->timeline, end);
    rank_span_end(&x->r->report.span);
    if (x->t->plan.alone) x->r->report.span.end_ns = end;
    x->steps_s = seconds_since(start, end);
    x->job_s = x->o->elapsed_before + x->steps_s;
    const struct pace_end at = {x->t, x->r->timeline, end, x->c->recovery.elastic ? end : now_ns()};
    double trained_aside_s = x->r->report.span.not_training_s;
    int64_t behind = end;
    if (stand(x, GATE_END, &start, &behind)) return -1;
    x->r->report.span.not_training_s = trained_aside_s;  // the span ended before this wait
    x->applied = (double)(x->updates - x->t->start.updates);
    if (!x->t->plan.alone) return 0;
    // Some worker may have stopped early. Ranks with steps of their own stop at different steps, so each reports it
    // here, in a sum after the last step.
    double told[2] = {x->r->interrupted, x->applied};
    if (topology_sum(x->t, told, 2)) return -1;
    x->r->interrupted |= told[0] > 0;
    x->applied = told[1];
    int rc = pace_tell(&x->pace, &at, &x->r->report);
    x->job_s += seconds_since(behind, now_ns());  // only then do the weights hold all workers' gradients
    return rc;
}

// ---------------------------------------------------------------- after the last step
// Checks a run that was too short for `judge` to end it. Fails if no update was applied, or if the weights no
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
    x->t->plan.keep = x->t->plan.alone && x->o->saver;
    if (x->t->plan.keep) saver_gate(x->o->saver);
    int lacks_file = topology_finish(x->t);
    if (lacks_file < 0) return -1;
    x->r->lacks_file = lacks_file > 0;
    x->r->place = step_plan_place(x->t);
    x->r->interrupted &= x->r->place < x->c->steps;  // asked in the last batch: the run is complete
    struct train_state state = state_now(x);
    if (x->t->plan.keep) saver_keep(x->o->saver, &state);
    return 0;
}

// Hashes the final weights on rank 0, and writes them when asked. Every rank takes part, unit by unit. After each
// unit the others wait for rank 0's disk, so that no timeout must cover the writing of a whole model.
static int last_weights(struct train *x) {
    const struct train_options *o = x->o;
    struct train_result *r = x->r;
    struct topology *t = x->t;
    const struct layout *l = x->l;
    bool first = t->rank == 0;
    struct hf_writer *writer = NULL;
    if (first && o->weights_out && !(writer = hf_writer_create(o->weights_out, o->spec, l, t->dtype)))
        return -1;
    struct weights_hash *hash = weights_hash_create();
    int rc = 0;
    struct train_state now = weights_now(x);
    now.step = x->c->steps;
    if (first && !r->interrupted) saver_last_begin(o->saver, &now, x->job_s);
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
            if (!rc && !r->interrupted) saver_last_unit(o->saver, u, host);
            free(host);
        }
        if (!rc) rc = topology_release(t, u, PASS_EVAL);
        double nothing = 0;
        if (!rc) rc = topology_sum(t, &nothing, 1);
    }
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
    timeline_end(x->r->timeline);
    timeline_split(x->r->timeline, &r->time);
    bool any = x->r->steps > x->t->start.step;
    r->time_check = any && x->steps_s > 0 ? time_split_parts(&r->time) / x->steps_s : 1;
    r->clock_error_ns = timeline_clock(x->r->timeline).error_ns;
    uint64_t lost = timeline_lost(x->r->timeline);
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

static void report(struct train *x) {
    struct rank_report *r = &x->r->report;
    struct mem_usage usage;
    size_t model_bytes[MEM_CLASSES];
    struct model_options mo = train_model_options(x->c, x->o->spec, x->l);
    snprintf(r->role, sizeof r->role, "worker");
    r->rank = x->t->rank;
    r->job = x->t->job;
    r->updates = x->updates - x->t->start.updates;
    r->shares = x->t->plan.alone;
    if (r->shares) r->batches = x->r->steps - x->t->start.step;
    if (r->shares) r->tokens = x->r->counted.tokens;
    r->samples_per_update = x->t->plan.mean;
    r->may_be_left_out = x->t->plan.drops;
    r->late_steps = x->t->plan.late;
    r->missed_steps = x->t->plan.missed;
    r->samples_counted = x->t->plan.in_part ? x->t->plan.samples - x->t->start.samples : 0;
    dev_usage(x->t->dev, &usage);
    model_predict(&mo, model_bytes);
    batch_feed_predict(x->c, !dev_host_memory(x->t->dev), model_bytes);
    slowdown_predict(x->c, model_bytes);
    struct saver_bytes kept =
        saver_predict(x->c, x->l, x->t->rank, saver_state_bytes(x->o->saver), !dev_host_memory(x->t->dev));
    r->memory = x->t->memory;
    for (int c = 0; c < MEM_CLASSES; c++) {
        r->memory.predicted_bytes[c] +=
            model_bytes[c] + kept.checkpoints[c] + (saver_evaluates(x->o->saver) ? kept.snapshots[c] : 0);
        r->peak_bytes[c] = usage.peak_bytes[c];
    }
    r->rss_bytes = peak_rss_bytes();
    r->late_allocations = x->allocations ? usage.allocations - x->allocations : 0;
    r->wire = x->t->wire_predicted;
    r->wire_later = x->t->wire_later;
    rank_report_count(r, &x->t->wire, (double)(x->r->steps - x->t->start.step - r->missed_steps));
    r->staleness = x->t->staleness;
    r->consensus_distance = x->t->consensus_distance;
    r->checkpoints = saver_report(x->o->saver);
}

static int run(struct train *x) {
    const struct config *c = x->c;
    struct batch_feed_options fo = {
        .dev = x->t->dev, .compute = x->t->compute, .config = c, .data = x->o->data};
    struct model_options mo = train_model_options(c, x->o->spec, x->l);
    mo.dev = x->t->dev;
    mo.compute = x->t->compute;
    x->feed = x->o->feed ? x->o->feed : batch_feed_create(&fo);
    x->model = x->o->model ? x->o->model : model_create(&mo);
    x->slowdown = x->o->slowdown;
    if (!x->slowdown && slowdown_create(c, x->t->dev, x->t->compute, &x->slowdown)) return -1;
    x->t->plan.mean = x->t->plan.alone ? own_sequences(x) : c->train_batch;
    x->t->plan.samples = x->t->start.samples;
    x->t->plan.unapplied = x->t->start.unapplied;
    x->t->plan.version = x->t->start.updates;
    x->t->plan.steps = x->t->start.step;
    x->t->plan.dealt = x->t->start.dealt;
    x->t->plan.lag = x->t->lag;
    if (take_seat(x)) return -1;
    x->made = xcalloc(1 + (unsigned long)x->t->lag, sizeof *x->made);
    if (!x->feed || !x->model || initial_weights(x)) return -1;
    go_on_from(x, &x->t->start);
    struct timeline_options to = {x->t->compute, x->l, c->accumulation, x->t->size, c->trace, x->o->watch};
    if (!(x->t->timeline = x->r->timeline = timeline_create(&to))) return -1;
    const struct train_observer *o = x->o->observer;
    if (o && o->on_start) o->on_start(o->ctx, c, x->o->spec, x->l->params);
    if (run_steps(x) || check_learned(x) || finish(x)) return -1;
    split_time(x);  // transfers of the last step are done, and the peers have reported when they were ready
    // Read while every rank still holds its memory. The last weights, in which all ranks take part, come later. If
    // the device or the kernel cannot report its memory, the report has no such figures.
    struct rank_report *report = &x->r->report;
    if (x->t->rank == 0) job_resident_read(&report->resident);
    report->on_gpu =
        !dev_facts(x->t->dev, &report->device) && !device_memory_read(x->t->dev, &report->device_memory);
    bool keep = !x->r->interrupted || x->o->keep_interrupted;
    if (keep && last_weights(x)) return -1;
    saver_settle(x->o->saver);
    return 0;
}

int train_run(const struct train_options *o, struct train_result *result) {
    *result = (struct train_result){0};
    struct train x = {.o = o, .c = o->config, .t = o->topology, .l = o->topology->layout, .r = result};
    scaler_init(&x.scaler, &o->config->scaler);
    int rc = run(&x);
    if (rc) topology_abort(x.t, error_last());
    if (rc) saver_quit(x.o->saver);
    if (rc) stream_sync(x.t->compute);  // enqueued work still uses the model's buffers
    report(&x);
    free(x.made);
    result->model = x.model;
    result->feed = x.feed;
    result->slowdown = x.slowdown;
    return rc;
}

void train_result_free(struct train_result *r) {
    model_destroy(&r->model);
    batch_feed_destroy(&r->feed);
    slowdown_destroy(&r->slowdown);
    timeline_destroy(&r->timeline);
    *r = (struct train_result){0};
}
