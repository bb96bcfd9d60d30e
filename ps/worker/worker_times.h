// The times of a worker's transfers, for its timeline (shared/time/timeline.h): gradients and weights of each unit. The
// hooks ask for the two ids on the main thread, and the hand-over records when the transfers were ready. The
// communication thread owns this struct and records the rest when the core knows it. Also the communication thread's
// own spans, for --trace.
#ifndef STARRING_PS_WORKER_WORKER_TIMES_H
#define STARRING_PS_WORKER_WORKER_TIMES_H

#include "ps/job/shard_map.h"
#include "ps/net/member.h"
#include "ps/worker/worker_core.h"
#include "shared/time/thread_time.h"
#include "shared/time/timeline.h"

// The timeline's ids of a unit's push and of the pull after it.
struct transfer_ids {
    struct timeline *in;  // NULL: nothing is recorded
    uint64_t gradients, weights;
};

struct worker_times;
struct worker_times *worker_times_create(int units, int lead);
void worker_times_destroy(struct worker_times **t);
// Unit u's push and pull in `step` have these ids; 0: none.
void worker_times_open(struct worker_times *t, int u, int64_t step, struct transfer_ids ids);
// The ids of unit u's push in the step that has this one's slot; 0: it is over.
struct transfer_ids worker_times_ids(const struct worker_times *t, int u, int64_t step);
// Records what is new. staged: weights are done when the device has them, which staging.h records.
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
// Leaves DIR/ranks/trace-worker-RANK.json after the thread has ended its spans. Returns 0, or -1 after logging.
int worker_trace_write(const struct worker_trace *t);

#endif
