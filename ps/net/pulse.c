#include "ps/net/pulse.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ps/job/timing.h"
#include "ps/net/net.h"
#include "shared/core/error.h"
#include "shared/core/wire_count.h"
#include "shared/time/turn_clock.h"

#define QUEUE_MESSAGES 16

struct pulse {
    struct pulse_options o;
    struct net *net;
    struct net_socket *scheduler;
    int quit_fd;
    pthread_t thread;
    struct turning turning;
};

// Whether the thread that must turn does, or has not begun.
static bool turns(struct pulse *p, double now) {
    uint64_t n = p->o.turns ? atomic_load(p->o.turns) : 0;
    return turning_stood(&p->turning, n, now) <= ps_deadline_s(p->o.role->config);
}

static void *pulse_main(void *arg) {
    struct pulse *p = arg;
    int every_ms = (int)(1e3 * ps_heartbeat_s(p->o.role->config));
    struct net_poll_item quit = {.fd = p->quit_fd};
    error_quiet(1);
    while (!quit.ready) {
        if (turns(p, now_seconds())) ps_say(p->scheduler, &p->o.id, WIRE_PULSE, NULL);
        if (net_poll(&quit, 1, every_ms > 0 ? every_ms : 1) != 0) return NULL;
    }
    return NULL;
}

static void pulse_free(struct pulse *p) {
    net_destroy(&p->net, 0);
    if (p->quit_fd >= 0) close(p->quit_fd);
    free(p);
}

struct pulse *pulse_start(const struct pulse_options *o) {
    struct pulse *p = xcalloc(1, sizeof *p);
    struct net_options no = {.wire = o->wire, .queue_messages = QUEUE_MESSAGES, .key = o->role->key};
    const struct net_peer scheduler = {.address = o->role->scheduler};
    p->o = *o;
    p->quit_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    p->net = net_create(&no);
    if (p->net) p->scheduler = net_dealer(p->net, &scheduler);
    int rc = p->scheduler ? pthread_create(&p->thread, NULL, pulse_main, p) : -1;
    if (rc == 0) return p;
    if (p->scheduler) fail("cannot start the thread of the heartbeats: " ERROR_RAISE_THREADS);
    pulse_free(p);
    return NULL;
}

void pulse_stop(struct pulse **at) {
    struct pulse *p = *at;
    uint64_t one = 1;
    if (!p) return;
    ssize_t n = write(p->quit_fd, &one, sizeof one);
    (void)n;
    pthread_join(p->thread, NULL);
    pulse_free(p);
    *at = NULL;
}

// ---------------------------------------------------------------- before the login
struct coming {
    struct config config;  // a copy: the role's own is not settled yet
    struct ps_role_options role;
    struct wire_count wire;  // of no report
    struct pulse *pulse;
};

struct coming *coming_start(const struct ps_role_options *o, enum ps_role role) {
    struct coming *c = xcalloc(1, sizeof *c);
    c->config = *o->config;
    c->role = *o;
    c->role.config = &c->config;
    const struct ps_identity id = {.role = role, .rank = o->rank, .incarnation = ps_random_id()};
    error_quiet(QUIET_ALL);
    c->pulse = pulse_start(&(struct pulse_options){.role = &c->role, .id = id, .wire = &c->wire});
    error_quiet(QUIET_NOT);
    return c;
}

void coming_stop(struct coming **at) {
    struct coming *c = at ? *at : NULL;
    if (!c) return;
    pulse_stop(&c->pulse);
    free(c);
    *at = NULL;
}
