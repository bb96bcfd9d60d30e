// The sum of a step's micro-batches in fp32 (data_types.grad_accum_dtype; docs/ring.md). Each micro-batch
// overwrites its 16-bit gradient, which is added here. After the last one the sum is rounded once into the
// gradient's own buffer; from there on everything is as for one micro-batch. There is one sum per unit, of the
// whole gradient or of this rank's shard.
//
// The owner calls all functions on one stream at a time.
#ifndef STARRING_SHARED_MODEL_GRAD_SUM_H
#define STARRING_SHARED_MODEL_GRAD_SUM_H

#include "shared/core/arena.h"
#include "shared/core/unit.h"

struct grad_sums {
    float **sum;   // (units): (n) each; NULL: nothing is summed
    float *spare;  // (n of the largest): one micro-batch's gradient in fp32
};

// Which n elements of a unit's gradient: all, or the rank's shard.
enum grad_extent { GRAD_WHOLE, GRAD_SHARD };

// Takes the sums (MEM_GRADIENT) and the spare (MEM_WORKSPACE) from the arena, which measures or allocates.
void grad_sums_carve(struct grad_sums *g, struct arena *a, const struct layout *l, enum grad_extent extent);
void grad_sums_free(struct grad_sums *g);  // not the arena's memory
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
