// ZeRO's hooks, in the order in which the training loop calls them in a step (shared/core/topology.h):
//
//     forward    prefetch, acquire, release of each unit            weights are gathered
//     backward   prefetch, acquire, grad_ready of each unit         weights are gathered, gradients are reduced
//     step       norm, decision, update of each unit                updated weights (stage 0: gradients) are gathered
//
// The stage's row (zero_policy.h) says which of weights, gradients and optimizer states are whole on a rank and which are
// shards; only that row decides what a hook does. zero_state.h has the state of a rank and the events between streams.
//
// Stage 3, forward, two slots by parity (backward: the same in descending order):
//
//     gather    | u0 -> even | u1 -> odd |      | u2 -> even |        | u3 -> odd | ..
//     compute                | u0 .. even |     | u1 .. odd  |        | u2 .. even | ..
//                                         ^ u2's gather waits for slot.idle, compute waits for slot.ready
//
// The schedule decides which unit uses which slot, and when: unit_schedule.h.
//
// hpZ (ZeRO++, Wang et al. 2023, section 4.2), groups of h ranks, h = 2 of N = 4: after a unit's first gather each rank
// keeps 1/h of it. Later gathers, until the weights change, use these copies and stay within the group.
//
//     slot        | s0 s1 s2 s3 |      s: the ranks' shards
//     secondary   | s0 s1 |            of ranks 0 and 2
//                         | s2 s3 |    of ranks 1 and 3
//
// The end of a step:
//
//     compute  | .. backward | sumsq of shards |          | decide | update u0 | update u1 | ..
//     reduce      .. u1 | u0 |                 | norm loss|
//     gather                                                       | gather u0 | gather u1 | .. (stages 1, 2)
//
// Each rank sends zero_step_words doubles: the sum of its losses, whether it was asked to stop, whether the weights
// after this step are to be kept, and when it was ready for earlier transfers. All ranks read the same words, so they
// stop after the same step.
//
// The host waits once, for the copy of these words and of the decision. Updates and gathers continue while the host
// prepares the next step.
#include <string.h>

#include "decentral/collective/collective_plan.h"
#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

static struct zero *zero_of(struct topology *t) { return (struct zero *)t; }

// ---------------------------------------------------------------- the start of a micro-batch
int zero_begin_micro(struct topology *t, int index, int count) {
    struct zero *z = zero_of(t);
    if (index < 0 || index >= count)
        return fail("rank %d, step %lld: micro-batch %d of %d does not exist", t->rank, (long long)z->step,
                    index, count);
    z->micro_index = index;
    z->micro_count = count;
    return zero_time_watch(z);
}

// ---------------------------------------------------------------- forward and backward: weights
// The sharded weights that are trained, or those that are frozen: their unit u is units[first + u].
struct sharded {
    struct unit_schedule *schedule;
    struct zero_slot *slots;
    int first;
};

static struct sharded trained_of(struct zero *z) {
    return (struct sharded){&z->schedule, z->weight_slots, 0};
}

static struct sharded frozen_of(struct zero *z) {
    return (struct sharded){&z->frozen.schedule, z->frozen.slots, z->opt.layout->count};
}

static struct zero_slot *slot_of(const struct sharded *w, int u) {
    return &w->slots[unit_schedule_slot(w->schedule, u)];
}

static struct collective *gather_of(struct zero *z, enum pass pass) {
    return pass == PASS_EVAL ? z->eval_gather : z->gather;
}

// Gathers the whole of u from the group's secondary shards.
static void gather_within(struct zero *z, int u, void *whole, enum pass pass) {
    int hpz = zero_hpz(&z->opt);
    collective_enqueue(gather_of(z, pass),
                       &(struct collective_call){.primitive = COLLECTIVE_ALL_GATHER,
                                                 .stream = z->gather_stream,
                                                 .send = z->units[u].secondary,
                                                 .recv = whole,
                                                 .count = (size_t)(z->opt.layout->units[u].n_pad / hpz),
                                                 .dt = z->c->dtype,
                                                 .team = collective_within(z->source.rank, hpz)});
}

