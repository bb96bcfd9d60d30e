// The scheduler's thread: one ROUTER, one core.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ps/diary/diary_file.h"
#include "ps/net/login.h"
#include "ps/ps.h"
#include "ps/scheduler/scheduler_core.h"
#include "ps/timing.h"
#include "ps/waiting.h"
#include "shared/core/error.h"

#define QUEUE_MESSAGES 65536  // control messages of all members

struct scheduler {
    const struct ps_role_options *o;
    struct net *net;
    struct net_socket *router;
    struct scheduler_core *core;
    struct net_route *routes;  // (members)
    struct net_route sender;   // of the message being handled
    struct ps_identity id;
    struct wire_count wire;
    char address[NET_ADDRESS_MAX];  // as bound
    struct waiting waiting;
    struct diary *diary;   // NULL: no trace
    int64_t cpu_begin_ns;  // when the job started
};

// It has no directory of its own, maybe: the servers, which leave reports, learn what it has cost.
static void tell_cost(const struct scheduler *s, struct wire_header *h) {
    struct rusage self;
    h->count = 4;
    h->values[0] = (double)(clock_now_ns(CLOCK_PROCESS_CPUTIME_ID) - s->cpu_begin_ns) * 1e-9;
    h->values[1] = getrusage(RUSAGE_SELF, &self) ? 0 : (double)self.ru_maxrss * 1024;
    h->values[2] = (double)atomic_load(&s->wire.control_sent);
    h->values[3] = (double)atomic_load(&s->wire.control_received);
}

static void scheduler_send(void *ctx, int peer, const struct ps_message *message) {
    struct scheduler *s = ctx;
    struct ps_message m = *message;
    if (m.header.kind == WIRE_START && !s->cpu_begin_ns)
        s->cpu_begin_ns = clock_now_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (m.header.kind == WIRE_SHUTDOWN) tell_cost(s, &m.header);
    ps_stamp(&s->id, &m.header);
    net_send(s->router, peer == PEER_SENDER ? &s->sender : &s->routes[peer], &m);
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

static void say_slow(struct scheduler *s, double now) {
    char text[ROUNDS_TEXT_MAX];
    while (scheduler_core_slow(s->core, now, text))
        if (!s->o->config->quiet) info("%s", text);
}

static int scheduler_loop(struct scheduler *s) {
    while (!scheduler_core_done(s->core)) {
        struct net_poll_item item = {.socket = s->router};
        struct net_message m;
        int rc = 0;
        say_waiting(s, now_seconds());
        say_slow(s, now_seconds());
        if (ps_stopped(s->o->stop)) return scheduler_core_abort(s->core, "the scheduler was " PS_INTERRUPTED);
        diary_enter(s->diary, WIRE_NONE, &DIARY_NOTHING);
        if (net_poll(&item, 1, POLL_MS) != 0)
            return scheduler_core_abort(s->core, "the scheduler cannot poll its socket");
        while (item.ready && (rc = net_recv(s->router, &m)) == 1) {
            s->sender = m.from;
            diary_enter(s->diary, (int)m.header.kind,
                        &(struct diary_of){-1, m.header.rank, 1, m.header.step});
            int member = scheduler_core_message(s->core, &m.header, m.frame, now_seconds());
            if (member >= 0) s->routes[member] = m.from;
            if (scheduler_core_tick(s->core, now_seconds()) != 0) return -1;
        }
        if (rc < 0) return scheduler_core_abort(s->core, "the scheduler cannot read its socket");
        if (scheduler_core_tick(s->core, now_seconds()) != 0) return -1;
    }
    return 0;
}

static int scheduler_open(struct scheduler *s, const struct shard_map *map) {
    const struct config *c = s->o->config;
    char bound[NET_ADDRESS_MAX];
    struct net_options no = {
        .wire = &s->wire, .max_payload_bytes = 1 << 20, .queue_messages = QUEUE_MESSAGES};
    s->net = net_create(&no);
    if (!s->net || !(s->router = net_router(s->net, s->o->scheduler ? s->o->scheduler : c->ps.bind, bound)))
        return -1;
    s->id = (struct ps_identity){.role = PS_SCHEDULER, .incarnation = ps_random_id(), .job = ps_random_id()};
    struct scheduler_options co = {.config = c,
                                   .map = map,
                                   .manifest = manifest_make(c, s->o->layout, map),
                                   .job = s->id.job,
                                   .clock = ps_clock_id(),
                                   .start_s = now_seconds(),
                                   .port = {s, scheduler_send}};
    s->core = scheduler_core_create(&co);
    s->routes = xcalloc((unsigned long)scheduler_core_members(s->core), sizeof *s->routes);
    snprintf(s->address, sizeof s->address, "%s", bound);
    if (s->o->on_bound) s->o->on_bound(s->o->ctx, bound);
    return 0;
}

static struct diary *trace_begin(const struct ps_role_options *o, const char *names[WIRE_KINDS]) {
    for (int k = 0; k < WIRE_KINDS; k++) names[k] = wire_kind_name((enum wire_kind)k);
    struct diary_options d = {.names = names, .parts = WIRE_KINDS, .idle = 1u << WIRE_NONE, .trace = true};
    return o->dir && o->config->trace ? diary_create(&d) : NULL;
}

static int trace_end(struct scheduler *s) {
    const struct config *c = s->o->config;
    struct diary_thread thread = {"messages", s->diary};
    struct diary_role r = {.dir = s->o->dir,
                           .role = "scheduler",
                           .threads = &thread,
                           .count = 1,
                           .pid = trace_pid_scheduler(c->workers, c->ps.servers),
                           .first_tid = 1,
                           .workers = c->workers};
    diary_end(s->diary);
    return s->diary ? diary_write_trace(&r) : 0;
}

int ps_scheduler_run(const struct ps_role_options *o) {
    const char *names[WIRE_KINDS];
    struct scheduler s = {.o = o};
    error_set_label("scheduler");
    struct shard_map *map = shard_map_of(o->config, o->layout);
    if (!map) return -1;
    s.diary = trace_begin(o, names);
    int rc = scheduler_open(&s, map);
    if (rc == 0) {
        rc = scheduler_loop(&s);
        if (rc != 0) ps_fail(scheduler_core_error(s.core));
        if (rc == 0) rc = trace_end(&s);
    }
    net_destroy(&s.net, FLUSH_MS);
    scheduler_core_destroy(&s.core);
    free(s.routes);
    diary_destroy(&s.diary);
    shard_map_destroy(&map);
    return rc;
}
