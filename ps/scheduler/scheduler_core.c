#include "ps/scheduler/scheduler_core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "ps/scheduler/rounds.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/state/identity.h"

#define ANY   -1
#define START "the start: "  // the prefix of the reason when members did not arrive

struct scheduler_core {
    struct scheduler_options o;
    struct epochs epochs;
    struct membership members;
    bool *died;  // (members + 1) that died since the last start; the last entry: a member did not arrive
    // (members) A death by silence is counted before the launcher reports it: here the pid, or ANY; 0: none.
    int *given_up;
    struct rounds *rounds;
    char news[WIRE_TEXT_MAX];
    char error[WIRE_TEXT_MAX];
};

int scheduler_core_abort(struct scheduler_core *c, const char *why) {
    if (c->error[0]) return -1;
    snprintf(c->error, sizeof c->error, "%s", why[0] ? why : "aborted without a reason");
    c->o.publish.job_ended(c->o.publish.ctx, c->error);
    return -1;
}

// ---------------------------------------------------------------- members
struct member_names {
    char text[256];  // "worker 1, server 0"
    size_t at;
    int count;
};

static void member_names_add(const struct membership *c, struct member_names *x, int i) {
    char name[48];
    x->count++;
    if (x->at + 52 < sizeof x->text)
        x->at += (size_t)snprintf(x->text + x->at, sizeof x->text - x->at, "%s%s", x->at ? ", " : "",
                                  member_name(c, i, name));
}

// Frees the rank of a member whose process has left or died.
static void free_rank(struct scheduler_core *c, int i, double now) {
    struct member *m = &c->members.m[i];
    m->here = m->old = m->present = m->gone = false;
    m->seen_s = now;
    free(m->shards);
    m->shards = NULL;
}

static void members_free(struct membership *m) {
    for (int i = 0; i < m->workers + m->servers; i++) free(m->m[i].shards);
    free(m->m);
    free(m->first_identity);
}

// Opens a new epoch.
static void epoch_open(struct scheduler_core *c, double start_s) {
    // 1. The members: none is present. Those that were present must enter again (old).
    const struct membership *before = &c->members;
    struct membership next = {.workers = c->o.config->workers,
                              .servers = c->o.map->servers,
                              .shards = c->o.map->shards,
                              .threads = c->o.map->threads,
                              .start_s = start_s,
                              .start = c->o.start};
    int members = next.workers + next.servers;
    next.count = members + next.shards;
    next.m = xcalloc((unsigned long)members, sizeof *next.m);
    for (int i = 0; i < members && before->m; i++) {
        const struct member *m = &before->m[i];
        next.m[i] = (struct member){.here = m->here,
                                    .old = m->old || m->present,
                                    .incarnation = m->incarnation,
                                    .pid = m->pid,
                                    .dead = m->dead};
        memcpy(next.m[i].host, m->host, sizeof m->host);
    }
    members_free(&c->members);
    c->members = next;
    // 2. The rounds. Then the epoch is published.
    c->rounds = rounds_create(&c->o, &c->members);
    c->o.publish.epoch_opened(c->o.publish.ctx, &c->epochs);
}

// ---------------------------------------------------------------- what an epoch resumes from
// The addresses of all shards and, for servers, the process of each worker rank: their shards learn these from it.
// WIRE_MEMBER carries later changes; an older process number than the latest no longer counts.
static struct notice_start start_of(const struct scheduler_core *c, int workers, uint32_t process_no) {
    int threads = c->o.map->threads;
    struct roster *r = roster_create(c->members.shards, workers);
    for (int g = 0; g < c->members.shards; g++) {
        const struct member *server = &c->members.m[c->members.workers + g / threads];
        r->shard[g] = server->shards[g % threads];
        r->shard[g].incarnation = server->incarnation;
    }
    for (int w = 0; w < workers; w++)
        if (c->members.m[w].present)
            r->worker[w] = (struct roster_worker){c->members.m[w].incarnation, c->members.m[w].process_no};
    return (struct notice_start){c->members.start, ps_elastic(c->o.config) ? process_no : 0, r};
}

