// The worker: struct topology over its communication thread (worker_comm.h) and the staging of a device's
// memory. The main thread owns everything here.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ps/agree/budget.h"
#include "ps/agree/key_rows.h"
#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "ps/job/push_code.h"
#include "ps/net/medium.h"
#include "ps/worker/push_errors.h"
#include "ps/worker/unit_slots.h"
#include "ps/worker/worker_comm.h"
#include "shared/core/error.h"

struct worker {
    struct topology t;  // the first member, because hooks cast it to the struct
    const struct config *c;
    struct consistency_rule rule;
    struct shard_map *map;
    struct arena arena;
    struct worker_buffers buffers;
    struct sharing sharing;
    struct push_errors errors;
    struct staging *staging;  // NULL: the device's memory is host memory
    struct comm *comm;
    struct unit_slots *slots, *frozen;  // frozen: what LoRA freezes, where servers hold it; else NULL
    uint64_t *reports;                  // (1 + lag): the timeline's ids of the steps' reports
    int64_t step;
    // For a worker that decides by itself: the last batch taken, the wait for it (0: none), and the batches that a
    // checkpoint records as done.
    struct {
        int64_t asked, asked_ns;  // the last step that requested one, and when
        int64_t batch, from_ns, to_ns;
        uint64_t id;
        struct wire_header done;
    } take;
    bool behind;  // the last step closed before this worker computed it: landed weights may be too old
    struct step_opening opening;  // the members of the current step, where they change
    int micro, micro_count;
    bool watched;  // the timeline records all streams
    uint64_t load_round;
    bool *unit_loaded;  // (units) the unit's values were sent in this load
    int units_loaded;
    bool loaded;
    bool sum_started;  // decides by itself: the first unit of this step has zeroed the sum in buffers.words
    struct event *words_read;  // the host has its copy of buffers.words
};

// Whether the worker decides about its step by itself.
static bool is_independent(const struct worker *w) { return w->rule.row->on_arrival; }

// ---------------------------------------------------------------- together
static struct worker_status status_of(const struct worker *w) {
    struct worker_status s = *worker_core_status(comm_lock(w->comm));
    comm_unlock(w->comm);
    return s;
}

static struct step_outcome outcome_of(const struct worker *w, int64_t step) {
    struct step_outcome o = *worker_core_outcome(comm_lock(w->comm), step);
    comm_unlock(w->comm);
    return o;
}

// Fields that the loop may read without a lock, after a wait.
static void worker_refresh(struct worker *w) {
    struct worker_status now = status_of(w);
    int64_t error = ps_later(now.clock.worst_ns, ps_clock_error(&now.clock, now_ns()));
    timeline_set_clock(w->t.timeline, (struct timeline_clock){now.clock.offset_ns, error});
    w->t.staleness = now.staleness;
}

// Waits until the condition holds, for no unit, at the worker's step.
static int await(struct worker *w, worker_condition *until, const char *late) {
    return comm_wait(w->comm, &(struct comm_wait){until, -1, w->step, 0}, late);
}

// A worker that joins a running job computes the earlier sums by itself, as if every worker gave the same values.
static bool is_before(const struct worker *w) {
    return w->t.joined_running_job && w->step == w->t.start.step;
}

static int gather(struct worker *w, double *values, int count) {
    for (int i = 0; i < count && is_before(w); i++) values[i] *= w->t.size;
    if (is_before(w)) return 0;
    worker_core_gather(comm_lock(w->comm), values, count);
    comm_unlock_wake(w->comm);
    if (await(w, worker_core_has_gathered, "the other workers did not reach a barrier") != 0) return -1;
    worker_refresh(w);
    memcpy(values, status_of(w).gathered, (size_t)count * sizeof *values);
    return 0;
}

static int barrier(struct worker *w) {
    double none = 0;
    return gather(w, &none, 0);
}

// All weights of the step have landed and none of the next, so their versions count the pushes of the whole job.
static void count_samples(struct worker *w) {
    const struct worker_core *core = comm_lock(w->comm);
    w->t.plan.version = worker_core_updates(core);
    w->t.plan.samples = worker_core_version(core) * config_own_sequences(w->c);
    comm_unlock(w->comm);
}

// Takes the members of the step that begins, and where its samples begin in the job.
static void open_step(struct worker *w, const struct step_opening *opening) {
    w->opening = *opening;
    w->t.plan.samples = opening->state.samples;
    w->t.plan.unapplied = opening->state.unapplied;
    w->t.plan.handed_out = opening->state.handed_out;
}

