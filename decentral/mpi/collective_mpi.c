// Collectives between processes, over Open MPI. The medium of its messages is mpi_medium.h's choice.
//
// The primitives are exchanges (collective_exchange) over nonblocking point-to-point messages; of int64, and in native
// mode, reductions are the library's nonblocking ones: only nonblocking calls allow a deadline. Waiting is a loop that
// tests, yields, then sleeps a few microseconds, so that ranks sharing a core do not starve each other. Open
// MPI makes progress only while somebody tests.
//
// Failure     A process that failed leaves requests behind that MPI cannot cancel (sends). The world is then
//             marked broken and closed without MPI_Finalize, which would hang; when the process ends with
//             an error, mpirun ends the job. A world that is refused after MPI_Init is left in the same way:
//             MPI_Finalize of ranks that cannot reach each other has crashed inside of Open MPI.
// Abort       Each communicator keeps a receive posted for abort messages; every wait tests it.
// Devices     What is not host memory is staged (collective_staged): the stream runs these calls as host
//             functions.
// Deadline    Beyond half of it peers are asked whether they live and compute (mpi_pulse.h).
// Mismatch    Operations have their own tags, and lengths are compared. Differing lengths are errors that
//             name both ranks; differing operations end at the deadline and name the rank that did not come.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/mpi/mpi_impl.h"
#include "decentral/mpi/mpi_load.h"
#include "shared/core/error.h"

