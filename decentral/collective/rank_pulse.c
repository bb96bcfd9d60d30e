#include "decentral/collective/rank_pulse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "decentral/collective/collective_impl.h"
#include "kernels/backend.h"
#include "kernels/operations.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"
#include "shared/time/turn_clock.h"

#define TICK_S           0.02  // between looks; an answer takes two of them
#define ASKS             16    // per deadline
#define LOOK_S           0.5   // between two looks of one that waits, at most
#define LEAST_S          0.5   // of what counts as silence, however short the deadline is: a loaded machine
#define SILENT_DEADLINES 1.4   // of those that do not answer

struct pulse_rank {
    double answered_s, worked_s;  // when it last answered, and was at work, and at what:
    enum dev_work work;
    bool wants;  // it has asked and has not been answered
    bool named;  // as slow
    // Of a rank of this process:
    struct device *dev;  // NULL: none yet, or none any more:
    bool left;           // it has had one
};

struct rank_pulse {
    int rank, size;
    const struct pulse_ways *ways;
    void *ctx;
    pthread_t thread;
    atomic_bool ending;
    struct last_word own, *end;  // own: where ranks share none
    pthread_mutex_t lock;        // guards what follows
    bool waits;                  // the main thread, beside the device, for others
    double since_s, until_s;     // others are asked from .. to
    double every_s, asked_s;     // between two questions; when the last one was
    struct turn_clock turns;  // of the thread's; what came when, and is asked from when on, are moments of it
    struct pulse_rank ranks[];
};

static double later(double a, double b) { return a > b ? a : b; }

// Seconds without an answer after which a rank counts as silent, and without work after which it rests.
static double window(double deadline_s) { return later(deadline_s / 2, LEAST_S); }

// With the lock held.
static double moment(const struct rank_pulse *p) { return turn_clock_at(&p->turns, now_seconds()); }

// ---------------------------------------------------------------- words
// With the lock held.
static void note_answer(struct rank_pulse *p, int rank, enum dev_work work) {
    struct pulse_rank *r = &p->ranks[rank];
    r->answered_s = moment(p);
    if (work == DEV_RESTS) return;
    r->worked_s = r->answered_s;
    r->work = work;
}

// Of a rank of this process, with the lock held. One that has no device yet is on its way to it, by files.
static enum dev_work look_at(struct rank_pulse *p, int rank) {
    const struct pulse_rank *r = &p->ranks[rank];
    enum dev_work work = r->dev ? dev_at_work(r->dev) : r->left ? DEV_RESTS : DEV_HOST_WORKS;
    if (p->waits && work == DEV_HOST_WORKS) work = DEV_RESTS;
    note_answer(p, rank, work);
    return work;
}

static char own_work(struct rank_pulse *p) {
    pthread_mutex_lock(&p->lock);
    char work = (char)look_at(p, p->rank);
    pthread_mutex_unlock(&p->lock);
    return work;
}

void rank_pulse_heard(struct rank_pulse *p, int from, const struct pulse_word *word) {
    if (word->kind == PULSE_END) {
        char why[sizeof word->why];
        snprintf(why, sizeof why, "%.*s", (int)sizeof why - 1, word->why);
        if (last_word_take(p->end)) last_word_say(p->end, why);
    }
    pthread_mutex_lock(&p->lock);
    if (word->kind == PULSE_ASK) p->ranks[from].wants = true;
    if (word->kind == PULSE_TELL && word->at >= 0 && word->at <= DEV_HOST_WORKS)
        note_answer(p, from, (enum dev_work)word->at);
    pthread_mutex_unlock(&p->lock);
}

static void answer(struct rank_pulse *p) {
    for (int i = 0; i < p->size; i++) {
        pthread_mutex_lock(&p->lock);
        bool wants = p->ranks[i].wants;
        p->ranks[i].wants = false;
        pthread_mutex_unlock(&p->lock);
        if (!wants || p->ways->send(p->ctx, i, &(struct pulse_word){.kind = PULSE_TELL, .at = own_work(p)}))
            continue;
        rank_pulse_heard(p, i, &(struct pulse_word){.kind = PULSE_ASK});
    }
}

// With the lock held: whether a question is due, which then counts as asked.
static bool is_due(struct rank_pulse *p, double now) {
    if (now >= p->until_s || now < p->asked_s + p->every_s) return false;
    p->asked_s = now;
    return true;
}

static void say_to_all(struct rank_pulse *p, const struct pulse_word *word) {
    for (int i = 0; i < p->size; i++)
        if (i != p->rank) p->ways->send(p->ctx, i, word);
}

// Whether this rank waits for answers.
static bool ask(struct rank_pulse *p) {
    pthread_mutex_lock(&p->lock);
    double now = moment(p);
    bool asks = now < p->until_s, due = is_due(p, now);
    pthread_mutex_unlock(&p->lock);
    if (due) own_work(p);  // this rank's counts as well
    if (due) say_to_all(p, &(struct pulse_word){.kind = PULSE_ASK});
    return asks;
}

static void *pulse_main(void *arg) {
    struct rank_pulse *p = arg;
    while (!atomic_load(&p->ending)) {
        pthread_mutex_lock(&p->lock);
        turn_clock_turn(&p->turns, now_seconds());
        pthread_mutex_unlock(&p->lock);
        p->ways->look(p->ctx, p);
        answer(p);
        bool asks = ask(p);
        if (p->ways->rest)
            p->ways->rest(p->ctx, asks);
        else
            nanosleep(&(struct timespec){.tv_nsec = (long)(TICK_S * 1e9)}, NULL);
    }
    return NULL;
}