// A worker has entered since the job started, and may connect to the servers: informs it and them, once.
static void admit(struct scheduler_core *c, int w) {
    struct member *m = &c->members.m[w];
    const struct wire_header news = {
        .kind = WIRE_MEMBER, .key = w, .seq = m->incarnation, .process_no = m->process_no};
    struct notice_start s = start_of(c, c->members.workers, m->process_no);
    for (int g = 0; g < c->members.shards; g++)
        port_tell(&c->o.port, membership_shard(&c->members, g), &news);
    c->o.publish.joined(c->o.publish.ctx, w, m->incarnation, &s);
    roster_destroy(&s.roster);
    m->admitted = true;
}

// ---------------------------------------------------------------- epochs
// All ranks that the epoch waits for are present, and what they resume from is known.
static void epoch_begin(struct scheduler_core *c, double now) {
    struct scheduler_options o = c->o;
    memset(c->died, 0, (size_t)(c->members.count + 1) * sizeof *c->died);
    memset(c->given_up, 0, (size_t)c->members.count * sizeof *c->given_up);
    if (o.start.step != c->members.start.step) {
        o.start = c->members.start;
        rounds_destroy(&c->rounds);
        c->rounds = rounds_create(&o, &c->members);
    }
    // The job continues without the workers that did not arrive (begins_without).
    struct member_names missing = {.count = 0};
    bool first = !c->epochs.why[0];
    double waited_s = first ? ps_deadline_s(c->o.config) : ps_lost_s(c->o.config);
    for (int w = 0; w < c->members.workers; w++) {
        char why[WIRE_TEXT_MAX] = "", name[48];
        if (c->members.m[w].present) continue;
        core_fail(why, "%s did not join %s within %g s", member_name(&c->members, w, name),
                  first ? "the job" : "the new epoch", waited_s);
        rounds_lost(c->rounds, w, &(struct loss){"silent", why}, now);
        member_names_add(&c->members, &missing, w);
    }
    if (missing.count)
        snprintf(c->news, sizeof c->news,
                 "epoch %u begins without %s, which did not join within %g s, %sdeadline_ms: a worker "
                 "that starts later still joins",
                 c->epochs.epoch, missing.text, waited_s, first ? "" : "half of ");
}

// Ends the epoch, after which it decides nothing, and opens the next one.
static void epoch_end(struct scheduler_core *c, const char *why, double now) {
    uint32_t ended = c->epochs.epoch;
    // An epoch that has not begun has decided nothing: `reached` remains that of the epoch before. Where pushes are
    // applied on arrival the scheduler decides no step, and worker 0's lines show how far the job was.
    if (c->members.started)
        c->epochs.reached = consistency_of(c->o.config).row->on_arrival ? -1 : rounds_step(c->rounds);
    c->epochs.epoch++;
    c->epochs.job = c->o.host.job(c->o.host.ctx);
    snprintf(c->epochs.why, sizeof c->epochs.why, "%s", why);
    rounds_destroy(&c->rounds);
    epoch_open(c, now);
    c->o.publish.epoch_over(c->o.publish.ctx, ended, why);
}

// ---------------------------------------------------------------- workers that join and leave
static bool is_elastic(const struct scheduler_core *c, int member) {
    return ps_elastic(c->o.config) && member >= 0 && member < c->members.workers && c->members.started;
}

// Whether the job can continue without this member, and without repeating a step (ps/agree/step_set.h).
static bool can_lose(const struct scheduler_core *c, int member) {
    return is_elastic(c, member) && rounds_can_lose(c->rounds, member);
}

static void go_on_without(struct scheduler_core *c, int worker, const char *cause, const char *why,
                          double now) {
    const struct loss loss = {cause, why};
    snprintf(c->news, sizeof c->news, "%s: the job continues without it", TEXT_SHORTEN(440, why));
    c->o.publish.end_process(c->o.publish.ctx, worker, c->members.m[worker].incarnation,
                             "the job continues without this worker, which was silent for too long: start it "
                             "again, and it joins");
    free_rank(c, worker, now);
    if (rounds_lost(c->rounds, worker, &loss, now) != 0) scheduler_core_abort(c, rounds_error(c->rounds));
}

