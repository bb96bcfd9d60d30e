// The life of a key's step: held, added, committed, answered (server_step.c). server_core.c takes the messages,
// replay.c repeats a recorded order, ps/server/server_set.c holds gradients until a set is fixed; only these include this file.
#ifndef STARRING_PS_SERVER_SERVER_STEP_H
#define STARRING_PS_SERVER_SERVER_STEP_H

#include "ps/server/server_state.h"
#include "ps/sum/sum.h"

void acknowledge(struct server_core *c, const struct server_key *k, int worker, bool held);
bool pull_ready(const struct server_core *c, const struct server_key *k, int worker);
void answer_pull(struct server_core *c, struct server_key *k, int worker);
// An answer with weights, made anew: server_core_renew.
bool renew_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);
// A push that is due and fits. Take over the gradient. 0, or -1 with an error.
int push_in_order(struct server_core *c, struct server_key *k, const struct wire_header *h,
                  const struct gradient *g);
int push_on_arrival(struct server_core *c, struct server_key *k, const struct wire_header *h,
                    const struct gradient *g);
// Writes down a push of the open step, and holds its gradient. Takes it over. 0, or -1 with an error.
int note_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
              const struct gradient *g);
// All gradients that count are here: they are added, and the key joins the shard's sum. Where nothing has to be decided
// or waited for, and nobody is owed an acknowledgement (*at_once), the update is part of the same pass. Then they are let go, and close_key commits the key if
// that can be; the last one has closed the shard's step. 0, or -1 with an error.
int add_up(struct server_core *c, struct server_key *k, const struct sum_args *sum, bool *at_once);
int close_key(struct server_core *c, struct server_key *k, bool at_once);
// Commits what is complete and decided. 0, or -1 with an error.
int commit_all(struct server_core *c);
// Says nothing: the key is at `steps` steps, or takes the last one of them, which was decided so. 0, or
// -1 with an error: it can do neither.
int reach_step(struct server_core *c, struct server_key *k, int64_t steps, const struct update_scalars *last);
// The round of step t is over when the scheduler has answered and every key has committed.
void end_round(struct server_core *c);
// The snapshot that was asked for, if its version has come.
void answer_snapshot(struct server_core *c, struct server_key *k);
void answer_pulls(struct server_core *c, struct server_key *k);
void report_sum(struct server_core *c);

// ---------------------------------------------------------------- checkpoints
// A key's state on its way into a checkpoint (server_core.h): when it is handed over, and what waits meanwhile.
//
//     steps commit       the commit of a pinned key waits, as it does for the transport
//     on arrival         pushes that find their key pinned are held, one a worker, and applied in the order in which
//                        they came; their workers' pulls wait with them
//     replay             what is due waits in its place
static inline bool keep_pinned(const struct server_key *k) { return atomic_load(&k->pins) > 0; }
// Whether this push's step is to be kept.
bool keep_wanted(const struct server_core *c, const struct wire_header *h);
// Hands the key over as it is, behind `step` steps.
void keep_key(struct server_core *c, struct server_key *k, int64_t step, bool last);
// An update waits for a pin; how long such waits have taken, with each tick.
void keep_waits(struct server_core *c);
void keep_note_wait(struct server_core *c);
bool keep_late(const struct server_key *k, int worker);  // its last push waits for a pin

#endif
