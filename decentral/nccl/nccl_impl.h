// Internal to decentral/nccl: one communicator and its operations in flight. Only files that include nccl_api.h see
// NCCL's own types.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_IMPL_H
#define STARRING_DECENTRAL_NCCL_NCCL_IMPL_H

#include "decentral/collective/collective_impl.h"
#include "decentral/nccl/nccl_world.h"
#include "kernels/cuda_so.h"

struct nccl_step {
    struct nccl_entry *entry;
    size_t index;  // of the plan's steps
};

struct nccl_entry {
    struct collective_nccl *owner;
    struct collective_call call;
    struct collective_plan plan;  // of call
    bool library;                 // one call of NCCL does it: one step
    struct event *start, *done;
    struct nccl_step *steps;  // (step_room)
    const void **inputs;      // (input_room): of chunk 0, of chunk 1, ..
    size_t step_room, input_room;
    double waiting_since_s;  // when the watcher saw that `start` had passed; 0: not yet
};

struct collective_nccl {
    struct collective_impl impl;
    struct nccl_world *world;
    int channel;
    char *staging;
    size_t staging_bytes;
    pthread_mutex_t comm_lock;  // only one thread at a time calls NCCL
    void *comm;                 // ncclComm_t; NULL: not created, or ended
    struct nccl_entry ring[NCCL_ENTRIES];
    pthread_mutex_t lock;  // guards begun, ended, closing
    pthread_cond_t work;
    uint64_t begun, ended;
    bool closing, watching;
    pthread_t watcher;
};

// ---- nccl_calls.c
// Returns whether NCCL has a function for the call. The other calls are made of sends and receives.
bool nccl_has(const struct collective_call *c);
// Runs one struct nccl_step; submitted to the stream's thread.
int nccl_run_step(void *step, void *cuda_stream);
// After a call of NCCL that returned r (a ncclResult_t): polls until NCCL has accepted the call. The caller holds
// comm_lock. It is released between polls, so that another thread can abort. Returns 0, or -1 after nccl_give_up; the
// lock is held again.
int nccl_settle(struct collective_nccl *c, struct stream *s, double deadline_s, const char *what, int r);
// Aborts the communicator and fails all that waits for it. s: a stream to fail, or NULL. Returns -1.
int nccl_give_up(struct collective_nccl *c, struct stream *s, const char *what, const char *why);

// ---- nccl_enqueue.c
void nccl_enqueue(struct collective *c, const struct collective_call *call);

#endif
