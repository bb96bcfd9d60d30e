// The pulls of a replay (replay.h): which version each is answered with. replay.h tells what it holds.
#ifndef STARRING_PS_SERVER_REPLAY_PULLS_H
#define STARRING_PS_SERVER_REPLAY_PULLS_H

#include "ps/server/server_state.h"

// A worker's pushes and pulls of a key, as the server knows them.
struct replay_worker {
    struct wire_header *push;  // of the gradient that is held
    int64_t done;              // pushes applied
    int64_t told;              // the step whose weights it was sent last
    int64_t version;           // of these
    void *copy;                // of them, until its next push; NULL: not needed
};

struct replay_key {
    int64_t next;  // place in the recording
    int workers;
    struct replay_worker w[];  // (workers)
};

struct replay_key *replay_key_create(int workers);
void replay_key_destroy(struct replay_key **r);

// Counts what a replay holds, as transport memory; replay_drop_copy: the worker has its weights.
void replay_hold(struct server_core *c, size_t bytes);
void replay_drop_copy(struct server_core *c, struct server_key *k, int worker);

// Whether the worker's open pull can be answered; puts into its answer what that holds.
bool replay_ready(const struct server_core *c, const struct server_key *k, int worker);
void replay_answer(struct server_core *c, struct server_key *k, int worker, struct ps_message *m);

#endif
