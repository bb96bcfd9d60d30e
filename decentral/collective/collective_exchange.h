// The collectives as exchanges of bytes between peers: for engines that can only send and receive. Knows no
// engine; collective_mpi supplies one. The steps of a call are its plan's (collective_plan.h).
//
// Device memory that is not the host's passes through page-locked host memory, chunk by chunk of every block
// of a call; the sum's staging is what a call leaves of it (2*size blocks are enough for any call):
//
//     host | blocks to send | blocks received | staging of the sum |
//
// Ownership   struct exchanger follows collective_impl's pattern: first member of the engine's own struct.
//             transfers and inputs belong to it; staging and host belong to whoever gave them.
#ifndef STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_EXCHANGE_H
#define STARRING_DECENTRAL_COLLECTIVE_COLLECTIVE_EXCHANGE_H

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
    size_t staging_bytes;  // at least exchange_staging_bytes of one element
    char *host;            // NULL: only host memory can be moved
    size_t host_bytes;     // at least exchange_host_bytes of one element
};

void exchanger_init(struct exchanger *x, const struct collective_options *o);  // after collective_impl_init
void exchanger_fini(struct exchanger *x);
// Bytes that let a reduction of max_count elements a rank run in few chunks: at most 2 MiB for each peer, two chunks.
size_t exchange_staging_bytes(int size, size_t max_count, enum dtype dt);
// Bytes of page-locked memory that let calls of max_count elements a block run in few chunks: at most 1 MiB a
// block.
size_t exchange_host_bytes(int size, size_t max_count, enum dtype dt);
// Runs a call of any primitive; the barrier exchanges one byte with everybody. 0 or -1.
int exchange_run(struct exchanger *x, const struct collective_call *c);
// Runs a call on device memory by run on host memory. Inside of a host function of the call's stream.
int exchange_staged(struct exchanger *x, const struct collective_call *c,
                    int (*run)(struct exchanger *x, const struct collective_call *c));

#endif