// ---------------------------------------------------------------- hooks
// The same rate as the loop's: gradients may leave before the loop calls step.
static float worker_lr(const struct worker *w) {
    return schedule_lr(&w->c->schedule, w->c->optimizer.lr,
                       schedule_steps(step_plan_seen(&w->t.plan), w->c->train_batch));
}

static void worker_prefetch(struct topology *t, int u, enum pass pass) {
    struct worker *w = (struct worker *)t;
    unit_slots_prefetch(w->slots, w->step, u, pass);
}

static int worker_acquire(struct topology *t, int u, enum pass pass, struct unit_view *view) {
    struct worker *w = (struct worker *)t;
    if (!w->loaded)
        return fail("unit %s: initial weights were not loaded; call load_unit for every unit first",
                    t->layout->units[u].name);
    if (unit_slots_acquire(w->slots, w->step, u, pass, view) != 0) return -1;
    if (pass != PASS_EVAL && w->micro == 0 && is_independent(w) && u == t->layout->count - 1)
        count_samples(w);
    view->accumulate = pass == PASS_BACKWARD && w->micro > 0 && unit_slots_all_resident(w->slots) &&
                       !grad_sums_used(&w->buffers.sums);
    return 0;
}

static void worker_prefetch_frozen(struct topology *t, int u, enum pass pass) {
    struct worker *w = (struct worker *)t;
    unit_slots_prefetch(w->frozen, w->step, u, pass);
}

static int worker_acquire_frozen(struct topology *t, int u, enum pass pass, const void **weights) {
    struct worker *w = (struct worker *)t;
    struct unit_view view = {0};
    int rc = unit_slots_acquire(w->frozen, w->step, u, pass, &view);
    *weights = view.weights;
    return rc;
}

static int worker_release_frozen(struct topology *t, int u) {
    unit_slots_release(((struct worker *)t)->frozen, u);
    return 0;
}

static int worker_release(struct topology *t, int u, enum pass pass) {
    (void)pass;
    unit_slots_release(((struct worker *)t)->slots, u);
    return 0;
}

static int worker_begin_micro(struct topology *t, int index, int count) {
    struct worker *w = (struct worker *)t;
    w->micro = index;
    w->micro_count = count;
    if (index == 0) {
        w->sum_started = false;
        if (w->take.to_ns) timeline_blocked(t->timeline, w->take.id, w->take.from_ns, w->take.to_ns);
        w->take.from_ns = w->take.to_ns = 0;
    }
    if (w->watched || !t->timeline) return 0;
    w->watched = true;
    timeline_watch_thread(t->timeline, comm_thread(w->comm));
    return staging_watch(w->staging, t->timeline);
}

// Requests a batch of the budget, unless one was requested for this step.
static void worker_ask_batch(struct worker *w, int64_t step) {
    bool first = w->take.asked < 0;
    if (w->take.asked >= step) return;
    w->take.asked = step;
    w->take.id = timeline_ask(w->t.timeline, &(struct transfer){.kind = TRANSFER_CONTROL, .unit = -1});
    w->take.asked_ns = now_ns();
    timeline_own_ready(w->t.timeline, w->take.id, w->take.asked_ns);
    worker_core_take(comm_lock(w->comm), step, first ? &w->take.done : NULL);
    comm_unlock_wake(w->comm);
}

// Returns 1 with the next batch of the budget, 0 if none is left, -1 after logging.
static int take_batch(struct worker *w, int64_t step) {
    struct step_plan *plan = &w->t.plan;
    worker_ask_batch(w, step);
    w->take.from_ns = now_ns();
    const struct comm_wait wait = {worker_core_has_taken, -1, step, 0};
    if (comm_wait(w->comm, &wait, "the scheduler did not name the next batch") != 0) return -1;
    w->take.to_ns = now_ns();
    const struct worker_status now = status_of(w);
    timeline_peers_ready(w->t.timeline, w->take.id, w->take.asked_ns,
                         -1);  // -1: the wait is for the scheduler, not for a shard
    timeline_done(w->t.timeline, w->take.id, now.taken_ns);
    w->take.batch = now.taken;
    int64_t dealt = now.handed_out * config_own_sequences(w->c);
    if (dealt > plan->handed_out) plan->handed_out = dealt;
    plan->first = w->take.batch * config_own_sequences(w->c);
    plan->next = -1;
    return now.taken >= 0;
}

static void jump(struct worker *w, int64_t step) {
    struct worker_core *core = comm_lock(w->comm);
    worker_core_jump(core, step, now_seconds());
    comm_unlock_wake(w->comm);
}

