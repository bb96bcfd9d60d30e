#include "ps/scheduler/membership.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/state/identity.h"

#define START "the start: "  // what a failure to come begins with

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

// ---------------------------------------------------------------- where the epoch goes on
// Where all shards listen; and for servers which process has which rank: their shards learn it from them. What has changed
// since then is told by WIRE_MEMBER, and a life that is older than that counts no more.
static struct roster *roster_of(const struct membership *c, int workers) {
    int threads = c->o.map->threads;
    struct roster *r = roster_create(c->shards, workers);
    for (int g = 0; g < c->shards; g++) {
        const struct member *server = &c->m[c->workers + g / threads];
        r->shard[g] = server->shards[g % threads];
        r->shard[g].incarnation = server->incarnation;
    }
    for (int w = 0; w < workers; w++)
        if (c->m[w].present) r->worker[w] = (struct roster_worker){c->m[w].incarnation, c->m[w].life};
    return r;
}

static struct meeting_start start_of(const struct membership *c, int workers, uint32_t life) {
    struct meeting_start s = {
        .seal = c->start.seal, .life = ps_elastic(c->o.config) ? life : 0, .roster = roster_of(c, workers)};
    memcpy(s.checkpoint, c->start.checkpoint, sizeof s.checkpoint);
    return s;
}

void membership_let_in(struct membership *c, int w) {
    struct member *m = &c->m[w];
    const struct wire_header news = {.kind = WIRE_MEMBER, .key = w, .seq = m->incarnation, .life = m->life};
    struct meeting_start s = start_of(c, c->workers, m->life);
    for (int g = 0; g < c->shards; g++) port_tell(&c->o.port, membership_shard(c, g), &news);
    c->o.meeting.joins(c->o.meeting.ctx, w, m->incarnation, &s);
    roster_destroy(&s.roster);
    m->let_in = true;
}

// ---------------------------------------------------------------- what the book says
void membership_forget(struct membership *c, int i, double now) {
    struct member *m = &c->m[i];
    m->here = m->old = m->present = m->gone = false;
    m->seen_s = now;
    free(m->shards);
    m->shards = NULL;
}

void membership_came(struct membership *c, const struct member_news *n) {
    struct member *m = &c->m[n->member];
    m->here = true;
    m->old = false;
    m->incarnation = n->life;
    m->pid = n->pid;
    memcpy(m->host, n->host, sizeof m->host);
    m->host[sizeof m->host - 1] = 0;
}

// Writes how member i is of another run than the scheduler, or than the worker that came first: a scheduler knows nothing
// of data and devices.
static void check_manifest(const struct membership *c, int i, const struct meeting_ready *r,
                           char why[WIRE_TEXT_MAX]) {
    const char *own = c->o.manifest.identity, *its = r->identity;
    bool differs = r->manifest != c->o.manifest.hash;
    char *text = NULL, name[48];
    member_name(c, i, name);
    if (differs && !its) {
        core_fail(
            why,
            "%s does not say of which run it is, as another version of starring: install one version for all",
            name);
        return;
    }
    if (differs) text = identity_texts_disagreement(name, its, "the scheduler", own);
    if (!text && i < c->workers && its && c->first_identity)
        text = identity_texts_disagreement(name, its, c->first_name, c->first_identity);
    if (text)
        core_fail(why, "%s", text);
    else if (differs)
        core_fail(why, "%s is of another run, and does not say in what", name);
    free(text);
}

void membership_ready(struct membership *c, int i, const struct meeting_ready *r, double now) {
    struct member *m = &c->m[i];
    char why[WIRE_TEXT_MAX] = "", name[48];
    struct roster_shard *shards = NULL;
    if (m->present || r->epoch != c->epochs->epoch) return;
    check_manifest(c, i, r, why);
    if (!why[0] && i >= c->workers &&
        !(shards = roster_read_shards(r->endpoints, strlen(r->endpoints), c->o.map->threads)))
        core_fail(why, "%s came without the addresses it listens on", member_name(c, i, name));
    if (why[0]) {
        membership_refused(c, why);
        c->o.meeting.gives_up(c->o.meeting.ctx, i, m->incarnation, why);
        membership_forget(c, i, now);
        return;
    }
    m->shards = shards;
    if (i < c->workers && r->identity && !c->first_identity) {
        c->first_identity = xstrdup(r->identity);
        member_name(c, i, c->first_name);
    }
    if (c->started || !m->life) m->life++;
    m->joins = c->started;
    m->let_in = false;
    m->present = true;
    c->came_s = now;
}

