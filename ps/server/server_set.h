// A shard's part in steps to which not all workers belong (--elastic MIN:MAX): gradients are held until the
// scheduler has fixed the step's set, then added over the set alone.
//
//     PUSH w (t) --> held: a frame is acknowledged and kept, a segment is read later
//     all keys of w are here --> ARRIVED: the workers of whom that is true
//     SET (t, mask)   --> per key: the sum over the mask in worker order, times N/n, rounded once; all that was held is
//                         let go, of the mask or not --> SHARD_SUM, and on as without --elastic (server_core.h)
//
// A worker's next life begins with its first message: what the last one left is let go, what still comes of it is
// dropped. Its first pull of a key says from which step it belongs; a push that the key has had is not taken again. A segment of a dead worker stays mapped until
// then: its gradients may belong to the set.
//
// Memory   Frames of a whole step of all workers: N P b / S bytes of transport, reported as held.
// Owner    The core; one thread.
#ifndef STARRING_PS_SERVER_SERVER_SET_H
#define STARRING_PS_SERVER_SERVER_SET_H

#include "ps/agree/step_set.h"
#include "ps/server/server_state.h"

struct server_set *server_set_create(int workers);
void server_set_destroy(struct server_set **s);

// The scheduler has told of a worker's life. Whether it is a later one than the shard knew: it then begins.
bool server_set_member(struct server_core *c, int worker, uint32_t life);
// A push that fits. Takes over the gradient. 0, or -1 with an error.
int server_set_push(struct server_core *c, struct server_key *k, const struct wire_header *h,
                    const struct gradient *g);
// SET of the scheduler. 0, or -1 with an error.
int server_set_fix(struct server_core *c, const struct wire_header *h);

#endif
