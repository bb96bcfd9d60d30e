// A primary's half of the replication (replica.h has the other one, and the drawing): a shard's sums go to the
// neighbour, and count as reported only when the neighbour has acknowledged them all. Part of the shard's core; the
// files of ps/server that make up the core include it.
#ifndef STARRING_PS_SERVER_CHAIN_H
#define STARRING_PS_SERVER_CHAIN_H

#include "ps/server/server_state.h"

// Sends the part of a key that the neighbour lacks: the weights that were loaded, or the sum of the open step, which is complete.
void chain_send(struct server_core *c, struct server_key *k);
// Whether the neighbour has the weights that were loaded last.
bool chain_has_loaded(const struct server_core *c, const struct server_key *k);
// Whether all sums of the step may be reported: every key's is complete, and acknowledged where that is asked for.
bool chain_complete(const struct server_core *c);
// An answer of the neighbour. True: to the step's last sum.
bool chain_answered(struct server_core *c, const struct wire_header *h);

#endif
