// The scheduler's thread: one ROUTER, one core, and the registry of its process (shared/fabric/rendezvous.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "kernels/spans.h"
#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/timing.h"
#include "ps/net/link.h"
#include "ps/net/member.h"
#include "ps/net/net.h"
#include "ps/net/notices.h"
#include "ps/record/arrivals.h"
#include "ps/scheduler/scheduler_core.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/fabric/address.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/verdict.h"
#include "shared/report/history.h"
#include "shared/report/metrics.h"
#include "shared/report/run_state.h"
#include "shared/report/span_files.h"
#include "shared/state/checkpoint_read.h"
#include "shared/time/poll_clock.h"
#include "shared/time/thread_time.h"
#include "shared/train/job.h"

#define QUEUE_MESSAGES 65536  // control messages of all members

struct scheduler {
    const struct ps_role_options *o;
    struct net *net;
    struct ps_identity id;
    struct net_lines lines;  // by one ROUTER, to the members and shards that have sent in this epoch
    struct link *link;       // over these lines
    struct scheduler_core *core;
    uint64_t *joined;  // (workers) the incarnation that was published as joining; 0: none
    int verdicts;      // verdicts sent so far
    bool childless;    // this process's launcher has no child left
    struct shard_map *map;
    struct manifest manifest;
    struct manifest order;  // of the recorded arrivals
    // The recorded arrivals of one shard, which give the batch of each worker's step; NULL: no replay.
    struct arrivals *replay;
    struct wire_count wire;
    char address[FABRIC_ADDRESS_MAX];  // of the ROUTER, as bound
    struct start_point first;          // where the job begins, as configured
    bool launcher_logs;                // the launcher knows why the job has ended, and logs it
    struct background *files;          // runs jobs that read and write files
    struct beginning *beginning;       // the last file job that finds where an epoch begins; NULL: none
    uint64_t begins;                   // the number of that job
    uint64_t slow_job;                 // number of the last file job that was reported as slow
    int found;                         // result of a file job: 0 or -1
    struct epoch_options epochs;       // of the first epoch
    struct poll_clock clock;           // the core's clock
    struct waiting waiting;
    struct thread_time *spans;  // NULL: no trace
    int64_t cpu_begin_ns;       // when the job started
};

// Called below the link: fills in what only the process knows.
static void scheduler_send(void *ctx, int peer, const struct ps_message *message) {
    struct scheduler *s = ctx;
    struct ps_message m = *message;
    // The servers write the reports, since the scheduler may have no directory: SHUTDOWN carries its cost.
    struct rusage self;
    if (m.header.kind == WIRE_SHUTDOWN) {
        m.header.count = 4;
        m.header.values[0] = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - s->cpu_begin_ns) * 1e-9;
        m.header.values[1] = getrusage(RUSAGE_SELF, &self) ? 0 : (double)self.ru_maxrss * 1024;
        m.header.values[2] = (double)atomic_load(&s->wire.control_sent);
        m.header.values[3] = (double)atomic_load(&s->wire.control_received);
    }
    // Members compare clocks with it, so it is the host's (ps/net/clock.h).
    if (m.header.kind == WIRE_HEARTBEAT_ACK) m.header.peers_ready_ns = clock_ns(CLOCK_MONOTONIC);
    net_lines_send(&s->lines, peer, &m);
}

static double core_time(const struct scheduler *s) { return poll_clock_at(&s->clock, now_seconds()); }

// ---------------------------------------------------------------- the rendezvous
static void put_text(const struct scheduler *s, const char *name, char *text) {
    rendezvous_put(s->o->meet, name, text, strlen(text));
    free(text);
}

// Messages of the last epoch are no longer resent.
static void publish_epoch(void *ctx, const struct epochs *e) {
    struct scheduler *s = ctx;
    struct notice_now now = {.epoch = e->epoch, .job = e->job, .clock = ps_clock_id()};
    int members = s->o->config->workers + s->map->servers + s->map->shards;
    s->id.job = e->job;
    for (int i = 0; i < members; i++) {
        link_forget(s->link, i);
        s->lines.routes[i].bytes = 0;
    }
    snprintf(now.address, sizeof now.address, "%s", s->address);
    put_text(s, NOTICE_NOW, notice_now_text(&now));
}

