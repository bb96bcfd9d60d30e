#include "decentral/collective/rank_liveness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/operations.h"
#include "shared/core/error.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/stop.h"

#define CHECKS           32  // the number of checks in the time after which a rank counts as silent
#define CHECK_LEAST_S    0.05
#define CHECK_MOST_S     0.5
#define LEAST_S          0.5  // a shorter silence does not count, since the machine may be loaded
#define SILENT_DEADLINES 1.4  // a wait for silent ranks ends after so many deadlines

struct rank_state {
    double last_heartbeat_s,
        worked_s;  // times on the clock of reports: of the last heartbeat; when the rank last worked, and
                   // the kind of that work:
    enum dev_work work;
    uint16_t heartbeat;  // the last known heartbeat
    bool logged;         // the rank was already logged as slow
    // For a rank of this process:
    struct device *dev;  // NULL: none yet, or none any more:
    bool had_device;     // the rank has had a device
};

struct rank_liveness {
    int rank, size;
    struct rendezvous *meet;       // NULL: no source of heartbeats
    struct end_reason own, *end;   // end points to own if ranks share no memory
    _Atomic uint16_t *heartbeats;  // NULL: no shared memory
    pthread_mutex_t lock;          // guards all below
    bool waiting;                  // the main thread waits for other ranks, which does not count as work
    int64_t reports;               // the number of reports so far
    double clock_s, since_s;       // clock_s: the clock of reports; since_s: when the present checks began
    double reported_s;             // time of the last report, on the host's clock
    // The number of next reports that may contain heartbeats of unknown age.
    int stale_reports;
    struct rank_state ranks[];
};

static double later(double a, double b) { return a > b ? a : b; }

static double sooner(double a, double b) { return a < b ? a : b; }

// Returns the seconds without a heartbeat after which a rank counts as silent, and without work after which it counts
// as idle.
static double window(double deadline_s) { return later(deadline_s / 2, LEAST_S); }

// Returns the seconds between two checks of a waiting rank. The clock of reports also advances by at most as much from
// one report to the next.
static double step(double deadline_s) {
    return sooner(later(window(deadline_s) / CHECKS, CHECK_LEAST_S), CHECK_MOST_S);
}

// ---------------------------------------------------------------- heartbeats
// With the lock held.
static void note_heartbeat(struct rank_liveness *l, int rank, enum dev_work work) {
    struct rank_state *r = &l->ranks[rank];
    r->last_heartbeat_s = l->clock_s;
    if (work == DEV_IDLE) return;
    r->worked_s = l->clock_s;
    r->work = work;
}

// Returns what a rank of this process does. With the lock held. A rank without a device yet counts as working: it
// reads files.
static enum dev_work work_of(const struct rank_liveness *l, int rank) {
    const struct rank_state *r = &l->ranks[rank];
    enum dev_work work = r->dev ? dev_at_work(r->dev) : r->had_device ? DEV_IDLE : DEV_HOST_WORKS;
    return l->waiting && work == DEV_HOST_WORKS ? DEV_IDLE : work;
}

// Called by the rendezvous, on its thread, for each heartbeat.
static int report_work(void *liveness) {
    struct rank_liveness *l = liveness;
    pthread_mutex_lock(&l->lock);
    int work = (int)work_of(l, l->rank);
    if (l->heartbeats) l->heartbeats[l->rank] = meet_heartbeat(l->heartbeats[l->rank], work);
    pthread_mutex_unlock(&l->lock);
    return work;
}

// With the lock held. A rank without any heartbeat counts as working on the host: if a signal has stopped it, its
// launcher ends it.
static void read_heartbeats(struct rank_liveness *l, const uint16_t *reported) {
    for (int i = 0; i < l->size; i++) {
        uint16_t heartbeat = reported ? reported[i] : l->heartbeats[i];
        int at = heartbeat ? heartbeat & 255 : DEV_HOST_WORKS;
        bool fresh = !heartbeat || (!l->stale_reports && heartbeat != l->ranks[i].heartbeat);
        if (fresh && at <= DEV_HOST_WORKS) note_heartbeat(l, i, (enum dev_work)at);
        l->ranks[i].heartbeat = heartbeat;
    }
    l->stale_reports -= l->stale_reports > 0;
}

