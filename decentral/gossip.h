// A rank of gossip: it mixes its own model with its neighbours' models (gossip.c has the algorithm and its papers).
#ifndef STARRING_DECENTRAL_GOSSIP_H
#define STARRING_DECENTRAL_GOSSIP_H

#include "decentral/ranks.h"

struct topology *gossip_create(const struct ring_rank *r);  // NULL after logging

#endif