// Gathers u from all ranks. In a training pass this rank keeps its shard of the group's copy.
static void gather_all(struct zero *z, int u, void *whole, enum pass pass) {
    int hpz = zero_hpz(&z->opt);
    const void *shard =
        z->c->offload_param.device ? zero_offload_shard(z, u, whole, pass) : z->units[u].weight_shard;
    collective_all_gather(gather_of(z, pass), z->gather_stream, shard, whole,
                          (size_t)unit_shard(z->opt.layout, u), z->c->dtype);
    if (!hpz || pass == PASS_EVAL) return;
    int64_t part = z->opt.layout->units[u].n_pad / hpz;
    dev_copy(z->gather_stream, z->units[u].secondary, zero_at(z, whole, part * (z->source.rank % hpz)),
             (size_t)part * dtype_size(z->c->dtype));
}

// Starts the all-gather of u in its slot, which is not held. Each group of hpZ has a copy of what is frozen from the start.
static void start_gather(struct zero *z, const struct sharded *w, int u, enum pass pass) {
    struct zero_slot *s = slot_of(w, u);
    int at = w->first + u;
    int64_t n = z->opt.layout->units[at].n_pad, hpz = zero_hpz(&z->opt);
    bool within = hpz && (w->first > 0 || unit_schedule_is_repeat(w->schedule, u, pass));
    int64_t peers = within ? hpz : z->base.size;
    struct zero_move m = {TRANSFER_WEIGHTS,
                          at,
                          (uint64_t)(n / peers * (peers - 1)) * dtype_size(z->c->dtype),
                          {s->idle_at, z->units[at].updated_at}};
    // 1. Wait until compute has used the slot's last weights, and u's last update is done.
    stream_wait_event(z->gather_stream, s->idle);
    stream_wait_event(z->gather_stream, z->units[at].updated);
    // 2. Gather. Gathers of PASS_EVAL are no transfers of the timeline.
    if (pass == PASS_EVAL) zero_serialize_begin(z, z->gather_stream, 0);
    s->move = pass == PASS_EVAL ? 0 : zero_move_begin(z, z->gather_stream, &m);
    if (within)
        gather_within(z, at, s->buf, pass);
    else
        gather_all(z, at, s->buf, pass);
    zero_move_end(z, z->gather_stream, s->move);
    // 3. Compute may use the slot.
    event_record(s->ready, z->gather_stream);
    s->unit = u;
    unit_schedule_gathered(w->schedule, u, pass);
}

static void prefetch(struct zero *z, const struct sharded *w, int u, enum pass pass) {
    if (z->policy->weights != RESIDENT_SHARD || z->c->no_overlap) return;
    for (int k = 0, v; (v = unit_schedule_ahead(w->schedule, u, pass, k)) >= 0; k++)
        if (!unit_schedule_holds(w->schedule, v, pass) && !slot_of(w, v)->held) start_gather(z, w, v, pass);
}

void zero_prefetch(struct topology *t, int u, enum pass pass) {
    const struct sharded w = trained_of(zero_of(t));
    prefetch(zero_of(t), &w, u, pass);
}

// Makes compute wait for u's weights in their slot; *weights receives them. Returns 0, or -1 after logging.
static int acquire_slot(struct zero *z, const struct sharded *w, int u, enum pass pass,
                        const void **weights) {
    struct zero_slot *s = slot_of(w, u);
    if (!unit_schedule_holds(w->schedule, u, pass)) {
        if (s->held)
            return fail("rank %d, step %lld: unit %s is asked for while unit %s still holds its slot",
                        z->base.rank, (long long)z->step, z->opt.layout->units[w->first + u].name,
                        z->opt.layout->units[w->first + s->unit].name);
        start_gather(z, w, u, pass);
    }
    timeline_wait(z->base.timeline, z->opt.compute, s->ready, s->move);
    s->held = true;
    *weights = s->buf;
    return 0;
}

static int acquire_weights(struct zero *z, int u, enum pass pass, struct unit_view *view) {
    struct zero_unit *zu = &z->units[u];
    const struct sharded w = trained_of(z);
    if (z->policy->weights == RESIDENT_SHARD) return acquire_slot(z, &w, u, pass, &view->weights);
    timeline_wait(z->base.timeline, z->opt.compute, zu->gathered, zu->gather);
    view->weights = zu->weights;
    return 0;
}

