// Which neighbouring units share one collective: pure, without ranks and streams. The run and the prediction use the
// same table.
//
//     units        u0 | u1 u2 u3 | u4 u5       in the order of their transfers: weights ascend, gradients descend
//     buffer       block of rank 0        | block of rank 1        | ..
//                  | u1's | u2's | u3's   | u1's | u2's | u3's   | ..      adjacent shards
//
// A unit joins the previous bundle as long as the bundle's elements fit in the bucket. A unit larger than the bucket
// has a bundle of its own, as in DeepSpeed's reduce_ipg_grads (runtime/zero/stage_1_and_2.py). Bundles change no
// element's sum, and so no bit.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_BUNDLE_H
#define STARRING_DECENTRAL_ZERO_ZERO_BUNDLE_H

#include "shared/core/unit.h"

// The most elements of one collective; 0: a collective per unit.
struct zero_buckets {
    int64_t reduce;  // of gradients; in stage 0 also of the gather that follows
    int64_t gather;  // of weights after the update
};

enum zero_way { ZERO_UP, ZERO_DOWN };

// Units first .. first + count - 1.
struct zero_bundle {
    int first, count;
    int64_t shard;  // elements of a rank's block: its shards of all these units
};

struct zero_bundles {
    int count;
    struct zero_bundle *list;  // (count) in the order of their transfers
    int *of;                   // (units) index of the unit's bundle
    int64_t *at;               // (units) offset of the unit's shard in a block, in elements
};

void zero_bundles_open(struct zero_bundles *b, const struct layout *l, int64_t bucket, enum zero_way way);
void zero_bundles_close(struct zero_bundles *b);

static inline const struct zero_bundle *zero_bundle_of(const struct zero_bundles *b, int u) {
    return &b->list[b->of[u]];
}
// Returns the elements of the largest block.
int64_t zero_bundles_largest(const struct zero_bundles *b);
// Returns the elements of the largest block of several units, which needs a buffer; 0: every bundle is one unit.
int64_t zero_bundles_packed(const struct zero_bundles *b);

#endif
