// A transformer block: attention, then feed-forward, each on a norm of the residual stream that it adds to.
#ifndef STARRING_SHARED_MODEL_BLOCK_H
#define STARRING_SHARED_MODEL_BLOCK_H

#include "shared/model/activations.h"

// Reads the residual stream as block i-1 left it (mid and m->pass; for block 0 its own x) and leaves it
// likewise.
void block_forward(struct model *m, int i, const struct unit_view *v);
// The gradient of the residual stream comes in and leaves in m->carry.
void block_backward(struct model *m, int i, const struct unit_view *v);

#endif