void membership_left(struct membership *c, int i, double now) {
    struct member *m = &c->m[i];
    if (!m->present) membership_forget(c, i, now);
    m->gone = m->present;
    m->here = false;
}

void membership_refused(struct membership *c, const char *why) {
    snprintf(c->refused, sizeof c->refused, "%s", why);
}

// It says how far the member is known to be. Where workers are alone there are no rounds, and servers name no steps: a server is
// as far as the foremost worker.
void membership_lost_words(const struct membership *c, const struct member_news *n, int64_t step,
                           char text[WIRE_TEXT_MAX]) {
    const struct member *m = &c->m[n->member];
    char name[48], process[100] = "", when[64], how[48] = "its connection has closed";
    bool silent = !strcmp(n->word, "silent");
    if (m->step > step) step = m->step;
    for (int w = 0; w < c->workers && n->member >= c->workers; w++)
        if (c->m[w].step > step) step = c->m[w].step;
    snprintf(when, sizeof when, "at step %lld", (long long)step);
    if (silent) snprintf(how, sizeof how, "silent for %.1f s", n->silent_s);
    if (m->pid > 0)
        snprintf(process, sizeof process, " (process %d on host %s)", m->pid, m->host[0] ? m->host : "?");
    text[0] = 0;
    core_fail(text, "%s was lost %s: %s%s%s", member_name(c, n->member, name),
              c->closing    ? "while the job closed, after its last step"
              : !c->started ? "before the start"
                            : when,
              how, process, silent ? PS_LOST_KEY : "");
}

// ---------------------------------------------------------------- messages
// The number of the member or shard that calls itself so, or -1.
static int number_of(const struct membership *c, const struct wire_header *h) {
    int threads = c->o.map->threads;
    bool worker = h->role == PS_WORKER;
    if (h->rank < 0 || h->rank >= (worker ? c->workers : c->servers)) return -1;
    if (worker) return h->rank;
    if (h->role == PS_SERVER) return c->workers + h->rank;
    if (h->role != PS_SHARD || h->thread >= threads) return -1;
    return membership_shard(c, h->rank * threads + h->thread);
}

// A shard is of its server's process.
static struct member *process_of(const struct membership *c, int i) {
    int shard = i - c->workers - c->servers;
    return &c->m[shard < 0 ? i : c->workers + shard / c->o.map->threads];
}

int membership_find(const struct membership *c, const struct wire_header *h) {
    int i = number_of(c, h);
    const struct member *m = i < 0 ? NULL : process_of(c, i);
    return m && m->present && h->job == c->o.job && h->incarnation == m->incarnation ? i : -1;
}

