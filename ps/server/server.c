// A server's main thread (server_threads.h). It takes memory, reports that the server is ready, has the checkpoint read
// that the job resumes from, and watches the shards.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ps/job/batches.h"
#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/push_code.h"
#include "ps/job/security.h"
#include "ps/job/timing.h"
#include "ps/net/medium.h"
#include "ps/net/net.h"
#include "ps/server/server_threads.h"
#include "shared/core/background.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/launch/local_steps.h"
#include "shared/report/span_files.h"
#include "shared/time/stall_report.h"

#define SLICE (1 << 20)  // elements: a request to stop waits for at most one slice

static int server_listen(struct server *s, const char *address) {
    size_t at = 0, size = (size_t)s->map->threads * (FABRIC_ADDRESS_MAX + JOB_TOKEN_MAX + 1) + 1;
    const struct net_peer scheduler = {.address = address};
    const struct endpoint *advertise = &s->o->advertise;
    struct endpoint bind, own;
    if (endpoint_read("parameter_server.bind", s->c->ps.bind, &bind)) return -1;
    s->endpoints = xcalloc(size, 1);
    for (int t = 0; t < s->map->threads; t++) {
        char wanted[FABRIC_ADDRESS_MAX], bound[FABRIC_ADDRESS_MAX], given[FABRIC_ADDRESS_MAX];
        struct shard *shard = &s->shards[t];
        endpoint_text(bind.host, bind.port ? bind.port + t : 0, wanted, sizeof wanted);
        shard->server = s;
        shard->thread = t;
        struct net_lines *lines = &shard->lines;
        lines->id = &shard->id;
        lines->routes = xcalloc((unsigned long)s->c->workers, sizeof *lines->routes);
        if (!(lines->router = net_router(s->net, wanted, bound)) ||
            !(lines->scheduler = net_dealer(s->net, &scheduler)) || endpoint_read("bound to", bound, &own))
            return -1;
        if (!*advertise->host && (!strcmp(own.host, "0.0.0.0") || !strcmp(own.host, "::")))
            return fail("listening on %s: give --advertise HOST, the name other machines know this one by",
                        bound);
        endpoint_text(*advertise->host ? advertise->host : own.host,
                      advertise->port ? advertise->port + t : own.port, given, sizeof given);
        roster_append_shard(s->endpoints, size, &at, given, s->token);
    }
    s->lines = (struct net_lines){.id = &s->id, .scheduler = net_dealer(s->net, &scheduler)};
    return s->lines.scheduler ? 0 : -1;
}

// ---------------------------------------------------------------- the main thread
// Allocating writes every page, which may take long.
static int server_allocate(struct server *s) {
    const char *why = NULL;
    const struct backend *b = backend_find("cpu", &why);
    struct device_options d = {.threads = 1, .label = error_label()};
    if (!b || dev_open(b, &d, &s->dev) != 0) return fail("cannot open the cpu device: %s", why ? why : "");
    arena_init(&s->arena, s->dev);
    if (server_sharing_create(&s->sharing, s->c, s->map, s->id.rank) != 0) return -1;
    struct arena_room room = {.base = s->sharing.own.base, .used = SEGMENT_HEAD};
    if (room.base) arena_count(&s->arena, MEM_COMM, SEGMENT_HEAD);
    s->buffers = xcalloc((unsigned long)s->map->count, sizeof *s->buffers);
    s->copies = xcalloc((unsigned long)s->map->count, sizeof *s->copies);
    for (int key = 0; key < s->map->count && !s->arena.failed; key++) {
        if (s->map->parts[key].shard / s->map->threads != s->id.rank) continue;
        if (key < s->map->trained) {
            server_carve_key(&s->arena, s->c, &s->map->parts[key], room.base ? &room : NULL,
                             &s->buffers[key]);
            server_carve_copy(&s->arena, s->c, &s->map->parts[key], &s->copies[key]);
        } else {
            server_carve_frozen(&s->arena, s->c, &s->map->parts[key], &s->buffers[key]);
        }
        if (ps_stopped(s->o->stop)) return ps_fail(PS_INTERRUPTED);
    }
    return s->arena.failed ? -1 : 0;
}

