// A server: the main thread logs in, keeps alive and watches; each shard thread owns one ROUTER, its own
// DEALER to the scheduler, one core and the core's keys. Threads share nothing but the flags below.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ps/medium.h"
#include "ps/net/login.h"
#include "ps/ps.h"
#include "ps/server/arrivals.h"
#include "ps/server/server_core.h"
#include "ps/server/server_sharing.h"
#include "ps/server/server_time.h"
#include "ps/server/study.h"
#include "ps/timing.h"
#include "shared/core/error.h"

struct server;

struct shard {
    struct server *server;
    int thread;
    struct net_socket *router, *scheduler;
    struct server_core *core;
    struct diary *diary;
    struct arrivals *record, *replay;  // NULL: none
    struct study *study;
    struct net_route *routes;  // (workers)
    struct ps_identity id;
    pthread_t tid;
    bool started;
    _Atomic uint64_t turns;  // of its loop, of which none takes long: how the main thread knows that it lives
    uint64_t seen_turns;     // the main thread's
    double seen_s;
    _Atomic int failed;  // error is complete before this is set
    char error[WIRE_TEXT_MAX];
};

struct server {
    const struct ps_role_options *o;
    const struct config *c;
    struct shard_map *map;
    struct manifest manifest;
    struct net *net;
    struct net_socket *scheduler;
    struct wire_count wire;
    struct ps_identity id;
    char *endpoints;
    struct device *dev;
    struct arena arena;
    struct server_buffers *buffers;
    struct server_sharing sharing;
    struct shard *shards;  // (threads)
    _Atomic int quit;
    // When the first gradient came and when the last update was done, by the clock and in CPU time of the process.
    _Atomic int64_t begin_ns, cpu_begin_ns, end_ns, cpu_end_ns;
    struct helper_figures scheduler_cost;  // as it said when it ended the job
};

static void training_begins(struct server *s) {
    int64_t none = 0;
    if (atomic_load(&s->begin_ns)) return;
    atomic_compare_exchange_strong(&s->cpu_begin_ns, &none, clock_now_ns(CLOCK_PROCESS_CPUTIME_ID));
    none = 0;
    atomic_compare_exchange_strong(&s->begin_ns, &none, clock_now_ns(CLOCK_MONOTONIC));
}

static void training_goes_on(struct server *s) {
    atomic_store(&s->end_ns, clock_now_ns(CLOCK_MONOTONIC));
    atomic_store(&s->cpu_end_ns, clock_now_ns(CLOCK_PROCESS_CPUTIME_ID));
}

// ---------------------------------------------------------------- a shard's thread
static void shard_send(void *ctx, int peer, const struct ps_message *message) {
    struct shard *s = ctx;
    struct ps_message m = *message;
    ps_stamp(&s->id, &m.header);
    if (peer == PEER_SCHEDULER)
        net_send(s->scheduler, NULL, &m);
    else
        net_send(s->router, &s->routes[peer], &m);
}

// The next message; false: *rc is 0, there is none, or -1. The time goes to who it is for.
static bool shard_receive(struct shard *s, struct net_socket *from, struct net_message *m, int *rc) {
    diary_enter(s->diary, SERVER_RECEIVE, &DIARY_NOTHING);
    *rc = net_recv(from, m);
    const struct wire_header *h = &m->header;
    if (*rc != 1 || from != s->router) return *rc == 1;
    int64_t step = h->kind == WIRE_PULL ? h->step - 1 : h->step;
    diary_label(s->diary, &(struct diary_of){h->key, h->rank, 1, h->kind == WIRE_INIT ? -1 : step});
    return true;
}

// A worker asks what it and this shard can share.
static void shard_attach(struct shard *s, const struct wire_header *h) {
    struct server_segment segment;
    struct wire_header answer;
    if (!server_core_knows(s->core, h)) return;
    server_sharing_answer(&s->server->sharing, h, &segment, &answer);
    server_core_attach(s->core, h->rank, &segment);
    shard_send(s, h->rank, &(struct ps_message){.header = answer});
}

static int shard_from_worker(struct shard *s) {
    struct net_message m;
    int rc = 0;
    for (int i = 0; i < DRAIN_MESSAGES && shard_receive(s, s->router, &m, &rc); i++) {
        if (server_core_knows(s->core, &m.header)) s->routes[m.header.rank] = m.from;
        if (m.header.kind == WIRE_ATTACH) {
            shard_attach(s, &m.header);
            continue;
        }
        bool trains = m.header.kind == WIRE_PUSH;
        if (trains) training_begins(s->server);
        if (trains) diary_start(s->diary);
        if (server_core_message(s->core, &m.header, m.frame, now_seconds()) != 0) return -1;
        if (trains) training_goes_on(s->server);
    }
    return rc < 0 ? -1 : 0;
}

