// One shard of a server as a pure state machine: messages in, messages out, no sockets, no clock but
// `now` (seconds). A shard thread owns one core and all its keys; nothing here is shared except
// each key's count of replies in flight, which the transport lowers.
//
// A key, where the pushes of a step are summed, holds a ring of L = 1 + lead slots, of step t the slot t mod L:
//
//          clock c: steps committed
//                  |
//     .. c-2  c-1 [c] [c+1] .. [c+lead]      open: c is being summed, in worker order; those behind it hold
//                                            the gradients that have come. Lead 0: c alone
//
//     PUSH w (t) --> t = c, and its turn? --no--> held (transport memory), acknowledged HELD
//                       | yes, or the commit of t-1 has made it so
//                       v
//          acc += gradient, in worker order, straight out of the frame --> PUSH_ACK
//                       | after worker N-1
//                       v
//          rounded once, in place --> its squares join the shard's sum of step t
//                       | clip or fp16: wait for the scheduler's DECISION (a commit round)
//                       v
//          the optimizer; version += 1 unless skipped; c = t+1 --> pending PULLs are answered, the slot is t+L's
//
// The last three are one pass over memory where nothing has to be decided and nobody waits for an acknowledgement
// (key_pass.h). Gradients that lie in the workers' segments are held where they are, without an acknowledgement, and added in
// that pass; the answer to the worker's pull says that its gradient was taken. Weights go into the worker's segment, or the
// worker reads them where they are: nobody changes them before it has pushed again.
//
// How a push becomes an update is a policy (server_state.h), each in its file, one for the whole job:
//
//     in order     push_in_order.c    as drawn; all workers belong to a step
//     units        push_units.c       the same of each micro-batch, for workers that keep two units at a time
//     set          push_set.c         all are held until the scheduler has said whose belong to the step (--elastic)
//     on arrival   push_on_arrival.c  each is an update of its own, straight out of its frame or segment, or one of K whose mean is (ps:async)
//     replayed     push_replayed.c    the same, in the order that an earlier run has recorded
//
// Invariants
// 1. Each message comes once (ps/net/link.h), in any order. A push of (worker, key, step) that was taken before, of an earlier
//    life of the worker, is acknowledged and dropped; where pushes are applied on arrival, so is a batch that the key holds
//    (ps/job/batches.h), whoever brings it.
// 2. pushed[w] counts the pushes of w that the key has taken; it never goes back, and a push of another step than that is refused.
// 3. A slot is one step's: a push of step t is taken while c <= t <= c + lead, and of step t or earlier no other is open on
//    the shard than the last L. So the accumulator is one: of step c, and no gradient of t > c is added before c commits.
// 4. A commit waits until no reply leaves from the key's weights.
// 5. A shard's sum of a step is reported once, when all of its keys are complete. A step is over when all of them have
//    committed.
// 6. A key waits for a slow worker for as long as it takes: the scheduler knows who lives, and ends the job of a worker that
//    is lost. A message that is not understood is refused with a text, never applied.
//
// A checkpoint (WIRE_KEEP on worker 0's pushes of a step): behind the commit of that step, or, where pushes are applied
// on arrival, behind worker 0's push, the key's state is handed to o.keep, which copies it. The first message of a push
// counts, a second one keeps nothing.
//
// Errors: -1 with server_core_error set (the shard is then finished and tells the job).
#ifndef STARRING_PS_SERVER_SERVER_CORE_H
#define STARRING_PS_SERVER_SERVER_CORE_H

#include "ps/server/server_options.h"

struct server_core;
struct server_core *server_core_create(const struct server_core_options *o);
void server_core_destroy(struct server_core **c);

// A job that goes on from a checkpoint of `step` steps, before the first push: masters and states of the shard's keys lie in their
// buffers, and the keys go on from the counts of these rows, which are of all keys of the job. Weights are rounded here, and pulls
// that came early are answered. 0 or -1.
int server_core_goes_on(struct server_core *c, const struct key_rows *rows, int64_t step);

// The memory that worker `worker` shares, before its first push; offsets in its messages are relative to base.
void server_core_attach(struct server_core *c, int worker, const struct server_segment *s);

// The process that has a worker's rank, as the scheduler says: nobody else is heard. Where workers come and go a later
// life replaces an earlier one; else the first word stands.
void server_core_member(struct server_core *c, int worker, uint64_t incarnation, uint32_t life);
// Whether the sender is a worker of this job, and the process that has its rank.
bool server_core_knows(const struct server_core *c, const struct wire_header *h);
// A message of a worker. Takes over frame (NULL: no payload). 0 or -1.
int server_core_message(struct server_core *c, const struct wire_header *h, struct ps_frame *frame,
                        double now);
// A DECISION, SET or MEMBER of the scheduler. 0 or -1.
int server_core_decision(struct server_core *c, const struct wire_header *h, double now);
// Commits that waited for a reply to leave its buffer. 0 or -1.
int server_core_tick(struct server_core *c, double now);
// There are gradients of a step that waits for more of them, or for the decision.
bool server_core_holds(const struct server_core *c);
// A commit waits only for the transport to let go of a buffer: tick again soon.
bool server_core_hurry(const struct server_core *c);

// Makes an answer with weights anew (link_options.renew), as they are now. False: the worker has
// asked for others since.
bool server_core_renew(struct server_core *c, int worker, struct ps_message *m);

const char *server_core_error(const struct server_core *c);
void server_core_totals(const struct server_core *c, struct server_totals *out);
// Updates that the key holds, of a sum of pushes the pushes; by its moments' own count. -1: it is not of this shard.
int64_t server_core_version(const struct server_core *c, int key);
int64_t server_core_updates(const struct server_core *c, int key);
// Bytes of what a core knows of one of its keys, beside the key's buffers.
int64_t server_core_key_bytes(const struct config *c);

#endif
