// The head: final norm, output projection and cross-entropy, in chunks of rows so that the logits of the
// whole batch never exist at once. v: the head's own unit; tied: unit 0 where the projection is the
// embedding.
#ifndef STARRING_SHARED_MODEL_HEAD_H
#define STARRING_SHARED_MODEL_HEAD_H

#include "shared/model/activations.h"

void head_forward(struct model *m, const struct unit_view *v, const struct unit_view *tied, bool want_loss);
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied);
// Logits (V) of one row as fp32, from the final norm of the last forward. Blocks; 0 or -1.
int head_row_logits(struct model *m, const struct unit_view *v, const struct unit_view *tied, int64_t row,
                    float *out);

#endif