static int shard_from_scheduler(struct shard *s) {
    struct net_message m;
    int rc = 0;
    while (shard_receive(s, s->scheduler, &m, &rc)) {
        ps_frame_release(m.frame);
        if (m.header.kind != WIRE_DECISION) continue;
        if (server_core_decision(s->core, &m.header) != 0) return -1;
        training_goes_on(s->server);
    }
    return rc;
}

static int shard_loop(struct shard *s) {
    while (!atomic_load(&s->server->quit)) {
        atomic_fetch_add(&s->turns, 1);
        struct net_poll_item items[2] = {{.socket = s->router}, {.socket = s->scheduler}};
        diary_enter(s->diary, server_core_holds(s->core) ? SERVER_HOLD : SERVER_WAIT, &DIARY_NOTHING);
        if (net_poll(items, 2, server_core_hurry(s->core) ? HURRY_MS : POLL_MS) != 0) return -1;
        if (items[0].ready && shard_from_worker(s) != 0) return -1;
        if (items[1].ready && shard_from_scheduler(s) != 0) return -1;
        if (server_core_tick(s->core, now_seconds()) != 0) return -1;
    }
    return 0;
}

static void *shard_main(void *arg) {
    struct shard *s = arg;
    struct server *sv = s->server;
    error_set_label("server %d shard %d", s->id.rank, s->thread);
    error_quiet(1);  // the main thread speaks for the server
    struct ps_login l = {.socket = s->scheduler, .role = sv->o, .manifest = &sv->manifest};
    int rc = ps_login(&l, &s->id);
    if (rc == 0) {
        server_core_set_job(s->core, s->id.job);
        rc = shard_loop(s);
        diary_end(s->diary);
    }
    if (rc != 0) {
        const char *why = server_core_error(s->core)[0] ? server_core_error(s->core) : error_last();
        snprintf(s->error, sizeof s->error, "%s", why);
        atomic_store(&s->failed, 1);
    }
    return NULL;
}

// ---------------------------------------------------------------- addresses
// The address shard `thread` binds: "tcp://host:*" as it is, "tcp://host:port" counts upwards from port.
static void bind_address(const char *base, int thread, char out[NET_ADDRESS_MAX]) {
    const char *colon = strrchr(base, ':');
    int port = colon ? atoi(colon + 1) : 0;
    if (port > 0)
        snprintf(out, NET_ADDRESS_MAX, "%.*s:%d", (int)(colon - base), base, port + thread);
    else
        snprintf(out, NET_ADDRESS_MAX, "%s", base);
}

// The address for others: as bound, or at the advertised host, or at the advertised tcp://host:port + thread.
static int advertised_address(const char *advertise, const char *bound, int thread,
                              char out[NET_ADDRESS_MAX]) {
    if (!advertise) {
        if (strstr(bound, "//0.0.0.0:") || strstr(bound, "//[::]:"))
            return fail("listening on %s: give --advertise HOST, the name other machines know this one by",
                        bound);
        snprintf(out, NET_ADDRESS_MAX, "%s", bound);
    } else if (strncmp(advertise, "tcp://", 6) == 0) {
        bind_address(advertise, thread, out);
    } else {
        snprintf(out, NET_ADDRESS_MAX, "tcp://%s%s", advertise, strrchr(bound, ':'));
    }
    return 0;
}

static int server_listen(struct server *s) {
    size_t at = 0, size = (size_t)s->map->threads * (NET_ADDRESS_MAX + 1) + 1;
    s->endpoints = xcalloc(size, 1);
    for (int t = 0; t < s->map->threads; t++) {
        char wanted[NET_ADDRESS_MAX], bound[NET_ADDRESS_MAX], given[NET_ADDRESS_MAX];
        struct shard *shard = &s->shards[t];
        bind_address(s->c->ps.bind, t, wanted);
        shard->server = s;
        shard->thread = t;
        shard->routes = xcalloc((unsigned long)s->c->workers, sizeof *shard->routes);
        if (!(shard->router = net_router(s->net, wanted, bound)) ||
            !(shard->scheduler = net_dealer(s->net, s->o->scheduler)) ||
            advertised_address(s->o->advertise, bound, t, given) != 0)
            return -1;
        at += (size_t)snprintf(s->endpoints + at, size - at, "%s\n", given);
    }
    return 0;
}

