// How a worker's transfers went, for the record of its time (shared/time/timeline.h): gradients and weights of each
// unit. The hooks ask for the two on the main thread, the hand-over says when they could have left, and the
// communication thread, which has this, tells the rest when the core knows it.
#ifndef STARRING_PS_WORKER_WORKER_TIMES_H
#define STARRING_PS_WORKER_WORKER_TIMES_H

#include "ps/worker/worker_core.h"
#include "shared/time/timeline.h"

// Of a unit's push and of the pull behind it.
struct transfer_ids {
    struct timeline *in;  // NULL: nothing is recorded
    uint64_t gradients, weights;
};

struct worker_times;
struct worker_times *worker_times_create(int units);
void worker_times_destroy(struct worker_times **t);
// Unit u is pushed as these.
void worker_times_open(struct worker_times *t, int u, struct transfer_ids ids);
// Those that unit u was pushed as last; 0: over.
struct transfer_ids worker_times_ids(const struct worker_times *t, int u);
// Tells what is new. staged: weights are done when the device has them, which is not for this to say.
void worker_times_tell(struct worker_times *t, const struct worker_core *core, bool staged);

#endif