// at: the timeline's mark, if the caller has set it already; else 0.
static void release_slot(struct zero *z, struct zero_slot *s, uint64_t at) {
    event_record(s->idle, z->opt.compute);
    s->idle_at = at ? at : timeline_mark(z->base.timeline);
    s->held = false;
}

static void release_weights(struct zero *z, int u, uint64_t at) {
    const struct sharded w = trained_of(z);
    if (z->policy->weights == RESIDENT_SHARD) release_slot(z, slot_of(&w, u), at);
}

void zero_prefetch_frozen(struct topology *t, int u, enum pass pass) {
    const struct sharded w = frozen_of(zero_of(t));
    prefetch(zero_of(t), &w, u, pass);
}

int zero_acquire_frozen(struct topology *t, int u, enum pass pass, const void **weights) {
    const struct sharded w = frozen_of(zero_of(t));
    return acquire_slot(zero_of(t), &w, u, pass, weights);
}

int zero_release_frozen(struct topology *t, int u) {
    const struct sharded w = frozen_of(zero_of(t));
    release_slot(zero_of(t), slot_of(&w, u), 0);
    return 0;
}

// ---------------------------------------------------------------- backward: gradients
// Sets where the backward pass writes u's gradient: view->grad, view->accumulate. Returns 0, or -1 after logging.
static int acquire_grad(struct zero *z, int u, struct unit_view *view) {
    struct zero_unit *zu = &z->units[u];
    if (z->policy->grads == RESIDENT_FULL) {
        view->grad = zu->grad;
        view->accumulate = z->micro_index > 0 && !grad_sums_used(&z->sums);
        return 0;
    }
    struct zero_slot *s = &z->grad_slots[grad_slot(z->opt.layout, u)];
    if (s->held && s->unit != u)
        return fail(
            "rank %d, step %lld: the gradient of unit %s is asked for while unit %s still holds its slot",
            z->base.rank, (long long)z->step, z->opt.layout->units[u].name,
            z->opt.layout->units[s->unit].name);
    if (!s->held) {
        timeline_wait(z->base.timeline, z->opt.compute, s->idle, s->move);
        if (s->shape != zu->shape)
            grad_zero_gaps(z->opt.compute, &z->opt.layout->units[u], s->buf, z->c->dtype);
        s->shape = zu->shape;
        s->unit = u;
        s->held = true;
    }
    view->grad = s->buf;
    return 0;
}

int zero_acquire(struct topology *t, int u, enum pass pass, struct unit_view *view) {
    struct zero *z = zero_of(t);
    *view = (struct unit_view){0};
    if (acquire_weights(z, u, pass, view) != 0) return -1;
    return pass == PASS_BACKWARD ? acquire_grad(z, u, view) : 0;
}

int zero_release(struct topology *t, int u, enum pass pass) {
    (void)pass;
    release_weights(zero_of(t), u, 0);
    return 0;
}

int zero_grad_ready(struct topology *t, int u) {
    struct zero *z = zero_of(t);
    bool whole = z->policy->grads == RESIDENT_FULL, last = z->micro_index == z->micro_count - 1;
    // 1. The gradient is complete. Where it is whole, compute adds it to the fp32 sum.
    if (whole) zero_sum_micro(z, z->opt.compute, u, z->units[u].grad);
    event_record(z->units[u].grad_done, z->opt.compute);
    uint64_t done_at = timeline_mark(t->timeline);
    // 2. Backward no longer needs the weights.
    release_weights(z, u, done_at);
    // 3. Reduce the gradient: after each micro-batch, or where it is whole after the last one. 1-bit Adam reduces none.
    if (!zero_onebit_due(z) && (!whole || last)) zero_pack_reduce(z, u, done_at);
    return 0;
}

// ---------------------------------------------------------------- failures
void zero_abort(struct topology *t, const char *why) {
    struct zero *z = zero_of(t);
    struct collective *all[] = {z->gather, z->reduce, z->control, z->eval_gather};
    for (int i = 0; i < 4; i++) collective_abort(all[i], why);
}

