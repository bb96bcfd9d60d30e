#include "ps/scheduler/membership.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/net/clock.h"
#include "ps/timing.h"
#include "shared/core/error.h"

#define SHUTDOWN_EVERY_S 0.2
#define ENDPOINTS_MAX    (1 << 20)  // bytes

const char *member_name(const struct membership *c, int i, char out[48]) {
    int shard = i - c->workers - c->servers, threads = c->o.map->threads;
    if (i < c->workers)
        snprintf(out, 48, "worker %d", i);
    else if (shard < 0)
        snprintf(out, 48, "server %d", i - c->workers);
    else
        snprintf(out, 48, "server %d shard %d", shard / threads, shard % threads);
    return out;
}

void member_names_add(const struct membership *c, struct member_names *x, int i) {
    char name[48];
    x->count++;
    if (x->at + 52 < sizeof x->text)
        x->at += (size_t)snprintf(x->text + x->at, sizeof x->text - x->at, "%s%s", x->at ? ", " : "",
                                  member_name(c, i, name));
}

void membership_tell_all(struct membership *c, const struct wire_header *h) {
    for (int i = 0; i < c->count; i++)
        if (c->m[i].present && !c->m[i].gone) port_tell(&c->o.port, i, h);
}

// ---------------------------------------------------------------- login
// The number of the member that calls itself so, or -1.
static int number_of(const struct membership *c, const struct wire_header *h) {
    int threads = c->o.map->threads;
    switch (h->role) {
        case PS_WORKER:
            return h->rank >= 0 && h->rank < c->workers ? h->rank : -1;
        case PS_SERVER:
            return h->rank >= 0 && h->rank < c->servers ? c->workers + h->rank : -1;
        case PS_SHARD:
            if (h->rank < 0 || h->rank >= c->servers || h->thread >= threads) return -1;
            return membership_shard(c, h->rank * threads + h->thread);
        default:
            return -1;
    }
}

// The member a HELLO becomes: itself again when it repeats, the rank it asks for, or any free one.
static int assign(const struct membership *c, const struct wire_header *h) {
    int base = h->role == PS_WORKER ? 0 : c->workers, count = h->role == PS_WORKER ? c->workers : c->servers;
    if (h->rank >= 0 || h->role == PS_SHARD || h->role == PS_SCHEDULER) return number_of(c, h);
    for (int i = base; i < base + count; i++)
        if (c->m[i].present && c->m[i].incarnation == h->incarnation) return i;
    for (int i = base; i < base + count; i++)
        if (!c->m[i].present) return i;
    return -1;
}

// Writes why a HELLO that would become member i is refused; leaves `why` empty where it is not.
static void check_hello(const struct membership *c, int i, const struct wire_header *h,
                        const struct ps_frame *frame, char why[WIRE_TEXT_MAX]) {
    const char *role = ps_role_name(h->role);
    if (h->manifest != c->o.manifest.hash)
        core_fail(why, "manifests differ: %s has (%.220s), scheduler has (%.220s); use one configuration",
                  role, h->text, c->o.manifest.text);
    else if (i < 0 && h->rank < 0)
        core_fail(why, "there is no place for another %s: the job has %d, and all are here", role,
                  h->role == PS_WORKER ? c->workers : c->servers);
    else if (i < 0)
        core_fail(why, "there is no place for %s %d: the job has %d workers and %d servers of %d threads",
                  role, h->rank, c->workers, c->servers, c->o.map->threads);
    else if (c->m[i].present && c->m[i].incarnation != h->incarnation)
        core_fail(why, "%s %d is already here; every rank joins once", role, h->rank);
    else if (h->role == PS_SERVER && (!frame || frame->bytes > ENDPOINTS_MAX))
        core_fail(why, "server %d came without the addresses it listens on", h->rank);
}

// The endpoints of all shards, in shard order.
static void send_start(struct membership *c, int peer) {
    struct ps_message m = {.header = {.kind = WIRE_START}};
    char *text = NULL;
    for (int s = 0; s < c->servers; s++) {
        const char *e = c->m[c->workers + s].endpoints;
        text = xrealloc(text, m.bytes + strlen(e) + 1);
        memcpy(text + m.bytes, e, strlen(e) + 1);
        m.bytes += strlen(e);
    }
    m.payload = text;
    c->o.port.send(c->o.port.ctx, peer, &m);
    free(text);
}

int membership_hello(struct membership *c, const struct wire_header *h, const struct ps_frame *frame,
                     double now) {
    struct wire_header refused = {.kind = WIRE_REFUSED}, welcome = {.kind = WIRE_WELCOME};
    int i = assign(c, h);
    check_hello(c, i, h, frame, refused.text);
    if (refused.text[0]) {
        port_tell(&c->o.port, PEER_SENDER, &refused);
        return -1;
    }
    struct member *m = &c->m[i];
    if (h->role == PS_SERVER && !m->endpoints) {
        m->endpoints = xcalloc(frame->bytes + 1, 1);
        memcpy(m->endpoints, frame->data, frame->bytes);
    }
    m->present = true;
    m->incarnation = h->incarnation;
    m->seen_s = now;
    welcome.clock = c->o.clock;
    welcome.step = h->role == PS_WORKER ? i : h->role == PS_SERVER ? i - c->workers : h->rank;
    port_tell(&c->o.port, PEER_SENDER, &welcome);
    if (c->started) send_start(c, PEER_SENDER);
    return i;
}

