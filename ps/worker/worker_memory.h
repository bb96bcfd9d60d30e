// A worker's device memory and wire, predicted by the code that takes it: the same carving runs against a
// measuring arena and an allocating one.
#ifndef STARRING_PS_WORKER_WORKER_MEMORY_H
#define STARRING_PS_WORKER_WORKER_MEMORY_H

#include "kernels/exact_sum.h"
#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/unit.h"

// What a worker's host reads of a step, in one copy.
struct worker_words {
    double loss_sum;
    struct exact_sum sum;  // of the worker's own gradient, where it decides alone
};

// Each array is the host's own: (units) of (n_pad) in dtype.
struct worker_buffers {
    void **weights, **grads;            // the model's
    void **wire_weights, **wire_grads;  // the wire's: page-locked twins, or the model's own (staging.h)
    struct worker_words *words;         // on the device, where the worker decides alone; else NULL
    struct worker_words *wire_words;    // page-locked; NULL: the host reads the device's memory
};
void worker_buffers_init(struct worker_buffers *b, const struct layout *l);
void worker_buffers_free(struct worker_buffers *b);  // the arrays; what they name is the arena's

// Whether the workers' device, as configured, has memory of its own.
static inline bool ps_is_staged(const struct config *c) { return c->device == DEVICE_CUDA; }
void worker_carve(struct arena *a, const struct config *c, const struct layout *l,
                  struct worker_buffers *out);

#endif
