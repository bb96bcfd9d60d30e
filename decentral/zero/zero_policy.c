#include "decentral/zero/zero_policy.h"

#include <stdio.h>
#include <stdlib.h>

#include "decentral/collective/collective_plan.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"

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

// Gradients stay whole until the step's last micro-batch, with no_sync or with one rank. One rank's micro-batches
// then add to the same buffer in every stage, so every stage gives the same bits.
static const struct zero_policy unsynchronised[ZERO_STAGES] = {
    [2] = {.name = "zero:2",
           .weights = RESIDENT_FULL,
           .grads = RESIDENT_FULL,
           .optimizer = RESIDENT_SHARD,
           .gather_weights = true},
    [3] = {.name = "zero:3", .weights = RESIDENT_SHARD, .grads = RESIDENT_FULL, .optimizer = RESIDENT_SHARD},
};

const struct zero_policy *zero_policy_for(const struct zero_options *o) {
    bool whole = o->no_sync || o->source->size == 1;
    return whole && o->stage >= 2 && o->stage < ZERO_STAGES ? &unsynchronised[o->stage]
                                                            : zero_policy_of(o->stage);
}

const struct zero_policy *zero_policy_of(int stage) {
    return stage >= 0 && stage < ZERO_STAGES ? &policies[stage] : NULL;
}

int zero_hpz(const struct zero_options *o) {
    bool sharded = zero_policy_of(o->stage)->weights == RESIDENT_SHARD;
    return sharded && o->source && collective_is_grouped(o->hpz, o->source->size) ? o->hpz : 0;
}

int zero_counted_group(const struct zero_options *o) { return zero_hpz(o) ? zero_hpz(o) : o->group; }

