// 1-bit Adam in stage 0 (Tang et al. 2021, algorithm 1; DeepSpeed's runtime/fp16/onebit/adam.py). The first freeze_step
// updates are stage 0 with Adam. After them the variance is frozen and gradients are no longer reduced. Instead each
// rank sends its momentum, with one bit per element and one scale per 256 elements (kernels/codec.h).
//
//     compute   .. backward | own norm |          | decide | encode u0 | encode u1 | ..      | update u0 | update u1 ..
//     reduce                           | norm loss|        | all-to-all u0, sum, all-gather | u1 .. |
//
// encode      error + beta1 m + (1-beta1) g, of the whole unit; m is the same on all ranks. Each rank receives the
//             blocks of its shard. The new error is what the code loses (worker error: n_pad).
// sum         of this rank's shard: the mean of all ranks' codes plus this rank's server error, encoded again. The
//             new server error is what this code loses (S).
// update      all ranks receive the codes of all shards: their value is the new momentum, the same on every rank.
//
// The exchange does not overlap with the backward pass: the factor that clips is known only after it. As in DeepSpeed
// each rank clips its own gradient by its own norm; the reported norm is the root mean square of the ranks' norms.
// After an overflow on any rank all ranks skip the step, and their errors do not change.
#include <math.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

bool zero_onebit_on(const struct zero *z) {
    return z->c->optimizer.freeze_step && z->policy->gather_grads && z->source.size > 1;
}

bool zero_onebit_due(const struct zero *z) {
    int64_t updates = z->onebit.known ? z->onebit.updates : z->base.start.updates;
    return zero_onebit_on(z) && updates >= z->c->optimizer.freeze_step;
}

void zero_onebit_carve(struct zero *z) {
    if (!zero_onebit_on(z)) return;
    for (int u = 0; u < z->opt.layout->count; u++) {
        struct zero_onebit_unit *o = &z->units[u].onebit;
        int64_t n = z->opt.layout->units[u].n_pad, shard = unit_shard(z->opt.layout, u);
        o->error = arena_take(&z->arena, MEM_OPTIMIZER, (size_t)n * sizeof(float));
        o->server_error = arena_take(&z->arena, MEM_OPTIMIZER, (size_t)shard * sizeof(float));
        o->codes = arena_take(&z->arena, MEM_COMM, onebit_bytes(n));
        o->shard_codes = arena_take(&z->arena, MEM_COMM, onebit_bytes(n));
    }
    z->onebit.sum = arena_take(&z->arena, MEM_WORKSPACE, sizeof *z->onebit.sum);
    z->onebit.own = arena_take(&z->arena, MEM_WORKSPACE, sizeof *z->onebit.own);
}

void zero_onebit_loads(struct zero *z, const char *checkpoint) {
    if (z->base.rank == 0 && zero_onebit_on(z) && z->base.start.updates > z->c->optimizer.freeze_step)
        warn(
            "%s: the errors of OneBitAdam's codes before it are lost: checkpoints do not hold them, and they "
            "begin at zero",
            checkpoint);
}

// Two collectives, in which a rank exchanges the code of each shard with every other rank.
void zero_onebit_wire(const struct zero_options *o, struct wire_prediction *wire) {
    uint64_t bytes = 0;
    for (int u = 0; u < o->layout->count; u++)
        bytes += 2 * (uint64_t)(o->layout->world - 1) * onebit_bytes(unit_shard(o->layout, u));
    wire->later.updates = o->config->optimizer.freeze_step;
    wire->later.sent_per_step = wire->later.received_per_step = bytes;
}

// Called before the first transfer of a step after the warm-up (the first freeze_step updates).
void zero_onebit_begin(struct zero *z) {
    struct wire_later *l = &z->base.wire_later;
    if (l->steps++) return;
    l->sent = atomic_load(&z->base.wire.payload_sent);
    l->received = atomic_load(&z->base.wire.payload_received);
}

void zero_onebit_end(struct zero *z, const struct step_input *in, bool skipped) {
    z->onebit.updates = in->updates + !skipped;
    z->onebit.known = true;
}

