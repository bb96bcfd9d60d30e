#include "ps/scheduler/membership.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/net/link.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/state/identity.h"

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
int membership_assign(const struct membership *c, const struct wire_header *h) {
    int base = h->role == PS_WORKER ? 0 : c->workers, count = h->role == PS_WORKER ? c->workers : c->servers;
    if (h->rank >= 0 || h->role == PS_SHARD || h->role == PS_SCHEDULER) return number_of(c, h);
    for (int i = base; i < base + count; i++)
        if (c->m[i].present && c->m[i].incarnation == h->incarnation) return i;
    for (int i = base; i < base + count; i++)
        if (!c->m[i].present) return i;
    return -1;
}

// The payload of a HELLO: a role's identity, a zero, and a server's endpoints.
struct hello {
    const char *identity;  // NULL: none
    const char *endpoints;
    size_t bytes;  // of endpoints, without a closing zero
};

// Writes how a role that would be called `name` is of another run than the scheduler, or than the worker that came first:
// a scheduler knows nothing of data and devices.
static void check_manifest(const struct membership *c, const char *name, const struct wire_header *h,
                           const struct hello *hello, char why[WIRE_TEXT_MAX]) {
    const char *own = c->o.manifest.identity, *its = hello->identity;
    bool differs = h->manifest != c->o.manifest.hash;
    char *text = NULL;
    if (differs && !its) {
        core_fail(
            why,
            "%s does not say of which run it is, as another version of starring: install one version for all",
            name);
        return;
    }
    if (differs) text = identity_texts_disagreement(name, its, "the scheduler", own);
    if (!text && h->role == PS_WORKER && its && c->first_identity)
        text = identity_texts_disagreement(name, its, c->first_name, c->first_identity);
    if (text)
        core_fail(why, "%s", text);
    else if (differs)
        core_fail(why, "%s is of another run, and does not say in what", name);
    free(text);
}

// Writes why a HELLO that would become member i is refused; leaves `why` empty where it is not.
static void check_hello(const struct membership *c, int i, const struct wire_header *h,
                        const struct hello *hello, char why[WIRE_TEXT_MAX]) {
    const char *role = ps_role_name(h->role);
    char name[48];
    snprintf(name, sizeof name, "%s", role);
    check_manifest(c, i < 0 ? name : member_name(c, i, name), h, hello, why);
    if (why[0]) return;
    if (i < 0 && h->rank < 0)
        core_fail(why, "there is no place for another %s: all are here%s", role,
                  c->o.epochs.restarts ? "; --rank R says whose place it takes, if that one has died" : "");
    else if (i < 0)
        core_fail(why, "there is no place for %s %d: the job has fewer of them, or servers of fewer threads",
                  role, h->rank);
    else if (c->m[i].present && c->m[i].incarnation != h->incarnation)
        core_fail(why, "%s %d is already here; every rank joins once", role, h->rank);
}

// ---------------------------------------------------------------- START
// Where all shards listen; and for servers which process has which rank: their shards learn it from them. What has changed
// since then is told by WIRE_MEMBER, and a life that is older than that counts no more.
static struct start_text *start_text(struct membership *c, bool workers) {
    struct start_text **at = &c->texts[workers];
    int threads = c->o.map->threads;
    if (*at) return *at;
    *at = xcalloc(1, sizeof **at + (size_t)c->count * sizeof *(*at)->leaving);
    (*at)->members = c->count;
    struct roster *r = roster_create(c->shards, workers ? c->workers : 0);
    for (int g = 0; g < c->shards; g++) {
        const struct member *server = &c->m[c->workers + g / threads];
        if (server->shards) r->shard[g] = server->shards[g % threads];
        r->shard[g].incarnation = server->incarnation;
    }
    for (int w = 0; w < r->workers; w++)
        if (c->m[w].present) r->worker[w] = (struct roster_worker){c->m[w].incarnation, c->m[w].life};
    (*at)->text = roster_text(r, &(*at)->bytes);
    roster_destroy(&r);
    return *at;
}

