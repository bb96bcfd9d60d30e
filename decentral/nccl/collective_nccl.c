// A communicator from its creation to its end, and the thread that watches it. A call becomes an entry of a ring buffer
// and some steps on the stream:
//
//     wait | start event | copy of the own piece | NCCL | sum of a chunk | NCCL | sum | .. | done event
//
// It waits for the operation that was enqueued before it on any channel (follow_order). NCCL is called on the
// stream's thread. The host never waits for the device: a watching thread polls the oldest entry that is not done. The
// entry's deadline runs from when its start event has passed. Communicators are non-blocking: after each call the
// thread polls until NCCL has accepted it.
#include "decentral/nccl/nccl_engine.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "decentral/nccl/nccl_impl.h"
#include "shared/core/error.h"

#define CHUNK_BYTES ((size_t)32 << 20)  // large enough for full bandwidth: a latency is some 20 us
#define WHOLE_BYTES ((size_t)4 << 20)   // below this two launches cost more than they hide
#define WATCH_S     0.02                // between two polls of the watching thread

// ---------------------------------------------------------------- watching
// Returns whether the oldest entry in flight has failed; why receives the reason.
static bool entry_failed(struct collective_nccl *c, struct nccl_entry *e, char *why, size_t why_bytes) {
    struct nccl_world *w = c->world;
    ncclResult_t r = ncclSuccess;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) w->api->CommGetAsyncError(c->comm, &r);
    pthread_mutex_unlock(&c->comm_lock);
    if (r != ncclSuccess && r != ncclInProgress) {
        snprintf(why, why_bytes, "NCCL: %s", w->api->GetErrorString(r));
        return true;
    }
    const char *text = collective_aborted(w->o.bootstrap->under);
    if (text) snprintf(why, why_bytes, "aborted: %s", text);
    if (text) return true;
    if (event_passed(e->start) != 1) return false;
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
            if (event_passed(e->done) != 0) continue;
            if (entry_failed(c, e, why, sizeof why))
                nccl_abort_comm(c, e->call.stream, collective_name(e->call.primitive), why);
            break;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

// ---------------------------------------------------------------- enqueuing: entries, and the steps of a call
// Frees the entries that are done and adds their time. If no entry is free, waits for the oldest.
static struct nccl_entry *take_entry(struct collective_nccl *c, const struct collective_call *call) {
    const struct cuda_so *so = c->world->so;
    if (c->begun - c->ended == NCCL_ENTRIES) event_sync(c->ring[c->ended % NCCL_ENTRIES].done);
    pthread_mutex_lock(&c->lock);
    while (c->ended < c->begun && event_passed(c->ring[c->ended % NCCL_ENTRIES].done) != 0) {
        struct nccl_entry *e = &c->ring[c->ended % NCCL_ENTRIES];
        double seconds = so->event_seconds(e->start, e->done);
        if (seconds > 0) c->impl.head.busy_s += seconds;
        c->ended++;
    }
    struct nccl_entry *e = &c->ring[c->begun % NCCL_ENTRIES];
    pthread_mutex_unlock(&c->lock);
    e->owner = c;
    e->call = *call;
    e->waiting_since_s = 0;
    return e;
}

static void reserve(struct nccl_entry *e, size_t steps, size_t inputs) {
    if (steps > e->step_room) {
        e->steps = xrealloc(e->steps, steps * sizeof *e->steps);
        e->step_room = steps;
    }
    if (inputs > e->input_room) {
        e->inputs = xrealloc(e->inputs, inputs * sizeof *e->inputs);
        e->input_room = inputs;
    }
}

// Work that is enqueued on s from now on runs after the step that was enqueued last on any stream.
//
// Why         A rank's communicators use one device. NCCL requires that their operations are submitted by one thread at
//             a time and started in the same order on all ranks. Otherwise two ranks may start two operations in
//             opposite orders and deadlock (NCCL user guide, "Using multiple NCCL communicators concurrently"). The
//             order is that of the calls of the rank's thread, which is the same on all ranks.
// How         The stream's thread waits until the earlier step has been submitted. NCCL makes the device start them in
//             this order (NCCL_LAUNCH_ORDER_IMPLICIT, from 2.26 on); with `serial` the device waits until the earlier
//             step has ended.
// Progress    A slot of a stream, a kernel or a peer waits only for work that was enqueued before it, on its own rank
//             or on another rank with the same order. So the first operation in this order that has not ended can
//             always continue. A slot that failed or was skipped counts as passed, and fails the step that follows it.
static void follow_order(struct nccl_world *w, struct stream *s) {
    if (w->serial)
        stream_wait_event(s, w->order);
    else
        w->so->wait_for_submission(s, w->order);
}

