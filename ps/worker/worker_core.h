// A worker's side of the protocol as a pure state machine: what to push and pull; what has
// landed. No sockets, no clock but `now` (seconds). The communication thread owns it.
//
// A worker may be ahead: lead + 1 of its steps are open at once, each in a slot of every key (step % (1 + lead)). The slot
// holds the key's push of the step and the pull behind it, with a gradient buffer of its own; a unit's times and the step's
// report have such slots too. A slot's life:
//
//     pushed by the caller --> QUEUED --credits, urgent units first--> SENT --PUSH_ACK, or in shared memory PULL_REPLY--> IDLE
//                                 the push asks for t+1 as well            (HELD: arrived, keep waiting)
//     PULL_REPLY (t+1) --> copied over the key's weights (a frame), landed = t+1
//     IDLE, and the transport reads it no more (not busy) --> step t + 1 + lead may take it
//
// Where two units are kept at a time (by_unit; no lead), a push and a pull have nothing to do with each other: the caller pulls a
// unit as often as it needs it, into memory that other units use between, and pushes it once in each micro-batch:
//
//     QUEUED --credits--> SENT --PUSH_ACK, or HELD: the shard has a copy--> IDLE       a credit of HELD comes back with PUSH_ACK
//
// Invariants
// 1. Each message is said once and comes once (ps/net/link.h), in any order.
// 2. A key's weights may be overwritten from its push on: this worker pushed it only after its last use of them in step t.
//    They only become newer: weights that land answer the open pulls of earlier steps as well.
// 3. A gradient stays as it is until the shard's answer, be it the acknowledgement or weights that acknowledge it; a second
//    copy of the push that arrives later is dropped unread.
// 4. Credits (worker_core_state.h) are bytes pushed and not yet acknowledged. A gradient that a shard reads in this worker's segment is
//    in no transport and takes no credit: its push says where it lies. The weights are then in place: the shard wrote them, or
//    the worker reads the shard's own.
//    Where a step may go on without this worker (ps:backup:B, ps:quorum:Q), the answers are of the step that the key is at, or
//    of a later one than was asked for. Behind steps that it has not computed it jumps: what it has not sent of them is
//    dropped, and keys that have landed too early are asked for again.
// 5. A step's REPORT, GATHER and TAKE have one answer each; of the last two one each is open at most. Reports are
//    answered in any order, and count in the order of their steps.
// 6. A shard that owes an answer and whose link says nothing for lost_s is lost.
#ifndef STARRING_PS_WORKER_WORKER_CORE_H
#define STARRING_PS_WORKER_WORKER_CORE_H

#include "ps/agree/step_set.h"
#include "ps/job/shard_map.h"
#include "ps/net/clock.h"
#include "ps/net/port.h"
#include "shared/core/topology.h"

// The parts of the communication thread's time, where the run leaves a trace: gradients that it hands to the transport, weights
// that it takes.
enum worker_part { WORKER_IDLE, WORKER_PROTOCOL, WORKER_PUSH, WORKER_PULL, WORKER_PARTS };

struct worker_core_options {
    int rank;
    int lead;  // steps that may be open beside one
    int lag;   // and reported ones, whose outcome has not been heard
    bool
        drops;  // steps may be closed without this worker: whether an update has its push the weights behind it say
    int per_update;  // versions of an update: pushes whose mean is one; 0: 1
    const struct layout *layout;
    const struct shard_map *map;
    enum dtype dtype;
    void *const *weights;       // (units) each (n_pad) of dtype, host memory: what pulls write
    const void *const *grads;   // (1 + lead, units) each (n_pad) of dtype, host memory: what pushes read
    struct code_format code;    // or, unless of kind CODE_NONE, codes of a unit's keys, one behind the other
    const bool *shared;         // (shards) that reach this worker's segment; NULL: none
    const uint64_t *grad_at;    // (1 + lead, units) where the grads lie in the segment
    const uint64_t *weight_at;  // (units) and the weights; NULL: they are read where the shards have them
    bool by_unit;  // two units are kept at a time: pushes ask for no weights, and may be many in a step
    int64_t credit_bytes;
    double heartbeat_s;
    double lost_s;  // a shard that owes answers and is silent for so long is lost
    struct ps_clock clock;
    struct thread_time *spans;  // of the calling thread; NULL: none. Its content decides nothing
    struct ps_port port;        // peers: shard indices, PEER_SCHEDULER
};

// The facts that go along with a unit's gradient.
struct push_info {
    int64_t step;  // 0-based attempt
    float lr;
    float grad_scale;  // async: the worker's own decision
    bool skip;
    bool keep;   // the state behind this step goes into a checkpoint
    bool drain;  // and the next step computes on it, whatever delay is allowed
    int64_t
        batch;  // where pushes are applied on arrival: of the job's budget; by unit: the step's micro-batch
    int64_t ready_ns;             // when it was handed over, this host's clock
    int64_t tokens, mean_tokens;  // struct step_plan's, where workers come and go; else 0
};

// How a push of a unit went, and the pull behind it: moments of this host's clock, nanoseconds. The time that a
// peer's part made late is told from what the transfer took by the two times of peers, which name the peer (ps_moment_rank).
struct unit_times {
    int64_t step;                        // of the push
    int64_t ready_ns;                    // handed over
    int64_t sent_ns, acknowledged_ns;    // its first key was sent, its last one taken; 0: not yet
    int64_t acknowledged_peers_ns;       // the latest hand-over that an acknowledgement needed
    int64_t landed_first_ns, landed_ns;  // weights of the first and the last key; 0: not yet
    int64_t landed_peers_ns;             // the latest hand-over that they needed
};