static int server_open_order(const struct server *s, int t) {
    struct shard *shard = &s->shards[t];
    const struct arrivals_options o =
        arrivals_options_of(s->c, s->map, &s->order, s->id.rank * s->map->threads + t);
    if (s->c->ps.record_arrivals) shard->record = arrivals_create(&o);
    struct staleness_log_options so = {.layout = s->o->layout,
                                       .map = s->map,
                                       .dtype = s->c->dtype,
                                       .shard = o.shard,
                                       .pushes = size_times(s->c->workers, s->c->steps),
                                       .per_update = consistency_of(s->c).per_update,
                                       .dir = s->c->ps.log_updates ? s->o->dir : NULL};
    // The log gets pushes that are applied on arrival after they were decoded, so it needs no code.
    if (!consistency_of(s->c).row->on_arrival) so.code = s->c->ps.code;
    if (!(shard->staleness_log = staleness_log_create(&so))) return -1;
    if (!s->c->ps.replay_arrivals) return 0;
    shard->replay = arrivals_read(&o, s->c->ps.replay_arrivals);
    return shard->replay ? 0 : -1;
}

#define KEPT_LEAST 4096   // spans in a shard's ring
#define KEPT_MOST  65536  // 2.5 MiB

static const char *const parts[SERVER_PARTS] = {"receive", "sum", "hold", "wait", "update", "reply"};

// The time of a shard's thread. Never NULL.
static struct thread_time *shard_time(const struct config *c, const struct shard_map *map, int shard) {
    // Spans of a key in one step: a push, a sum, two answers and a pull per worker; one update; the idle time between
    // them.
    size_t keys = 0;
    for (int key = 0; key < map->count; key++) keys += map->parts[key].shard == shard;
    size_t a_step = keys * (6 * (size_t)c->workers + 4);
    size_t kept = a_step * (SERVER_PICTURED + 2);
    struct thread_time_options o = {.names = parts,
                                    .parts = SERVER_PARTS,
                                    .idle = 1u << SERVER_HOLD | 1u << SERVER_WAIT,
                                    .work = 1u << SERVER_SUM | 1u << SERVER_UPDATE | 1u << SERVER_REPLY,
                                    .kept = kept < KEPT_LEAST  ? KEPT_LEAST
                                            : kept > KEPT_MOST ? KEPT_MOST
                                                               : kept,
                                    .trace = c->trace};
    return thread_time_create(&o);
}

static int server_start_shards(struct server *s) {
    struct keeper_options ko = {.file = {.config = s->c,
                                         .layout = s->o->layout,
                                         .map = s->map,
                                         .rank = s->id.rank,
                                         .run_dir = s->o->dir,
                                         .job = s->id.job},
                                .copies = s->copies};
    if (s->c->recovery.checkpoint_every > 0 && !(s->keeper = keeper_create(&ko))) return -1;
    for (int t = 0; t < s->map->threads; t++) {
        struct shard *shard = &s->shards[t];
        if (server_open_order(s, t) != 0) return -1;
        shard->spans = shard_time(s->c, s->map, s->id.rank * s->map->threads + t);
        shard->link = star_link_create(&(struct star_link_options){.peers = s->c->workers,
                                                                   .repeat_most_s = ps_repeat_most_s(s->c),
                                                                   .network = {&shard->lines, net_lines_send},
                                                                   .renew = shard_renew,
                                                                   .ctx = shard});
        struct server_core_options o = {.config = s->c,
                                        .layout = s->o->layout,
                                        .map = s->map,
                                        .shard = s->id.rank * s->map->threads + t,
                                        .job = s->id.job,
                                        .buffers = s->buffers,
                                        .spans = shard->spans,
                                        .record = shard->record,
                                        .replay = shard->replay,
                                        .staleness_log = shard->staleness_log,
                                        .port = star_link_port(shard->link)};
        if (s->keeper) o.keep = (struct keep_port){s->keeper, keeper_keep};
        shard->core = server_core_create(&o);
        shard->id = s->id;
        shard->id.role = PS_SHARD;
        shard->id.thread = t;
        if (pthread_create(&shard->tid, NULL, shard_main, shard) != 0)
            return fail("cannot start shard thread %d: " ERROR_RAISE_THREADS, t);
        shard->started = true;
    }
    return 0;
}