// A START that has not left is not lost, and one that has left is said again by the link's timer: members say HELLO more
// often, and in a large job their STARTs are many.
static void send_start(struct membership *c, int i, int peer, double now) {
    struct member *member = &c->m[i];
    struct start_text *t = start_text(c, i >= c->workers);
    double most_s = ps_repeat_most_s(c->o.config);
    bool leaves = atomic_load(&t->leaving[i]) > 0;
    if (member->starts &&
        (leaves || now - member->start_s < rto_backoff(RTO_FIRST_S, member->starts - 1, most_s)))
        return;
    struct ps_message m = {.header = {.kind = WIRE_START,
                                      .epoch = c->epochs ? c->epochs->epoch : 0,
                                      .manifest = c->start.seal,
                                      .flags = member->joins ? WIRE_JOINS : 0},
                           .payload = t->text,
                           .bytes = t->bytes,
                           .inflight = &t->leaving[i]};
    snprintf(m.header.text, sizeof m.header.text, "%s", c->start.checkpoint);
    member->start_s = now;
    member->starts++;
    c->o.port.send(c->o.port.ctx, peer, &m);
}

static void start_texts_free(struct start_text **list, bool all) {
    for (struct start_text *t; (t = *list);) {
        bool leaves = false;
        for (int i = 0; i < t->members; i++) leaves = leaves || atomic_load(&t->leaving[i]) > 0;
        if (leaves && !all) {
            list = &t->before;
            continue;
        }
        *list = t->before;
        free(t->text);
        free(t);
    }
}

// ---------------------------------------------------------------- HELLO

void membership_forget(struct membership *c, int i) {
    int server = i - c->workers, threads = c->o.map->threads;
    c->m[i].present = false;
    free(c->m[i].shards);
    c->m[i].shards = NULL;
    for (int t = 0; server >= 0 && server < c->servers && t < threads; t++)
        c->m[membership_shard(c, server * threads + t)].present = false;
}

int membership_hello(struct membership *c, const struct wire_header *h, const struct ps_frame *frame,
                     double now) {
    struct wire_header refused = {.kind = WIRE_REFUSED}, welcome = {.kind = WIRE_WELCOME};
    int i = membership_assign(c, h);
    struct hello hello = {.bytes = 0};
    if (frame) {
        const char *data = frame->data, *zero = memchr(data, 0, frame->bytes);
        size_t known = zero ? (size_t)(zero - data) + 1 : 0;
        hello = (struct hello){zero ? data : NULL, data + known, frame->bytes - known};
    }
    struct roster_shard *shards = NULL;
    check_hello(c, i, h, &hello, refused.text);
    if (!refused.text[0] && h->role == PS_SERVER &&
        !(shards = roster_read_shards(hello.endpoints, hello.bytes, c->o.map->threads)))
        core_fail(refused.text, "server %d came without the addresses it listens on", h->rank);
    if (refused.text[0]) {
        memcpy(c->refused, refused.text, sizeof c->refused);
        port_tell(&c->o.port, PEER_SENDER, &refused);
        return -1;
    }
    struct member *m = &c->m[i];
    if (shards) {
        free(m->shards);
        m->shards = shards;
    }
    if (h->role == PS_WORKER && hello.identity && !c->first_identity) {
        c->first_identity = xstrdup(hello.identity);
        member_name(c, i, c->first_name);
    }
    if (m->incarnation != h->incarnation && (c->started || !m->life)) m->life++;
    if (m->incarnation != h->incarnation) {
        m->joins = c->started && ps_elastic(c->o.config);
        m->let_in = false;
        m->starts = 0;
    }
    if (!m->present) c->came_s = now;
    m->present = true;
    m->incarnation = h->incarnation;
    m->pid = h->key;
    memcpy(m->host, h->host, sizeof m->host);
    m->seen_s = now;
    welcome.epoch = c->epochs ? c->epochs->epoch : 0;
    welcome.clock = c->o.clock;
    welcome.life = ps_elastic(c->o.config) && h->role == PS_WORKER ? m->life : 0;
    welcome.step = h->role == PS_WORKER ? i : h->role == PS_SERVER ? i - c->workers : h->rank;
    port_tell(&c->o.port, PEER_SENDER, &welcome);
    if (c->started && !m->joins && h->role != PS_SHARD) send_start(c, i, PEER_SENDER, now);
    return i;
}