static void submit(struct nccl_entry *e, size_t index) {
    struct stream *s = e->call.stream;
    e->steps[index] = (struct nccl_step){.entry = e, .index = index};
    e->owner->world->so->submit(s, e->plan.row->name, nccl_run_step, &e->steps[index]);
    event_record(e->owner->world->order, s);
}

// A chunk's exchange waits for the sum of its buffer's previous chunk. The exchange of the sums waits for the last sum.
static void enqueue_exchange(struct nccl_entry *e, size_t step) {
    const struct collective_plan *p = &e->plan;
    const struct nccl_buffers *b = &e->owner->world->buffers[e->owner->impl.channel];
    bool chunk = step < p->chunks;
    if (p->chunks && (!chunk || step >= p->buffers))
        stream_wait_event(e->call.stream, b->summed[(chunk ? step : p->chunks - 1) % p->buffers]);
    submit(e, step);
    if (chunk) event_record(b->filled[step % p->buffers], e->call.stream);
}

static void enqueue_sum(struct nccl_entry *e, size_t step) {
    const struct collective_plan *p = &e->plan;
    const struct nccl_buffers *b = &e->owner->world->buffers[e->owner->impl.channel];
    struct stream *sums = e->owner->world->sums;
    struct reduce_args sum = collective_step_sum(p, step, e->inputs + step * (size_t)p->size);
    stream_wait_event(sums, b->filled[step % p->buffers]);
    if (sum.n) op_reduce(sums, &sum);
    event_record(b->summed[step % p->buffers], sums);
}

// Enqueues the plan's actions: exchanges on the call's stream by NCCL's sends and receives, sums on the stream `sums`.
// Later work on the call's stream waits for the last sum, and so for all of them.
static void enqueue_steps(struct nccl_entry *e) {
    const struct collective_plan *p = &e->plan;
    struct collective_transfer own = collective_own_copy(p);
    reserve(e, p->steps, p->chunks * (size_t)p->size);
    if (own.recv_bytes) dev_copy(e->call.stream, own.recv, own.send, own.recv_bytes);
    for (size_t i = 0; i < collective_actions(p); i++) {
        struct collective_action a = collective_action(p, i);
        if (a.what == ACTION_BEGIN) enqueue_exchange(e, a.step);
        if (a.what == ACTION_SUM) enqueue_sum(e, a.step);
    }
    if (p->chunks)
        stream_wait_event(
            e->call.stream,
            e->owner->world->buffers[e->owner->impl.channel].summed[(p->chunks - 1) % p->buffers]);
}

// Counts bytes per peer. If the library sums, it counts the formula's bytes instead.
static void count(const struct collective *head, const struct collective_plan *p, bool library) {
    struct collective_team team = collective_team_of(p->call, head->size);
    struct collective_volume v = collective_native_volume(p);
    bool whole = library && collective_reduces(p->call->primitive);
    if (whole) collective_count(head->wire, head->control, v.sent, v.received);
    for (int i = 0; i < p->size && !whole; i++) {
        v = collective_volume_with(p, i);
        collective_count_peer(head, collective_member(team, i), v.sent, v.received);
    }
}

