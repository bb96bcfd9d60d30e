// Reductions of gradients, and gathers of updated weights, bundle by bundle (zero_policy.h). A bundle of one unit moves from
// and to its own buffers. The shards of several units are copied to a buffer, one collective runs in place on it, and the
// results are copied back.
//
// Each of the two communication streams has a buffer of its own, which only this stream reads and writes. So the
// stream's order protects the buffer, and no event is needed.
#include "decentral/zero/zero_state.h"

int64_t zero_pack_largest(const struct zero *z) {
    int64_t a = zero_bundles_largest(&z->reduced_bundles.table);
    int64_t b = zero_bundles_largest(&z->gathered_bundles.table);
    return a > b ? a : b;
}

static void carve(struct zero *z, struct zero_pack *p) {
    int64_t elements = z->source.size * zero_bundles_packed(&p->table);
    p->buf = arena_take(&z->arena, MEM_COMM, (size_t)elements * dtype_size(z->c->dtype));
}

void zero_pack_carve(struct zero *z) {
    carve(z, &z->reduced_bundles);
    if (z->policy->gather_weights) carve(z, &z->gathered_bundles);
}

// ---------------------------------------------------------------- copies
// Returns the address of rank r's shard of u in the buffer.
static void *packed(const struct zero *z, const struct zero_pack *p, int u, int r) {
    return zero_at(z, p->buf, zero_bundle_of(&p->table, u)->shard * r + p->table.at[u]);
}

static size_t shard_bytes(const struct zero *z, int u) {
    return (size_t)unit_shard(z->opt.layout, u) * dtype_size(z->c->dtype);
}

// Copies all shards except this rank's own.
static void unpack(struct zero *z, struct stream *s, const struct zero_pack *p, int u, void *whole) {
    for (int r = 0; r < z->base.size; r++)
        if (r != z->base.rank)
            dev_copy(s, zero_at(z, whole, unit_shard(z->opt.layout, u) * r), packed(z, p, u, r),
                     shard_bytes(z, u));
}

static struct zero_move move_of(const struct zero *z, enum transfer_kind kind, const struct zero_bundle *b,
                                int u, uint64_t after) {
    struct zero_move m = {.kind = kind, .unit = u, .after = {after}};
    for (int v = b->first; v < b->first + b->count; v++) m.bytes += zero_moved(z, v);
    return m;
}

// ---------------------------------------------------------------- gradients
// Adds this rank's reduced shard of u to grad_shard, or copies it there. sum: where it is.
static void keep_shard(struct zero *z, int u, void *sum) {
    struct stream *s = z->reduce_stream;
    struct zero_unit *zu = &z->units[u];
    bool whole = z->policy->grads == RESIDENT_FULL;
    bool first = whole || z->micro_index == 0 || grad_sums_used(&z->sums);
    if (first && sum != zu->grad_shard)
        dev_copy(s, zu->grad_shard, sum, shard_bytes(z, u));
    else if (!first)
        op_add(s, &(struct add_args){.y = zu->grad_shard,
                                     .a = zu->grad_shard,
                                     .b = sum,
                                     .n = unit_shard(z->opt.layout, u),
                                     .dt = z->c->dtype});
    if (!whole) zero_sum_micro(z, s, u, zu->grad_shard);
}

// Lets compute write the slot again. id: of the last transfer that reads the slot.
static void free_slot(struct zero *z, struct zero_slot *slot, uint64_t id) {
    slot->move = id;
    event_record(slot->idle, z->reduce_stream);
    slot->held = false;
}

// A whole gradient is reduced in place. Slots are reduced after every micro-batch: the first result goes to the shard, later
// ones are added to it. With fp32 sums every result goes to the shard, then to the sum.
void zero_pack_reduce(struct zero *z, int u, uint64_t done_at) {
    struct stream *s = z->reduce_stream;
    const struct zero_pack *p = &z->reduced_bundles;
    const struct zero_bundle *b = zero_bundle_of(&p->table, u);
    const bool several = b->count > 1, whole = z->policy->grads == RESIDENT_FULL;
    const bool first = z->micro_index == 0 || grad_sums_used(&z->sums);
    struct zero_slot *slot = whole ? NULL : &z->grad_slots[grad_slot(z->opt.layout, u)];
    void *buf = slot ? slot->buf : z->units[u].grad;
    stream_wait_event(s, z->units[u].grad_done);
    // 1. A bundle of several units: copy the shards to its buffer. The collective starts with the last unit.
    if (several) {
        zero_serialize_begin(z, s, 0);
        for (int r = 0; r < z->base.size; r++)
            dev_copy(s, packed(z, p, u, r), zero_at(z, buf, unit_shard(z->opt.layout, u) * r),
                     shard_bytes(z, u));
        zero_move_end(z, s, 0);
        // The copies from the slot run after the stream's last transfer.
        if (slot) free_slot(z, slot, z->time.reduced);
        if (u != b->first) return;
        buf = p->buf;
    }
    // 2. Reduce; this rank keeps its shard.
    void *own = zero_at(z, buf, b->shard * z->base.rank);
    void *to = several || whole || !first ? own : z->units[u].grad_shard;
    struct zero_move m = move_of(z, TRANSFER_GRADIENTS, b, u, done_at);
    uint64_t id = zero_move_begin(z, s, &m);
    collective_reduce_scatter(z->reduce, s, buf, to, (size_t)b->shard, z->c->dtype);
    for (int v = b->first; v < b->first + b->count; v++)
        keep_shard(z, v, several ? packed(z, p, v, z->base.rank) : to);
    zero_move_end(z, s, id);
    if (slot && !several) free_slot(z, slot, id);
    // 3. Where the reduced gradient is whole on every rank, gather it.
    if (!z->policy->gather_grads) return;
    id = zero_move_begin(z, s, &m);
    collective_all_gather(z->reduce, s, own, buf, (size_t)b->shard, z->c->dtype);
    for (int v = b->first; v < b->first + b->count && several; v++) unpack(z, s, p, v, z->units[v].grad);
    zero_move_end(z, s, id);
}

// ---------------------------------------------------------------- weights
void zero_pack_gather(struct zero *z, int u) {
    struct stream *s = z->gather_stream;
    const struct zero_pack *p = &z->gathered_bundles;
    const struct zero_bundle *b = zero_bundle_of(&p->table, u);
    const struct zero_unit *zu = &z->units[u];
    const bool several = b->count > 1;
    stream_wait_event(s, zu->updated);
    // 1. A bundle of several units: copy the shards to its buffer. The collective starts with the last unit.
    if (several) {
        zero_serialize_begin(z, s, 0);
        dev_copy(s, packed(z, p, u, z->base.rank), zu->weight_shard, shard_bytes(z, u));
        zero_move_end(z, s, 0);
        if (u != b->first + b->count - 1) return;
    }
    // 2. Gather.
    struct zero_move m = move_of(z, TRANSFER_WEIGHTS, b, u, zu->updated_at);
    uint64_t id = zero_move_begin(z, s, &m);
    void *own = several ? zero_at(z, p->buf, b->shard * z->base.rank) : zu->weight_shard;
    collective_all_gather(z->gather, s, own, several ? p->buf : zu->weights, (size_t)b->shard, z->c->dtype);
    for (int v = b->first; v < b->first + b->count && several; v++) unpack(z, s, p, v, z->units[v].weights);
    zero_move_end(z, s, id);
    for (int v = b->first; v < b->first + b->count; v++) {
        z->units[v].gather = id;
        event_record(z->units[v].gathered, s);
    }
}
