// A worker's side of the protocol as a pure state machine: what to push and pull, and what has
// landed. No sockets, no clock but `now` (seconds). One thread at a time: worker_comm.h has the lock.
//
// A worker may run ahead: lead + 1 of its steps are open at once, each in a slot of every key (step % (1 + lead)). The
// slot holds the key's push of the step and the pull after it, with a gradient buffer of its own. A unit's times and
// the step's report have such slots too. The states of a slot:
//
//     pushed by the caller --> QUEUED --credits, urgent units first--> SENT --PUSH_ACK, or in shared memory PULL_REPLY--> IDLE
//                                 the push asks for t+1 as well            (HELD: arrived, keep waiting)
//     PULL_REPLY (t+1) --> copied over the key's weights (a frame), landed = t+1
//     IDLE, and the transport no longer reads it (not busy) --> step t + 1 + lead may take it
//
// A push whose weights are pulled separately (push_info.pulls_separately; no lead) asks for none: units share the
// memory of weights and gradients. The caller pulls a unit as often as it needs it, and pushes it once per micro-batch:
//
//     QUEUED --credits--> SENT --PUSH_ACK, or HELD: the shard has a copy--> IDLE    PUSH_ACK returns the credit of HELD
//
// Invariants
// 1. The link delivers each message exactly once, in any order (ps/net/link.h).
// 2. A key's weights may be overwritten once it is pushed: this worker pushes it only after its last use of them in
//    step t. They only become newer: weights that land answer the open pulls of earlier steps as well.
// 3. A gradient does not change until the shard answers, with the acknowledgement or with weights that acknowledge it.
//    A second copy of the push that arrives later is dropped unread.
// 4. Credits (worker_core_state.h) are bytes pushed and not yet acknowledged. A gradient that a shard reads in this
//    worker's segment uses no transport and, unless the shard copies it, no credit: its push carries the offset. The weights are
//    then in place: the shard wrote them, or the worker reads the shard's own. Where a step may close without this
//    worker (ps:backup:B, ps:quorum:Q), an answer is of the step that the key is at, which may be later than the one
//    asked for. The worker jumps over steps that it has not computed: its unsent pushes of them are dropped, and keys
//    whose weights are too old are pulled again.
// 5. A step's REPORT, GATHER and TAKE have one answer each. At most one GATHER and one TAKE are open. Reports are
//    answered in any order, and count in the order of their steps.
// 6. A shard that has not answered and whose link is silent for lost_s is lost.
//
// Worker 0's core also collects snapshots (snapshot_pulls.h).
#ifndef STARRING_PS_WORKER_WORKER_CORE_H
#define STARRING_PS_WORKER_WORKER_CORE_H

#include "ps/agree/step_set.h"
#include "ps/job/consistency.h"
#include "ps/job/shard_map.h"
#include "ps/net/clock.h"
#include "ps/net/port.h"
#include "ps/worker/worker_memory.h"
#include "shared/core/topology.h"

struct snapshot;
struct timeline;

// The timeline's ids of a unit's push and of the pull after it. The core keeps them for worker_comm.c.
struct transfer_ids {
    struct timeline *in;  // NULL: nothing is recorded
    uint64_t gradients, weights;
};

struct worker_core_options {
    int rank;
    struct consistency_rule rule;
    const struct layout *layout;
    const struct shard_map *map;
    enum dtype dtype;
    // Its wire_weights are what pulls write, its wire_grads what pushes read.
    const struct worker_buffers *buffers;
    struct code_format code;  // unless CODE_NONE, wire_grads are codes of a unit's keys, one after the other
    const bool *shared;       // (shards) that share this worker's segment; NULL: none
    bool in_place;            // weights are read in the memory of these shards
    int64_t credit_bytes;
    double heartbeat_s;
    double lost_s;  // a shard that has not answered and is silent for so long is lost
    struct ps_clock clock;
    struct ps_port port;  // peers: shard indices, PEER_SCHEDULER. Requests, answers and ticks send through it
};