static void nccl_enqueue(struct collective *head, const struct collective_call *call) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    struct stream *s = call->stream;
    bool library = nccl_has(call) && !call->team.count;  // a team uses sends and receives
    bool ordered =
        collective_reduces(call->primitive) && !(library && collective_by_library(call, head->mode));
    if (atomic_load(&c->impl.failed)) {
        c->world->so->fail(s, c->impl.error);
        return;
    }
    const char *why = NULL;
    if (ordered && call->dt == DT_U8)
        why = "there is no sum of uint8; use int64";
    else if (ordered && collective_slot(c->impl.staging.bytes, head->size, call->dt) == 0)
        why = "this channel was created without staging for ordered reductions";
    if (why) {
        nccl_abort_comm(c, s, collective_name(call->primitive), why);
        return;
    }
    struct nccl_entry *e = take_entry(c, call);
    e->library = library && !ordered;
    head->method = e->library ? "library" : "exchange";
    const struct collective_staging_room room = {c->impl.staging.at, c->impl.staging.bytes, WHOLE_BYTES};
    e->plan = e->library ? collective_plan_of(&e->call, head->rank, head->size)
                         : collective_plan_steps(&e->call, head->rank, head->size, &room);
    if (head->size > 1) follow_order(c->world, s);
    event_record(e->start, s);
    if (head->size == 1 && call->reduction == REDUCTION_LOR && collective_reduces(call->primitive)) {
        reserve(e, 0, 1);
        e->inputs[0] = call->send;
        op_reduce(s, &(struct reduce_args){call->recv, e->inputs, 1, (int64_t)call->count, call->dt,
                                           call->reduction});
    } else if (head->size == 1) {
        if (call->send != call->recv && call->send && call->recv)
            dev_copy(s, call->recv, call->send, call->count * dtype_size(call->dt));
    } else if (e->library) {
        reserve(e, 1, 0);
        submit(e, 0);
    } else {
        enqueue_steps(e);
    }
    event_record(e->done, s);
    count(head, &e->plan, e->library);
    pthread_mutex_lock(&c->lock);
    c->begun++;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&c->lock);
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
    int rc = comm ? nccl_await_accepted(c, NULL, c->world->o.deadline_s, "creating the communicator", r) : -1;
    pthread_mutex_unlock(&c->comm_lock);
    if (!comm) nccl_abort_comm(c, NULL, "creating the communicator", c->world->api->GetErrorString(r));
    return rc;
}

// Waits for operations in flight, then frees the communicator. The streams' owner has synchronised them.
static int end_comm(void *arg, void *cuda_stream) {
    struct collective_nccl *c = arg;
    (void)cuda_stream;
    pthread_mutex_lock(&c->comm_lock);
    if (c->comm) {
        int rc = nccl_await_accepted(c, NULL, c->impl.head.deadline_s, "ending the communicator",
                                     c->world->api->CommFinalize(c->comm));
        if (rc == 0) c->world->api->CommDestroy(c->comm);
        c->comm = NULL;
    }
    pthread_mutex_unlock(&c->comm_lock);
    return 0;
}

static void nccl_destroy(struct collective *head) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    // 1. Stop the watcher.
    if (c->watching) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->watcher, NULL);
    }
    // 2. End the communicator.
    c->world->so->submit(c->world->setup, "ending a communicator", end_comm, c);
    // A failed device runs no more functions: then the communicator is aborted instead.
    if (stream_sync(c->world->setup) != 0 && c->comm) c->world->api->CommAbort(c->comm);
    // 3. Free the entries.
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

static void nccl_abort(struct collective *head, const char *why) {
    struct collective_nccl *c = (struct collective_nccl *)head;
    char text[COLLECTIVE_ERROR_BYTES];
    snprintf(text, sizeof text, "aborted: %.400s", why);
    nccl_abort_comm(c, c->world->setup, "abort", text);
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
    c->world = w;
    c->impl.channel = channel;
    if (collective_impl_init(&c->impl, &nccl_ops, rank, w->o.size, o)) {
        free(c);
        return NULL;
    }
    pthread_mutex_init(&c->comm_lock, NULL);
    pthread_mutex_init(&c->lock, NULL);
    cond_init(&c->work);
    bool made = true;
    for (int i = 0; i < NCCL_ENTRIES; i++) {
        c->ring[i].start = w->events[channel][i].start;
        c->ring[i].done = w->events[channel][i].done;
    }
    if (rank == 0 && w->api->GetUniqueId(&x.id) != ncclSuccess) made = false;
    int rc = ring_bootstrap_broadcast(w->o.bootstrap, 0, &x.id, sizeof x.id);
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
    .name = "nccl", .create = create, .staging_bytes = staging_bytes, .moves_by_library = true};
