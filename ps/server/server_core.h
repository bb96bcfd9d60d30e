// One shard of a server as a pure state machine: messages in, messages out, no sockets, no clock but
// `now` (seconds). A shard thread owns one core and all its keys. Nothing here is shared except
// each key's count of replies in flight, which the transport lowers.
//
// Where the pushes of a step are summed, a key holds a ring of L = 1 + lead slots; step t uses slot t mod L:
//
//          clock c: steps committed
//                  |
//     .. c-2  c-1 [c] [c+1] .. [c+lead]      open: c is being summed, in worker order; the slots after it hold
//                                            the gradients that have arrived. Lead 0: c only
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
// The last three are one pass over memory if nothing has to be decided and nobody waits for an acknowledgement
// (key_pass.h). Gradients in the workers' segments are held in place, without an acknowledgement, and added in
// that pass; the answer to the worker's pull acknowledges them. Weights go to the worker's segment, or the
// worker reads them in place: they do not change before it has pushed again.
//
// A policy decides how a push becomes an update: push_policy.h lists them, one file each. The drawing is push_in_order.c.
//
// Invariants
// 1. Each message arrives once (ps/net/link.h), in any order. A push of (worker, key, step) that was taken before,
//    from an earlier process of the worker, is acknowledged and dropped. Where pushes are applied on arrival, so is a
//    batch that the key has already (ps/job/batches.h), whichever worker pushes it.
// 2. pushed[w] counts the pushes of w that the key has taken; it never decreases, and a push of another step than that
//    is refused.
// 3. A slot belongs to one step: a push of step t is taken while c <= t <= c + lead, and only the last L steps are
//    open on the shard. So there is one accumulator, for step c: no gradient of t > c is added before c commits.
// 4. A commit waits until no reply is being sent from the key's weights.
// 5. A shard's sum of a step is reported once, when all of its keys are complete. A step is over when all of them have
//    committed.
// 6. A key waits for a straggler without limit: the scheduler knows which workers live, and ends the job of a worker
//    that is lost. A message that is not understood is refused with a text, never applied.
//
// A checkpoint (WIRE_KEEP on worker 0's pushes of a step): the key's state is handed to o.keep, which copies it. This
// happens after the commit of that step, or after worker 0's push where pushes are applied on arrival. Only the first
// message of a push counts: a repeated one keeps nothing.
//
// Errors: -1 with server_core_error set (the shard is then finished and reports it to the job).
#ifndef STARRING_PS_SERVER_SERVER_CORE_H
#define STARRING_PS_SERVER_SERVER_CORE_H

#include "ps/server/server_options.h"

struct server_core;
struct server_core *server_core_create(const struct server_core_options *o);
void server_core_destroy(struct server_core **c);

// For a job that resumes from a checkpoint of `step` steps, before the first push. Masters and states of the shard's
// keys are in their buffers, and the keys continue from the counts of these rows, which are of all keys of the job.
// This call rounds the weights and answers pulls that arrived early. Returns 0 or -1.
int server_core_resume(struct server_core *c, const struct key_rows *rows, int64_t step);

// Sets the memory that worker `worker` shares, before its first push; offsets in its messages are relative to base.
void server_core_attach(struct server_core *c, int worker, const struct server_segment *s);

// Sets the process that has a worker's rank, as the scheduler names it: all other senders are ignored. In a job that
// workers join and leave, a later process of the rank replaces the earlier one; else the first call counts.
void server_core_member(struct server_core *c, int worker, uint64_t incarnation, uint32_t process_no);
// Whether the sender is a worker of this job, and the process that has its rank.
bool server_core_accepts_sender(const struct server_core *c, const struct wire_header *h);
// Takes a worker's message, and ownership of frame (NULL: no payload). Returns 0 or -1.
int server_core_message(struct server_core *c, const struct wire_header *h, struct ps_frame *frame,
                        double now);
// Takes a DECISION, SET or MEMBER of the scheduler. Returns 0 or -1.
int server_core_decision(struct server_core *c, const struct wire_header *h, double now);
// Advances the keys that waited until the transport had sent an answer from their buffer. Returns 0 or -1.
int server_core_tick(struct server_core *c, double now);
// Whether there are gradients of a step that waits for more of them, or for the decision.
bool server_core_has_open(const struct server_core *c);
// Whether a commit waits only for the transport to release a buffer: tick again soon.
bool server_core_is_urgent(const struct server_core *c);

// Makes an answer with weights again (star_link_options.renew), with the current weights. Returns false if the worker has
// asked for others since.
bool server_core_renew(struct server_core *c, int worker, struct ps_message *m);

const char *server_core_error(const struct server_core *c);
void server_core_totals(const struct server_core *c, struct server_totals *out);
// version: updates that the key holds, or pushes where they are averaged. updates: those that its moments count. -1:
// not a key of this shard.
int64_t server_core_version(const struct server_core *c, int key);
int64_t server_core_updates(const struct server_core *c, int key);
// Bytes that a core needs per key, in addition to the key's buffers.
int64_t server_core_key_bytes(const struct config *c);

#endif
