#include "ps/worker/worker_comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ps/consistency.h"
#include "ps/medium.h"
#include "ps/timing.h"
#include "ps/worker/attach.h"
#include "ps/worker/snapshot_pulls.h"
#include "ps/worker/worker_trace.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define PARTING_S 2.0  // for the scheduler's answer to a goodbye

struct comm {
    struct comm_options o;
    const struct config *c;
    struct consistency_rule rule;
    struct ps_identity id;
    struct net *net;
    struct net_socket *scheduler;
    struct net_socket **shards;  // (map->shards)
    struct worker_core *core;
    struct snapshot_pulls *snapshots;
    struct worker_times *times;
    struct diary *diary;  // NULL: no trace
    pthread_t thread;
    bool thread_started;
    int taken;  // commands since the last publishing; the communication thread's
    int wake_fd;

    pthread_mutex_t mutex;
    pthread_cond_t changed;    // published or failed
    struct command *commands;  // guarded by mutex, as all below
    int command_count, command_capacity;
    struct published now;
    int64_t *landed;  // (units)
    int *busy;        // (units)
    int unobeyed;     // commands whose effect is not published yet
    uint64_t gathers_asked;
    bool waiting;  // for:
    enum comm_event waited_event;
    int waited_unit;  // -1: none
    int64_t waited_step;
    char waiting_for[192];  // what that unit lacks
    bool quit, failed;
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

void comm_give_up(struct comm *c, const char *why) {
    pthread_mutex_lock(&c->mutex);
    if (!c->failed) {
        c->failed = true;
        snprintf(c->error, sizeof c->error, "%s", why && why[0] ? why : "aborted without a reason");
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    wake(c);
}

struct published comm_published(struct comm *c) {
    pthread_mutex_lock(&c->mutex);
    struct published p = c->now;
    pthread_mutex_unlock(&c->mutex);
    return p;
}

// ---------------------------------------------------------------- waiting (main thread)
static bool has_happened(const struct comm *c, enum comm_event event, int u, int64_t step) {
    const struct worker_status *now = &c->now.status;
    switch (event) {
        case COMM_LANDED:
            return c->landed[u] >= step;
        case COMM_FREE:
            return c->busy[u] == 0;
        case COMM_LOADED:
            return c->unobeyed == 0 && c->busy[u] == 0;
        case COMM_PULLED:
            return c->unobeyed == 0 && now->pulling == 0;
        case COMM_GATHERED:
            return now->gathers_done == c->gathers_asked;
        case COMM_STEP_DONE:
            return consistency_allows(&c->rule, step + 1 - now->steps_done);
    }
    return false;
}

int comm_wait(struct comm *c, enum comm_event event, int unit, int64_t step, const char *what) {
    double start = now_seconds();
    struct timespec end = moment_in(ps_deadline_s(c->c));
    char text[WIRE_TEXT_MAX];
    int late = 0;
    pthread_mutex_lock(&c->mutex);
    c->waiting = true;
    c->waited_event = event;
    c->waited_unit = unit;
    c->waited_step = step;
    while (!c->failed && !has_happened(c, event, unit, step) && !late) {
        late = pthread_cond_timedwait(&c->changed, &c->mutex, &end) == ETIMEDOUT;
        // Who answers is alive, and waited for: the scheduler says who is slow, and notices who is lost.
        if (late && c->now.status.silent_s <= ps_lost_s(c->c)) {
            end = moment_in(ps_resend_s(c->c));
            late = 0;
        }
    }
    c->waiting = false;
    c->waited_unit = -1;
    bool failed = c->failed, ready = has_happened(c, event, unit, step), log = !c->error_logged;
    if (failed || !ready) c->error_logged = true;
    if (failed)
        snprintf(text, sizeof text, "%s", c->error);
    else if (!ready)
        snprintf(text, sizeof text, "step %lld: %s within %lld ms%s%s", (long long)step, what,
                 (long long)c->c->ps.deadline_ms, unit >= 0 ? ": " : "", unit >= 0 ? c->waiting_for : "");
    c->now.waited_s += now_seconds() - start;
    pthread_mutex_unlock(&c->mutex);
    if (!failed && ready) return 0;
    if (!failed) comm_give_up(c, text);
    return log ? ps_fail(text) : -1;
}

// ---------------------------------------------------------------- the communication thread
static void comm_send(void *ctx, int peer, const struct ps_message *message) {
    struct comm *c = ctx;
    struct ps_message m = *message;
    ps_stamp(&c->id, &m.header);
    worker_trace_message(c->diary, c->id.rank, &m.header);
    net_send(peer == PEER_SCHEDULER ? c->scheduler : c->shards[peer], NULL, &m);
    diary_enter(c->diary, WORKER_PROTOCOL, &DIARY_NOTHING);
}

static void leave_trace(struct comm *c) {
    struct worker_trace t = {&c->o.role, c->o.map, c->id.rank, worker_core_clock(c->core), c->diary};
    if (c->diary && worker_trace_write(&t) != 0) comm_give_up(c, error_last());
    diary_destroy(&c->diary);
}

static void obey(struct comm *c, const struct command *x, double now) {
    struct worker_core *core = c->core;
    switch (x->kind) {
        case COMMAND_PUSH:
            worker_times_open(c->times, x->unit, x->ids);
            worker_core_push_unit(core, x->unit, &x->push);
            return;
        case COMMAND_INIT:
            worker_core_init_unit(core, x->unit, x->values, x->round);
            return;
        case COMMAND_REPORT:
            worker_core_report(core, &x->report, now);
            return;
        case COMMAND_GATHER:
            worker_core_gather(core, x->gather, x->count, now);
            return;
        case COMMAND_PULL_ALL:
            worker_core_pull_all(core, now);
            return;
        case COMMAND_SNAPSHOT:
            snapshot_pulls_open(c->snapshots, x->version, x->snapshot, now);
            return;
        case COMMAND_SNAPSHOTS_END:
            snapshot_pulls_end(c->snapshots);
            return;
        case COMMAND_STOP:
            worker_core_stop(core);
            return;
        case COMMAND_TRACE:
            leave_trace(c);
            return;
        case COMMAND_GOODBYE:
            worker_core_goodbye(core, now);
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
        if (m.header.job != c->id.job) {
            ps_frame_release(m.frame);
            continue;
        }
        worker_trace_message(c->diary, c->id.rank, &m.header);
        if (m.header.kind == WIRE_SNAPSHOT_REPLY) {
            snapshot_pulls_answer(c->snapshots, &m.header, m.frame, now_seconds());
            ps_frame_release(m.frame);
            continue;
        }
        if (worker_core_message(c->core, peer, &m.header, m.frame, now_seconds()) != 0) return -1;
        diary_enter(c->diary, WORKER_PROTOCOL, &DIARY_NOTHING);
    }
    return rc < 0 ? -1 : 0;
}

// Sends weights that have landed on to the device. This comes before publishing: a hook that sees them landed
// finds their copy enqueued. -1 when the device has failed.
static int pass_on(struct comm *c) {
    struct staging *s = c->o.staging;
    if (!s) return 0;
    for (int u = 0; u < c->o.role.layout->count; u++)
        staging_put_weights(s, u, worker_core_fills(c->core, u), worker_times_ids(c->times, u));
    const char *why = staging_error(s);
    return *why ? fail("the device has failed: %s", why) : 0;
}

// Copies out what the hooks wait for. Returns whether only the transport is still reading a buffer.
static bool publish(struct comm *c, double busy_s) {
    bool busy = false;
    // Before anybody can see the transfers' end and close the record.
    worker_times_tell(c->times, c->core, c->o.staging != NULL);
    pthread_mutex_lock(&c->mutex);
    c->now.version = INT64_MAX;
    for (int u = 0; u < c->o.role.layout->count; u++) {
        int64_t version = worker_core_version(c->core, u);
        if (version < c->now.version) c->now.version = version;
        c->landed[u] = worker_core_landed(c->core, u);
        c->busy[u] = worker_core_busy(c->core, u);
        busy = busy || c->busy[u];
    }
    c->unobeyed -= c->taken;
    c->taken = 0;
    c->now.status = *worker_core_status(c->core);
    c->now.busy_s += busy_s;
    if (c->waited_unit >= 0)
        worker_core_describe(c->core, c->waited_unit, c->waiting_for, sizeof c->waiting_for);
    // The main thread is woken for what it waits for alone: it would take a core from those who compute.
    if (c->waiting && has_happened(c, c->waited_event, c->waited_unit, c->waited_step))
        pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
    return busy && !worker_core_transferring(c->core);
}

static int poll_once(struct comm *c, struct net_poll_item *items, bool hurry) {
    int shards = c->o.map->shards;
    items[0] = (struct net_poll_item){.fd = c->wake_fd};
    items[1] = (struct net_poll_item){.socket = c->scheduler};
    for (int g = 0; g < shards; g++) items[2 + g] = (struct net_poll_item){.socket = c->shards[g]};
    diary_enter(c->diary, WORKER_IDLE, &DIARY_NOTHING);
    if (net_poll(items, 2 + shards, hurry ? HURRY_MS : POLL_MS) != 0) return -1;
    diary_enter(c->diary, WORKER_PROTOCOL, &DIARY_NOTHING);
    if (items[0].ready) take_commands(c);
    if (items[1].ready && drain(c, c->scheduler, PEER_SCHEDULER) != 0) return -1;
    for (int g = 0; g < shards; g++)
        if (items[2 + g].ready && drain(c, c->shards[g], g) != 0) return -1;
    snapshot_pulls_tick(c->snapshots, now_seconds());
    return worker_core_tick(c->core, now_seconds());
}

// Whether the thread is to end; *failed: because of an error, which the job must be told.
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
    error_set_label("worker %d", c->id.rank);
    error_quiet(1);  // the main thread speaks for the worker
    double before = now_seconds();
    while (!asked_to_end(c, &failed)) {
        bool transferring = worker_core_transferring(c->core);
        if (poll_once(c, items, hurry) != 0 || pass_on(c) != 0)
            comm_give_up(c, worker_core_error(c->core)[0] ? worker_core_error(c->core) : error_last());
        double after = now_seconds();
        hurry = publish(c, transferring ? after - before : 0.0);
        before = after;
    }
    if (failed) {
        pthread_mutex_lock(&c->mutex);
        ps_say(c->scheduler, &c->id, WIRE_ABORT, c->error);
        pthread_mutex_unlock(&c->mutex);
    }
    free(items);
    return NULL;
}

// ---------------------------------------------------------------- login
// Connects to every shard of the endpoints' lines. 0 or -1 after logging.
static int connect_shards(struct comm *c, char *endpoints) {
    char *rest = NULL, *line = strtok_r(endpoints, "\n", &rest);
    for (int g = 0; g < c->o.map->shards; g++, line = strtok_r(NULL, "\n", &rest)) {
        if (!line) return fail("the scheduler named %d of %d server addresses", g, c->o.map->shards);
        if (!(c->shards[g] = net_dealer(c->net, line))) return -1;
    }
    return 0;
}

static int join_job(struct comm *c) {
    const struct ps_role_options *role = &c->o.role;
    struct manifest manifest = manifest_make(c->c, role->layout, c->o.map);
    struct net_options no = {.wire = c->o.wire,
                             .max_payload_bytes = (size_t)c->c->ps.partition_bytes + (1 << 20),
                             .io_threads = ps_io_threads(c->o.sharing->c, c->o.map->shards),
                             .queue_messages = 4 * c->o.map->count + 1024};
    c->net = net_create(&no);
    if (!c->net || !(c->scheduler = net_dealer(c->net, role->scheduler))) return -1;
    struct ps_login l = {.socket = c->scheduler, .role = role, .manifest = &manifest};
    if (ps_login(&l, &c->id) != 0) return -1;
    error_set_label("worker %d", c->id.rank);
    char *endpoints = ps_wait_start(&l, &c->id);
    int rc = endpoints ? connect_shards(c, endpoints) : -1;
    struct attach a = {
        .role = role, .id = &c->id, .scheduler = c->scheduler, .shards = c->shards, .sharing = c->o.sharing};
    if (rc == 0) rc = attach_shards(&a);
    // If the launcher asked this worker to leave, it also tells the other roles to end.
    bool asked = ps_stopped(role->stop) && stop_supervised();
    if (rc != 0 && !asked) ps_say(c->scheduler, &c->id, WIRE_ABORT, error_last());
    free(endpoints);
    return rc;
}

static int start(struct comm *c) {
    struct worker_core_options o = {.layout = c->o.role.layout,
                                    .map = c->o.map,
                                    .dtype = c->c->dtype,
                                    .weights = c->o.buffers->wire_weights,
                                    .grads = (const void *const *)c->o.buffers->wire_grads,
                                    .shared = c->o.sharing->shared,
                                    .grad_at = c->o.buffers->grad_at,
                                    .weight_at = c->o.sharing->in_place ? NULL : c->o.buffers->weight_at,
                                    .credit_bytes = c->c->ps.credit_bytes,
                                    .resend_s = ps_resend_s(c->c),
                                    .heartbeat_s = ps_heartbeat_s(c->c),
                                    .lost_s = ps_lost_s(c->c),
                                    .start_s = now_seconds(),
                                    .clock = c->id.clock,
                                    .port = {c, comm_send}};
    c->core = worker_core_create(&o);
    c->snapshots = snapshot_pulls_create(&(struct snapshot_pulls_options){
        .map = o.map, .dtype = o.dtype, .resend_s = o.resend_s, .port = o.port});
    if (pthread_create(&c->thread, NULL, comm_main, c) != 0)
        return fail("cannot start the communication thread");
    c->thread_started = true;
    return 0;
}

struct comm *comm_create(const struct comm_options *o, struct ps_identity *id) {
    struct comm *c = xcalloc(1, sizeof *c);
    unsigned long units = (unsigned long)o->role.layout->count;
    c->o = *o;
    c->c = o->role.config;
    c->id = (struct ps_identity){.role = PS_WORKER, .rank = o->role.rank, .incarnation = ps_random_id()};
    c->shards = xcalloc((unsigned long)o->map->shards, sizeof *c->shards);
    c->rule = consistency_of(c->c);
    c->times = worker_times_create(o->role.layout->count);
    c->diary = worker_diary(&o->role);
    c->landed = xcalloc(units, sizeof *c->landed);
    c->busy = xcalloc(units, sizeof *c->busy);
    c->waited_unit = -1;
    c->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&c->mutex, NULL);
    cond_init(&c->changed);
    if (join_job(c) != 0 || start(c) != 0) comm_destroy(&c);
    if (c) *id = c->id;
    return c;
}

