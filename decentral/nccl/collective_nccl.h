// Collectives between GPUs over NCCL, which is loaded when it is asked for: the program links neither NCCL
// nor CUDA. Results are those of collective.h; ordered reductions exchange pieces by grouped sends and
// receives into staging and add them with OP_REDUCE, so they give the bits of the other implementations.
//
// Ownership   A world belongs to its rank and outlives its collectives; the device outlives the world.
// Threads     Collectives enqueue from the rank's thread; NCCL is called on the streams' threads and, to
// abort,
//             on a watching thread of each collective.
// Blocking    nccl_world_open and collective_nccl_create wait for all ranks, up to the deadline. The
// primitives
//             enqueue; they block only while 64 operations of the collective are in flight.
// Failure     An error of NCCL, a peer that does not come in time and an abort end the communicator
//             (ncclCommAbort), fail the streams of the rank's device and tell the rendezvous.
#ifndef STARRING_DECENTRAL_NCCL_COLLECTIVE_NCCL_H
#define STARRING_DECENTRAL_NCCL_COLLECTIVE_NCCL_H

#include "decentral/collective/collective.h"

// How the ranks tell each other what NCCL needs to begin with. All ranks call share in the same order.
struct nccl_rendezvous {
    void *ctx;
    // After it, bytes hold what root's held. 0, or -1 after saying why. Blocks, with a deadline of its own.
    int (*share)(void *ctx, int root, void *bytes, size_t size);
    // Both may be NULL: then a rank that fails is noticed by the others at their deadline.
    void (*abort)(void *ctx, const char *why);
    bool (*aborted)(void *ctx, char *why, size_t why_bytes);  // polled while operations are in flight
};

// A rendezvous over collectives that are there already (threads' or MPI's), on a CPU stream of its own. abort
// reaches the others as far as that implementation's does.
struct nccl_meeting;
int nccl_meeting_open(struct nccl_meeting **out, const struct collective_source *under, double deadline_s);
void nccl_meeting_close(struct nccl_meeting **m);  // after the world that uses it
struct nccl_rendezvous nccl_meeting_rendezvous(struct nccl_meeting *m);

// Whether NCCL can be used at all: libnccl.so.2 loads (and stays). Else *why is a sentence,
// valid until the next call.
bool nccl_available(const char **why);

struct nccl_world_options {
    struct device *device;  // a CUDA device, of this rank alone
    int rank, size;
    struct nccl_rendezvous rendezvous;
    double deadline_s;  // of opening and creating; 0: none
};

struct nccl_world;
// -1 after logging: no CUDA device, no libnccl.so.2, a rank missing, or two ranks on one GPU where this NCCL
// does not allow it (before 2.30, or without NCCL_MULTI_RANK_GPU_ENABLE=1).
int nccl_world_open(struct nccl_world **out, const struct nccl_world_options *o);
void nccl_world_close(struct nccl_world **w);

// Device memory for staging ordered reductions of up to max_count elements a rank, in bytes.
size_t collective_nccl_staging_bytes(int size, size_t max_count, enum dtype dt);
// Every rank creates its channels in the same order. NULL after logging.
struct collective *collective_nccl_create(struct nccl_world *w, int channel,
                                          const struct collective_options *o);
// w may be NULL where only predictions are wanted.
struct collective_source collective_source_nccl(struct nccl_world *w, int rank, int size);

#endif
