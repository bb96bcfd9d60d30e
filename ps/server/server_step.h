// The life of a key's step: held, added, committed, answered (server_step.c). server_core.c takes the messages,
// server_snapshot.c has what is asked beside it, replay.c repeats a recorded order; only these include this file.
#ifndef STARRING_PS_SERVER_SERVER_STEP_H
#define STARRING_PS_SERVER_SERVER_STEP_H

#include "ps/server/server_state.h"

void acknowledge(struct server_core *c, const struct server_key *k, int worker, bool held);
bool pull_ready(const struct server_core *c, const struct server_key *k, int worker);
void answer_pull(struct server_core *c, struct server_key *k, int worker);
// A push that is due and fits. Take over the gradient. 0, or -1 with an error.
int push_in_order(struct server_core *c, struct server_key *k, const struct wire_header *h,
                  const struct gradient *g, double now);
int push_on_arrival(struct server_core *c, struct server_key *k, const struct wire_header *h,
                    const struct gradient *g);
// Commits what is complete and decided. 0, or -1 with an error.
int commit_all(struct server_core *c);
// The round of step t is over when the scheduler has answered and every key has committed.
void end_round(struct server_core *c);
// What was asked for, if its version has come; a request for it.
void answer_snapshot(struct server_core *c, struct server_key *k);
void on_snapshot(struct server_core *c, struct server_key *k, const struct wire_header *h);
void report_sum(struct server_core *c, double now);

#endif
