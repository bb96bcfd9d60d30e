// How a worker's transfers went, for the record of its time (shared/time/timeline.h): gradients and weights of each
// unit. The hooks ask for the two on the main thread, the hand-over says when they could have left, and the
// communication thread, which has this, tells the rest when the core knows it. And the communication thread's own spans, for
// --trace.
#ifndef STARRING_PS_WORKER_WORKER_TIMES_H
#define STARRING_PS_WORKER_WORKER_TIMES_H

#include "ps/job/shard_map.h"
#include "ps/net/member.h"
#include "ps/worker/worker_core.h"
#include "shared/time/thread_time.h"
#include "shared/time/timeline.h"

// Of a unit's push and of the pull behind it.
struct transfer_ids {
    struct timeline *in;  // NULL: nothing is recorded
    uint64_t gradients, weights;
};

struct worker_times;
struct worker_times *worker_times_create(int units, int lead);
void worker_times_destroy(struct worker_times **t);
// Unit u is pushed and pulled as these, in `step`; 0: it is not.
void worker_times_open(struct worker_times *t, int u, int64_t step, struct transfer_ids ids);
// Those that unit u was pushed as in the step that has this one's slot; 0: over.
struct transfer_ids worker_times_ids(const struct worker_times *t, int u, int64_t step);
// Tells what is new. staged: weights are done when the device has them, which is not for this to say.
void worker_times_tell(struct worker_times *t, const struct worker_core *core, bool staged);

// ---------------------------------------------------------------- the communication thread
// NULL where the run leaves no trace.
struct thread_time *worker_thread_time(const struct ps_role_options *role);

struct worker_trace {
    const struct ps_role_options *role;
    const struct shard_map *map;
    int rank;
    const struct ps_clock *clock;
    struct thread_time *spans;
};
// Behind the thread's last word: leaves DIR/ranks/trace-worker-RANK.json. 0, or -1 after logging.
int worker_trace_write(const struct worker_trace *t);

#endif
