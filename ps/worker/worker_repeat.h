// What a worker's core sends, what it sends again, and when (ps/net/rto.h). A request to the scheduler is a header, which is repeated. Of
// a key a question is repeated, never the payload: that goes again when the shard says that it has not come. For the core
// alone.
#ifndef STARRING_PS_WORKER_WORKER_REPEAT_H
#define STARRING_PS_WORKER_WORKER_REPEAT_H

#include "ps/worker/worker_core_state.h"

// What is being sent of a key: for the first time, or again.
void send_key(struct worker_core *c, int key, double now);

void request_open(struct worker_core *c, struct request *r, const struct wire_header *h, double now);
// While a TAKE is open: says it again as soon as more of this worker's steps are acknowledged.
void take_tick(struct worker_core *c, double now);
void requests_tick(struct worker_core *c, double now);

// A pull of the key: the first of its kind, or a question about it.
void send_pull(struct worker_core *c, int key, uint32_t flags, double now);
// Asks what is overdue, and finds out how long shards have been silent.
void keys_tick(struct worker_core *c, double now);
// The scheduler has closed the step: no answer waits for others any more.
void keys_step_done(struct worker_core *c, double now);

// ---- answers
// Of a shard that answers as soon as it is asked: a round trip. whole: of the payload, if it is that one's number.
void key_answered(struct worker_core *c, struct worker_key *k, uint32_t ask, bool payload, double now);
// Of any message of the shard, before and after it is taken.
void line_heard(struct shard_line *l, const struct wire_header *h);
void line_answered(struct worker_core *c, int shard, const struct wire_header *h, double now);
void key_missing(struct worker_core *c, int key, uint32_t ask, double now);
void key_answer_lost(struct worker_core *c, int key, uint32_t ask, double now);

#endif