// ---------------------------------------------------------------- deaths
// A member's death takes no restart if the members are still entering an epoch that follows a death, or if another
// member has died since the last start, unless it dies repeatedly. Returns false if no restart is left: the job has
// then ended.
static bool takes_restart(struct scheduler_core *c, int member, const char *why) {
    char text[WIRE_TEXT_MAX] = "";
    bool *died = &c->died[member < 0 ? c->members.count : member];
    bool follows = c->epochs.why[0] != 0;
    for (int i = 0; i <= c->members.count; i++) follows = follows || c->died[i];
    bool free = !c->members.started && follows && !*died;
    *died = true;
    if (free || restarts_take(&c->epochs.restarts)) return true;
    if (c->o.epochs.restarts)
        core_fail(text, "%s; " RESTARTS_USED_UP, TEXT_SHORTEN(440, why), c->o.epochs.restarts);
    scheduler_core_abort(c, text[0] ? text : why);
    return false;
}

// A member has died (-1: an unknown one) for the reason `why`. Only this function decides whether a new epoch
// follows or the job ends. cause: as in struct loss.
static void death(struct scheduler_core *c, int member, const char *cause, const char *why, double now) {
    char text[WIRE_TEXT_MAX] = "", own[WIRE_TEXT_MAX - 64];
    if (c->error[0]) return;
    if (can_lose(c, member)) {
        go_on_without(c, member, cause, why, now);
        return;
    }
    if (!c->o.epochs.restarts) {
        if (is_elastic(c, member) && member == 0)
            core_fail(text, "%s; worker 0 has the metrics and evaluations of the job: --elastic needs it",
                      TEXT_SHORTEN(400, why));
        else if (is_elastic(c, member))
            core_fail(text, "%s; fewer than %d workers are left, which --elastic %s needs",
                      TEXT_SHORTEN(400, why), c->o.config->recovery.elastic_min,
                      c->o.config->recovery.elastic);
        scheduler_core_abort(c, text[0] ? text : why);
        return;
    }
    bool follows = !c->members.started && c->epochs.why[0];
    if (!takes_restart(c, member, why)) return;
    text_shorten(own, sizeof own, why);  // epoch_end may overwrite `why`
    snprintf(text, sizeof text, "%s", follows ? c->epochs.why : why);
    if (member >= 0) free_rank(c, member, now);
    epoch_end(c, text, now);
    if (follows) snprintf(c->news, sizeof c->news, "%s: all roles enter epoch %u", own, c->epochs.epoch);
    if (!c->o.epochs.replaced)
        snprintf(
            c->news, sizeof c->news,
            "%s: the job restarts when all roles are present; start the missing role again, with the same "
            "command, within %g s",
            TEXT_SHORTEN(340, text), ps_deadline_s(c->o.config));
}

struct verdict scheduler_core_dead(struct scheduler_core *c, const struct death *d, double now) {
    const struct membership *m = &c->members;
    uint32_t epoch = c->epochs.epoch;
    struct verdict v = {.pid = d->pid};
    char name[48];
    int i = 0, all = m->workers + m->servers;
    memcpy(v.name, d->name, sizeof v.name);
    while (i < all && strcmp(member_name(m, i, name), d->name) != 0) i++;
    // The process may have been given up as silent before it was killed, or may not have arrived yet.
    bool counted = i < all && (c->given_up[i] == ANY || c->given_up[i] == d->pid);
    bool there = i < all && m->m[i].present && m->m[i].pid == d->pid;
    if (counted) c->given_up[i] = 0;
    if (counted) c->died[i] = !there;  // else another process of the rank has entered since
    if (i < all) c->members.m[i].dead = d->pid;
    if (d->leaving && !c->error[0] && (there ? !can_lose(c, i) : !m->started))
        scheduler_core_abort(c, d->why);
    else if (there)
        death(c, i, "died", d->why, now);
    else if (i < all && !m->started && !counted && !c->error[0])
        takes_restart(c, i, d->why);
    if (i < all && m->m[i].here && m->m[i].pid == d->pid) free_rank(c, i, now);
    bool without = c->epochs.epoch == epoch && m->started;
    v.kind = c->error[0] ? VERDICT_ENDS : without ? VERDICT_WITHOUT : VERDICT_ANEW;
    v.again = i < all && !d->leaving &&
              (v.kind == VERDICT_ANEW ||
               (v.kind == VERDICT_WITHOUT && (counted || restarts_take(&c->epochs.restarts))));
    v.of = c->epochs.restarts.count;
    v.left = v.of - c->epochs.restarts.used;
    // The launcher has printed which process died, so the verdict has only the rest of the text: why that ends the job.
    size_t known = strlen(d->why);
    const char *reason = c->error;
    if (!strncmp(reason, d->why, known)) reason += known + strspn(reason + known, "; ");
    snprintf(v.reason, sizeof v.reason, "%s", TEXT_SHORTEN(240, reason));
    return v;
}