// For steps that close without stragglers. A worker that has missed a step pulls the weights of the open step. When
// they have landed that step may be over as well.
static int catch_up(struct worker *w, int64_t step) {
    bool *over = &w->t.plan.closed_without_rank;
    *over = status_of(w).steps_closed > step;
    if (!*over && w->behind) {
        jump(w, step);
        for (int u = 0; u < w->t.layout->count; u++) {
            const struct comm_wait wait = {worker_core_has_landed, u, step, 0};
            if (comm_wait(w->comm, &wait, "the weights of the open step have not landed") != 0) return -1;
        }
        *over = status_of(w).steps_closed > step;
    }
    w->behind = *over;
    return 0;
}

static int worker_plan(struct topology *t, int64_t step) {
    struct worker *w = (struct worker *)t;
    int64_t own = config_own_sequences(w->c);
    if (is_independent(w)) return take_batch(w, step);
    if (!w->t.plan.partial) return step_plan_together(t);
    if (t->plan.may_miss_steps && catch_up(w, step) != 0) return -1;
    t->plan.slice = elastic_index(w->opening.members, t->rank);
    t->plan.first = opening_first(&w->opening, t->rank, own);
    // Assumes that the same workers belong to the next step, which is usually true.
    t->plan.next = t->plan.first + own * elastic_count(w->opening.members);
    return 1;
}

// The data of a push in this step, the same for all units.
static struct push_info push_of(const struct worker *w) {
    const struct step_plan *plan = &w->t.plan;
    bool own = unit_slots_all_resident(w->slots);
    // Servers average over some workers' batches, which may have unequal numbers of tokens.
    bool tokens = plan->partial || (is_independent(w) && w->c->documents == DOCUMENTS_WHOLE);
    return (struct push_info){.step = w->step,
                              .lr = worker_lr(w),
                              .grad_scale = 1.0f,
                              .keep = plan->keep && w->micro + 1 >= w->micro_count,
                              .drain = own && plan->drain,
                              .batch = own ? w->take.batch : w->micro,
                              .tokens = tokens ? plan->tokens : 0,
                              .mean_tokens = tokens ? plan->mean_tokens : 0};
}

// A unit without a gradient buffer of its own is pushed in each micro-batch: the servers add these gradients up.
static int worker_grad_ready(struct topology *t, int u) {
    struct worker *w = (struct worker *)t;
    void *grad = w->buffers.grads[worker_buffer(&w->buffers, u, w->step)];
    grad_sums_add(&w->buffers.sums, t->compute,
                  &(struct grad_micro){.unit = u,
                                       .index = w->micro,
                                       .count = w->micro_count,
                                       .grad = grad,
                                       .n = t->layout->units[u].n_pad,
                                       .dt = t->dtype});
    if (w->micro + 1 < w->micro_count && unit_slots_all_resident(w->slots)) {
        unit_slots_release(w->slots, u);
        return 0;
    }
    push_errors_encode(&w->errors, t->compute, u, w->step, t->plan.loss_scale);
    if (!w->c->no_overlap) staging_fetch_grad(w->staging, u, w->step);
    if (is_independent(w)) {
        op_sumsq(t->compute, &(struct sumsq_args){.out = &w->buffers.words->sum,
                                                  .x = grad,
                                                  .n = t->layout->units[u].n_pad,
                                                  .zero_out = !w->sum_started,
                                                  .dt = t->dtype});
        w->sum_started = true;
        if (commit_round(w->c)) return 0;  // step_alone pushes it, when the whole gradient is known
    }
    const struct push_info push = push_of(w);
    if (!w->c->no_overlap) unit_slots_push(w->slots, u, &push, PHASE_BACKWARD);
    return 0;
}

// ---------------------------------------------------------------- the end of a step
// The last unit first, as with overlap.
static void push_all(struct worker *w) {
    const struct push_info push = push_of(w);
    for (int u = w->t.layout->count - 1; u >= 0; u--) unit_slots_push(w->slots, u, &push, PHASE_OTHER);
}

// Copies the step's results to the host: the step's only copy of them and its only wait for the device.
static int read_results(struct worker *w, const struct step_input *in, struct worker_words *out) {
    struct stream *compute = w->t.compute;
    struct worker_words *words = w->buffers.words, *seen = w->buffers.wire_words;
    if (words) dev_copy(compute, &words->loss_sum, in->loss_sum, sizeof(double));
    if (seen && words)
        dev_copy(compute, seen, words, sizeof *words);
    else if (seen)
        dev_copy(compute, &seen->loss_sum, in->loss_sum, sizeof(double));
    event_record(w->words_read, compute);
    if (event_sync(w->words_read) != 0)
        return fail("step %lld: %s", (long long)in->step + 1, dev_error(w->t.dev));
    *out = seen ? *seen : words ? *words : (struct worker_words){.loss_sum = *in->loss_sum};
    return 0;
}

