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
#include "ps/worker/worker_core_state.h"
#include "shared/core/error.h"
#include "shared/report/span_files.h"
#include "shared/time/thread_time.h"
#include "shared/time/timeline.h"

#define NOTICED_NS 1000  // shorter waits are not recorded: they are only the cost of the call
#define TRACE_TID  1000  // after the ids of the device's streams

// How the trace divides the communication thread's time: WORKER_PUSH hands gradients to the transport, WORKER_PULL
// takes weights.
enum worker_activity { WORKER_IDLE, WORKER_PROTOCOL, WORKER_PUSH, WORKER_PULL, WORKER_ACTIVITIES };

// Messages that the core has sent and the link does not have yet, in order.
struct outbox {
    struct outgoing {
        int peer;
        struct ps_message message;
    } * list;
    int count, capacity;
};

// The communication thread's state, and what it shares with the main thread.
struct comm {
    struct comm_options o;
    const struct config *c;
    struct consistency_rule rule;
    struct entry in;
    struct thread_time *spans;  // NULL: no trace
    pthread_t thread;
    bool thread_started;
    int wake_fd;
    struct outbox leaving;        // the communication thread passes it on to the link
    _Atomic uint64_t iterations;  // loop iterations of the communication thread
    _Atomic pid_t tid;            // its thread id

    pthread_mutex_t mutex;
    pthread_cond_t changed;           // what the main thread waits for has happened
    struct worker_core *core;         // guarded by mutex, as all below
    struct outbox sent;               // messages that the core has sent
    const struct comm_wait *awaited;  // what the main thread waits for; NULL: it does not wait
    bool quit, failed;
    // end_trace: the spans must end; traced: they are complete, and the main thread may write them.
    bool end_trace, traced;
    char lost[WIRE_TEXT_MAX];  // a timeout to report to the scheduler while restarts are left; "": none
    char error[WIRE_TEXT_MAX];
    bool error_logged;
};

// ---------------------------------------------------------------- any thread
static void wake(struct comm *c) {
    uint64_t one = 1;
    ssize_t n = write(c->wake_fd, &one, sizeof one);
    (void)n;  // if the eventfd's counter is full, it wakes the thread as well
}

struct worker_core *comm_lock(struct comm *c) {
    pthread_mutex_lock(&c->mutex);
    return c->core;
}

void comm_unlock(struct comm *c) { pthread_mutex_unlock(&c->mutex); }

void comm_unlock_wake(struct comm *c) {
    pthread_mutex_unlock(&c->mutex);
    wake(c);
}

// The core's port. The caller holds the lock.
static void comm_send(void *ctx, int peer, const struct ps_message *m) {
    struct outbox *b = &((struct comm *)ctx)->sent;
    if (b->count == b->capacity) {
        b->capacity = b->capacity ? 2 * b->capacity : 16;
        b->list = xrealloc(b->list, (unsigned long)b->capacity * sizeof *b->list);
    }
    b->list[b->count++] = (struct outgoing){peer, *m};
}

static void give_up(struct comm *c, const char *why, bool said) {
    pthread_mutex_lock(&c->mutex);
    if (!c->failed) {
        c->failed = true;
        c->error_logged = c->error_logged || said;
        snprintf(c->error, sizeof c->error, "%s", why && why[0] ? why : "aborted without a reason");
    }
    pthread_cond_broadcast(&c->changed);
    comm_unlock_wake(c);
}

void comm_give_up(struct comm *c, const char *why) { give_up(c, why, false); }

pid_t comm_thread(struct comm *c) { return atomic_load(&c->tid); }

// ---------------------------------------------------------------- waiting (main thread)
static bool has_happened(const struct comm *c, const struct comm_wait *w) {
    return w->until(c->core, w->unit, w->step, w->count);
}

static void write_late(const struct comm *c, const struct comm_wait *w, const char *what,
                       char text[WIRE_TEXT_MAX]) {
    char unit[192] = "";
    if (w->unit >= 0) worker_core_describe(c->core, w->unit, unit, sizeof unit);
    snprintf(text, WIRE_TEXT_MAX, "step %lld: %s within %lld ms%s%s", (long long)w->step, what,
             (long long)c->c->ps.deadline_ms, unit[0] ? ": " : "", unit);
}