// ---------------------------------------------------------------- news of the registry
// Writes how member i's run differs from the scheduler's, or from that of the first worker: a scheduler knows nothing
// of data and devices.
static void check_manifest(const struct scheduler_core *c, int i, const struct notice_ready *r,
                           char why[WIRE_TEXT_MAX]) {
    const char *own = c->o.manifest.identity, *its = r->identity;
    bool differs = r->manifest != c->o.manifest.hash;
    char *text = NULL, name[48];
    member_name(&c->members, i, name);
    if (differs && !its) {
        core_fail(
            why,
            "%s does not name its run: it is another version of starring; install one version everywhere",
            name);
        return;
    }
    if (differs) text = identity_texts_disagreement(name, its, "the scheduler", own);
    if (!text && i < c->members.workers && its && c->members.first_identity)
        text = identity_texts_disagreement(name, its, c->members.first_name, c->members.first_identity);
    if (text)
        core_fail(why, "%s", text);
    else if (differs)
        core_fail(why, "%s is of another run, and does not name the difference", name);
    free(text);
}

static void on_ready(struct scheduler_core *c, int i, const struct notice_ready *r, double now) {
    struct member *m = &c->members.m[i];
    char why[WIRE_TEXT_MAX] = "", name[48];
    struct roster_shard *shards = NULL;
    if (m->present || r->epoch != c->epochs.epoch) return;
    check_manifest(c, i, r, why);
    if (!why[0] && i >= c->members.workers &&
        !(shards = roster_read_shards(r->endpoints, strlen(r->endpoints), c->o.map->threads)))
        core_fail(why, "%s joined without the addresses it listens on", member_name(&c->members, i, name));
    if (why[0]) {
        snprintf(c->members.refused, sizeof c->members.refused, "%s", why);
        c->o.publish.end_process(c->o.publish.ctx, i, m->incarnation, why);
        free_rank(c, i, now);
        return;
    }
    m->shards = shards;
    if (i < c->members.workers && r->identity && !c->members.first_identity) {
        c->members.first_identity = xstrdup(r->identity);
        member_name(&c->members, i, c->members.first_name);
    }
    if (c->members.started || !m->process_no) m->process_no++;
    m->joins = c->members.started;
    m->admitted = false;
    m->present = true;
    c->members.last_joined_s = now;
}

// Another process has taken the rank of one that was present.
static void on_replaced(struct scheduler_core *c, int i, double now) {
    char text[WIRE_TEXT_MAX] = "", name[48];
    core_fail(text, "%s was started again", member_name(&c->members, i, name));
    death(c, i, "died", text, now);
}

static void on_joined(struct scheduler_core *c, const struct member_news *n, double now) {
    struct member *m = &c->members.m[n->member];
    char why[WIRE_TEXT_MAX] = "", name[48];
    if (n->pid && n->pid == m->dead) return;  // this news is of a process that has died since
    if (m->present && !c->o.epochs.restarts && !ps_elastic(c->o.config)) {
        core_fail(why, "%s has joined already; every rank joins once",
                  member_name(&c->members, n->member, name));
        c->o.publish.end_process(c->o.publish.ctx, n->member, n->incarnation, why);
        return;
    }
    if (m->present) on_replaced(c, n->member, now);
    m = &c->members.m[n->member];  // `m` may belong to a new epoch now
    m->here = true;
    m->old = false;
    m->incarnation = n->incarnation;
    m->pid = n->pid;
    snprintf(m->host, sizeof m->host, "%.*s", (int)sizeof n->host, n->host);
}