// ---------------------------------------------------------------- the checkpoint that the job resumes from
// In the order of a keeper's file, from start to end.
static int read_keys(const struct state_read *r, struct checkpoint *c, const _Atomic int *stop) {
    int rc = 0;
    for (int key = r->map->trained - 1; key >= 0 && !rc; key--) {
        const struct partition *p = &r->map->parts[key];
        const struct server_buffers *buf = &r->buffers[key];
        if (p->shard / r->map->threads != r->rank) continue;
        for (int kind = STATE_MASTER; kind <= r->config->optimizer.row->states && !rc; kind++) {
            float *out = kind == STATE_MASTER ? buf->master : buf->state[kind - STATE_OPTIMIZER];
            for (int64_t at = p->begin; at < p->end && !rc; at += SLICE) {
                int64_t end = p->end - at < SLICE ? p->end : at + SLICE;
                rc = stop && *stop
                         ? fail("interrupted while it read %s", checkpoint_path(c))
                         : checkpoint_read(c, r->layout, p->unit, kind, at, end, out + (at - p->begin));
            }
        }
    }
    return rc;
}

int server_read_checkpoint(const struct state_read *r, const struct start_point *from, struct key_rows *rows,
                           const _Atomic int *stop) {
    struct checkpoint *c = checkpoint_open(from->checkpoint);
    int rc = c ? start_point_check(from, c) : -1;
    if (rc == 0) rc = key_rows_read(rows, c, r->config, r->map);
    if (rc == 0) rc = read_keys(r, c, stop);
    checkpoint_close(&c);
    if (rc == 0) return 0;
    char *why = xstrdup(error_last());
    fail(
        "cannot resume from a checkpoint: %.300s (every server reads it from the directory that the scheduler "
        "names: on many machines one that they share)",
        why);
    free(why);
    return -1;
}

static int load(void *server) {
    struct server *s = server;
    const struct state_read r = {s->c, s->o->layout, s->map, s->id.rank, s->buffers};
    error_quiet(QUIET_ALL);  // the main thread logs for the server
    if (server_read_checkpoint(&r, &s->from, &s->rows, background_flag(s->reader))) return -1;
    atomic_store(&s->loaded, true);
    return 0;
}

// Receives from the scheduler. Returns 1 if the job has ended, 0 to go on, -1 after logging.
static int server_hear(struct server *s) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(s->lines.scheduler, &m)) == 1) {
        double now = now_seconds();
        ps_frame_release(m.frame);
        if (m.header.job != s->id.job) continue;
        star_link_receive(s->link, PEER_SCHEDULER, &m.header, now);
        if (m.header.kind == WIRE_HEARTBEAT_ACK)
            ps_clock_sample(&s->id.clock, m.header.ready_ns, m.header.peers_ready_ns, ps_clock_ns(now));
        if (m.header.kind == WIRE_SHUTDOWN) {
            const double *v = m.header.values;
            if (m.header.count == 4)
                s->scheduler_cost = (struct scheduler_figures){true, v[0], v[1], v[2], v[3]};
            return 1;
        }
    }
    return rc;
}

// Returns the reason that ends this server, or NULL. A reason is in `text` if the process may only have been frozen.
static const char *server_trouble(struct server *s, double now, char text[WIRE_TEXT_MAX]) {
    const char *why = NULL;
    for (int t = 0; t < s->map->threads; t++) {
        struct shard *shard = &s->shards[t];
        double stood_s = poll_watch_idle_s(&shard->poll_watch, atomic_load(&shard->turns), now);
        if (atomic_load(&shard->failed)) {
            why = shard->error;
        } else if (stood_s > ps_deadline_s(s->c)) {
            snprintf(text, WIRE_TEXT_MAX, "shard thread %d has made no progress for %.1f s", t, stood_s);
            why = text;
        }
    }
    if (s->reader && background_why(s->reader)) why = background_why(s->reader);
    return ps_stopped(s->o->stop) ? PS_INTERRUPTED : why;
}

// Starts reading the checkpoint that the scheduler names, in the background: shards and main thread answer their peers
// meanwhile. Returns 0, or -1 after logging.
static int server_begins(struct server *s) {
    struct notice_start start;
    int rc = member_starts(s->o, &s->id, s->map->shards, &start);
    if (rc <= 0) return rc;
    s->from = start.from;
    atomic_store(&s->roster, start.roster);
    if (!s->from.checkpoint[0]) return 0;
    if (!(s->reader = background_create("reads the checkpoint", error_label()))) return -1;
    background_submit(s->reader, load, s, NULL);
    return 0;
}

