// Inside of collective_nccl: its objects, and what moves where as pure functions of a call (tested without a
// GPU). NCCL's own types stay in collective_nccl.c.
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

enum step_kind { STEP_PLAIN, STEP_PIECES, STEP_BACK };

struct nccl_entry;

struct nccl_step {
    struct nccl_entry *entry;
    enum step_kind kind;
    size_t done;  // STEP_PIECES: elements of each piece that earlier chunks took
};

struct nccl_entry {
    struct collective_nccl *owner;
    struct collective_call call;
    struct stream *stream;
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

// Elements [begin, end) of everyone's send buffer that rank i adds up.
struct nccl_piece {
    size_t begin, end;
};
struct nccl_piece nccl_piece_of(const struct collective_call *c, int size, int i);
// Elements of [done, done + slot) that lie in a piece.
size_t nccl_chunk(struct nccl_piece p, size_t done, size_t slot);
// Elements of one rank's place in staging, and how many chunks a reduction takes; slot 0: staging is too
// small.
size_t nccl_slot(size_t staging_bytes, int size, enum dtype dt);
size_t nccl_chunks(const struct collective_call *c, int size, size_t slot);
// Payload of a call, in bytes; of a native reduction the formula's, because NCCL moves the bytes itself.
void nccl_volume(const struct collective_call *c, int rank, int size, size_t *sent, size_t *received);
void nccl_native_volume(const struct collective_call *c, int rank, int size, size_t *sent, size_t *received);

// collective_nccl.c: ends the communicator and everything that waits for it. s: a stream to fail, or NULL.
// -1.
int nccl_give_up(struct collective_nccl *c, struct stream *s, const char *what, const char *why);
int nccl_run_step(void *step, void *cuda_stream);
void nccl_abort(struct collective *c, const char *why);
void nccl_destroy(struct collective *c);
// nccl_enqueue.c
extern const struct collective_ops nccl_ops;
// nccl_plan.c: whether every rank has a GPU of its own, or this NCCL lets them share. 0, or -1 after logging.
int nccl_check_devices(const struct nccl_world *w, int nccl_version);

#endif
