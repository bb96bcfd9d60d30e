// What the members of a job do together: the commit round of each step and gathers. The other half of the
// scheduler's state machine (membership.h says who they are): no sockets, no clock but `now` (seconds).
//
//     step t    REPORT of the workers + SHARD_SUM of every shard with keys
//                   --> update_decide (kernels/backend.h), losses added in worker order
//                   --> DECISION to the shards, STEP_DONE to the workers
//     gather    GATHER of every worker --> values added in worker order --> GATHER_DONE; no values: a barrier
//
// Requests are repeated by their senders until answered; the last answers are kept for that.
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
#define ROUNDS_TEXT_MAX 160
// Whether a round or a gather has waited long for a member, which is alive (membership.h notices those that are
// not) and has not been named for that yet; then text says so. It is waited for all the same.
bool rounds_slow(struct rounds *c, double now, char text[ROUNDS_TEXT_MAX]);

int64_t rounds_step(const struct rounds *c);  // the open one
const char *rounds_error(const struct rounds *c);

#endif