static int worker_outcome(struct topology *t, int64_t step, struct step_stats *out) {
    struct worker *w = (struct worker *)t;
    uint64_t id = w->reports[worker_slot_of(step, w->rule.lag)];
    const struct comm_wait wait = {worker_core_has_closed, -1, step, 0};
    if (comm_wait_timed(w->comm, &wait, t->timeline, id, "the scheduler did not close the step") != 0)
        return -1;
    struct step_outcome o = outcome_of(w, step);
    timeline_peers_ready(t->timeline, id, o.done_peers_ns, ps_time_rank(o.done_peers_ns));
    timeline_done(t->timeline, id, o.done_ns);
    *out = o.stats;
    return 0;
}

static int step_together(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words = {0};
    bool over = w->t.plan.closed_without_rank;
    if (!over && read_results(w, in, &words) != 0) return -1;
    if (w->c->no_overlap && !over) push_all(w);
    uint64_t id = timeline_ask(w->t.timeline, &(struct transfer){.kind = TRANSFER_CONTROL, .unit = -1});
    struct step_report report = {.in = *in,
                                 .loss = words.loss_sum / in->loss_tokens,
                                 .ready_ns = now_ns(),
                                 .tokens = w->t.plan.partial ? w->t.plan.tokens : 0,
                                 .mean_tokens = w->t.plan.partial ? w->t.plan.mean_tokens : 0,
                                 .opening = w->t.plan.partial ? &w->opening : NULL};
    timeline_own_ready(w->t.timeline, id, report.ready_ns);
    w->reports[worker_slot_of(in->step, w->rule.lag)] = id;
    worker_core_report(comm_lock(w->comm), &report);
    comm_unlock_wake(w->comm);
    *out = (struct step_stats){0};
    if (w->t.plan.lag > 0) return 0;
    if (worker_outcome(&w->t, in->step, out) != 0) return -1;
    if (!w->t.plan.partial) return 0;
    const struct step_outcome closed = outcome_of(w, in->step);
    open_step(w, &closed.opening);
    w->t.plan.workers = w->opening.contributors;
    w->t.plan.counted = w->opening.tokens;
    w->t.plan.late += closed.late && !over;
    w->t.plan.missed += over;
    return 0;
}

// Decides norm, clip and skip here: the whole gradient is this worker's own. loss and norm in the
// stats are this worker's.
static int step_alone(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words;
    if (read_results(w, in, &words) != 0) return -1;
    struct update_scalars s = update_decide(&words.sum, in->loss_scale, in->clip);
    *out = (struct step_stats){
        .loss = words.loss_sum / in->loss_tokens, .grad_norm = s.norm, .skipped = s.skip != 0};
    if (commit_round(w->c)) {
        struct push_info push = push_of(w);
        push.grad_scale = s.grad_scale;
        push.skip = s.skip != 0;
        push.drain = false;  // updates on arrival do not wait for other workers
        for (int u = 0; u < w->t.layout->count; u++) unit_slots_push(w->slots, u, &push, PHASE_OTHER);
        return 0;
    }
    if (w->c->no_overlap) push_all(w);
    if (s.skip)
        return fail(
            "step %lld: %lld gradient elements are not finite; without gradient_clipping " PS_UNSKIPPED
            ": lower the learning rate, or set gradient_clipping, to 1e30 if nothing is to be clipped",
            (long long)in->step + 1, (long long)words.sum.nonfinite);
    return 0;
}

