// The scheduler's thread: one ROUTER, one core.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "kernels/spans.h"
#include "ps/agree/start_point.h"
#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/timing.h"
#include "ps/net/link.h"
#include "ps/net/login.h"
#include "ps/net/net.h"
#include "ps/record/arrivals.h"
#include "ps/scheduler/scheduler_core.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"
#include "shared/report/span_files.h"
#include "shared/state/checkpoint.h"
#include "shared/time/thread_time.h"
#include "shared/time/turn_clock.h"
#include "shared/train/job.h"

#define QUEUE_MESSAGES  65536  // control messages of all members
#define PARTING_EVERY_S 0.06   // between repeats of why the job has ended

struct scheduler {
    const struct ps_role_options *o;
    struct net *net;
    struct net_socket *router;
    struct scheduler_core *core;
    struct link *link;         // to the members
    uint64_t linked_job;       // of which they are members
    struct net_route *routes;  // (members)
    struct shard_map *map;
    struct manifest manifest;
    struct manifest order;    // of recorded arrivals
    struct arrivals *replay;  // of one shard: which batch each worker's step had; NULL: none are repeated
    struct net_route sender;  // of the message being handled
    struct ps_identity id;
    struct wire_count wire;
    char address[NET_ADDRESS_MAX];  // as bound
    struct start_point first;       // where the job begins, as the configuration says
    bool told;                      // by the launcher of why the job has ended: it says it
    struct background *files;       // reads and writes them
    struct beginning *beginning;    // the last job of that kind; NULL: there was none
    uint64_t begins;                // its number
    uint64_t standing;              // of the last one that people have heard of
    int found;                      // what a job has come to: 0 or -1
    struct epoch_options epochs;    // of the first
    struct turn_clock turns;        // the core's
    struct waiting waiting;
    struct thread_time *spans;  // NULL: no trace
    int64_t cpu_begin_ns;       // when the job started
};

// Below the link.
static void scheduler_send(void *ctx, int peer, const struct ps_message *message) {
    struct scheduler *s = ctx;
    struct ps_message m = *message;
    if (m.header.kind == WIRE_START && !s->cpu_begin_ns) s->cpu_begin_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    // It has no directory of its own, maybe: the servers, which leave reports, learn what it has cost.
    struct rusage self;
    if (m.header.kind == WIRE_SHUTDOWN) {
        m.header.count = 4;
        m.header.values[0] = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - s->cpu_begin_ns) * 1e-9;
        m.header.values[1] = getrusage(RUSAGE_SELF, &self) ? 0 : (double)self.ru_maxrss * 1024;
        m.header.values[2] = (double)atomic_load(&s->wire.control_sent);
        m.header.values[3] = (double)atomic_load(&s->wire.control_received);
    }
    // Clocks are compared by it, so it is the host's (ps/net/clock.h).
    if (m.header.kind == WIRE_HEARTBEAT_ACK) m.header.peers_ready_ns = clock_ns(CLOCK_MONOTONIC);
    if (s->core) s->id.job = scheduler_core_epochs(s->core)->job;
    ps_stamp(&s->id, &m.header);
    // A process that is refused learns nothing of the job.
    if (m.header.kind == WIRE_REFUSED) m.header.job = m.header.incarnation = 0;
    net_send(s->router, peer == PEER_SENDER ? &s->sender : &s->routes[peer], &m);
}

// Messages of an epoch that has ended are said no more.
static void link_turn(struct scheduler *s) {
    uint64_t job = scheduler_core_epochs(s->core)->job;
    for (int i = 0; job != s->linked_job && i < scheduler_core_members(s->core); i++) link_forget(s->link, i);
    s->linked_job = job;
}

static double moment(const struct scheduler *s) { return turn_clock_at(&s->turns, now_seconds()); }

// Hands a message to the core: of a member by way of the link, which may answer.
static void hear(struct scheduler *s, struct net_message *m) {
    // Pulses have a socket of their own, at which nobody listens.
    bool answers = m->header.kind != WIRE_PULSE;
    int member = scheduler_core_knows(s->core, &m->header);
    s->sender = m->from;
    if (member >= 0 && answers) s->routes[member] = m->from;
    if (member >= 0) link_receive(s->link, member, &m->header, now_seconds());
    thread_time_enter(s->spans, (int)m->header.kind, span_for(m->header.step, -1, m->header.rank, 1));
    bool login = m->header.kind == WIRE_HELLO;
    member = scheduler_core_message(s->core, &m->header, m->frame, moment(s));
    if (member >= 0 && login) s->routes[member] = m->from;
    if (member >= 0 && login) link_receive(s->link, member, &m->header, now_seconds());
    link_turn(s);
}

