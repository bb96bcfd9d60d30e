// A communicator from its creation to its end, and the thread that watches it. A call becomes an entry of a ring buffer
// and some steps on the stream:
//
//     wait | start event | copy of the own piece | NCCL | sum of a chunk | NCCL | sum | .. | done event
//
// It waits for the operation that was enqueued before it on any channel (nccl_enqueue.c). NCCL is called on the
// stream's thread. The host never waits for the device: a watching thread polls the oldest entry that is not done. The
// entry's deadline runs from when its start event has passed. Communicators are non-blocking: after each call the
// thread polls until NCCL has accepted it.
#include "decentral/nccl/collective_nccl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "decentral/nccl/nccl_api.h"
#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

#define CHUNK_BYTES ((size_t)32 << 20)  // large enough for full bandwidth: a latency is some 20 us
#define WATCH_S     0.02                // between two polls of the watching thread

// ---------------------------------------------------------------- watching
// Returns whether the oldest entry in flight has failed; why receives the reason.
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
    const char *text = collective_aborted(w->o.meeting->under);
    if (text) snprintf(why, why_bytes, "aborted: %s", text);
    if (text) return true;
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
        struct timespec until = time_after(WATCH_S);
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

// ---------------------------------------------------------------- create and destroy
struct creation {
    struct collective_nccl *c;
    ncclUniqueId id;
};

// Runs on the world's setup stream: NCCL uses the device that the thread has chosen.
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
    int rc = comm ? nccl_settle(c, NULL, c->world->o.deadline_s, "creating the communicator", r) : -1;
    pthread_mutex_unlock(&c->comm_lock);
    if (!comm) nccl_give_up(c, NULL, "creating the communicator", c->world->api->GetErrorString(r));
    return rc;
}

// Waits for operations in flight, then frees the communicator. The streams' owner has synchronised them.
static int end_comm(void *arg, void *cuda_stream) {
    struct collective_nccl *c = arg;
    (void)cuda_stream;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) {
        int rc = nccl_settle(c, NULL, c->impl.head.deadline_s, "ending the communicator",
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

static void nccl_destroy(struct collective *head) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    if (c->watching) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->watcher, NULL);
    }
    c->world->so->submit(c->world->setup, "ending a communicator", end_comm, c);
    // A failed device runs no more functions: then the communicator is aborted instead.
    if (stream_sync(c->world->setup) != 0 && c->comm) c->world->api->CommAbort(c->comm);
    free_collective(c);
}

static void nccl_abort(struct collective *head, const char *why) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    char text[COLLECTIVE_ERROR_BYTES];
    snprintf(text, sizeof text, "aborted: %.400s", why);
    nccl_give_up(c, c->world->setup, "abort", text);
}

static const struct collective_ops nccl_ops = {
    .name = "nccl",
    .enqueue = nccl_enqueue,
    .abort = nccl_abort,
    .destroy = nccl_destroy,
};

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct nccl_world *w = world;
    struct collective_nccl *c = xcalloc(1, sizeof *c);
    struct creation x = {.c = c};
    assert(channel >= 0 && channel < COLLECTIVE_CHANNELS);
    collective_impl_init(&c->impl, &nccl_ops, rank, w->o.size, o);
    c->world = w;
    c->channel = channel;
    c->staging = o->staging;
    c->staging_bytes = o->staging ? o->staging_bytes : 0;
    pthread_mutex_init(&c->comm_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    cond_init(&c->work);
    bool made = true;
    for (int i = 0; i < NCCL_ENTRIES; i++) {
        c->ring[i].start = w->events[channel][i].start;
        c->ring[i].done = w->events[channel][i].done;
    }
    if (rank == 0 && w->api->GetUniqueId(&x.id) != ncclSuccess) made = false;
    int rc = ring_meeting_share(w->o.meeting, 0, &x.id, sizeof x.id);
    if (rc == 0 && made) {
        w->so->submit(w->setup, "creating a communicator", create_comm, &x);
        rc = stream_sync(w->setup);
    }
    if (rc == 0 && made) c->watching = pthread_create(&c->watcher, NULL, watch, c) == 0;
    if (c->watching) return &c->impl.head;
    fail("NCCL channel %d of rank %d: cannot be created: %s", channel, rank,
         *c->impl.error ? c->impl.error : dev_error(w->o.device));
    nccl_destroy(&c->impl.head);
    return NULL;
}

static size_t staging_bytes(int size, size_t max_count, enum dtype dt) {
    return collective_staging_bytes(size, max_count, dt, CHUNK_BYTES);
}

const struct collective_kind collective_nccl_kind = {
    .name = "nccl", .create = create, .staging_bytes = staging_bytes};
