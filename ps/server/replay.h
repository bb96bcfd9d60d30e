// An asynchronous run repeated bit for bit: pushes are applied in the recorded order, and a worker gets each key's
// weights at the version that it computed on then.
//
//     push of w     held until it is the key's next in the recording
//     applied       when no worker still lacks the version that it would replace
//     pull of w     answered when the key has reached the version recorded for the worker's step
//
// No deadlock: each of these waits for something that came before in the recorded run: an earlier push of the key;
// a worker's push, hence its pulls of that step and its pushes of the step before; a pull that a worker sends with
// its push, before it waits for anything. A push that came first in the recorded run and has not happened yet can
// therefore always happen. Nothing else holds a worker up: a frame is acknowledged as taken when it arrives, so
// that its credits return, and is the server's memory from then on (counted as transport memory). An answer is kept
// until the worker's next push proves that it came: it may have to be repeated when the key has moved on.
//
// Called by server_core.c for keys with `replay`. Of pulls: replay_pulls.h.
#ifndef STARRING_PS_SERVER_REPLAY_H
#define STARRING_PS_SERVER_REPLAY_H

#include "ps/server/server_state.h"

// A push that is due and fits; takes over the gradient. 0, or -1 with an error.
int replay_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                const struct gradient *g);
// Applies what can be applied, after a push or a pull. 0, or -1 with an error.
int replay_advance(struct server_core *c, struct server_key *k);
#endif