struct textbook zero_textbook(const struct zero_policy *p, const struct zero_options *o) {
    enum dtype dtype = o->dtype;
    struct textbook t = {0};
    int hpz = zero_hpz(o);
    if (hpz) t.shared += dtype_size(dtype) * (size_t)(o->source->size / hpz);
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

// ---------------------------------------------------------------- bundles
void zero_bundles_open(struct zero_bundles *b, const struct layout *l, int64_t bucket, enum zero_order way) {
    size_t units = (size_t)l->count;
    *b = (struct zero_bundles){.list = xcalloc(units, sizeof *b->list),
                               .of = xcalloc(units, sizeof *b->of),
                               .at = xcalloc(units, sizeof *b->at)};
    int64_t held = 0;
    for (int i = 0; i < l->count; i++) {
        int u = way == ZERO_ASCENDING ? i : l->count - 1 - i;
        int64_t n = l->units[u].n_pad;
        if (i == 0 || l->world == 1 || n > bucket - held) {
            b->list[b->count++] = (struct zero_bundle){.first = u};
            held = 0;
        }
        struct zero_bundle *last = &b->list[b->count - 1];
        held += n;
        if (u < last->first) last->first = u;
        b->of[u] = b->count - 1;
        b->at[u] = last->shard;
        last->shard += unit_shard(l, u);
        last->count++;
    }
}

void zero_bundles_close(struct zero_bundles *b) {
    free(b->list);
    free(b->of);
    free(b->at);
    *b = (struct zero_bundles){0};
}

static int64_t largest_shard(const struct zero_bundles *b, int least) {
    int64_t most = 0;
    for (int i = 0; i < b->count; i++)
        if (b->list[i].count >= least && b->list[i].shard > most) most = b->list[i].shard;
    return most;
}

int64_t zero_bundles_largest(const struct zero_bundles *b) { return largest_shard(b, 1); }
int64_t zero_bundles_packed(const struct zero_bundles *b) { return largest_shard(b, 2); }

void zero_bundles_reduced(struct zero_bundles *b, const struct zero_options *o) {
    zero_bundles_open(b, o->layout, o->buckets.reduce, ZERO_DESCENDING);
}

void zero_bundles_gathered(struct zero_bundles *b, const struct zero_policy *p,
                           const struct zero_options *o) {
    if (p->gather_grads)
        zero_bundles_reduced(b, o);
    else
        zero_bundles_open(b, o->layout, p->gather_weights ? o->buckets.gather : 0, ZERO_ASCENDING);
}

// ---------------------------------------------------------------- the bytes of a step
// Bytes that a rank sends and receives; messages that it sends. across: those that leave, or enter, its group.
struct totals {
    int64_t sent, received, across_sent, across_received, messages, messages_across;
};

static void add(int64_t *total, int64_t times, uint64_t of_one) {
    *total = size_plus(*total, size_times(times, (int64_t)of_one));
}

// The ranks that a primitive reaches: all ranks, in groups of `group` ranks if it is set; or only a team's ranks.
struct reach {
    int group;
    struct collective_team team;
    const struct zero_bundles *bundles;  // which units share a call
};

// Adds the bytes of a primitive that runs times[u] times over the shards of each unit u. Units of a bundle have equal
// times and share a call.
static void add_traffic(struct totals *all, const struct zero_options *o, enum collective_primitive what,
                        const int64_t *times, struct reach reach) {
    const struct zero_bundles *b = reach.bundles;
    int world = o->layout->world;
    uint64_t peers = (uint64_t)world - 1;
    int64_t blocks = reach.team.count ? world / reach.team.count : 1;
    // collective_traffic loops over the ranks. It runs once per run of equal sizes: 65,536 ranks would take minutes.
    for (int i = 0, k; i < b->count; i = k) {
        int64_t n = 0, shard = b->list[i].shard;
        for (k = i; k < b->count && b->list[k].shard == shard; k++) n = size_plus(n, times[b->list[k].first]);
        struct collective_call c = {
            .primitive = what, .count = (size_t)(blocks * shard), .dt = o->dtype, .team = reach.team};
        struct collective_traffic t = collective_traffic(&c, o->source->rank, world, reach.group);
        if (!collective_is_grouped(reach.group, world) && !reach.team.count && zero_counted_group(o) &&
            peers) {
            t.messages_across = (uint64_t)(world - zero_counted_group(o));
            t.across.sent = t.all.sent / peers * t.messages_across;
            t.across.received = t.all.received / peers * t.messages_across;
        }
        add(&all->sent, n, t.all.sent);
        add(&all->received, n, t.all.received);
        add(&all->across_sent, n, t.across.sent);
        add(&all->across_received, n, t.across.received);
        add(&all->messages, n, t.messages);
        add(&all->messages_across, n, t.messages_across);
    }
}

// Counts the gathers from all ranks, or those within the group that shares a secondary copy.
static void gathers(const struct zero_policy *p, const struct zero_options *o, int64_t *out, bool within) {
    struct unit_gathers *g = xcalloc((unsigned long)o->layout->count, sizeof *g);
    int64_t micro = o->accumulation > 0 ? o->accumulation : 1;
    if (p->weights == RESIDENT_SHARD) unit_schedule_step(o->layout, &o->prefetch, micro, g);
    for (int u = 0; u < o->layout->count; u++) {
        int64_t all = p->gather_grads + p->gather_weights + g[u].forward + g[u].backward;
        int64_t near = zero_hpz(o) ? g[u].repeated : 0;
        out[u] = within ? near : all - near;
    }
    free(g);
}

void zero_gathers(const struct zero_policy *p, const struct zero_options *o, int64_t *out) {
    gathers(p, o, out, false);
}

struct wire_prediction zero_wire(const struct zero_policy *p, const struct zero_options *o) {
    int64_t micro = o->accumulation > 0 ? o->accumulation : 1;
    int64_t *times = xcalloc((unsigned long)o->layout->count, sizeof *times);
    struct zero_bundles reduced, gathered;
    zero_bundles_reduced(&reduced, o);
    zero_bundles_gathered(&gathered, p, o);
    struct totals t = {0}, flat = {0};
    int hpz = zero_hpz(o), all = hpz ? hpz : o->group;
    for (int u = 0; u < o->layout->count; u++) times[u] = p->grads == RESIDENT_FULL ? 1 : micro;
    add_traffic(&t, o, COLLECTIVE_REDUCE_SCATTER, times,
                (struct reach){.group = o->group, .bundles = &reduced});
    gathers(p, o, times, false);
    add_traffic(&t, o, COLLECTIVE_ALL_GATHER, times, (struct reach){.group = all, .bundles = &gathered});
    gathers(p, o, times, true);
    flat = t;  // what would move without groups of either kind
    if (hpz) {
        add_traffic(&flat, o, COLLECTIVE_ALL_GATHER, times,
                    (struct reach){.group = all, .bundles = &gathered});
        add_traffic(&t, o, COLLECTIVE_ALL_GATHER, times,
                    (struct reach){.team = collective_within(o->source->rank, hpz), .bundles = &gathered});
    }
    zero_bundles_close(&reduced);
    zero_bundles_close(&gathered);
    free(times);
    struct wire_prediction w = {.sent_per_step = (uint64_t)t.sent,
                                .received_per_step = (uint64_t)t.received,
                                .group = zero_counted_group(o),
                                .across_sent_per_step = (uint64_t)t.across_sent,
                                .across_received_per_step = (uint64_t)t.across_received,
                                .messages_per_step = (uint64_t)t.messages,
                                .messages_across_per_step = (uint64_t)t.messages_across};
    // Without groups every peer receives the same number of bytes.
    uint64_t peers = (uint64_t)o->layout->world - 1;
    if (w.group && peers)
        w.flat_across_sent_per_step = (uint64_t)flat.sent / peers * (uint64_t)(o->layout->world - w.group);
    return w;
}

void zero_wire_text(char *text, size_t size, const struct zero_policy *p, int64_t accumulation) {
    // The textbook's counts of U: once per step, and per micro-batch.
    int o = (p->grads == RESIDENT_FULL) + p->gather_grads + p->gather_weights;
    int e = (p->grads == RESIDENT_SHARD) + (p->weights == RESIDENT_SHARD ? 2 : 0);
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
