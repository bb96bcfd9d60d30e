// A rank's weights, masters and optimizer states for snapshots and checkpoints, and loading them.
#include <stdlib.h>

#include "decentral/zero/zero_state.h"
#include "shared/core/error.h"
#include "shared/state/checkpoint_read.h"

// A rank saves only the range that it has updated itself: its shard, even if it holds whole weights.
int zero_weights(struct topology *t, int u, struct state_range *out) {
    struct zero *z = (struct zero *)t;
    if (u >= z->opt.layout->count) return -1;
    int64_t shard = unit_shard(z->opt.layout, u);
    zero_offload_settle(z);
    *out = (struct state_range){.unit = u,
                                .kind = STATE_WEIGHTS,
                                .begin = shard * t->rank,
                                .end = shard * (t->rank + 1),
                                .data = z->units[u].weight_shard,
                                .read = zero_disk_on(z) ? zero_disk_get : NULL,
                                .ctx = z};
    return 0;
}

// The host rounds exactly as OP_CAST does: a rank may hold 16-bit weights of elements whose fp32 masters another rank
// holds.
int zero_load_unit(struct topology *t, int u, const float *values) {
    struct zero *z = (struct zero *)t;
    struct zero_unit *zu = &z->units[u];
    int64_t shard = unit_shard(z->opt.layout, u);
    bool whole = z->policy->weights == RESIDENT_FULL;
    int64_t begin = whole ? 0 : shard * t->rank, n = whole ? z->opt.layout->units[u].n_pad : shard;
    size_t bytes = (size_t)n * dtype_size(t->dtype);
    void *rounded = xcalloc(1, bytes);
    for (int64_t i = 0; i < n; i++) dtype_store(t->dtype, rounded, (size_t)i, values[begin + i]);
    int written = 0;
    if (zero_disk_on(z))
        written = zero_offload_sync(z) || zero_disk_put(z, u, rounded);
    else
        dev_copy(z->opt.compute, whole ? zu->weights : zu->weight_shard, rounded, bytes);
    if (zero_offload_on_disk(z, u))
        written |= zero_offload_put(z, u, STATE_MASTER, values + zu->update.begin);
    else if (t->dtype != DT_F32 || zu->offloaded)
        dev_copy(z->opt.compute, zu->update.master, values + zu->update.begin,
                 (size_t)(zu->update.end - zu->update.begin) * sizeof(float));
    event_record(zu->updated, z->opt.compute);
    unit_schedule_invalidate(&z->schedule);
    int rc = stream_sync(z->opt.compute) | written;
    free(rounded);
    return rc == 0 ? 0 : zero_fail_all(z, "loading the weights failed");
}

// values: the frozen elements of the model's unit u.
int zero_load_frozen(struct topology *t, int u, const float *values) {
    struct zero *z = (struct zero *)t;
    int at = z->opt.layout->count + u, hpz = zero_hpz(&z->opt);
    int64_t n = z->opt.layout->units[at].n_pad / (hpz ? hpz : t->size);
    int64_t begin = n * (hpz ? t->rank % hpz : t->rank);
    size_t bytes = (size_t)n * dtype_size(t->dtype);
    void *rounded = xcalloc(1, bytes);
    for (int64_t i = 0; i < n; i++) dtype_store(t->dtype, rounded, (size_t)i, values[begin + i]);
    int rc = 0;
    if (zero_disk_on(z) && !hpz)
        rc = zero_disk_put(z, at, rounded);
    else
        dev_copy(z->opt.compute, hpz ? z->units[at].secondary : z->units[at].weight_shard, rounded, bytes);
    rc |= stream_sync(z->opt.compute);
    free(rounded);
    return rc == 0 ? 0 : zero_fail_all(z, "loading the frozen weights failed");
}

// ---------------------------------------------------------------- checkpoints
// This rank's shard of the masters and of each state. In stage 0, where all ranks hold them whole, each rank writes
// only its shard.
int zero_state(struct topology *t, int index, struct state_range *out) {
    const struct zero *z = (const struct zero *)t;
    int kinds = 1 + z->c->optimizer.row->states, u = index / kinds, kind = index % kinds;
    if (u >= z->opt.layout->count) return -1;
    const struct update_range *r = &z->units[u].update;
    int64_t shard = unit_shard(z->opt.layout, u), begin = shard * t->rank;
    const float *held = kind == STATE_MASTER ? r->master : r->state[kind - STATE_OPTIMIZER];
    *out = (struct state_range){.unit = u, .kind = kind, .begin = begin, .end = begin + shard};
    if (zero_offload_on_disk(z, u)) {
        out->read = zero_offload_get;
        out->ctx = t;
    } else {
        out->data = held + (begin - r->begin);
    }
    return 0;
}

int zero_load(struct topology *t, struct checkpoint *c) {
    struct zero *z = (struct zero *)t;
    const struct layout *l = z->opt.layout;
    int states = z->c->optimizer.row->states, rc = 0;
    zero_onebit_loads(z, checkpoint_path(c));
    for (int u = 0; u < l->count && !rc; u++) {
        const struct update_range *r = &z->units[u].update;
        float *values = xcalloc((size_t)l->units[u].n_pad, sizeof *values);
        // 1. Masters for all weights that this rank holds (stages 0 to 2: the whole unit, even where it keeps only its
        // shard of the masters).
        bool whole = z->policy->weights == RESIDENT_FULL;
        int64_t shard = unit_shard(l, u), begin = whole ? 0 : shard * t->rank;
        int64_t end = whole ? l->units[u].n_pad : begin + shard;
        rc = checkpoint_read(c, l, u, STATE_MASTER, begin, end, values + begin)
                 ? -1
                 : zero_load_unit(t, u, values);
        // 2. The optimizer's states.
        for (int k = 0; k < states && !rc; k++) {
            rc = checkpoint_read(c, l, u, STATE_OPTIMIZER + k, r->begin, r->end, values);
            if (rc) break;
            if (zero_offload_on_disk(z, u)) {
                rc = zero_offload_put(z, u, STATE_OPTIMIZER + k, values);
                continue;
            }
            dev_copy(z->opt.compute, r->state[k], values, (size_t)(r->end - r->begin) * sizeof *values);
            if (stream_sync(z->opt.compute)) rc = zero_fail_all(z, "loading a checkpoint failed");
        }
        free(values);
    }
    return rc;
}
