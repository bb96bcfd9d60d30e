// Collectives between processes, over Open MPI. What it moves messages through is mpi_medium.h's.
//
// The primitives are exchanges (collective_exchange) over nonblocking point-to-point messages; of int64, and in native
// mode, reductions are the library's nonblocking ones: only nonblocking calls allow a deadline. Waiting is a loop that
// tests, yields, then sleeps a few microseconds, so that ranks sharing a core do not starve each other. Open
// MPI makes progress only while somebody tests.
//
// Failure     A process that failed leaves requests behind that MPI cannot cancel (sends). The world is then
//             marked broken and closed without MPI_Finalize, which would hang; when the process ends with
//             an error, mpirun ends the job.
// Abort       Each communicator keeps a receive posted for abort messages; every wait tests it.
// Devices     What is not host memory is staged (exchange_staged): the stream runs these calls as host
//             functions.
// Deadline    Beyond half of it peers are asked whether they live and compute (mpi_pulse.h).
// Mismatch    Operations have their own tags, and lengths are compared. Differing lengths are errors that
//             name both ranks; differing operations end at the deadline and name the rank that did not come.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/collective_mpi.h"

#include "decentral/collective/collective_exchange.h"
#include "decentral/collective/mpi_leave.h"
#include "decentral/collective/mpi_parent.h"
#include "decentral/collective/mpi_pause.h"
#include "decentral/collective/mpi_pulse.h"
#include "kernels/work.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define MESSAGE_BYTES ((size_t)1 << 30)  // MPI counts are ints
#define ABORT_BYTES   256
#define TAG_ABORT     COLLECTIVE_PRIMITIVES

struct mpi_world {
    int rank, size;
    struct mpi_medium medium;
    struct mpi_pulse *pulse;
    atomic_bool broken;
};

struct collective_mpi {
    struct exchanger x;
    struct mpi_world *world;
    MPI_Comm comm, coming;  // MPI_COMM_NULL until all ranks have it; what it will be
    int channel;
    struct stream *stream;  // of the call under way
    MPI_Request *requests;  // (2*size): receive from i, send to i
    MPI_Request abort_in;   // the posted receive
    char abort_in_text[ABORT_BYTES];
    MPI_Request *abort_out;  // (size)
    char abort_out_text[ABORT_BYTES];
    pthread_mutex_t abort_lock;  // guards abort_in: one thread at a time asks
    atomic_flag abort_begun;
    atomic_bool abort_sent;  // abort_out and its text are complete
};

// ---------------------------------------------------------------- the world
int mpi_world_open(struct mpi_world **out, struct mpi_medium *medium, int *rank, int *size) {
    int provided = 0, done = 0;
    MPI_Initialized(&done);
    if (done) return fail("MPI is initialized already: one mpi_world a process");
    if (mpi_medium_set(medium)) return -1;
    struct mpi_parent *parent = mpi_parent_watch(medium->deadline_s);
    int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided);
    mpi_parent_release(&parent);
    if (rc != MPI_SUCCESS) return fail("MPI_Init_thread failed; is this process started by mpirun?");
    if (provided < MPI_THREAD_MULTIPLE) {
        MPI_Finalize();
        return fail("this MPI gives thread level %d, MPI_THREAD_MULTIPLE (%d) is needed", provided,
                    MPI_THREAD_MULTIPLE);
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (mpi_medium_meet(medium) || mpi_medium_hide(medium)) {
        MPI_Finalize();
        return -1;
    }
    struct mpi_world *w = xcalloc(1, sizeof *w);
    w->medium = *medium;
    MPI_Comm_rank(MPI_COMM_WORLD, &w->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->size);
    atomic_init(&w->broken, false);
    if (w->size > REDUCE_MAX) {
        MPI_Finalize();
        int n = w->size;
        free(w);
        return fail("mpirun started %d ranks; at most %d are possible", n, REDUCE_MAX);
    }
    w->pulse = mpi_pulse_start(w->rank, w->size);
    if (!w->pulse) {
        MPI_Finalize();
        free(w);
        return -1;
    }
    *out = w;
    *rank = w->rank;
    *size = w->size;
    return 0;
}

