// The hash of a model's weights: equal hashes mean that two runs ended in the same bits.
#ifndef STARRING_SHARED_STATE_WEIGHTS_HASH_H
#define STARRING_SHARED_STATE_WEIGHTS_HASH_H

#include "kernels/dtype.h"
#include "shared/core/unit.h"

// Streaming xxh64 of 16-bit (or fp32) weights in logical tensor order, without gaps and padding.
struct weights_hash;
struct weights_hash *weights_hash_create(void);
void weights_hash_unit(struct weights_hash *h, const struct layout *l, int u, const void *weights,
                       enum dtype dt);
uint64_t weights_hash_finish(struct weights_hash **h);

#endif
