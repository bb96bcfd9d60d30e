#include "decentral/zero/zero_policy.h"

#include <stdio.h>

#include "decentral/collective/collective_groups.h"
#include "shared/core/sizes.h"

static const struct zero_policy policies[ZERO_STAGES] = {
    {.name = "zero:0",
     .weights = RESIDENT_FULL,
     .grads = RESIDENT_FULL,
     .optimizer = RESIDENT_FULL,
     .gather_grads = true},
    {.name = "zero:1",
     .weights = RESIDENT_FULL,
     .grads = RESIDENT_FULL,
     .optimizer = RESIDENT_SHARD,
     .gather_weights = true},
    {.name = "zero:2",
     .weights = RESIDENT_FULL,
     .grads = RESIDENT_SHARD,
     .optimizer = RESIDENT_SHARD,
     .gather_weights = true},
    {.name = "zero:3", .weights = RESIDENT_SHARD, .grads = RESIDENT_SHARD, .optimizer = RESIDENT_SHARD},
};

const struct zero_policy *zero_policy_of(int stage) {
    return stage >= 0 && stage < ZERO_STAGES ? &policies[stage] : NULL;
}

struct textbook zero_textbook(const struct zero_policy *p, const struct zero_options *o) {
    enum dtype dtype = o->dtype;
    struct textbook t = {0};
    if (!o->offload.params) *(p->weights == RESIDENT_FULL ? &t.whole : &t.shared) += dtype_size(dtype);
    *(p->grads == RESIDENT_FULL ? &t.whole : &t.shared) += dtype_size(dtype);
    if (!o->offload.optimizer || (o->offload.ratio > 0 && o->offload.ratio < 1))
        *(p->optimizer == RESIDENT_FULL ? &t.whole : &t.shared) +=
            optimizer_bytes(o->optimizer.row, dtype != DT_F32);
    if (o->optimizer.row->onebit && p->gather_grads) {  // the two errors
        t.whole += sizeof(float);
        t.shared += sizeof(float);
    }
    return t;
}

// What a primitive moves when it runs once over the shards of all units.
static struct collective_traffic traffic_of(const struct zero_options *o, enum collective_primitive what,
                                            int group) {
    struct collective_traffic all = {0};
    const struct layout *l = o->layout;
    // A call asks every rank for its part, and units are alike: each size once, or 65,536 ranks would take minutes.
    for (int u = 0, same; u < l->count; u += same) {
        for (same = 1; u + same < l->count && unit_shard(l, u + same) == unit_shard(l, u);) same++;
        struct collective_call c = {.primitive = what, .count = (size_t)unit_shard(l, u), .dt = o->dtype};
        struct collective_traffic t = collective_traffic(&c, o->source->rank, l->world, group);
        all.all.sent += t.all.sent * (size_t)same;
        all.all.received += t.all.received * (size_t)same;
        all.across.sent += t.across.sent * (size_t)same;
        all.across.received += t.across.received * (size_t)same;
        all.messages += t.messages * (uint64_t)same;
        all.messages_across += t.messages_across * (uint64_t)same;
    }
    return all;
}

// How often the shards of all units are reduced, and gathered.
struct passes {
    int reductions, gathers;
};
static struct passes once_a_step(const struct zero_policy *p) {
    return (struct passes){p->grads == RESIDENT_FULL, p->gather_grads + p->gather_weights};
}
static struct passes each_micro_batch(const struct zero_policy *p) {
    return (struct passes){p->grads == RESIDENT_SHARD, p->weights == RESIDENT_SHARD ? 2 : 0};
}

static uint64_t all_bytes(uint64_t reductions, uint64_t reduced, uint64_t gathers, uint64_t gathered) {
    return (uint64_t)size_plus(size_times((int64_t)reductions, (int64_t)reduced),
                               size_times((int64_t)gathers, (int64_t)gathered));
}

// Every peer gets as much as every other.
static uint64_t flat_across(uint64_t sent, int size, int group) {
    uint64_t peers = (uint64_t)size - 1;
    return group && peers ? sent / peers * (uint64_t)(size - group) : 0;
}

void zero_gathers(const struct zero_policy *p, const struct zero_options *o, int64_t *out) {
    int64_t micro = o->accumulation > 0 ? o->accumulation : 1;
    for (int u = 0; u < o->layout->count; u++)
        out[u] = once_a_step(p).gathers + micro * each_micro_batch(p).gathers;
}

struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o) {
    uint64_t micro = o->accumulation > 0 ? (uint64_t)o->accumulation : 1;
    struct passes once = once_a_step(p), each = each_micro_batch(p);
    uint64_t reductions = (uint64_t)once.reductions + micro * (uint64_t)each.reductions;
    uint64_t gathers = (uint64_t)once.gathers + micro * (uint64_t)each.gathers;
    struct collective_traffic r = traffic_of(o, COLLECTIVE_REDUCE_SCATTER, o->group),
                              g = traffic_of(o, COLLECTIVE_ALL_GATHER, o->group);
    struct wire_prediction w = {
        .sent_per_step = all_bytes(reductions, r.all.sent, gathers, g.all.sent),
        .received_per_step = all_bytes(reductions, r.all.received, gathers, g.all.received),
        .group = o->group,
        .across_sent_per_step = all_bytes(reductions, r.across.sent, gathers, g.across.sent),
        .across_received_per_step = all_bytes(reductions, r.across.received, gathers, g.across.received),
        .messages_per_step = all_bytes(reductions, r.messages, gathers, g.messages),
        .messages_across_per_step = all_bytes(reductions, r.messages_across, gathers, g.messages_across)};
    w.flat_across_sent_per_step = flat_across(w.sent_per_step, o->layout->world, o->group);
    return w;
}

void zero_wire_say(char *text, size_t size, const struct zero_policy *p, int64_t accumulation) {
    struct passes once = once_a_step(p), each = each_micro_batch(p);
    int o = once.reductions + once.gathers, e = each.reductions + each.gathers;
    bool many = accumulation > 1 && e > 0;
    char count[16] = "", times[40];
    if (many && e > 1) snprintf(count, sizeof count, "%d", e);
    if (!many)
        snprintf(times, sizeof times, "%d", o + e);
    else if (o)
        snprintf(times, sizeof times, "(%d+%sA)", o, count);
    else
        snprintf(times, sizeof times, "%sA", count);
    snprintf(text, size, "%sU, U = (N-1)/N x padded bytes%s", times, many ? ", A micro-batches" : "");
}