// ---------------------------------------------------------------- life
struct rank_pulse *rank_pulse_start(int rank, int size, const struct pulse_ways *ways, void *ctx,
                                    struct last_word *end) {
    struct rank_pulse *p = xcalloc(1, sizeof *p + (size_t)size * sizeof *p->ranks);
    p->rank = rank;
    p->size = size;
    p->ways = ways;
    p->ctx = ctx;
    p->end = end ? end : &p->own;
    p->turns.pause_s = TICK_S;
    atomic_init(&p->ending, false);
    pthread_mutex_init(&p->lock, NULL);
    if (!ways || pthread_create(&p->thread, NULL, pulse_main, p) == 0) return p;
    fail("cannot start the thread that tells other ranks that rank %d lives: lower --threads", rank);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return NULL;
}

static void wake(struct rank_pulse *p) {
    if (p->ways && p->ways->wake) p->ways->wake(p->ctx);
}

void rank_pulse_stop(struct rank_pulse **pulse) {
    struct rank_pulse *p = *pulse;
    if (!p) return;
    atomic_store(&p->ending, true);
    wake(p);
    if (p->ways) pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    free(p);
    *pulse = NULL;
}

void rank_pulse_computes(struct rank_pulse *p, int rank, struct device *dev) {
    pthread_mutex_lock(&p->lock);
    p->ranks[rank].dev = dev;
    p->ranks[rank].left = !dev;
    pthread_mutex_unlock(&p->lock);
}

void rank_pulse_waits(struct rank_pulse *p, bool waits) {
    pthread_mutex_lock(&p->lock);
    p->waits = waits;
    pthread_mutex_unlock(&p->lock);
}

// ---------------------------------------------------------------- those who wait
// Others are asked for a while. With the lock held; whether they have not been until now.
static bool ask_on(struct rank_pulse *p, double now, double deadline_s) {
    bool anew = now >= p->until_s;
    if (anew) p->since_s = now;
    p->turns.lost_s = window(deadline_s);
    p->until_s = now + window(deadline_s) / 2;
    p->every_s = deadline_s / ASKS;
    bool here = !p->ways && is_due(p, now);
    for (int i = 0; i < p->size && here; i++) look_at(p, i);
    return anew;
}

// One rank says it, the first that is not at work itself. With the lock held.
static void name_slow(struct rank_pulse *p, const struct pulse_wait *w, int rank, const bool *work) {
    struct pulse_rank *r = &p->ranks[rank];
    for (int i = 0; i < p->rank; i++)
        if (i != rank && !work[i]) return;
    if (r->named) return;
    r->named = true;
    info("waiting for rank %d: %.0f s in %s, %s", rank, now_seconds() - w->since_s, w->what,
         dev_work_says(r->work));
}

// Whether a wait behind its deadline goes on. silent: out, of the missing, those that do not answer. With the lock held.
static bool goes_on(struct rank_pulse *p, const struct pulse_wait *w, double now, const bool *missing,
                    bool *silent) {
    double window_s = window(w->deadline_s);
    bool lives = true, works = false, one_missing_works = false, work[REDUCE_MAX];
    for (int i = 0; i < p->size; i++) {
        const struct pulse_rank *r = &p->ranks[i];
        silent[i] = missing[i] && now - later(r->answered_s, p->since_s) > window_s;
        lives = lives && !silent[i];
        work[i] = now - r->worked_s <= window_s;
        works = works || work[i];
        one_missing_works = one_missing_works || (missing[i] && work[i]);
    }
    if (!lives) return now_seconds() - w->since_s <= SILENT_DEADLINES * w->deadline_s;
    for (int i = 0; i < p->size; i++)
        if (work[i] && i != p->rank && (missing[i] || !one_missing_works)) name_slow(p, w, i, work);
    return works || now - p->since_s <= window_s;
}

bool rank_pulse_in_vain(struct rank_pulse *p, struct pulse_wait *w, char *why, size_t why_bytes) {
    double now = now_seconds(), waited_s = now - w->since_s, every_s = w->deadline_s / ASKS;
    bool missing[REDUCE_MAX], silent[REDUCE_MAX], any = false, on = true;
    if (w->deadline_s <= 0 || waited_s <= w->deadline_s / 2 || now < w->look_s) return false;
    w->look_s = now + (every_s < LOOK_S ? every_s : LOOK_S);
    bool late = waited_s > w->deadline_s;
    for (int i = 0; i < p->size && late; i++) missing[i] = w->missing ? w->missing(w->ctx, i) : i != p->rank;
    pthread_mutex_lock(&p->lock);
    now = moment(p);
    bool anew = ask_on(p, now, w->deadline_s);
    if (late) on = goes_on(p, w, now, missing, silent);
    pthread_mutex_unlock(&p->lock);
    if (anew) wake(p);
    if (on) return false;
    for (int i = 0; i < p->size; i++) any = any || silent[i];
    char ranks[128] = "(some other)";
    if (any || w->missing) collective_rank_list(ranks, sizeof ranks, any ? silent : missing, p->size);
    snprintf(why, why_bytes, "rank %s did not come within %g s%s", ranks, w->deadline_s,
             any ? " and gives no sign of life" : "");
    return true;
}

// ---------------------------------------------------------------- the end
void rank_pulse_end(struct rank_pulse *p, const char *why, bool lost) {
    struct pulse_word word = {.kind = PULSE_END};
    bool first = last_word_take(p->end);
    if (lost) stop_run_lost(first ? why : NULL);
    if (!first) return;
    last_word_say(p->end, why);
    snprintf(word.why, sizeof word.why, "%s", why);
    if (p->end == &p->own && p->ways) say_to_all(p, &word);
}

const char *rank_pulse_ended(struct rank_pulse *p) { return last_word(p->end); }
