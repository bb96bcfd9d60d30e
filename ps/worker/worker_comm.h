// A worker's communication thread, and the lock of the protocol's core. The thread owns the sockets from the start to the
// end of its epoch. The hooks of the topology (worker.c) call the core (worker_core.h) themselves:
//
//     main (hooks) and compute (host functions)             communication thread
//         comm_lock                                         poll: a message, the eventfd, or the tick
//         worker_core_push_unit, ..                         copy the message's frame            without the lock
//         comm_unlock_wake ------------- eventfd ------->   worker_core_message, .._tick        with the lock
//         comm_wait <------------------- condition ------   send what the core has sent         without the lock
//
// The lock is held for microseconds: never during a socket call, a copy of a payload or file I/O. The core's port
// therefore appends to a list, which the communication thread passes on to the link (ps/net/link.h). A push on its way:
//
//     worker_core_push_unit --> the unit's keys are queued --> comm_unlock_wake --> eventfd --> tick (worker_comm.c)
//       --> worker_core_tick --> pump, as credits allow --> the core's port --> outbox --> send_all, without the lock
//       --> ps/net/link.c --> shared/fabric/link.c --> ps/net/net.c --> shared/fabric/sockets.c
//
// Between a unit's push and its landing, only the communication thread, or in shared memory the server, writes the unit's
// weights. At all other times only compute reads them. A device with memory of its own has twins of the buffers:
// staging.h says which side owns them when.
//
// Blocking   comm_create (until all ranks are ready), comm_wait and comm_write_trace.
// Errors     The first error is kept: every wait then fails with it, and is reported to the job. It is logged once.
#ifndef STARRING_PS_WORKER_WORKER_COMM_H
#define STARRING_PS_WORKER_WORKER_COMM_H

#include "ps/job/ps.h"
#include "ps/net/member.h"
#include "ps/worker/enter.h"
#include "ps/worker/sharing.h"
#include "ps/worker/staging.h"
#include "ps/worker/worker_core.h"

struct comm_options {
    struct ps_role_options role;
    const struct shard_map *map;  // outlives the comm, as all members below
    const struct worker_buffers *buffers;
    struct sharing *sharing;
    struct staging *staging;  // NULL: the device's memory is host memory
    struct wire_count *wire;
};

struct comm;
// Waits for the other ranks, connects to every shard and starts the thread. Returns NULL after logging.
struct comm *comm_create(const struct comm_options *o);
// How this worker has entered the job: its identity, what its epoch resumes from, and whether it has joined a running
// job. It does not change.
const struct entry *comm_entry(const struct comm *c);
// Ends the thread: later requests are not sent.
void comm_stop(struct comm *c);
// Does the same and closes its sockets: nothing is sent any more.
void comm_disconnect(struct comm *c);
// The comm of a worker's topology (ps_worker_create), which keeps owning it: for `bench ps`, which times single
// transfers.
struct comm *ps_worker_comm(struct topology *t);
// Called after comm_stop. Waits until the transport no longer reads any buffer.
void comm_destroy(struct comm **c);

// ---------------------------------------------------------------- the core (any thread)
// Returns the core, which no other thread uses until one of the two functions below is called.
struct worker_core *comm_lock(struct comm *c);
void comm_unlock(struct comm *c);
// For use after a request: wakes the communication thread, which sends it.
void comm_unlock_wake(struct comm *c);
// Makes every wait fail with this text, which is reported to the job.
void comm_give_up(struct comm *c, const char *why);

// ---------------------------------------------------------------- waiting (main thread)
struct comm_wait {
    worker_condition *until;
    int unit;             // -1: none is meant
    int64_t step, count;  // arguments of the condition; errors name the step
};
// Blocks until the condition holds, and for longer than deadline_ms only while every server that has not answered sends
// messages. late: the missing event in words, "weights have not landed". Returns 0, or -1 after logging.
int comm_wait(struct comm *c, const struct comm_wait *w, const char *late);
// The same, recorded in the timeline: the host was blocked on the transfer id (0: on none).
int comm_wait_timed(struct comm *c, const struct comm_wait *w, struct timeline *tl, uint64_t id,
                    const char *late);

pid_t comm_thread(struct comm *c);  // the id of its thread; 0: not yet
// Ends the communication thread's part of the trace, if the run leaves one, and writes it. It runs on the caller's
// thread, which may wait for a disk while the communication thread answers messages. Returns 0, or -1 after logging.
int comm_write_trace(struct comm *c);

#endif
