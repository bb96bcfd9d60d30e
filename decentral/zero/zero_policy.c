#include "decentral/zero/zero_policy.h"

#include <stdio.h>

#include "decentral/collective/collective_plan.h"
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

struct textbook zero_textbook(const struct zero_policy *p, const struct optimizer *o, enum dtype dtype) {
    struct textbook t = {0};
    *(p->weights == RESIDENT_FULL ? &t.whole : &t.shared) += dtype_size(dtype);
    *(p->grads == RESIDENT_FULL ? &t.whole : &t.shared) += dtype_size(dtype);
    *(p->optimizer == RESIDENT_FULL ? &t.whole : &t.shared) += optimizer_bytes(o, dtype != DT_F32);
    return t;
}

// What a primitive moves when it runs once over the shards of all units.
static struct collective_volume volume_of(const struct zero_options *o, enum collective_primitive what) {
    struct collective_volume all = {0};
    const struct layout *l = o->layout;
    // A call asks every rank for its part, and units are alike: each size once, or 65,536 ranks would take minutes.
    for (int u = 0, same; u < l->count; u += same) {
        for (same = 1; u + same < l->count && unit_shard(l, u + same) == unit_shard(l, u);) same++;
        struct collective_call c = {.primitive = what, .count = (size_t)unit_shard(l, u), .dt = o->dtype};
        struct collective_plan p = collective_plan_of(&c, o->source->rank, o->layout->world);
        struct collective_volume v = collective_volume(&p);
        all.sent += v.sent * (size_t)same;
        all.received += v.received * (size_t)same;
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

struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o) {
    uint64_t micro = o->accumulation > 0 ? (uint64_t)o->accumulation : 1;
    struct passes once = once_a_step(p), each = each_micro_batch(p);
    uint64_t reductions = (uint64_t)once.reductions + micro * (uint64_t)each.reductions;
    uint64_t gathers = (uint64_t)once.gathers + micro * (uint64_t)each.gathers;
    struct collective_volume r = volume_of(o, COLLECTIVE_REDUCE_SCATTER),
                             g = volume_of(o, COLLECTIVE_ALL_GATHER);
    return (struct wire_prediction){
        .sent_per_step = all_bytes(reductions, r.sent, gathers, g.sent),
        .received_per_step = all_bytes(reductions, r.received, gathers, g.received)};
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
