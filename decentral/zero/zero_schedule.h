// Which unit's weights a rank of stage 3 gathers when, and into which slot: pure, without ranks and streams. The run
// asks it at every use, and the prediction asks it for every use of a step.
//
//     units     u0 u1 u2 u3 u4 u5     forward | backward, K = 2 slots: unit u has slot u mod K
//
//     gathered  u0 u1 u2 u3 u4 u5 |       u3 u2 u1 u0 |       u2 ..     the next micro-batch of the step
//     in use    u0 u1 u2 u3 u4 u5 | u5 u4 u3 u2 u1 u0 | u0 u1 u2 ..
//     slot 0    u0 .. u2 .. u4 .. | ..    .. u2 .. u0 | .. .. u2
//     slot 1    .. u1 .. u3 .. u5 | ..    u3 .. u1 .. | .. u1 ..
//
// Invariants
// - A slot's contents are valid until the weights change (zero_schedule_forget), whatever the pass. So what the slots
//   hold at a turn is not gathered again: the last K units behind the forward pass, the first K behind the backward.
// - What PASS_EVAL has gathered counts as control and serves PASS_EVAL alone, so that a step's bytes do not depend on
//   evaluations.
// - Any K neighbouring units lie in different slots, so up to K-1 may be gathered ahead of the one in use.
// - A tied unit 0 has a slot of its own behind the K: it is gathered once between two changes.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_SCHEDULE_H
#define STARRING_DECENTRAL_ZERO_ZERO_SCHEDULE_H

#include "shared/core/topology.h"

// How far ahead of use weights may be gathered. Zero: one unit.
struct zero_prefetch {
    bool bounded;      // by elements; else one unit
    int64_t elements;  // units are taken while those before them are fewer; 0: nothing ahead
    int64_t live;      // elements that all slots may hold; 0: any. One slot there always is.
};

struct zero_schedule {
    const struct layout *layout;
    struct zero_prefetch prefetch;
    int slots;    // K
    int *unit;    // (K + 1) whose weights the slot holds, or -1; the last is a tied unit 0's
    bool *aside;  // (K + 1) they were gathered by PASS_EVAL
    bool *known;  // (units) gathered by a training pass since the weights changed
};

void zero_schedule_open(struct zero_schedule *s, const struct layout *l, const struct zero_prefetch *p);
void zero_schedule_close(struct zero_schedule *s);

static inline int zero_schedule_count(const struct zero_schedule *s) { return s->slots + s->layout->tied; }
static inline int zero_schedule_slot(const struct zero_schedule *s, int u) {
    return s->layout->tied && u == 0 ? s->slots : u % s->slots;
}
// Elements of a slot: of the largest unit that uses it.
int64_t zero_schedule_elements(const struct zero_schedule *s, int slot);

// Whether u's slot holds u's weights for a use in that pass.
bool zero_schedule_there(const struct zero_schedule *s, int u, enum pass pass);
// From now on it does.
void zero_schedule_gathered(struct zero_schedule *s, int u, enum pass pass);
// Whether a gather of u now is one behind the first since the weights changed. hpZ (zero_hpz_partition_size) makes it within
// the group, from the secondary shards that the first one left. PASS_EVAL's leaves none, and takes none.
bool zero_schedule_again(const struct zero_schedule *s, int u, enum pass pass);
// The weights change: no slot holds any.
void zero_schedule_forget(struct zero_schedule *s);
// The k-th unit (0, 1, ..) to be gathered when `next` is what the pass uses next, or -1 when that is too far ahead.
int zero_schedule_ahead(const struct zero_schedule *s, int next, enum pass pass, int k);

// Gathers of each unit in a step of `micro` micro-batches.
struct zero_gathers {
    int64_t forward, backward;
    int64_t again;  // of both, those behind the first
};
// out: (units)
void zero_schedule_step(const struct layout *l, const struct zero_prefetch *p, int64_t micro,
                        struct zero_gathers *out);

#endif
