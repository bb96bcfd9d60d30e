#include "decentral/collective/rank_lives.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/collective_impl.h"
#include "kernels/backend.h"
#include "kernels/operations.h"
#include "shared/core/error.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/stop.h"

#define LOOKS            32  // checks within the time after which a rank counts as silent
#define LOOK_LEAST_S     0.05
#define LOOK_MOST_S      0.5
#define LEAST_S          0.5  // the least silence that counts: the machine may be loaded
#define SILENT_DEADLINES 1.4  // deadlines after which a wait for silent ranks ends

struct lives_rank {
    double heard_s, worked_s;  // on the clock of reports: the last heartbeat; the last time it worked, and
                               // at what:
    enum dev_work work;
    uint16_t sign;  // the last known heartbeat
    bool named;     // it was logged as slow
    // For a rank of this process:
    struct device *dev;  // NULL: none yet, or none any more:
    bool left;           // it has had a device
};

struct rank_lives {
    int rank, size;
    struct rendezvous *meet;     // NULL: no source of heartbeats
    struct last_word own, *end;  // own: if ranks share no memory
    _Atomic uint16_t *signs;     // NULL: no shared memory
    pthread_mutex_t lock;        // guards all below
    bool waits;                  // the main thread waits for other ranks; its own work does not count
    int64_t reports;             // how many there were
    double told_s, since_s;      // told_s: the clock of reports; since_s: when the present checks began
    double looked_s;             // time of the last report, on the host's clock
    // How many of the next reports may contain old heartbeats: their age is not known.
    int unsure;
    struct lives_rank ranks[];
};

static double later(double a, double b) { return a > b ? a : b; }

static double sooner(double a, double b) { return a < b ? a : b; }

// Returns the seconds without a heartbeat after which a rank counts as silent, and without work after which it counts
// as idle.
static double window(double deadline_s) { return later(deadline_s / 2, LEAST_S); }

// Returns the pause between two checks of a waiting rank. At most so much of the time between two reports is counted.
static double step(double deadline_s) {
    return sooner(later(window(deadline_s) / LOOKS, LOOK_LEAST_S), LOOK_MOST_S);
}

// ---------------------------------------------------------------- heartbeats
// With the lock held.
static void note(struct rank_lives *l, int rank, enum dev_work work) {
    struct lives_rank *r = &l->ranks[rank];
    r->heard_s = l->told_s;
    if (work == DEV_RESTS) return;
    r->worked_s = l->told_s;
    r->work = work;
}

// Returns what a rank of this process does. With the lock held. A rank without a device yet counts as working: it
// reads files.
static enum dev_work look_at(const struct rank_lives *l, int rank) {
    const struct lives_rank *r = &l->ranks[rank];
    enum dev_work work = r->dev ? dev_at_work(r->dev) : r->left ? DEV_RESTS : DEV_HOST_WORKS;
    return l->waits && work == DEV_HOST_WORKS ? DEV_RESTS : work;
}

// Called by the rendezvous, on its thread, for each heartbeat.
static int is_at(void *lives) {
    struct rank_lives *l = lives;
    pthread_mutex_lock(&l->lock);
    int work = (int)look_at(l, l->rank);
    if (l->signs) l->signs[l->rank] = meet_heartbeat(l->signs[l->rank], work);
    pthread_mutex_unlock(&l->lock);
    return work;
}

// With the lock held. A rank without any heartbeat counts as working on the host: if a signal has stopped it, its
// launcher ends it.
static void hear(struct rank_lives *l, const uint16_t *told) {
    for (int i = 0; i < l->size; i++) {
        uint16_t sign = told ? told[i] : l->signs[i];
        int at = sign ? sign & 255 : DEV_HOST_WORKS;
        bool comes = !sign || (!l->unsure && sign != l->ranks[i].sign);
        if (comes && at <= DEV_HOST_WORKS) note(l, i, (enum dev_work)at);
        l->ranks[i].sign = sign;
    }
    l->unsure -= l->unsure > 0;
}

// Takes a report of all ranks. If it comes from the rendezvous, the next one is requested.
static void look(struct rank_lives *l, const struct lives_wait *w) {
    double step_s = step(w->deadline_s);
    bool asks = l->meet && !l->signs;
    size_t bytes = 0;
    uint16_t *told = asks ? rendezvous_try_get(l->meet, MEET_HEARTBEATS, &bytes) : NULL;
    if (told) (void)rendezvous_try_get(l->meet, MEET_HEARTBEATS, &(size_t){0});
    double now = now_seconds();
    pthread_mutex_lock(&l->lock);
    bool due = now >= l->looked_s + step_s / 2, known = bytes == (size_t)l->size * sizeof *told;
    if (due && (!asks || known)) {
        if (l->looked_s < w->since_s) {  // no rank has waited for long before
            l->since_s = l->told_s += 2 * window(w->deadline_s);
            l->unsure = 2;
        }
        l->told_s += sooner(now - l->looked_s, step_s);
        l->looked_s = now;
        l->reports++;
        if (l->rank >= 0) hear(l, told);
        for (int i = 0; i < l->size; i++)
            if (l->rank < 0 || i == l->rank) note(l, i, look_at(l, i));
    }
    pthread_mutex_unlock(&l->lock);
    free(told);
}

// If rank 0 hosts the rendezvous, rank 0 is silent when the rendezvous is.
static bool is_rank_0_silent(const struct rank_lives *l, double deadline_s) {
    return !l->signs && rendezvous_silent_s(l->meet) > window(deadline_s);
}

