#include "decentral/zero/zero_policy.h"

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

size_t zero_formula_bytes(const struct zero_policy *p, const struct zero_options *o) {
    size_t e = dtype_size(o->dtype), full = 0, shard = 0, params = (size_t)o->layout->params;
    *(p->weights == RESIDENT_FULL ? &full : &shard) += e;
    *(p->grads == RESIDENT_FULL ? &full : &shard) += e;
    *(p->optimizer == RESIDENT_FULL ? &full : &shard) +=
        optimizer_bytes(o->optimizer.row, o->dtype != DT_F32);
    return full * params + shard * params / (size_t)o->source->size;
}

struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o) {
    const struct layout *l = o->layout;
    uint64_t volume = 0, micro = o->accumulation > 0 ? (uint64_t)o->accumulation : 1;
    uint64_t times = p->grads == RESIDENT_SHARD ? micro : 1;  // the reduction of the gradients
    for (int u = 0; u < l->count; u++)
        volume += (uint64_t)(l->world - 1) * (uint64_t)unit_shard(l, u) * dtype_size(o->dtype);
    if (p->gather_grads) times++;
    if (p->gather_weights) times++;
    if (p->weights == RESIDENT_SHARD) times += 2 * micro;  // once for each pass
    return (struct wire_prediction){.sent_per_step = times * volume, .received_per_step = times * volume};
}
