// Decides when a rank gathers a unit's weights, and into which slot, if it has no memory for all weights but only slots.
// Pure, without ranks and streams. Stage 3 of a ring and the workers of a star use it, in the run and in the prediction.
//
//     units     u0 u1 u2 u3 u4 u5     forward | backward, K = 2 slots: unit u uses slot u mod K
//
//     gathered  u0 u1 u2 u3 u4 u5 |       u3 u2 u1 u0 |       u2 ..     the next micro-batch of the step
//     in use    u0 u1 u2 u3 u4 u5 | u5 u4 u3 u2 u1 u0 | u0 u1 u2 ..
//     slot 0    u0 .. u2 .. u4 .. | ..    .. u2 .. u0 | .. .. u2
//     slot 1    .. u1 .. u3 .. u5 | ..    u3 .. u1 .. | .. u1 ..
//
// Invariants
// - A slot's contents are valid until the weights change (unit_schedule_invalidate), in every pass. So units still
// in the slots are not gathered again: the last K units after the forward, the first K after the backward.
// - A gather of PASS_EVAL counts as control traffic and serves only PASS_EVAL, so that a step's bytes do
// not depend on evaluations.
// - Any K neighbouring units are in different slots, so up to K-1 may be gathered ahead of the one in use.
// - A tied unit 0 has a slot of its own after the K: it is gathered once between two changes of the weights.
#ifndef STARRING_SHARED_MODEL_UNIT_SCHEDULE_H
#define STARRING_SHARED_MODEL_UNIT_SCHEDULE_H

#include "shared/core/topology.h"

// How far ahead of their use weights may be gathered. {0}: one unit ahead.
struct unit_prefetch {
    bool bounded;  // `elements` is the limit; otherwise one unit ahead
    // A unit is gathered ahead if the units between it and the one in use have fewer; 0: none is
    int64_t elements;
    int64_t live;  // limit of the elements in all slots; 0: no limit. There is always at least one slot
    bool all;      // each unit has a slot of its own, which always holds its weights: nothing is gathered
};

struct unit_schedule {
    const struct layout *layout;
    struct unit_prefetch prefetch;
    int slots;  // K
    int *unit;  // (K + 1) the unit whose weights the slot holds, or -1; the last slot is the tied unit 0's
    bool *by_eval;   // (K + 1) gathered by PASS_EVAL
    bool *gathered;  // (units) gathered by a training pass since the weights changed
};

void unit_schedule_open(struct unit_schedule *s, const struct layout *l, const struct unit_prefetch *p);
void unit_schedule_close(struct unit_schedule *s);

static inline int unit_schedule_count(const struct unit_schedule *s) { return s->slots + s->layout->tied; }
static inline int unit_schedule_slot(const struct unit_schedule *s, int u) {
    return s->layout->tied && u == 0 ? s->slots : u % s->slots;
}
// Iterate over the units that use a slot: for (u = _first(slot); u < layout->count; u = _next(u)).
static inline int unit_schedule_first(const struct unit_schedule *s, int slot) {
    return s->layout->tied && slot == 0 ? s->slots : slot % s->slots;
}
static inline int unit_schedule_next(const struct unit_schedule *s, int u) {
    return s->layout->tied && u == 0 ? s->layout->count : u + s->slots;
}
// Returns the elements of a slot: those of the largest unit that uses it.
int64_t unit_schedule_elements(const struct unit_schedule *s, int slot);

// Returns whether u's slot holds u's weights for a use in this pass.
bool unit_schedule_holds(const struct unit_schedule *s, int u, enum pass pass);
// Records that u's slot holds u's weights from now on.
void unit_schedule_gathered(struct unit_schedule *s, int u, enum pass pass);
// Returns whether u has been gathered since the weights changed, so that another gather repeats it. hpZ
// (zero_hpz_partition_size) runs a repeated gather within the group, from the secondary shards that the first gather
// left. A gather of PASS_EVAL neither leaves nor uses them.
bool unit_schedule_is_repeat(const struct unit_schedule *s, int u, enum pass pass);
// Records that the weights change: no slot holds valid weights any more.
void unit_schedule_invalidate(struct unit_schedule *s);
// Returns the k-th unit (0, 1, ..) to gather if the pass uses `next` next, or -1 if it is too far ahead.
int unit_schedule_ahead(const struct unit_schedule *s, int next, enum pass pass, int k);

#endif