// ---------------------------------------------------------------- create and destroy
struct rank_lives *rank_lives_open(int rank, int size) {
    struct rank_lives *l = xcalloc(1, sizeof *l + (size_t)size * sizeof *l->ranks);
    l->rank = rank;
    l->size = size;
    l->end = &l->own;
    pthread_mutex_init(&l->lock, NULL);
    return l;
}

void rank_lives_meet(struct rank_lives *l, struct rendezvous *meet) {
    l->meet = meet;
    rendezvous_set_activity(meet, is_at, l);
    rendezvous_on_loss(meet, rank_lives_told, l);
}

void rank_lives_share(struct rank_lives *l, struct last_word *end, _Atomic uint16_t *signs) {
    pthread_mutex_lock(&l->lock);
    l->end = end ? end : &l->own;
    l->signs = signs;
    if (signs) signs[l->rank] = meet_heartbeat(0, DEV_HOST_WORKS);  // it has joined
    pthread_mutex_unlock(&l->lock);
}

void rank_lives_close(struct rank_lives **lives) {
    struct rank_lives *l = *lives;
    if (!l) return;
    pthread_mutex_destroy(&l->lock);
    free(l);
    *lives = NULL;
}

void rank_lives_computes(struct rank_lives *l, int rank, struct device *dev) {
    pthread_mutex_lock(&l->lock);
    l->ranks[rank].dev = dev;
    l->ranks[rank].left = !dev;
    pthread_mutex_unlock(&l->lock);
}

void rank_lives_waits(struct rank_lives *l, bool waits) {
    pthread_mutex_lock(&l->lock);
    l->waits = waits;
    pthread_mutex_unlock(&l->lock);
}

// ---------------------------------------------------------------- waits
// Logs a slow rank. One rank does so, the first that is not working itself. With the lock held.
static void name_slow(struct rank_lives *l, const struct lives_wait *w, int rank, const bool *work) {
    struct lives_rank *r = &l->ranks[rank];
    for (int i = 0; i < l->rank; i++)
        if (i != rank && !work[i]) return;
    if (r->named) return;
    r->named = true;
    info("waiting for rank %d: %.0f s in %s, %s", rank, now_seconds() - w->since_s, w->what,
         dev_work_says(r->work));
}

// Returns whether a wait continues after its deadline. silent receives the missing ranks that give no heartbeat. With
// the lock held.
static bool goes_on(struct rank_lives *l, const struct lives_wait *w, const bool *missing, bool *silent) {
    double window_s = window(w->deadline_s);
    bool lives = true, works = false, one_missing_works = false, work[REDUCE_MAX];
    for (int i = 0; i < l->size; i++) {
        const struct lives_rank *r = &l->ranks[i];
        silent[i] = missing[i] && l->told_s - later(r->heard_s, l->since_s) > window_s;
        lives = lives && !silent[i];
        work[i] = l->told_s - r->worked_s <= window_s;
        works = works || work[i];
        one_missing_works = one_missing_works || (missing[i] && work[i]);
    }
    if (!lives) return now_seconds() - w->since_s <= SILENT_DEADLINES * w->deadline_s;
    for (int i = 0; i < l->size; i++)
        if (work[i] && i != l->rank && (missing[i] || !one_missing_works)) name_slow(l, w, i, work);
    return works || l->told_s - l->since_s <= window_s;
}

bool rank_lives_in_vain(struct rank_lives *l, struct lives_wait *w, char *why, size_t why_bytes) {
    double now = now_seconds(), waited_s = now - w->since_s;
    bool missing[REDUCE_MAX], silent[REDUCE_MAX] = {false}, any = false, on = true;
    if (w->deadline_s <= 0 || waited_s <= w->deadline_s / 2 || now < w->look_s) return false;
    w->look_s = now + step(w->deadline_s);
    if (l->meet || l->rank < 0) look(l, w);
    if (waited_s <= w->deadline_s) return false;
    for (int i = 0; i < l->size; i++) missing[i] = w->missing ? w->missing(w->ctx, i) : i != l->rank;
    bool rank_0_silent = l->rank > 0 && l->meet && is_rank_0_silent(l, w->deadline_s);
    pthread_mutex_lock(&l->lock);
    if (!l->meet && l->rank >= 0)
        on = false;
    else if (rank_0_silent)
        on = !(silent[0] = missing[0]) || waited_s <= SILENT_DEADLINES * w->deadline_s;
    else if (w->decided != l->reports)
        on = goes_on(l, w, missing, silent);
    w->decided = l->reports;
    pthread_mutex_unlock(&l->lock);
    if (on) return false;
    for (int i = 0; i < l->size; i++) any = any || silent[i];
    char ranks[128] = "(some other)";
    if (any || w->missing) collective_rank_list(ranks, sizeof ranks, any ? silent : missing, l->size);
    snprintf(why, why_bytes, "rank %s did not come within %g s%s", ranks, w->deadline_s,
             any ? " and gives no sign of life" : "");
    return true;
}

// ---------------------------------------------------------------- the end
bool rank_lives_end(struct rank_lives *l, const char *why, bool lost) {
    bool first = last_word_take(l->end);
    if (lost) stop_run_lost(first ? why : NULL);
    if (first) last_word_say(l->end, why);
    return first && l->end == &l->own;
}

void rank_lives_tell(struct rank_lives *l, const char *why) {
    if (l->meet) rendezvous_abort(l->meet, why);
}

void rank_lives_told(void *lives, const char *why) {
    struct rank_lives *l = lives;
    pthread_mutex_lock(&l->lock);
    if (last_word_take(l->end)) last_word_say(l->end, why);
    pthread_mutex_unlock(&l->lock);
}

const char *rank_lives_ended(struct rank_lives *l) { return last_word(l->end); }