int membership_heard(struct membership *c, const struct wire_header *h) {
    int i = membership_find(c, h);
    if (i < 0) return -1;
    struct member *m = process_of(c, i);
    if (h->step > m->step) m->step = h->step;
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

// ---------------------------------------------------------------- time
// The epoch begins without these workers, where they may come and go: a new one of a job that has begun before when half
// the deadline is over, the first one when it is. A worker that comes later joins.
static bool begins_without(const struct membership *c, double now) {
    int workers = 0;
    if (!ps_elastic(c->o.config)) return false;
    bool first = !c->epochs->why[0];
    if (!first && now - c->o.start_s <= ps_lost_s(c->o.config)) return false;
    for (int i = 0; i < c->workers + c->servers; i++) {
        bool late = !first || membership_late(c, i, now);
        if (!c->m[i].present && (i == 0 || i >= c->workers || !late)) return false;
        workers += i < c->workers && c->m[i].present;
    }
    return workers >= c->o.config->recovery.elastic_min;
}

static int begin(struct membership *c) {
    int rc = c->o.starts ? c->o.starts(c->o.starts_ctx, c->epochs, &c->start, c->error) : 0;
    if (rc != 0) return rc < 0 ? -1 : 0;
    c->started = true;
    for (int i = 0; i < c->workers; i++)
        if (!c->m[i].present) c->m[i].life = 1;  // of the process that is missing: another one's is the next
    for (enum ps_role role = PS_WORKER; role <= PS_SERVER; role++) {
        // Of workers that come and go each sees whether it is one of those that the epoch begins with.
        bool all = role == PS_SERVER || ps_elastic(c->o.config);
        struct meeting_start s = start_of(c, all ? c->workers : 0, 1);
        c->o.meeting.starts(c->o.meeting.ctx, role, &s);
        roster_destroy(&s.roster);
    }
    return 0;
}

// Whether it is on its way to this epoch, as the book has a process of it that has not been in an earlier one.
static bool is_coming(const struct member *m) { return !m->present && m->here && !m->old; }

bool membership_late(const struct membership *c, int i, double now) {
    const struct member *m = &c->m[i];
    double last_s = fmax(fmax(c->o.start_s, c->came_s), m->seen_s);
    return !m->present && !is_coming(m) && now - last_s > ps_deadline_s(c->o.config);
}

bool membership_slow(struct membership *c, double now, char text[WIRE_TEXT_MAX]) {
    struct member_names coming = {.count = 0};
    double since_s = fmax(c->o.start_s, c->came_s);
    if (c->started || c->said_coming || now - since_s <= ps_overdue_s(c->o.config)) return false;
    for (int i = 0; i < c->workers + c->servers; i++)
        if (is_coming(&c->m[i])) member_names_add(c, &coming, i);
    c->said_coming = coming.count > 0;
    snprintf(text, WIRE_TEXT_MAX,
             "waiting for %s to be ready: %.0f s so far, alive; what they read may stand still", coming.text,
             now - since_s);
    return c->said_coming;
}

static int start_tick(struct membership *c, double now) {
    struct member_names late = {.count = 0};
    bool all = true;
    for (int i = 0; i < c->workers + c->servers; i++) {
        all = all && c->m[i].present;
        if (membership_late(c, i, now)) member_names_add(c, &late, i);
    }
    if (all || begins_without(c, now)) return begin(c);
    if (!late.count) return 0;
    // The reason that ended the epoch before is told, unless it was the same.
    const char *why = strncmp(c->epochs->why, START, strlen(START)) ? c->epochs->why : "",
               *refused = c->refused;
    char names[150], cause[120], said[110];
    c->late = true;
    return core_fail(
        c->error,
        START "%s did not come within %lld ms (parameter_server.deadline_ms) of the last that came%s%s%s%s",
        text_words(names, sizeof names, late.text), (long long)c->o.config->ps.deadline_ms,
        *why ? "; before, " : "", text_words(cause, sizeof cause, why), *refused ? "; refused was: " : "",
        text_words(said, sizeof said, refused));
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

int membership_tick(struct membership *c, double now) {
    if (!c->started && start_tick(c, now) != 0) return -1;
    if (c->started) closing_tick(c);
    return 0;
}

void membership_free(struct membership *c) {
    for (int i = 0; i < c->workers + c->servers; i++) free(c->m[i].shards);
    free(c->m);
    free(c->first_identity);
}

void membership_init(struct membership *c, const struct scheduler_options *o) {
    struct membership next = {.o = *o,
                              .workers = o->config->workers,
                              .servers = o->map->servers,
                              .shards = o->map->shards,
                              .start = o->start};
    int members = next.workers + next.servers;
    next.count = members + next.shards;
    next.m = xcalloc((unsigned long)members, sizeof *next.m);
    for (int i = 0; i < members && c->m; i++) {
        const struct member *m = &c->m[i];
        next.m[i] = (struct member){.here = m->here,
                                    .old = m->old || m->present,
                                    .incarnation = m->incarnation,
                                    .pid = m->pid,
                                    .dead = m->dead};
        memcpy(next.m[i].host, m->host, sizeof m->host);
    }
    membership_free(c);
    *c = next;
}