void mpi_world_close(struct mpi_world **world) {
    struct mpi_world *w = *world;
    if (!w) return;
    mpi_pulse_stop(&w->pulse, atomic_load(&w->broken));
    if (!atomic_load(&w->broken)) {
        mpi_medium_show(&w->medium);
        mpi_leave();
    }
    free(w->medium.hidden);
    free(w);
    *world = NULL;
}

// ---------------------------------------------------------------- waiting
static int fail_broken(struct collective_mpi *m, const char *what, const char *why) {
    atomic_store(&m->world->broken, true);
    return collective_impl_fail(&m->x.impl, "%s on channel %d: %s", what, m->channel, why);
}

static int fail_mpi(struct collective_mpi *m, const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int n;
    MPI_Error_string(code, text, &n);
    return fail_broken(m, what, text);
}

// -1 once somebody has aborted this communicator.
static int check_abort(struct collective_mpi *m, const char *what) {
    char why[ABORT_BYTES + 64];
    int done = 0;
    MPI_Status status;
    if (atomic_load(&m->abort_sent)) {
        snprintf(why, sizeof why, "aborted: %.*s", ABORT_BYTES, m->abort_out_text);
        return fail_broken(m, what, why);
    }
    pthread_mutex_lock(&m->abort_lock);
    if (m->abort_in != MPI_REQUEST_NULL && MPI_Test(&m->abort_in, &done, &status) != MPI_SUCCESS) done = 0;
    pthread_mutex_unlock(&m->abort_lock);
    if (!done) return 0;
    snprintf(why, sizeof why, "aborted by rank %d: %.*s", status.MPI_SOURCE, ABORT_BYTES - 1,
             m->abort_in_text);
    return fail_broken(m, what, why);
}

// The peers whose messages are not done; of the library's own collectives all: only the library knows.
static void find_missing(struct collective_mpi *m, bool messages, bool *missing) {
    int size = m->x.impl.head.size;
    for (int i = 0; i < size; i++) missing[i] = !messages && i != m->x.impl.head.rank;
    for (int i = 0; i < 2 * size && messages; i++) {
        int done = 1;
        if (m->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE);
        if (!done) missing[i % size] = true;
    }
}

// silent: those that give no sign of life; NULL: none.
static int give_up(struct collective_mpi *m, const char *what, const bool *named, const bool *silent) {
    char ranks[128], text[256];
    snprintf(text, sizeof text, "rank %s did not come within %g s%s",
             named ? collective_rank_list(ranks, sizeof ranks, named, m->x.impl.head.size) : "(some other)",
             m->x.impl.head.deadline_s, silent ? " and gives no sign of life" : "");
    fail_broken(m, what, text);
    if (silent) stop_ranks_lost(silent, m->x.impl.head.size);
    collective_abort(&m->x.impl.head, m->x.impl.error);
    return -1;
}

// -1 when the wait has come to its deadline and nobody is slow.
static int check_deadline(struct collective_mpi *m, const char *what, double start, bool messages) {
    double waited_s = now_seconds() - start, deadline_s = m->x.impl.head.deadline_s;
    bool missing[REDUCE_MAX], silent[REDUCE_MAX], any = false;
    if (deadline_s <= 0 || waited_s <= deadline_s / 2) return 0;
    mpi_pulse_ask(m->world->pulse, deadline_s);
    if (waited_s <= deadline_s) return 0;
    find_missing(m, messages, missing);
    struct pulse_wait w = {what, waited_s, deadline_s, missing};
    if (mpi_pulse_slow(m->world->pulse, &w, silent)) return 0;
    for (int i = 0; i < m->x.impl.head.size; i++) any = any || silent[i];
    return give_up(m, what, any ? silent : messages ? missing : NULL, any ? silent : NULL);
}

static void give_up_requests(struct collective_mpi *m) {
    for (int i = 0; i < 2 * m->x.impl.head.size; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL) continue;
        if (i < m->x.impl.head.size) MPI_Cancel(&m->requests[i]);  // receives alone can be cancelled
        MPI_Request_free(&m->requests[i]);
    }
}