void membership_lose(struct membership *c, int i) {
    membership_forget(c, i);
    c->m[i].gone = false;
    c->lost = -1;
    c->error[0] = 0;
}

void membership_let_in(struct membership *c, int i, bool asks, double now) {
    struct member *m = &c->m[i];
    const struct wire_header news = {.kind = WIRE_MEMBER, .key = i, .seq = m->incarnation, .life = m->life};
    for (int g = 0; g < c->shards && !m->let_in; g++) port_tell(&c->o.port, membership_shard(c, g), &news);
    m->let_in = true;
    if (asks) send_start(c, i, PEER_SENDER, now);
}

// ---------------------------------------------------------------- members
int membership_find(const struct membership *c, const struct wire_header *h) {
    int i = h->kind == WIRE_HELLO ? -1 : number_of(c, h);
    bool is = i >= 0 && c->m[i].present && h->job == c->o.job && h->incarnation == c->m[i].incarnation;
    return is ? i : -1;
}

int membership_heard(struct membership *c, const struct wire_header *h, double now) {
    int i = number_of(c, h);
    bool coming = h->kind == WIRE_PULSE && !h->job;
    if (coming && i >= 0 && !c->m[i].present) c->m[i].seen_s = now;
    if (coming && h->rank < 0) c->came_s = now;
    if ((i = membership_find(c, h)) < 0) return -1;
    c->m[i].seen_s = now;
    if (h->step > c->m[i].step) c->m[i].step = h->step;
    if (h->flags & WIRE_STOP) c->stop = true;
    return i;
}