// What the scheduler has answered to the report of a step.
struct step_outcome {
    int64_t step;
    bool late;  // it was closed without this worker's gradient
    struct step_stats stats;
    struct step_opening opening;     // of the step that it opens, where workers come and go
    int64_t done_ns, done_peers_ns;  // when that was heard; the latest moment that it needed of any worker
};

struct worker_status {
    int pulling;           // pulls not yet answered
    int64_t steps_done;    // that are reported, and closed as far as this worker has heard of all of them
    int64_t steps_closed;  // the same, reported or not
    struct ps_clock clock;
    uint64_t gathers_done;
    double gathered[WIRE_VALUES_MAX];  // by the last one
    int64_t taken_step, taken;         // the last step that was asked for, and its batch; -1: none was left
    int64_t taken_ns;                  // when that was heard
    int64_t handed_out;                // batches of the job then, at least
    bool stopped;                      // some worker was asked to leave
    struct staleness staleness;
    // The longest that a shard that owes an answer has been silent, its link's words included: they come while it waits for
    // others, too.
    double silent_s;
};

// The slot of a step; of -1: of weights that follow no push.
static inline int worker_slot_of(int64_t step, int lead) { return (int)((step + 1 + lead) % (1 + lead)); }

struct worker_core;
struct worker_core *worker_core_create(const struct worker_core_options *o);
// Before the first push: this worker's next step is `step`. The weights are then pulled, with worker_core_pull_all.
void worker_core_begin(struct worker_core *c, int64_t step);
void worker_core_gathers(struct worker_core *c, uint64_t done);  // that the job has made without it
void worker_core_destroy(struct worker_core **c);

// ---- requests. Each is answered by a change of the state below.
// The unit is not busy with the step that had the slot before.
void worker_core_push_unit(struct worker_core *c, int u, const struct push_info *info);
// By unit: the unit's weights behind `step` steps, as control bytes if aside. No pull of the unit is open.
void worker_core_pull_unit(struct worker_core *c, int u, int64_t step, bool aside, double now);
// values (n_pad) stay where they are until the unit is no longer busy. round: 1, 2, .. counts loadings.
void worker_core_init_unit(struct worker_core *c, int u, const float *values, uint64_t round);
// The report of a worker that has computed its step.
struct step_report {
    struct step_input in;
    double loss;                         // this worker's share of the mean
    int64_t ready_ns;                    // when it said so, this host's clock
    const struct step_opening *opening;  // of the step, where workers come and go; else NULL
    int64_t tokens, mean_tokens;         // as a push has them
};
void worker_core_report(struct worker_core *c, const struct step_report *report);
// The worker goes on at `step`, of which nothing has been computed: the steps before it are over.
void worker_core_jump(struct worker_core *c, int64_t step, double now);
void worker_core_gather(struct worker_core *c, const double *values, int count);
// Fresh weights of every key, as control bytes. more: WIRE_KEEP, the state goes into a checkpoint; WIRE_STOP, no worker pushes any
// more.
void worker_core_pull_all(struct worker_core *c, uint32_t more, double now);
// The batch of `step`, which begins when those before it have been handed over. done: what a checkpoint says of the
// budget, of the first one (ps/agree/budget.h); NULL: nothing.
void worker_core_take(struct worker_core *c, int64_t step, const struct wire_header *done);
void worker_core_stop(struct worker_core *c);  // heartbeats say so from now on, the next one at once

// ---- messages. peer: shard index or PEER_SCHEDULER. Takes over frame. 0, or -1 with an error.
int worker_core_message(struct worker_core *c, int peer, const struct wire_header *h, struct ps_frame *frame,
                        double now);
// Sends what credits allow, heartbeats. 0, or -1 with an error.
int worker_core_tick(struct worker_core *c, double now);

// ---- state
const struct worker_status *worker_core_status(const struct worker_core *c);
// Of a step that is done, until 1 + lag later ones have been reported.
const struct step_outcome *worker_core_outcome(const struct worker_core *c, int64_t step);
int64_t worker_core_landed(const struct worker_core *c, int u);  // step whose weights every key has
uint64_t worker_core_fills(const struct worker_core *c, int u);  // pulls that every key has had answered
// By unit: pushes of it so far whose gradient nobody needs any more.
int64_t worker_core_through(const struct worker_core *c, int u);
int64_t worker_core_version(const struct worker_core *c, int u);  // updates that every key's weights hold
// Of its push of `step`, or of that which had the slot before: times.step.
const struct unit_times *worker_core_times(const struct worker_core *c, int u, int64_t step);
const struct ps_clock *worker_core_clock(const struct worker_core *c);
// Keys whose gradient (or initial values) in the slot of `step` the transport or a server still needs.
int worker_core_busy(const struct worker_core *c, int u, int64_t step);
bool worker_core_transferring(const struct worker_core *c);  // any push or pull outstanding
// Whether the shard has an answer to give, as of the last tick.
bool worker_core_owes(const struct worker_core *c, int shard);
// Whether what this header said of a key is still to be said: link_options.renew. Gradients and initial values stay where they
// lie until then.
bool worker_core_renew(const struct worker_core *c, const struct wire_header *h);
const char *worker_core_error(const struct worker_core *c);
// Describes what the worker waits for on unit u, for the message of a missed deadline.
void worker_core_describe(const struct worker_core *c, int u, char *out, size_t size);

#endif