static int worker_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct worker *w = (struct worker *)t;
    if (in->step != w->step)
        return fail("step %lld: the topology is at step %lld", (long long)in->step, (long long)w->step);
    if (f32_to_bits(in->lr) != f32_to_bits(worker_lr(w)))
        return fail("step %lld: gradients went out with the schedule's learning rate %.9g, the loop has %.9g",
                    (long long)in->step, (double)worker_lr(w), (double)in->lr);
    bool computed = !t->plan.closed_without_rank;
    if (w->c->no_overlap && computed) {
        // Gradients leave after the backward pass, so all of them are first copied to the memory that pushes read.
        for (int u = t->layout->count - 1; u >= 0; u--) staging_fetch_grad(w->staging, u, in->step);
        event_record(w->words_read, staging_push_stream(w->staging, t->compute));
        if (event_sync(w->words_read) != 0)
            return fail("step %lld: %s", (long long)in->step + 1, dev_error(t->dev));
    }
    int rc = is_independent(w) ? step_alone(w, in, out) : step_together(w, in, out);
    worker_refresh(w);
    if (rc != 0) return -1;
    if (is_independent(w)) {
        // No message ends the step: heartbeats carry the request to stop. TAKE is sent now, so that its answer travels
        // together with the weights.
        struct worker_core *core = comm_lock(w->comm);
        if (in->stop) worker_core_stop(core);
        out->stop = in->stop || worker_core_status(core)->stopped;
        comm_unlock_wake(w->comm);
        if (!out->stop) worker_ask_batch(w, in->step + 1);
    }
    if (!out->skipped) push_errors_keep(&w->errors, w->t.compute, in->step, in->loss_scale);
    w->t.own_number.value = f32_to_bits(w->errors.scale);
    out->snapshot = in->snapshot;  // worker 0 collects the snapshot itself
    step_plan_advance(t, out->skipped);
    unit_slots_invalidate(w->slots);
    // Frozen weights are pulled in each step, so that all steps move the same bytes.
    if (w->frozen) unit_slots_invalidate(w->frozen);
    w->step++;
    // Without overlap the next step computes nothing before all its weights have landed.
    for (int u = 0; w->c->no_overlap && computed && u < t->layout->count; u++) {
        if (unit_slots_await_weights(w->slots, u, w->step) != 0 ||
            unit_slots_await_buffer(w->slots, u, w->step) != 0)
            return -1;
    }
    return 0;
}

// ---------------------------------------------------------------- sums, snapshots, loading
static int worker_sum(struct topology *t, double *values, int count) {
    struct worker *w = (struct worker *)t;
    for (int i = 0; i < count || i == 0; i += WIRE_VALUES_MAX) {
        int n = count - i < WIRE_VALUES_MAX ? count - i : WIRE_VALUES_MAX;
        if (gather(w, values + i, n) != 0) return -1;
    }
    return 0;
}

// Pulls the weights of all units once more, which no push asks for. more: worker_core_pull_all's.
static int pull_all(struct worker *w, uint32_t more, const char *late) {
    struct worker_core *core = comm_lock(w->comm);
    worker_core_pull_all(core, more, now_seconds());
    comm_unlock_wake(w->comm);
    return await(w, worker_core_has_pulled, late);
}

static int worker_finish(struct topology *t) {
    struct worker *w = (struct worker *)t;
    if (w->behind) jump(w, w->step);
    for (int u = 0; u < t->layout->count; u++) {
        if (unit_slots_await_weights(w->slots, u, w->step) != 0) return -1;
        for (int64_t step = w->step; step <= w->step + w->rule.lead; step++)
            if (unit_slots_await_buffer(w->slots, u, step) != 0) return -1;
    }
    if (barrier(w) != 0) return -1;
    if (is_independent(w) || w->rule.delay > 0) {
        // A pull after a push replaces weights that compute has read. These pulls follow no push.
        for (int u = 0; u < t->layout->count; u++)
            staging_await_weights(w->staging, u, (struct transfer_ids){0});
        if (stream_sync(t->compute) != 0)
            return fail("step %lld: finishing: %s", (long long)w->step, dev_error(t->dev));
        uint32_t more = WIRE_STOP | (t->plan.keep ? (uint32_t)WIRE_KEEP : 0);
        if (pull_all(w, more, "the final weights have not landed") != 0) return -1;
    }
    if (is_independent(w)) count_samples(w);
    // Every snapshot answer that counts has arrived before the last weights.
    worker_core_end_snapshots(comm_lock(w->comm));
    comm_unlock(w->comm);
    if (await(w, worker_core_has_pulled, "the last snapshot was not ended") != 0) return -1;
    int lacks_file = comm_write_trace(w->comm) != 0;  // a missing trace is no reason to give up the weights
    worker_refresh(w);
    return lacks_file;
}

// Asks for the version that this worker's next push ends, before that push. Only this thread waits for a slow disk. If
// the wait fails, every later wait fails too.
static void worker_snapshot(struct topology *t, int64_t version, struct snapshot *s) {
    struct worker *w = (struct worker *)t;
    if (!t->plan.independent) await(w, worker_core_has_snapshotted, "the snapshot before is not in its file");
    worker_core_snapshot(comm_lock(w->comm), version, s);
    comm_unlock_wake(w->comm);
}

// Worker 0 sends the initial values of its unit u to the servers.
static int send_initial(struct worker *w, int u, const float *values, uint64_t round) {
    const struct comm_wait taken = {worker_core_has_freed, u, 0, 0};
    if (w->t.rank != 0) return 0;
    worker_core_init_unit(comm_lock(w->comm), u, values, round);
    comm_unlock_wake(w->comm);
    if (comm_wait(w->comm, &taken, "a server did not take the initial weights") == 0) return 0;
    comm_disconnect(w->comm);  // the caller may free the values, so they must not be sent any more
    return -1;
}