// Reads what all ranks do, if a report is due. A report of the rendezvous is consumed, and the next one is requested.
static void take_report(struct rank_liveness *l, const struct liveness_wait *w) {
    double step_s = step(w->deadline_s);
    bool asks = l->meet && !l->heartbeats;
    size_t bytes = 0;
    uint16_t *reported = asks ? rendezvous_try_get(l->meet, MEET_HEARTBEATS, &bytes) : NULL;
    if (reported) (void)rendezvous_try_get(l->meet, MEET_HEARTBEATS, &(size_t){0});
    double now = now_seconds();
    pthread_mutex_lock(&l->lock);
    bool due = now >= l->reported_s + step_s / 2, known = bytes == (size_t)l->size * sizeof *reported;
    if (due && (!asks || known)) {
        if (l->reported_s < w->since_s) {  // the last report precedes this wait: it is stale
            l->since_s = l->clock_s += 2 * window(w->deadline_s);
            l->stale_reports = 2;
        }
        l->clock_s += sooner(now - l->reported_s, step_s);
        l->reported_s = now;
        l->reports++;
        if (l->rank >= 0) read_heartbeats(l, reported);
        for (int i = 0; i < l->size; i++)
            if (l->rank < 0 || i == l->rank) note_heartbeat(l, i, work_of(l, i));
    }
    pthread_mutex_unlock(&l->lock);
    free(reported);
}

