// Which neighbouring units travel in one collective: pure, without ranks and streams. The run and the prediction ask the
// same table.
//
//     units        u0 | u1 u2 u3 | u4 u5       in the order in which they come: of weights up, of gradients down. A unit
//     buffer       block of rank 0        | block of rank 1        | ..
//                  | u1's | u2's | u3's   | u1's | u2's | u3's   | ..      shards side by side
//
// A unit joins the bundle before it while the elements of all of them stay within the bucket; one that is larger than the bucket
// is alone, as in DeepSpeed's reduce_ipg_grads (runtime/zero/stage_1_and_2.py). An element's sum is the same sum in any
// bundle, so the bits are, too.
#ifndef STARRING_DECENTRAL_ZERO_ZERO_BUNDLE_H
#define STARRING_DECENTRAL_ZERO_ZERO_BUNDLE_H

#include "shared/core/unit.h"

// Elements that travel together at most; 0: every unit alone.
struct zero_buckets {
    int64_t reduce;  // gradients; in stage 0 also on their way back
    int64_t gather;  // weights behind the update
};

enum zero_way { ZERO_UP, ZERO_DOWN };

// Units first .. first + count - 1.
struct zero_bundle {
    int first, count;
    int64_t shard;  // elements of a rank's block: of all their shards
};

struct zero_bundles {
    int count;
    struct zero_bundle *list;  // (count) in the order in which they travel
    int *of;                   // (units) which bundle a unit is in
    int64_t *at;               // (units) element of a block at which its shard begins
};

void zero_bundles_open(struct zero_bundles *b, const struct layout *l, int64_t bucket, enum zero_way way);
void zero_bundles_close(struct zero_bundles *b);

static inline const struct zero_bundle *zero_bundle_of(const struct zero_bundles *b, int u) {
    return &b->list[b->of[u]];
}
// Elements of the largest block.
int64_t zero_bundles_largest(const struct zero_bundles *b);
// Elements of a block of the largest bundle of several units, which pass through a buffer; 0: there is none.
int64_t zero_bundles_packed(const struct zero_bundles *b);

#endif
