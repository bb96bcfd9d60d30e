// The collectives as exchanges of bytes between peers: for engines that can only send and receive. Knows no
// engine; collective_mpi supplies one. The steps of a call are its plan's (collective_plan.h).
//
// Ownership   struct exchanger follows collective_impl's pattern: first member of the engine's own struct.
//             transfers and inputs belong to it; staging belongs to whoever gave it.
#ifndef STARRING_DECENTRAL_MPI_MPI_EXCHANGE_H
#define STARRING_DECENTRAL_MPI_MPI_EXCHANGE_H

#include "decentral/collective/collective_impl.h"

struct exchanger {
    struct collective_impl impl;
    // begin starts x->transfers (the own entry is empty); end waits for them and counts their bytes. One exchange is
    // under way at most. 0, or -1 after failing: then none is. push lets it come on; it never blocks.
    int (*begin)(struct exchanger *x, enum collective_primitive p);
    int (*end)(struct exchanger *x, enum collective_primitive p);
    void (*push)(struct exchanger *x);
    struct collective_transfer *transfers;  // (size)
    const void **inputs;                    // (size) of the sum under way
    char *staging;
    size_t staging_bytes;  // at least a slot of one element a peer (collective_staging_bytes)
};

void exchanger_init(struct exchanger *x, const struct collective_options *o);  // after collective_impl_init
void exchanger_fini(struct exchanger *x);
// Runs a call of any primitive; the barrier exchanges one byte with everybody. 0 or -1.
int exchange_run(struct exchanger *x, const struct collective_call *c);

#endif