static void publish_start(void *ctx, enum ps_role role, const struct notice_start *start) {
    struct scheduler *s = ctx;
    char name[MEET_NAME_MAX];
    if (!s->cpu_begin_ns) s->cpu_begin_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    put_text(s, notice_start_name(name, scheduler_core_epochs(s->core)->epoch, role),
             notice_start_text(start));
}

static void forget_join(struct scheduler *s, uint32_t epoch, int worker) {
    char name[MEET_NAME_MAX];
    if (s->joined[worker])
        rendezvous_drop(s->o->meet, notice_join_name(name, epoch, worker, s->joined[worker]));
    s->joined[worker] = 0;
}

static void publish_join(void *ctx, int worker, uint64_t incarnation, const struct notice_start *start) {
    struct scheduler *s = ctx;
    uint32_t epoch = scheduler_core_epochs(s->core)->epoch;
    char name[MEET_NAME_MAX];
    forget_join(s, epoch, worker);
    s->joined[worker] = incarnation;
    put_text(s, notice_join_name(name, epoch, worker, incarnation), notice_start_text(start));
}

// The value stays published, so that a slow member finds it later.
static void publish_over(void *ctx, uint32_t epoch, const char *why) {
    struct scheduler *s = ctx;
    char name[MEET_NAME_MAX];
    rendezvous_drop(s->o->meet, notice_start_name(name, epoch, PS_WORKER));
    rendezvous_drop(s->o->meet, notice_start_name(name, epoch, PS_SERVER));
    for (int w = 0; w < s->o->config->workers; w++) forget_join(s, epoch, w);
    rendezvous_put(s->o->meet, notice_over_name(name, epoch), why, strlen(why));
}

static void end_process(void *ctx, int member, uint64_t incarnation, const char *why) {
    const struct scheduler *s = ctx;
    rendezvous_end_process(s->o->meet, rendezvous_size(s->o->meet) + member, incarnation, why);
}

static void abort_job(void *ctx, const char *why) {
    rendezvous_abort(((const struct scheduler *)ctx)->o->meet, why);
}

// ---------------------------------------------------------------- news
static void take_news(struct scheduler *s) {
    int size = rendezvous_size(s->o->meet);
    for (struct member_news n; rendezvous_news(s->o->meet, &n); free(n.data)) {
        int rank = n.member;
        struct death d;
        bool launcher = rank >= 0 && rank < size && n.kind == MEMBER_SENT && s->o->launched;
        n.member -= size;
        if (launcher && rank == 0 && !strcmp(n.word, VERDICT_DONE) && n.bytes == 1)
            s->childless = *(const char *)n.data;
        if (launcher && verdict_death(&n, &d)) {
            bool ended = scheduler_core_error(s->core)[0];
            struct verdict v = scheduler_core_dead(s->core, &d, core_time(s));
            s->launcher_logs = s->launcher_logs || (v.kind == VERDICT_ENDS && !ended);
            verdict_send(s->o->meet, &s->verdicts, &v);
        }
        scheduler_core_on_news(s->core, &n, core_time(s));
    }
}

static void log_waiting(struct scheduler *s, double now) {
    const struct config *c = s->o->config;
    int workers, servers;
    char text[384];
    const struct rendezvous *meet = s->o->meet;
    if (!s->o->log_waiting || !scheduler_core_waits(s->core, &workers, &servers)) return;
    char at[FABRIC_ADDRESS_MAX];
    endpoint_text(rendezvous_address(meet), rendezvous_port(meet), at, sizeof at);
    snprintf(text, sizeof text, "waiting for %d of %d workers and %d of %d servers at %s", workers,
             c->workers, servers, c->ps.servers, at);
    if (waiting_due(&s->waiting, text, now)) info("%s", text);
}