// What looks at all members, of whom there may be thousands: not for each message, but for all that have come together. 0 or -1.
static int look_around(struct scheduler *s) {
    int rc = scheduler_core_tick(s->core, turn_clock_turn(&s->turns, now_seconds()));
    link_turn(s);
    link_tick(s->link, now_seconds());
    return rc;
}

static void say_waiting(struct scheduler *s, double now) {
    const struct config *c = s->o->config;
    int workers, servers;
    char text[384];
    if (!s->o->say_waiting || !scheduler_core_waits(s->core, &workers, &servers)) return;
    // All are here and their threads are still logging in: a moment.
    if (!workers && !servers) return;
    snprintf(text, sizeof text, "waiting for %d of %d workers and %d of %d servers at %s", workers,
             c->workers, servers, c->ps.servers, s->address);
    if (waiting_due(&s->waiting, text, now)) info("%s", text);
}

// ---------------------------------------------------------------- files
// A file system that stands still is slow, not dead.
static void say_standing(struct scheduler *s) {
    uint64_t number;
    double now = now_seconds(), age_s = background_age(s->files, now, &number);
    if (age_s <= ps_overdue_s(s->o->config) || number == s->standing || s->o->config->quiet) return;
    s->standing = number;
    info("waiting for the file system of %s: %.0f s so far; members are answered meanwhile",
         s->o->dir ? s->o->dir : "the run", age_s);
}

// Before the job is known, and behind its end: a role that logs in hears that the scheduler lives, and waits.
static void wait_for(struct scheduler *s, uint64_t number) {
    while (!background_wait(s->files, number, HURRY_MS * 1e-3)) {
        struct ps_message patience = {.header = {.kind = WIRE_HEARTBEAT_ACK}};
        struct net_poll_item item = {.socket = s->router};
        struct net_message m;
        say_standing(s);
        if (net_poll(&item, 1, HURRY_MS) != 0) continue;
        while (item.ready && net_recv(s->router, &m) == 1) {
            ps_frame_release(m.frame);
            ps_stamp(&s->id, &patience.header);
            if (m.header.kind == WIRE_HELLO) net_send(s->router, &m.from, &patience);
        }
    }
}

static void apart(struct scheduler *s, int (*what)(void *)) {
    wait_for(s, background_ask(s->files, what, s, NULL));
}

// The first epoch of this scheduler: what DIR/history.jsonl says of those before, if it goes on with their job.
// checkpoint: that the configuration says to go on from; "": none.
static void epoch_first(const struct ps_role_options *o, const char *checkpoint, struct epoch_options *out) {
    out->restarts = o->config->recovery.restart;
    if (!o->dir || (!out->restarts && !ps_elastic(o->config))) return;
    // One that was started by hand goes on with a job whose worker 0 still stands in the run directory's state.
    struct run_state state;
    bool again = false;
    if (!o->launcher) {
        run_state_read(o->dir, &state);
        again = state.phase == RUN_RUNNING || state.phase == RUN_DEAD;
        if (!again && !resume_is_own(checkpoint, o->dir)) history_forget(o->dir);
    }
    struct history_row last = history_last_life(o->dir);
    out->start = again && last.epoch ? last.start : last.start + 1;
    if (!out->restarts || !again || !last.epoch) return;
    out->first = last.epoch + 1;
    out->used = last.restarts + 1;
    out->why = "the scheduler was started again";
}

