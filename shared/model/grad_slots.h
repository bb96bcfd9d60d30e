// Slots of gradients: buffers that units use one after the other where no rank keeps a whole gradient (stages 2 and 3 of a
// ring, resident units of a star). Even units have slot 0, odd ones slot 1, a tied unit 0, whose gradient is begun by the head
// and ended by the embedding, one of its own.
#ifndef STARRING_SHARED_MODEL_GRAD_SLOTS_H
#define STARRING_SHARED_MODEL_GRAD_SLOTS_H

#include "kernels/backend.h"
#include "shared/core/unit.h"

#define GRAD_SLOTS 3

static inline int grad_slot(const struct layout *l, int u) { return l->tied && u == 0 ? 2 : u & 1; }
// Elements of a slot: of the largest unit that uses it; 0: none does.
int64_t grad_slot_elements(const struct layout *l, int slot);
// The first unit with gaps at the same places as u's. The model writes tensors alone: a slot whose last unit had another
// shape is cleaned (grad_zero_gaps) before u's gradient is written.
int grad_shape(const struct layout *l, int u);
// Zeros to the elements of grad, (n_pad) of dt, that lie between u's tensors and behind them.
void grad_zero_gaps(struct stream *s, const struct unit *u, void *grad, enum dtype dt);

#endif
