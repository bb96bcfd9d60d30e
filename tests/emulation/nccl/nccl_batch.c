// The emulated NCCL's work on a stream: mails between the ranks of a communicator.
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "tests/emulation/nccl/nccl_impl.h"

static const char *const kind_names[] = {"send or receive", "broadcast",  "reduce",
                                         "all-reduce",      "all-gather", "reduce-scatter"};

static enum dtype dtype_of(ncclDataType_t t) {
    return t == ncclFloat32    ? DT_F32
           : t == ncclBfloat16 ? DT_BF16
           : t == ncclFloat16  ? DT_F16
           : t == ncclFloat64  ? DT_F64
           : t == ncclInt64    ? DT_I64
                               : DT_U8;
}

size_t call_bytes(const struct call *k) { return k->count * dtype_size(dtype_of(k->type)); }

static void token_drop(struct token *t) {
    if (--t->refs == 0) free(t);
}

// ---------------------------------------------------------------- what goes out

// Bytes of a call's send buffer for rank `to`, from *at on; 0: nothing.
static size_t outgoing(const struct ncclComm *c, const struct call *k, int to, size_t *at) {
    size_t bytes = call_bytes(k);
    bool goes = to != c->rank;
    *at = 0;
    if (k->kind == SEND_RECV) return k->send && to == k->peer ? bytes : 0;
    if (k->kind == BROADCAST) goes = goes && c->rank == k->peer;
    if (k->kind == REDUCE) goes = goes && to == k->peer;
    if (k->kind == REDUCE_SCATTER) *at = (size_t)to * bytes;
    return goes ? bytes : 0;
}

// With the lock held.
static void post(struct batch *b, const struct call *k) {
    struct ncclComm *c = b->comm;
    for (int to = 0; to < c->size; to++) {
        size_t at, bytes = outgoing(c, k, to, &at);
        if (!bytes) continue;
        struct mail *m = must(malloc(sizeof *m + bytes)), **last = &c->at->mail[c->rank][to];
        *m = (struct mail){.token = b->token, .kind = k->kind, .type = k->type, .bytes = bytes};
        memcpy(m->data, (const char *)k->send + at, bytes);
        b->token->refs++;
        b->token->unread++;
        while (*last) last = &(*last)->next;
        *last = m;
    }
}

// ---------------------------------------------------------------- what comes in

static bool comes_from(const struct ncclComm *c, const struct call *k, int from) {
    if (call_bytes(k) == 0) return false;
    if (k->kind == SEND_RECV) return k->recv && from == k->peer;
    if (k->kind == BROADCAST) return c->rank != k->peer && from == k->peer;
    if (k->kind == REDUCE) return c->rank == k->peer && from != c->rank;
    return from != c->rank;
}

// With the lock held, let go while waiting. NULL: aborted, or after an error.
static struct mail *await_mail(struct batch *b, const struct call *k, int from) {
    struct ncclComm *c = b->comm;
    struct mail **first = &c->at->mail[from][c->rank];
    while (!*first && !c->aborted) pthread_cond_wait(&c->at->changed, &c->at->lock);
    struct mail *m = *first;
    if (c->aborted) return NULL;
    if (m->kind != k->kind || m->type != k->type || m->bytes != call_bytes(k)) {
        c->error = comm_refuse(
            c, ncclInvalidUsage, "rank %d calls %s of %zu bytes, rank %d %s of %zu bytes or another type",
            c->rank, kind_names[k->kind], call_bytes(k), from, kind_names[m->kind], m->bytes);
        return NULL;
    }
    *first = m->next;
    m->token->unread--;
    token_drop(m->token);
    pthread_cond_broadcast(&c->at->changed);
    return m;
}

#define JOINED(op, a, b)                          \
    ((op) == ncclSum    ? (a) + (b)               \
     : (op) == ncclProd ? (a) * (b)               \
     : (op) == ncclMax  ? ((a) > (b) ? (a) : (b)) \
                        : ((a) < (b) ? (a) : (b)))