static void on_failed(struct scheduler_core *c, int i, const struct notice_failed *f, double now) {
    char text[WIRE_TEXT_MAX] = "", name[48];
    bool worker = i < c->members.workers, has = worker && rounds_has_worker(c->rounds, i);
    if (!c->members.m[i].present || f->epoch != c->epochs.epoch) return;
    // Only this worker's process is started again: it has not joined yet, or the others can continue without it once
    // more.
    bool alone = is_elastic(c, i) && (!has || (c->members.m[i].process_no > 1 && can_lose(c, i)));
    core_fail(text, "%s: %s", member_name(&c->members, i, name), TEXT_SHORTEN(440, f->why));
    if (f->lost && has)
        death(c, -1, "died", text, now);  // the cause may be the death of a peer that is not noticed here yet
    else if (alone)
        go_on_without(c, i, "left", text, now);
    else
        scheduler_core_abort(c, text);
}

// Writes the loss with the latest known step of the member. With updates on arrival there are no rounds, and servers
// send no steps: a server's step is the foremost worker's.
static void write_loss(const struct scheduler_core *c, const struct member_news *n, int64_t step,
                       char text[WIRE_TEXT_MAX]) {
    const struct member *m = &c->members.m[n->member];
    char name[48], process[100] = "", when[64], how[48] = "its connection has closed";
    bool silent = !strcmp(n->word, "silent");
    if (m->step > step) step = m->step;
    for (int w = 0; w < c->members.workers && n->member >= c->members.workers; w++)
        if (c->members.m[w].step > step) step = c->members.m[w].step;
    snprintf(when, sizeof when, "at step %lld", (long long)step);
    if (silent) snprintf(how, sizeof how, "silent for %.1f s", n->silent_s);
    if (m->pid > 0)
        snprintf(process, sizeof process, " (process %d on host %s)", m->pid, m->host[0] ? m->host : "?");
    text[0] = 0;
    core_fail(text, "%s was lost %s: %s%s%s", member_name(&c->members, n->member, name),
              c->members.closing    ? "while the job closed, after its last step"
              : !c->members.started ? "before the start"
                                    : when,
              how, process, silent ? PS_LOST_KEY : "");
}

// If the member was not present nothing is lost: the wait for it continues.
static void on_lost(struct scheduler_core *c, const struct member_news *n, double now) {
    const struct membership *m = &c->members;
    int i = n->member;
    char why[WIRE_TEXT_MAX], name[48];
    if (!m->m[i].present) {
        free_rank(c, i, now);
    } else if (!strcmp(n->word, "replaced")) {
        on_replaced(c, i, now);
    } else {
        write_loss(c, n, rounds_step(c->rounds), why);
        if (c->o.epochs.replaced && !can_lose(c, i)) c->given_up[i] = m->m[i].pid;
        if (c->o.host.lost) c->o.host.lost(c->o.host.ctx, m->m[i].pid, member_name(m, i, name));
        death(c, i, strcmp(n->word, "silent") ? "died" : "silent", why, now);
    }
}

static void on_sent(struct scheduler_core *c, const struct member_news *n, double now) {
    struct notice_ready report;
    struct notice_failed failure;
    if (!strcmp(n->word, NOTICE_READY) && notice_ready_read(n->data, n->bytes, &report)) {
        on_ready(c, n->member, &report, now);
        free((char *)report.identity);
    }
    if (!strcmp(n->word, NOTICE_FAILED) && notice_failed_read(n->data, n->bytes, &failure))
        on_failed(c, n->member, &failure, now);
}

static void on_left(struct scheduler_core *c, int i, double now) {
    struct member *m = &c->members.m[i];
    if (!m->present) free_rank(c, i, now);
    m->gone = m->present;
    m->here = false;
}

