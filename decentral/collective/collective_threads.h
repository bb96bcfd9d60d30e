// Collectives between ranks that are threads of one process, one per rank and channel. They need no staging.
// Native order is the same as ordered.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_THREADS_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_THREADS_H

#include "decentral/collective/collective.h"
#include "decentral/collective/threads_hub.h"

struct collective *collective_threads_create(struct threads_hub *h, int rank, int channel,
                                             const struct collective_options *o);  // NULL after logging

extern const struct collective_kind collective_threads_kind;  // world: struct threads_hub

#endif
