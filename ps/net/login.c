#include "ps/net/login.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "ps/timing.h"
#include "ps/waiting.h"
#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define HELLO_EVERY_S 0.5

uint64_t ps_random_id(void) {
    uint64_t id = 0;
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = (uint64_t)(now_seconds() * 1e9);
    return id ? id : 1;
}

int ps_fail(const char *why) {
    size_t n = strlen(why), end = strlen(PS_INTERRUPTED);
    if (n >= end && !strcmp(why + n - end, PS_INTERRUPTED) && stop_supervised()) error_quiet(1);
    return fail("%s", why);
}

void ps_stamp(const struct ps_identity *id, struct wire_header *h) {
    h->role = id->role;
    h->rank = id->rank;
    h->thread = id->thread;
    h->incarnation = id->incarnation;
    h->job = id->job;
}

void ps_say(struct net_socket *scheduler, const struct ps_identity *id, enum wire_kind kind,
            const char *text) {
    struct ps_message m = {.header = {.kind = kind}};
    if (text) snprintf(m.header.text, sizeof m.header.text, "%s", text);
    ps_stamp(id, &m.header);
    net_send(scheduler, NULL, &m);
}

static void say_hello(const struct ps_login *l, const struct ps_identity *id) {
    struct ps_message m = {.header = {.kind = WIRE_HELLO, .manifest = l->manifest->hash},
                           .payload = l->endpoints,
                           .bytes = l->endpoints ? strlen(l->endpoints) : 0};
    ps_stamp(id, &m.header);
    memcpy(m.header.text, l->manifest->text, sizeof l->manifest->text);
    net_send(l->socket, NULL, &m);
}

// The next message of the scheduler: 1, 0 none within POLL_MS, -1 the job is over for us (logged).
static int next(const struct ps_login *l, struct net_message *m) {
    struct net_poll_item item = {.socket = l->socket};
    if (ps_stopped(l->role->stop)) {
        error_quiet(1);  // the user who pressed Ctrl-C needs no line
        return fail("interrupted during login");
    }
    if (net_poll(&item, 1, POLL_MS) != 0) return -1;
    int rc = item.ready ? net_recv(l->socket, m) : 0;
    if (rc == 1 && (m->header.kind == WIRE_REFUSED || m->header.kind == WIRE_ABORT)) {
        ps_frame_release(m->frame);
        return ps_fail(m->header.text);
    }
    return rc;
}

static void say_waiting(const struct ps_login *l, const struct ps_identity *id, struct waiting *w,
                        const char *for_whom) {
    char text[384];
    snprintf(text, sizeof text, "waiting for %s at %s", for_whom, l->role->scheduler);
    bool say = l->role->say_waiting && id->role != PS_SHARD;  // its server speaks for a shard
    if (say && waiting_due(w, text, now_seconds())) info("%s", text);
}

int ps_login(const struct ps_login *l, struct ps_identity *id) {
    struct waiting waiting = {.said_s = 0};
    double start = now_seconds(), said = 0, deadline_s = ps_deadline_s(l->role->config);
    while (now_seconds() - start < deadline_s) {
        struct net_message m;
        say_waiting(l, id, &waiting, "the scheduler");
        if (said == 0 || now_seconds() - said > HELLO_EVERY_S) {
            said = now_seconds();
            say_hello(l, id);
        }
        int rc = next(l, &m);
        if (rc < 0) return -1;
        if (rc == 0) continue;
        ps_frame_release(m.frame);
        if (m.header.kind != WIRE_WELCOME || m.header.job == 0) continue;
        id->rank = (int)m.header.step;
        id->job = m.header.job;
        id->clock = ps_clock_of(ps_clock_id(), m.header.clock);
        return 0;
    }
    return fail("login: no scheduler answered at %s within %.1f s; is it running, and is the address right?",
                l->role->scheduler, deadline_s);
}

// Waits somewhat longer than the scheduler, which names who is missing at its deadline: its message must
// arrive.
char *ps_wait_start(const struct ps_login *l, const struct ps_identity *id) {
    struct waiting waiting = {.said_s = 0};
    double start = now_seconds(), said = 0, deadline_s = 1.25 * ps_deadline_s(l->role->config);
    while (now_seconds() - start < deadline_s) {
        struct net_message m;
        say_waiting(l, id, &waiting, "the other workers and the servers of the job");
        if (now_seconds() - said > ps_heartbeat_s(l->role->config)) {
            said = now_seconds();
            ps_say(l->socket, id, WIRE_HEARTBEAT, NULL);
        }
        int rc = next(l, &m);
        if (rc < 0) return NULL;
        if (rc == 0) continue;
        char *text = NULL;
        if (m.header.kind == WIRE_START && m.frame) {
            text = xcalloc(m.frame->bytes + 1, 1);
            memcpy(text, m.frame->data, m.frame->bytes);
        }
        ps_frame_release(m.frame);
        if (text) return text;
    }
    fail("login: the scheduler at %s did not start the job within %.1f s", l->role->scheduler, deadline_s);
    return NULL;
}
