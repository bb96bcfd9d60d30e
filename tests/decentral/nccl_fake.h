// An NCCL for tests: ranks are threads, a communicator's messages go through mailboxes in host memory. As the
// real one with blocking = 0, calls return ncclInProgress until the peers have come, and asking makes
// progress. Creating a communicator, too, is through when all its ranks have begun it.
#ifndef STARRING_TESTS_DECENTRAL_NCCL_FAKE_H
#define STARRING_TESTS_DECENTRAL_NCCL_FAKE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/nccl/nccl_abi.h"
#include "tests/cuda/cuda_fake.h"

#define FAKE_RANKS 5
#define FAKE_OPS   64

struct fake_mail {
    struct fake_mail *next;
    size_t bytes;
    char data[];
};

// State shared by the ranks of one communicator; its address travels in the unique id. It lives until every rank
// has come and gone: one that aborts early must not take it from one that is still on its way.
struct fake_group {
    pthread_mutex_t lock;
    struct fake_mail *mail[FAKE_RANKS][FAKE_RANKS];  // [from][to], oldest first
    int joined, left;
};

enum fake_kind { FAKE_SEND, FAKE_RECV, FAKE_BROADCAST, FAKE_GATHER, FAKE_SUM, FAKE_SCATTER };
struct fake_op {
    enum fake_kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    int peer;  // or root; -1: all
    ncclRedOp_t op;
};

struct ncclComm {
    struct fake_group *group;
    int rank, size;
    struct fake_op pending[FAKE_OPS];
    int pending_count;
    bool holds;  // the device, until it is aborted
};

static _Thread_local struct {
    bool open;
    struct ncclComm *comm;
} fake_grouped;

static enum dtype fake_dtype(ncclDataType_t t) {
    return t == ncclFloat32    ? DT_F32
           : t == ncclBfloat16 ? DT_BF16
           : t == ncclFloat16  ? DT_F16
           : t == ncclFloat64  ? DT_F64
           : t == ncclInt64    ? DT_I64
                               : DT_U8;
}
// When set, a broadcast is taken and then stays on the device until its communicator is aborted.
static atomic_bool fake_broadcast_hangs;

static const enum reduction fake_reduction[] = {[ncclSum] = REDUCTION_SUM,
                                                [ncclProd] = REDUCTION_PROD,
                                                [ncclMax] = REDUCTION_MAX,
                                                [ncclMin] = REDUCTION_MIN};

static size_t fake_bytes(const struct fake_op *o) { return o->count * dtype_size(fake_dtype(o->type)); }

static void fake_post(struct ncclComm *c, int to, const void *data, size_t bytes) {
    struct fake_mail *m = malloc(sizeof *m + bytes), **at = &c->group->mail[c->rank][to];
    m->next = NULL;
    m->bytes = bytes;
    memcpy(m->data, data, bytes);
    while (*at) at = &(*at)->next;
    *at = m;
}

static void fake_drop(struct ncclComm *c, int from) {
    struct fake_mail *m = c->group->mail[from][c->rank];
    c->group->mail[from][c->rank] = m->next;
    free(m);
}

// With the group's lock held: everyone's buffer, in rank order, to what the operation makes of it.
static void fake_combine(struct ncclComm *c, const struct fake_op *o, const char *own) {
    const void *all[FAKE_RANKS];
    const char *why;
    size_t bytes = fake_bytes(o);
    for (int i = 0; i < c->size; i++) all[i] = i == c->rank ? own : c->group->mail[i][c->rank]->data;
    if (o->kind == FAKE_GATHER) {
        for (int i = 0; i < c->size; i++) memmove((char *)o->recv + (size_t)i * bytes, all[i], bytes);
    } else if (o->peer < 0 || o->peer == c->rank) {
        size_t skip = o->kind == FAKE_SCATTER ? (size_t)c->rank * bytes : 0;
        for (int i = 0; i < c->size; i++) all[i] = (const char *)all[i] + skip;
        struct reduce_args a = {
            o->recv, all, c->size, (int64_t)o->count, fake_dtype(o->type), fake_reduction[o->op]};
        if (o->type != ncclUint8 && o->count) cpu_ops[OP_REDUCE](1, &a, &why);
    }
    for (int i = 0; i < c->size; i++)
        if (i != c->rank) fake_drop(c, i);
}

// Whether the operation is through; with the group's lock held.
static bool fake_try(struct ncclComm *c, const struct fake_op *o) {
    struct fake_mail *(*mail)[FAKE_RANKS] = c->group->mail;
    if (o->kind == FAKE_SEND) return true;
    if (o->kind == FAKE_RECV || (o->kind == FAKE_BROADCAST && o->peer != c->rank)) {
        struct fake_mail *m = mail[o->peer][c->rank];
        if (!m) return false;
        if (m->bytes != fake_bytes(o)) abort();
        memcpy(o->recv, m->data, m->bytes);
        fake_drop(c, o->peer);
        return true;
    }
    if (o->kind == FAKE_BROADCAST) return true;
    for (int i = 0; i < c->size; i++)
        if (i != c->rank && !mail[i][c->rank]) return false;
    fake_combine(c, o, o->send);
    return true;
}

