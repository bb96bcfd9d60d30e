// The pause of a wait over MPI between two tests: Open MPI has no call that sleeps until a message comes, in time.
#ifndef STARRING_DECENTRAL_MPI_MPI_PAUSE_H
#define STARRING_DECENTRAL_MPI_MPI_PAUSE_H

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include "shared/core/error.h"

#define YIELD_S        200e-6  // then sleep between tests:
#define SLEEP_SHARE    16      // this part of the wait so far, so that it ends at most so much later
#define SLEEP_LEAST_S  10e-6
#define SLEEP_SLACK_NS 1000    // the kernel would add 50 us
#define SLEEP_MOST_S   200e-6  // tcp's buffers must not run empty meanwhile: 250 kB at 10 Gbit/s

static inline void pause_begin(void) { prctl(PR_SET_TIMERSLACK, SLEEP_SLACK_NS); }

// Between tests that found nothing done. start: of the wait. Where ranks share cores a wait is long because the peer
// computes, and every test takes from its time.
static inline void pause_between_tests(double start) {
    double waited_s = now_seconds() - start, sleep_s = waited_s / SLEEP_SHARE;
    if (waited_s < YIELD_S) {
        sched_yield();
        return;
    }
    if (sleep_s < SLEEP_LEAST_S) sleep_s = SLEEP_LEAST_S;
    if (sleep_s > SLEEP_MOST_S) sleep_s = SLEEP_MOST_S;
    nanosleep(&(struct timespec){.tv_nsec = (long)(sleep_s * 1e9)}, NULL);
}

#endif