void zero_onebit_norm(struct zero *z) {
    for (int u = 0; u < z->opt.layout->count; u++)
        op_sumsq(z->opt.compute, &(struct sumsq_args){.out = z->onebit.sum,
                                                      .x = z->units[u].grad,
                                                      .n = z->opt.layout->units[u].n_pad,
                                                      .zero_out = u == 0,
                                                      .dt = z->c->dtype});
}

// A rank's gradient is its contribution to the mean over the global batch. N times it is the gradient of its own mean.
void zero_onebit_decide(struct zero *z, const struct step_input *in) {
    double ranks = z->base.size, scale = (double)in->loss_scale;
    op_decide(z->opt.compute, &(struct decide_args){.scalars = z->scalars,
                                                    .sum = z->sum,
                                                    .loss_scale = (float)(scale / sqrt(ranks)),
                                                    .clip = in->clip});
    op_decide(z->opt.compute, &(struct decide_args){.scalars = z->onebit.own,
                                                    .sum = z->onebit.sum,
                                                    .loss_scale = (float)(scale / ranks),
                                                    .clip = in->clip});
}

static void encode(struct zero *z, int u, float beta1) {
    struct zero_unit *zu = &z->units[u];
    op_onebit_encode(z->opt.compute, &(struct onebit_encode_args){.out = zu->onebit.codes,
                                                                  .error = zu->onebit.error,
                                                                  .m = zu->update.state[0],
                                                                  .v = zu->update.state[1],
                                                                  .grad = zu->grad,
                                                                  .scalars = z->scalars,
                                                                  .own = z->onebit.own,
                                                                  .n = z->opt.layout->units[u].n_pad,
                                                                  .beta1 = beta1,
                                                                  .dt = z->c->dtype});
    event_record(zu->grad_done, z->opt.compute);
    zu->onebit.encoded_at = timeline_mark(z->base.timeline);
}

// codes: this rank's for all ranks. shard_codes: all ranks' of this rank's shard. Then codes: all shards' results.
static void exchange(struct zero *z, int u) {
    struct zero_unit *zu = &z->units[u];
    struct zero_onebit_unit *o = &zu->onebit;
    int64_t shard = unit_shard(z->opt.layout, u), at = shard * z->base.rank;
    size_t bytes = onebit_bytes(shard);
    struct onebit_block *mine = o->codes + at / ONEBIT_BLOCK;
    struct zero_move m = {TRANSFER_GRADIENTS, u, (uint64_t)(z->base.size - 1) * bytes, {o->encoded_at}};
    stream_wait_event(z->reduce_stream, zu->grad_done);
    uint64_t id = zero_move_begin(z, z->reduce_stream, &m);
    collective_all_to_all(z->reduce, z->reduce_stream, o->codes, o->shard_codes, bytes, DT_U8);
    zero_move_end(z, z->reduce_stream, id);
    op_onebit_sum(z->reduce_stream, &(struct onebit_sum_args){.out = mine,
                                                              .in = o->shard_codes,
                                                              .error = o->server_error,
                                                              .v = zu->update.state[1] + at,
                                                              .scalars = z->scalars,
                                                              .n = shard,
                                                              .ranks = z->base.size});
    o->exchange = zero_move_begin(z, z->reduce_stream, &m);
    collective_all_gather(z->reduce, z->reduce_stream, mine, o->codes, bytes, DT_U8);
    zero_move_end(z, z->reduce_stream, o->exchange);
    event_record(o->exchanged, z->reduce_stream);
}

void zero_onebit_update(struct zero *z, const struct step_input *in) {
    const struct update_step step = {.lr = in->lr, .t = in->updates + 1, .scalars = z->scalars};
    for (int u = 0; u < z->opt.layout->count; u++) {
        encode(z, u, optimizer_beta1(&z->c->optimizer, &step));
        exchange(z, u);
    }
    for (int u = 0; u < z->opt.layout->count; u++) {
        struct zero_unit *zu = &z->units[u];
        timeline_wait(z->base.timeline, z->opt.compute, zu->onebit.exchanged, zu->onebit.exchange);
        zu->update.momentum = zu->onebit.codes;
        optimizer_launch(z->opt.compute, &z->c->optimizer, &zu->update, &step);
        event_record(zu->updated, z->opt.compute);
        zu->updated_at = 0;
    }
}
