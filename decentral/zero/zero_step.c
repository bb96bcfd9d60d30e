// The end of a step: norm, decision, update; and the other collective hooks.
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
#include "decentral/zero/zero_state.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/state/checkpoint_read.h"

void zero_abort(struct topology *t, const char *why) {
    struct zero *z = (struct zero *)t;
    struct collective *all[] = {z->gather, z->reduce, z->control, z->aside};
    for (int i = 0; i < 4; i++) collective_abort(all[i], why);
}

// A collective's error text is more exact than the device's, which only knows that a host function failed.
const char *zero_why(struct topology *t) {
    struct zero *z = (struct zero *)t;
    const char *why = "";
    struct collective *all[] = {z->reduce, z->gather, z->control, z->aside};
    for (int i = 0; i < 4 && !*why; i++) why = collective_error(all[i]);
    return why;
}

// Logs what failed and where, and aborts the other ranks. Returns -1.
static int fail_all(struct zero *z, const char *doing) {
    const char *why = topology_why(&z->base);
    fail("%s, rank %d, step %lld: %s: %s", z->policy->name, z->base.rank, (long long)z->step, doing, why);
    zero_abort(&z->base, error_last());
    return -1;
}

// ---------------------------------------------------------------- step
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
                                                      .dt = z->opt.dtype});
}

// Bytes that a rank sends to all-reduce the norm: 2(N-1)/N of the words.
static uint64_t norm_bytes(int size) {
    return 2 * (uint64_t)(size - 1) * EXACT_SUM_WORDS * sizeof(int64_t) / (uint64_t)size;
}

static void launch_decision(struct zero *z, const struct step_input *in) {
    int words = zero_step_words(z), at = words * z->base.rank;
    struct stream *reduce = z->reduce_stream;
    bool onebit = zero_onebit_due(z);
    double *mine = z->host_shares + at;
    mine[1] = in->stop;
    mine[2] = in->snapshot;
    zero_time_tell(z, mine + ZERO_STEP_WORDS);
    dev_copy(z->opt.compute, z->shares + at, in->loss_sum, sizeof(double));
    dev_copy(z->opt.compute, z->shares + at + 1, mine + 1, (size_t)(words - 1) * sizeof(double));
    event_record(z->norm_done, z->opt.compute);
    struct zero_move m = {TRANSFER_CONTROL, -1, 0, {timeline_moment(z->base.timeline)}};
    stream_wait_event(reduce, z->norm_done);
    m.bytes = norm_bytes(z->base.size);
    uint64_t id = zero_move_begin(z, reduce, &m);
    collective_all_reduce(z->control, reduce, onebit ? z->onebit.sum : z->sum, z->sum, EXACT_SUM_WORDS,
                          DT_I64);
    zero_move_end(z, reduce, id);
    m.bytes = (uint64_t)(z->base.size - 1) * (uint64_t)words * sizeof(double);
    id = zero_move_begin(z, reduce, &m);
    collective_all_gather(z->control, reduce, z->shares + at, z->shares, (size_t)words, DT_F64);
    zero_move_end(z, reduce, id);
    event_record(z->decided, reduce);
    timeline_wait(z->base.timeline, z->opt.compute, z->decided, id);
    if (onebit)
        zero_onebit_decide(z, in);
    else
        op_decide(z->opt.compute,
                  &(struct decide_args){
                      .scalars = z->scalars, .sum = z->sum, .loss_scale = in->loss_scale, .clip = in->clip});
    dev_copy(z->opt.compute, z->host_scalars, z->scalars,
             sizeof *z->scalars + (size_t)z->base.size * (size_t)words * sizeof(double));
    event_record(z->stats, z->opt.compute);
}

static void launch_update(struct zero *z, const struct step_input *in) {
    bool needed = z->policy->gather_weights || z->policy->weights == RESIDENT_SHARD;  // a gather waits for it
    z->offload.turn = !z->offload.turn;
    const struct update_step update = {.lr = in->lr, .t = in->updates + 1, .scalars = z->scalars};
    for (int u = 0; u < z->opt.layout->count; u++) {
        struct zero_unit *zu = &z->units[u];
        if (zu->offloaded) {
            zero_offload_update(z, u, &update);
        } else {
            optimizer_launch(z->opt.compute, &z->opt.optimizer, &zu->update, &update);
            event_record(zu->updated, z->opt.compute);
        }
        zu->updated_at = needed ? timeline_moment(z->base.timeline) : 0;
        if (!z->policy->gather_weights) continue;
        if (zero_bundle_of(&z->gathered_bundles.table, u)->count > 1) {
            zero_pack_gather(z, u);
            continue;
        }
        struct zero_move m = {TRANSFER_WEIGHTS, u, zero_moved(z, u), {zu->updated_at}};
        stream_wait_event(z->gather_stream, zu->updated);
        zu->gather = zero_move_begin(z, z->gather_stream, &m);
        collective_all_gather(z->gather, z->gather_stream, zu->weight_shard, zu->weights,
                              (size_t)unit_shard(z->opt.layout, u), z->opt.dtype);
        zero_move_end(z, z->gather_stream, zu->gather);
        event_record(zu->gathered, z->gather_stream);
    }
}