// The data that a unit's push carries with its gradient.
struct push_info {
    int64_t step;  // 0-based attempt
    float lr;
    float grad_scale;  // async: the worker's own decision
    bool skip;
    bool keep;              // the state after this step goes into a checkpoint
    bool drain;             // the next step computes on that state, whatever delay is allowed
    bool pulls_separately;  // it asks for no weights; a shard that holds the gradient has copied it
    // Applied on arrival: the batch of the job's budget; pulls_separately: the step's micro-batch.
    int64_t batch;
    int64_t ready_ns;             // when the gradient was handed over, by this host's clock
    int64_t tokens, mean_tokens;  // struct step_plan's, where workers join and leave; else 0
    struct transfer_ids ids;
};

// A pull that follows no push.
struct pull_info {
    int64_t step;     // the weights after so many steps are wanted
    bool as_control;  // not for a training pass: their bytes count as control
    struct transfer_ids ids;
};

// Times of a unit's push and of the pull after it, nanoseconds of this host's clock. The two times of peers name the
// peer (ps_time_rank): they separate the time that a late peer costs from the time of the transfer.
struct unit_times {
    int64_t step;                        // of the push
    int64_t ready_ns;                    // handed over
    int64_t sent_ns, acknowledged_ns;    // first key sent, last key acknowledged; 0: not yet
    int64_t acknowledged_peers_ns;       // when the last worker that it waited for was ready
    int64_t landed_first_ns, landed_ns;  // weights of the first and the last key; 0: not yet
    int64_t landed_peers_ns;             // the same for the weights
    struct transfer_ids ids;             // of transfers whose times the timeline does not have yet
};

// The scheduler's answer to the report of a step.
struct step_outcome {
    int64_t step;
    bool late;  // the step was closed without this worker's gradient
    struct step_stats stats;
    struct step_opening opening;     // the step that it opens, if workers join and leave
    int64_t done_ns, done_peers_ns;  // when the answer arrived; the latest worker's time that it needed
};

struct worker_status {
    int pulling;           // pulls not yet answered
    int64_t steps_done;    // steps that were reported, and are closed as far as this worker knows
    int64_t steps_closed;  // the same, reported or not
    struct ps_clock clock;
    uint64_t gathers_done;
    double gathered[WIRE_VALUES_MAX];  // the values of the last gather
    int64_t taken_step, taken;  // the last step whose TAKE was answered, and its batch; -1: no batch was left
    int64_t taken_ns;           // when that answer arrived
    int64_t handed_out;         // batches that the job had handed out by then, at least
    bool stopped;               // some worker was asked to stop
    struct staleness staleness;
    // The longest silence of a shard from which an answer is awaited. Messages of the link count too: the shard sends
    // them even while it waits for others.
    double silent_s;
};

// The slot of a step; step -1 is that of weights that follow no push.
static inline int worker_slot_of(int64_t step, int lead) { return (int)((step + 1 + lead) % (1 + lead)); }

struct worker_core;
struct worker_core *worker_core_create(const struct worker_core_options *o);
// Called before the first push: this worker's next step is `step`. worker_core_pull_all then pulls the weights.
void worker_core_begin(struct worker_core *c, int64_t step);
// Sets the number of gathers that the job has done without this worker.
void worker_core_gathers(struct worker_core *c, uint64_t done);
void worker_core_destroy(struct worker_core **c);

// ---- requests. Each is answered by a change of the state below.
// The unit must not be busy with the step that had the slot before.
void worker_core_push_unit(struct worker_core *c, int u, const struct push_info *info);
// Pulls the unit's weights. No pull of the unit may be open.
void worker_core_pull_unit(struct worker_core *c, int u, const struct pull_info *info, double now);
// values (n_pad) must not change until the unit is no longer busy. round: 1, 2, .. counts loadings.
void worker_core_init_unit(struct worker_core *c, int u, const float *values, uint64_t round);
// The report of a worker that has computed its step.
struct step_report {
    struct step_input in;
    double loss;                         // this worker's share of the mean
    int64_t ready_ns;                    // when the worker reported, by this host's clock
    const struct step_opening *opening;  // of the step, where workers join and leave; else NULL
    int64_t tokens, mean_tokens;         // as in struct push_info
};
void worker_core_report(struct worker_core *c, const struct step_report *report);
// The worker continues at `step`, of which it has computed nothing: the steps before it are over.
void worker_core_jump(struct worker_core *c, int64_t step, double now);
void worker_core_gather(struct worker_core *c, const double *values, int count);
// Pulls fresh weights of every trained key, as control bytes. more: WIRE_KEEP, the state goes into a checkpoint; WIRE_STOP, no
// worker pushes any more.
void worker_core_pull_all(struct worker_core *c, uint32_t more, double now);
// Requests the batch of `step`, which begins once the batches before it are handed out. done: with the first request,
// what a checkpoint records of the budget (ps/agree/budget.h); NULL: nothing.
void worker_core_take(struct worker_core *c, int64_t step, const struct wire_header *done);
// Requests the end of the run: all heartbeats from now on carry the request, and one is sent at once.
void worker_core_stop(struct worker_core *c);
void worker_core_snapshot(struct worker_core *c, int64_t version, struct snapshot *s);
// Ends the collecting of snapshots. Once worker_core_has_pulled is true after this call, no snapshot's buffer is
// written any more.
void worker_core_end_snapshots(struct worker_core *c);

