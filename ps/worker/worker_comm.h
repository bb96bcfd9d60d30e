// A worker's communication thread. It owns the sockets and the protocol's core from the start to the end of its epoch.
// The hooks of the topology (worker.c) send it commands and wait for what it publishes.
//
//     main (hooks) and compute (host functions)        communication thread
//         comm_command ---- mutex, eventfd ------>     worker_core, sockets
//         comm_wait <------ mutex, condition -----     (published: copied out after every poll)
//
// Between a unit's push and its landing, only this thread, or in shared memory the server, writes the unit's weights.
// At all other times only compute reads them. A device with memory of its own has twins of the buffers: staging.h says
// which side owns them when.
//
// Blocking   comm_create (until all ranks are ready), and comm_wait.
// Errors     The first error is kept: every wait then fails with it, and is reported to the job. It is logged once.
#ifndef STARRING_PS_WORKER_WORKER_COMM_H
#define STARRING_PS_WORKER_WORKER_COMM_H

#include "ps/job/ps.h"
#include "ps/net/member.h"
#include "ps/worker/enter.h"
#include "ps/worker/sharing.h"
#include "ps/worker/staging.h"
#include "ps/worker/worker_core.h"
#include "ps/worker/worker_times.h"

struct comm_options {
    struct ps_role_options role;
    const struct shard_map *map;  // outlives the comm, as all members below
    const struct worker_buffers *buffers;
    struct sharing *sharing;
    struct staging *staging;  // NULL: the device's memory is host memory
    struct wire_count *wire;
};

struct comm;
// Waits for the other ranks, connects to every shard and starts the thread. *id receives this worker's identity, *start
// what its epoch resumes from (without the roster). Returns NULL after logging.
struct comm *comm_create(const struct comm_options *o, struct ps_identity *id, struct meeting_start *start);
// The job's state when this worker joined it; NULL if the worker started with the job.
const struct joined *comm_joined(const struct comm *c);
// Ends the thread: later commands are ignored.
void comm_part(struct comm *c);
// Does the same and closes its sockets: nothing is sent any more.
void comm_hang_up(struct comm *c);
// The comm of a worker's topology (ps_worker_create), which keeps owning it: for `bench ps`, which times single
// transfers.
struct comm *ps_worker_comm(struct topology *t);
void comm_destroy(struct comm **c);  // after comm_part; waits until the transport no longer reads any buffer

// ---------------------------------------------------------------- commands
enum command_kind {
    COMMAND_PUSH,
    COMMAND_PULL,  // by unit
    COMMAND_INIT,
    COMMAND_BEGIN,  // resumes after so many steps, and pulls the weights
    COMMAND_REPORT,
    COMMAND_JUMP,  // continues at a step, after steps that closed without this worker
    COMMAND_GATHER,
    COMMAND_TAKE,
    COMMAND_PULL_ALL,
    COMMAND_SNAPSHOT,
    COMMAND_SNAPSHOTS_END,
    COMMAND_STOP,
    COMMAND_TRACE  // ends this thread's trace, if any, for comm_write_trace
};

struct command {
    enum command_kind kind;
    int unit;
    struct push_info push;
    struct transfer_ids ids;         // PUSH PULL
    const float *values;             // INIT: (n_pad), unchanged until the unit is no longer busy
    uint64_t round;                  // INIT
    int64_t step;                    // BEGIN TAKE PULL JUMP
    bool aside;                      // PULL: not for a training pass
    const struct wire_header *done;  // TAKE: as worker_core_take's, unchanged until it is answered
    uint32_t more;                   // PULL_ALL: of worker_core_pull_all
    struct step_report report;
    double gather[WIRE_VALUES_MAX];
    int count;        // GATHER
    int64_t version;  // SNAPSHOT: this or a later one
    struct snapshot *snapshot;
};
void comm_command(struct comm *c, const struct command *command);  // any thread; never blocks
// Makes every wait fail with this text, which is reported to the job. Any thread may call it.
void comm_give_up(struct comm *c, const char *why);

// ---------------------------------------------------------------- waiting (main thread)
enum comm_event {
    COMM_LANDED,    // the unit's weights of this step
    COMM_FREE,      // the gradient buffer of the unit in this step's slot is free
    COMM_FILLED,    // by unit: that many pulls of the unit
    COMM_THROUGH,   // by unit: that many pushes of the unit, whose buffer is free
    COMM_LOADED,    // the servers have what was last sent of the unit: initial values, or the step's gradient
    COMM_PULLED,    // every pull has been answered
    COMM_GATHERED,  // the last gather
    COMM_SNAPSHOT,  // no snapshot is being collected
    COMM_TAKEN,     // the answer to TAKE of the step
    COMM_STEP_DONE,  // the scheduler has closed the step
};
// Blocks until the event has happened, and for longer than deadline_ms only while every server that owes an answer
// sends messages. unit: -1 if none is meant. what: the missing event in words: "weights have not landed". Returns 0, or
// -1 after logging.
int comm_wait(struct comm *c, enum comm_event event, int unit, int64_t step, const char *what);

// The same for the unit's pull or push number `count` (COMM_FILLED, COMM_THROUGH).
int comm_wait_unit(struct comm *c, enum comm_event event, int unit, int64_t count, int64_t step,
                   const char *what);

// The state after a wait.
struct published {
    struct worker_status status;
    int64_t version;  // updates that the weights of every unit hold
    double busy_s;    // any transfer outstanding
    double waited_s;  // time blocked in comm_wait
};
struct published comm_published(struct comm *c);
struct step_outcome comm_outcome(struct comm *c, int64_t step);  // worker_core_outcome's
pid_t comm_thread(struct comm *c);                               // the id of its thread; 0: not yet
// Writes the communication thread's part of the trace, after COMMAND_TRACE was obeyed. It runs on the caller's thread,
// which may wait for a disk while the communication thread answers messages. Returns 0, or -1 after logging.
int comm_write_trace(struct comm *c);

#endif