int zero_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct zero *z = (struct zero *)t;
    z->step = in->step;
    event_record(z->reduced, z->reduce_stream);
    timeline_wait(t->timeline, z->opt.compute, z->reduced, z->time.reduced);
    // A prefetched gather that no pass used may be reading weights that are about to change.
    event_record(z->gather_idle, z->gather_stream);
    timeline_wait(t->timeline, z->opt.compute, z->gather_idle, z->time.gathered);
    zero_offload_settle(z);
    stream_phase(z->opt.compute, PHASE_OPTIMIZER);
    bool onebit = zero_onebit_due(z);
    if (onebit) zero_onebit_begin(z);
    launch_norm(z);
    launch_decision(z, in);
    if (onebit)
        zero_onebit_update(z, in);
    else
        launch_update(z, in);
    unit_schedule_forget(&z->schedule);
    if (event_sync(z->stats) != 0) return fail_all(z, "the step failed");
    *out = (struct step_stats){.grad_norm = z->host_scalars->norm, .skipped = z->host_scalars->skip != 0};
    int words = zero_step_words(z);
    for (int i = 0; i < t->size; i++) {
        out->loss += z->host_shares[words * i] / in->loss_tokens;
        out->stop |= z->host_shares[words * i + 1] != 0;
        out->snapshot |= z->host_shares[words * i + 2] != 0;
    }
    zero_onebit_end(z, in, out->skipped);
    // A checkpoint reads offloaded state after compute, so compute waits for it. Without overlap compute always waits.
    if (t->plan.keep || out->stop || z->opt.in_turn) zero_offload_settle(z);
    zero_time_hear(z, z->host_shares + ZERO_STEP_WORDS, words);
    z->step = in->step + 1;
    step_plan_over(t, out->skipped);
    return 0;
}

// ---------------------------------------------------------------- around the steps
int zero_sum(struct topology *t, double *values, int count) {
    struct zero *z = (struct zero *)t;
    for (int done = 0; done < count; done += ZERO_SUM_CHUNK) {
        int n = count - done < ZERO_SUM_CHUNK ? count - done : ZERO_SUM_CHUNK;
        double *mine = z->shares + t->rank * n;
        dev_copy(z->reduce_stream, mine, values + done, (size_t)n * sizeof(double));
        collective_all_gather(z->control, z->reduce_stream, mine, z->shares, (size_t)n, DT_F64);
        dev_copy(z->reduce_stream, z->host_shares, z->shares, (size_t)(n * t->size) * sizeof(double));
        if (stream_sync(z->reduce_stream) != 0) return fail_all(z, "a sum over the ranks failed");
        for (int i = 0; i < n; i++) {
            values[done + i] = 0;
            for (int r = 0; r < t->size; r++) values[done + i] += z->host_shares[r * n + i];
        }
    }
    return 0;
}

int zero_finish(struct topology *t) {
    struct zero *z = (struct zero *)t;
    int rc = stream_sync(z->opt.compute);
    rc |= stream_sync(z->gather_stream);
    rc |= stream_sync(z->reduce_stream);
    rc |= zero_offload_sync(z);
    if (rc != 0 || zero_time_finish(z) != 0) return fail_all(z, "finishing failed");
    return 0;
}

// The range that this rank itself has updated: its shard, also where weights are whole.
int zero_weights(struct topology *t, int u, struct state_range *out) {
    struct zero *z = (struct zero *)t;
    if (u >= z->opt.layout->count) return -1;
    int64_t shard = unit_shard(z->opt.layout, u);
    zero_offload_settle(z);
    *out = (struct state_range){.unit = u,
                                .kind = STATE_WEIGHTS,
                                .begin = shard * t->rank,
                                .end = shard * (t->rank + 1),
                                .data = z->units[u].weight_shard,
                                .read = zero_disk_on(z) ? zero_disk_get : NULL,
                                .ctx = z};
    return 0;
}