// Compares what came from each peer with what was asked for.
static int check_lengths(struct collective_mpi *m, const char *what, const size_t *expected,
                         MPI_Status *statuses) {
    for (int i = 0; i < m->x.impl.head.size; i++) {
        int got = 0;
        if (expected[i] == 0) continue;
        MPI_Get_count(&statuses[i], MPI_BYTE, &got);
        if ((size_t)got == expected[i]) continue;
        char text[192];
        snprintf(text, sizeof text, "rank %d sent %d bytes where rank %d expects %zu: their calls differ", i,
                 got, m->x.impl.head.rank, expected[i]);
        return fail_broken(m, what, text);
    }
    return 0;
}

// expected[i]: bytes from rank i, or 0; NULL: not compared.
static int test_until_done(struct collective_mpi *m, const char *what, const size_t *expected) {
    MPI_Status statuses[2 * REDUCE_MAX];
    double start = now_seconds();
    pause_begin();
    for (;;) {
        int done = 0, rc = MPI_Testall(2 * m->x.impl.head.size, m->requests, &done, statuses);
        if (rc == MPI_ERR_IN_STATUS) {
            for (int i = 0; i < 2 * m->x.impl.head.size; i++)
                if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
                    rc = statuses[i].MPI_ERROR;
        }
        if (rc != MPI_SUCCESS) {
            fail_mpi(m, what, rc);
            break;
        }
        if (done) return expected ? check_lengths(m, what, expected, statuses) : 0;
        if (check_abort(m, what) != 0) break;
        if (check_deadline(m, what, start, expected != NULL) != 0) break;
        pause_between_tests(start);
    }
    return -1;
}

// Waits for all of m->requests.
static int wait_all(struct collective_mpi *m, const char *what, const size_t *expected) {
    if (m->stream) stream_waits(m->stream, true);
    int rc = test_until_done(m, what, expected);
    if (m->stream) stream_waits(m->stream, false);
    return rc;
}

// ---------------------------------------------------------------- exchanges
static size_t message_bytes(size_t total, size_t at) {
    if (total <= at) return 0;
    return total - at < MESSAGE_BYTES ? total - at : MESSAGE_BYTES;
}

// A recv receives what a send has sent: one tag for both.
static int tag_of(enum collective_primitive p) { return p == COLLECTIVE_RECV ? COLLECTIVE_SEND : (int)p; }