static int worker_load_frozen(struct topology *t, int u, const float *values) {
    return send_initial((struct worker *)t, t->layout->count + u, values, 1);
}

static int worker_load_unit(struct topology *t, int u, const float *values) {
    struct worker *w = (struct worker *)t;
    if (w->step > 0)
        return fail("unit %s: weights can be loaded before the first step only", t->layout->units[u].name);
    // On a second load with weights in place, a barrier first: another worker may still read the servers' memory.
    if (w->sharing.in_place && w->units_loaded == 0 && w->load_round > 0 && barrier(w) != 0) return -1;
    bool own = unit_slots_all_resident(w->slots);
    if (own && sharing_load(&w->sharing, u, values, w->buffers.wire_weights[u]) != 0) return -1;
    if (own && staging_load_weights(w->staging, u) != 0)
        return fail("unit %s: loading its weights: %s", t->layout->units[u].name, dev_error(t->dev));
    if (w->units_loaded == 0) w->load_round++;
    if (send_initial(w, u, values, w->load_round) != 0) return -1;
    if (!w->unit_loaded[u]) w->units_loaded++;
    w->unit_loaded[u] = true;
    if (w->units_loaded < t->layout->count) return 0;
    memset(w->unit_loaded, 0, (size_t)t->layout->count * sizeof *w->unit_loaded);
    w->units_loaded = 0;
    if (barrier(w) != 0) return -1;
    w->loaded = true;
    return 0;
}

// A checkpoint holds the errors of codes only where all workers are at the same step.
static int worker_state(struct topology *t, int index, struct state_range *out) {
    struct worker *w = (struct worker *)t;
    if (!ps_codes(w->c) || is_independent(w) || index >= t->layout->count) return -1;
    *out = (struct state_range){.unit = index,
                                .kind = STATE_ERROR,
                                .end = t->layout->units[index].n_pad,
                                .data = w->buffers.errors[index]};
    return 0;
}

// Returns 1 if the checkpoint has no errors of this worker, or another number of workers wrote it: the errors remain
// zero. -1 after logging.
static int load_errors(struct worker *w, struct checkpoint *c) {
    const struct layout *l = w->t.layout;
    char who[32];
    int64_t scale = 0;
    int rc = 0;
    snprintf(who, sizeof who, "worker-%d", w->t.rank);
    for (int u = 0; u < l->count && !rc; u++)
        rc = checkpoint_own(c, STATE_ERROR, w->t.rank, w->t.size, &l->units[u], NULL);
    if (!rc) rc = checkpoint_extra(c, who, "error_scale", &scale, 1);
    for (int u = 0; u < l->count && !rc; u++) {
        size_t bytes = (size_t)l->units[u].n_pad * sizeof(float);
        float *values = xcalloc(1, bytes);
        rc = checkpoint_own(c, STATE_ERROR, w->t.rank, w->t.size, &l->units[u], values);
        if (!rc) dev_copy(w->t.compute, w->buffers.errors[u], values, bytes);
        if (stream_sync(w->t.compute))
            rc = fail("unit %s: loading errors: %s", l->units[u].name, dev_error(w->t.dev));
        free(values);
    }
    w->errors.scale = bits_to_f32((uint32_t)scale);
    w->t.own_number.value = scale;
    return rc;
}

static int64_t written_setting(const struct checkpoint *c, const char *key) {
    const char *text = checkpoint_identity(c, key);
    return text ? strtoll(text, NULL, 10) : 0;
}

// Whether a star with other partitions wrote it, which matters if the code chooses within a partition. Partitions are
// the same if grain and number of keys are, or if each unit is one key.
static bool has_other_partitions(const struct worker *w, const struct checkpoint *c) {
    const struct layout *l = w->t.layout;
    int64_t servers = written_setting(c, "parameter_server.servers");
    int64_t threads = written_setting(c, "parameter_server.threads");
    struct config there = *w->c;
    struct shard_cut before, now;
    there.ps.servers = (int)servers;
    there.ps.threads = (int)threads;
    there.ps.partition_bytes = written_setting(c, "parameter_server.partition_bytes");
    if (w->c->ps.code.kind != CODE_TOPK || servers < 1 || threads < 1) return false;
    if (shard_cut_of(&there, l, &before) || shard_cut_of(w->c, l, &now)) return false;
    return before.keys != now.keys || (before.grain != now.grain && now.keys > l->count);
}