// ---------------------------------------------------------------- create and destroy
struct rank_liveness *rank_liveness_open(int rank, int size) {
    struct rank_liveness *l = xcalloc(1, sizeof *l + (size_t)size * sizeof *l->ranks);
    l->rank = rank;
    l->size = size;
    l->end = &l->own;
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

void rank_liveness_set_rendezvous(struct rank_liveness *l, struct rendezvous *meet) {
    l->meet = meet;
    rendezvous_set_activity(meet, report_work, l);
    rendezvous_on_loss(meet, rank_liveness_receive_reason, l);
}

void rank_liveness_share(struct rank_liveness *l, struct end_reason *end, _Atomic uint16_t *heartbeats) {
    pthread_mutex_lock(&l->lock);
    l->end = end ? end : &l->own;
    l->heartbeats = heartbeats;
    // A heartbeat other than 0 shows that this rank has joined.
    if (heartbeats) heartbeats[l->rank] = meet_heartbeat(0, DEV_HOST_WORKS);
    pthread_mutex_unlock(&l->lock);
}

void rank_liveness_close(struct rank_liveness **liveness) {
    struct rank_liveness *l = *liveness;
    if (!l) return;
    pthread_mutex_destroy(&l->lock);
    free(l);
    *liveness = NULL;
}

void rank_liveness_set_device(struct rank_liveness *l, int rank, struct device *dev) {
    pthread_mutex_lock(&l->lock);
    l->ranks[rank].dev = dev;
    l->ranks[rank].had_device = !dev;
    pthread_mutex_unlock(&l->lock);
}

void rank_liveness_set_waiting(struct rank_liveness *l, bool waiting) {
    pthread_mutex_lock(&l->lock);
    l->waiting = waiting;
    pthread_mutex_unlock(&l->lock);
}

// ---------------------------------------------------------------- waits
// Logs a slow rank. One rank does so, the first that is not working itself. With the lock held.
static void log_slow(struct rank_liveness *l, const struct liveness_wait *w, int rank, const bool *work) {
    struct rank_state *r = &l->ranks[rank];
    for (int i = 0; i < l->rank; i++)
        if (i != rank && !work[i]) return;
    if (r->logged) return;
    r->logged = true;
    info("waiting for rank %d: %.0f s in %s, %s", rank, now_seconds() - w->since_s, w->what,
         dev_work_text(r->work));
}

// Returns whether a wait continues after its deadline. silent receives the missing ranks that give no heartbeat. With
// the lock held.
static bool wait_continues(struct rank_liveness *l, const struct liveness_wait *w, const bool *missing,
                           bool *silent) {
    double window_s = window(w->deadline_s);
    bool alive = true, any_works = false, one_missing_works = false, work[REDUCE_MAX];
    for (int i = 0; i < l->size; i++) {
        const struct rank_state *r = &l->ranks[i];
        silent[i] = missing[i] && l->clock_s - later(r->last_heartbeat_s, l->since_s) > window_s;
        alive = alive && !silent[i];
        work[i] = l->clock_s - r->worked_s <= window_s;
        any_works = any_works || work[i];
        one_missing_works = one_missing_works || (missing[i] && work[i]);
    }
    if (!alive) return now_seconds() - w->since_s <= SILENT_DEADLINES * w->deadline_s;
    for (int i = 0; i < l->size; i++)
        if (work[i] && i != l->rank && (missing[i] || !one_missing_works)) log_slow(l, w, i, work);
    return any_works || l->clock_s - l->since_s <= window_s;
}

bool rank_liveness_wait_failed(struct rank_liveness *l, struct liveness_wait *w, char *why,
                               size_t why_bytes) {
    double now = now_seconds(), waited_s = now - w->since_s;
    bool missing[REDUCE_MAX], silent[REDUCE_MAX] = {false}, any = false, on = true;
    if (w->deadline_s <= 0 || waited_s <= w->deadline_s / 2 || now < w->next_check_s) return false;
    w->next_check_s = now + step(w->deadline_s);
    if (l->meet || l->rank < 0) take_report(l, w);
    if (waited_s <= w->deadline_s) return false;
    for (int i = 0; i < l->size; i++) missing[i] = w->missing ? w->missing(w->ctx, i) : i != l->rank;
    // If rank 0 hosts the rendezvous, rank 0 is silent when the rendezvous is.
    bool rank_0_silent =
        l->rank > 0 && l->meet && !l->heartbeats && rendezvous_silent_s(l->meet) > window(w->deadline_s);
    pthread_mutex_lock(&l->lock);
    if (!l->meet && l->rank >= 0)
        on = false;
    else if (rank_0_silent)
        on = !(silent[0] = missing[0]) || waited_s <= SILENT_DEADLINES * w->deadline_s;
    else if (w->decided != l->reports)
        on = wait_continues(l, w, missing, silent);
    w->decided = l->reports;
    pthread_mutex_unlock(&l->lock);
    if (on) return false;
    for (int i = 0; i < l->size; i++) any = any || silent[i];
    // The list of these ranks, "3, 5"; one that does not fit ends in "...".
    char ranks[128] = "(some other)";
    size_t used = 0;
    for (int i = 0; i < l->size && (any || w->missing); i++) {
        if (!(any ? silent : missing)[i]) continue;
        bool room = used + 24 <= sizeof ranks;
        used +=
            (size_t)snprintf(ranks + used, sizeof ranks - used, room ? "%s%d" : ", ...", used ? ", " : "", i);
        if (!room) break;
    }
    snprintf(why, why_bytes, "rank %s did not come within %g s%s", ranks, w->deadline_s,
             any ? " and sends no heartbeat" : "");
    return true;
}

// ---------------------------------------------------------------- the end
bool rank_liveness_end_all(struct rank_liveness *l, const char *why, bool lost) {
    bool first = end_reason_claim(l->end);
    if (lost) stop_run_lost(first ? why : NULL);
    if (first) end_reason_write(l->end, why);
    return first && l->end == &l->own;
}

void rank_liveness_send_reason(struct rank_liveness *l, const char *why) {
    if (l->meet) rendezvous_abort(l->meet, why);
}

void rank_liveness_receive_reason(void *liveness, const char *why) {
    struct rank_liveness *l = liveness;
    pthread_mutex_lock(&l->lock);
    if (end_reason_claim(l->end)) end_reason_write(l->end, why);
    pthread_mutex_unlock(&l->lock);
}

const char *rank_liveness_end_reason(struct rank_liveness *l) { return end_reason_get(l->end); }
