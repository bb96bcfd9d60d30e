// The worker's communication thread, and how the other threads talk to it.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "ps/net/login.h"
#include "ps/worker/worker_state.h"

#define POLL_MS        20
#define HURRY_MS       1
#define DRAIN_MESSAGES 64

// ---------------------------------------------------------------- any thread
static void wake(struct worker *w) {
    uint64_t one = 1;
    ssize_t n = write(w->wake_fd, &one, sizeof one);
    (void)n;  // a full counter wakes just as well
}

void worker_command(struct worker *w, const struct command *c) {
    pthread_mutex_lock(&w->mutex);
    if (w->command_count == w->command_capacity) {
        w->command_capacity = w->command_capacity ? 2 * w->command_capacity : 64;
        w->commands = xrealloc(w->commands, (unsigned long)w->command_capacity * sizeof *w->commands);
    }
    w->commands[w->command_count++] = *c;
    w->issued++;
    pthread_mutex_unlock(&w->mutex);
    wake(w);
}

void worker_give_up(struct worker *w, const char *why) {
    pthread_mutex_lock(&w->mutex);
    if (!w->failed) {
        w->failed = true;
        snprintf(w->error, sizeof w->error, "%s", why && why[0] ? why : "aborted without a reason");
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    wake(w);
}

// ---------------------------------------------------------------- waiting (main thread)
static struct timespec later(double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

int worker_wait(struct worker *w, const struct worker_wait *x) {
    double start = now_seconds();
    struct timespec end = later(ps_deadline_s(w->c));
    char text[WIRE_TEXT_MAX];
    int late = 0;
    pthread_mutex_lock(&w->mutex);
    w->waited_unit = x->unit;
    while (!w->failed && !x->ready(w, x->unit) && !late) {
        late = pthread_cond_timedwait(&w->changed, &w->mutex, &end) == ETIMEDOUT;
        if (late && x->watched) {
            end = later(ps_deadline_s(w->c));
            late = 0;
        }
    }
    w->waited_unit = -1;
    bool failed = w->failed, ready = x->ready(w, x->unit), tell = !w->error_told;
    if (failed || !ready) w->error_told = true;
    if (failed)
        snprintf(text, sizeof text, "%s", w->error);
    else if (!ready)
        snprintf(text, sizeof text, "step %lld: %s within %lld ms%s%s", (long long)w->step, x->what,
                 (long long)w->c->ps.deadline_ms, x->unit >= 0 ? ": " : "",
                 x->unit >= 0 ? w->now.waiting_for : "");
    pthread_mutex_unlock(&w->mutex);
    w->waited_s += now_seconds() - start;
    if (!failed && ready) return 0;
    if (!failed) worker_give_up(w, text);
    return tell ? ps_fail(text) : -1;
}

// ---------------------------------------------------------------- the communication thread
void worker_send(void *ctx, int peer, const struct ps_message *message) {
    struct worker *w = ctx;
    struct ps_message m = *message;
    ps_stamp(&w->id, &m.header);
    net_send(peer == PEER_SCHEDULER ? w->scheduler : w->shards[peer], NULL, &m);
}

void worker_tell_abort(struct worker *w, const char *why) {
    struct ps_message m = {.header = {.kind = WIRE_ABORT}};
    snprintf(m.header.text, sizeof m.header.text, "%s", why);
    worker_send(w, PEER_SCHEDULER, &m);
}

static void obey(struct worker *w, const struct command *c, double now) {
    switch (c->kind) {
        case COMMAND_PUSH:
            worker_core_push_unit(w->core, c->unit, &c->push);
            return;
        case COMMAND_INIT:
            worker_core_init_unit(w->core, c->unit, c->values, c->round);
            return;
        case COMMAND_REPORT:
            worker_core_report(w->core, &c->report, c->loss, now);
            return;
        case COMMAND_GATHER:
            worker_core_gather(w->core, c->gather, c->count, now);
            return;
        case COMMAND_PULL_ALL:
            worker_core_pull_all(w->core, now);
            return;
        case COMMAND_STOP:
            worker_core_stop(w->core);
            return;
        case COMMAND_GOODBYE:
            worker_core_goodbye(w->core, now);
            return;
    }
}

static void take_commands(struct worker *w) {
    uint64_t count;
    ssize_t n = read(w->wake_fd, &count, sizeof count);
    (void)n;  // non-blocking: nothing there is fine
    pthread_mutex_lock(&w->mutex);
    struct command *taken = w->commands;
    int taken_count = w->command_count;
    w->commands = NULL;
    w->command_count = w->command_capacity = 0;
    pthread_mutex_unlock(&w->mutex);
    for (int i = 0; i < taken_count; i++) obey(w, &taken[i], now_seconds());
    w->taken += (uint64_t)taken_count;
    free(taken);
}

static int drain(struct worker *w, struct net_socket *s, int peer) {
    struct net_message m;
    int rc = 0;
    for (int i = 0; i < DRAIN_MESSAGES && (rc = net_recv(s, &m)) == 1; i++) {
        if (m.header.job != w->id.job) {
            ps_frame_release(m.frame);
            continue;
        }
        if (worker_core_message(w->core, peer, &m.header, m.frame, now_seconds()) != 0) return -1;
    }
    return rc < 0 ? -1 : 0;
}

// Weights that have landed go on to the device: before they are published, so that whoever sees them landed
// finds their copy enqueued. -1 when the device has failed.
static int pass_on(struct worker *w) {
    if (!w->staging) return 0;
    for (int u = 0; u < w->t.layout->count; u++)
        staging_put_weights(w->staging, u, worker_core_fills(w->core, u));
    const char *why = staging_error(w->staging);
    return *why ? fail("the device has failed: %s", why) : 0;
}

// Copies out what the hooks wait for. Returns whether only the transport is still reading a buffer.
static bool publish(struct worker *w, double busy_s) {
    struct published *p = &w->now;
    bool busy = false;
    pthread_mutex_lock(&w->mutex);
    for (int u = 0; u < w->t.layout->count; u++) {
        p->landed[u] = worker_core_landed(w->core, u);
        p->busy[u] = worker_core_busy(w->core, u);
        busy = busy || p->busy[u];
    }
    w->obeyed = w->taken;
    p->pulling = worker_core_pulling(w->core);
    p->steps_done = worker_core_steps_done(w->core, &p->stats);
    p->gathers_done = worker_core_gathers_done(w->core, p->gathered);
    p->parted = worker_core_parted(w->core);
    p->stopped = worker_core_stopped(w->core);
    p->staleness = *worker_core_staleness(w->core);
    p->busy_s += busy_s;
    if (w->waited_unit >= 0)
        worker_core_describe(w->core, w->waited_unit, p->waiting_for, sizeof p->waiting_for);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return busy && !worker_core_transferring(w->core);
}

static int turn(struct worker *w, struct net_poll_item *items, bool hurry) {
    int shards = w->map->shards;
    items[0] = (struct net_poll_item){.fd = w->wake_fd};
    items[1] = (struct net_poll_item){.socket = w->scheduler};
    for (int g = 0; g < shards; g++) items[2 + g] = (struct net_poll_item){.socket = w->shards[g]};
    if (net_poll(items, 2 + shards, hurry ? HURRY_MS : POLL_MS) != 0) return -1;
    if (items[0].ready) take_commands(w);
    if (items[1].ready && drain(w, w->scheduler, PEER_SCHEDULER) != 0) return -1;
    for (int g = 0; g < shards; g++)
        if (items[2 + g].ready && drain(w, w->shards[g], g) != 0) return -1;
    return worker_core_tick(w->core, now_seconds());
}

// True when somebody wants the thread to end; *failed: with an error to tell the job.
static bool asked_to_end(struct worker *w, bool *failed) {
    pthread_mutex_lock(&w->mutex);
    *failed = w->failed;
    bool quit = w->quit || w->failed;
    pthread_mutex_unlock(&w->mutex);
    return quit;
}

static void *comm_main(void *arg) {
    struct worker *w = arg;
    struct net_poll_item *items = xcalloc((unsigned long)w->map->shards + 2, sizeof *items);
    char label[32];
    bool hurry = false, failed = false;
    snprintf(label, sizeof label, "worker %d", w->id.rank);
    error_set_label(label);
    error_quiet(1);  // the main thread speaks for the worker
    double before = now_seconds();
    while (!asked_to_end(w, &failed)) {
        bool transferring = worker_core_transferring(w->core);
        if (turn(w, items, hurry) != 0 || pass_on(w) != 0)
            worker_give_up(w, worker_core_error(w->core)[0] ? worker_core_error(w->core) : error_last());
        double after = now_seconds();
        hurry = publish(w, transferring ? after - before : 0.0);
        before = after;
    }
    if (failed) {
        pthread_mutex_lock(&w->mutex);
        worker_tell_abort(w, w->error);
        pthread_mutex_unlock(&w->mutex);
    }
    free(items);
    return NULL;
}

int worker_start(struct worker *w) {
    if (pthread_create(&w->thread, NULL, comm_main, w) != 0)
        return fail("cannot start the communication thread");
    w->thread_started = true;
    return 0;
}

void worker_join(struct worker *w) {
    if (!w->thread_started) return;
    pthread_mutex_lock(&w->mutex);
    w->quit = true;
    pthread_mutex_unlock(&w->mutex);
    wake(w);
    pthread_join(w->thread, NULL);
    w->thread_started = false;
}