// The servers read the state themselves. This worker resumes at their step, with weights that it pulls.
static int worker_load(struct topology *t, struct checkpoint *c) {
    struct worker *w = (struct worker *)t;
    struct key_rows rows = {0};
    if (!t->checkpoint)
        return fail(
            "%s: the scheduler and the servers do not resume from it: give the scheduler --resume too",
            checkpoint_path(c));
    int rc = start_point_check(&comm_entry(w->comm)->start.from, c);
    if (rc == 0) rc = key_rows_read(&rows, c, w->c, w->map);
    if (rc == 0 && is_independent(w)) {
        // The workers have read which batches are done, and report it to the scheduler.
        int64_t low = key_rows_low(&rows), next = key_rows_next(&rows);
        t->start.step = key_rows_step(&rows, t->rank);
        budget_write_done(&w->take.done, low);
        for (int64_t batch = low; batch < next; batch++)
            if (key_rows_has(&rows, batch)) budget_set_done(&w->take.done, batch);
    }
    key_rows_free(&rows);
    if (rc != 0) return -1;
    w->step = t->start.step;
    open_step(w, &(struct step_opening){.members = w->opening.members, .state = t->start});
    int errors = ps_codes(w->c) ? load_errors(w, c) : 0;
    if (errors < 0) return -1;
    if (errors && t->rank == 0)
        warn(
            "%s: the errors of codes before it are lost: it holds none of parameter_server.compression %s of %d worker%s, and "
            "they begin at zero",
            checkpoint_path(c), codec_of(w->c->ps.code.kind)->name, t->size, t->size > 1 ? "s" : "");
    if (t->rank == 0 && has_other_partitions(w, c))
        warn(
            "%s: it was written with other partitions (parameter_server.servers, threads, partition_bytes), and topk chooses within "
            "a partition: the last bits will differ from those of an uninterrupted run",
            checkpoint_path(c));
    worker_core_begin(comm_lock(w->comm), w->step);
    comm_unlock(w->comm);
    if (unit_slots_all_resident(w->slots) &&
        pull_all(w, 0, "the weights of the checkpoint have not landed") != 0)
        return -1;
    w->loaded = true;
    if (is_independent(w)) count_samples(w);
    return 0;
}

static void worker_abort(struct topology *t, const char *why) {
    comm_give_up(((struct worker *)t)->comm, why);
}

// ---------------------------------------------------------------- create and destroy
static void worker_destroy(struct topology *t) {
    struct worker *w = (struct worker *)t;
    // 1. The communication thread ends: after that no weights land.
    if (w->comm) comm_stop(w->comm);
    // 2. Enqueued work still uses the buffers, and hands units over to w->comm.
    stream_sync(t->compute);
    staging_destroy(&w->staging);
    event_destroy(&w->words_read);
    // 3. The transport stops reading the gradients before the arena frees them.
    comm_destroy(&w->comm);
    unit_slots_destroy(&w->slots);
    unit_slots_destroy(&w->frozen);
    arena_release(&w->arena);
    sharing_destroy(&w->sharing);
    free(w->reports);
    free(w->unit_loaded);
    worker_buffers_free(&w->buffers);
    shard_map_destroy(&w->map);
    free(w);
}

static const struct topology_ops worker_ops = {
    .name = "ps",
    .prefetch = worker_prefetch,
    .acquire = worker_acquire,
    .release = worker_release,
    .begin_micro = worker_begin_micro,
    .grad_ready = worker_grad_ready,
    .plan = worker_plan,
    .step = worker_step,
    .outcome = worker_outcome,
    .sum = worker_sum,
    .finish = worker_finish,
    .snapshot = worker_snapshot,
    .state = worker_state,
    .load = worker_load,
    .load_unit = worker_load_unit,
    .prefetch_frozen = worker_prefetch_frozen,
    .acquire_frozen = worker_acquire_frozen,
    .release_frozen = worker_release_frozen,
    .load_frozen = worker_load_frozen,
    .abort = worker_abort,
    .destroy = worker_destroy,
};