void scheduler_core_on_news(struct scheduler_core *c, const struct member_news *n, double now) {
    bool known = n->member >= 0 && n->member < c->members.workers + c->members.servers;
    if (c->error[0]) return;
    if (n->kind == MEMBER_REFUSED) text_shorten(c->members.refused, sizeof c->members.refused, n->why);
    if (n->kind == MEMBER_JOINED && known) on_joined(c, n, now);
    // Messages of a process that has left or was lost do not count.
    if (!known || !c->members.m[n->member].here || c->members.m[n->member].incarnation != n->incarnation)
        return;
    if (n->kind == MEMBER_SENT) on_sent(c, n, now);
    if (n->kind == MEMBER_LEFT) on_left(c, n->member, now);
    if (n->kind == MEMBER_LOST) on_lost(c, n, now);
}

// ---------------------------------------------------------------- messages
// The number of the member or shard with the header's role and rank, or -1.
static int number_of(const struct scheduler_core *c, const struct wire_header *h) {
    int threads = c->o.map->threads;
    bool worker = h->role == PS_WORKER;
    if (h->rank < 0 || h->rank >= (worker ? c->members.workers : c->members.servers)) return -1;
    if (worker) return h->rank;
    if (h->role == PS_SERVER) return c->members.workers + h->rank;
    if (h->role != PS_SHARD || h->thread >= threads) return -1;
    return membership_shard(&c->members, h->rank * threads + h->thread);
}

// A shard belongs to its server's process.
static struct member *process_of(const struct scheduler_core *c, int i) {
    int shard = i - c->members.workers - c->members.servers;
    return &c->members.m[shard < 0 ? i : c->members.workers + shard / c->o.map->threads];
}

int scheduler_core_sender_of(const struct scheduler_core *c, const struct wire_header *h) {
    int i = number_of(c, h);
    const struct member *m = i < 0 ? NULL : process_of(c, i);
    return m && m->present && h->job == c->epochs.job && h->incarnation == m->incarnation ? i : -1;
}

static void heartbeat(struct scheduler_core *c, int i, const struct wire_header *h, double now) {
    struct wire_header answer = {
        .kind = WIRE_HEARTBEAT_ACK, .flags = membership_stop_flag(&c->members), .ready_ns = h->ready_ns};
    if (h->seq > c->members.m[i].progress) {
        c->members.m[i].progress = h->seq;
        c->members.m[i].progress_s = now;
    }
    port_tell(&c->o.port, i, &answer);
}

void scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, double now) {
    int i = scheduler_core_sender_of(c, h), shard = i - membership_shard(&c->members, 0), rc = 0;
    bool worker = i < c->members.workers;
    if (i < 0 || c->error[0]) return;
    struct member *m = process_of(c, i);
    if (h->step > m->step) m->step = h->step;
    if (h->flags & WIRE_STOP) c->members.stop = true;
    if (h->kind == WIRE_HEARTBEAT && shard < 0) heartbeat(c, i, h, now);
    if (h->kind == WIRE_JOIN && worker) rounds_join(c->rounds, i);
    if (h->kind == WIRE_REPORT && worker) rc = rounds_report(c->rounds, i, h, now);
    if (h->kind == WIRE_TAKE && worker) rounds_take(c->rounds, i, h);
    if (c->members.stop) rounds_stop(c->rounds);
    if (h->kind == WIRE_GATHER && worker) rc = rounds_gather(c->rounds, i, h, now);
    if (h->kind == WIRE_ARRIVED && shard >= 0) rc = rounds_arrived(c->rounds, shard, h, now);
    if (h->kind == WIRE_SHARD_SUM && shard >= 0) rc = rounds_sum(c->rounds, shard, h, now);
    if (rc != 0) scheduler_core_abort(c, rounds_error(c->rounds));
}

// ---------------------------------------------------------------- time
// Whether the member is about to join this epoch: the registry has a process of its rank that was in no earlier epoch.
static bool is_joining(const struct member *m) { return !m->present && m->here && !m->old; }

// Whether the member is absent, and no news of it has arrived for one deadline.
static bool is_late(const struct scheduler_core *c, int i, double now) {
    const struct member *m = &c->members.m[i];
    double last_s = fmax(fmax(c->members.start_s, c->members.last_joined_s), m->seen_s);
    return !m->present && !is_joining(m) && now - last_s > ps_deadline_s(c->o.config);
}

