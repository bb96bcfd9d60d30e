#include "ps/worker/worker_comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/job/unit_moves.h"
#include "ps/net/link.h"
#include "ps/net/net.h"
#include "ps/worker/snapshot_pulls.h"
#include "ps/worker/worker_times.h"
#include "shared/core/error.h"

#define DESCRIBE_S 0.02  // least time between two descriptions of the wait

// The communication thread's state, and what it shares with the main thread.
struct comm {
    struct comm_options o;
    const struct config *c;
    struct consistency_rule rule;
    struct entered in;
    struct worker_core *core;
    struct snapshot_pulls *snapshots;
    struct worker_times *times;
    struct thread_time *spans;  // NULL: no trace
    pthread_t thread;
    bool thread_started;
    int taken;  // commands obeyed since the last publish(); only the communication thread uses it
    int wake_fd;
    _Atomic uint64_t turns;  // loop iterations of the communication thread
    _Atomic pid_t tid;       // its thread id

    pthread_mutex_t mutex;
    pthread_cond_t changed;    // published or failed
    struct command *commands;  // guarded by mutex, as all below
    int command_count, command_capacity;
    struct published now;
    int64_t *landed;                // (units)
    int64_t *filled, *through;      // (units) by unit
    int *busy;                      // (1 + lead, units)
    struct step_outcome *outcomes;  // (1 + lag)
    bool collecting;                // a snapshot is under way
    int unobeyed;                   // commands whose effect is not published yet
    uint64_t gathers_asked;
    bool waiting;  // for:
    enum comm_event waited_event;
    int waited_unit;  // -1: none
    int64_t waited_step, waited_count;
    char waiting_for[192];  // what that unit waits for, as of described_s
    double described_s;
    bool quit, failed;
    bool traced;               // spans is complete, and the main thread may write it (COMMAND_TRACE)
    char lost[WIRE_TEXT_MAX];  // a timeout to report to the scheduler while restarts are left; "": none
    char error[WIRE_TEXT_MAX];
    bool error_logged;
};

// ---------------------------------------------------------------- any thread
static void wake(struct comm *c) {
    uint64_t one = 1;
    ssize_t n = write(c->wake_fd, &one, sizeof one);
    (void)n;  // a full counter wakes just as well
}

void comm_command(struct comm *c, const struct command *command) {
    pthread_mutex_lock(&c->mutex);
    if (c->command_count == c->command_capacity) {
        c->command_capacity = c->command_capacity ? 2 * c->command_capacity : 64;
        c->commands = xrealloc(c->commands, (unsigned long)c->command_capacity * sizeof *c->commands);
    }
    c->commands[c->command_count++] = *command;
    c->unobeyed++;
    c->gathers_asked += command->kind == COMMAND_GATHER;
    pthread_mutex_unlock(&c->mutex);
    wake(c);
}

