// The calls of NCCL for an operation, on the streams' threads, and the abort of a failed communicator.
#include <stdio.h>
#include <time.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- failure
// The stream fails before the abort releases the device, so that no thread that waits for the device sees the operation
// end without an error.
int nccl_abort_comm(struct collective_nccl *c, struct stream *s, const char *what, const char *why) {
    struct nccl_world *w = c->world;
    bool first = !atomic_load(&c->impl.failed);
    collective_impl_fail(&c->impl, "%s on channel %d: %s", what, c->impl.channel, why);
    if (s) w->so->fail(s, c->impl.error);
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) w->api->CommAbort(c->comm);
    c->comm = NULL;
    pthread_mutex_unlock(&c->comm_lock);
    if (first) collective_abort(w->o.bootstrap->under, c->impl.error);
    return -1;
}

int nccl_await_accepted(struct collective_nccl *c, struct stream *s, double deadline_s, const char *what,
                        ncclResult_t r) {
    const struct nccl_api *api = c->world->api;
    double start = now_seconds();
    char why[384];
    while (r == ncclInProgress) {
        pthread_mutex_unlock(&c->comm_lock);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        bool late = deadline_s > 0 && now_seconds() - start > deadline_s;
        if (late) {
            snprintf(why, sizeof why, "some other rank did not come within %g s", deadline_s);
            nccl_abort_comm(c, s, what, why);
        }
        pthread_mutex_lock(&c->comm_lock);
        if (!c->comm) return -1;
        ncclResult_t asked = api->CommGetAsyncError(c->comm, &r);
        if (asked != ncclSuccess) r = asked;
    }
    if (r == ncclSuccess) return 0;
    snprintf(why, sizeof why, "NCCL: %s (%.256s)", api->GetErrorString(r),
             c->comm ? api->GetLastError(c->comm) : "no communicator");
    pthread_mutex_unlock(&c->comm_lock);
    nccl_abort_comm(c, s, what, why);
    pthread_mutex_lock(&c->comm_lock);
    return -1;
}

// ---------------------------------------------------------------- on the stream's thread
static ncclDataType_t type_of(enum dtype dt) {
    static const ncclDataType_t types[DT_COUNT] = {
        [DT_F32] = ncclFloat32, [DT_BF16] = ncclBfloat16, [DT_F16] = ncclFloat16,
        [DT_F64] = ncclFloat64, [DT_I64] = ncclInt64,     [DT_U8] = ncclUint8};
    return types[dt];
}

static void keep_first(ncclResult_t *r, ncclResult_t next) {
    if (*r == ncclSuccess || (*r == ncclInProgress && next != ncclSuccess)) *r = next;
}

static ncclResult_t exchange_all(struct collective_nccl *c, const struct nccl_step *step,
                                 struct CUstream_st *stream) {
    const struct nccl_api *api = c->world->api;
    const struct collective_plan *p = &step->entry->plan;
    struct collective_team team = collective_team_of(p->call, c->impl.head.size);
    ncclDataType_t type = type_of(p->call->dt);
    size_t e = dtype_size(p->call->dt);
    ncclResult_t r = api->GroupStart();
    if (r != ncclSuccess) return r;
    for (int k = 1; k < p->size; k++) {
        int i = (p->rank + k) % p->size;
        int peer = collective_member(team, i);
        struct collective_transfer x = collective_step(p, step->index, i);
        if (x.send_bytes) keep_first(&r, api->Send(x.send, x.send_bytes / e, type, peer, c->comm, stream));
        if (x.recv_bytes) keep_first(&r, api->Recv(x.recv, x.recv_bytes / e, type, peer, c->comm, stream));
    }
    keep_first(&r, api->GroupEnd());
    return r;
}

bool nccl_has(const struct collective_call *c) {
    enum collective_primitive p = c->primitive;
    if (collective_reduces(p)) return c->reduction != REDUCTION_LOR;
    return p == COLLECTIVE_BROADCAST || p == COLLECTIVE_ALL_GATHER || p == COLLECTIVE_BARRIER;
}

static ncclResult_t call_nccl(struct collective_nccl *c, const struct nccl_step *step,
                              struct CUstream_st *stream) {
    const struct nccl_api *api = c->world->api;
    const struct collective_call *k = &step->entry->call;
    static const ncclRedOp_t ops[REDUCTIONS] = {ncclSum, ncclMin, ncclMax, ncclProd, ncclSum};
    ncclDataType_t type = type_of(k->dt);
    ncclRedOp_t op = ops[k->reduction];  // NCCL has no logical or: see nccl_has
    if (!step->entry->library) return exchange_all(c, step, stream);
    switch (k->primitive) {
        case COLLECTIVE_BROADCAST:
            return api->Broadcast(k->send, k->recv, k->count, type, k->root, c->comm, stream);
        case COLLECTIVE_ALL_GATHER:
            return api->AllGather(k->send, k->recv, k->count, type, c->comm, stream);
        case COLLECTIVE_REDUCE:
            return api->Reduce(k->send, k->recv, k->count, type, op, k->root, c->comm, stream);
        case COLLECTIVE_ALL_REDUCE:
            return api->AllReduce(k->send, k->recv, k->count, type, op, c->comm, stream);
        case COLLECTIVE_REDUCE_SCATTER:
            return api->ReduceScatter(k->send, k->recv, k->count, type, op, c->comm, stream);
        case COLLECTIVE_BARRIER:
            return api->AllReduce(c->world->one, c->world->one, 1, ncclUint8, ncclSum, c->comm, stream);
        default:
            return ncclInvalidUsage;  // excluded by nccl_has
    }
}

int nccl_run_step(void *arg, void *cuda_stream) {
    struct nccl_step *step = arg;
    struct collective_nccl *c = step->entry->owner;
    const char *what = collective_name(step->entry->call.primitive);
    int rc = -1;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm)
        rc = nccl_await_accepted(c, step->entry->call.stream, c->impl.head.deadline_s, what,
                                 call_nccl(c, step, cuda_stream));
    pthread_mutex_unlock(&c->comm_lock);
    return rc;
}