int comm_wait(struct comm *c, const struct comm_wait *w, const char *late_text) {
    struct timespec end = time_after(ps_deadline_s(c->c));
    char text[WIRE_TEXT_MAX];
    bool late = false;
    pthread_mutex_lock(&c->mutex);
    c->awaited = w;
    while (!c->failed && !has_happened(c, w) && !late) {
        late = pthread_cond_timedwait(&c->changed, &c->mutex, &end) == ETIMEDOUT;
        // A peer that answers is alive, so the wait continues: the scheduler names stragglers and notices lost peers.
        // If the scheduler is silent as well, the rendezvous soon reports that.
        if (late && (worker_core_status(c->core)->silent_s <= ps_lost_s(c->c) ||
                     rendezvous_silent_s(c->o.role.meet) > 0.5 * ps_lost_s(c->c))) {
            end = time_after(ps_repeat_most_s(c->c));
            late = false;
        }
        // Reports the silence to the scheduler, and continues to wait. The scheduler begins an epoch without that peer;
        // a slow disk may delay this.
        if (late && c->c->recovery.restart > 0) {
            write_late(c, w, late_text, c->lost);
            end = time_after(ps_repeat_most_s(c->c));
            late = false;
            wake(c);
        }
    }
    c->awaited = NULL;
    bool failed = c->failed, ready = has_happened(c, w), log = !c->error_logged;
    if (failed || !ready) c->error_logged = true;
    if (failed)
        snprintf(text, sizeof text, "%s", c->error);
    else if (!ready)
        write_late(c, w, late_text, text);
    pthread_mutex_unlock(&c->mutex);
    if (!failed && ready) return 0;
    if (!failed) comm_give_up(c, text);
    if (log) return ps_fail(text);
    error_take_over(text);
    return -1;
}

int comm_wait_timed(struct comm *c, const struct comm_wait *w, struct timeline *tl, uint64_t id,
                    const char *late) {
    int64_t begin = now_ns();
    int rc = comm_wait(c, w, late);
    int64_t end = now_ns();
    if (end - begin > NOTICED_NS) timeline_blocked(tl, id, begin, end);
    return rc;
}

static char arrow(const struct span *s) {
    return s->part == WORKER_PUSH ? 's' : s->part == WORKER_PULL ? 'f' : 0;
}

int comm_write_trace(struct comm *c) {
    if (!c->spans) return 0;
    pthread_mutex_lock(&c->mutex);
    c->end_trace = true;
    wake(c);
    while (!c->traced && !c->failed) pthread_cond_wait(&c->changed, &c->mutex);
    bool traced = c->traced;
    int64_t offset_ns = c->core->status.clock.offset_ns;
    pthread_mutex_unlock(&c->mutex);
    struct span_thread thread = {.name = "communication", .spans = thread_time_traced(c->spans)};
    struct span_role r = {.dir = c->o.role.dir,
                          .role = "worker",
                          .rank = c->in.id.rank,
                          .shift_ns = offset_ns,
                          .threads = &thread,
                          .count = 1,
                          .first_tid = TRACE_TID,
                          .workers = c->c->workers,
                          .keys = c->o.map->count,
                          .arrow = arrow};
    return traced ? trace_write_threads(&r) : 0;
}

// ---------------------------------------------------------------- the communication thread
static bool comm_renew(void *ctx, int peer, struct ps_message *m) {
    struct comm *c = ctx;
    (void)peer;
    bool needed = worker_core_renew(comm_lock(c), &m->header);
    comm_unlock(c);
    return needed;
}

// Records in the timeline what is new of all units' transfers: gradients and weights. staged: weights are done when the
// device has them, which staging.h records.
static void record_times(struct worker_core *core, bool staged) {
    for (int i = 0; i < core->o.map->units * (1 + core->o.rule.lead); i++) {
        struct unit_times *at = &core->units[i].times;
        struct transfer_ids *ids = &at->ids;
        if (ids->gradients && at->acknowledged_ns) {
            timeline_first_byte(ids->in, ids->gradients, at->sent_ns);
            timeline_peers_ready(ids->in, ids->gradients, at->acknowledged_peers_ns,
                                 ps_time_rank(at->acknowledged_peers_ns));
            timeline_done(ids->in, ids->gradients, at->acknowledged_ns);
            ids->gradients = 0;
        }
        if (ids->weights && at->landed_ns) {
            timeline_first_byte(ids->in, ids->weights, at->landed_first_ns);
            timeline_peers_ready(ids->in, ids->weights, at->landed_peers_ns,
                                 ps_time_rank(at->landed_peers_ns));
            if (!staged) timeline_done(ids->in, ids->weights, at->landed_ns);
            ids->weights = 0;
        }
    }
}

// Called after a change of the core, with the lock: makes it visible to the hooks. A hook that sees a transfer's end
// may close the timeline, so the times come first. The main thread wakes only for what it waits for: other wake-ups
// take a processor core from compute.
static void comm_changed(struct comm *c) {
    record_times(c->core, c->o.staging != NULL);
    if (c->awaited && has_happened(c, c->awaited)) pthread_cond_broadcast(&c->changed);
}

