// The parts of the model: the block (attention, then feed-forward, each on a norm of the residual stream that it adds
// to) and the head. Functions only enqueue on the model's stream. `v` is the view of the unit that the tensors lie in.
#ifndef STARRING_SHARED_MODEL_LAYERS_H
#define STARRING_SHARED_MODEL_LAYERS_H

#include "shared/model/activations.h"

// A tensor's place in a view; NULL where it has none (offset -1).
static inline const void *weight_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (const char *)v->weights + (size_t)offset * dtype_size(m->dt);
}
static inline void *grad_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (char *)v->grad + (size_t)offset * dtype_size(m->dt);
}

// Reads the residual stream as block i-1 left it (mid and m->pass; for block 0 its own x) and leaves it
// likewise.
void block_forward(struct model *m, int i, const struct unit_view *v);
// The gradient of the residual stream comes in and leaves in m->carry.
void block_backward(struct model *m, int i, const struct unit_view *v);

// The head: final norm, output projection and cross-entropy, in chunks of rows so that the logits of the
// whole batch never exist at once. v: the head's own unit; tied: unit 0 where the projection is the
// embedding.
void head_forward(struct model *m, const struct unit_view *v, const struct unit_view *tied, bool want_loss);
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied);
// Logits (V) of one row as fp32, from the final norm of the last forward. Blocks; 0 or -1.
int head_row_logits(struct model *m, const struct unit_view *v, const struct unit_view *tied, int64_t row,
                    float *out);

#endif
