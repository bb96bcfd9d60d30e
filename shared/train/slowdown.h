// Slows a rank down on request (shared/core/trouble.h), as work on its compute stream: OP_BUSY after the work
// that it slows. OP_BUSY keeps the same threads or multiprocessors busy as longer computing would. It counts
// as compute of the current phase. It reads and writes only a clock: results do not change by a bit.
//
//     step      | delay | unit 0 | x (F-1) | unit 1 | x (F-1) | ..      forward and backward both
//                 ^ before the first unit's forward of the first micro-batch, after its weights have arrived
//
// Evaluations are not slowed.
//
// Owner    The training loop. Its main thread makes all calls; they only enqueue.
#ifndef STARRING_SHARED_TRAIN_SLOWDOWN_H
#define STARRING_SHARED_TRAIN_SLOWDOWN_H

#include "kernels/backend.h"
#include "shared/config/config.h"

struct slowdown;

// Adds the device memory that it needs, on every rank of a run with a slowdown.
void slowdown_predict(const struct config *c, size_t bytes[MEM_CLASSES]);
// Call it before communicators exist, because it allocates. *out receives NULL where the run has no slowdown.
// Returns 0, or -1 after logging.
int slowdown_create(const struct config *c, struct device *dev, struct stream *compute,
                    struct slowdown **out);
// Call it when no enqueued work uses it any more.
void slowdown_destroy(struct slowdown **h);

// In the functions below h is NULL where no rank is slowed.
void slowdown_micro(struct slowdown *h, int rank, int64_t step,
                    int64_t micro);        // Called when a micro-batch begins: draws its factor and delay.
void slowdown_before(struct slowdown *h);  // Called before a unit's pass is enqueued.
void slowdown_after(struct slowdown *h);   // Called after it has been enqueued.

#endif