static ncclResult_t fake_progress(struct ncclComm *c) {
    pthread_mutex_lock(&c->group->lock);
    int kept = 0;
    for (int i = 0; i < c->pending_count; i++)
        if (kept || !fake_try(c, &c->pending[i])) c->pending[kept++] = c->pending[i];
    c->pending_count = kept;
    bool complete = c->group->joined == c->size;
    pthread_mutex_unlock(&c->group->lock);
    return kept || !complete ? ncclInProgress : ncclSuccess;
}

static ncclResult_t fake_begin(struct ncclComm *c, const struct fake_op *o) {
    size_t bytes = fake_bytes(o) * (o->kind == FAKE_SCATTER ? (size_t)c->size : 1);
    pthread_mutex_lock(&c->group->lock);
    for (int i = 0; i < c->size; i++)
        if (i != c->rank && o->kind != FAKE_RECV && (o->kind != FAKE_SEND || i == o->peer) &&
            (o->kind != FAKE_BROADCAST || o->peer == c->rank))
            fake_post(c, i, o->send, bytes);
    pthread_mutex_unlock(&c->group->lock);
    c->pending[c->pending_count++] = *o;
    fake_grouped.comm = c;
    return fake_grouped.open ? ncclSuccess : fake_progress(c);
}

// ---------------------------------------------------------------- the functions
static ncclResult_t fake_GetVersion(int *v) {
    *v = NCCL_VERSION_CODE;
    return ncclSuccess;
}
static ncclResult_t fake_GetUniqueId(ncclUniqueId *id) {
    struct fake_group *g = calloc(1, sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    memset(id, 0, sizeof *id);
    memcpy(id, &g, sizeof g);
    return ncclSuccess;
}
static ncclResult_t fake_CommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
                                            ncclConfig_t *o) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (o->blocking != 0) abort();
    memcpy(&c->group, &id, sizeof c->group);
    c->rank = rank;
    c->size = size;
    pthread_mutex_lock(&c->group->lock);
    c->group->joined++;
    pthread_mutex_unlock(&c->group->lock);
    *out = c;
    return ncclInProgress;
}
static ncclResult_t fake_CommDestroy(ncclComm_t c) {
    pthread_mutex_lock(&c->group->lock);
    bool last = ++c->group->left == c->size;
    pthread_mutex_unlock(&c->group->lock);
    if (last) {
        for (int i = 0; i < FAKE_RANKS; i++)
            for (int k = 0; k < FAKE_RANKS; k++)
                while (c->group->mail[i][k]) {
                    struct fake_mail *m = c->group->mail[i][k];
                    c->group->mail[i][k] = m->next;
                    free(m);
                }
        free(c->group);
    }
    free(c);
    return ncclSuccess;
}
static ncclResult_t fake_CommFinalize(ncclComm_t c) { return fake_progress(c); }
static ncclResult_t fake_CommAbort(ncclComm_t c) {
    if (c->holds) fake_hold(false);
    return fake_CommDestroy(c);
}
static ncclResult_t fake_CommGetAsyncError(ncclComm_t c, ncclResult_t *r) {
    *r = fake_progress(c);
    return ncclSuccess;
}
static const char *fake_GetErrorString(ncclResult_t r) { return r == ncclSuccess ? "no error" : "an error"; }
static const char *fake_GetLastError(ncclComm_t c) { return c ? "" : "no communicator"; }
static ncclResult_t fake_GroupStart(void) {
    fake_grouped.open = true;
    fake_grouped.comm = NULL;
    return ncclSuccess;
}
static ncclResult_t fake_GroupEnd(void) {
    fake_grouped.open = false;
    return fake_grouped.comm ? fake_progress(fake_grouped.comm) : ncclSuccess;
}
static ncclResult_t fake_Send(const void *b, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
                              cudaStream_t s) {
    (void)s;
    return fake_begin(c, &(struct fake_op){FAKE_SEND, b, NULL, n, t, peer, ncclSum});
}
static ncclResult_t fake_Recv(void *b, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s) {
    (void)s;
    return fake_begin(c, &(struct fake_op){FAKE_RECV, NULL, b, n, t, peer, ncclSum});
}
static ncclResult_t fake_Broadcast(const void *a, void *b, size_t n, ncclDataType_t t, int root, ncclComm_t c,
                                   cudaStream_t s) {
    (void)s;
    if (atomic_load(&fake_broadcast_hangs)) {
        c->holds = true;
        fake_hold(true);
        return ncclSuccess;
    }
    return fake_begin(c, &(struct fake_op){FAKE_BROADCAST, a, b, n, t, root, ncclSum});
}
static ncclResult_t fake_Reduce(const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t op, int root,
                                ncclComm_t c, cudaStream_t s) {
    (void)s;
    return fake_begin(c, &(struct fake_op){FAKE_SUM, a, b, n, t, root, op});
}
static ncclResult_t fake_AllReduce(const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t op,
                                   ncclComm_t c, cudaStream_t s) {
    return fake_Reduce(a, b, n, t, op, -1, c, s);
}
static ncclResult_t fake_ReduceScatter(const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t op,
                                       ncclComm_t c, cudaStream_t s) {
    (void)s;
    return fake_begin(c, &(struct fake_op){FAKE_SCATTER, a, b, n, t, -1, op});
}
static ncclResult_t fake_AllGather(const void *a, void *b, size_t n, ncclDataType_t t, ncclComm_t c,
                                   cudaStream_t s) {
    (void)s;
    return fake_begin(c, &(struct fake_op){FAKE_GATHER, a, b, n, t, -1, ncclSum});
}

#endif