static int server_watch(struct server *s) {
    double beat_s = 0;
    struct poll_clock clock = {.lost_s = ps_lost_s(s->c)};
    struct waiting waiting = {.said_s = 0};
    for (;;) {
        struct net_poll_item item = {.socket = s->lines.scheduler};
        char text[WIRE_TEXT_MAX];
        if (net_poll(&item, 1, POLL_MS) != 0) return -1;
        int rc = item.ready ? server_hear(s) : 0;
        if (rc != 0) return rc < 0 ? -1 : 0;
        double now = now_seconds(), turn_s = poll_clock_poll(&clock, now);
        link_tick(s->link, now);
        for (int t = 0; t < s->map->threads; t++) staleness_log_report_lost(s->shards[t].staleness_log);
        if (member_goes_on(s->o, &s->id) != 0) return -1;
        const char *why = server_trouble(s, turn_s, text);
        // The process was frozen and runs again: the job may have continued without it.
        if (why == text && s->c->recovery.restart > 0) return member_exec_again(s->o, why);
        if (why) return ps_fail(why);
        if (!atomic_load(&s->roster)) {
            member_log_waiting(s->o, &waiting, "the workers and the other servers of the job");
            if (server_begins(s) != 0) return -1;
        }
        bool sampling = s->id.clock.other_host && s->id.clock.samples < PS_CLOCK_FIRST;
        if (now - beat_s > (sampling ? PS_CLOCK_FIRST_S : ps_heartbeat_s(s->c))) {
            const struct ps_port port = star_link_port(s->link);
            beat_s = now;
            port_tell(&port, PEER_SCHEDULER,
                      &(struct wire_header){.kind = WIRE_HEARTBEAT, .ready_ns = ps_clock_ns(now)});
        }
    }
}

static void server_report(struct server *s, struct rank_report *r) {
    struct mem_usage usage;
    struct rusage self;
    double steps = 0;
    *r = (struct rank_report){.rank = s->id.rank, .job = s->id.job};
    snprintf(r->role, sizeof r->role, "server");
    if (s->dev && ps_server_predict(s->c, s->o->layout, s->id.rank, &r->memory, &r->wire) == 0) {
        dev_usage(s->dev, &usage);
        memcpy(r->peak_bytes, usage.peak_bytes, sizeof usage.peak_bytes);
    }
    // Updates have waited for copies, which all shards make at the same time.
    const struct keeper_figures f = keeper_figures(s->keeper);
    double threads = s->map->threads;
    r->checkpoints = (struct checkpoint_report){.written = f.complete,
                                                .failed = f.failed,
                                                .bytes = (double)f.bytes,
                                                .seconds_writing = f.write_seconds,
                                                .slowed = f.copy_seconds > 0 ? f.complete + f.failed : 0,
                                                .slowed_seconds = f.copy_seconds / threads,
                                                .slowed_most = f.copy_seconds_most / threads};
    for (int t = 0; t < s->map->threads; t++) {
        struct server_totals totals = {0};
        struct server_time *sum = &r->server_time;
        int64_t ns[THREAD_PARTS];
        if (s->shards[t].core) server_core_totals(s->shards[t].core, &totals);
        if (totals.steps > steps) steps = totals.steps;
        r->transport_peak_bytes += totals.held_peak_bytes;
        r->dropped_pushes += totals.dropped;
        staleness_merge(&r->staleness, &totals.staleness);
        sum->total += (double)thread_time_totals(s->shards[t].spans, ns) * 1e-9;
        sum->receive += (double)ns[SERVER_RECEIVE] * 1e-9;
        sum->sum += (double)ns[SERVER_SUM] * 1e-9;
        sum->hold += (double)ns[SERVER_HOLD] * 1e-9;
        sum->wait += (double)ns[SERVER_WAIT] * 1e-9;
        sum->update += (double)ns[SERVER_UPDATE] * 1e-9;
        sum->reply += (double)ns[SERVER_REPLY] * 1e-9;
        sum->threads++;
    }
    int64_t pushes = r->updates = s->map->count ? INT64_MAX : 0;
    for (int key = 0; key < s->map->trained; key++) {
        struct server_core *core = s->shards[s->map->parts[key].shard % s->map->threads].core;
        int64_t version = core ? server_core_version(core, key) : 0,
                updates = core ? server_core_updates(core, key) : 0;
        const struct key_counts *begun = version > 0 && s->shards[0].loaded ? &s->rows.keys[key] : NULL;
        if (begun) version -= begun->version;
        if (begun) updates -= begun->updates;
        if (version >= 0 && version < pushes) pushes = version;
        if (version >= 0 && updates < r->updates) r->updates = updates;
    }
    bool alone = consistency_of(s->c).row->on_arrival;
    r->drops = s->c->ps.max_staleness >= 0 || consistency_drops(consistency_of(s->c));
    r->samples_per_update = alone ? config_own_sequences(s->c) : s->c->train_batch;
    // A server without keys counts none: there may be more servers than keys.
    if (alone && pushes < INT64_MAX) r->samples_counted = pushes * r->samples_per_update;
    r->span = (struct rank_span){atomic_load(&s->begin_ns), atomic_load(&s->end_ns),
                                 atomic_load(&s->cpu_begin_ns), atomic_load(&s->cpu_end_ns), 0};
    r->stall_report = stall_report_take(&(struct stall_report_options){
        .watch = s->watch, .begin = r->span.begin_ns, .offset = s->id.clock.offset_ns});
    r->scheduler = s->scheduler_cost;
    r->transport_peak_bytes += atomic_load(&s->wire.copied_peak);
    r->wire = local_steps_wire(r->wire, config_round(s->c));
    const struct config *run = s->c->outer_run ? s->c->outer_run : s->c;
    const struct prediction p = {.memory = r->memory, .wire = r->wire};
    rank_report_predict(r, run, &p);
    rank_report_count(r, &s->wire, steps * (double)config_round(s->c));
    if (getrusage(RUSAGE_SELF, &self) == 0) r->rss_bytes = (size_t)self.ru_maxrss * 1024;
}

