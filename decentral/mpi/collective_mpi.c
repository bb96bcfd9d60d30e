// Collectives between processes, over Open MPI. mpi_medium.c chooses the medium of the messages.
//
// The primitives are exchanges over nonblocking point-to-point messages (collective_peers.h). Reductions of int64, and
// all in native mode, are the library's nonblocking ones: only nonblocking calls allow a deadline. A wait is a loop
// that tests, yields, then sleeps a few microseconds, so that ranks that share a core do not starve each other. Open
// MPI makes progress only during tests.
//
// Failure     A failed process leaves requests that MPI cannot cancel (sends). The world is then marked broken and
//             closed without MPI_Finalize, which would hang; the process exits with an error, and mpirun ends the job.
//             A world that is refused after MPI_Init is left in the same way: MPI_Finalize of ranks that cannot reach
//             each other has crashed inside Open MPI.
// End         The reason comes through the rendezvous; every wait checks for it.
// Devices     Memory that is not the host's is staged (collective.c): the stream runs these calls as host functions.
// Deadline    After half of it every wait checks whether peers are alive and compute (rank_liveness.h).
// Mismatch    Operations have their own tags, and lengths are compared. Different lengths are an error that names both
//             ranks. Different operations end at the deadline, and the rank that did not come is named.
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "decentral/collective/collective_peers.h"
#include "decentral/mpi/mpi_engine.h"
#include "kernels/backend.h"
#include "shared/core/error.h"

#define MESSAGE_BYTES ((size_t)1 << 30)  // MPI counts are ints

struct mpi_world {
    int rank, size;
    struct mpi_medium medium;
    struct rank_liveness *lives;
    atomic_bool broken;
};

struct collective_mpi {
    struct collective_peers peers;
    struct mpi_world *world;
    MPI_Comm comm, coming;  // comm: MPI_COMM_NULL until all ranks have it; coming: its future value
    MPI_Request *requests;  // (2*size): receive from i, send to i
};

// ---------------------------------------------------------------- the world
static int world_open(struct mpi_world **out, struct mpi_medium *medium, struct rank_liveness *lives,
                      int *rank, int *size) {
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
    if (mpi_medium_check_hosts(medium) || mpi_medium_unlink(medium)) return -1;
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
    w->lives = lives;
    *out = w;
    *rank = w->rank;
    *size = w->size;
    return 0;
}

static void world_close(struct mpi_world **world) {
    struct mpi_world *w = *world;
    if (!w) return;
    if (!atomic_load(&w->broken)) {
        mpi_medium_relink(&w->medium);
        MPI_Finalize();
    }
    free(w->medium.hidden);
    free(w);
    *world = NULL;
}

