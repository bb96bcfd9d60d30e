#include "decentral/mpi/mpi_pulse.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/operations.h"
#include "shared/core/error.h"

// Beside what mpi_medium sends over the world before the pulse begins, nobody else sends single messages there.
#define TAG_ASK    71
#define TAG_TELL   72
#define TICK_NS    20000000  // between looks; an answer takes two of them
#define ASKS       16        // per deadline
#define LEAST_S    0.5       // of what counts as silence, however short the deadline is: a loaded machine
#define SETTLING_S 1.0       // for messages under way at the end

struct pulse_peer {
    MPI_Request asking, telling;  // messages to it under way
    char asked, told;             // what they carry; told: what this rank is at (enum dev_work)
    bool wants;                   // has asked and has not been answered
};

struct mpi_pulse {
    int rank, size;
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
    bool named[REDUCE_MAX];  // as slow
    // The thread's own:
    struct pulse_peer peers[REDUCE_MAX];
    MPI_Request ask_in, tell_in;
    char ask_in_text, tell_in_text;
    double asked_s;
};

// ---------------------------------------------------------------- messages, by the thread
static void receive(MPI_Request *request, char *text, int tag) {
    if (MPI_Irecv(text, 1, MPI_CHAR, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, request) != MPI_SUCCESS)
        *request = MPI_REQUEST_NULL;
}

// The sender of a message, or -1.
static int came(MPI_Request *request) {
    MPI_Status status;
    int done = 0;
    if (*request == MPI_REQUEST_NULL || MPI_Test(request, &done, &status) != MPI_SUCCESS || !done) return -1;
    return status.MPI_SOURCE;
}

// One message a peer and kind is under way at most.
static bool is_free(MPI_Request *request) {
    int done = 1;
    if (*request != MPI_REQUEST_NULL && MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    return done;
}

static void send_to(int to, const char *text, int tag, MPI_Request *request) {
    if (MPI_Isend(text, 1, MPI_CHAR, to, tag, MPI_COMM_WORLD, request) != MPI_SUCCESS)
        *request = MPI_REQUEST_NULL;
}

// With the lock held.
static void note_work(struct mpi_pulse *p, int rank, enum dev_work work) {
    if (work == DEV_RESTS) return;
    p->worked_s[rank] = now_seconds();
    p->work[rank] = work;
}

// A rank that has no device yet is on its way to it, by files.
static enum dev_work at_work(struct mpi_pulse *p) {
    pthread_mutex_lock(&p->lock);
    enum dev_work work = p->dev ? dev_at_work(p->dev) : p->left ? DEV_RESTS : DEV_HOST_WORKS;
    if (p->waits && work == DEV_HOST_WORKS) work = DEV_RESTS;
    note_work(p, p->rank, work);
    pthread_mutex_unlock(&p->lock);
    return work;
}

static void answer(struct mpi_pulse *p) {
    for (int from; (from = came(&p->ask_in)) >= 0; receive(&p->ask_in, &p->ask_in_text, TAG_ASK))
        p->peers[from].wants = true;
    for (int i = 0; i < p->size; i++) {
        struct pulse_peer *peer = &p->peers[i];
        if (!peer->wants || !is_free(&peer->telling)) continue;
        peer->wants = false;
        peer->told = (char)at_work(p);
        send_to(i, &peer->told, TAG_TELL, &peer->telling);
    }
}

static void hear(struct mpi_pulse *p) {
    for (int from; (from = came(&p->tell_in)) >= 0; receive(&p->tell_in, &p->tell_in_text, TAG_TELL)) {
        pthread_mutex_lock(&p->lock);
        p->answered_s[from] = now_seconds();
        note_work(p, from, (enum dev_work)p->tell_in_text);
        pthread_mutex_unlock(&p->lock);
    }
}

static void ask(struct mpi_pulse *p) {
    double now = now_seconds();
    pthread_mutex_lock(&p->lock);
    bool due = now < p->until_s && now >= p->asked_s + p->every_s;
    pthread_mutex_unlock(&p->lock);
    if (!due) return;
    p->asked_s = now;
    (void)at_work(p);
    for (int i = 0; i < p->size; i++)
        if (i != p->rank && is_free(&p->peers[i].asking))
            send_to(i, &p->peers[i].asked, TAG_ASK, &p->peers[i].asking);
}

static void *pulse_main(void *arg) {
    struct mpi_pulse *p = arg;
    while (!atomic_load(&p->ending)) {
        answer(p);
        hear(p);
        ask(p);
        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
    }
    return NULL;
}

// ---------------------------------------------------------------- life
struct mpi_pulse *mpi_pulse_start(int rank, int size) {
    struct mpi_pulse *p = xcalloc(1, sizeof *p);
    p->rank = rank;
    p->size = size;
    atomic_init(&p->ending, false);
    pthread_mutex_init(&p->lock, NULL);
    for (int i = 0; i < size; i++) p->peers[i].asking = p->peers[i].telling = MPI_REQUEST_NULL;
    receive(&p->ask_in, &p->ask_in_text, TAG_ASK);
    receive(&p->tell_in, &p->tell_in_text, TAG_TELL);
    if (pthread_create(&p->thread, NULL, pulse_main, p) == 0) return p;
    atomic_store(&p->ending, true);
    fail("cannot start the thread that tells other ranks that rank %d lives: lower --threads", rank);
    return NULL;  // MPI refers to p until it ends
}

static void cancel(MPI_Request *request) {
    if (*request == MPI_REQUEST_NULL) return;
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
}

void mpi_pulse_stop(struct mpi_pulse **pulse, bool broken) {
    struct mpi_pulse *p = *pulse;
    if (!p) return;
    *pulse = NULL;
    atomic_store(&p->ending, true);
    pthread_join(p->thread, NULL);
    if (broken) return;
    bool settled = false;
    for (double until = now_seconds() + SETTLING_S; !settled && now_seconds() < until;) {
        settled = true;
        for (int i = 0; i < p->size; i++)
            settled = is_free(&p->peers[i].asking) && is_free(&p->peers[i].telling) && settled;
    }
    cancel(&p->ask_in);
    cancel(&p->tell_in);
    if (!settled) return;
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void mpi_pulse_computes(struct mpi_pulse *p, struct device *dev) {
    pthread_mutex_lock(&p->lock);
    p->dev = dev;
    p->left = !dev;
    pthread_mutex_unlock(&p->lock);
}

void mpi_pulse_waits(struct mpi_pulse *p, bool waits) {
    pthread_mutex_lock(&p->lock);
    p->waits = waits;
    pthread_mutex_unlock(&p->lock);
}

// ---------------------------------------------------------------- those who wait
static double later(double a, double b) { return a > b ? a : b; }

void mpi_pulse_ask(struct mpi_pulse *p, double deadline_s) {
    double now = now_seconds();
    pthread_mutex_lock(&p->lock);
    if (now >= p->until_s) p->since_s = now;
    p->until_s = now + deadline_s / 4;
    p->every_s = deadline_s / ASKS;
    pthread_mutex_unlock(&p->lock);
}

// One rank of all says it: rank 0, and of rank 0 rank 1. With the lock held.
static void name_slow(struct mpi_pulse *p, const struct pulse_wait *w, int rank) {
    if (p->named[rank] || p->rank != (rank == 0)) return;
    p->named[rank] = true;
    info("waiting for rank %d: %.0f s in %s, %s", rank, w->waited_s, w->what, dev_work_says(p->work[rank]));
}

bool mpi_pulse_slow(struct mpi_pulse *p, const struct pulse_wait *w, bool *silent) {
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
