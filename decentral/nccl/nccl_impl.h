// Internal to decentral/nccl: the functions of the loaded library, a rank's world, one communicator and its operations in
// flight.
#ifndef STARRING_DECENTRAL_NCCL_NCCL_IMPL_H
#define STARRING_DECENTRAL_NCCL_NCCL_IMPL_H

#include "decentral/collective/collective_impl.h"
#include "decentral/nccl/nccl_abi.h"
#include "decentral/nccl/nccl_engine.h"
#include "kernels/cuda_so.h"

// Pointers to the functions of the loaded NCCL, under the names of nccl_abi.h without "nccl".
struct nccl_api {
    void *library;
    int version;
#define NCCL_FUNCTIONS(f)                                                                                \
    f(GetVersion) f(GetUniqueId) f(CommInitRankConfig) f(CommFinalize) f(CommDestroy) f(CommAbort)       \
        f(CommGetAsyncError) f(GetErrorString) f(GetLastError) f(GroupStart) f(GroupEnd) f(Send) f(Recv) \
            f(Broadcast) f(Reduce) f(AllReduce) f(AllGather) f(ReduceScatter)
#define NCCL_MEMBER(name) __typeof__(&nccl##name) name;
    NCCL_FUNCTIONS(NCCL_MEMBER)
};

// ---------------------------------------------------------------- the world
#define NCCL_ENTRIES 64  // operations of a communicator in flight

struct nccl_world {
    struct nccl_world_options o;
    const struct cuda_so *so;
    struct nccl_api *api;
    struct stream *setup;  // a stream whose thread has selected the device, as NCCL requires
    void *one;             // device memory for barriers: one byte
    // The order of all channels' operations. Only the rank's thread uses it.
    struct event *order;  // recorded after each step
    bool serial;          // the device waits for each step too, not only the submitting thread
    // Ordered sums run on a stream of their own, in parallel with the next chunk's exchange. Events per buffer of a
    // channel: the exchange has filled it, the sum has read it.
    struct stream *sums;
    struct nccl_buffers {
        struct event *filled[2], *summed[2];
    } buffers[COLLECTIVE_CHANNELS];
    struct nccl_event_pair {
        struct event *start, *done;
    } events[COLLECTIVE_CHANNELS][NCCL_ENTRIES];  // events of the entries; created before any communicator
};

// Checks that each rank has a GPU of its own, or that this NCCL allows sharing. Returns 0, or -1 after logging.
int nccl_check_devices(const struct nccl_world *w, int nccl_version);

// ---------------------------------------------------------------- a communicator
struct nccl_step {
    struct nccl_entry *entry;
    size_t index;  // index of the plan's step
};

struct nccl_entry {
    struct collective_nccl *owner;
    struct collective_call call;
    struct collective_plan plan;  // the plan of `call`
    bool library;                 // a single function of NCCL makes the whole call, in one step
    struct event *start, *done;
    struct nccl_step *steps;  // (step_room)
    const void **inputs;      // (input_room) the inputs of chunk 0, of chunk 1, ..
    size_t step_room, input_room;
    double waiting_since_s;  // when the watcher saw that `start` had passed; 0: not yet
};

struct collective_nccl {
    struct collective_impl impl;
    struct nccl_world *world;
    pthread_mutex_t comm_lock;  // only one thread at a time calls NCCL
    ncclComm_t comm;            // NULL: not created, or ended
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
// After a call of NCCL that returned r: polls until NCCL has accepted the call. The caller holds
// comm_lock. It is released between polls, so that another thread can abort. Returns 0, or -1 after nccl_abort_comm; the
// lock is held again.
int nccl_await_accepted(struct collective_nccl *c, struct stream *s, double deadline_s, const char *what,
                        ncclResult_t r);
// Aborts the communicator and fails all that waits for it. s: a stream to fail, or NULL. Returns -1.
int nccl_abort_comm(struct collective_nccl *c, struct stream *s, const char *what, const char *why);

#endif