// ---------------------------------------------------------------- the main thread
// Allocating writes every page. With a large share that takes longer than the scheduler waits for a
// heartbeat, so heartbeats are sent in between.
static int server_allocate(struct server *s) {
    const char *why = NULL;
    double beat_s = now_seconds();
    const struct backend *b = backend_find("cpu", &why);
    struct device_options d = {.threads = 1, .label = error_label()};
    if (!b || dev_open(b, &d, &s->dev) != 0) return fail("cannot open the cpu device: %s", why ? why : "");
    arena_init(&s->arena, s->dev);
    if (server_sharing_create(&s->sharing, s->c, s->map, s->id.rank) != 0) return -1;
    struct arena_room room = {.base = s->sharing.own.base, .used = SEGMENT_HEAD};
    if (room.base) arena_count(&s->arena, MEM_COMM, SEGMENT_HEAD);
    s->buffers = xcalloc((unsigned long)s->map->count, sizeof *s->buffers);
    for (int key = 0; key < s->map->count && !s->arena.failed; key++) {
        if (s->map->parts[key].shard / s->map->threads != s->id.rank) continue;
        server_carve_key(&s->arena, s->c, &s->map->parts[key], room.base ? &room : NULL, &s->buffers[key]);
        if (ps_stopped(s->o->stop)) return ps_fail(PS_INTERRUPTED);
        if (now_seconds() - beat_s <= ps_heartbeat_s(s->c)) continue;
        beat_s = now_seconds();
        ps_say(s->scheduler, &s->id, WIRE_HEARTBEAT, NULL);
    }
    return s->arena.failed ? -1 : 0;
}

static int server_open_order(const struct server *s, int t) {
    struct shard *shard = &s->shards[t];
    struct arrivals_options o = {.map = s->map,
                                 .manifest = &s->manifest,
                                 .shard = s->id.rank * s->map->threads + t,
                                 .workers = s->c->workers,
                                 .steps = s->c->steps};
    if (s->c->ps.record_arrivals) shard->record = arrivals_create(&o);
    struct study_options so = {.layout = s->o->layout,
                               .map = s->map,
                               .dtype = s->c->dtype,
                               .shard = o.shard,
                               .pushes = s->c->workers * s->c->steps,
                               .dir = s->c->ps.log_updates ? s->o->dir : NULL};
    if (!(shard->study = study_create(&so))) return -1;
    if (!s->c->ps.replay_arrivals) return 0;
    shard->replay = arrivals_read(&o, s->c->ps.replay_arrivals);
    return shard->replay ? 0 : -1;
}

static int server_start_shards(struct server *s) {
    for (int t = 0; t < s->map->threads; t++) {
        struct shard *shard = &s->shards[t];
        if (server_open_order(s, t) != 0) return -1;
        shard->diary = server_diary(s->c, s->map, s->id.rank * s->map->threads + t);
        struct server_core_options o = {.layout = s->o->layout,
                                        .map = s->map,
                                        .shard = s->id.rank * s->map->threads + t,
                                        .buffers = s->buffers,
                                        .rule = consistency_of(s->c),
                                        .optimizer = s->c->optimizer,
                                        .dtype = s->c->dtype,
                                        .commit_round = commit_round(s->c),
                                        .resend_s = ps_resend_s(s->c),
                                        .diary = shard->diary,
                                        .record = shard->record,
                                        .replay = shard->replay,
                                        .study = shard->study,
                                        .port = {shard, shard_send}};
        shard->core = server_core_create(&o);
        shard->id = s->id;
        shard->id.role = PS_SHARD;
        shard->id.thread = t;
        shard->id.job = 0;
        if (pthread_create(&shard->tid, NULL, shard_main, shard) != 0)
            return fail("cannot start shard thread %d", t);
        shard->started = true;
    }
    return 0;
}

