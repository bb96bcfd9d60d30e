// NCCL as one rank has it, for all its communicators: the library, which is loaded when it is asked for (the
// program links neither NCCL nor CUDA), the rank's device, and the order of operations on it.
//
// Ownership   A world belongs to its rank and outlives its collectives; the device outlives the world.
// Blocking    nccl_world_open waits for all ranks, up to the deadline.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_WORLD_H
#define STARRING_DECENTRAL_NCCL_NCCL_WORLD_H

#include "decentral/collective/ring_meeting.h"

// Whether NCCL can be used at all: libnccl.so.2 loads (and stays). Else *why is a sentence,
// valid until the next call.
bool nccl_available(const char **why);

struct nccl_world_options {
    struct device *device;  // a CUDA device, of this rank alone
    int rank, size;
    struct ring_meeting *meeting;
    double deadline_s;  // of opening and creating; 0: none
};

struct nccl_world;
// -1 after logging: no CUDA device, no libnccl.so.2, a rank missing, or two ranks on one GPU where this NCCL
// does not allow it (before 2.30, or without NCCL_MULTI_RANK_GPU_ENABLE=1).
int nccl_world_open(struct nccl_world **out, const struct nccl_world_options *o);
void nccl_world_close(struct nccl_world **w);

// ---- inside of decentral/nccl

#define NCCL_ENTRIES 64  // operations of a communicator in flight

struct cuda_so;
struct nccl_api;

struct nccl_world {
    struct nccl_world_options o;
    const struct cuda_so *so;
    struct nccl_api *api;
    struct stream *setup;  // NCCL wants a thread that has chosen the device
    void *one;             // device memory of the barriers: one byte
    // The order of all channels' operations; of the rank's thread.
    struct event *order;  // recorded behind each step
    bool serial;          // the device, too, runs one step after the other
    // Ordered sums run on a stream of their own, beside the next chunk's exchange. Of each buffer of a channel:
    // exchanged into, summed out of.
    struct stream *sums;
    struct nccl_buffers {
        struct event *there[2], *summed[2];
    } buffers[COLLECTIVE_CHANNELS];
    struct nccl_event_pair {
        struct event *start, *done;
    } events[COLLECTIVE_CHANNELS][NCCL_ENTRIES];  // of the entries; made before the first communicator
};

// Whether every rank has a GPU of its own, or this NCCL lets them share. 0, or -1 after logging.
int nccl_check_devices(const struct nccl_world *w, int nccl_version);

#endif
