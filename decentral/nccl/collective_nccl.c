// Collectives between GPUs over NCCL. The only file that sees its interface (nccl_abi.h); the library is
// loaded at run time.
//
// A call becomes an entry of a ring and some steps on the stream:
//
//     [its turn] [start event] [copy of the own piece] [NCCL, submitted on the stream's thread]
//                                                      [reduce a chunk] [NCCL] [reduce] ..  [done event]
//
// Its turn: behind the operation enqueued last, of whichever channel (nccl_enqueue.c).
// Nothing waits for the device. A watching thread looks at the oldest entry that is not done: its deadline
// runs from when its start has passed. Communicators are non-blocking: each call is followed by asking until
// NCCL has taken it.
#include "decentral/nccl/collective_nccl.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "decentral/nccl/nccl_abi.h"
#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

#define WATCH_NS             20000000  // between looks at what is in flight
#define LAUNCH_ORDER         "NCCL_LAUNCH_ORDER_IMPLICIT"
#define LAUNCH_ORDER_VERSION 22600

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

// ---------------------------------------------------------------- failure

// The streams fail before the abort lets the device go: who waits for the device must not find that the
// operation ended without an error.
int nccl_give_up(struct collective_nccl *c, struct stream *s, const char *what, const char *why) {
    struct nccl_world *w = c->world;
    bool first = !atomic_load(&c->impl.failed);
    collective_impl_fail(&c->impl, "%s on channel %d: %s", what, c->channel, why);
    if (s) w->so->fail(s, c->impl.error);
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) w->api->CommAbort(c->comm);
    c->comm = NULL;
    pthread_mutex_unlock(&c->comm_lock);
    if (first && w->o.rendezvous.abort) w->o.rendezvous.abort(w->o.rendezvous.ctx, c->impl.error);
    return -1;
}

// Follows a call of NCCL: asks until it has been taken. The lock is held; it is let go between the questions,
// so that an abort can come in. 0, or -1 after giving up (with the lock held again).
static int settle(struct collective_nccl *c, struct stream *s, double deadline_s, const char *what,
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
            nccl_give_up(c, s, what, why);
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
    nccl_give_up(c, s, what, why);
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
    ncclDataType_t type = type_of(p->call->dt);
    size_t e = dtype_size(p->call->dt);
    ncclResult_t r = api->GroupStart();
    if (r != ncclSuccess) return r;
    for (int k = 1; k < p->size; k++) {
        int i = (p->rank + k) % p->size;
        struct collective_transfer x = collective_step(p, step->index, i);
        if (x.send_bytes) keep_first(&r, api->Send(x.send, x.send_bytes / e, type, i, c->comm, stream));
        if (x.recv_bytes) keep_first(&r, api->Recv(x.recv, x.recv_bytes / e, type, i, c->comm, stream));
    }
    keep_first(&r, api->GroupEnd());
    return r;
}

bool nccl_has(enum collective_primitive p) {
    return p == COLLECTIVE_BROADCAST || p == COLLECTIVE_ALL_GATHER || p == COLLECTIVE_BARRIER ||
           collective_reduces(p);
}

static ncclResult_t call_nccl(struct collective_nccl *c, const struct nccl_step *step,
                              struct CUstream_st *stream) {
    const struct nccl_api *api = c->world->api;
    const struct collective_call *k = &step->entry->call;
    ncclDataType_t type = type_of(k->dt);
    if (!step->entry->library) return exchange_all(c, step, stream);
    switch (k->primitive) {
        case COLLECTIVE_BROADCAST:
            return api->Broadcast(k->send, k->recv, k->count, type, k->root, c->comm, stream);
        case COLLECTIVE_ALL_GATHER:
            return api->AllGather(k->send, k->recv, k->count, type, c->comm, stream);
        case COLLECTIVE_REDUCE:
            return api->Reduce(k->send, k->recv, k->count, type, ncclSum, k->root, c->comm, stream);
        case COLLECTIVE_ALL_REDUCE:
            return api->AllReduce(k->send, k->recv, k->count, type, ncclSum, c->comm, stream);
        case COLLECTIVE_REDUCE_SCATTER:
            return api->ReduceScatter(k->send, k->recv, k->count, type, ncclSum, c->comm, stream);
        case COLLECTIVE_BARRIER:
            return api->AllReduce(c->world->one, c->world->one, 1, ncclUint8, ncclSum, c->comm, stream);
        default:
            return ncclInvalidUsage;  // nccl_has says which it has
    }
}