// A collective's error text is more exact than the device's, which only knows that a host function failed.
const char *zero_why(struct topology *t) {
    struct zero *z = zero_of(t);
    const char *why = "";
    struct collective *all[] = {z->reduce, z->gather, z->control, z->eval_gather};
    for (int i = 0; i < 4 && !*why; i++) why = collective_error(all[i]);
    return why;
}

int zero_fail_all(struct zero *z, const char *doing) {
    const char *why = topology_why(&z->base);
    fail("%s, rank %d, step %lld: %s: %s", z->policy->name, z->base.rank, (long long)z->step, doing, why);
    zero_abort(&z->base, error_last());
    return -1;
}

// ---------------------------------------------------------------- the end of a step
// The exact sum of squares of this rank's shards. Every stage has the same shards, so no element counts twice.
static void launch_norm(struct zero *z) {
    if (zero_onebit_due(z)) {
        zero_onebit_norm(z);
        return;
    }
    for (int u = 0; u < z->opt.layout->count; u++)
        op_sumsq(z->opt.compute, &(struct sumsq_args){.out = z->sum,
                                                      .x = z->units[u].grad_shard,
                                                      .n = unit_shard(z->opt.layout, u),
                                                      .zero_out = u == 0,
                                                      .dt = z->c->dtype});
}

static void launch_decision(struct zero *z, const struct step_input *in) {
    uint64_t peers = (uint64_t)(z->base.size - 1), size = (uint64_t)z->base.size;
    int words = zero_step_words(z), at = words * z->base.rank;
    struct stream *reduce = z->reduce_stream;
    bool onebit = zero_onebit_due(z);
    double *mine = z->host_shares + at;
    // 1. Compute hands this rank's values and its sum of squares to the reduce stream.
    mine[1] = in->stop;
    mine[2] = in->snapshot;
    zero_time_send(z, mine + ZERO_STEP_WORDS);
    dev_copy(z->opt.compute, z->shares + at, in->loss_sum, sizeof(double));
    dev_copy(z->opt.compute, z->shares + at + 1, mine + 1, (size_t)(words - 1) * sizeof(double));
    event_record(z->norm_done, z->opt.compute);
    struct zero_move m = {TRANSFER_CONTROL, -1, 0, {timeline_mark(z->base.timeline)}};
    stream_wait_event(reduce, z->norm_done);
    // 2. Reduce the norm over all ranks' shards, then gather the values of all ranks.
    m.bytes = 2 * peers * EXACT_SUM_WORDS * sizeof(int64_t) / size;
    uint64_t id = zero_move_begin(z, reduce, &m);
    collective_all_reduce(z->control, reduce, onebit ? z->onebit.sum : z->sum, z->sum, EXACT_SUM_WORDS,
                          DT_I64);
    zero_move_end(z, reduce, id);
    m.bytes = peers * (uint64_t)words * sizeof(double);
    id = zero_move_begin(z, reduce, &m);
    collective_all_gather(z->control, reduce, z->shares + at, z->shares, (size_t)words, DT_F64);
    zero_move_end(z, reduce, id);
    event_record(z->decided, reduce);
    // 3. Compute decides on the clipping factor and on skipping, and copies decision and values to the host.
    timeline_wait(z->base.timeline, z->opt.compute, z->decided, id);
    if (onebit)
        zero_onebit_decide(z, in);
    else
        op_decide(z->opt.compute,
                  &(struct decide_args){
                      .scalars = z->scalars, .sum = z->sum, .loss_scale = in->loss_scale, .clip = in->clip});
    dev_copy(z->opt.compute, z->host_scalars, z->scalars,
             sizeof *z->scalars + (size_t)size * (size_t)words * sizeof(double));
    event_record(z->stats, z->opt.compute);
}