// ---------------------------------------------------------------- the world
static int world_open(struct mpi_world **out, struct mpi_medium *medium, int *rank, int *size) {
    int provided = 0, done = 0;
    MPI_Initialized(&done);
    if (done) return fail("MPI is initialized already: one mpi_world a process");
    if (mpi_medium_set(medium)) return -1;
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    if (rc != MPI_SUCCESS) return fail("MPI_Init_thread failed; is this process started by mpirun?");
    if (provided < MPI_THREAD_MULTIPLE)
        return fail("this MPI gives thread level %d, MPI_THREAD_MULTIPLE (%d) is needed", provided,
                    MPI_THREAD_MULTIPLE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (mpi_medium_meet(medium) || mpi_medium_hide(medium)) return -1;
    struct mpi_world *w = xcalloc(1, sizeof *w);
    w->medium = *medium;
    MPI_Comm_rank(MPI_COMM_WORLD, &w->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->size);
    atomic_init(&w->broken, false);
    if (w->size > REDUCE_MAX) {
        int n = w->size;
        free(w);
        return fail("mpirun started %d ranks; at most %d are possible", n, REDUCE_MAX);
    }
    w->pulse = mpi_pulse_start(w->rank, w->size);
    if (!w->pulse) {
        free(w);
        return -1;
    }
    *out = w;
    *rank = w->rank;
    *size = w->size;
    return 0;
}

static void world_close(struct mpi_world **world) {
    struct mpi_world *w = *world;
    if (!w) return;
    mpi_pulse_stop(&w->pulse, atomic_load(&w->broken));
    if (!atomic_load(&w->broken)) {
        mpi_medium_show(&w->medium);
        MPI_Finalize();
    }
    free(w->medium.hidden);
    free(w);
    *world = NULL;
}

// ---------------------------------------------------------------- exchanges
static size_t message_bytes(size_t total, size_t at) {
    if (total <= at) return 0;
    return total - at < MESSAGE_BYTES ? total - at : MESSAGE_BYTES;
}

// A recv receives what a send has sent: one tag for both.
static int tag_of(enum collective_primitive p) { return p == COLLECTIVE_RECV ? COLLECTIVE_SEND : (int)p; }

// Posts the messages that begin at byte `at` of every transfer. An MPI error code.
static int post_messages(struct collective_mpi *m, enum collective_primitive p, size_t at) {
    int size = m->x.impl.head.size, rank = m->x.impl.head.rank;
    for (int i = 0; i < 2 * size; i++) m->requests[i] = MPI_REQUEST_NULL;
    for (int k = 1; k < size; k++) {
        int to = (rank + k) % size, from = (rank + size - k) % size;  // each its own first
        const struct collective_transfer *in = &m->x.transfers[from], *out = &m->x.transfers[to];
        size_t in_bytes = message_bytes(in->recv_bytes, at), out_bytes = message_bytes(out->send_bytes, at);
        int rc = MPI_SUCCESS;
        if (in_bytes)
            rc = MPI_Irecv((char *)in->recv + at, (int)in_bytes, MPI_BYTE, from, tag_of(p), m->comm,
                           &m->requests[from]);
        if (rc == MPI_SUCCESS && out_bytes)
            rc = MPI_Isend((const char *)out->send + at, (int)out_bytes, MPI_BYTE, to, tag_of(p), m->comm,
                           &m->requests[size + to]);
        if (rc != MPI_SUCCESS) return rc;
    }
    return MPI_SUCCESS;
}

// A barrier's bytes are no payload and not counted.
static void count_messages(struct collective_mpi *m, enum collective_primitive p, size_t at) {
    if (p == COLLECTIVE_BARRIER) return;
    for (int i = 0; i < m->x.impl.head.size; i++)
        collective_count_peer(&m->x.impl.head, i, message_bytes(m->x.transfers[i].send_bytes, at),
                              message_bytes(m->x.transfers[i].recv_bytes, at));
}

static void expect(const struct collective_mpi *m, size_t at, size_t *expected) {
    for (int i = 0; i < m->x.impl.head.size; i++)
        expected[i] = message_bytes(m->x.transfers[i].recv_bytes, at);
}

static int mpi_begin(struct exchanger *x, enum collective_primitive p) {
    struct collective_mpi *m = (struct collective_mpi *)x;
    int rc = post_messages(m, p, 0);
    if (rc == MPI_SUCCESS) return 0;
    mpi_fail(m, collective_name(p), rc);
    mpi_give_up_requests(m);
    return -1;
}

static int mpi_end(struct exchanger *x, enum collective_primitive p) {
    struct collective_mpi *m = (struct collective_mpi *)x;
    size_t longest = 1, expected[REDUCE_MAX] = {0};
    for (int i = 0; i < x->impl.head.size; i++) {
        if (x->transfers[i].send_bytes > longest) longest = x->transfers[i].send_bytes;
        if (x->transfers[i].recv_bytes > longest) longest = x->transfers[i].recv_bytes;
    }
    for (size_t at = 0; at < longest; at += MESSAGE_BYTES) {
        int rc = at ? post_messages(m, p, at) : MPI_SUCCESS;
        expect(m, at, expected);
        if (rc != MPI_SUCCESS) mpi_fail(m, collective_name(p), rc);
        if (rc != MPI_SUCCESS || mpi_wait_all(m, collective_name(p), expected) != 0) {
            mpi_give_up_requests(m);
            return -1;
        }
        count_messages(m, p, at);
    }
    return 0;
}

// Asking for a message that is not done makes Open MPI look after all of them.
static void mpi_push(struct exchanger *x) {
    struct collective_mpi *m = (struct collective_mpi *)x;
    int done = 1;
    for (int i = 0; i < 2 * x->impl.head.size && done; i++)
        if (m->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE);
}

// ---------------------------------------------------------------- the table
// The library's own all_reduce and reduce need none.
static bool needs_staging(const struct collective_mpi *m, const struct collective_call *c) {
    bool reduces = collective_reduces(c->primitive) && m->x.impl.head.size > 1;
    return reduces &&
           (c->primitive == COLLECTIVE_REDUCE_SCATTER || !collective_by_library(c, m->x.impl.head.mode));
}

// On host memory.
static int run_here(struct collective_impl *impl, const struct collective_call *call,
                    const struct collective_room *staging) {
    struct collective_mpi *m = (struct collective_mpi *)impl;
    bool native = collective_by_library(call, impl->head.mode) && impl->head.size > 1;
    m->x.staging = staging->at;
    m->x.staging_bytes = staging->bytes;
    return native ? mpi_run_native(m, call) : exchange_run(&m->x, call);
}

static int mpi_run(struct collective_impl *impl, const struct collective_call *call) {
    struct collective_mpi *m = (struct collective_mpi *)impl;
    bool staged = !dev_host_memory(stream_device(call->stream));
    m->stream = call->stream;
    if (staged && m->host.at) return collective_staged(impl, call, &m->host, run_here);
    if (staged || (needs_staging(m, call) && !m->x.staging))
        return collective_impl_fail(impl, "%s on channel %d: this channel was created without %sstaging",
                                    collective_name(call->primitive), m->channel, staged ? "host " : "");
    return run_here(impl, call, &(struct collective_room){m->x.staging, m->x.staging_bytes});
}

// The texts are short enough for MPI to send at once, before the receiver takes part.
static void mpi_abort(struct collective *c, const char *why) {
    struct collective_mpi *m = (struct collective_mpi *)c;
    if (atomic_flag_test_and_set(&m->abort_begun)) return;
    atomic_store(&m->world->broken, true);
    m->word_out.lost = atomic_load(&m->world->lost);
    snprintf(m->word_out.why, sizeof m->word_out.why, "%s", why);
    for (int i = 0; i < c->size && m->comm != MPI_COMM_NULL; i++)
        if (i != c->rank)
            MPI_Isend(&m->word_out, sizeof m->word_out, MPI_BYTE, i, TAG_ABORT, m->comm, &m->abort_out[i]);
    atomic_store(&m->abort_sent, true);
}

// mpi_check_abort takes the text that has come and fails the collective with it; later calls read that error.
static bool mpi_aborted(struct collective *c, char *why, size_t why_bytes) {
    struct collective_mpi *m = (struct collective_mpi *)c;
    if (!atomic_load(&m->x.impl.failed) && mpi_check_abort(m, "abort") == 0) return false;
    snprintf(why, why_bytes, "%s", collective_error(c));
    return true;
}

static void mpi_destroy(struct collective *c) {
    struct collective_mpi *m = (struct collective_mpi *)c;
    mpi_pulse_computes(m->world->pulse, NULL);
    // A broken world leaves MPI's part behind: messages that refer to it may still be under way.
    if (!atomic_load(&m->world->broken)) {
        if (m->abort_in != MPI_REQUEST_NULL) {
            MPI_Cancel(&m->abort_in);
            MPI_Wait(&m->abort_in, MPI_STATUS_IGNORE);
        }
        if (m->comm != MPI_COMM_NULL) MPI_Comm_free(&m->comm);
        free(m->abort_out);
    }
    exchanger_fini(&m->x);
    collective_impl_fini(&m->x.impl);
    pthread_mutex_destroy(&m->abort_lock);
    free(m->requests);
    if (!atomic_load(&m->world->broken)) free(m);
}

static const struct collective_ops mpi_ops = {
    .name = "mpi",
    .enqueue = collective_impl_enqueue,
    .abort = mpi_abort,
    .aborted = mpi_aborted,
    .destroy = mpi_destroy,
};

// Duplicates the world; every rank must do so at the same place. 0 or -1 after keeping the error.
static int open_communicator(struct collective_mpi *m) {
    for (int i = 0; i < 2 * m->x.impl.head.size; i++) m->requests[i] = MPI_REQUEST_NULL;
    int rc = MPI_Comm_idup(MPI_COMM_WORLD, &m->coming, &m->requests[0]);
    if (rc != MPI_SUCCESS) return mpi_fail(m, "duplicating the communicator", rc);
    if (mpi_wait_all(m, "duplicating the communicator", NULL) != 0) return -1;
    m->comm = m->coming;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    rc =
        MPI_Irecv(&m->word_in, sizeof m->word_in, MPI_BYTE, MPI_ANY_SOURCE, TAG_ABORT, m->comm, &m->abort_in);
    return rc == MPI_SUCCESS ? 0 : mpi_fail(m, "posting the receive of aborts", rc);
}

// The staging given must hold at least one element a block.
static int check_staging(const struct mpi_world *w, int channel, const struct collective_options *o) {
    size_t least = (size_t)(w->size - 1) * DEV_ALIGN, host_least = 2 * (size_t)w->size * DEV_ALIGN;
    if (o->staging && o->staging_bytes < least)
        return fail(
            "mpi collectives: %zu bytes of staging given for channel %d; %zu are the least for %d ranks",
            o->staging_bytes, channel, least, w->size);
    if (o->host_staging && o->host_staging_bytes < host_least)
        return fail(
            "mpi collectives: %zu bytes of host staging given for channel %d; %zu are the least for %d ranks",
            o->host_staging_bytes, channel, host_least, w->size);
    return 0;
}

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct mpi_world *w = world;
    (void)rank;
    if (check_staging(w, channel, o) != 0) return NULL;
    struct collective_mpi *m = xcalloc(1, sizeof *m);
    collective_impl_init(&m->x.impl, &mpi_ops, w->rank, w->size, o);
    m->x.impl.run = mpi_run;
    m->world = w;
    m->channel = channel;
    m->comm = MPI_COMM_NULL;
    m->abort_in = MPI_REQUEST_NULL;
    pthread_mutex_init(&m->abort_lock, NULL);
    atomic_flag_clear(&m->abort_begun);
    atomic_init(&m->abort_sent, false);
    m->requests = xcalloc(2 * (unsigned long)w->size, sizeof *m->requests);
    m->abort_out = xcalloc((unsigned long)w->size, sizeof *m->abort_out);
    m->host = (struct collective_room){o->host_staging, o->host_staging_bytes};
    exchanger_init(&m->x, o);
    m->x.begin = mpi_begin;
    m->x.end = mpi_end;
    m->x.push = mpi_push;
    if (open_communicator(m) == 0) {
        if (o->dev) mpi_pulse_computes(w->pulse, o->dev);
        return &m->x.impl.head;
    }
    fail("rank %d: %s", w->rank, collective_error(&m->x.impl.head));
    mpi_destroy(&m->x.impl.head);
    return NULL;
}

extern const struct mpi_engine starring_mpi_engine;
const struct mpi_engine starring_mpi_engine = {world_open, world_close, create};