// ---------------------------------------------------------------- files
// A file system that blocks is slow, not dead.
static void log_slow_files(struct scheduler *s) {
    uint64_t number;
    double now = now_seconds(), age_s = background_age(s->files, now, &number);
    if (age_s <= ps_overdue_s(s->o->config) || number == s->slow_job || s->o->config->quiet) return;
    s->slow_job = number;
    info("waiting for the file system of %s: %.0f s so far; members are still answered",
         s->o->dir ? s->o->dir : "the run", age_s);
}

// Blocks until the file thread has done job `number`, and prints if that takes long. Called only before the job is
// known and after its end, because no member is answered meanwhile.
static void wait_for_files(struct scheduler *s, uint64_t number) {
    while (!background_wait(s->files, number, HURRY_MS * 1e-3)) log_slow_files(s);
}

static void run_on_file_thread(struct scheduler *s, int (*what)(void *)) {
    wait_for_files(s, background_submit(s->files, what, s, NULL));
    if (s->found != 0) error_take_over(background_why(s->files));
}

static int start_at(struct start_point *p, const struct config *config, const char *path) {
    *p = (struct start_point){.step = 0};
    if (strlen(path) >= sizeof p->checkpoint)
        return fail("%s: the path of a checkpoint that a star resumes from may have at most %zu characters",
                    path, sizeof p->checkpoint - 1);
    struct checkpoint *c = checkpoint_open(path);
    if (!c) return -1;
    const struct train_state *t = checkpoint_train(c);
    // Where workers share a budget, the step is worker 0's own count.
    int64_t step = consistency_of(config).row->on_arrival ? t->step : train_state_steps(t);
    p->step = step / config_round(config);
    snprintf(p->seal, sizeof p->seal, "%s", checkpoint_seal(c));
    memcpy(p->checkpoint, path, strlen(path) + 1);
    checkpoint_close(&c);
    return 0;
}

// Reads the checkpoint that --resume names. With --resume-weights-only the job begins at step 0, and workers load the
// weights themselves.
static int start_asked(struct start_point *p, const struct ps_role_options *o) {
    const struct recovery_config *v = &o->config->recovery;
    char *why = NULL;
    if (!v->resume || v->resume_weights_only) return 0;
    char *path = checkpoint_resolve(v->resume, o->dir ? o->dir : o->config->out, &why);
    int rc = path ? start_at(p, o->config, path) : why ? fail("--resume %s: %s", v->resume, why) : 0;
    free(path);
    free(why);
    return rc;
}

// The first epoch of this scheduler: it continues the epochs in DIR/history.jsonl if it continues their job.
// checkpoint: the one that the configuration resumes from; "": none.
static void epoch_first(const struct ps_role_options *o, const char *checkpoint, struct epoch_options *out) {
    out->restarts = o->config->recovery.restart;
    if (!o->dir || (!out->restarts && !ps_elastic(o->config))) return;
    // A scheduler started by hand continues a job if the run directory's state shows worker 0 as running or dead.
    struct run_state state;
    bool again = false;
    if (!o->launched) {
        run_state_read(o->dir, &state);
        again = state.phase == RUN_RUNNING || state.phase == RUN_DEAD;
        if (!again && !resume_is_inside(checkpoint, o->dir)) history_remove(o->dir);
    }
    struct history_row last = history_last_start(o->dir);
    out->start = again && last.epoch ? last.start : last.start + 1;
    if (!out->restarts || !again || !last.epoch) return;
    out->first = last.epoch + 1;
    out->used = last.restarts + 1;
    out->why = "the scheduler was started again";
}

// A job of the file thread: finds where an epoch begins.
struct beginning {
    const struct scheduler *s;
    struct epochs e;  // a copy, made when all ranks were present
    struct start_point out;
    char error[WIRE_TEXT_MAX];
    int rc;
};