static void give_up(struct comm *c, const char *why, bool said) {
    pthread_mutex_lock(&c->mutex);
    if (!c->failed) {
        c->failed = true;
        c->error_logged = c->error_logged || said;
        snprintf(c->error, sizeof c->error, "%s", why && why[0] ? why : "aborted without a reason");
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    wake(c);
}

pid_t comm_thread(struct comm *c) { return atomic_load(&c->tid); }

void comm_give_up(struct comm *c, const char *why) { give_up(c, why, false); }

struct published comm_published(struct comm *c) {
    pthread_mutex_lock(&c->mutex);
    struct published p = c->now;
    pthread_mutex_unlock(&c->mutex);
    return p;
}

struct step_outcome comm_outcome(struct comm *c, int64_t step) {
    pthread_mutex_lock(&c->mutex);
    struct step_outcome o = c->outcomes[worker_slot_of(step, c->rule.lag)];
    pthread_mutex_unlock(&c->mutex);
    return o;
}

int comm_write_trace(struct comm *c) {
    pthread_mutex_lock(&c->mutex);
    bool traced = c->traced;
    const struct ps_clock clock = c->now.status.clock;
    pthread_mutex_unlock(&c->mutex);
    const struct worker_trace t = {&c->o.role, c->o.map, c->in.id.rank, &clock, c->spans};
    return traced && c->spans ? worker_trace_write(&t) : 0;
}

// ---------------------------------------------------------------- waiting (main thread)
static bool is_free(const struct comm *c, int u, int64_t step) {
    return c->busy[worker_slot_of(step, c->rule.lead) * c->o.role.layout->count + u] == 0;
}

static bool has_happened(const struct comm *c, enum comm_event event, int u, int64_t step, int64_t count) {
    const struct worker_status *now = &c->now.status;
    switch (event) {
        case COMM_LANDED:
            return c->landed[u] >= step;
        case COMM_FILLED:
            return c->filled[u] >= count;
        case COMM_THROUGH:
            return c->through[u] >= count;
        case COMM_FREE:
            return is_free(c, u, step);
        case COMM_LOADED:
            return c->unobeyed == 0 && is_free(c, u, step);
        case COMM_PULLED:
            return c->unobeyed == 0 && now->pulling == 0;
        case COMM_GATHERED:
            return now->gathers_done == c->gathers_asked;
        case COMM_SNAPSHOT:
            return c->unobeyed == 0 && !c->collecting;
        case COMM_TAKEN:
            return now->taken_step == step;
        case COMM_STEP_DONE:
            return now->steps_done > step;
    }
    return false;
}

static void say_late(const struct comm *c, int unit, int64_t step, const char *what,
                     char text[WIRE_TEXT_MAX]) {
    snprintf(text, WIRE_TEXT_MAX, "step %lld: %s within %lld ms%s%s", (long long)step, what,
             (long long)c->c->ps.deadline_ms, unit >= 0 ? ": " : "", unit >= 0 ? c->waiting_for : "");
}

int comm_wait(struct comm *c, enum comm_event event, int unit, int64_t step, const char *what) {
    return comm_wait_unit(c, event, unit, 0, step, what);
}

int comm_wait_unit(struct comm *c, enum comm_event event, int unit, int64_t count, int64_t step,
                   const char *what) {
    double start = now_seconds();
    struct timespec end = moment_in(ps_deadline_s(c->c));
    char text[WIRE_TEXT_MAX];
    int late = 0;
    pthread_mutex_lock(&c->mutex);
    c->waiting = true;
    c->waited_event = event;
    c->waited_unit = unit;
    c->waited_step = step;
    c->waited_count = count;
    while (!c->failed && !has_happened(c, event, unit, step, count) && !late) {
        late = pthread_cond_timedwait(&c->changed, &c->mutex, &end) == ETIMEDOUT;
        // A peer that answers is alive, so the wait continues: the scheduler names stragglers and notices lost peers.
        // If the scheduler is silent as well, the rendezvous soon reports that.
        if (late && (c->now.status.silent_s <= ps_lost_s(c->c) ||
                     rendezvous_silent_s(c->o.role.meet) > 0.5 * ps_lost_s(c->c))) {
            end = moment_in(ps_repeat_most_s(c->c));
            late = 0;
        }
        // The scheduler learns of it and begins an epoch without that peer, or already does so, however long its files
        // take.
        if (late && c->c->recovery.restart > 0) {
            say_late(c, unit, step, what, c->lost);
            end = moment_in(ps_repeat_most_s(c->c));
            late = 0;
            wake(c);
        }
    }
    c->waiting = false;
    c->waited_unit = -1;
    bool failed = c->failed, ready = has_happened(c, event, unit, step, count), log = !c->error_logged;
    if (failed || !ready) c->error_logged = true;
    if (failed)
        snprintf(text, sizeof text, "%s", c->error);
    else if (!ready)
        say_late(c, unit, step, what, text);
    c->now.waited_s += now_seconds() - start;
    pthread_mutex_unlock(&c->mutex);
    if (!failed && ready) return 0;
    if (!failed) comm_give_up(c, text);
    if (log) return ps_fail(text);
    error_take_over(text);
    return -1;
}

// ---------------------------------------------------------------- the communication thread
static bool comm_renew(void *ctx, int peer, struct ps_message *m) {
    (void)peer;
    return worker_core_renew(((struct comm *)ctx)->core, &m->header);
}

static void obey(struct comm *c, const struct command *x, double now) {
    struct worker_core *core = c->core;
    switch (x->kind) {
        case COMMAND_PUSH:
            worker_times_open(c->times, x->unit, x->push.step, x->ids);
            worker_core_push_unit(core, x->unit, &x->push);
            return;
        case COMMAND_PULL:
            worker_times_open(c->times, x->unit, x->step - 1, x->ids);
            worker_core_pull_unit(core, x->unit, x->step, x->aside, now);
            return;
        case COMMAND_INIT:
            worker_core_init_unit(core, x->unit, x->values, x->round);
            return;
        case COMMAND_BEGIN:
            worker_core_begin(core, x->step);
            if (!ps_by_units(c->c)) worker_core_pull_all(core, 0, now);
            return;
        case COMMAND_REPORT:
            worker_core_report(core, &x->report);
            return;
        case COMMAND_JUMP:
            worker_core_jump(core, x->step, now);
            return;
        case COMMAND_GATHER:
            worker_core_gather(core, x->gather, x->count);
            return;
        case COMMAND_TAKE:
            worker_core_take(core, x->step, x->done);
            return;
        case COMMAND_PULL_ALL:
            worker_core_pull_all(core, x->more, now);
            return;
        case COMMAND_SNAPSHOT:
            snapshot_pulls_open(c->snapshots, x->version, x->snapshot);
            return;
        case COMMAND_SNAPSHOTS_END:
            snapshot_pulls_end(c->snapshots);
            return;
        case COMMAND_STOP:
            worker_core_stop(core);
            return;
        case COMMAND_TRACE:
            // The main thread writes the file: this thread answers messages and touches no file.
            thread_time_end(c->spans);
            pthread_mutex_lock(&c->mutex);
            c->traced = true;
            pthread_mutex_unlock(&c->mutex);
            return;
    }
}

static void take_commands(struct comm *c) {
    uint64_t count;
    ssize_t n = read(c->wake_fd, &count, sizeof count);
    (void)n;  // non-blocking: nothing there is fine
    pthread_mutex_lock(&c->mutex);
    struct command *commands = c->commands;
    int taken = c->command_count;
    c->commands = NULL;
    c->command_count = c->command_capacity = 0;
    pthread_mutex_unlock(&c->mutex);
    for (int i = 0; i < taken; i++) obey(c, &commands[i], now_seconds());
    c->taken += taken;
    free(commands);
}

static int drain(struct comm *c, struct net_socket *s, int peer) {
    struct net_message m;
    int rc = 0;
    for (int i = 0; i < DRAIN_MESSAGES && (rc = net_recv(s, &m)) == 1; i++) {
        // Only messages of this job, from the process that this socket belongs to, count.
        const struct wire_header *h = &m.header;
        bool ours =
            h->job == c->in.id.job &&
            (peer == PEER_SCHEDULER || roster_is_shard(c->in.start.roster, peer, c->o.map->threads, h));
        if (!ours) {
            ps_frame_release(m.frame);
            continue;
        }
        link_receive(c->in.link, peer, &m.header, now_seconds());
        if (m.header.kind == WIRE_SNAPSHOT_REPLY) {
            snapshot_pulls_answer(c->snapshots, &m.header, m.frame);
            ps_frame_release(m.frame);
            continue;
        }
        if (worker_core_message(c->core, peer, &m.header, m.frame, now_seconds()) != 0) return -1;
    }
    return rc < 0 ? -1 : 0;
}

// Publishes what the hooks wait for. Returns whether to poll again soon: only the transport still reads a buffer, or
// the main thread waits for a snapshot.
static bool publish(struct comm *c, double busy_s, double now_s) {
    bool busy = false;
    // This is done first: a hook that sees the transfers' end may close the timeline.
    worker_times_tell(c->times, c->core, c->o.staging != NULL);
    pthread_mutex_lock(&c->mutex);
    c->now.version = INT64_MAX;
    int units = c->o.role.layout->count;
    for (int u = 0; u < units; u++) {
        int64_t version = worker_core_version(c->core, u);
        if (version < c->now.version) c->now.version = version;
        c->landed[u] = worker_core_landed(c->core, u);
        c->filled[u] = (int64_t)worker_core_fills(c->core, u);
        c->through[u] = worker_core_through(c->core, u);
        for (int slot = 0; slot <= c->rule.lead; slot++) {
            c->busy[slot * units + u] = worker_core_busy(c->core, u, slot);
            busy = busy || c->busy[slot * units + u];
        }
    }
    for (int i = 0; i <= c->rule.lag; i++) c->outcomes[i] = *worker_core_outcome(c->core, i);
    c->unobeyed -= c->taken;
    c->taken = 0;
    c->now.status = *worker_core_status(c->core);
    c->now.busy_s += busy_s;
    c->collecting = snapshot_pulls_busy(c->snapshots);
    // This scans each key of the unit, for the message of a missed deadline.
    if (c->waited_unit >= 0 && now_s - c->described_s >= DESCRIBE_S) {
        worker_core_describe(c->core, c->waited_unit, c->waiting_for, sizeof c->waiting_for);
        c->described_s = now_s;
    }
    // Wakes the main thread only for the event that it waits for: other wake-ups take a core from compute.
    if (c->waiting && has_happened(c, c->waited_event, c->waited_unit, c->waited_step, c->waited_count))
        pthread_cond_broadcast(&c->changed);
    // No event wakes this thread when the snapshot's buffer becomes free.
    bool hurry = c->collecting && c->waiting && c->waited_event == COMM_SNAPSHOT;
    pthread_mutex_unlock(&c->mutex);
    return hurry || (busy && !worker_core_transferring(c->core));
}

static int poll_once(struct comm *c, struct net_poll_item *items, bool hurry) {
    int shards = c->o.map->shards;
    items[0] = (struct net_poll_item){.fd = c->wake_fd};
    items[1] = (struct net_poll_item){.socket = c->in.lines.scheduler};
    for (int g = 0; g < shards; g++) items[2 + g] = (struct net_poll_item){.socket = c->in.lines.dealers[g]};
    thread_time_enter(c->spans, WORKER_IDLE, SPAN_OF_NOTHING);
    if (net_poll(items, 2 + shards, hurry ? HURRY_MS : POLL_MS) != 0) return -1;
    thread_time_enter(c->spans, WORKER_PROTOCOL, SPAN_OF_NOTHING);
    if (items[0].ready) take_commands(c);
    // Reports a silent shard that owes an answer: the scheduler may not know yet.
    char lost[WIRE_TEXT_MAX];
    pthread_mutex_lock(&c->mutex);
    memcpy(lost, c->lost, sizeof lost);
    c->lost[0] = 0;
    pthread_mutex_unlock(&c->mutex);
    if (lost[0]) member_failed(&c->o.role, &c->in.id, true, lost);
    // Ends even if the main thread is busy: its results no longer count.
    if (member_goes_on(&c->o.role, &c->in.id) != 0) return -1;
    if (items[1].ready && drain(c, c->in.lines.scheduler, PEER_SCHEDULER) != 0) return -1;
    for (int g = 0; g < shards; g++)
        if (items[2 + g].ready && drain(c, c->in.lines.dealers[g], g) != 0) return -1;
    snapshot_pulls_tick(c->snapshots);
    double now = now_seconds();
    for (int g = 0; g < shards; g++) link_await(c->in.link, g, worker_core_owes(c->core, g));
    link_tick(c->in.link, now);
    if (worker_core_tick(c->core, now) != 0) return -1;
    // Enqueues the copy of landed weights to the device before publish(): a hook that sees them landed finds their copy
    // enqueued.
    for (int u = 0; c->o.staging && u < c->o.role.layout->count; u++)
        staging_put_weights(c->o.staging, u, worker_core_fills(c->core, u),
                            worker_times_ids(c->times, u, worker_core_landed(c->core, u) - 1));
    const char *why = staging_error(c->o.staging);
    return *why ? fail("the device has failed: %s", why) : 0;
}

// Whether the thread must end. *failed receives whether an error is the reason, which the job must learn.
static bool asked_to_end(struct comm *c, bool *failed) {
    pthread_mutex_lock(&c->mutex);
    *failed = c->failed;
    bool quit = c->quit || c->failed;
    pthread_mutex_unlock(&c->mutex);
    return quit;
}

static void *comm_main(void *arg) {
    struct comm *c = arg;
    struct net_poll_item *items = xcalloc((unsigned long)c->o.map->shards + 2, sizeof *items);
    bool hurry = false, failed = false;
    error_set_label("worker %d", c->in.id.rank);
    error_quiet(1);  // the main thread logs for the worker
    atomic_store(&c->tid, gettid());
    double before = now_seconds();
    while (!asked_to_end(c, &failed)) {
        bool transferring = worker_core_transferring(c->core);
        atomic_fetch_add(&c->turns, 1);
        int rc = poll_once(c, items, hurry);
        const char *why = worker_core_error(c->core);
        if (rc != 0) give_up(c, why[0] ? why : error_last(), !why[0] && member_quoted(&c->o.role));
        double after = now_seconds();
        hurry = publish(c, transferring ? after - before : 0.0, after);
        before = after;
    }
    // Reports the reason to the job. The error no longer changes.
    if (failed && !rendezvous_end_reason(c->o.role.meet))
        member_failed(&c->o.role, &c->in.id, false, c->error);
    free(items);
    return NULL;
}

// ---------------------------------------------------------------- create
static int start_thread(struct comm *c) {
    int64_t pushed = 0;
    for (int u = 0; u < c->o.role.layout->count; u++)
        pushed += (int64_t)c->o.buffers->push_bytes[u] * unit_pushes(c->c) * (1 + c->rule.lead);
    struct worker_core_options o = {.rank = c->in.id.rank,
                                    .lead = c->rule.lead,
                                    .lag = c->rule.lag,
                                    .drops = consistency_drops(&c->rule),
                                    .per_update = pushes_per_update(c->c),
                                    .layout = c->o.role.layout,
                                    .map = c->o.map,
                                    .dtype = c->c->dtype,
                                    .weights = c->o.buffers->wire_weights,
                                    .grads = (const void *const *)c->o.buffers->wire_grads,
                                    .code = c->c->ps.code,
                                    .shared = c->o.sharing->shared,
                                    .grad_at = c->o.buffers->grad_at,
                                    .weight_at = c->o.sharing->in_place ? NULL : c->o.buffers->weight_at,
                                    .by_unit = ps_by_units(c->c),
                                    .credit_bytes = credit_of(c->c, pushed),
                                    .heartbeat_s = ps_heartbeat_s(c->c),
                                    .lost_s = ps_lost_s(c->c),
                                    .clock = c->in.id.clock,
                                    .spans = c->spans,
                                    .port = link_port(c->in.link)};
    c->core = worker_core_create(&o);
    if (c->in.id.joins) {
        worker_core_begin(c->core, c->in.joined.opening.state.step);
        worker_core_gathers(c->core, c->in.joined.gathers);
        c->gathers_asked = c->in.joined.gathers;
    }
    c->snapshots = snapshot_pulls_create(
        &(struct snapshot_pulls_options){.map = o.map, .dtype = o.dtype, .port = o.port});
    if (pthread_create(&c->thread, NULL, comm_main, c) != 0)
        return fail("cannot start the communication thread: " ERROR_RAISE_THREADS);
    c->thread_started = true;
    rendezvous_watch_progress(c->o.role.meet, &c->turns);
    return 0;
}

struct comm *comm_create(const struct comm_options *o, struct ps_identity *id, struct meeting_start *start) {
    struct comm *c = xcalloc(1, sizeof *c);
    unsigned long units = (unsigned long)o->role.layout->count;
    c->o = *o;
    c->c = o->role.config;
    c->rule = consistency_of(c->c);
    c->times = worker_times_create(o->role.layout->count, c->rule.lead);
    c->spans = worker_thread_time(&o->role);
    c->landed = xcalloc(units, sizeof *c->landed);
    c->filled = xcalloc(units, sizeof *c->filled);
    c->through = xcalloc(units, sizeof *c->through);
    c->busy = xcalloc(units * (1 + (unsigned long)c->rule.lead), sizeof *c->busy);
    c->outcomes = xcalloc(1 + (unsigned long)c->rule.lag, sizeof *c->outcomes);
    c->waited_unit = -1;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&c->mutex, NULL);
    cond_init(&c->changed);
    const struct entering e = {&c->o.role, o->map, o->sharing, o->wire, comm_renew, c};
    if (enter(&e, &c->in) != 0 || start_thread(c) != 0) comm_destroy(&c);
    if (!c) return NULL;
    *id = c->in.id;
    *start = c->in.start;
    start->roster = NULL;
    return c;
}

const struct joined *comm_joined(const struct comm *c) { return c->in.id.joins ? &c->in.joined : NULL; }

// ---------------------------------------------------------------- the end
void comm_part(struct comm *c) {
    if (!c->thread_started) return;
    rendezvous_watch_progress(c->o.role.meet, NULL);
    pthread_mutex_lock(&c->mutex);
    c->quit = true;
    pthread_mutex_unlock(&c->mutex);
    wake(c);
    pthread_join(c->thread, NULL);
    c->thread_started = false;
}

void comm_hang_up(struct comm *c) {
    comm_part(c);
    net_destroy(&c->in.net, FLUSH_MS);
}

void comm_destroy(struct comm **at) {
    struct comm *c = *at;
    if (!c) return;
    comm_hang_up(c);
    entered_free(&c->in);
    worker_core_destroy(&c->core);
    snapshot_pulls_destroy(&c->snapshots);
    if (c->wake_fd >= 0) close(c->wake_fd);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->changed);
    worker_times_destroy(&c->times);
    thread_time_destroy(&c->spans);
    free(c->commands);
    free(c->landed);
    free(c->filled);
    free(c->through);
    free(c->busy);
    free(c->outcomes);
    free(c);
    *at = NULL;
}