// ---------------------------------------------------------------- the end
static void join_thread(struct comm *c) {
    if (!c->thread_started) return;
    pthread_mutex_lock(&c->mutex);
    c->quit = true;
    pthread_mutex_unlock(&c->mutex);
    wake(c);
    pthread_join(c->thread, NULL);
    c->thread_started = false;
}

void comm_part(struct comm *c) {
    double end = now_seconds() + PARTING_S;
    if (!c->thread_started) return;
    comm_command(c, &(struct command){.kind = COMMAND_GOODBYE});
    pthread_mutex_lock(&c->mutex);
    while (!c->failed && !c->now.status.parted && now_seconds() < end) {
        pthread_mutex_unlock(&c->mutex);
        usleep(1000);
        pthread_mutex_lock(&c->mutex);
    }
    pthread_mutex_unlock(&c->mutex);
    join_thread(c);
}

void comm_hang_up(struct comm *c) {
    join_thread(c);
    net_destroy(&c->net, c->now.status.parted ? 0 : FLUSH_MS);
}

void comm_destroy(struct comm **at) {
    struct comm *c = *at;
    if (!c) return;
    comm_hang_up(c);
    worker_core_destroy(&c->core);
    snapshot_pulls_destroy(&c->snapshots);
    if (c->wake_fd >= 0) close(c->wake_fd);
    pthread_mutex_destroy(&c->mutex);
    pthread_cond_destroy(&c->changed);
    worker_times_destroy(&c->times);
    diary_destroy(&c->diary);
    free(c->commands);
    free(c->shards);
    free(c->landed);
    free(c->busy);
    free(c);
    *at = NULL;
}