// ---- messages. peer: shard index or PEER_SCHEDULER. Each message is passed to both functions.
// Returns where the frame's bytes belong, or NULL if they are not wanted. The caller copies them, and then calls
// worker_core_message. Requests in between do no harm: what they change makes the message unwanted at most.
void *worker_core_target(struct worker_core *c, int peer, const struct wire_header *h,
                         const struct ps_frame *frame);
// Takes ownership of frame. Returns 0, or -1 with an error.
int worker_core_message(struct worker_core *c, int peer, const struct wire_header *h, struct ps_frame *frame,
                        double now);
// Sends what credits allow, and heartbeats. Returns 0, or -1 with an error.
int worker_core_tick(struct worker_core *c, double now);

// ---- state
const struct worker_status *worker_core_status(const struct worker_core *c);
// The outcome of a step that is done; valid until 1 + lag later steps are reported.
const struct step_outcome *worker_core_outcome(const struct worker_core *c, int64_t step);
// For all keys of unit u: the step whose weights have landed; the number of pulls that are answered.
int64_t worker_core_landed(const struct worker_core *c, int u);
uint64_t worker_core_fills(const struct worker_core *c, int u);
// The lowest version (updates, or pushes if each is an update of its own) of any key's weights, and the lowest number
// of updates.
int64_t worker_core_version(const struct worker_core *c);
int64_t worker_core_updates(const struct worker_core *c);
// Times of u's push of `step`, or of the push that had the slot before: see times.step.
const struct unit_times *worker_core_times(const struct worker_core *c, int u, int64_t step);
// Keys whose gradient (or initial values) in the slot of `step` the transport or a server still needs.
int worker_core_busy(const struct worker_core *c, int u, int64_t step);
bool worker_core_transferring(const struct worker_core *c);  // Whether any push or pull is open.
bool worker_core_lingers(
    const struct worker_core *c);  // Whether everything is sent, but transport threads still read payloads.
// Whether an answer of the shard is awaited, as of the last tick.
bool worker_core_awaits_answer(const struct worker_core *c, int shard);
// Whether the link still has to resend the message of this header (star_link_options.renew). Gradients and initial values do
// not change as long as it does.
bool worker_core_renew(const struct worker_core *c, const struct wire_header *h);
const char *worker_core_error(const struct worker_core *c);

// ---- what a worker waits for (comm_wait). A condition ignores the arguments that it does not name.
typedef bool worker_condition(const struct worker_core *c, int u, int64_t step, int64_t count);
// The unit's weights after `step` steps, or later ones, and the answers to `count` pulls of it.
worker_condition worker_core_has_landed;
// `count` pushes of the unit in the slot of `step` were requested, and its gradient buffer is free: the servers need
// neither gradient nor initial values.
worker_condition worker_core_has_freed;
worker_condition worker_core_has_pulled;       // Every pull is answered, and no frame is being copied.
worker_condition worker_core_has_gathered;     // The last gather is answered.
worker_condition worker_core_has_taken;        // The TAKE of `step` is answered.
worker_condition worker_core_has_closed;       // The scheduler has closed the reported `step`.
worker_condition worker_core_has_snapshotted;  // No snapshot is being collected.
// Describes what the worker waits for on unit u, for the message of a missed deadline.
void worker_core_describe(const struct worker_core *c, int u, char *out, size_t size);

#endif