int nccl_run_step(void *arg, void *cuda_stream) {
    struct nccl_step *step = arg;
    struct collective_nccl *c = step->entry->owner;
    const char *what = collective_name(step->entry->call.primitive);
    int rc = -1;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm)
        rc = settle(c, step->entry->call.stream, c->impl.head.deadline_s, what,
                    call_nccl(c, step, cuda_stream));
    pthread_mutex_unlock(&c->comm_lock);
    return rc;
}

// ---------------------------------------------------------------- watching

// The text of what has gone wrong with the oldest entry in flight, or false.
static bool gone_wrong(struct collective_nccl *c, struct nccl_entry *e, char *why, size_t why_bytes) {
    struct nccl_world *w = c->world;
    ncclResult_t r = ncclSuccess;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) w->api->CommGetAsyncError(c->comm, &r);
    pthread_mutex_unlock(&c->comm_lock);
    if (r != ncclSuccess && r != ncclInProgress) {
        snprintf(why, why_bytes, "NCCL: %s", w->api->GetErrorString(r));
        return true;
    }
    if (w->o.rendezvous.aborted) {
        char text[256] = "";
        if (w->o.rendezvous.aborted(w->o.rendezvous.ctx, text, sizeof text)) {
            snprintf(why, why_bytes, "aborted: %s", text);
            return true;
        }
    }
    if (w->so->event_passed(e->start) != 1) return false;
    if (e->waiting_since_s == 0) e->waiting_since_s = now_seconds();
    if (c->impl.head.deadline_s <= 0 || now_seconds() - e->waiting_since_s <= c->impl.head.deadline_s)
        return false;
    snprintf(why, why_bytes, "some other rank did not come within %g s", c->impl.head.deadline_s);
    return true;
}

static void *watch(void *arg) {
    struct collective_nccl *c = arg;
    char why[512];
    pthread_mutex_lock(&c->lock);
    while (!c->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += WATCH_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        bool idle = c->begun == c->ended || atomic_load(&c->impl.failed);
        if (idle)
            pthread_cond_wait(&c->work, &c->lock);
        else
            pthread_cond_timedwait(&c->work, &c->lock, &until);
        for (uint64_t i = c->ended; i < c->begun && !c->closing && !atomic_load(&c->impl.failed); i++) {
            struct nccl_entry *e = &c->ring[i % NCCL_ENTRIES];
            if (c->world->so->event_passed(e->done) != 0) continue;
            if (gone_wrong(c, e, why, sizeof why))
                nccl_give_up(c, e->call.stream, collective_name(e->call.primitive), why);
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

// ---------------------------------------------------------------- life of a communicator

struct creation {
    struct collective_nccl *c;
    ncclUniqueId id;
};

// On the world's setup stream: NCCL takes the device that the thread has chosen.
static int create_comm(void *arg, void *cuda_stream) {
    struct creation *x = arg;
    struct collective_nccl *c = x->c;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    (void)cuda_stream;
    config.blocking = 0;
    pthread_mutex_lock(&c->comm_lock);
    ncclResult_t r =
        c->world->api->CommInitRankConfig(&comm, c->impl.head.size, x->id, c->impl.head.rank, &config);
    c->comm = comm;
    int rc = comm ? settle(c, NULL, c->world->o.deadline_s, "creating the communicator", r) : -1;
    pthread_mutex_unlock(&c->comm_lock);
    if (!comm) nccl_give_up(c, NULL, "creating the communicator", c->world->api->GetErrorString(r));
    return rc;
}

// Lets what is in flight end, then frees the communicator; the streams have been synchronised by their owner.
static int end_comm(void *arg, void *cuda_stream) {
    struct collective_nccl *c = arg;
    (void)cuda_stream;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) {
        int rc = settle(c, NULL, c->impl.head.deadline_s, "ending the communicator",
                        c->world->api->CommFinalize(c->comm));
        if (rc == 0) c->world->api->CommDestroy(c->comm);
        c->comm = NULL;
    }
    pthread_mutex_unlock(&c->comm_lock);
    return 0;
}

static void free_collective(struct collective_nccl *c) {
    for (int i = 0; i < NCCL_ENTRIES; i++) {
        free(c->ring[i].steps);
        free(c->ring[i].inputs);
    }
    pthread_mutex_destroy(&c->comm_lock);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    collective_impl_fini(&c->impl);
    free(c);
}

void nccl_destroy(struct collective *head) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    if (c->watching) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->watcher, NULL);
    }
    c->world->so->submit(c->world->setup, "ending a communicator", end_comm, c);
    // A device that has failed runs nothing any more: then there is only the hard way.
    if (stream_sync(c->world->setup) != 0 && c->comm) c->world->api->CommAbort(c->comm);
    free_collective(c);
}

