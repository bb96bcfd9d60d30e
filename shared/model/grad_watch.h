// Which tensor's gradient is not finite: one count a tensor, of this rank's own gradients before any sum over ranks. Only
// the steps that the next overflow ends are watched: others cost nothing but the counts' memory (class workspace, of a
// model that was created with watch_gradients).
#ifndef STARRING_SHARED_MODEL_GRAD_WATCH_H
#define STARRING_SHARED_MODEL_GRAD_WATCH_H

#include <stdint.h>

#include "shared/core/unit.h"

struct model;

// Behind model_backward of unit u, before the gradient goes on its way; enqueues. grad: as model_backward left it.
// micro: the step's micro-batch, 0 for the first.
void grad_watch_unit(struct model *m, int u, const void *grad, int micro);

struct grad_watched {
    int64_t tensor;    // the first in logical order with values that are not finite; -1: none
    const char *name;  // of that tensor, in the layout
    int64_t elements;  // of it, over all micro-batches of the step
};
// The counts of the last watched step; the host waits. 0, or -1 where the device has failed.
int grad_watch_read(struct model *m, struct grad_watched *out);
// The name of a tensor by its place in logical order.
const char *grad_watch_name(const struct layout *l, int64_t tensor);

#endif
