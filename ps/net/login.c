#include "ps/net/login.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ps/job/timing.h"
#include "ps/net/link.h"
#include "ps/net/rejoin.h"
#include "shared/core/error.h"
#include "shared/fabric/job_key.h"
#include "shared/fabric/rank_env.h"
#include "shared/time/turn_clock.h"

#define HELLO_FIRST_S 0.05  // then twice that, ..
#define HELLO_EVERY_S 0.5

uint64_t ps_random_id(void) {
    uint64_t id = 0;
    if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id) id = (uint64_t)(now_seconds() * 1e9);
    return id ? id : 1;
}

bool ps_was_interrupted(const char *why) {
    size_t n = strlen(why), end = strlen(PS_INTERRUPTED);
    return n >= end && !strcmp(why + n - end, PS_INTERRUPTED);
}

int ps_fail(const char *why) {
    if (ps_was_interrupted(why) && rank_env_supervised()) error_quiet(1);
    return fail("%s", why);
}

int ps_told(const struct ps_role_options *role, const struct wire_header *h) {
    if (h->kind == WIRE_ABORT && role->quoted) error_quiet(QUIET_ALL);
    return ps_fail(h->text);
}

void ps_stamp(const struct ps_identity *id, struct wire_header *h) {
    h->role = id->role;
    h->rank = id->rank;
    h->thread = id->thread;
    h->incarnation = id->incarnation;
    h->job = id->job;
    if (id->role == PS_WORKER) h->life = id->life;  // the scheduler tells others theirs
}

void ps_say(struct net_socket *scheduler, const struct ps_identity *id, enum wire_kind kind,
            const char *text) {
    struct ps_message m = {.header = {.kind = kind}};
    if (text) snprintf(m.header.text, sizeof m.header.text, "%s", text);
    ps_stamp(id, &m.header);
    net_send(scheduler, NULL, &m);
}

// The payload: what this role is, a zero, and a server's endpoints.
void ps_hello(const struct ps_login *l, const struct ps_identity *id) {
    struct ps_message m = {.header = {.kind = WIRE_HELLO,
                                      .manifest = l->manifest->hash,
                                      .key = (int32_t)getpid(),
                                      .seq = rejoin_was()}};
    size_t known = strlen(l->manifest->identity) + 1, listens = l->endpoints ? strlen(l->endpoints) : 0;
    char *payload = xcalloc(known + listens, 1);
    memcpy(payload, l->manifest->identity, known);
    if (listens) memcpy(payload + known, l->endpoints, listens);
    m.payload = payload;
    m.bytes = known + listens;
    ps_stamp(id, &m.header);
    if (gethostname(m.header.host, sizeof m.header.host - 1) != 0) m.header.host[0] = 0;
    m.header.host[sizeof m.header.host - 1] = 0;
    net_send(l->socket, NULL, &m);
    free(payload);
}