// The host rounds exactly as OP_CAST does: a rank may hold 16-bit weights of elements whose fp32 masters another rank
// holds.
int zero_load_unit(struct topology *t, int u, const float *values) {
    struct zero *z = (struct zero *)t;
    struct zero_unit *zu = &z->units[u];
    int64_t shard = unit_shard(z->opt.layout, u);
    bool whole = z->policy->weights == RESIDENT_FULL;
    int64_t begin = whole ? 0 : shard * t->rank, n = whole ? z->opt.layout->units[u].n_pad : shard;
    size_t bytes = (size_t)n * dtype_size(t->dtype);
    void *rounded = xcalloc(1, bytes);
    for (int64_t i = 0; i < n; i++) dtype_store(t->dtype, rounded, (size_t)i, values[begin + i]);
    int written = 0;
    if (zero_disk_on(z))
        written = zero_offload_sync(z) || zero_disk_put(z, u, rounded);
    else
        dev_copy(z->opt.compute, whole ? zu->weights : zu->weight_shard, rounded, bytes);
    if (zero_offload_on_disk(z, u))
        written |= zero_offload_put(z, u, STATE_MASTER, values + zu->update.begin);
    else if (t->dtype != DT_F32 || zu->offloaded)
        dev_copy(z->opt.compute, zu->update.master, values + zu->update.begin,
                 (size_t)(zu->update.end - zu->update.begin) * sizeof(float));
    event_record(zu->updated, z->opt.compute);
    unit_schedule_forget(&z->schedule);
    int rc = stream_sync(z->opt.compute) | written;
    free(rounded);
    return rc == 0 ? 0 : fail_all(z, "loading the weights failed");
}

// ---------------------------------------------------------------- checkpoints
// This rank's shard of the masters and of each state. In stage 0, where all ranks hold them whole, each rank writes
// only its shard.
int zero_state(struct topology *t, int index, struct state_range *out) {
    const struct zero *z = (const struct zero *)t;
    int kinds = 1 + z->opt.optimizer.row->states, u = index / kinds, kind = index % kinds;
    if (u >= z->opt.layout->count) return -1;
    const struct update_range *r = &z->units[u].update;
    int64_t shard = unit_shard(z->opt.layout, u), begin = shard * t->rank;
    const float *held = kind == STATE_MASTER ? r->master : r->state[kind - STATE_OPTIMIZER];
    *out = (struct state_range){.unit = u, .kind = kind, .begin = begin, .end = begin + shard};
    if (zero_offload_on_disk(z, u)) {
        out->read = zero_offload_get;
        out->ctx = t;
    } else {
        out->data = held + (begin - r->begin);
    }
    return 0;
}

// Reads the elements of a unit's weights that this rank holds. It may hold fewer of the masters.
static int load_weights(struct zero *z, struct checkpoint *c, int u, float *values) {
    const struct layout *l = z->opt.layout;
    bool whole = z->policy->weights == RESIDENT_FULL;
    int64_t shard = unit_shard(l, u), begin = whole ? 0 : shard * z->base.rank;
    int64_t end = whole ? l->units[u].n_pad : begin + shard;
    if (checkpoint_read(c, l, u, STATE_MASTER, begin, end, values + begin)) return -1;
    return zero_load_unit(&z->base, u, values);
}

int zero_load(struct topology *t, struct checkpoint *c) {
    struct zero *z = (struct zero *)t;
    const struct layout *l = z->opt.layout;
    int states = z->opt.optimizer.row->states, rc = 0;
    zero_onebit_loads(z, checkpoint_path(c));
    for (int u = 0; u < l->count && !rc; u++) {
        const struct update_range *r = &z->units[u].update;
        float *values = xcalloc((size_t)l->units[u].n_pad, sizeof *values);
        rc = load_weights(z, c, u, values);
        for (int k = 0; k < states && !rc; k++) {
            rc = checkpoint_read(c, l, u, STATE_OPTIMIZER + k, r->begin, r->end, values);
            if (rc) break;
            if (zero_offload_on_disk(z, u)) {
                rc = zero_offload_put(z, u, STATE_OPTIMIZER + k, values);
                continue;
            }
            dev_copy(z->opt.compute, r->state[k], values, (size_t)(r->end - r->begin) * sizeof *values);
            if (stream_sync(z->opt.compute)) rc = fail_all(z, "loading a checkpoint failed");
        }
        free(values);
    }
    return rc;
}
