// NCCL for ranks that are threads of one process, on the emulated device: what decentral/nccl/collective_nccl.c
// uses. Ranks exchange mails; an operation runs on its stream's thread, when the stream comes to it, and
// holds the stream until its peers have come.
//
//     call -> batch: one call, or all of a group  -> [the stream: post what goes out, wait for what comes in,
//                                                     wait until all that went out has been taken]
//
// As the real one
//     With config.blocking = 0 a call answers ncclInProgress, and so do the next questions; a call in the
//     meantime is refused. The calls reach the stream when the question is answered with success.
//     A communicator is there when all its ranks have come. Batches of one communicator run in the order of
//     their calls, whatever their streams. An abort lets its own rank's streams go on; other ranks wait until
//     they abort as well. Two ranks on one device are refused, but from 2.30 on with
//     NCCL_MULTI_RANK_GPU_ENABLE=1. Sums are rounded to the storage type at every step. Batches of several
//     communicators of a rank start in any order, from 2.26 on with NCCL_LAUNCH_ORDER_IMPLICIT=1 in that of
//     their calls.
//
// Unlike the real one
//     Where batches start in another order on another rank, the real one may hang: here it is an error of the
//     second rank, as are two threads of a rank that call NCCL at once. Ranks that call different things get
//     an error: NCCL reports it at the next question, and the stream stays where it is until the abort.
//
// Environment   EMULATED_NCCL_VERSION: what it says it is, such as 23000; that of the header.
#include "tests/emulation/nccl/nccl_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MULTI_RANK_GPU 23000

static struct {
    pthread_mutex_t lock;
    struct meeting *all;
} meetings = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local struct {
    int depth;
    struct batch *batch;
    ncclResult_t error;
} group;

// With the lock held: to its stream.
static ncclResult_t give(struct ncclComm *c) {
    struct batch *b = c->pending;
    struct emu_work w = {.name = "NCCL", .run = batch_run, .drop = batch_drop, .arg = b, .waits = true};
    c->pending = NULL;
    c->running++;
    c->refs++;
    order_give(b);
    pthread_mutex_unlock(&c->at->lock);
    int e = emu_submit(b->stream, &w);
    pthread_mutex_lock(&c->at->lock);
    return e == 0 ? ncclSuccess
                  : (c->error = comm_refuse(c, ncclUnhandledCudaError, "NCCL: CUDA has failed"));
}

ncclResult_t ncclGetVersion(int *version) {
    *version = nccl_version();
    return ncclSuccess;
}

// With the lock held, when all have come.
static bool share_a_device(const struct meeting *at) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    bool shared = false;
    for (int i = 0; i < at->size; i++)
        for (int k = 0; k < i; k++) shared = shared || at->devices[i] == at->devices[k];
    return shared && !(nccl_version() >= MULTI_RANK_GPU && asked && strcmp(asked, "1") == 0);
}

// With the lock held. The answer to a question about the communicator.
static ncclResult_t progress(struct ncclComm *c) {
    if (c->error == ncclSuccess && c->at->joined == c->size && c->called == 0 && share_a_device(c->at))
        c->error = comm_refuse(c, ncclInvalidUsage, "NCCL: Duplicate GPU detected");
    if (c->error != ncclSuccess) return c->error;
    if (c->at->joined < c->size || (c->finalizing && c->running)) return ncclInProgress;
    if (!c->pending) return ncclSuccess;
    if (--c->questions > 0) return ncclInProgress;
    return give(c);
}

static ncclResult_t begin(struct batch *b) {
    struct ncclComm *c = b->comm;
    pthread_mutex_lock(&c->at->lock);
    ncclResult_t e = c->error;
    if (e == ncclSuccess && (c->pending || c->at->joined < c->size))
        e = comm_refuse(c, ncclInvalidUsage, "rank %d calls NCCL while it is still in progress", c->rank);
    if (e == ncclSuccess) e = order_call(c);
    if (e == ncclSuccess) {
        b->number = c->called++;
        c->pending = b;
        c->questions = c->blocking ? 1 : 1 + (int)(b->number % 3);
        e = c->blocking ? progress(c) : ncclInProgress;
    } else {
        free(b->token);
        free(b);
    }
    pthread_mutex_unlock(&c->at->lock);
    return e;
}

static ncclResult_t call(struct ncclComm *c, cudaStream_t s, const struct call *k) {
    size_t in = call_bytes(k), out = in;
    if (k->kind == REDUCE_SCATTER) in *= (size_t)c->size;
    if (k->kind == ALL_GATHER) out *= (size_t)c->size;
    bool reads = k->kind != BROADCAST || c->rank == k->peer, writes = k->kind != REDUCE || c->rank == k->peer;
    if (emu_device_of(s) != c->device || k->peer < -1 || k->peer >= c->size ||
        (k->send && in && reads && !emu_reaches(s, k->send, in, "NCCL: the send buffer")) ||
        (k->recv && out && writes && !emu_reaches(s, k->recv, out, "NCCL: the receive buffer"))) {
        group.error = ncclInvalidArgument;
        return ncclInvalidArgument;
    }
    struct batch *b = group.batch;
    if (b && (b->comm != c || b->stream != s)) {
        emu_note("NCCL: a group of several communicators or streams is not emulated");
        return group.error = ncclInvalidUsage;
    }
    int count = b ? b->count : 0;
    bool first = !b;
    b = must(realloc(b, sizeof *b + (size_t)(count + 1) * sizeof b->calls[0]));
    if (first) {
        *b = (struct batch){.comm = c, .stream = s, .token = must(calloc(1, sizeof *b->token))};
        b->token->refs = 1;
    }
    b->calls[b->count++] = *k;
    group.batch = b;
    if (group.depth) return ncclSuccess;
    group.batch = NULL;
    return begin(b);
}

