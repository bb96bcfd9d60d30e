// Distinguishes slow ranks of a ring from dead ones; knows which ranks are working, and why all of them end.
//
// Each process has a rendezvous thread (shared/fabric/rendezvous.h). It sends heartbeats with the state of the rank, also
// while the other threads compute or wait for a file. A process that is stopped or gone sends none. Heartbeats are
// written to the memory that ranks share, which does not depend on the launcher. They are also sent to the rendezvous,
// which passes them to ranks that share no memory. A rank that has waited for half its deadline reads them repeatedly.
// Threads are alive as long as their process, which checks them itself. If there is no source of heartbeats, the
// deadline is final.
//
//     continues while every missing rank is alive, and some rank of the world is working: its device, or its main thread,
//                 which may wait for a file for long
//     gives up    at the deadline, or half a deadline after that has ended; for silent ranks a little later, so that their
//                 launcher, which reports how they ended, comes first
//
// The working rank need not be the missing one, which may itself wait for a third, slow rank. If no rank is working,
// calls differ or a rank is stuck.
//
// Time        Silence is measured in checks, and with a rendezvous in the time that its reports cover. No report
//             arrives while the process of the rendezvous or this one is stopped (Ctrl-Z, no core for a while). Then
//             no rank counts as silent and nothing is decided. The exception is rank 0, whose process hosts the
//             rendezvous.
// End         The first reason to end counts for all ranks: all their waits end with its text (struct end_reason).
//
// Threads     rank_liveness_open, _set_rendezvous, _share, _close: the main thread, one at a time. The others: any.
#ifndef STARRING_DECENTRAL_COLLECTIVE_RANK_LIVENESS_H
#define STARRING_DECENTRAL_COLLECTIVE_RANK_LIVENESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// The reason why all ranks of a job must end; only the first one counts. It is in memory that ranks share, or in a
// process's own, to which it is sent as a message.
#define END_REASON_BYTES 2048

// All zeros: no rank has written a reason.
struct end_reason {
    _Atomic int state;  // 1: it is being written; 2: it is complete
    char text[END_REASON_BYTES];
};

// end_reason_claim returns whether this caller is the first; it then calls end_reason_write. Neither is async-signal-safe.
static inline bool end_reason_claim(struct end_reason *w) {
    int silent = 0;
    return atomic_compare_exchange_strong(&w->state, &silent, 1);
}

static inline void end_reason_write(struct end_reason *w, const char *text) {
    snprintf(w->text, sizeof w->text, "%s", text);
    atomic_store(&w->state, 2);
}

// Returns the reason; NULL: none was written.
static inline const char *end_reason_get(const struct end_reason *w) {
    return atomic_load(&w->state) == 2 ? w->text : NULL;
}

struct device;
struct rank_liveness;
struct rendezvous;

// A wait of this rank.
struct liveness_wait {
    const char *what;  // the name of the operation, printed
    double since_s, deadline_s;
    bool (*missing)(const void *ctx,
                    int rank);  // whether the rank has not arrived; NULL: unknown (a library's call)
    const void *ctx;
    // Private to rank_liveness_wait_failed: when it checks next, and the last report that it has used
    double next_check_s;
    int64_t decided;
};

// rank -1: the ranks are threads of this process.
struct rank_liveness *rank_liveness_open(int rank, int size);
// The rendezvous through which heartbeats are exchanged. Close the rendezvous before l.
void rank_liveness_set_rendezvous(struct rank_liveness *l, struct rendezvous *meet);
// Shared memory of the ranks: the reason to end is written there. heartbeats: (size) heartbeats that processes write there;
// NULL for threads. end NULL: the memory is no longer shared.
void rank_liveness_share(struct rank_liveness *l, struct end_reason *end, _Atomic uint16_t *heartbeats);
void rank_liveness_close(struct rank_liveness **l);
// Sets the device that a rank of this process computes on; NULL: none any more. Before the first call the rank counts
// as working: it is starting.
void rank_liveness_set_device(struct rank_liveness *l, int rank, struct device *dev);
// Called when the main thread itself begins or ends a wait for other ranks.
void rank_liveness_set_waiting(struct rank_liveness *l, bool waiting);
// Returns whether a wait cannot succeed; called repeatedly during the wait. A slow rank is logged once per rank and
// job. why receives, if true, which ranks did not arrive, as it is printed.
bool rank_liveness_wait_failed(struct rank_liveness *l, struct liveness_wait *w, char *why, size_t why_bytes);

// Ends all ranks, unless an earlier reason exists. lost: a rank is lost. Then, if the run may be restarted, this
// process exits here (stop_run_lost), and the first one reports why, only to its launcher, which ends the others.
// Returns whether the caller must send the reason to the other ranks.
bool rank_liveness_end_all(struct rank_liveness *l, const char *why, bool lost);
void rank_liveness_send_reason(struct rank_liveness *l,
                               const char *why);  // Sends the reason through the rendezvous.
// Takes a reason that another rank has sent.
void rank_liveness_receive_reason(void *lives, const char *why);
// Returns why all ranks end; NULL: they continue.
const char *rank_liveness_end_reason(struct rank_liveness *l);

#endif
