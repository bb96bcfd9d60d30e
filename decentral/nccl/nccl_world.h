// One rank's NCCL, for all its communicators: the library, which is loaded on first use (the program links neither NCCL
// nor CUDA), the rank's device, and the order of operations on it.
//
// Ownership   A world belongs to its rank and outlives its collectives; the device outlives the world.
// Blocking    nccl_world_open waits for all ranks, up to the deadline.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_WORLD_H
#define STARRING_DECENTRAL_NCCL_NCCL_WORLD_H

#include "decentral/collective/ring_meeting.h"

// Returns whether libnccl.so.2 can be loaded (it stays loaded). If not, *why receives a sentence that is valid until
// the thread's next call.
bool nccl_available(const char **why);

struct nccl_world_options {
    struct device *device;  // a CUDA device that only this rank uses
    int rank, size;
    struct ring_meeting *meeting;
    double deadline_s;  // of opening and creating; 0: none
};

struct nccl_world;
// Returns 0, or -1 after logging: no CUDA device, no libnccl.so.2, a missing rank, or two ranks on one GPU, which NCCL
// does not allow before 2.30 or without NCCL_MULTI_RANK_GPU_ENABLE=1.
int nccl_world_open(struct nccl_world **out, const struct nccl_world_options *o);
void nccl_world_close(struct nccl_world **w);

// ---- internal to decentral/nccl

#define NCCL_ENTRIES 64  // operations of a communicator in flight

struct cuda_so;
struct nccl_api;

struct nccl_world {
    struct nccl_world_options o;
    const struct cuda_so *so;
    struct nccl_api *api;
    struct stream *setup;  // its thread has chosen the device, as NCCL requires
    void *one;             // device memory for barriers: one byte
    // The order of all channels' operations. Only the rank's thread uses it.
    struct event *order;  // recorded after each step
    bool serial;          // the device runs one step after the other, too
    // Ordered sums run on a stream of their own, in parallel with the next chunk's exchange. Events per buffer of a
    // channel: the exchange has filled it, the sum has read it.
    struct stream *sums;
    struct nccl_buffers {
        struct event *there[2], *summed[2];
    } buffers[COLLECTIVE_CHANNELS];
    struct nccl_event_pair {
        struct event *start, *done;
    } events[COLLECTIVE_CHANNELS][NCCL_ENTRIES];  // of the entries; created before any communicator
};

// Checks that each rank has a GPU of its own, or that this NCCL allows sharing. Returns 0, or -1 after logging.
int nccl_check_devices(const struct nccl_world *w, int nccl_version);

#endif