// Names, once, the members that have been reading their files for long.
static bool name_slow_members(struct scheduler_core *c, double now, char text[WIRE_TEXT_MAX]) {
    struct member_names joining = {.count = 0};
    double since_s = fmax(c->members.start_s, c->members.last_joined_s);
    if (c->members.started || c->members.slow_printed || now - since_s <= ps_overdue_s(c->o.config))
        return false;
    for (int i = 0; i < c->members.workers + c->members.servers; i++)
        if (is_joining(&c->members.m[i])) member_names_add(&c->members, &joining, i);
    c->members.slow_printed = joining.count > 0;
    snprintf(text, WIRE_TEXT_MAX,
             "waiting for %s to be ready: %.0f s so far, alive; the files that they read may be slow",
             joining.text, now - since_s);
    return c->members.slow_printed;
}

// Whether the epoch begins without the absent workers, where workers join and leave: a later epoch after half
// the deadline, the first one after the whole deadline. A worker that arrives later joins.
static bool begins_without(const struct scheduler_core *c, double now) {
    int workers = 0;
    if (!ps_elastic(c->o.config)) return false;
    bool first = !c->epochs.why[0];
    if (!first && now - c->members.start_s <= ps_lost_s(c->o.config)) return false;
    for (int i = 0; i < c->members.workers + c->members.servers; i++) {
        bool late = !first || is_late(c, i, now);
        if (!c->members.m[i].present && (i == 0 || i >= c->members.workers || !late)) return false;
        workers += i < c->members.workers && c->members.m[i].present;
    }
    return workers >= c->o.config->recovery.elastic_min;
}

static int begin(struct scheduler_core *c, double now) {
    struct membership *m = &c->members;
    char why[WIRE_TEXT_MAX] = "";
    int rc = c->o.host.starts ? c->o.host.starts(c->o.host.ctx, &c->epochs, &m->start, why) : 0;
    if (rc != 0) return rc < 0 ? scheduler_core_abort(c, why) : 0;
    m->started = true;
    for (int i = 0; i < m->workers; i++)
        if (!m->m[i].present)
            // The number of the missing process; the next process of the rank gets the next number.
            m->m[i].process_no = 1;
    for (enum ps_role role = PS_WORKER; role <= PS_SERVER; role++) {
        // Where workers join and leave, each checks whether the epoch begins with it.
        bool all = role == PS_SERVER || ps_elastic(c->o.config);
        struct notice_start s = start_of(c, all ? m->workers : 0, 1);
        c->o.publish.started(c->o.publish.ctx, role, &s);
        roster_destroy(&s.roster);
    }
    epoch_begin(c, now);
    return 0;
}

// Members did not arrive. If a launcher starts them, it kills those processes and starts them again.
static int on_missing(struct scheduler_core *c, const char *names, double now) {
    const struct membership *m = &c->members;
    // Adds the reason that ended the last epoch, unless it was the same.
    const char *before = strncmp(c->epochs.why, START, strlen(START)) ? c->epochs.why : "";
    char why[WIRE_TEXT_MAX] = "", late[150], cause[120], refused[110];
    core_fail(why,
              START
              "%s did not join within %lld ms (parameter_server.deadline_ms) of the last that joined%s%s%s%s",
              text_shorten(late, sizeof late, names), (long long)c->o.config->ps.deadline_ms,
              *before ? "; before, " : "", text_shorten(cause, sizeof cause, before),
              *m->refused ? "; refused: " : "", text_shorten(refused, sizeof refused, m->refused));
    if (!c->o.epochs.replaced) return scheduler_core_abort(c, why);
    for (int i = 0; i < m->workers + m->servers; i++) {
        char name[48];
        if (!is_late(c, i, now)) continue;
        c->given_up[i] = ANY;
        c->o.host.lost(c->o.host.ctx, 0, member_name(m, i, name));
    }
    death(c, -1, "died", why, now);
    return c->error[0] ? -1 : 0;
}

static int start_tick(struct scheduler_core *c, double now) {
    struct member_names late = {.count = 0};
    bool all = true;
    for (int i = 0; i < c->members.workers + c->members.servers; i++) {
        all = all && c->members.m[i].present;
        if (is_late(c, i, now)) member_names_add(&c->members, &late, i);
    }
    if (all || begins_without(c, now)) return begin(c, now);
    return late.count ? on_missing(c, late.text, now) : 0;
}

