#include "decentral/zero/zero_policy.h"

#include <stdio.h>
#include <stdlib.h>

#include "decentral/collective/collective_groups.h"
#include "shared/core/error.h"
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

// What leaves a rank and comes to it; messages are those sent.
struct totals {
    int64_t sent, received, across_sent, across_received, messages, messages_across;
};

static void add(int64_t *total, int64_t times, uint64_t of_one) {
    *total = size_plus(*total, size_times(times, (int64_t)of_one));
}

// What a primitive moves when it runs times[u] times over the shards of each unit u.
static void add_traffic(struct totals *all, const struct zero_options *o, enum collective_primitive what,
                        const int64_t *times) {
    const struct layout *l = o->layout;
    // A call asks every rank for its part, and units are alike: each size once, or 65,536 ranks would take minutes.
    for (int u = 0, v; u < l->count; u = v) {
        int64_t n = 0;
        for (v = u; v < l->count && unit_shard(l, v) == unit_shard(l, u); v++) n = size_plus(n, times[v]);
        struct collective_call c = {.primitive = what, .count = (size_t)unit_shard(l, u), .dt = o->dtype};
        struct collective_traffic t = collective_traffic(&c, o->source->rank, l->world, o->group);
        add(&all->sent, n, t.all.sent);
        add(&all->received, n, t.all.received);
        add(&all->across_sent, n, t.across.sent);
        add(&all->across_received, n, t.across.received);
        add(&all->messages, n, t.messages);
        add(&all->messages_across, n, t.messages_across);
    }
}

void zero_gathers(const struct zero_policy *p, const struct zero_options *o, int64_t *out) {
    struct zero_gathers *g = xcalloc((unsigned long)o->layout->count, sizeof *g);
    int64_t micro = o->accumulation > 0 ? o->accumulation : 1;
    if (p->weights == RESIDENT_SHARD) zero_schedule_step(o->layout, &o->prefetch, micro, g);
    for (int u = 0; u < o->layout->count; u++)
        out[u] = p->gather_grads + p->gather_weights + g[u].forward + g[u].backward;
    free(g);
}

// Every peer gets as much as every other.
static uint64_t flat_across(uint64_t sent, int size, int group) {
    uint64_t peers = (uint64_t)size - 1;
    return group && peers ? sent / peers * (uint64_t)(size - group) : 0;
}

struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o) {
    int64_t micro = o->accumulation > 0 ? o->accumulation : 1;
    int64_t *times = xcalloc((unsigned long)o->layout->count, sizeof *times);
    struct totals t = {0};
    for (int u = 0; u < o->layout->count; u++) times[u] = p->grads == RESIDENT_FULL ? 1 : micro;
    add_traffic(&t, o, COLLECTIVE_REDUCE_SCATTER, times);
    zero_gathers(p, o, times);
    add_traffic(&t, o, COLLECTIVE_ALL_GATHER, times);
    free(times);
    struct wire_prediction w = {.sent_per_step = (uint64_t)t.sent,
                                .received_per_step = (uint64_t)t.received,
                                .group = o->group,
                                .across_sent_per_step = (uint64_t)t.across_sent,
                                .across_received_per_step = (uint64_t)t.across_received,
                                .messages_per_step = (uint64_t)t.messages,
                                .messages_across_per_step = (uint64_t)t.messages_across};
    w.flat_across_sent_per_step = flat_across(w.sent_per_step, o->layout->world, o->group);
    return w;
}

// The textbook's counts of U: once a step, and for each micro-batch.
static int once_a_step(const struct zero_policy *p) {
    return (p->grads == RESIDENT_FULL) + p->gather_grads + p->gather_weights;
}
static int each_micro_batch(const struct zero_policy *p) {
    return (p->grads == RESIDENT_SHARD) + (p->weights == RESIDENT_SHARD ? 2 : 0);
}

void zero_wire_say(char *text, size_t size, const struct zero_policy *p, int64_t accumulation) {
    int o = once_a_step(p), e = each_micro_batch(p);
    bool many = accumulation > 1 && e > 0;
    char count[16] = "", times[40];
    if (many && e > 1) snprintf(count, sizeof count, "%d", e);
    if (!many)
        snprintf(times, sizeof times, "%d", o + e);
    else if (o)
        snprintf(times, sizeof times, "(%d+%sA)", o, count);
    else
        snprintf(times, sizeof times, "%sA", count);
    snprintf(text, size, "%s%sU, U = (N-1)/N x padded bytes%s", p->weights == RESIDENT_SHARD ? "up to " : "",
             times, many ? ", A micro-batches" : "");
}
