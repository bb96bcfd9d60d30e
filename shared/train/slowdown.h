// A rank's trouble (shared/core/trouble.h) as work on its compute stream: OP_BUSY behind what it slows down. It
// keeps the threads or multiprocessors busy that computing for longer would, and counts as compute of the phase
// that it is in. Nothing is read or written but a clock: results do not change by a bit.
//
//     step      | delay | unit 0 | x (F-1) | unit 1 | x (F-1) | ..      forward and backward alike
//                 ^ before the first unit's forward of the first micro-batch, once its weights are there
//
// Evaluations are not slowed.
//
// Owner    The training loop, whose main thread makes all calls; they only enqueue.
#ifndef STARRING_SHARED_TRAIN_SLOWDOWN_H
#define STARRING_SHARED_TRAIN_SLOWDOWN_H

#include "kernels/backend.h"
#include "shared/config/config.h"

struct slowdown;

// Adds what it takes of a device, on every rank of a run with any trouble.
void slowdown_predict(const struct config *c, size_t bytes[MEM_CLASSES]);
// Before there are communicators, for it allocates. -1 after logging. *out: NULL where the run has no trouble.
int slowdown_create(const struct config *c, struct device *dev, struct stream *compute,
                    struct slowdown **out);
// When nothing enqueued uses it any more.
void slowdown_destroy(struct slowdown **h);

// h is NULL where nothing is slowed.
void slowdown_micro(struct slowdown *h, int rank, int64_t step,
                    int64_t micro);        // a micro-batch begins: draws
void slowdown_before(struct slowdown *h);  // a unit's pass comes next
void slowdown_after(struct slowdown *h);   // and has been enqueued

#endif
