// Inside of the emulated NCCL; nccl.c says what it is.
#ifndef STARRING_TESTS_EMULATION_NCCL_IMPL_H
#define STARRING_TESTS_EMULATION_NCCL_IMPL_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>

#include "decentral/nccl/nccl_abi.h"
#include "tests/emulation/driver/driver.h"

#define RANKS_MAX 8

enum kind { SEND_RECV, BROADCAST, REDUCE, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };

struct call {
    enum kind kind;
    ncclDataType_t type;
    const void *send;  // NULL: receives only
    void *recv;        // NULL: sends only
    size_t count;
    int peer;  // of send and receive; the root of broadcast and reduce
    ncclRedOp_t op;
};

// How many of a batch's mails have not been taken. Shared by the batch and its mails.
struct token {
    int refs, unread;
};

struct mail {
    struct mail *next;
    struct token *token;
    enum kind kind;
    ncclDataType_t type;
    size_t bytes;
    char data[];
};

// State shared by the ranks of a communicator. All that there are stay in a list, so that an id is good for as
// long as the process lives.
struct meeting {
    struct meeting *next;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, joined;
    bool sealed;  // all have joined, none has left
    int devices[RANKS_MAX];
    struct mail *mail[RANKS_MAX][RANKS_MAX];  // [from][to], oldest first
    struct start *starts;                     // of each batch of the communicator: its first
    size_t start_count;
};

// How many batches of other communicators the first rank that started a batch had started before.
struct start {
    int rank;  // -1: none
    uint64_t others;
};

struct batch;

struct ncclComm {
    struct meeting *at;
    int rank, size, device, refs;  // refs: the caller's and the batches'; at->lock
    bool blocking, finalizing, aborted;
    struct batch *pending;  // called, not yet on its stream
    int questions;          // until it is
    uint64_t called, ended;
    int running;
    ncclResult_t error;
    char text[256];
};

struct batch {
    struct ncclComm *comm;
    cudaStream_t stream;
    uint64_t number;
    uint64_t turn;  // among all batches of the rank
    bool started;
    struct token *token;
    int count;
    struct call calls[];
};

// nccl_comm.c
int nccl_version(void);
// With the lock held: keeps a text, the first one, and says it; returns e.
ncclResult_t comm_refuse(struct ncclComm *c, ncclResult_t e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *must(void *p);

// nccl_order.c: a rank's batches of all its communicators. With the meeting's lock held.
void order_join(struct ncclComm *c);   // a communicator begins
void order_leave(struct ncclComm *c);  // and ends
// NCCL is called and has not yet answered with success: what others call meanwhile is refused.
ncclResult_t order_call(struct ncclComm *c);
void order_give(struct batch *b);  // to its stream
// Waits for its turn, where NCCL keeps the order; -1: started in another order than on another rank. The lock
// is let go while waiting.
int order_start(struct batch *b);
void order_end(struct batch *b);

// nccl_batch.c
size_t call_bytes(const struct call *k);
// Carries out a batch on its stream's thread; and frees it, with what it holds of its communicator.
int batch_run(void *batch, const char **why);
void batch_drop(void *batch);
// With the lock held, which is let go of.
void comm_release(struct ncclComm *c);

#endif