// The first epoch of a job begins as configured, a later one at the latest complete checkpoint of the run, if
// there is one; DIR/history.jsonl records it.
static int epoch_starts(void *beginning) {
    struct beginning *b = beginning;
    const struct ps_role_options *o = b->s->o;
    const struct epochs *e = &b->e;
    struct start_point *out = &b->out;
    // No process of an earlier epoch still writes: all of them have entered again.
    char *latest = e->why[0] && o->dir ? checkpoint_latest(o->dir) : NULL;
    b->rc = latest ? start_at(out, o->config, latest) : 0;
    free(latest);
    if (b->rc != 0) core_fail(b->error, "%s", error_last());
    if (b->rc != 0) return 0;
    // Steps of another run do not count, even if its checkpoint is in this directory.
    int64_t stays = resume_is_inside(out->checkpoint, o->dir) ? out->step : 0;
    // After a scheduler's own death metrics.jsonl shows how far the job was: it has not been cut yet.
    bool later = e->why[0] || stays > 0;
    int64_t reached = e->reached < 0 && later && o->dir ? metrics_last_step(o->dir) : e->reached;
    struct history_row start = {.kind = HISTORY_START,
                                .step = out->step + 1,
                                .start = e->o.start,
                                .epoch = e->epoch,
                                .job = e->job,
                                .restarts = e->restarts.used,
                                .checkpoint = out->checkpoint,
                                .why = e->why,
                                .counted = reached >= 0,
                                .lost = reached > out->step ? reached - out->step : 0};
    char again[48] = "";
    if (start.counted)
        snprintf(again, sizeof again, "; %lld step%s done again", (long long)start.lost,
                 start.lost == 1 ? " is" : "s are");
    bool prints = !o->config->quiet && e->why[0];
    if (prints && out->checkpoint[0])
        info("epoch %u resumes after step %lld (%s)%s: %s", e->epoch, (long long)out->step, out->checkpoint,
             again, e->why);
    else if (prints)
        info("epoch %u begins at the first step, as there is no checkpoint%s: %s", e->epoch, again, e->why);
    if (o->dir && (e->o.restarts || ps_elastic(o->config))) history_add(o->dir, &start);
    return 0;
}

// If the epoch has ended before the result is known, the result is dropped: the next epoch asks again.
static int starts(void *ctx, const struct epochs *e, struct start_point *out, char error[WIRE_TEXT_MAX]) {
    struct scheduler *s = ctx;
    struct beginning *b = s->beginning;
    if (b && !background_done(s->files, s->begins)) return 1;
    if (b && b->e.job == e->job) {
        *out = b->out;
        memcpy(error, b->error, WIRE_TEXT_MAX);
        if (!b->rc && s->o->launched)
            verdict_send(s->o->meet, &s->verdicts, &(struct verdict){.kind = VERDICT_BEGINS});
        return b->rc;
    }
    if (!b) b = s->beginning = xcalloc(1, sizeof *b);
    *b = (struct beginning){.s = s, .e = *e, .out = *out};
    s->begins = background_submit(s->files, epoch_starts, b, NULL);
    return 1;
}

static uint64_t next_job(void *ctx) {
    (void)ctx;
    return ps_random_id();
}

static void send_lost(void *ctx, int pid, const char *name) {
    struct scheduler *s = ctx;
    struct verdict v = {.kind = VERDICT_LOST, .pid = pid};
    snprintf(v.name, sizeof v.name, "%s", name);
    verdict_send(s->o->meet, &s->verdicts, &v);
}

struct absence_note {
    const struct scheduler *s;
    struct absence a;
    char *why;
};

// A line that cannot be written is reported; the job continues.
static int write_absence(void *arg) {
    const struct absence_note *n = arg;
    const struct absence *a = &n->a;
    history_add(n->s->o->dir, &(struct history_row){.kind = a->away ? HISTORY_ABSENT : HISTORY_RETURNED,
                                                    .step = a->step,
                                                    .worker = a->worker,
                                                    .cause = a->loss.cause,
                                                    .why = n->why});
    return 0;
}