static void join(ncclRedOp_t op, void *out, const void *x, size_t count, enum dtype dt) {
    for (size_t i = 0; i < count; i++) {
        if (dt == DT_F64) {
            double *d = out;
            d[i] = JOINED(op, d[i], ((const double *)x)[i]);
        } else if (dt == DT_I64) {
            int64_t a = ((int64_t *)out)[i], b = ((const int64_t *)x)[i];
            bool wraps = op == ncclSum || op == ncclProd;
            ((int64_t *)out)[i] = wraps ? (int64_t)JOINED(op, (uint64_t)a, (uint64_t)b) : JOINED(op, a, b);
        } else if (dt == DT_U8) {
            uint8_t *b = out;
            b[i] = (uint8_t)JOINED(op, b[i], ((const uint8_t *)x)[i]);
        } else {
            float a = dtype_load(dt, out, i), b = dtype_load(dt, x, i);
            dtype_store(dt, out, i, JOINED(op, a, b));
        }
    }
}

// Everyone's contribution to what this rank receives, in rank order; the own one is read before it is
// written.
static void combine(const struct ncclComm *c, const struct call *k, struct mail *const *in) {
    size_t bytes = call_bytes(k), own = k->kind == REDUCE_SCATTER ? (size_t)c->rank * bytes : 0;
    bool sums = k->kind != ALL_GATHER && k->kind != BROADCAST;
    const void *from[RANKS_MAX];
    char *kept = must(malloc(bytes + 1));
    if (k->kind != BROADCAST || c->rank == k->peer) memcpy(kept, (const char *)k->send + own, bytes);
    for (int i = 0; i < c->size; i++) from[i] = i == c->rank ? kept : in[i] ? in[i]->data : NULL;
    if (k->kind == BROADCAST) memcpy(k->recv, from[k->peer], bytes);
    for (int i = 0; i < c->size; i++) {
        if (k->kind == ALL_GATHER) memcpy((char *)k->recv + (size_t)i * bytes, from[i], bytes);
        if (!sums || !from[i]) continue;
        if (i == 0)
            memcpy(k->recv, from[0], bytes);
        else
            join(k->op, k->recv, from[i], k->count, dtype_of(k->type));
    }
    free(kept);
}

// With the lock held; false: aborted, or after an error.
static bool receive(struct batch *b, const struct call *k) {
    struct ncclComm *c = b->comm;
    struct mail *in[RANKS_MAX] = {NULL};
    bool came = true;
    for (int from = 0; from < c->size && came; from++)
        if (comes_from(c, k, from)) came = (in[from] = await_mail(b, k, from)) != NULL;
    bool passes = k->kind == SEND_RECV ? !k->recv : k->kind == REDUCE && c->rank != k->peer;
    if (came && !passes && call_bytes(k)) {
        pthread_mutex_unlock(&c->at->lock);
        emu_memory_open();
        if (k->kind == SEND_RECV)
            memcpy(k->recv, in[k->peer]->data, call_bytes(k));
        else
            combine(c, k, in);
        emu_memory_close();
        pthread_mutex_lock(&c->at->lock);
    }
    for (int i = 0; i < c->size; i++) free(in[i]);
    return came;
}

// ---------------------------------------------------------------- batches

// With the lock held, which is let go of.
void comm_release(struct ncclComm *c) {
    struct meeting *at = c->at;
    bool last = --c->refs == 0;
    pthread_cond_broadcast(&at->changed);
    pthread_mutex_unlock(&at->lock);
    if (last) free(c);
}

void batch_drop(void *arg) {
    struct batch *b = arg;
    pthread_mutex_lock(&b->comm->at->lock);
    token_drop(b->token);
    order_end(b);
    b->comm->running--;
    b->comm->ended++;
    comm_release(b->comm);
    free(b);
}

int batch_run(void *arg, const char **why) {
    struct batch *b = arg;
    struct ncclComm *c = b->comm;
    bool done = true;
    (void)why;
    emu_memory_open();
    pthread_mutex_lock(&c->at->lock);
    while (c->ended != b->number && !c->aborted) pthread_cond_wait(&c->at->changed, &c->at->lock);
    if (!c->aborted && order_start(b) != 0) done = false;
    for (int i = 0; i < b->count && done && !c->aborted; i++) post(b, &b->calls[i]);
    pthread_cond_broadcast(&c->at->changed);
    pthread_mutex_unlock(&c->at->lock);
    emu_memory_close();
    pthread_mutex_lock(&c->at->lock);
    for (int i = 0; i < b->count && done; i++) done = receive(b, &b->calls[i]);
    while (!c->aborted && (!done || b->token->unread)) pthread_cond_wait(&c->at->changed, &c->at->lock);
    pthread_mutex_unlock(&c->at->lock);
    return 0;
}
