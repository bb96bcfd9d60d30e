#include "decentral/collective/rank_pulse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/operations.h"
#include "shared/core/error.h"

#define TICK_NS 20000000  // between looks; an answer takes two of them
#define ASKS    16        // per deadline
#define LEAST_S 0.5       // of what counts as silence, however short the deadline is: a loaded machine

struct rank_pulse {
    int rank, size;
    const struct pulse_ways *ways;
    void *ctx;
    pthread_t thread;
    atomic_bool ending;
    pthread_mutex_t lock;           // guards what follows down to named
    struct device *dev;             // NULL: none yet, or none any more:
    bool left;                      // this rank has had one
    bool waits;                     // the main thread, beside the device, for others
    double since_s, until_s;        // others are asked from .. to
    double every_s;                 // between two questions
    double answered_s[REDUCE_MAX];  // when each rank last answered
    double worked_s[REDUCE_MAX];    // and was at work, and at what:
    enum dev_work work[REDUCE_MAX];
    bool wants[REDUCE_MAX];  // has asked and has not been answered
    bool named[REDUCE_MAX];  // as slow
    double asked_s;          // the thread's own
};

// ---------------------------------------------------------------- words
// With the lock held.
static void note_work(struct rank_pulse *p, int rank, enum dev_work work) {
    if (work == DEV_RESTS) return;
    p->worked_s[rank] = now_seconds();
    p->work[rank] = work;
}

// A rank that has no device yet is on its way to it, by files.
static enum dev_work at_work(struct rank_pulse *p) {
    pthread_mutex_lock(&p->lock);
    enum dev_work work = p->dev ? dev_at_work(p->dev) : p->left ? DEV_RESTS : DEV_HOST_WORKS;
    if (p->waits && work == DEV_HOST_WORKS) work = DEV_RESTS;
    note_work(p, p->rank, work);
    pthread_mutex_unlock(&p->lock);
    return work;
}

void rank_pulse_heard(struct rank_pulse *p, int from, enum pulse_word word, char at) {
    pthread_mutex_lock(&p->lock);
    if (word == PULSE_ASK) {
        p->wants[from] = true;
    } else {
        p->answered_s[from] = now_seconds();
        note_work(p, from, (enum dev_work)at);
    }
    pthread_mutex_unlock(&p->lock);
}

static void answer(struct rank_pulse *p) {
    for (int i = 0; i < p->size; i++) {
        pthread_mutex_lock(&p->lock);
        bool wants = p->wants[i];
        p->wants[i] = false;
        pthread_mutex_unlock(&p->lock);
        if (!wants || p->ways->send(p->ctx, i, PULSE_TELL, (char)at_work(p))) continue;
        rank_pulse_heard(p, i, PULSE_ASK, 0);
    }
}

static void ask(struct rank_pulse *p) {
    double now = now_seconds();
    pthread_mutex_lock(&p->lock);
    bool due = now < p->until_s && now >= p->asked_s + p->every_s;
    pthread_mutex_unlock(&p->lock);
    if (!due) return;
    p->asked_s = now;
    char at = (char)at_work(p);
    for (int i = 0; i < p->size; i++)
        if (i != p->rank) p->ways->send(p->ctx, i, PULSE_ASK, at);
}

static void *pulse_main(void *arg) {
    struct rank_pulse *p = arg;
    while (!atomic_load(&p->ending)) {
        p->ways->look(p->ctx, p);
        answer(p);
        ask(p);
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
    }
    return NULL;
}

// ---------------------------------------------------------------- life
struct rank_pulse *rank_pulse_start(int rank, int size, const struct pulse_ways *ways, void *ctx) {
    struct rank_pulse *p = xcalloc(1, sizeof *p);
    p->rank = rank;
    p->size = size;
    p->ways = ways;
    p->ctx = ctx;
    atomic_init(&p->ending, false);
    pthread_mutex_init(&p->lock, NULL);
    if (pthread_create(&p->thread, NULL, pulse_main, p) == 0) return p;
    fail("cannot start the thread that tells other ranks that rank %d lives: lower --threads", rank);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
}

void rank_pulse_stop(struct rank_pulse **pulse) {
    struct rank_pulse *p = *pulse;
    if (!p) return;
    atomic_store(&p->ending, true);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    free(p);
    *pulse = NULL;
}

void rank_pulse_computes(struct rank_pulse *p, struct device *dev) {
    pthread_mutex_lock(&p->lock);
    p->dev = dev;
    p->left = !dev;
    pthread_mutex_unlock(&p->lock);
}

void rank_pulse_waits(struct rank_pulse *p, bool waits) {
    pthread_mutex_lock(&p->lock);
    p->waits = waits;
    pthread_mutex_unlock(&p->lock);
}

// ---------------------------------------------------------------- those who wait
static double later(double a, double b) { return a > b ? a : b; }

void rank_pulse_ask(struct rank_pulse *p, double deadline_s) {
    double now = now_seconds();
    pthread_mutex_lock(&p->lock);
    if (now >= p->until_s) p->since_s = now;
    p->until_s = now + deadline_s / 4;
    p->every_s = deadline_s / ASKS;
    pthread_mutex_unlock(&p->lock);
}

// One rank of all says it: rank 0, and of rank 0 rank 1. With the lock held.
static void name_slow(struct rank_pulse *p, const struct pulse_wait *w, int rank) {
    if (p->named[rank] || p->rank != (rank == 0)) return;
    p->named[rank] = true;
    info("waiting for rank %d: %.0f s in %s, %s", rank, w->waited_s, w->what, dev_work_says(p->work[rank]));
}

bool rank_pulse_slow(struct rank_pulse *p, const struct pulse_wait *w, bool *silent) {
    double now = now_seconds(), window_s = later(w->deadline_s / 2, LEAST_S);
    bool lives = true, works = false, one_missing_works = false, work[REDUCE_MAX] = {false};
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < p->size; i++) {
        silent[i] = w->missing[i] && now - later(p->answered_s[i], p->since_s) > window_s;
        lives = lives && !silent[i];
        work[i] = now - p->worked_s[i] <= window_s;
        works = works || work[i];
        one_missing_works = one_missing_works || (w->missing[i] && work[i]);
    }
    bool on = lives && (works || now - p->since_s <= window_s);
    for (int i = 0; i < p->size && on; i++)
        if (work[i] && i != p->rank && (w->missing[i] || !one_missing_works)) name_slow(p, w, i);
    pthread_mutex_unlock(&p->lock);
    return on;
}