static void note_free(void *arg) {
    free(((struct absence_note *)arg)->why);
    free(arg);
}

static void note_absence(void *ctx, const struct absence *a) {
    const struct scheduler *s = ctx;
    if (!s->o->dir) return;
    struct absence_note *n = xcalloc(1, sizeof *n);
    *n = (struct absence_note){s, *a, a->loss.why ? xstrdup(a->loss.why) : NULL};
    background_submit(s->files, write_absence, n, note_free);
}

static int scheduler_loop(struct scheduler *s) {
    // A launcher may still report a death after all members have left.
    while (!scheduler_core_done(s->core) || (s->o->launched && !s->childless)) {
        struct net_poll_item items[2] = {{.socket = s->lines.router}, {.fd = rendezvous_news_fd(s->o->meet)}};
        struct net_message m;
        int rc = 0;
        log_waiting(s, now_seconds());
        char text[WIRE_TEXT_MAX];
        while (scheduler_core_next_slow_line(s->core, core_time(s), text) ||
               scheduler_core_next_news_line(s->core, text))
            if (!s->o->config->quiet) info("%s", text);
        if (s->o->step) atomic_store(s->o->step, scheduler_core_steps(s->core));
        log_slow_files(s);
        if (ps_stopped(s->o->stop)) return scheduler_core_abort(s->core, "the scheduler was " PS_INTERRUPTED);
        // A launcher has ended the job, or is gone.
        const char *ended = rendezvous_end_reason(s->o->meet);
        if (ended) return scheduler_core_abort(s->core, ended);
        thread_time_enter(s->spans, WIRE_NONE, SPAN_OF_NOTHING);
        bool soon =
            scheduler_core_in_grace(s->core) || (s->beginning && !background_done(s->files, s->begins));
        if (net_poll(items, 2, soon ? HURRY_MS : POLL_MS) != 0)
            return scheduler_core_abort(s->core, "the scheduler cannot poll its socket");
        double now = now_seconds();
        if (items[1].ready) take_news(s);
        while (items[0].ready && now_seconds() - now < POLL_MS * 1e-3 &&
               (rc = net_recv(s->lines.router, &m)) == 1) {
            // A member's message passes the link first, which may answer; then the core takes it.
            int member = scheduler_core_sender_of(s->core, &m.header);
            if (member >= 0) s->lines.routes[member] = m.from;
            if (member >= 0) star_link_receive(s->link, member, &m.header, now_seconds());
            thread_time_enter(s->spans, (int)m.header.kind, span_for(m.header.step, -1, m.header.rank, 1));
            scheduler_core_message(s->core, &m.header, core_time(s));
            ps_frame_release(m.frame);
        }
        if (rc < 0) return scheduler_core_abort(s->core, "the scheduler cannot read its socket");
        // Checks all members, which may be thousands: once for all messages that have arrived together.
        rc = scheduler_core_tick(s->core, poll_clock_poll(&s->clock, now_seconds()));
        link_tick(s->link, now_seconds());
        if (rc != 0) return -1;
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
        int shard = 0;
        while (!s->map->shard_keys[shard]) shard++;
        s->order = manifest_of_order(c, s->o->layout, s->map);
        const struct arrivals_options o = arrivals_options_of(c, s->map, &s->order, shard);
        s->replay = arrivals_read(&o, c->ps.replay_arrivals);
        s->found = s->replay ? 0 : -1;
    }
    if (s->found == 0) s->found = start_asked(&s->first, s->o);
    if (s->found == 0) epoch_first(s->o, s->first.checkpoint, &s->epochs);
    return s->found;
}