void nccl_abort(struct collective *head, const char *why) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    char text[COLLECTIVE_ERROR_BYTES];
    snprintf(text, sizeof text, "aborted: %.400s", why);
    nccl_give_up(c, c->world->setup, "abort", text);
}

struct collective *collective_nccl_create(struct nccl_world *w, int channel,
                                          const struct collective_options *o) {
    struct collective_nccl *c = xcalloc(1, sizeof *c);
    struct creation x = {.c = c};
    assert(channel >= 0 && channel < COLLECTIVE_CHANNELS);
    pthread_condattr_t monotonic;
    collective_impl_init(&c->impl, &nccl_ops, w->o.rank, w->o.size, o);
    c->world = w;
    c->channel = channel;
    c->staging = o->staging;
    c->staging_bytes = o->staging ? o->staging_bytes : 0;
    pthread_mutex_init(&c->comm_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->work, &monotonic);
    pthread_condattr_destroy(&monotonic);
    bool made = true;
    for (int i = 0; i < NCCL_ENTRIES; i++) {
        c->ring[i].start = w->events[channel][i].start;
        c->ring[i].done = w->events[channel][i].done;
    }
    if (w->o.rank == 0 && w->api->GetUniqueId(&x.id) != ncclSuccess) made = false;
    int rc = w->o.rendezvous.share(w->o.rendezvous.ctx, 0, &x.id, sizeof x.id);
    if (rc == 0 && made) {
        w->so->submit(w->setup, "creating a communicator", create_comm, &x);
        rc = stream_sync(w->setup);
    }
    if (rc == 0 && made) c->watching = pthread_create(&c->watcher, NULL, watch, c) == 0;
    if (c->watching) return &c->impl.head;
    fail("NCCL channel %d of rank %d: cannot be created: %s", channel, w->o.rank,
         *c->impl.error ? c->impl.error : dev_error(w->o.device));
    nccl_destroy(&c->impl.head);
    return NULL;
}

// ---------------------------------------------------------------- the world

static bool shares_gpus(void) {
    const char *asked = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return asked && strcmp(asked, "1") == 0;
}

// NCCL reads it once. What the user has set stays. Ranks that are threads and share a GPU also share NCCL's
// order, in which one rank's operations would wait for another one's: there each rank has the device keep its
// own.
static void ask_for_order(void) {
    if (!shares_gpus()) setenv(LAUNCH_ORDER, "1", 0);
}

static bool keeps_order(int version) {
    const char *asked = getenv(LAUNCH_ORDER);
    return version >= LAUNCH_ORDER_VERSION && asked && strtoll(asked, NULL, 0) != 0;
}

