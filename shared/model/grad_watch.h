// Finds the tensor whose gradient is not finite: one count per tensor, of this rank's own gradients before any
// sum over ranks. Only steps in which the next overflow would stop the run are watched; other steps cost only
// the memory of the counts (class workspace, in a model created with watch_gradients).
#ifndef STARRING_SHARED_MODEL_GRAD_WATCH_H
#define STARRING_SHARED_MODEL_GRAD_WATCH_H

#include <stdint.h>

#include "shared/core/unit.h"

struct model;

// Call it after model_backward of unit u, before the gradient is used; it only enqueues. grad: as
// model_backward left it. micro: the step's micro-batch, 0 for the first.
void grad_watch_unit(struct model *m, int u, const void *grad, int micro);

struct grad_watched {
    int64_t tensor;    // the first in logical order with non-finite values; -1: none
    const char *name;  // of that tensor, in the layout
    int64_t elements;  // how many such values, over all micro-batches of the step
};
// Reads the counts of the last watched step; the host waits. Returns 0, or -1 if the device has failed.
int grad_watch_read(struct model *m, struct grad_watched *out);
// The name of a tensor by its index in logical order.
const char *grad_watch_name(const struct layout *l, int64_t tensor);

#endif
