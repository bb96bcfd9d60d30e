// The ranks of a ring exchange what an engine needs before it exists: over collectives that exist already (threads',
// shared memory's, MPI's or tcp's), on a CPU stream of their own.
#ifndef STARRING_DECENTRAL_COLLECTIVE_RING_BOOTSTRAP_H
#define STARRING_DECENTRAL_COLLECTIVE_RING_BOOTSTRAP_H

#include "decentral/collective/collective.h"

struct ring_bootstrap {
    struct device *cpu;
    struct stream *stream;
    struct collective *under;  // the existing collectives; their abort reaches the other ranks
};
// m: zeros. Returns 0, or -1 after logging.
int ring_bootstrap_open(struct ring_bootstrap *m, const struct collective_source *under, double deadline_s);
// Called after the last use. Does nothing if m is zeros.
void ring_bootstrap_close(struct ring_bootstrap *m);
// Broadcasts root's bytes to all ranks, which call it in the same order. Blocks up to the deadline. Returns 0, or -1
// after logging.
int ring_bootstrap_broadcast(struct ring_bootstrap *m, int root, void *bytes, size_t size);

#endif