// All workers are gone: sends SHUTDOWN to the servers, and waits until they have left.
static void closing_tick(struct scheduler_core *c) {
    struct wire_header h = {.kind = WIRE_SHUTDOWN};
    bool all = true;
    for (int w = 0; w < c->members.workers; w++)
        if (!c->members.m[w].gone && (c->members.m[w].present || !ps_elastic(c->o.config))) return;
    bool begins = !c->members.closing;
    c->members.closing = true;
    for (int i = c->members.workers; i < c->members.workers + c->members.servers; i++) {
        if (c->members.m[i].gone) continue;
        all = false;
        if (begins) port_tell(&c->o.port, i, &h);
    }
    c->members.done = all;
}

int scheduler_core_tick(struct scheduler_core *c, double now) {
    const struct membership *m = &c->members;
    if (c->error[0] || (!m->started && start_tick(c, now) != 0)) return -1;
    if (!m->started) return 0;
    closing_tick(c);
    if (rounds_tick(c->rounds, now) != 0) return scheduler_core_abort(c, rounds_error(c->rounds));
    // Admits a worker to the running job as soon as it may connect to the shards.
    for (int w = 0; w < m->workers; w++)
        if (m->m[w].joins && m->m[w].present && !m->m[w].admitted && rounds_admits(c->rounds, w)) admit(c, w);
    return 0;
}

bool scheduler_core_in_grace(const struct scheduler_core *c) { return rounds_in_grace(c->rounds); }

bool scheduler_core_next_slow_line(struct scheduler_core *c, double now, char text[WIRE_TEXT_MAX]) {
    const struct membership *m = &c->members;
    if (m->closing || c->error[0]) return false;
    return m->started ? rounds_slow(c->rounds, now, text) : name_slow_members(c, now, text);
}

bool scheduler_core_next_news_line(struct scheduler_core *c, char text[WIRE_TEXT_MAX]) {
    bool any = c->news[0] != 0;
    memcpy(text, c->news, sizeof c->news);
    c->news[0] = 0;
    return any;
}
bool scheduler_core_done(const struct scheduler_core *c) { return c->members.done; }
const char *scheduler_core_error(const struct scheduler_core *c) { return c->error; }
const struct epochs *scheduler_core_epochs(const struct scheduler_core *c) { return &c->epochs; }

// Where each worker has its own pace, worker 0's steps are recorded.
int64_t scheduler_core_steps(const struct scheduler_core *c) {
    const struct membership *m = &c->members;
    int64_t steps = consistency_of(c->o.config).row->on_arrival ? m->m[0].step : rounds_step(c->rounds);
    return m->started && steps > m->start.step ? steps : -1;
}

bool scheduler_core_waits(const struct scheduler_core *c, int *workers, int *servers) {
    const struct membership *m = &c->members;
    *workers = *servers = 0;
    for (int i = 0; i < m->workers + m->servers; i++)
        if (!m->m[i].present) (*(i < m->workers ? workers : servers))++;
    return !m->started;
}

struct scheduler_core *scheduler_core_create(const struct scheduler_options *o) {
    struct scheduler_core *c = xcalloc(1, sizeof *c);
    c->o = *o;
    const struct epoch_options *e = &o->epochs;
    c->epochs = (struct epochs){.o = *e,
                                .epoch = e->first ? e->first : 1,
                                .job = o->job,
                                .restarts = {e->restarts, e->used},
                                .reached = -1};
    if (e->why) snprintf(c->epochs.why, sizeof c->epochs.why, "%s", e->why);
    epoch_open(c, o->start_s);
    c->died = xcalloc((unsigned long)c->members.count + 1, sizeof *c->died);
    c->given_up = xcalloc((unsigned long)c->members.count, sizeof *c->given_up);
    return c;
}

void scheduler_core_destroy(struct scheduler_core **c) {
    if (!*c) return;
    rounds_destroy(&(*c)->rounds);
    members_free(&(*c)->members);
    free((*c)->died);
    free((*c)->given_up);
    free(*c);
    *c = NULL;
}
