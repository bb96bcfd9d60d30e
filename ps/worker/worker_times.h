// The times of a worker's transfers, for its timeline (shared/time/timeline.h): gradients and weights of each unit. The
// hooks ask for the two ids on the main thread and pass them with the push, and the hand-over records when the transfers
// were ready. The communication thread records the rest when the core knows it. Also the communication thread's own
// spans, for --trace.
#ifndef STARRING_PS_WORKER_WORKER_TIMES_H
#define STARRING_PS_WORKER_WORKER_TIMES_H

#include "ps/job/shard_map.h"
#include "ps/net/member.h"
#include "ps/worker/worker_core.h"
#include "shared/time/thread_time.h"
#include "shared/time/timeline.h"

// Records what is new of all units. The caller holds the core's lock. staged: weights are done when the device has them,
// which staging.h records.
void worker_times_record(struct worker_core *core, bool staged);

// ---------------------------------------------------------------- the communication thread
// How the trace divides the communication thread's time: WORKER_PUSH hands gradients to the transport, WORKER_PULL
// takes weights.
enum worker_activity { WORKER_IDLE, WORKER_PROTOCOL, WORKER_PUSH, WORKER_PULL, WORKER_ACTIVITIES };
// Returns NULL where the run leaves no trace.
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
