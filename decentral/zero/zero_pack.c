// Transfers of bundles of several units (zero_policy.h). Their shards are copied to a buffer, one collective runs in
// place on the buffer, and the results are copied back. A bundle of one unit needs no copy and no code of this file.
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
    p->buf = arena_take(&z->arena, MEM_COMM, (size_t)elements * dtype_size(z->opt.dtype));
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
    return (size_t)unit_shard(z->opt.layout, u) * dtype_size(z->opt.dtype);
}

// Copies all shards except this rank's own.
static void unpack(struct zero *z, struct stream *s, const struct zero_pack *p, int u, void *whole) {
    for (int r = 0; r < z->base.size; r++)
        if (r != z->base.rank)
            dev_copy(s, zero_at(z, whole, unit_shard(z->opt.layout, u) * r), packed(z, p, u, r),
                     shard_bytes(z, u));
}

static struct zero_move move_of(const struct zero *z, enum transfer_kind kind, const struct zero_pack *p,
                                int u) {
    struct zero_move m = {.kind = kind, .unit = u};
    const struct zero_bundle *b = zero_bundle_of(&p->table, u);
    for (int v = b->first; v < b->first + b->count; v++) m.bytes += zero_moved(z, v);
    return m;
}

// ---------------------------------------------------------------- gradients
// Copies this rank's reduced shard of u to grad_shard, or adds it to grad_shard.
static void keep_shard(struct zero *z, int u) {
    struct stream *s = z->reduce_stream;
    struct zero_unit *zu = &z->units[u];
    void *sum = packed(z, &z->reduced_bundles, u, z->base.rank);
    bool whole = z->policy->grads == RESIDENT_FULL;
    if (whole || z->micro_index == 0 || grad_sums_used(&z->sums))
        dev_copy(s, zu->grad_shard, sum, shard_bytes(z, u));
    else
        op_add(s, &(struct add_args){.y = zu->grad_shard,
                                     .a = zu->grad_shard,
                                     .b = sum,
                                     .n = unit_shard(z->opt.layout, u),
                                     .dt = z->opt.dtype});
    if (!whole) zero_sum_micro(z, s, u, zu->grad_shard);
}

static void reduce_bundle(struct zero *z, int u, uint64_t done_at) {
    struct stream *s = z->reduce_stream;
    const struct zero_pack *p = &z->reduced_bundles;
    const struct zero_bundle *b = zero_bundle_of(&p->table, u);
    struct zero_move m = move_of(z, TRANSFER_GRADIENTS, p, u);
    void *own = zero_at(z, p->buf, b->shard * z->base.rank);
    m.after[0] = done_at;
    uint64_t id = zero_move_begin(z, s, &m);
    collective_reduce_scatter(z->reduce, s, p->buf, own, (size_t)b->shard, z->opt.dtype);
    for (int v = b->first; v < b->first + b->count; v++) keep_shard(z, v);
    zero_move_end(z, s, id);
    if (!z->policy->gather_grads) return;
    id = zero_move_begin(z, s, &m);
    collective_all_gather(z->reduce, s, own, p->buf, (size_t)b->shard, z->opt.dtype);
    for (int v = b->first; v < b->first + b->count; v++) unpack(z, s, p, v, z->units[v].grad);
    zero_move_end(z, s, id);
}

// A slot is free when its copy is done.
void zero_pack_reduce(struct zero *z, int u, uint64_t done_at) {
    struct stream *s = z->reduce_stream;
    const struct zero_pack *p = &z->reduced_bundles;
    bool whole = z->policy->grads == RESIDENT_FULL;
    struct zero_slot *slot = whole ? NULL : &z->grad_slots[grad_slot(z->opt.layout, u)];
    stream_wait_event(s, z->units[u].grad_done);
    zero_serialize_begin(z, s, 0);
    void *grad = slot ? slot->buf : z->units[u].grad;
    for (int r = 0; r < z->base.size; r++)
        dev_copy(s, packed(z, p, u, r), zero_at(z, grad, unit_shard(z->opt.layout, u) * r),
                 shard_bytes(z, u));
    zero_move_end(z, s, 0);
    if (slot) {
        slot->move = z->time.reduced;  // the copy runs after it
        event_record(slot->idle, s);
        slot->held = false;
    }
    if (u == zero_bundle_of(&p->table, u)->first) reduce_bundle(z, u, done_at);
}

// ---------------------------------------------------------------- weights
void zero_pack_gather(struct zero *z, int u) {
    struct stream *s = z->gather_stream;
    const struct zero_pack *p = &z->gathered_bundles;
    const struct zero_bundle *b = zero_bundle_of(&p->table, u);
    stream_wait_event(s, z->units[u].updated);
    zero_serialize_begin(z, s, 0);
    dev_copy(s, packed(z, p, u, z->base.rank), z->units[u].weight_shard, shard_bytes(z, u));
    zero_move_end(z, s, 0);
    if (u != b->first + b->count - 1) return;
    struct zero_move m = move_of(z, TRANSFER_WEIGHTS, p, u);
    m.after[0] = z->units[u].updated_at;
    uint64_t id = zero_move_begin(z, s, &m);
    collective_all_gather(z->gather, s, zero_at(z, p->buf, b->shard * z->base.rank), p->buf, (size_t)b->shard,
                          z->opt.dtype);
    for (int v = b->first; v < b->first + b->count; v++) unpack(z, s, p, v, z->units[v].weights);
    zero_move_end(z, s, id);
    for (int v = b->first; v < b->first + b->count; v++) {
        z->units[v].gather = id;
        event_record(z->units[v].gathered, s);
    }
}
