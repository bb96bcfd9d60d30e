// Buffers of gradients: slots that units share, and the sums of a step's micro-batches in fp32.
#ifndef STARRING_SHARED_MODEL_GRAD_BUFFERS_H
#define STARRING_SHARED_MODEL_GRAD_BUFFERS_H

#include "kernels/backend.h"
#include "shared/core/arena.h"
#include "shared/core/unit.h"

// ---------------------------------------------------------------- slots
// Where no rank keeps a whole gradient (stages 2 and 3 of a ring, a star's "resident": "units"), units use the same few
// buffers one after another. Even units use slot 0, odd ones slot 1. A tied unit 0 has a slot of its own, because the head
// begins its gradient and the embedding completes it.
#define GRAD_SLOTS 3

static inline int grad_slot(const struct layout *l, int u) { return l->tied && u == 0 ? 2 : u & 1; }
// Returns the elements of a slot: those of the largest unit that uses it; 0 if none does.
int64_t grad_slot_elements(const struct layout *l, int slot);
// Returns the first unit whose gaps are in the same positions as u's. The model writes tensors only, so if the
// slot's last unit had another shape, the gaps are zeroed (grad_zero_gaps) before u's gradient is written.
int grad_shape(const struct layout *l, int u);
// Writes zeros to the elements of grad, (n_pad) of dt, between u's tensors and after them.
void grad_zero_gaps(struct stream *s, const struct unit *u, void *grad, enum dtype dt);

// ---------------------------------------------------------------- sums of micro-batches
// Sums in fp32 (data_types.grad_accum_dtype; docs/ring.md). Each micro-batch overwrites the previous one's 16-bit gradient,
// and grad_sums_add adds it to the sum. After the last micro-batch the sum is rounded once into the gradient's own buffer;
// from there on the step is as with one micro-batch. Each unit has one sum, of the whole gradient or of this rank's shard.
//
// The owner calls all functions on one stream at a time.
struct grad_sums {
    float **sum;   // (units): (n) each; NULL: there are no sums, and all functions do nothing
    float *spare;  // (n of the largest sum): one micro-batch's gradient in fp32
};

// Which n elements of a unit's gradient: all, or the rank's shard.
enum grad_extent { GRAD_WHOLE, GRAD_SHARD };

// Takes the sums (MEM_GRADIENT) and the spare (MEM_WORKSPACE) from the arena, which measures or allocates.
void grad_sums_carve(struct grad_sums *g, struct arena *a, const struct layout *l, enum grad_extent extent);
void grad_sums_free(struct grad_sums *g);  // frees the list only; the sums are the arena's memory
static inline bool grad_sums_used(const struct grad_sums *g) { return g->sum != NULL; }

// Micro-batch `index` of `count` has written grad (n of dt): the unit's sum = or += grad; after the last one
// grad = round(sum). Does nothing if nothing is summed.
struct grad_micro {
    int unit, index, count;
    void *grad;
    int64_t n;
    enum dtype dt;
};
void grad_sums_add(const struct grad_sums *g, struct stream *s, const struct grad_micro *m);

#endif