// What the scheduler says until it ends the job. 1: shut down, 0: go on, -1: failed (logged).
static int server_listen_scheduler(struct server *s, double *heard_s) {
    struct net_message m;
    int rc;
    while ((rc = net_recv(s->scheduler, &m)) == 1) {
        *heard_s = now_seconds();
        ps_frame_release(m.frame);
        if (m.header.kind == WIRE_ABORT || m.header.kind == WIRE_REFUSED) return ps_fail(m.header.text);
        if (m.header.kind == WIRE_HEARTBEAT_ACK)
            ps_clock_sample(&s->id.clock, m.header.ready_ns, m.header.peers_ready_ns, ps_clock_ns(*heard_s));
        if (m.header.kind == WIRE_SHUTDOWN) {
            const double *v = m.header.values;
            if (m.header.count == 4)
                s->scheduler_cost = (struct helper_figures){true, v[0], v[1], v[2], v[3]};
            ps_say(s->scheduler, &s->id, WIRE_GOODBYE, NULL);
            return 1;
        }
    }
    return rc;
}

// Whether a shard's thread has stood still for longer than a member may be silent; then why says so.
static bool stands_still(const struct server *s, struct shard *shard, double now, char why[WIRE_TEXT_MAX]) {
    uint64_t turns = atomic_load(&shard->turns);
    if (turns != shard->seen_turns || turns == 0) {
        shard->seen_turns = turns;
        shard->seen_s = now;
    }
    if (now - shard->seen_s <= ps_deadline_s(s->c)) return false;
    snprintf(why, WIRE_TEXT_MAX, "shard thread %d has stood still for %.1f s", shard->thread,
             now - shard->seen_s);
    return true;
}

static void server_beat(struct server *s, double now) {
    struct ps_message m = {.header = {.kind = WIRE_HEARTBEAT, .ready_ns = ps_clock_ns(now)}};
    ps_stamp(&s->id, &m.header);
    net_send(s->scheduler, NULL, &m);
}

static int server_watch(struct server *s) {
    double heard_s = now_seconds(), beat_s = 0;
    for (;;) {
        struct net_poll_item item = {.socket = s->scheduler};
        const char *why = NULL;
        char still[WIRE_TEXT_MAX];
        if (net_poll(&item, 1, POLL_MS) != 0) return -1;
        int rc = item.ready ? server_listen_scheduler(s, &heard_s) : 0;
        if (rc != 0) return rc < 0 ? -1 : 0;
        for (int t = 0; t < s->map->threads; t++)
            if (atomic_load(&s->shards[t].failed))
                why = s->shards[t].error;
            else if (stands_still(s, &s->shards[t], now_seconds(), still))
                why = still;
        if (ps_stopped(s->o->stop)) why = PS_INTERRUPTED;
        if (why) {
            ps_say(s->scheduler, &s->id, WIRE_ABORT, why);
            return ps_fail(why);
        }
        double now = now_seconds();
        if (now - heard_s > ps_lost_s(s->c))
            return fail("the scheduler was lost: silent for %.1f s", now - heard_s);
        bool sampling = s->id.clock.apart && s->id.clock.samples < PS_CLOCK_FIRST;
        if (now - beat_s > (sampling ? PS_CLOCK_FIRST_S : ps_heartbeat_s(s->c))) {
            beat_s = now;
            server_beat(s, now);
        }
    }
}

static void server_report(struct server *s, struct rank_report *r) {
    struct mem_usage usage;
    struct rusage self;
    int64_t steps = 0;
    *r = (struct rank_report){.rank = s->id.rank, .job = s->id.job};
    snprintf(r->role, sizeof r->role, "server");
    if (s->dev && ps_server_predict(s->c, s->o->layout, s->id.rank, &r->memory, &r->wire) == 0) {
        dev_usage(s->dev, &usage);
        memcpy(r->peak_bytes, usage.peak_bytes, sizeof usage.peak_bytes);
    }
    for (int t = 0; t < s->map->threads; t++) {
        struct server_totals totals = {0};
        if (s->shards[t].core) server_core_totals(s->shards[t].core, &totals);
        if (totals.steps > steps) steps = totals.steps;
        r->transport_peak_bytes += totals.held_peak_bytes;
        staleness_merge(&r->staleness, &totals.staleness);
        server_time_add(&r->server_time, s->shards[t].diary);
    }
    r->updates = s->map->count ? INT64_MAX : 0;
    for (int key = 0; key < s->map->count; key++) {
        struct server_core *core = s->shards[s->map->parts[key].shard % s->map->threads].core;
        int64_t version = core ? server_core_version(core, key) : 0;
        if (version >= 0 && version < r->updates) r->updates = version;
    }
    bool alone = consistency_of(s->c).row->on_arrival;
    r->samples_per_update = alone ? s->c->micro_batch * s->c->accumulation : s->c->train_batch;
    r->span = (struct rank_span){atomic_load(&s->begin_ns), atomic_load(&s->end_ns),
                                 atomic_load(&s->cpu_begin_ns), atomic_load(&s->cpu_end_ns), 0};
    r->scheduler = s->scheduler_cost;
    rank_report_count(r, &s->wire, steps);
    if (getrusage(RUSAGE_SELF, &self) == 0) r->rss_bytes = (size_t)self.ru_maxrss * 1024;
}

