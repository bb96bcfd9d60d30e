// Where a unit's gradient is written, and how it is reduced once it is complete.
#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"

int zero_acquire_grad(struct zero *z, int u, struct unit_view *view) {
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
            grad_zero_gaps(z->opt.compute, &z->opt.layout->units[u], s->buf, z->opt.dtype);
        s->shape = zu->shape;
        s->unit = u;
        s->held = true;
    }
    view->grad = s->buf;
    return 0;
}

void zero_grad_written(struct zero *z, int u) {
    if (z->policy->grads == RESIDENT_FULL) zero_sum_micro(z, z->opt.compute, u, z->units[u].grad);
}

// The whole gradient is resident: it is reduced in place when it is complete.
static void reduce_full(struct zero *z, int u, uint64_t done_at) {
    struct zero_unit *zu = &z->units[u];
    struct zero_move m = {TRANSFER_GRADIENTS, u, zero_moved(z, u), {done_at}};
    size_t shard = (size_t)unit_shard(z->opt.layout, u);
    stream_wait_event(z->reduce_stream, zu->grad_done);
    uint64_t id = zero_move_begin(z, z->reduce_stream, &m);
    collective_reduce_scatter(z->reduce, z->reduce_stream, zu->grad, zu->grad_shard, shard, z->opt.dtype);
    zero_move_end(z, z->reduce_stream, id);
    if (!z->policy->gather_grads) return;
    id = zero_move_begin(z, z->reduce_stream, &m);
    collective_all_gather(z->reduce, z->reduce_stream, zu->grad_shard, zu->grad, shard, z->opt.dtype);
    zero_move_end(z, z->reduce_stream, id);
}

// The slot is reduced after every micro-batch. The first result goes to the shard. Later results go to this rank's
// range of the slot and are added to the shard. With fp32 sums every result goes to the shard, then to the sum.
static void reduce_slot(struct zero *z, int u, uint64_t done_at) {
    struct zero_unit *zu = &z->units[u];
    struct zero_move m = {TRANSFER_GRADIENTS, u, zero_moved(z, u), {done_at}};
    struct zero_slot *s = &z->grad_slots[grad_slot(z->opt.layout, u)];
    int64_t shard = unit_shard(z->opt.layout, u);
    bool sums = grad_sums_used(&z->sums), first = z->micro_index == 0 || sums;
    void *to = first ? zu->grad_shard : zero_at(z, s->buf, shard * z->base.rank);
    stream_wait_event(z->reduce_stream, zu->grad_done);
    s->move = zero_move_begin(z, z->reduce_stream, &m);
    collective_reduce_scatter(z->reduce, z->reduce_stream, s->buf, to, (size_t)shard, z->opt.dtype);
    if (!first)
        op_add(z->reduce_stream,
               &(struct add_args){
                   .y = zu->grad_shard, .a = zu->grad_shard, .b = to, .n = shard, .dt = z->opt.dtype});
    zero_sum_micro(z, z->reduce_stream, u, zu->grad_shard);
    zero_move_end(z, z->reduce_stream, s->move);
    event_record(s->idle, z->reduce_stream);
    s->held = false;
}

void zero_reduce_grad(struct zero *z, int u, uint64_t done_at) {
    if (zero_onebit_due(z)) return;
    bool whole = z->policy->grads == RESIDENT_FULL;
    if (whole && z->micro_index != z->micro_count - 1) return;
    if (zero_bundle_of(&z->reduced_bundles.table, u)->count > 1)
        zero_pack_reduce(z, u, done_at);
    else if (whole)
        reduce_full(z, u, done_at);
    else
        reduce_slot(z, u, done_at);
}