static int scheduler_open(struct scheduler *s) {
    const struct config *c = s->o->config;
    // 1. The socket for rounds. Roles enter the rendezvous at the same time.
    struct net_options no = {.wire = &s->wire,
                             .fabric.queue_messages = QUEUE_MESSAGES,
                             .faults = fault_plan_of(c, PS_SCHEDULER, 0),
                             .fabric.key = s->o->key};
    const char *at = s->o->scheduler ? s->o->scheduler : c->ps.bind;
    if (descriptors_claim(descriptors_of_scheduler(c, c->ps.threads), DESCRIPTORS_SPARE) != 0) return -1;
    if (!(s->files = background_create("reads and writes the job's files", error_label()))) return -1;
    if (!(s->net = net_create(&no)) || !(s->lines.router = net_router(s->net, at, s->address))) return -1;
    s->id = (struct ps_identity){.role = PS_SCHEDULER, .incarnation = rendezvous_incarnation(s->o->meet)};
    // 2. The files identify the job.
    bool replaced = s->o->launched && (c->recovery.restart || ps_elastic(c));
    s->epochs.replaced = replaced;
    run_on_file_thread(s, read_first);
    if (s->found != 0) return -1;
    if (s->epochs.used > s->epochs.restarts)
        return fail("%s; " RESTARTS_USED_UP ", as %s/history.jsonl says", s->epochs.why, s->epochs.restarts,
                    s->o->dir);
    // 3. The core, over the link.
    s->manifest = manifest_make(s->o, s->map);
    int members = c->workers + s->map->servers + s->map->shards;
    s->lines.id = &s->id;
    s->lines.routes = xcalloc((unsigned long)members, sizeof *s->lines.routes);
    s->joined = xcalloc((unsigned long)c->workers, sizeof *s->joined);
    s->link = star_link_create(&(struct star_link_options){
        .peers = members, .repeat_most_s = ps_repeat_most_s(c), .network = {s, scheduler_send}});
    struct scheduler_options co = {
        .config = c,
        .map = s->map,
        .lead = consistency_of(c).lag,
        .manifest = s->manifest,
        .job = ps_random_id(),
        .start = s->first,
        .start_s = now_seconds(),
        .port = star_link_port(s->link),
        .publish = {s, publish_epoch, publish_start, publish_join, publish_over, end_process, abort_job},
        .host = {s, next_job, replaced ? send_lost : NULL, starts, note_absence, s->replay ? recorded : NULL},
        .epochs = s->epochs};
    s->clock.lost_s = ps_lost_s(c);
    poll_clock_poll(&s->clock, co.start_s);
    s->core = scheduler_core_create(&co);
    return 0;
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
    return s->found = s->spans ? trace_write_threads(&r) : 0;
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
    if (rc != 0 && !o->launched) {  // if a launcher started this role, the launcher informs the other ranks
        char *why = xasprintf("the scheduler: %s", error_last());
        rendezvous_abort(o->meet, why);
        free(why);
    }
    if (rc == 0) {
        rc = scheduler_loop(&s);
        const char *why = scheduler_core_error(s.core);
        // Nothing is logged if the launcher logs the reason, or has ended the job itself.
        error_quiet(s.launcher_logs || (o->launched && ps_was_interrupted(why)) ? QUIET_ALL : QUIET_NOT);
        if (rc != 0) ps_fail(why);
        error_quiet(QUIET_NOT);
        if (rc == 0) {
            run_on_file_thread(&s, trace_end);
            rc = s.found;
        }
        if (rc == 0 && o->launched)
            verdict_send(o->meet, &s.verdicts, &(struct verdict){.kind = VERDICT_OVER});
    }
    if (s.files) wait_for_files(&s, background_submitted(s.files));
    background_destroy(&s.files);
    net_destroy(&s.net, FLUSH_MS);
    scheduler_core_destroy(&s.core);
    link_destroy(&s.link);
    manifest_release(&s.manifest);
    manifest_release(&s.order);
    arrivals_destroy(&s.replay);
    free(s.lines.routes);
    free(s.joined);
    free(s.beginning);
    thread_time_destroy(&s.spans);
    shard_map_destroy(&s.map);
    return rc;
}