// A process that does not use MPI for its messages finalizes it again.
static int broadcast_text(char *text, size_t bytes) {
    int provided = 0, before = 0;
    MPI_Initialized(&before);
    if (!before && mpi_medium_set(&(struct mpi_medium){.medium = MEDIUM_AUTO})) return -1;
    if (!before && MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return fail("MPI_Init_thread failed; is this process started by mpirun?");
    int rc = MPI_Bcast(text, (int)bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (!before) MPI_Finalize();
    return rc == MPI_SUCCESS ? 0 : fail("MPI_Bcast failed");
}

// ---------------------------------------------------------------- waits
// Keeps the error. Returns -1.
static int mpi_fail(struct collective_mpi *m, const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int n;
    MPI_Error_string(code, text, &n);
    return peers_fail(&m->peers, what, text);
}

static bool is_missing(const void *ctx, int rank) {
    const struct collective_mpi *m = ctx;
    bool missing = false;
    for (int i = rank; i < 2 * m->peers.impl.head.size; i += m->peers.impl.head.size) {
        int done = 1;
        if (m->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE);
        missing = missing || !done;
    }
    return missing;
}

static void drop_requests(struct collective_mpi *m) {
    for (int i = 0; i < 2 * m->peers.impl.head.size; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL) continue;
        if (i < m->peers.impl.head.size) MPI_Cancel(&m->requests[i]);  // only receives can be cancelled
        MPI_Request_free(&m->requests[i]);
    }
}

// Compares the bytes that arrived from each peer with the expected ones.
static int check_lengths(struct collective_mpi *m, const char *what, const size_t *expected,
                         MPI_Status *statuses) {
    for (int i = 0; i < m->peers.impl.head.size; i++) {
        int got = 0;
        if (expected[i] == 0) continue;
        MPI_Get_count(&statuses[i], MPI_BYTE, &got);
        if ((size_t)got == expected[i]) continue;
        char text[192];
        snprintf(text, sizeof text, "rank %d sent %d bytes where rank %d expects %zu: their calls differ", i,
                 got, m->peers.impl.head.rank, expected[i]);
        return peers_fail(&m->peers, what, text);
    }
    return 0;
}

// Open MPI has no call that sleeps until a message arrives.
#define YIELD_S        200e-6  // after this part of a wait, the thread sleeps between tests:
#define SLEEP_SHARE    16      // 1/16 of the wait so far, so a wait takes at most 1/16 longer
#define SLEEP_LEAST_S  10e-6
#define SLEEP_SLACK_NS 1000  // the default slack would make each sleep 50 us longer
// The longest sleep: tcp's buffers must not run empty in it (250 kB at 10 Gbit/s).
#define SLEEP_MOST_S 200e-6

// Pauses between two tests that found nothing done. start: of the wait. If ranks share cores, a wait is long because
// the peer computes, and every test takes some of its time.
static void pause_between_tests(double start) {
    double waited_s = now_seconds() - start, sleep_s = waited_s / SLEEP_SHARE;
    if (waited_s < YIELD_S) {
        sched_yield();
        return;
    }
    if (sleep_s < SLEEP_LEAST_S) sleep_s = SLEEP_LEAST_S;
    if (sleep_s > SLEEP_MOST_S) sleep_s = SLEEP_MOST_S;
    nanosleep(&(struct timespec){.tv_nsec = (long)(sleep_s * 1e9)}, NULL);
}

static int test_until_done(struct collective_mpi *m, const char *what, const size_t *expected) {
    MPI_Status statuses[2 * REDUCE_MAX];
    struct liveness_wait w = {.what = what,
                              .since_s = now_seconds(),
                              .deadline_s = m->peers.impl.head.deadline_s,
                              .missing = expected ? is_missing : NULL,
                              .ctx = m};
    prctl(PR_SET_TIMERSLACK, SLEEP_SLACK_NS);
    for (;;) {
        int done = 0, rc = MPI_Testall(2 * m->peers.impl.head.size, m->requests, &done, statuses);
        if (rc == MPI_ERR_IN_STATUS) {
            for (int i = 0; i < 2 * m->peers.impl.head.size; i++)
                if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
                    rc = statuses[i].MPI_ERROR;
        }
        if (rc != MPI_SUCCESS) {
            mpi_fail(m, what, rc);
            break;
        }
        if (done) return expected ? check_lengths(m, what, expected, statuses) : 0;
        if (peers_check(&m->peers, &w)) break;
        pause_between_tests(w.since_s);
    }
    return -1;
}

// Waits for all of m->requests; the deadline and an abort end it. expected[i]: bytes from rank i, or 0; NULL: not
// compared, and the requests are the library's own. Returns 0, or -1 after keeping the error.
static int wait_all(struct collective_mpi *m, const char *what, const size_t *expected) {
    peers_wait_begins(&m->peers);
    int rc = test_until_done(m, what, expected);
    peers_wait_ends(&m->peers);
    return rc;
}

// ---------------------------------------------------------------- exchanges
static size_t message_bytes(size_t total, size_t at) {
    if (total <= at) return 0;
    return total - at < MESSAGE_BYTES ? total - at : MESSAGE_BYTES;
}

// A recv receives the message of a send: both have the same tag.
static int tag_of(enum collective_primitive p) { return p == COLLECTIVE_RECV ? COLLECTIVE_SEND : (int)p; }

// Posts the messages that begin at byte `at` of every transfer. Returns an MPI error code.
static int post_messages(struct collective_mpi *m, enum collective_primitive p, size_t at) {
    int size = m->peers.impl.head.size, rank = m->peers.impl.head.rank;
    for (int i = 0; i < 2 * size; i++) m->requests[i] = MPI_REQUEST_NULL;
    for (int k = 1; k < size; k++) {
        int to = (rank + k) % size, from = (rank + size - k) % size;  // every rank begins with another peer
        const struct collective_transfer *in = &m->peers.transfers[from], *out = &m->peers.transfers[to];
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

// Posts the messages of m->peers.transfers. Returns 0, or -1 after peers_fail.
static int begin_exchange(struct collective_peers *peers, enum collective_primitive p) {
    struct collective_mpi *m = (struct collective_mpi *)peers;
    int rc = post_messages(m, p, 0);
    if (rc == MPI_SUCCESS) return 0;
    mpi_fail(m, collective_name(p), rc);
    drop_requests(m);
    return -1;
}

// Waits for the transfers and counts their bytes. Returns 0, or -1 after peers_fail.
static int end_exchange(struct collective_peers *peers, enum collective_primitive p) {
    struct collective_mpi *m = (struct collective_mpi *)peers;
    size_t longest = 1, expected[REDUCE_MAX] = {0};
    for (int i = 0; i < m->peers.impl.head.size; i++) {
        if (m->peers.transfers[i].send_bytes > longest) longest = m->peers.transfers[i].send_bytes;
        if (m->peers.transfers[i].recv_bytes > longest) longest = m->peers.transfers[i].recv_bytes;
    }
    for (size_t at = 0; at < longest; at += MESSAGE_BYTES) {
        int rc = at ? post_messages(m, p, at) : MPI_SUCCESS;
        for (int i = 0; i < m->peers.impl.head.size; i++)
            expected[i] = message_bytes(m->peers.transfers[i].recv_bytes, at);
        if (rc != MPI_SUCCESS) mpi_fail(m, collective_name(p), rc);
        if (rc != MPI_SUCCESS || wait_all(m, collective_name(p), expected) != 0) {
            drop_requests(m);
            return -1;
        }
        peers_count(peers, p, at, MESSAGE_BYTES);
    }
    return 0;
}

// Lets an exchange progress: testing an incomplete message makes Open MPI progress all of them.
static void push_exchange(struct collective_peers *peers) {
    struct collective_mpi *m = (struct collective_mpi *)peers;
    int done = 1;
    for (int i = 0; i < 2 * m->peers.impl.head.size && done; i++)
        if (m->requests[i] != MPI_REQUEST_NULL)
            MPI_Request_get_status(m->requests[i], &done, MPI_STATUS_IGNORE);
}

// ---------------------------------------------------------------- the library's own reductions
// Returns the library's type, or MPI_DATATYPE_NULL for 16-bit floats, which it does not have.
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

static MPI_Op native_op(enum reduction how) {
    switch (how) {
        case REDUCTION_MIN:
            return MPI_MIN;
        case REDUCTION_MAX:
            return MPI_MAX;
        case REDUCTION_PROD:
            return MPI_PROD;
        case REDUCTION_LOR:
            return MPI_LOR;
        default:
            return MPI_SUM;
    }
}

static int wait_native(struct collective_mpi *m, enum collective_primitive p, int rc, MPI_Request request) {
    for (int i = 1; i < 2 * m->peers.impl.head.size; i++) m->requests[i] = MPI_REQUEST_NULL;
    if (rc != MPI_SUCCESS) return mpi_fail(m, collective_name(p), rc);
    m->requests[0] = request;
    return wait_all(m, collective_name(p), NULL);
}

// The library's blocks must be contiguous and may not overlap its result, but ours do in place. So chunks of all
// blocks are packed into staging, and the result is copied from there.
//     staging | chunk for rank 0 | .. | chunk for rank size-1 | result |
static int native_reduce_scatter(struct collective_mpi *m, const struct collective_call *c, MPI_Datatype type,
                                 const struct collective_room *staging) {
    size_t e = dtype_size(c->dt), size = (size_t)m->peers.impl.head.size,
           slot = staging->bytes / (size + 1) / e;
    for (size_t done = 0; done < c->count; done += slot) {
        size_t n = c->count - done < slot ? c->count - done : slot;
        for (size_t i = 0; i < size; i++)
            memcpy(staging->at + i * n * e, (const char *)c->send + (i * c->count + done) * e, n * e);
        MPI_Request request = MPI_REQUEST_NULL;
        int rc = MPI_Ireduce_scatter_block(staging->at, staging->at + size * n * e, (int)n, type,
                                           native_op(c->reduction), m->comm, &request);
        if (wait_native(m, c->primitive, rc, request) != 0) return -1;
        memcpy((char *)c->recv + done * e, staging->at + size * n * e, n * e);
    }
    return 0;
}

static int native_all_reduce(struct collective_mpi *m, const struct collective_call *c, MPI_Datatype type) {
    size_t e = dtype_size(c->dt), most = MESSAGE_BYTES / e;
    bool all = c->primitive == COLLECTIVE_ALL_REDUCE, root = m->peers.impl.head.rank == c->root;
    bool in_place = c->send == c->recv && (all || root);
    for (size_t done = 0; done < c->count; done += most) {
        int n = (int)(c->count - done < most ? c->count - done : most), rc;
        const void *send = in_place ? MPI_IN_PLACE : (const char *)c->send + done * e;
        void *recv = c->recv ? (char *)c->recv + done * e : NULL;
        MPI_Request request = MPI_REQUEST_NULL;
        if (all)
            rc = MPI_Iallreduce(send, recv, n, type, native_op(c->reduction), m->comm, &request);
        else
            rc = MPI_Ireduce(send, recv, n, type, native_op(c->reduction), c->root, m->comm, &request);
        if (wait_native(m, c->primitive, rc, request) != 0) return -1;
    }
    return 0;
}

// The library moves the bytes itself, so the volume is counted by the formula.
static int run_native(struct collective_peers *peers, const struct collective_call *c,
                      const struct collective_room *staging) {
    struct collective_mpi *m = (struct collective_mpi *)peers;
    MPI_Datatype type = native_type(c->dt);
    if (type == MPI_DATATYPE_NULL)
        return collective_impl_fail(&m->peers.impl,
                                    "%s: MPI reduces no %s natively; use the ordered "
                                    "reduction (\"reduce\": \"ordered\") or fp32",
                                    collective_name(c->primitive), dtype_name(c->dt));
    int rc = c->primitive == COLLECTIVE_REDUCE_SCATTER ? native_reduce_scatter(m, c, type, staging)
                                                       : native_all_reduce(m, c, type);
    if (rc != 0) return rc;
    struct collective_plan p = collective_plan_of(c, m->peers.impl.head.rank, m->peers.impl.head.size);
    struct collective_volume v = collective_native_volume(&p);
    collective_count(m->peers.impl.head.wire, m->peers.impl.head.control, v.sent, v.received);
    return 0;
}

// ---------------------------------------------------------------- the table
static void mpi_destroy(struct collective *c) {
    struct collective_mpi *m = (struct collective_mpi *)c;
    // A broken world keeps MPI's objects: messages that refer to them may still be in flight.
    if (!atomic_load(&m->world->broken)) {
        if (m->comm != MPI_COMM_NULL) MPI_Comm_free(&m->comm);
    }
    peers_fini(&m->peers);
    free(m->requests);
    if (!atomic_load(&m->world->broken)) free(m);
}

static const struct collective_ops mpi_ops = {
    .name = "mpi",
    .enqueue = collective_impl_enqueue,
    .abort = peers_abort,
    .destroy = mpi_destroy,
};

// Duplicates the world's communicator; all ranks must call it in the same order. Returns 0, or -1 after keeping the
// error.
static int open_communicator(struct collective_mpi *m) {
    for (int i = 0; i < 2 * m->peers.impl.head.size; i++) m->requests[i] = MPI_REQUEST_NULL;
    int rc = MPI_Comm_idup(MPI_COMM_WORLD, &m->coming, &m->requests[0]);
    if (rc != MPI_SUCCESS) return mpi_fail(m, "duplicating the communicator", rc);
    if (wait_all(m, "duplicating the communicator", NULL) != 0) return -1;
    m->comm = m->coming;
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    return 0;
}

static const struct peers_engine exchange = {
    .begin = begin_exchange, .end = end_exchange, .push = push_exchange, .native = run_native};

static struct collective *create(void *world, int rank, int channel, const struct collective_options *o) {
    struct mpi_world *w = world;
    struct collective_mpi *m = xcalloc(1, sizeof *m);
    (void)rank;
    m->peers.impl.channel = channel;
    m->peers.impl.lives = w->lives;
    m->peers.engine = &exchange;
    m->peers.broken = &w->broken;
    m->world = w;
    if (peers_init(&m->peers, &mpi_ops, w->rank, w->size, o)) {
        free(m);
        return NULL;
    }
    m->comm = MPI_COMM_NULL;
    m->requests = xcalloc(2 * (unsigned long)w->size, sizeof *m->requests);
    if (open_communicator(m) == 0) return &m->peers.impl.head;
    fail("rank %d: %s", w->rank, collective_error(&m->peers.impl.head));
    mpi_destroy(&m->peers.impl.head);
    return NULL;
}

extern const struct mpi_engine starring_mpi_engine;
const struct mpi_engine starring_mpi_engine = {world_open, world_close, create, broadcast_text};
