// A shard's thread (server_threads.h).
#include <stdio.h>
#include <unistd.h>

#include "kernels/spans.h"
#include "ps/job/timing.h"
#include "ps/net/medium.h"
#include "ps/server/server_threads.h"
#include "shared/core/error.h"
#include "shared/time/stall.h"

// The first push, of the job or of this shard, starts the measurement.
static void measure_first_push(struct shard *s) {
    int64_t cpu = 0, wall = 0;
    thread_time_start(s->spans);
    if (atomic_load(&s->server->begin_ns)) return;
    atomic_compare_exchange_strong(&s->server->cpu_begin_ns, &cpu, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
    atomic_compare_exchange_strong(&s->server->begin_ns, &wall, now_ns());
}

static void measure_last_push(struct server *s) {
    atomic_store(&s->end_ns, now_ns());
    atomic_store(&s->cpu_end_ns, clock_ns(CLOCK_PROCESS_CPUTIME_ID));
}

bool shard_renew(void *ctx, int peer, struct ps_message *m) {
    return server_core_renew(((struct shard *)ctx)->core, peer, m);
}

// Receives the next message. Returns false if there is none (*rc 0) or on failure (*rc -1). The time counts for the
// message's push.
static bool shard_receive(struct shard *s, struct net_socket *from, struct net_message *m, int *rc) {
    thread_time_enter(s->spans, SERVER_RECEIVE, SPAN_OF_NOTHING);
    *rc = net_recv(from, m);
    const struct wire_header *h = &m->header;
    if (*rc != 1 || from != s->lines.router || h->role != PS_WORKER) return *rc == 1;
    int64_t step = h->kind == WIRE_PULL ? h->step - 1 : h->step;
    thread_time_label(s->spans, span_for(h->kind == WIRE_INIT ? -1 : step, h->key, h->rank, 1));
    return true;
}

// A worker asks what it and this shard can share.
static void shard_attach(struct shard *s, const struct wire_header *h) {
    struct server_segment segment;
    struct wire_header answer;
    const struct ps_port port = star_link_port(s->link);
    if (!server_core_accepts_sender(s->core, h)) return;
    server_sharing_answer(&s->server->sharing, s->thread, h, &segment, &answer);
    server_core_attach(s->core, h->rank, &segment);
    port_tell(&port, h->rank, &answer);
}

static int shard_from_worker(struct shard *s) {
    struct net_message m;
    int rc = 0;
    for (int i = 0; i < DRAIN_MESSAGES && shard_receive(s, s->lines.router, &m, &rc); i++) {
        if (server_core_accepts_sender(s->core, &m.header)) {
            s->lines.routes[m.header.rank] = m.from;
            if (!star_link_receive(s->link, m.header.rank, &m.header, now_seconds())) {
                ps_frame_release(m.frame);
                continue;
            }
        }
        if (m.header.kind == WIRE_ATTACH) {
            shard_attach(s, &m.header);
            continue;
        }
        bool trains = m.header.kind == WIRE_PUSH;
        if (trains) measure_first_push(s);
        if (server_core_message(s->core, &m.header, m.frame, now_seconds()) != 0) return -1;
        if (trains) measure_last_push(s->server);
    }
    return rc < 0 ? -1 : 0;
}

static int shard_from_scheduler(struct shard *s) {
    struct net_message m;
    int rc = 0;
    while (shard_receive(s, s->lines.scheduler, &m, &rc)) {
        ps_frame_release(m.frame);
        if (m.header.job != s->id.job) continue;
        s->heard = true;
        star_link_receive(s->link, PEER_SCHEDULER, &m.header, now_seconds());
        bool member = m.header.kind == WIRE_MEMBER;
        if (m.header.kind != WIRE_DECISION && m.header.kind != WIRE_SET && !member) continue;
        if (server_core_decision(s->core, &m.header, now_seconds()) != 0) return -1;
        if (!member) measure_last_push(s->server);
    }
    return rc;
}

// Messages that arrive before the start wait in the socket: no sender is known yet.
static int shard_loop(struct shard *s) {
    while (!atomic_load(&s->server->quit)) {
        atomic_fetch_add(&s->turns, 1);
        struct net_poll_item items[2] = {{.socket = s->lines.scheduler}, {.socket = s->lines.router}};
        thread_time_enter(s->spans, server_core_has_open(s->core) ? SERVER_HOLD : SERVER_WAIT,
                          SPAN_OF_NOTHING);
        if (net_poll(items, 1 + s->acquainted, server_core_is_urgent(s->core) ? HURRY_MS : POLL_MS) != 0)
            return -1;
        if (items[1].ready && shard_from_worker(s) != 0) return -1;
        if (items[0].ready && shard_from_scheduler(s) != 0) return -1;
        const struct server *sv = s->server;
        const struct roster *r = atomic_load(&sv->roster);
        if (!s->acquainted && r) {  // the main thread knows the members of the job now
            for (int w = 0; w < r->workers; w++)
                server_core_member(s->core, w, r->worker[w].incarnation, r->worker[w].process_no);
            s->acquainted = true;
        }
        link_await(s->link, PEER_SCHEDULER, !s->heard);
        link_tick(s->link, now_seconds());
        // The checkpoint from which the job resumes has been read.
        if (!s->loaded && atomic_load(&sv->loaded)) {
            s->loaded = true;
            if (server_core_resume(s->core, &sv->rows, sv->from.step) != 0) return -1;
        }
        if (server_core_tick(s->core, now_seconds()) != 0) return -1;
    }
    return 0;
}

void *shard_main(void *arg) {
    struct shard *s = arg;
    struct server *sv = s->server;
    error_set_label("server %d shard %d", s->id.rank, s->thread);
    error_quiet(1);  // the main thread logs for the server
    stall_watch_thread(sv->watch, NULL, gettid());
    int rc = shard_loop(s);
    thread_time_end(s->spans);
    if (rc != 0) {
        const char *why = server_core_error(s->core)[0] ? server_core_error(s->core) : error_last();
        snprintf(s->error, sizeof s->error, "%s", why);
        atomic_store(&s->failed, 1);
    }
    return NULL;
}