static void *open_library(const char **why) {
    static _Thread_local char text[512];
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    pthread_once(&asked, ask_for_order);
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library) return library;
    snprintf(
        text, sizeof text,
        "NCCL was not found (%.300s): install libnccl2, name its folder in LD_LIBRARY_PATH, or use another "
        "--collective",
        dlerror());
    *why = text;
    return NULL;
}

bool nccl_available(const char **why) { return open_library(why) != NULL; }

static int open_api(struct nccl_api *api) {
    const char *why = "";
    api->library = open_library(&why);
    if (!api->library) return fail("%s", why);
#define NCCL_FIND(name)                                                                         \
    {                                                                                           \
        void *p = dlsym(api->library, "nccl" #name);                                            \
        if (!p) return fail("libnccl.so.2 has no nccl" #name ": NCCL 2.18 or newer is needed"); \
        memcpy(&api->name, &p, sizeof p);                                                       \
    }
    NCCL_FUNCTIONS(NCCL_FIND)
    if (api->GetVersion(&api->version) != ncclSuccess) return fail("NCCL does not tell its version");
    return 0;
}

// All channels' events: nothing is created on the device once there is a communicator.
static int prepare_order(struct nccl_world *w) {
    w->serial = !keeps_order(w->api->version);
    if (w->serial && w->o.rank == 0 && w->api->version >= LAUNCH_ORDER_VERSION && !shares_gpus())
        warn(LAUNCH_ORDER "=%s is set: NCCL's operations run one after the other", getenv(LAUNCH_ORDER));
    w->order = event_create(w->o.device);
    bool made = w->order != NULL;
    for (int i = 0; i < COLLECTIVE_CHANNELS * NCCL_ENTRIES; i++) {
        struct nccl_event_pair *e = &w->events[i / NCCL_ENTRIES][i % NCCL_ENTRIES];
        e->start = event_create(w->o.device);
        e->done = event_create(w->o.device);
        made = made && e->start && e->done;
    }
    return made ? 0 : fail("NCCL: %s", dev_error(w->o.device));
}

void nccl_world_close(struct nccl_world **world) {
    struct nccl_world *w = *world;
    if (!w) return;
    stream_destroy(&w->setup);
    event_destroy(&w->order);
    for (int i = 0; i < COLLECTIVE_CHANNELS * NCCL_ENTRIES; i++) {
        event_destroy(&w->events[i / NCCL_ENTRIES][i % NCCL_ENTRIES].start);
        event_destroy(&w->events[i / NCCL_ENTRIES][i % NCCL_ENTRIES].done);
    }
    if (w->one) w->so->backend->free(w->o.device, w->one, DEV_ALIGN);
    free(w->api);  // the library stays: it keeps threads of its own
    free(w);
    *world = NULL;
}

int nccl_world_open(struct nccl_world **out, const struct nccl_world_options *o) {
    const char *why = "";
    *out = NULL;
    if (strcmp(dev_backend(o->device)->name, "cuda") != 0)
        return fail("NCCL needs --device cuda; this rank computes on %s", dev_backend(o->device)->name);
    if (o->size > REDUCE_MAX) return fail("%d ranks; at most %d are possible", o->size, REDUCE_MAX);
    struct nccl_world *w = xcalloc(1, sizeof *w);
    w->o = *o;
    w->api = xcalloc(1, sizeof *w->api);
    w->so = cuda_so_open(&why);
    int rc = w->so ? open_api(w->api) : fail("%s", why);
    if (rc == 0) rc = nccl_check_devices(w, w->api->version);
    if (rc == 0) {
        w->setup = stream_create(o->device, "nccl");
        // Outside of the ledger, as all of NCCL's own memory.
        w->one = w->so->backend->alloc(o->device, DEV_ALIGN);
        if (!w->setup || !w->one) rc = fail("NCCL: %s", dev_error(o->device));
    }
    if (rc == 0) rc = prepare_order(w);
    if (rc != 0) {
        nccl_world_close(&w);
        return -1;
    }
    *out = w;
    return 0;
}