// Takes ownership of the frame.
static int take_message(struct comm *c, int peer, struct net_message *m) {
    const struct wire_header *h = &m->header;
    bool trains = h->kind == WIRE_PULL_REPLY && !(h->flags & WIRE_FINAL);
    if (trains) thread_time_enter(c->spans, WORKER_PULL, span_for(h->step - 1, h->key, c->in.id.rank, 1));
    void *to = worker_core_target(comm_lock(c), peer, h, m->frame);
    comm_unlock(c);
    if (to) memcpy(to, m->frame->data, m->frame->bytes);
    struct worker_core *core = comm_lock(c);
    int rc = worker_core_message(core, peer, h, m->frame, now_seconds());
    // A hook that sees weights landed finds their copy to the device enqueued.
    if (h->kind == WIRE_PULL_REPLY && h->key < c->o.map->count) {
        int u = c->o.map->parts[h->key].unit;
        staging_put_weights(c->o.staging, u, worker_core_fills(core, u),
                            worker_core_times(core, u, worker_core_landed(core, u) - 1)->ids);
    }
    // The span ends before a hook can see the weights: what it computes with them comes after their pull.
    if (trains) thread_time_enter(c->spans, WORKER_PROTOCOL, SPAN_OF_NOTHING);
    comm_changed(c);
    comm_unlock(c);
    return rc;
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
        star_link_receive(c->in.link, peer, &m.header, now_seconds());
        if (take_message(c, peer, &m) != 0) return -1;
    }
    return rc < 0 ? -1 : 0;
}

// Passes on what the core has sent.
static void send_all(struct comm *c) {
    const struct ps_port port = star_link_port(c->in.link);
    for (int i = 0; i < c->leaving.count; i++) {
        const struct outgoing *out = &c->leaving.list[i];
        const struct wire_header *h = &out->message.header;
        bool push = h->kind == WIRE_PUSH;
        if (push) thread_time_enter(c->spans, WORKER_PUSH, span_for(h->step, h->key, c->in.id.rank, 1));
        port.send(port.ctx, out->peer, &out->message);
        if (push) thread_time_enter(c->spans, WORKER_PROTOCOL, SPAN_OF_NOTHING);
    }
    c->leaving.count = 0;
}

// The core's tick and what follows from it. *hurry receives whether to poll again soon.
static int tick(struct comm *c, bool *hurry) {
    char lost[WIRE_TEXT_MAX];
    struct worker_core *core = comm_lock(c);
    double now = now_seconds();
    for (int g = 0; g < c->o.map->shards; g++) link_await(c->in.link, g, worker_core_awaits_answer(core, g));
    int rc = worker_core_tick(core, now);
    comm_changed(c);
    // No event wakes this thread when the transport no longer reads a buffer, or when the buffer of the snapshot that the
    // main thread waits for becomes free.
    *hurry = worker_core_lingers(core) || (c->awaited && c->awaited->until == worker_core_has_snapshotted);
    struct outbox empty = c->leaving;
    c->leaving = c->sent;
    c->sent = empty;
    if (c->end_trace && !c->traced) {
        thread_time_end(c->spans);
        c->traced = true;
        pthread_cond_broadcast(&c->changed);
    }
    memcpy(lost, c->lost, sizeof lost);
    c->lost[0] = 0;
    comm_unlock(c);
    // Reports a silent shard that has not answered: the scheduler may not know yet.
    if (lost[0]) member_failed(&c->o.role, &c->in.id, true, lost);
    link_tick(c->in.link, now);
    send_all(c);
    return rc;
}

static int poll_once(struct comm *c, struct net_poll_item *items, bool *hurry) {
    int shards = c->o.map->shards;
    items[0] = (struct net_poll_item){.fd = c->wake_fd};
    items[1] = (struct net_poll_item){.socket = c->in.lines.scheduler};
    for (int g = 0; g < shards; g++) items[2 + g] = (struct net_poll_item){.socket = c->in.lines.dealers[g]};
    thread_time_enter(c->spans, WORKER_IDLE, SPAN_OF_NOTHING);
    if (net_poll(items, 2 + shards, *hurry ? HURRY_MS : POLL_MS) != 0) return -1;
    thread_time_enter(c->spans, WORKER_PROTOCOL, SPAN_OF_NOTHING);
    uint64_t count;
    ssize_t n = items[0].ready ? read(c->wake_fd, &count, sizeof count) : 0;
    (void)n;  // non-blocking: an empty eventfd is no error
    // An epoch that is over ends this process even if the main thread is busy: its results no longer count.
    if (member_goes_on(&c->o.role, &c->in.id) != 0) return -1;
    if (items[1].ready && drain(c, c->in.lines.scheduler, PEER_SCHEDULER) != 0) return -1;
    for (int g = 0; g < shards; g++)
        if (items[2 + g].ready && drain(c, c->in.lines.dealers[g], g) != 0) return -1;
    if (tick(c, hurry) != 0) return -1;
    const char *why = staging_error(c->o.staging);
    return *why ? fail("the device has failed: %s", why) : 0;
}

