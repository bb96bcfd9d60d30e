#include "decentral/zero/zero_policy.h"

#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"

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
    int stage = o->config->variant;
    bool whole = o->config->no_sync || o->source->size == 1;
    return whole && stage >= 2 && stage < ZERO_STAGES ? &unsynchronised[stage] : zero_policy_of(stage);
}

const struct zero_policy *zero_policy_of(int stage) {
    return stage >= 0 && stage < ZERO_STAGES ? &policies[stage] : NULL;
}

int zero_hpz(const struct zero_options *o) {
    bool sharded = zero_policy_of(o->config->variant)->weights == RESIDENT_SHARD;
    int hpz = (int)o->config->hpz;
    return sharded && o->source && collective_is_grouped(hpz, o->source->size) ? hpz : 0;
}

int zero_counted_group(const struct zero_options *o) {
    return zero_hpz(o) ? zero_hpz(o) : (int)o->config->reduce_group;
}

struct textbook zero_textbook(const struct zero_policy *p, const struct zero_options *o) {
    const struct config *c = o->config;
    enum dtype dtype = c->dtype;
    struct textbook t = {0};
    int hpz = zero_hpz(o);
    if (hpz) t.shared += dtype_size(dtype) * (size_t)(o->source->size / hpz);
    if (!c->offload_param.device) *(p->weights == RESIDENT_FULL ? &t.whole : &t.shared) += dtype_size(dtype);
    *(p->grads == RESIDENT_FULL ? &t.whole : &t.shared) += dtype_size(dtype);
    if (!c->offload_optimizer.device || (c->offload_optimizer.ratio > 0 && c->offload_optimizer.ratio < 1))
        *(p->optimizer == RESIDENT_FULL ? &t.whole : &t.shared) +=
            optimizer_bytes(c->optimizer.row, dtype != DT_F32);
    if (c->optimizer.row->onebit && p->gather_grads) {  // the errors of the two codes
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
    zero_bundles_open(b, o->layout, o->config->reduce_elements, ZERO_DESCENDING);
}

void zero_bundles_gathered(struct zero_bundles *b, const struct zero_policy *p,
                           const struct zero_options *o) {
    if (p->gather_grads)
        zero_bundles_reduced(b, o);
    else
        zero_bundles_open(b, o->layout, p->gather_weights ? o->config->gather_elements : 0, ZERO_ASCENDING);
}

// ---------------------------------------------------------------- the textbook's bytes
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
