// Collectives between GPUs over NCCL. Results are those of collective.h. Ordered reductions exchange pieces by grouped
// sends and receives, through staging, and add them with OP_REDUCE, so they give the bits of the other engines. NCCL
// itself sums int64: any order gives the same bits.
//
// Threads     Collectives enqueue from the rank's thread. NCCL is called on the streams' threads; to abort, also on a
//             watching thread per collective.
// Blocking    Creating a collective waits for all ranks, up to the deadline. The primitives only enqueue; they block
//             only while 64 operations of the collective are in flight.
// Failure     An error of NCCL, a peer that misses the deadline and an abort end the communicator (ncclCommAbort), fail
//             the streams of the rank's device and abort the ranks' meeting (ring_meeting.h).
#ifndef STARRING_DECENTRAL_NCCL_COLLECTIVE_NCCL_H
#define STARRING_DECENTRAL_NCCL_COLLECTIVE_NCCL_H

#include "decentral/nccl/nccl_world.h"

// world: struct nccl_world. Every rank creates its channels in the same order. Ordered reductions need staging.
extern const struct collective_kind collective_nccl_kind;

#endif