static void *comm_main(void *arg) {
    struct comm *c = arg;
    struct net_poll_item *items = xcalloc((unsigned long)c->o.map->shards + 2, sizeof *items);
    bool hurry = false, failed = false;
    error_set_label("worker %d", c->in.id.rank);
    error_quiet(1);  // the main thread logs for the worker
    atomic_store(&c->tid, gettid());
    for (bool quit = false; !quit;) {
        atomic_fetch_add(&c->iterations, 1);
        if (poll_once(c, items, &hurry) != 0) {
            const char *why = worker_core_error(c->core);
            give_up(c, why[0] ? why : error_last(), !why[0] && member_launcher_logs(&c->o.role));
        }
        pthread_mutex_lock(&c->mutex);
        failed = c->failed;
        quit = c->quit || failed;
        pthread_mutex_unlock(&c->mutex);
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
                                    .rule = c->rule,
                                    .layout = c->o.role.layout,
                                    .map = c->o.map,
                                    .dtype = c->c->dtype,
                                    .buffers = c->o.buffers,
                                    .code = c->c->ps.code,
                                    .shared = c->o.sharing->shared,
                                    .in_place = c->o.sharing->in_place,
                                    .credit_bytes = credit_of(c->c, pushed),
                                    .heartbeat_s = ps_heartbeat_s(c->c),
                                    .lost_s = ps_lost_s(c->c),
                                    .clock = c->in.id.clock,
                                    .port = {c, comm_send}};
    c->core = worker_core_create(&o);
    if (c->in.id.joins) {
        worker_core_begin(c->core, c->in.joined.opening.state.step);
        worker_core_gathers(c->core, c->in.joined.gathers);
    }
    if (pthread_create(&c->thread, NULL, comm_main, c) != 0)
        return fail("cannot start the communication thread: " ERROR_RAISE_THREADS);
    c->thread_started = true;
    rendezvous_watch_progress(c->o.role.meet, &c->iterations);
    return 0;
}

struct comm *comm_create(const struct comm_options *o) {
    struct comm *c = xcalloc(1, sizeof *c);
    c->o = *o;
    c->c = o->role.config;
    c->rule = consistency_of(c->c);
    static const char *const names[WORKER_ACTIVITIES] = {"idle", "protocol", "push", "pull"};
    const struct thread_time_options to = {.names = names,
                                           .parts = WORKER_ACTIVITIES,
                                           .idle = 1u << WORKER_IDLE | 1u << WORKER_PROTOCOL,
                                           .trace = true};
    if (o->role.dir && c->c->trace) c->spans = thread_time_create(&to);
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&c->mutex, NULL);
    cond_init(&c->changed);
    const struct enter_options e = {&c->o.role, o->map, o->sharing, o->wire, comm_renew, c};
    if (enter(&e, &c->in) != 0 || start_thread(c) != 0) comm_destroy(&c);
    return c;
}

const struct entry *comm_entry(const struct comm *c) { return &c->in; }

// ---------------------------------------------------------------- the end
void comm_stop(struct comm *c) {
    if (!c->thread_started) return;
    rendezvous_watch_progress(c->o.role.meet, NULL);
    pthread_mutex_lock(&c->mutex);
    c->quit = true;
    pthread_mutex_unlock(&c->mutex);
    wake(c);
    pthread_join(c->thread, NULL);
    c->thread_started = false;
}

void comm_disconnect(struct comm *c) {
    comm_stop(c);
    net_destroy(&c->in.net, FLUSH_MS);
}

void comm_destroy(struct comm **at) {
    struct comm *c = *at;
    if (!c) return;
    comm_disconnect(c);
    entry_free(&c->in);
    worker_core_destroy(&c->core);
    if (c->wake_fd >= 0) close(c->wake_fd);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->changed);
    thread_time_destroy(&c->spans);
    free(c->sent.list);
    free(c->leaving.list);
    free(c);
    *at = NULL;
}