// Posts the messages that begin at byte `at` of every transfer. An MPI error code.
static int post_messages(struct collective_mpi *m, enum collective_primitive p, size_t at, size_t *expected) {
    int size = m->x.impl.head.size, rank = m->x.impl.head.rank;
    for (int i = 0; i < 2 * size; i++) m->requests[i] = MPI_REQUEST_NULL;
    for (int k = 1; k < size; k++) {
        int to = (rank + k) % size, from = (rank + size - k) % size;  // each its own first
        const struct collective_transfer *in = &m->x.transfers[from], *out = &m->x.transfers[to];
        size_t in_bytes = message_bytes(in->recv_bytes, at), out_bytes = message_bytes(out->send_bytes, at);
        int rc = MPI_SUCCESS;
        expected[from] = in_bytes;
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
        collective_count(m->x.impl.head.wire, m->x.impl.head.control,
                         message_bytes(m->x.transfers[i].send_bytes, at),
                         message_bytes(m->x.transfers[i].recv_bytes, at));
}

static int mpi_exchange(struct exchanger *x, enum collective_primitive p) {
    struct collective_mpi *m = (struct collective_mpi *)x;
    size_t longest = 0, expected[REDUCE_MAX] = {0};
    for (int i = 0; i < x->impl.head.size; i++) {
        if (x->transfers[i].send_bytes > longest) longest = x->transfers[i].send_bytes;
        if (x->transfers[i].recv_bytes > longest) longest = x->transfers[i].recv_bytes;
    }
    for (size_t at = 0; at < longest; at += MESSAGE_BYTES) {
        int rc = post_messages(m, p, at, expected);
        if (rc != MPI_SUCCESS) fail_mpi(m, collective_name(p), rc);
        if (rc != MPI_SUCCESS || wait_all(m, collective_name(p), expected) != 0) {
            give_up_requests(m);
            return -1;
        }
        count_messages(m, p, at);
    }
    return 0;
}

// ---------------------------------------------------------------- native reductions
// The library's type, or MPI_DATATYPE_NULL: it has none for 16-bit floats.
static MPI_Datatype native_type(enum dtype dt) {
    switch (dt) {
        case DT_F32:
            return MPI_FLOAT;
        case DT_F64:
            return MPI_DOUBLE;
        case DT_I64:
            return MPI_INT64_T;
        default:
            return MPI_DATATYPE_NULL;
    }
}

static int wait_native(struct collective_mpi *m, enum collective_primitive p, int rc, MPI_Request request) {
    for (int i = 1; i < 2 * m->x.impl.head.size; i++) m->requests[i] = MPI_REQUEST_NULL;
    if (rc != MPI_SUCCESS) return fail_mpi(m, collective_name(p), rc);
    m->requests[0] = request;
    return wait_all(m, collective_name(p), NULL);
}

// The library's blocks must be contiguous and may not overlap its result, which ours does in place: chunks of
// all blocks are packed into staging and the result is copied out of it.
//     staging | chunk for rank 0 | .. | chunk for rank size-1 | result |
static int native_reduce_scatter(struct collective_mpi *m, const struct collective_call *c,
                                 MPI_Datatype type) {
    size_t e = dtype_size(c->dt), size = (size_t)m->x.impl.head.size,
           slot = m->x.staging_bytes / (size + 1) / e;
    for (size_t done = 0; done < c->count; done += slot) {
        size_t n = c->count - done < slot ? c->count - done : slot;
        for (size_t i = 0; i < size; i++)
            memcpy(m->x.staging + i * n * e, (const char *)c->send + (i * c->count + done) * e, n * e);
        MPI_Request request = MPI_REQUEST_NULL;
        int rc = MPI_Ireduce_scatter_block(m->x.staging, m->x.staging + size * n * e, (int)n, type, MPI_SUM,
                                           m->comm, &request);
        if (wait_native(m, c->primitive, rc, request) != 0) return -1;
        memcpy((char *)c->recv + done * e, m->x.staging + size * n * e, n * e);
    }
    return 0;
}

static int native_all_reduce(struct collective_mpi *m, const struct collective_call *c, MPI_Datatype type) {
    size_t e = dtype_size(c->dt), most = MESSAGE_BYTES / e;
    bool all = c->primitive == COLLECTIVE_ALL_REDUCE, root = m->x.impl.head.rank == c->root;
    bool in_place = c->send == c->recv && (all || root);
    for (size_t done = 0; done < c->count; done += most) {
        int n = (int)(c->count - done < most ? c->count - done : most), rc;
        const void *send = in_place ? MPI_IN_PLACE : (const char *)c->send + done * e;
        void *recv = c->recv ? (char *)c->recv + done * e : NULL;
        MPI_Request request = MPI_REQUEST_NULL;
        if (all)
            rc = MPI_Iallreduce(send, recv, n, type, MPI_SUM, m->comm, &request);
        else
            rc = MPI_Ireduce(send, recv, n, type, MPI_SUM, c->root, m->comm, &request);
        if (wait_native(m, c->primitive, rc, request) != 0) return -1;
    }
    return 0;
}

// The library moves the bytes itself: the formula's volume is counted.
static int run_native(struct collective_mpi *m, const struct collective_call *c) {
    MPI_Datatype type = native_type(c->dt);
    if (type == MPI_DATATYPE_NULL)
        return collective_impl_fail(&m->x.impl,
                                    "%s: MPI reduces no %s natively; use the ordered "
                                    "reduction (\"reduce\": \"ordered\") or fp32",
                                    collective_name(c->primitive), dtype_name(c->dt));
    int rc = c->primitive == COLLECTIVE_REDUCE_SCATTER ? native_reduce_scatter(m, c, type)
                                                       : native_all_reduce(m, c, type);
    if (rc != 0) return rc;
    struct collective_plan p = collective_plan_of(c, m->x.impl.head.rank, m->x.impl.head.size);
    struct collective_volume v = collective_native_volume(&p);
    collective_count(m->x.impl.head.wire, m->x.impl.head.control, v.sent, v.received);
    return 0;
}

// ---------------------------------------------------------------- the table
// The library's own all_reduce and reduce need none.
static bool needs_staging(const struct collective_mpi *m, const struct collective_call *c) {
    bool reduces = collective_reduces(c->primitive) && m->x.impl.head.size > 1;
    return reduces &&
           (c->primitive == COLLECTIVE_REDUCE_SCATTER || !collective_by_library(c, m->x.impl.head.mode));
}

// On host memory.
static int run_here(struct exchanger *x, const struct collective_call *call) {
    bool native = collective_by_library(call, x->impl.head.mode) && x->impl.head.size > 1;
    return native ? run_native((struct collective_mpi *)x, call) : exchange_run(x, call);
}

static int mpi_run(struct collective_impl *impl, const struct collective_call *call) {
    struct collective_mpi *m = (struct collective_mpi *)impl;
    bool staged = !dev_host_memory(stream_device(call->stream));
    m->stream = call->stream;
    if (staged && m->x.host) return exchange_staged(&m->x, call, run_here);
    if (staged || (needs_staging(m, call) && !m->x.staging))
        return collective_impl_fail(impl, "%s on channel %d: this channel was created without %sstaging",
                                    collective_name(call->primitive), m->channel, staged ? "host " : "");
    return run_here(&m->x, call);
}

// The texts are short enough for MPI to send at once, before the receiver takes part.
static void mpi_abort(struct collective *c, const char *why) {
    struct collective_mpi *m = (struct collective_mpi *)c;
    if (atomic_flag_test_and_set(&m->abort_begun)) return;
    atomic_store(&m->world->broken, true);
    snprintf(m->abort_out_text, sizeof m->abort_out_text, "%s", why);
    for (int i = 0; i < c->size && m->comm != MPI_COMM_NULL; i++)
        if (i != c->rank)
            MPI_Isend(m->abort_out_text, ABORT_BYTES, MPI_CHAR, i, TAG_ABORT, m->comm, &m->abort_out[i]);
    atomic_store(&m->abort_sent, true);
}

// check_abort takes the text that has come and fails the collective with it; later calls read that error.
static bool mpi_aborted(struct collective *c, char *why, size_t why_bytes) {
    struct collective_mpi *m = (struct collective_mpi *)c;
    if (!atomic_load(&m->x.impl.failed) && check_abort(m, "abort") == 0) return false;
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
    if (rc != MPI_SUCCESS) return fail_mpi(m, "duplicating the communicator", rc);
    if (wait_all(m, "duplicating the communicator", NULL) != 0) return -1;
    m->comm = m->coming;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    rc = MPI_Irecv(m->abort_in_text, ABORT_BYTES, MPI_CHAR, MPI_ANY_SOURCE, TAG_ABORT, m->comm, &m->abort_in);
    return rc == MPI_SUCCESS ? 0 : fail_mpi(m, "posting the receive of aborts", rc);
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
    exchanger_init(&m->x, o);
    m->x.exchange = mpi_exchange;
    if (open_communicator(m) == 0) {
        if (o->dev) mpi_pulse_computes(w->pulse, o->dev);
        return &m->x.impl.head;
    }
    fail("rank %d: %s", w->rank, collective_error(&m->x.impl.head));
    mpi_destroy(&m->x.impl.head);
    return NULL;
}

const struct collective_kind collective_mpi_kind = {
    .name = "mpi", .create = create, .staging_bytes = exchange_staging_bytes, .ordered_16bit_only = true};
const struct collective_kind collective_mpi_staged_kind = {
    .name = "mpi", .create = create, .host_staging_bytes = exchange_host_bytes, .ordered_16bit_only = true};