// ---------------------------------------------------------------- members
int membership_heard(struct membership *c, const struct wire_header *h, double now) {
    int i = number_of(c, h);
    if (i < 0 || !c->m[i].present || h->job != c->o.job || h->incarnation != c->m[i].incarnation) return -1;
    c->m[i].seen_s = now;
    if (h->step > c->m[i].step) c->m[i].step = h->step;
    if (h->flags & WIRE_STOP) c->stop = true;
    return i;
}

void membership_heartbeat(struct membership *c, int i, const struct wire_header *h, double now) {
    struct wire_header answer = {.kind = WIRE_HEARTBEAT_ACK,
                                 .flags = membership_stop_flag(c),
                                 .ready_ns = h->ready_ns,
                                 .peers_ready_ns = ps_clock_ns(now)};
    if (h->seq > c->m[i].progress) {
        c->m[i].progress = h->seq;
        c->m[i].progress_s = now;
    }
    port_tell(&c->o.port, i, &answer);
}

void membership_goodbye(struct membership *c, int i) {
    c->m[i].gone = true;
    port_tell(&c->o.port, i, &(struct wire_header){.kind = WIRE_GOODBYE_ACK});
}

// ---------------------------------------------------------------- time
static int login_tick(struct membership *c, double now) {
    struct member_names missing = {.count = 0};
    for (int i = 0; i < c->count; i++)
        if (!c->m[i].present) member_names_add(c, &missing, i);
    if (!missing.count) {
        c->started = true;
        for (int i = 0; i < c->count; i++) {
            c->m[i].seen_s = now;
            send_start(c, i);
        }
        return 0;
    }
    if (now - c->o.start_s > ps_deadline_s(c->o.config))
        return core_fail(c->error, "login: %s did not come within %lld ms", missing.text,
                         (long long)c->o.config->ps.deadline_ms);
    return 0;
}

// How far member i is known to be, at least the job's step. Where workers are alone there are no rounds, and
// servers name no steps: a server is as far as the foremost worker.
static int64_t step_of(const struct membership *c, int i, int64_t step) {
    if (c->m[i].step > step) step = c->m[i].step;
    for (int w = 0; w < c->workers && i >= c->workers; w++)
        if (c->m[w].step > step) step = c->m[w].step;
    return step;
}

static int lost_tick(struct membership *c, int64_t step, double now) {
    for (int i = 0; i < c->workers + c->servers; i++) {
        struct member *m = &c->m[i];
        char name[48];
        if (!m->present || m->gone || now - m->seen_s <= ps_lost_s(c->o.config)) continue;
        m->gone = true;  // no ABORT can reach it
        member_name(c, i, name);
        if (!c->started)
            return core_fail(c->error, "%s was lost during login: silent for %.1f s", name, now - m->seen_s);
        return core_fail(c->error, "%s was lost at step %lld: silent for %.1f s", name,
                         (long long)step_of(c, i, step), now - m->seen_s);
    }
    return 0;
}

// All workers are gone: servers are told until they say goodbye too.
static void closing_tick(struct membership *c, double now) {
    struct wire_header h = {.kind = WIRE_SHUTDOWN};
    bool all = true;
    for (int w = 0; w < c->workers; w++)
        if (!c->m[w].gone) return;
    if (!c->closing) c->closing_s = now;
    bool again = !c->closing || now - c->shutdown_s > SHUTDOWN_EVERY_S;
    c->closing = true;
    for (int i = c->workers; i < c->workers + c->servers; i++) {
        if (c->m[i].gone) continue;
        all = false;
        if (again) port_tell(&c->o.port, i, &h);
    }
    if (again) c->shutdown_s = now;
    c->done = all || now - c->closing_s > ps_deadline_s(c->o.config);
}

int membership_tick(struct membership *c, int64_t step, double now) {
    if (!c->started && login_tick(c, now) != 0) return -1;
    if (c->started) closing_tick(c, now);
    return c->closing ? 0 : lost_tick(c, step, now);
}

void membership_init(struct membership *c, const struct scheduler_options *o) {
    *c = (struct membership){
        .o = *o, .workers = o->config->workers, .servers = o->map->servers, .shards = o->map->shards};
    c->count = c->workers + c->servers + c->shards;
    c->m = xcalloc((unsigned long)c->count, sizeof *c->m);
}

void membership_free(struct membership *c) {
    for (int i = 0; i < c->count; i++) free(c->m[i].endpoints);
    free(c->m);
}