// The first epoch of a job begins where the configuration says, a later one at the latest complete checkpoint of the run, if
// there is one; DIR/history.jsonl says so.
static int epoch_starts(const struct ps_role_options *o, const struct epochs *e, struct start_point *out,
                        char error[WIRE_TEXT_MAX]) {
    // Nobody of an earlier epoch writes any more: all have begun anew, and logged in.
    char *latest = e->why[0] && o->dir ? checkpoint_latest(o->dir) : NULL;
    int rc = latest ? start_point_at(out, o->config, latest) : 0;
    free(latest);
    if (rc != 0) return core_fail(error, "%s", error_last());
    // Nothing stays of another run that had this directory.
    int64_t stays = resume_is_own(out->checkpoint, o->dir) ? out->step : 0;
    // Of a scheduler's own death its records tell: nobody has cut them yet.
    bool later = e->why[0] || stays > 0;
    int64_t reached = e->reached < 0 && later && o->dir ? metrics_last_step(o->dir) : e->reached;
    struct history_row life = {.kind = HISTORY_LIFE,
                               .step = out->step + 1,
                               .start = e->o.start,
                               .epoch = e->epoch,
                               .job = e->job,
                               .restarts = e->used,
                               .checkpoint = out->checkpoint,
                               .why = e->why,
                               .counted = reached >= 0,
                               .lost = reached > out->step ? reached - out->step : 0};
    char again[48] = "";
    if (life.counted)
        snprintf(again, sizeof again, "; %lld step%s done again", (long long)life.lost,
                 life.lost == 1 ? " is" : "s are");
    bool says = !o->config->quiet && e->why[0];
    if (says && out->checkpoint[0])
        info("epoch %u goes on behind step %lld (%s)%s: %s", e->epoch, (long long)out->step, out->checkpoint,
             again, e->why);
    else if (says)
        info("epoch %u begins at the first step, as there is no checkpoint%s: %s", e->epoch, again, e->why);
    if (o->dir && (e->o.restarts || ps_elastic(o->config))) history_add(o->dir, &life);
    return 0;
}

struct beginning {
    const struct scheduler *s;
    struct epochs e;  // as it was when all were there
    struct start_point out;
    char error[WIRE_TEXT_MAX];
    int rc;
};

static int begins(void *arg) {
    struct beginning *b = arg;
    b->rc = epoch_starts(b->s->o, &b->e, &b->out, b->error);
    return 0;
}

// An epoch that has ended meanwhile has nothing to begin: the next one asks again.
static int starts(void *ctx, const struct epochs *e, struct start_point *out, char error[WIRE_TEXT_MAX]) {
    struct scheduler *s = ctx;
    struct beginning *b = s->beginning;
    if (b && !background_done(s->files, s->begins)) return 1;
    if (b && b->e.job == e->job) {
        *out = b->out;
        memcpy(error, b->error, WIRE_TEXT_MAX);
        if (!b->rc && s->o->launcher) verdicts_say(s->o->launcher, &(struct verdict){.kind = VERDICT_BEGINS});
        return b->rc;
    }
    if (!b) b = s->beginning = xcalloc(1, sizeof *b);
    *b = (struct beginning){.s = s, .e = *e, .out = *out};
    s->begins = background_ask(s->files, begins, b, NULL);
    return 1;
}

static uint64_t next_job(void *ctx) {
    (void)ctx;
    return ps_random_id();
}

static void say_lost(void *ctx, int pid, const char *name) {
    struct verdict v = {.kind = VERDICT_LOST, .pid = pid};
    snprintf(v.name, sizeof v.name, "%s", name);
    verdicts_say(((struct scheduler *)ctx)->o->launcher, &v);
}

struct noting {
    const struct scheduler *s;
    struct absence a;
    char *why;
};

// A line that cannot be written is reported, and changes nothing else.
static int note(void *arg) {
    const struct noting *n = arg;
    const struct absence *a = &n->a;
    history_add(n->s->o->dir, &(struct history_row){.kind = a->away ? HISTORY_AWAY : HISTORY_BACK,
                                                    .step = a->step,
                                                    .worker = a->worker,
                                                    .cause = a->loss.cause,
                                                    .why = n->why});
    return 0;
}

static void note_free(void *arg) {
    free(((struct noting *)arg)->why);
    free(arg);
}

static void note_absence(void *ctx, const struct absence *a) {
    const struct scheduler *s = ctx;
    if (!s->o->dir) return;
    struct noting *n = xcalloc(1, sizeof *n);
    *n = (struct noting){s, *a, a->loss.why ? xstrdup(a->loss.why) : NULL};
    background_ask(s->files, note, n, note_free);
}

static void hear_launcher(struct scheduler *s) {
    struct death d;
    while (verdicts_death(s->o->launcher, &d)) {
        bool ended = scheduler_core_error(s->core)[0];
        struct verdict v = scheduler_core_dead(s->core, &d, moment(s));
        s->told = s->told || (v.kind == VERDICT_ENDS && !ended);
        verdicts_say(s->o->launcher, &v);
    }
}