static void launch_update(struct zero *z, const struct step_input *in) {
    // Whether a gather waits for the event.
    bool needed = z->policy->gather_weights || z->policy->weights == RESIDENT_SHARD;
    z->offload.task_set = !z->offload.task_set;
    const struct update_step update = {.lr = in->lr, .t = in->updates + 1, .scalars = z->scalars};
    for (int u = 0; u < z->opt.layout->count; u++) {
        struct zero_unit *zu = &z->units[u];
        // 1. Update the masters and weights that this rank holds.
        if (zu->offloaded) {
            zero_offload_update(z, u, &update);
        } else {
            optimizer_launch(z->opt.compute, &z->c->optimizer, &zu->update, &update);
            event_record(zu->updated, z->opt.compute);
        }
        zu->updated_at = needed ? timeline_mark(z->base.timeline) : 0;
        // 2. Where all ranks hold whole weights, gather the updated shards.
        if (z->policy->gather_weights) zero_pack_gather(z, u);
    }
}

int zero_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct zero *z = zero_of(t);
    z->step = in->step;
    // 1. Compute waits for all reductions, and for updates of offloaded state. It also waits for gathers: a prefetched one
    //    that no pass has used may be reading weights that are about to change.
    event_record(z->reduced, z->reduce_stream);
    timeline_wait(t->timeline, z->opt.compute, z->reduced, z->time.reduced);
    event_record(z->gather_idle, z->gather_stream);
    timeline_wait(t->timeline, z->opt.compute, z->gather_idle, z->time.gathered);
    zero_offload_settle(z);
    stream_phase(z->opt.compute, PHASE_OPTIMIZER);
    // 2. Enqueue norm, decision and updates.
    bool onebit = zero_onebit_due(z);
    if (onebit) zero_onebit_begin(z);
    launch_norm(z);
    launch_decision(z, in);
    if (onebit)
        zero_onebit_update(z, in);
    else
        launch_update(z, in);
    unit_schedule_invalidate(&z->schedule);
    // Frozen weights are gathered in each step, so that all steps move the same bytes.
    if (zero_shards_frozen(z)) unit_schedule_invalidate(&z->frozen.schedule);
    // 3. The host waits for the decision and for the other ranks' values. Updates continue.
    if (event_sync(z->stats) != 0) return zero_fail_all(z, "the step failed");
    *out = (struct step_stats){.grad_norm = z->host_scalars->norm, .skipped = z->host_scalars->skip != 0};
    int words = zero_step_words(z);
    for (int i = 0; i < t->size; i++) {
        out->loss += z->host_shares[words * i] / in->loss_tokens;
        out->stop |= z->host_shares[words * i + 1] != 0;
        out->snapshot |= z->host_shares[words * i + 2] != 0;
    }
    zero_onebit_end(z, in, out->skipped);
    // 4. A checkpoint reads offloaded state after compute, so compute waits for it. Without overlap compute always waits.
    if (t->plan.keep || out->stop || z->c->no_overlap) zero_offload_settle(z);
    // 5. The ready times of earlier transfers are known, and the step is over.
    zero_time_receive(z, z->host_shares + ZERO_STEP_WORDS, words);
    z->step = in->step + 1;
    step_plan_advance(t, out->skipped);
    return 0;
}

// ---------------------------------------------------------------- sums, and the end of a run
int zero_sum(struct topology *t, double *values, int count) {
    struct zero *z = zero_of(t);
    for (int done = 0; done < count; done += ZERO_SUM_CHUNK) {
        int n = count - done < ZERO_SUM_CHUNK ? count - done : ZERO_SUM_CHUNK;
        memcpy(z->host_shares + t->rank * n, values + done, (size_t)n * sizeof(double));
        if (zero_exchange(z, n)) return zero_fail_all(z, "a sum over the ranks failed");
        for (int i = 0; i < n; i++) {
            values[done + i] = 0;
            for (int r = 0; r < t->size; r++) values[done + i] += z->host_shares[r * n + i];
        }
    }
    return 0;
}

int zero_finish(struct topology *t) {
    struct zero *z = zero_of(t);
    int rc = stream_sync(z->opt.compute);
    rc |= stream_sync(z->gather_stream);
    rc |= stream_sync(z->reduce_stream);
    rc |= zero_offload_sync(z);
    if (rc != 0 || zero_time_finish(z) != 0) return zero_fail_all(z, "finishing failed");
    return 0;
}