void membership_heartbeat(struct membership *c, int i, const struct wire_header *h, double now) {
    struct wire_header answer = {
        .kind = WIRE_HEARTBEAT_ACK, .flags = membership_stop_flag(c), .ready_ns = h->ready_ns};
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
// The epoch begins without these workers, where they may come and go: a new one of a job that has begun before when half
// the deadline is over, the first one when it is. A worker that comes later joins.
static bool begins_without(const struct membership *c, double now) {
    int workers = 0;
    if (!ps_elastic(c->o.config) || !c->epochs) return false;
    bool first = !c->epochs->why[0];
    if (!first && now - c->o.start_s <= ps_lost_s(c->o.config)) return false;
    for (int i = 0; i < c->count; i++) {
        bool late = !first || membership_late(c, i, now);
        if (!c->m[i].present && (i == 0 || i >= c->workers || !late)) return false;
        workers += i < c->workers && c->m[i].present;
    }
    return workers >= c->o.config->recovery.elastic_min;
}

static int begin(struct membership *c, double now) {
    int rc = c->o.starts ? c->o.starts(c->o.starts_ctx, c->epochs, &c->start, c->error) : 0;
    if (rc != 0) return rc < 0 ? -1 : 0;
    c->started = true;
    for (int i = 0; i < c->count; i++) {
        c->m[i].seen_s = now;
        if (!c->m[i].present)
            c->m[i].life = 1;  // of the process that is missing: another one's is the next
        else if (i < c->workers + c->servers)
            send_start(c, i, i, now);
    }
    return 0;
}

// When the last came that the job waits for, or member i was heard on the way; a shard comes with its server.
static double last_heard(const struct membership *c, int i) {
    int shard = i - c->workers - c->servers;
    const struct member *m = &c->m[shard < 0 ? i : c->workers + shard / c->o.map->threads];
    double last_s = fmax(c->o.start_s, c->came_s);
    return m->present ? last_s : fmax(last_s, m->seen_s);
}

bool membership_late(const struct membership *c, int i, double now) {
    return !c->m[i].present && now - last_heard(c, i) > ps_deadline_s(c->o.config);
}

bool membership_slow(struct membership *c, double now, char text[WIRE_TEXT_MAX]) {
    struct member_names coming = {.count = 0};
    double since_s = fmax(c->o.start_s, c->came_s);
    if (c->started || c->said_coming || now - since_s <= ps_overdue_s(c->o.config)) return false;
    for (int i = 0; i < c->workers + c->servers; i++)
        if (!c->m[i].present && now - c->m[i].seen_s <= ps_lost_s(c->o.config))
            member_names_add(c, &coming, i);
    c->said_coming = coming.count > 0;
    snprintf(text, WIRE_TEXT_MAX,
             "waiting for %s to log in: %.0f s so far, alive; what they read may stand still", coming.text,
             now - since_s);
    return c->said_coming;
}

static int login_tick(struct membership *c, double now) {
    struct member_names late = {.count = 0};
    bool all = true;
    for (int i = 0; i < c->count; i++) {
        all = all && c->m[i].present;
        if (membership_late(c, i, now)) member_names_add(c, &late, i);
    }
    if (all || begins_without(c, now)) return begin(c, now);
    if (!late.count) return 0;
    // The reason that ended the epoch before is told, unless it was the same.
    const char *why = c->epochs && strncmp(c->epochs->why, "login:", 6) ? c->epochs->why : "",
               *refused = c->refused;
    char names[150], cause[120], said[110];
    c->late = true;
    return core_fail(
        c->error,
        "login: %s did not come within %lld ms (parameter_server.deadline_ms) of the last that came%s%s%s%s",
        text_words(names, sizeof names, late.text), (long long)c->o.config->ps.deadline_ms,
        *why ? "; before, " : "", text_words(cause, sizeof cause, why), *refused ? "; refused was: " : "",
        text_words(said, sizeof said, refused));
}

static int lost_tick(struct membership *c, int64_t job_step, double now) {
    for (int i = 0; i < c->workers + c->servers; i++) {
        struct member *m = &c->m[i];
        char name[48], process[80] = "", when[64];
        if (!m->present || m->gone || now - m->seen_s <= ps_lost_s(c->o.config)) continue;
        m->gone = true;  // no ABORT can reach it
        c->lost = i;
        // How far it is known to be. Where workers are alone there are no rounds, and servers name no steps: a server is as far
        // as the foremost worker.
        int64_t step = m->step > job_step ? m->step : job_step;
        for (int w = 0; w < c->workers && i >= c->workers; w++)
            if (c->m[w].step > step) step = c->m[w].step;
        snprintf(when, sizeof when, "at step %lld", (long long)step);
        if (m->pid > 0)
            snprintf(process, sizeof process, " (process %d on host %s)", m->pid, m->host[0] ? m->host : "?");
        return core_fail(c->error, "%s was lost %s: silent for %.1f s%s" PS_LOST_KEY, member_name(c, i, name),
                         c->closing    ? "while the job closed, after its last step"
                         : !c->started ? "during login"
                                       : when,
                         now - m->seen_s, process);
    }
    return 0;
}

// All workers are gone: servers are told, and say goodbye too.
static void closing_tick(struct membership *c) {
    struct wire_header h = {.kind = WIRE_SHUTDOWN};
    bool all = true;
    for (int w = 0; w < c->workers; w++)
        if (!c->m[w].gone && (c->m[w].present || !ps_elastic(c->o.config))) return;
    bool begins = !c->closing;
    c->closing = true;
    for (int i = c->workers; i < c->workers + c->servers; i++) {
        if (c->m[i].gone) continue;
        all = false;
        if (begins) port_tell(&c->o.port, i, &h);
    }
    c->done = all;
}

int membership_tick(struct membership *c, int64_t step, double now) {
    if (!c->started && login_tick(c, now) != 0) return -1;
    if (c->started) closing_tick(c);
    return c->done ? 0 : lost_tick(c, step, now);
}

static void members_free(struct membership *c) {
    for (int i = 0; i < c->count; i++) free(c->m[i].shards);
    free(c->m);
    free(c->first_identity);
    for (int k = 0; k < 2; k++) {
        if (!c->texts[k]) continue;
        c->texts[k]->before = c->former;
        c->former = c->texts[k];
    }
}

void membership_init(struct membership *c, const struct scheduler_options *o) {
    members_free(c);
    start_texts_free(&c->former, false);
    *c = (struct membership){.o = *o,
                             .workers = o->config->workers,
                             .servers = o->map->servers,
                             .shards = o->map->shards,
                             .start = o->start,
                             .lost = -1,
                             .former = c->former};
    c->count = c->workers + c->servers + c->shards;
    c->m = xcalloc((unsigned long)c->count, sizeof *c->m);
}

void membership_free(struct membership *c) {
    members_free(c);
    start_texts_free(&c->former, true);
}