// A launcher may still tell of a death when all members have said goodbye.
static bool is_over(const struct scheduler *s) {
    return scheduler_core_done(s->core) && (!s->o->launcher || verdicts_are_over(s->o->launcher));
}

static int scheduler_loop(struct scheduler *s) {
    struct verdicts *launcher = s->o->launcher;
    while (!is_over(s)) {
        struct net_poll_item items[2] = {{.socket = s->router},
                                         {.fd = launcher ? verdicts_fd(launcher) : -1}};
        struct net_message m;
        int rc = 0;
        say_waiting(s, now_seconds());
        char text[WIRE_TEXT_MAX];
        while (scheduler_core_slow(s->core, moment(s), text) || scheduler_core_news(s->core, text))
            if (!s->o->config->quiet) info("%s", text);
        if (launcher) verdicts_set_step(launcher, scheduler_core_steps(s->core));
        say_standing(s);
        if (ps_stopped(s->o->stop)) return scheduler_core_abort(s->core, "the scheduler was " PS_INTERRUPTED);
        thread_time_enter(s->spans, WIRE_NONE, SPAN_OF_NOTHING);
        bool soon = scheduler_core_hurry(s->core) || (s->beginning && !background_done(s->files, s->begins));
        if (net_poll(items, launcher ? 2 : 1, soon ? HURRY_MS : POLL_MS) != 0)
            return scheduler_core_abort(s->core, "the scheduler cannot poll its socket");
        double now = now_seconds();
        if (items[1].ready) hear_launcher(s);
        while (items[0].ready && now_seconds() - now < POLL_MS * 1e-3 && (rc = net_recv(s->router, &m)) == 1)
            hear(s, &m);
        if (rc < 0) return scheduler_core_abort(s->core, "the scheduler cannot read its socket");
        if (look_around(s) != 0) return -1;
    }
    return 0;
}

static int64_t recorded(void *ctx, int worker, int64_t step) {
    return arrivals_batch(((const struct scheduler *)ctx)->replay, worker, step);
}

static int read_first(void *arg) {
    struct scheduler *s = arg;
    const struct config *c = s->o->config;
    s->found = s->o->read ? s->o->read(s->o->ctx) : 0;
    if (s->found == 0 && !(s->map = shard_map_of(c, s->o->layout))) s->found = -1;
    if (s->found == 0 && c->ps.replay_arrivals) {
        struct arrivals_options o = {.map = s->map,
                                     .manifest = &s->order,
                                     .workers = c->workers,
                                     .steps = c->steps,
                                     .sets = ps_drops(c),
                                     .reads = ps_reads_vary(c),
                                     .per_update = pushes_per_update(c)};
        s->order = manifest_of_order(c, s->o->layout, s->map);
        while (!s->map->shard_keys[o.shard]) o.shard++;
        s->replay = arrivals_read(&o, c->ps.replay_arrivals);
        s->found = s->replay ? 0 : -1;
    }
    if (s->found == 0) s->found = start_point_find(&s->first, c, s->o->dir);
    if (s->found == 0) epoch_first(s->o, s->first.checkpoint, &s->epochs);
    return 0;
}

