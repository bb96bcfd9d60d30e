// Collectives between GPUs over NCCL. Results are those of collective.h. Ordered reductions exchange pieces by grouped
// sends and receives, through staging, and add them with OP_REDUCE, so they give the bits of the other engines. NCCL
// itself sums int64: any order gives the same bits.
//
// Threads     Collectives enqueue from the rank's thread. NCCL is called on the streams' threads; to abort, also on a
//             watching thread per collective.
// Blocking    Creating a collective waits for all ranks, up to the deadline. The primitives only enqueue; they block
//             only while 64 operations of the collective are in flight.
// Failure     An error of NCCL, a peer that misses the deadline and an abort end the communicator (ncclCommAbort), fail
//             the streams of the rank's device and abort the ranks' bootstrap (ring_bootstrap.h).
#ifndef STARRING_DECENTRAL_NCCL_NCCL_ENGINE_H
#define STARRING_DECENTRAL_NCCL_NCCL_ENGINE_H

#include "decentral/collective/ring_bootstrap.h"

// ---------------------------------------------------------------- the world
// One rank's NCCL, for all its communicators: the library, which is loaded on first use (the program links neither NCCL
// nor CUDA), the rank's device, and the order of operations on it.
//
// Ownership   A world belongs to its rank and outlives its collectives; the device outlives the world.
// Blocking    nccl_world_open waits for all ranks, up to the deadline.
// Returns whether libnccl.so.2 can be loaded (it stays loaded). If not, *why receives a sentence that is valid until
// the thread's next call.
bool nccl_available(const char **why);

struct nccl_world_options {
    struct device *device;  // a CUDA device that only this rank uses
    int rank, size;
    struct ring_bootstrap *bootstrap;
    double deadline_s;  // deadline of opening the world and creating collectives; 0: none
};

struct nccl_world;
// Returns 0, or -1 after logging: no CUDA device, no libnccl.so.2, a missing rank, or two ranks on one GPU, which NCCL
// does not allow before 2.30 or without NCCL_MULTI_RANK_GPU_ENABLE=1.
int nccl_world_open(struct nccl_world **out, const struct nccl_world_options *o);
void nccl_world_close(struct nccl_world **w);

// ---------------------------------------------------------------- the collectives
// world: struct nccl_world. Every rank creates its channels in the same order. Ordered reductions need staging.
extern const struct collective_kind collective_nccl_kind;

#endif
