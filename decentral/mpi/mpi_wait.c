// How a rank over Open MPI waits for its posted requests. It tests them, and between the tests checks whether a rank
// has aborted, whether the deadline has passed, and which ranks are alive.
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "decentral/mpi/mpi_impl.h"
#include "kernels/backend.h"
#include "shared/core/error.h"

int mpi_fail(struct collective_mpi *m, const char *what, int code) {
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

void mpi_give_up_requests(struct collective_mpi *m) {
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
#define YIELD_S        200e-6  // after this time, sleep between tests:
#define SLEEP_SHARE    16      // sleep for this part of the wait so far; the wait ends at most so much later
#define SLEEP_LEAST_S  10e-6
#define SLEEP_SLACK_NS 1000    // the kernel would add 50 us
#define SLEEP_MOST_S   200e-6  // tcp's buffers must not run empty meanwhile: 250 kB at 10 Gbit/s

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

// expected[i]: bytes from rank i, or 0; NULL: not compared.
static int test_until_done(struct collective_mpi *m, const char *what, const size_t *expected) {
    MPI_Status statuses[2 * REDUCE_MAX];
    struct lives_wait w = {.what = what,
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

// Waits for all of m->requests.
int mpi_wait_all(struct collective_mpi *m, const char *what, const size_t *expected) {
    peers_wait_begins(&m->peers);
    int rc = test_until_done(m, what, expected);
    peers_wait_ends(&m->peers);
    return rc;
}
