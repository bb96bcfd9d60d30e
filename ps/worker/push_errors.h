// A worker's codes of its gradients, with error feedback: the error of a code is added to the next gradient
// (kernels/codec.h). All of it runs on the compute stream:
//
//     grad_ready(u)     code = code of (error * factor + gradient), key by key     the push reads the code
//     step() is over    error = error * factor + gradient - decoded code     unless the step was skipped
//
// A skipped step changes no error, since its gradients are lost with it. So codes and gradients do not change until
// the step is over. Errors are in units of the loss scale at which they were kept; factor is how much the loss scale
// has grown since. A checkpoint has the errors in each worker's file (worker_state in worker.c).
#ifndef STARRING_PS_WORKER_PUSH_ERRORS_H
#define STARRING_PS_WORKER_PUSH_ERRORS_H

#include "ps/job/shard_map.h"
#include "ps/worker/worker_memory.h"

struct push_errors {
    struct code_format code;  // of kind CODE_NONE: all functions do nothing
    enum dtype dtype;
    const struct layout *layout;
    const struct shard_map *map;
    const struct worker_buffers *buffers;
    float scale;  // the loss scale at which the errors were kept; 0: there are none yet
};

// Makes unit u's codes from its gradient of `step`, after s's earlier work. loss_scale: the step's; 0: it has none.
void push_errors_encode(const struct push_errors *e, struct stream *s, int u, int64_t step, float loss_scale);
// Keeps the errors of a step that is over and was not skipped.
void push_errors_keep(struct push_errors *e, struct stream *s, int64_t step, float loss_scale);

#endif
