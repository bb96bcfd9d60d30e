// A key's state on its way into a checkpoint (server_core.h): when it is handed over, and what waits meanwhile.
//
//     steps commit       the commit of a pinned key waits, as it does for the transport
//     on arrival         pushes that find their key pinned are held, one a worker, and applied in the order in which
//                        they came; their workers' pulls wait with them
//     replay             what is due waits in its place
//
// For the files of the core alone.
#ifndef STARRING_PS_SERVER_SERVER_KEEP_H
#define STARRING_PS_SERVER_SERVER_KEEP_H

#include "ps/server/server_state.h"

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