static void server_close(struct server *s) {
    atomic_store(&s->quit, 1);
    for (int t = 0; t < s->map->threads; t++)
        if (s->shards[t].started) pthread_join(s->shards[t].tid, NULL);
    // The transport lets go of every buffer before the cores and the arena go.
    net_destroy(&s->net, FLUSH_MS);
}

static int server_leave_files(const struct server *s) {
    struct diary **diaries = xcalloc((unsigned long)s->map->threads, sizeof(struct diary *));
    for (int t = 0; t < s->map->threads; t++) diaries[t] = s->shards[t].diary;
    int rc = server_time_write(&(struct server_time_files){.config = s->c,
                                                           .map = s->map,
                                                           .id = &s->id,
                                                           .dir = s->o->dir,
                                                           .diaries = diaries,
                                                           .count = s->map->threads});
    free(diaries);
    struct study **studies = xcalloc((unsigned long)s->map->threads, sizeof(struct study *));
    for (int t = 0; t < s->map->threads; t++) studies[t] = s->shards[t].study;
    if (!rc && s->o->dir) rc = study_write(studies, s->map->threads, s->o->dir, s->id.rank);
    free(studies);
    for (int t = 0; t < s->map->threads && !rc; t++)
        if (s->shards[t].record) rc = arrivals_write(s->shards[t].record, s->o->dir);
    return rc;
}

static void server_free(struct server *s) {
    for (int t = 0; t < s->map->threads; t++) {
        server_core_destroy(&s->shards[t].core);
        diary_destroy(&s->shards[t].diary);
        arrivals_destroy(&s->shards[t].record);
        study_destroy(&s->shards[t].study);
        arrivals_destroy(&s->shards[t].replay);
        free(s->shards[t].routes);
    }
    if (s->dev) {
        arena_release(&s->arena);
        dev_close(&s->dev);
    }
    server_sharing_destroy(&s->sharing);
    free(s->shards);
    free(s->buffers);
    free(s->endpoints);
    shard_map_destroy(&s->map);
}

static int server_run(struct server *s) {
    struct net_options no = {.wire = &s->wire,
                             .max_payload_bytes = (size_t)s->c->ps.partition_bytes * 4 + 65536,
                             .io_threads = ps_io_threads(s->c, s->map->threads),
                             .queue_messages = 4 * s->map->count + 1024};
    s->net = net_create(&no);
    if (!s->net || server_listen(s) != 0 || !(s->scheduler = net_dealer(s->net, s->o->scheduler))) return -1;
    struct ps_login l = {
        .socket = s->scheduler, .role = s->o, .manifest = &s->manifest, .endpoints = s->endpoints};
    if (ps_login(&l, &s->id) != 0) return -1;
    error_set_label("server %d", s->id.rank);
    if (server_allocate(s) != 0 || server_start_shards(s) != 0) {
        ps_say(s->scheduler, &s->id, WIRE_ABORT, error_last());
        return -1;
    }
    return server_watch(s);
}

int ps_server_run(const struct ps_role_options *o, struct rank_report *report) {
    struct server s = {.o = o, .c = o->config};
    error_set_label("server");
    if (o->config->ps.record_arrivals && !o->dir)
        return fail("--record-arrivals: nowhere to leave the order of arrivals: give --out DIR");
    if (o->config->ps.log_updates && !o->dir)
        return fail("--log-updates: nowhere to leave the log: give --out DIR");
    if (!(s.map = shard_map_of(o->config, o->layout))) return -1;
    s.manifest = manifest_make(o->config, o->layout, s.map);
    s.shards = xcalloc((unsigned long)s.map->threads, sizeof *s.shards);
    s.id = (struct ps_identity){.role = PS_SERVER, .rank = o->rank, .incarnation = ps_random_id()};
    int rc = server_run(&s);
    server_close(&s);
    if (report) server_report(&s, report);
    if (rc == 0) rc = server_leave_files(&s);
    server_free(&s);
    return rc;
}