// The next message of the scheduler: 1, 0 none within POLL_MS, -1 the job is over for us (logged).
static int next(const struct ps_login *l, const struct ps_identity *id, struct net_message *m) {
    struct net_poll_item item = {.socket = l->socket};
    if (ps_stopped(l->role->stop)) {
        error_quiet(1);  // a user that has pressed Ctrl-C needs no line
        return fail("interrupted during login");
    }
    if (net_poll(&item, 1, POLL_MS) != 0) return -1;
    int rc = item.ready ? net_recv(l->socket, m) : 0;
    if (rc == 1 && (m->header.kind == WIRE_REFUSED || m->header.kind == WIRE_ABORT)) {
        ps_frame_release(m->frame);
        return ps_told(l->role, &m->header);
    }
    // A shard's server hears it too.
    if (rc == 1 && id->role != PS_SHARD && rejoin_asked(id->job, &m->header)) {
        ps_frame_release(m->frame);
        return rejoin_now(l->role, id->incarnation, m->header.text);
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

static int fail_refused(const struct ps_login *l) {
    return fail("login: what listens at %s does not let this role in: " JOB_KEY_DIFFERS
                ": give all roles of the job the same key, or all --insecure",
                l->role->scheduler);
}

int ps_login(const struct ps_login *l, struct ps_identity *id) {
    struct waiting waiting = {.said_s = 0};
    double said = 0, deadline_s = ps_deadline_s(l->role->config);
    struct turn_clock clock = {.lost_s = deadline_s};
    double start = now_seconds(), now;
    bool refused = false;
    int repeats = -1;
    while ((now = turn_clock_turn(&clock, now_seconds())) - start < deadline_s) {
        struct net_message m;
        say_waiting(l, id, &waiting, "the scheduler");
        if (repeats < 0 || now_seconds() - said > rto_backoff(HELLO_FIRST_S, repeats, HELLO_EVERY_S)) {
            said = now_seconds();
            repeats++;
            ps_hello(l, id);
        }
        int rc = next(l, id, &m);
        bool shut_out = rc == 0 && net_refused(l->socket);
        if (rc < 0) return -1;
        // The job goes on after a death: another program may have taken the dead scheduler's port, and refuse.
        if (shut_out && !rejoin_was()) return fail_refused(l);
        if (shut_out) {
            refused = true;
            net_ask_again(l->socket);
        }
        if (rc == 0) continue;
        ps_frame_release(m.frame);
        // It lives, and has files to read first (ps/scheduler/scheduler.c).
        if (m.header.kind == WIRE_HEARTBEAT_ACK) start = now;
        // A shard is of the same life of the job as its server.
        bool other = id->role == PS_SHARD && m.header.job != id->job;
        if (m.header.kind != WIRE_WELCOME || m.header.job == 0 || other) continue;
        // A scheduler is believed what can be true: a rank of the job, and the one that was asked for.
        const struct config *c = l->role->config;
        int count = id->role == PS_WORKER ? c->workers : c->ps.servers;
        int64_t rank = m.header.step;
        if (rank < 0 || rank >= count || (id->rank >= 0 && rank != id->rank))
            return fail("login: the scheduler at %s gives rank %lld to a %s of %d: it is not of this job",
                        l->role->scheduler, (long long)rank, ps_role_name(id->role), count);
        id->rank = (int)rank;
        id->job = m.header.job;
        id->life = m.header.life;
        id->epoch = m.header.epoch;
        id->clock = ps_clock_of(ps_clock_id(), m.header.clock);
        net_welcome(l->socket);
        return 0;
    }
    if (refused) return fail_refused(l);
    return fail(
        "login: no scheduler answered at %s within %.1f s; is it running, is the address right, and has it %s?",
        l->role->scheduler, deadline_s,
        l->role->key ? "the same " JOB_KEY_VARIABLE : "no key either (--insecure)");
}

struct roster *ps_read_start(const struct ps_role_options *role, int shards, int workers,
                             const struct ps_frame *frame) {
    struct roster *r = roster_read(frame->data, frame->bytes, shards, workers);
    if (!r)
        fail("the scheduler at %s names other members than this job has: is it of the same version?",
             role->scheduler);
    return r;
}

struct roster *ps_wait_start(const struct ps_login *l, struct ps_identity *id) {
    struct waiting waiting = {.said_s = 0};
    double said = 0, deadline_s = 1.25 * ps_deadline_s(l->role->config);
    struct turn_clock clock = {.lost_s = deadline_s};
    double start = now_seconds(), now;
    while ((now = turn_clock_turn(&clock, now_seconds())) - start < deadline_s) {
        struct net_message m;
        say_waiting(l, id, &waiting, "the other workers and the servers of the job");
        // Says that this role lives, too; and once the job has started, START is the answer.
        if (now_seconds() - said > ps_hello_s(l->role->config)) {
            said = now_seconds();
            ps_hello(l, id);
        }
        int rc = next(l, id, &m);
        if (rc < 0) return NULL;
        if (rc == 0) continue;
        // It lives, and says itself when it has waited for others, for a step or for files for too long.
        if (m.header.kind == WIRE_WELCOME || m.header.kind == WIRE_HEARTBEAT_ACK) start = now;
        bool started = m.header.kind == WIRE_START && m.frame;
        struct roster *roster = started ? ps_read_start(l->role, l->shards, 0, m.frame) : NULL;
        if (started) {
            id->joins = (m.header.flags & WIRE_JOINS) != 0;
            memcpy(id->checkpoint, m.header.text, sizeof id->checkpoint);
            id->seal = m.header.manifest;
        }
        ps_frame_release(m.frame);
        if (started) return roster;
    }
    fail("login: the scheduler at %s did not start the job within %.1f s", l->role->scheduler, deadline_s);
    return NULL;
}

// ---------------------------------------------------------------- the last word
// Whether it has been heard.
static bool say_until_heard(struct net_socket *scheduler, struct link *l, enum wire_kind kind,
                            const char *text) {
    const struct ps_port port = link_port(l);
    struct wire_header word = {.kind = kind};
    double begin = now_seconds();
    if (text) snprintf(word.text, sizeof word.text, "%s", text);
    link_hurry(l, LAST_WORD_EVERY_S);
    link_tick(l, begin);
    port_tell(&port, PEER_SCHEDULER, &word);
    while (now_seconds() - begin < LAST_WORD_S) {
        struct net_poll_item item = {.socket = scheduler};
        struct net_message m;
        if (net_poll(&item, 1, POLL_MS) != 0) return false;
        while (item.ready && net_recv(scheduler, &m) == 1) {
            ps_frame_release(m.frame);
            if (m.header.kind == WIRE_ROLLBACK) return true;
            link_receive(l, PEER_SCHEDULER, &m.header, now_seconds());
        }
        if (link_heard(l, PEER_SCHEDULER)) return true;
        link_tick(l, now_seconds());
    }
    return false;
}

void ps_abort(struct net_socket *scheduler, struct link *l, const struct ps_identity *id, const char *text) {
    // A GOODBYE would hide an ABORT that was not heard: the role is missed then, and named.
    if (say_until_heard(scheduler, l, WIRE_ABORT, text)) ps_say(scheduler, id, WIRE_GOODBYE, NULL);
}

void ps_part(struct net_socket *scheduler, struct link *l) {
    say_until_heard(scheduler, l, WIRE_GOODBYE, NULL);
}
