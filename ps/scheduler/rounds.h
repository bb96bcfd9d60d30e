// The common work of a job's members: the commit round of each step, and gathers. It belongs to the scheduler's state
// machine (scheduler_core.h knows the members): no sockets, no clock but `now` (seconds).
//
//     step t    REPORT of the workers + SHARD_SUM of every shard with keys
//                   --> update_decide (kernels/operations.h), losses added in worker order
//                   --> DECISION to the shards, STEP_DONE to the workers
//     gather    GATHER of every worker --> values added in worker order --> GATHER_DONE; no values: a barrier
//
// Where workers join and leave, or steps close without stragglers (ps/agree/step_set.h):
//
//     step t    + ARRIVED of every shard --> SET to the shards, once each member's gradient is here or the member is lost, or
//               enough gradients are here; then their SHARD_SUMs. STEP_DONE marks a straggler as late
//     JOIN      of a worker that joins the running job: JOINED when the next step opens, STEP_DONE to the rest
//     gather    of the live workers
//
// Where workers run ahead of each other they share no steps: TAKE of a worker --> TAKEN (budget.h). Where all keys take
// pushes in one order (consistency_row.ordered): ARRIVED (worker) of every shard --> SET (position, worker) to the shards.
//
// Invariants
// 1. Each message arrives once (ps/net/link.h), in any order. A message of a step or gather that is over is dropped;
//    one of a step that no member can be at yet ends the job.
// 2. One gather and lead + 1 steps are open, each step in a slot of its own (struct round, step % (1 + lead)), which
//    keeps messages that arrive early. Steps are decided in order, each once, when every report and every sum that it
//    needs is here. The decision depends only on these, in worker order.
// 3. A step's set of workers is fixed once, and is the same for all keys. A worker that joins belongs to the next step
//    that opens.
// Errors: -1 with rounds_error set.
#ifndef STARRING_PS_SCHEDULER_ROUNDS_H
#define STARRING_PS_SCHEDULER_ROUNDS_H

#include "ps/scheduler/membership.h"

struct rounds;
struct rounds *rounds_create(const struct scheduler_options *o, const struct membership *members);
void rounds_destroy(struct rounds **c);

int rounds_report(struct rounds *c, int worker, const struct wire_header *h, double now);
int rounds_sum(struct rounds *c, int shard, const struct wire_header *h, double now);
int rounds_gather(struct rounds *c, int worker, const struct wire_header *h, double now);
void rounds_take(struct rounds *c, int worker,
                 const struct wire_header *h);  // for consistencies with a budget (budget.h)
void rounds_stop(struct rounds *c);             // Some worker was asked to stop.

// ---- where workers join and leave
bool rounds_has_worker(const struct rounds *c, int worker);  // Whether it belongs to the job.
bool rounds_can_lose(const struct rounds *c, int worker);    // Whether the job can continue without it.
int rounds_lost(struct rounds *c, int worker, const struct loss *loss, double now);
int rounds_arrived(struct rounds *c, int shard, const struct wire_header *h, double now);
void rounds_join(struct rounds *c, int worker);
// Whether a worker that joins the running job may connect to the servers now: no open step may hold gradients
// of its rank's last process, and the other workers have loaded their weights.
bool rounds_admits(const struct rounds *c, int worker);

// rounds_tick closes a step that has enough gradients once its grace period is over. Returns 0, or -1 with
// rounds_error set. rounds_in_grace: such a grace period is running, so rounds_tick must be called often.
int rounds_tick(struct rounds *c, double now);
bool rounds_in_grace(const struct rounds *c);

#define ROUNDS_TEXT_MAX 160
// Whether a round or a gather has waited long for a member that is alive (scheduler_core.c notices dead ones)
// and was not named for this yet; then text names it. The wait continues.
bool rounds_slow(struct rounds *c, double now, char text[ROUNDS_TEXT_MAX]);

int64_t rounds_step(const struct rounds *c);  // Returns the oldest open step.
const char *rounds_error(const struct rounds *c);

#endif
