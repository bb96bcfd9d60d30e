// The topologies without a server, one row each (shared/core/topology_row.h).
#ifndef STARRING_DECENTRAL_RING_H
#define STARRING_DECENTRAL_RING_H

#include "shared/core/topology_row.h"

extern const struct topology_row topology_zero;    // decentral/zero_row.c
extern const struct topology_row topology_gossip;  // decentral/gossip.c

// A rank of gossip, for tests (struct ring_rank: decentral/ranks.h). NULL after logging.
struct ring_rank;
struct topology *gossip_create(const struct ring_rank *r);

#define RING_TOPOLOGIES &topology_zero, &topology_gossip  // in the order of the program's lists

#endif