static int worker_allocate(struct worker *w, const struct ps_worker_options *o) {
    const struct layout *l = o->role.layout;
    unsigned long units = (unsigned long)l->count;
    bool staged = ps_is_staged(w->c);
    assert(staged == !dev_host_memory(o->dev) && "the configuration names the device that is used");
    if (ps_worker_predict(w->c, l, w->t.rank, &w->t.memory, &w->t.wire_predicted) != 0) return -1;
    if (!(w->map = shard_map_of(w->c, l))) return -1;
    // Keys are given to the least loaded server, so servers without a key are the last ones.
    while (w->t.state_servers < w->map->servers && shard_map_server_elements(w->map, w->t.state_servers) > 0)
        w->t.state_servers++;
    if (worker_buffers_init(&w->buffers, w->c, l) != 0) return -1;
    w->unit_loaded = xcalloc(units, sizeof *w->unit_loaded);
    w->reports = xcalloc(1 + (unsigned long)w->rule.lag, sizeof *w->reports);
    arena_init(&w->arena, o->dev);
    if (sharing_create(&w->sharing, w->c, l, w->map, &w->arena, &w->buffers) != 0) return -1;
    if (!(w->words_read = event_create(o->dev))) return -1;
    w->errors = (struct push_errors){w->c->ps.code, w->c->dtype, l, w->map, &w->buffers, 0};
    struct staging_options so = {
        .dev = o->dev, .compute = o->compute, .layout = l, .dtype = w->c->dtype, .buffers = &w->buffers};
    return staged && !(w->staging = staging_create(&so)) ? -1 : 0;
}

static int worker_start_comm(struct worker *w, const struct ps_role_options *role) {
    struct comm_options o = {.role = *role,
                             .map = w->map,
                             .buffers = &w->buffers,
                             .sharing = &w->sharing,
                             .staging = w->staging,
                             .wire = &w->t.wire};
    if (!(w->comm = comm_create(&o))) return -1;
    const struct entry *in = comm_entry(w->comm);
    const struct recovery_config *r = &w->c->recovery;
    if (!in->start.from.checkpoint[0] && r->resume && !r->resume_weights_only &&
        strcmp(r->resume, "latest") != 0) {
        fail("--resume %s: the scheduler has named no checkpoint: give it --resume too", r->resume);
        comm_give_up(w->comm, error_last());
        return -1;
    }
    if (sharing_settle(&w->sharing, &w->arena) != 0) {
        comm_give_up(w->comm, error_last());
        return -1;
    }
    struct unit_slots_options so = {w->c, &w->t, w->comm, w->staging, &w->buffers, w->t.layout, 0};
    w->slots = unit_slots_create(&so);
    so.layout = ps_frozen(w->c, w->t.layout);
    so.first = w->t.layout->count;
    if (so.layout) w->frozen = unit_slots_create(&so);
    w->t.medium = sharing_medium(&w->sharing);
    // The prediction depends on which servers share memory with this worker.
    worker_predict_memory(w->sharing.c, w->t.layout, w->map, w->sharing.shared, &w->t.memory);
    w->t.job = in->id.job;
    if (in->start.from.checkpoint[0]) w->t.checkpoint = in->start.from.checkpoint;
    w->t.epoch = in->id.epoch;
    return 0;
}

// Joins a job that is under way: the servers have its weights, and this worker pulls them as in any step.
static int worker_join_running_job(struct worker *w) {
    const struct entry *in = comm_entry(w->comm);
    if (!in->id.joins) return 0;
    w->t.joined_running_job = true;
    w->t.start = in->joined.opening.state;
    open_step(w, &in->joined.opening);
    w->step = w->t.start.step;
    if (pull_all(w, 0, "the weights of the running job have not landed") != 0) return -1;
    w->loaded = true;
    return 0;
}

struct comm *ps_worker_comm(struct topology *t) {
    return ((struct worker *)t)->comm;
}

struct topology *ps_worker_create(const struct ps_worker_options *o) {
    const struct config *c = o->role.config;
    bool keeps = c->recovery.checkpoint_every > 0 && ps_codes(c) && !consistency_of(c).row->on_arrival;
    if (keeps && !o->role.dir) {
        fail(
            "--checkpoint-every: the errors of this worker's codes have no directory to be written to: give --out DIR, the same on all "
            "machines: a directory that they share");
        return NULL;
    }
    struct worker *w = xcalloc(1, sizeof *w);
    w->t = (struct topology){.ops = &worker_ops,
                             .layout = o->role.layout,
                             .dev = o->dev,
                             .compute = o->compute,
                             .dtype = c->dtype,
                             .rank = o->role.rank,
                             .size = c->workers,
                             .launch = "processes"};
    w->c = c;
    w->rule = consistency_of(c);
    w->t.lag = w->rule.lag;
    w->take.asked = -1;
    w->t.plan = (struct step_plan){.independent = is_independent(w),
                                   .partial = ps_in_part(c),
                                   .may_miss_steps = consistency_drops(w->rule),
                                   .mean = is_independent(w) ? config_own_sequences(c) : c->train_batch};
    w->t.own_number.name = "error_scale";
    w->opening.members = elastic_all(c->workers);
    struct topology *t = &w->t;
    if (worker_allocate(w, o) == 0 && worker_start_comm(w, &o->role) == 0 && worker_join_running_job(w) == 0)
        return t;
    topology_destroy(&t);
    return NULL;
}