static int scheduler_open(struct scheduler *s) {
    const struct config *c = s->o->config;
    // 1. Every role that comes is heard from now on, and answered.
    struct net_options no = {.wire = &s->wire,
                             .max_payload_bytes = 1 << 17,  // endpoints of a server's shards
                             .queue_messages = QUEUE_MESSAGES,
                             .faults = fault_plan_of(c, PS_SCHEDULER, 0),
                             .key = s->o->key};
    const char *at = s->o->scheduler ? s->o->scheduler : c->ps.bind;
    if (descriptors_claim(descriptors_of_scheduler(c, c->ps.threads), DESCRIPTORS_SPARE) != 0) return -1;
    if (!(s->files = background_create("reads and writes the job's files", error_label()))) return -1;
    if (!(s->net = net_create(&no)) || !(s->router = net_router(s->net, at, s->address))) return -1;
    s->id = (struct ps_identity){.role = PS_SCHEDULER, .incarnation = ps_random_id(), .job = ps_random_id()};
    if (s->o->on_bound && s->o->on_bound(s->o->ctx, s->address) != 0) return -1;
    // 2. The files say which job this is.
    bool replaced = s->o->launcher && (c->recovery.restart || ps_elastic(c));
    struct epoch_options *first = &s->epochs;
    *first = (struct epoch_options){
        .ctx = s, .job = next_job, .lost = replaced ? say_lost : NULL, .replaced = replaced};
    apart(s, read_first);
    if (s->found != 0) return -1;
    if (first->used > first->restarts)
        return fail("%s; all restarts are used up (--restart %d), as %s/history.jsonl says", first->why,
                    first->restarts, s->o->dir);
    // 3. The core, over the link.
    s->manifest = manifest_make(s->o, s->map);
    s->linked_job = s->id.job;
    s->link = link_create(&(struct link_options){.peers = c->workers + s->map->servers + s->map->shards,
                                                 .repeat_most_s = ps_repeat_most_s(c),
                                                 .network = {s, scheduler_send}});
    struct scheduler_options co = {.config = c,
                                   .map = s->map,
                                   .lead = consistency_of(c).lag,
                                   .manifest = s->manifest,
                                   .job = s->id.job,
                                   .clock = ps_clock_id(),
                                   .start = s->first,
                                   .start_s = now_seconds(),
                                   .port = link_port(s->link),
                                   .epochs = s->epochs,
                                   .starts = starts,
                                   .starts_ctx = s,
                                   .absent = {s, note_absence},
                                   .recorded = s->replay ? recorded : NULL,
                                   .recorded_ctx = s};
    s->turns.lost_s = ps_lost_s(c);
    turn_clock_turn(&s->turns, co.start_s);
    s->core = scheduler_core_create(&co);
    s->routes = xcalloc((unsigned long)scheduler_core_members(s->core), sizeof *s->routes);
    return 0;
}

// The job has ended, and everybody is to hear why.
static void part(struct scheduler *s) {
    link_hurry(s->link, PARTING_EVERY_S);
    while (!scheduler_core_part(s->core, moment(s))) {
        struct net_poll_item item = {.socket = s->router};
        struct net_message m;
        if (net_poll(&item, 1, POLL_MS) != 0) return;
        while (item.ready && net_recv(s->router, &m) == 1) hear(s, &m);
        look_around(s);
    }
}

static int trace_end(void *arg) {
    struct scheduler *s = arg;
    const struct config *c = s->o->config;
    struct span_thread thread = {.name = "messages", .spans = thread_time_traced(s->spans)};
    struct span_role r = {.dir = s->o->dir,
                          .role = "scheduler",
                          .threads = &thread,
                          .count = 1,
                          .first_tid = 1,
                          .workers = c->workers,
                          .servers = c->ps.servers};
    thread_time_end(s->spans);
    s->found = s->spans ? trace_write_threads(&r) : 0;
    return 0;
}

int ps_scheduler_run(const struct ps_role_options *o) {
    const char *names[WIRE_KINDS];
    struct scheduler s = {.o = o};
    error_set_label("scheduler");
    for (int k = 0; k < WIRE_KINDS; k++) names[k] = wire_kind_name((enum wire_kind)k);
    struct thread_time_options traced = {
        .names = names, .parts = WIRE_KINDS, .idle = 1u << WIRE_NONE, .trace = true};
    if (o->dir && o->config->trace) s.spans = thread_time_create(&traced);
    int rc = scheduler_open(&s);
    if (rc == 0) {
        rc = scheduler_loop(&s);
        const char *why = scheduler_core_error(s.core);
        // Its launcher says it, or has ended the job.
        error_quiet(s.told || (o->launcher && ps_was_interrupted(why)) ? QUIET_ALL : QUIET_NOT);
        if (rc != 0) ps_fail(why);
        error_quiet(QUIET_NOT);
        if (rc != 0) part(&s);
        if (rc == 0) {
            apart(&s, trace_end);
            rc = s.found;
        }
    }
    if (s.files) wait_for(&s, background_asked(s.files));
    background_destroy(&s.files);
    net_destroy(&s.net, FLUSH_MS);
    scheduler_core_destroy(&s.core);
    link_destroy(&s.link);
    manifest_release(&s.manifest);
    manifest_release(&s.order);
    arrivals_destroy(&s.replay);
    free(s.routes);
    free(s.beginning);
    thread_time_destroy(&s.spans);
    shard_map_destroy(&s.map);
    return rc;
}
