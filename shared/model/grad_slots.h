// Slots of gradients: buffers that units share, one after another, where no rank keeps a whole gradient (stages
// 2 and 3 of a ring, resident units of a star). Even units use slot 0, odd ones slot 1. A tied unit 0 has a
// slot of its own, because the head begins its gradient and the embedding completes it.
#ifndef STARRING_SHARED_MODEL_GRAD_SLOTS_H
#define STARRING_SHARED_MODEL_GRAD_SLOTS_H

#include "kernels/backend.h"
#include "shared/core/unit.h"

#define GRAD_SLOTS 3

static inline int grad_slot(const struct layout *l, int u) { return l->tied && u == 0 ? 2 : u & 1; }
// Elements of a slot: those of the largest unit that uses it; 0 if none does.
int64_t grad_slot_elements(const struct layout *l, int slot);
// Returns the first unit whose gaps are in the same positions as u's. The model writes tensors only, so if the
// slot's last unit had another shape, the gaps are zeroed (grad_zero_gaps) before u's gradient is written.
int grad_shape(const struct layout *l, int u);
// Writes zeros to the elements of grad, (n_pad) of dt, between u's tensors and after them.
void grad_zero_gaps(struct stream *s, const struct unit *u, void *grad, enum dtype dt);

#endif
