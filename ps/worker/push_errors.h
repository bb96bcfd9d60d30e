// A worker's side of coded pushes: codes of its gradients, and what they have not said, which its next gradients make good
// (error feedback, kernels/codec.h). Compute is the stream of all of it:
//
//     grad_ready(u)     code = code of (error * factor + gradient), key by key     the push reads the code
//     step() is over    error = error * factor + gradient - what the code says     unless the step was skipped
//
// The errors of a skipped step stay what they were, as if it had not been: its gradients are lost with it. So codes and
// gradients stay as they are until the step is over. Errors are in units of the loss scale at which they were kept; factor
// tells how it has moved since.
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

// Unit u's codes, from its gradient of `step` as s's earlier work leaves it. loss_scale: of the step; 0: it has none.
void push_errors_encode(const struct push_errors *e, struct stream *s, int u, int64_t step, float loss_scale);
// The step is over and was no skip.
void push_errors_keep(struct push_errors *e, struct stream *s, int64_t step, float loss_scale);

#endif