// ---------------------------------------------------------------- communicators

struct id {
    char name[16];
    pid_t pid;
    struct meeting *at;
};
_Static_assert(sizeof(struct id) <= sizeof(ncclUniqueId), "NCCL's room");
#define ID_NAME "emulated NCCL"

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
    struct meeting *at = must(calloc(1, sizeof *at));
    struct id id = {.name = ID_NAME, .pid = getpid(), .at = at};
    pthread_mutex_init(&at->lock, NULL);
    pthread_cond_init(&at->changed, NULL);
    pthread_mutex_lock(&meetings.lock);
    at->next = meetings.all;
    meetings.all = at;
    pthread_mutex_unlock(&meetings.lock);
    memset(out, 0, sizeof *out);
    memcpy(out, &id, sizeof id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId unique, int rank,
                                    ncclConfig_t *config) {
    struct id id;
    memcpy(&id, &unique, sizeof id);
    *out = NULL;
    if (memcmp(id.name, ID_NAME, sizeof ID_NAME) != 0 || id.pid != getpid()) {
        emu_note("NCCL: ranks in several processes are not emulated");
        return ncclInvalidUsage;
    }
    if (size > RANKS_MAX || rank < 0 || rank >= size) return ncclInvalidArgument;
    struct ncclComm *c = must(calloc(1, sizeof *c));
    *c = (struct ncclComm){
        .at = id.at, .rank = rank, .size = size, .refs = 1, .blocking = !config || config->blocking != 0};
    cudaGetDevice(&c->device);
    pthread_mutex_lock(&c->at->lock);
    c->at->size = size;
    c->at->devices[rank] = c->device;
    c->at->joined++;
    order_join(c);
    pthread_cond_broadcast(&c->at->changed);
    while (c->blocking && c->at->joined < size) pthread_cond_wait(&c->at->changed, &c->at->lock);
    ncclResult_t e = c->blocking ? progress(c) : ncclInProgress;
    pthread_mutex_unlock(&c->at->lock);
    *out = c;
    return e;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e) {
    pthread_mutex_lock(&c->at->lock);
    *e = progress(c);
    pthread_mutex_unlock(&c->at->lock);
    return ncclSuccess;
}

// In progress until what was called has ended on its streams.
ncclResult_t ncclCommFinalize(ncclComm_t c) {
    pthread_mutex_lock(&c->at->lock);
    ncclResult_t e = c->error;
    if (e == ncclSuccess && c->pending)
        e = comm_refuse(c, ncclInvalidUsage, "rank %d ends while in progress", c->rank);
    c->finalizing = e == ncclSuccess;
    while (c->finalizing && c->blocking && c->running) pthread_cond_wait(&c->at->changed, &c->at->lock);
    pthread_mutex_unlock(&c->at->lock);
    return e == ncclSuccess && !c->blocking ? ncclInProgress : e;
}

static void drop_pending(struct ncclComm *c) {
    if (!c->pending) return;
    free(c->pending->token);
    free(c->pending);
    c->pending = NULL;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) {
    pthread_mutex_lock(&c->at->lock);
    while (c->running) pthread_cond_wait(&c->at->changed, &c->at->lock);
    order_leave(c);
    drop_pending(c);
    comm_release(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c) {
    pthread_mutex_lock(&c->at->lock);
    c->aborted = true;
    order_leave(c);
    drop_pending(c);
    comm_release(c);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t e) {
    return e == ncclSuccess              ? "no error"
           : e == ncclInvalidUsage       ? "invalid usage"
           : e == ncclInvalidArgument    ? "invalid argument"
           : e == ncclUnhandledCudaError ? "unhandled cuda error"
           : e == ncclInProgress         ? "NCCL operation in progress"
                                         : "internal error";
}

const char *ncclGetLastError(ncclComm_t c) { return c ? c->text : ""; }

// ---------------------------------------------------------------- operations

// NCCL's header declares these two without a prototype.
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void) {
    if (group.depth++ == 0) group.error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    struct batch *b = group.batch;
    if (--group.depth > 0) return ncclSuccess;
    group.batch = NULL;
    if (group.error == ncclSuccess) return b ? begin(b) : ncclSuccess;
    if (b) free(b->token);
    free(b);
    return group.error;
}

ncclResult_t ncclSend(const void *buf, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return call(c, s, &(struct call){SEND_RECV, t, buf, NULL, n, peer, ncclSum});
}

ncclResult_t ncclRecv(void *buf, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    return call(c, s, &(struct call){SEND_RECV, t, NULL, buf, n, peer, ncclSum});
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                           cudaStream_t s) {
    return call(c, s, &(struct call){BROADCAST, t, send, recv, n, root, ncclSum});
}

ncclResult_t ncclReduce(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op, int root,
                        ncclComm_t c, cudaStream_t s) {
    if (op > ncclMin) return ncclInvalidArgument;
    return call(c, s, &(struct call){REDUCE, t, send, recv, n, root, op});
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s) {
    if (op > ncclMin) return ncclInvalidArgument;
    return call(c, s, &(struct call){ALL_REDUCE, t, send, recv, n, -1, op});
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t n, ncclDataType_t t, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t s) {
    if (op > ncclMin) return ncclInvalidArgument;
    return call(c, s, &(struct call){REDUCE_SCATTER, t, send, recv, n, -1, op});
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s) {
    return call(c, s, &(struct call){ALL_GATHER, t, send, recv, n, -1, ncclSum});
}