// orderly: the job ended normally, and the shards have handed over what it was to keep.
static void server_close(struct server *s, bool orderly) {
    // 1. The shards' threads end, then what they feed.
    atomic_store(&s->quit, 1);
    for (int t = 0; t < s->map->threads; t++) {
        if (s->shards[t].started) pthread_join(s->shards[t].tid, NULL);
        s->shards[t].started = false;
    }
    keeper_end(s->keeper, orderly);
    if (s->reader) background_quit(s->reader);
    background_destroy(&s->reader);
    // 2. The transport stops reading every buffer before the cores and the arena are freed.
    net_destroy(&s->net, FLUSH_MS);
}

// The trace draws an arrow for each partition through these spans. Received and held gradients are not in the sum yet.
static char arrow(const struct span *s) {
    return s->part == SERVER_SUM || s->part == SERVER_UPDATE || s->part == SERVER_REPLY ? 't' : 0;
}

// Writes the spans of all shards to the run directory: those of the run's end, or all of them if a trace is requested.
static int leave_spans(const struct server *s) {
    int count = s->map->threads;
    struct span_thread *threads = xcalloc((unsigned long)count, sizeof *threads);
    char(*labels)[24] = xcalloc((unsigned long)count, sizeof *labels);
    for (int t = 0; t < count; t++) {
        const struct thread_time *spans = s->shards[t].spans;
        snprintf(labels[t], sizeof labels[t], "shard %d", t);
        threads[t] = (struct span_thread){labels[t],
                                          s->c->trace ? thread_time_traced(spans) : thread_time_last(spans)};
    }
    struct span_role r = {.dir = s->o->dir,
                          .role = "server",
                          .rank = s->id.rank,
                          .shift_ns = s->id.clock.offset_ns,
                          .error_ns = ps_clock_error(&s->id.clock, now_ns()),
                          .threads = threads,
                          .count = count,
                          .steps = s->c->trace ? 0 : SERVER_PICTURED,
                          .first_tid = 1,
                          .workers = s->c->workers,
                          .keys = s->map->count,
                          .arrow = s->c->trace ? arrow : NULL};
    int rc = s->o->dir ? trace_write_threads(&r) : 0;
    free(labels);
    free(threads);
    return rc;
}

// Writes each of the server's files, also after another one failed.
static int server_leave_files(const struct server *s) {
    int rc = leave_spans(s);
    struct staleness_log **logs = xcalloc((unsigned long)s->map->threads, sizeof(struct staleness_log *));
    for (int t = 0; t < s->map->threads; t++) logs[t] = s->shards[t].staleness_log;
    if (s->o->dir && staleness_log_write(logs, s->map->threads, s->o->dir, s->id.rank) != 0) rc = -1;
    free(logs);
    for (int t = 0; t < s->map->threads; t++)
        if (s->shards[t].record && arrivals_write(s->shards[t].record, s->o->dir) != 0) rc = -1;
    return rc;
}

