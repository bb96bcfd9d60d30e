// Inside of collective_nccl: its objects. NCCL's own types stay in collective_nccl.c.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_IMPL_H
#define STARRING_DECENTRAL_NCCL_NCCL_IMPL_H

#include "decentral/collective/collective_impl.h"
#include "decentral/nccl/collective_nccl.h"
#include "kernels/cuda/cuda_so.h"

#define NCCL_ENTRIES 64  // operations of a communicator in flight

struct nccl_api;
struct collective_nccl;

struct nccl_world {
    struct nccl_world_options o;
    const struct cuda_so *so;
    struct nccl_api *api;  // collective_nccl.c
    struct stream *setup;  // NCCL wants a thread that has chosen the device
    void *one;             // device memory of the barriers: one byte
    // The order of all channels' operations; of the rank's thread.
    struct event *order;  // recorded behind each step
    bool serial;          // the device, too, runs one step after the other
    struct nccl_event_pair {
        struct event *start, *done;
    } events[COLLECTIVE_CHANNELS][NCCL_ENTRIES];  // of the entries; made before the first communicator
};

struct nccl_entry;

struct nccl_step {
    struct nccl_entry *entry;
    size_t index;  // of the plan's steps
};

struct nccl_entry {
    struct collective_nccl *owner;
    struct collective_call call;
    struct collective_plan plan;  // of call
    bool library;                 // NCCL has a call for it: one step
    struct event *start, *done;
    struct nccl_step *steps;  // (step_room)
    const void **inputs;      // (input_room): chunk after chunk
    size_t step_room, input_room;
    double waiting_since_s;  // 0: its start has not been seen to pass
};

struct collective_nccl {
    struct collective_impl impl;
    struct nccl_world *world;
    int channel;
    char *staging;
    size_t staging_bytes;
    pthread_mutex_t comm_lock;  // one thread at a time in NCCL
    void *comm;                 // ncclComm_t; NULL: not created, or ended
    struct nccl_entry ring[NCCL_ENTRIES];
    pthread_mutex_t lock;  // guards begun, ended, closing
    pthread_cond_t work;
    uint64_t begun, ended;
    bool closing, watching;
    pthread_t watcher;
};

// Whether NCCL has a call for the primitive; what it lacks is made of its sends and receives.
bool nccl_has(enum collective_primitive p);
// collective_nccl.c: ends the communicator and everything that waits for it. s: a stream to fail, or NULL.
// -1.
int nccl_give_up(struct collective_nccl *c, struct stream *s, const char *what, const char *why);
int nccl_run_step(void *step, void *cuda_stream);
void nccl_abort(struct collective *c, const char *why);
void nccl_destroy(struct collective *c);
// nccl_enqueue.c
extern const struct collective_ops nccl_ops;
// nccl_devices.c: whether every rank has a GPU of its own, or this NCCL lets them share. 0, or -1 after logging.
int nccl_check_devices(const struct nccl_world *w, int nccl_version);

#endif