static void server_free(struct server *s) {
    for (int t = 0; t < s->map->threads; t++) {
        link_destroy(&s->shards[t].link);
        server_core_destroy(&s->shards[t].core);
        thread_time_destroy(&s->shards[t].spans);
        arrivals_destroy(&s->shards[t].record);
        staleness_log_destroy(&s->shards[t].staleness_log);
        arrivals_destroy(&s->shards[t].replay);
        free(s->shards[t].lines.routes);
    }
    keeper_destroy(&s->keeper);
    key_rows_free(&s->rows);
    if (s->dev) {
        arena_release(&s->arena);
        dev_close(&s->dev);
    }
    server_sharing_destroy(&s->sharing);
    manifest_release(&s->manifest);
    link_destroy(&s->link);
    free(s->shards);
    free(s->buffers);
    free(s->copies);
    free(s->endpoints);
    struct roster *roster = atomic_load(&s->roster);
    roster_destroy(&roster);
    shard_map_destroy(&s->map);
}

// The largest frame of a key: weights in fp32, or a gradient's code, which may be larger.
static size_t largest_heard(const struct config *c, const struct shard_map *m) {
    int64_t most = 0;
    for (const struct partition *p = m->parts; p < m->parts + m->count; p++)
        if (p->end - p->begin > most) most = p->end - p->begin;
    size_t weights = (size_t)most * sizeof(float), pushed = push_bytes(&c->ps.code, c->dtype, most);
    return (pushed > weights ? pushed : weights) + WIRE_HEADER_MAX;
}

static int server_run(struct server *s) {
    bool near = ps_security_of(s->c) == PS_LOOPBACK &&
                (!*s->o->advertise.host || address_is_loopback(s->o->advertise.host));
    if (near && job_token_make(s->token) != 0) return -1;
    size_t heard = largest_heard(s->c, s->map);
    struct net_options no = {.wire = &s->wire,
                             .fabric.max_payload_bytes = (size_t)s->c->ps.partition_bytes * 4 + 65536,
                             .fabric.max_heard_bytes = heard,
                             .fabric.io_threads = ps_io_threads(s->c, s->map->threads, s->c->workers),
                             .fabric.queue_messages = 4 * s->map->count + 1024,
                             .faults = fault_plan_of(s->c, PS_SERVER, s->o->rank),
                             .fabric.key = s->o->key,
                             .fabric.token = s->token,
                             .beside = {PS_WORKER, s->o->rank, ps_beside(s->c)}};
    if (descriptors_claim(descriptors_of_server(s->c, s->map->threads), descriptors_spare(heard)) != 0)
        return -1;
    char address[FABRIC_ADDRESS_MAX];
    if (member_find(s->o, &s->id, address) != 0) return -1;
    s->net = net_create(&no);
    if (!s->net || server_listen(s, address) != 0) return -1;
    s->link = star_link_create(&(struct star_link_options){.repeat_most_s = ps_repeat_most_s(s->c),
                                                           .network = {&s->lines, net_lines_send}});
    // Allocating may take long; the other ranks wait for it.
    if (server_allocate(s) != 0 || server_start_shards(s) != 0) return -1;
    member_ready(s->o, &s->id, &s->manifest, s->endpoints);
    return member_left(s->o, &s->id, server_watch(s));
}

int ps_server_run(const struct ps_role_options *o, struct rank_report *report) {
    struct server s = {.o = o, .c = o->config};
    error_set_label("server %d", o->rank);
    if (o->config->ps.record_arrivals && !o->dir)
        return fail("--record-arrivals needs --out DIR, where the order of arrivals is written");
    if (o->config->ps.log_updates && !o->dir)
        return fail("--log-updates needs --out DIR, where the log is written");
    if (o->config->recovery.checkpoint_every > 0 && !o->dir)
        return fail(
            "--checkpoint-every needs --out DIR, where checkpoints are written: one directory that all machines share");
    if (!(s.map = shard_map_of(o->config, o->layout))) return -1;
    s.manifest = manifest_make(o, s.map);
    s.order = manifest_of_order(o->config, o->layout, s.map);
    s.shards = xcalloc((unsigned long)s.map->threads, sizeof *s.shards);
    s.id = (struct ps_identity){.role = PS_SERVER, .rank = o->rank};
    int rc = (s.watch = stall_watch_open()) ? server_run(&s) : -1;
    server_close(&s, rc == 0);
    if (report) server_report(&s, report);
    if (rc == 0) rc = server_leave_files(&s);
    stall_watch_close(&s.watch);
    server_free(&s);
    return rc;
}
