#include "ps/scheduler/scheduler_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "shared/core/error.h"
#include "shared/core/text.h"

#define ANY -1

struct scheduler_core {
    struct scheduler_options o;
    struct epochs epochs;
    struct membership members;
    bool *fell;  // (members + 1) that died since the last start; the last: a member did not come
    // (members) Whose death has been counted before its launcher tells of it, as it was lost by silence: its process, or ANY; 0: none.
    int *given_up;
    struct rounds *rounds;
    char news[WIRE_TEXT_MAX];
    char error[WIRE_TEXT_MAX];
};

int scheduler_core_abort(struct scheduler_core *c, const char *why) {
    if (c->error[0]) return -1;
    snprintf(c->error, sizeof c->error, "%s", why[0] ? why : "aborted without a reason");
    c->o.meeting.ends(c->o.meeting.ctx, c->error);
    return -1;
}

// ---------------------------------------------------------------- epochs
// The halves of a fresh epoch: nobody is present.
static void epoch_opens(struct scheduler_core *c, double start_s) {
    struct scheduler_options o = c->o;
    o.job = c->epochs.job;
    o.start_s = start_s;
    membership_init(&c->members, &o);
    c->members.epochs = &c->epochs;
    c->rounds = rounds_create(&o, &c->members);
    c->o.meeting.opens(c->o.meeting.ctx, &c->epochs);
}

// All are there that the epoch waits for, and where they go on is known.
static void epoch_begins(struct scheduler_core *c, double now) {
    struct scheduler_options o = c->members.o;
    memset(c->fell, 0, (size_t)(c->members.count + 1) * sizeof *c->fell);
    memset(c->given_up, 0, (size_t)c->members.count * sizeof *c->given_up);
    if (o.start.step != c->members.start.step) {
        o.start = c->members.start;
        rounds_destroy(&c->rounds);
        c->rounds = rounds_create(&o, &c->members);
    }
    // Of workers that have not come: the job goes on without them (membership.c).
    struct member_names missing = {.count = 0};
    bool first = !c->epochs.why[0];
    double waited_s = first ? ps_deadline_s(c->o.config) : ps_lost_s(c->o.config);
    for (int w = 0; w < c->members.workers; w++) {
        char why[WIRE_TEXT_MAX] = "", name[48];
        if (c->members.m[w].present) continue;
        core_fail(why, "%s did not come to %s within %g s", member_name(&c->members, w, name),
                  first ? "the job" : "the new epoch", waited_s);
        rounds_lost(c->rounds, w, &(struct loss){"silent", why}, now);
        member_names_add(&c->members, &missing, w);
    }
    if (missing.count)
        snprintf(c->news, sizeof c->news,
                 "epoch %u begins without %s, which did not come within %g s, %sdeadline_ms: whoever comes "
                 "later joins",
                 c->epochs.epoch, missing.text, waited_s, first ? "" : "half of ");
}

// Nothing is decided in it any more: the next one opens.
static void epoch_end(struct scheduler_core *c, const char *why, double now) {
    uint32_t ended = c->epochs.epoch;
    // An epoch that has not begun has decided nothing: what is lost is still of the one before. Where pushes are applied
    // on arrival the scheduler decides no step, and worker 0's lines tell.
    if (c->members.started)
        c->epochs.reached = consistency_of(c->o.config).row->on_arrival ? -1 : rounds_step(c->rounds);
    c->epochs.epoch++;
    c->epochs.job = c->o.epochs.job(c->o.epochs.ctx);
    snprintf(c->epochs.why, sizeof c->epochs.why, "%s", why);
    rounds_destroy(&c->rounds);
    epoch_opens(c, now);
    c->o.meeting.over(c->o.meeting.ctx, ended, why);
}

// ---------------------------------------------------------------- workers that come and go
static bool is_elastic(const struct scheduler_core *c, int member) {
    return ps_elastic(c->o.config) && member >= 0 && member < c->members.workers && c->members.started;
}

// Whether the job goes on without this member, without a step that is done twice (ps/agree/step_set.h).
static bool bears(const struct scheduler_core *c, int member) {
    return is_elastic(c, member) && rounds_bears(c->rounds, member);
}

static void lose(struct scheduler_core *c, int worker, const char *cause, const char *why, double now) {
    const struct loss loss = {cause, why};
    snprintf(c->news, sizeof c->news, "%s: the job goes on without it", TEXT_WORDS(440, why));
    c->o.meeting.gives_up(c->o.meeting.ctx, worker, c->members.m[worker].incarnation,
                          "the job has gone on without this worker, which was silent for too long: start it "
                          "again to have it back");
    membership_forget(&c->members, worker, now);
    if (rounds_lost(c->rounds, worker, &loss, now) != 0) scheduler_core_abort(c, rounds_error(c->rounds));
}

// ---------------------------------------------------------------- deaths
// A member that dies while all are coming to the epoch that a death has begun, or to the first one in which somebody has died,
// takes no restart of its own, unless it does so again and again. False: none is left, and the job has ended.
static bool takes_restart(struct scheduler_core *c, int member, const char *why) {
    char text[WIRE_TEXT_MAX] = "";
    bool *fell = &c->fell[member < 0 ? c->members.count : member];
    bool follows = c->epochs.why[0] != 0;
    for (int i = 0; i <= c->members.count; i++) follows = follows || c->fell[i];
    bool free = !c->members.started && follows && !*fell;
    *fell = true;
    if (free || restarts_take(&c->epochs.restarts)) return true;
    if (c->o.epochs.restarts)
        core_fail(text, "%s" RESTARTS_USED_UP, TEXT_WORDS(440, why), c->o.epochs.restarts);
    scheduler_core_abort(c, text[0] ? text : why);
    return false;
}

// A member has died (-1: one that nobody knows), as why says: the one place where that becomes an epoch, or the job's
// end. cause: as struct loss has it.
static void death(struct scheduler_core *c, int member, const char *cause, const char *why, double now) {
    char text[WIRE_TEXT_MAX] = "", own[WIRE_TEXT_MAX - 64];
    if (c->error[0]) return;
    if (bears(c, member)) {
        lose(c, member, cause, why, now);
        return;
    }
    if (!c->o.epochs.restarts) {
        if (is_elastic(c, member) && member == 0)
            core_fail(
                text,
                "%s; worker 0 has the metrics and evaluations of the job: --elastic cannot do without it",
                TEXT_WORDS(400, why));
        else if (is_elastic(c, member))
            core_fail(text, "%s; fewer than %d workers are left, which --elastic %s needs",
                      TEXT_WORDS(400, why), c->o.config->recovery.elastic_min, c->o.config->recovery.elastic);
        scheduler_core_abort(c, text[0] ? text : why);
        return;
    }
    bool follows = !c->members.started && c->epochs.why[0];
    if (!takes_restart(c, member, why)) return;
    text_words(own, sizeof own, why);  // it may be in what ends now
    snprintf(text, sizeof text, "%s", follows ? c->epochs.why : why);
    if (member >= 0) membership_forget(&c->members, member, now);
    epoch_end(c, text, now);
    if (follows) snprintf(c->news, sizeof c->news, "%s: all come anew, to epoch %u", own, c->epochs.epoch);
    if (!c->o.epochs.replaced)
        snprintf(c->news, sizeof c->news,
                 "%s: the job begins anew when all roles are there; start whichever has gone again, with the "
                 "command that it was started with, within %g s",
                 TEXT_WORDS(340, text), ps_deadline_s(c->o.config));
}

struct verdict scheduler_core_dead(struct scheduler_core *c, const struct death *d, double now) {
    const struct membership *m = &c->members;
    uint32_t epoch = c->epochs.epoch;
    struct verdict v = {.pid = d->pid};
    char name[48];
    int i = 0, all = m->workers + m->servers;
    memcpy(v.name, d->name, sizeof v.name);
    while (i < all && strcmp(member_name(m, i, name), d->name) != 0) i++;
    // It may have been lost by silence before it was killed, or not have come yet.
    bool counted = i < all && (c->given_up[i] == ANY || c->given_up[i] == d->pid);
    bool there = i < all && m->m[i].present && m->m[i].pid == d->pid;
    if (counted) c->given_up[i] = 0;
    if (counted) c->fell[i] = !there;  // else it has come anew meanwhile
    if (i < all) c->members.m[i].dead = d->pid;
    if (d->leaving && !c->error[0] && (there ? !bears(c, i) : !m->started))
        scheduler_core_abort(c, d->why);
    else if (there)
        death(c, i, "died", d->why, now);
    else if (i < all && !m->started && !counted && !c->error[0])
        takes_restart(c, i, d->why);
    if (i < all && m->m[i].here && m->m[i].pid == d->pid) membership_forget(&c->members, i, now);
    bool without = c->epochs.epoch == epoch && m->started;
    v.kind = c->error[0] ? VERDICT_ENDS : without ? VERDICT_WITHOUT : VERDICT_ANEW;
    v.again = i < all && !d->leaving &&
              (v.kind == VERDICT_ANEW ||
               (v.kind == VERDICT_WITHOUT && (counted || restarts_take(&c->epochs.restarts))));
    v.left = c->epochs.restarts.count - c->epochs.restarts.used;
    // The launcher knows the dead process; the rest of the text says why that is the end.
    size_t known = strlen(d->why);
    const char *reason = c->error;
    if (!strncmp(reason, d->why, known)) reason += known + strspn(reason + known, "; ");
    snprintf(v.reason, sizeof v.reason, "%s", TEXT_WORDS(240, reason));
    return v;
}

// ---------------------------------------------------------------- what the book says
// Another process has the place of one that was present.
static void replaced(struct scheduler_core *c, int i, double now) {
    char text[WIRE_TEXT_MAX] = "", name[48];
    core_fail(text, "%s was started again", member_name(&c->members, i, name));
    death(c, i, "died", text, now);
}

static void came(struct scheduler_core *c, const struct member_news *n, double now) {
    const struct member *m = &c->members.m[n->member];
    char why[WIRE_TEXT_MAX] = "", name[48];
    if (n->pid && n->pid == m->dead) return;  // it came before it died
    if (m->present && !c->o.epochs.restarts && !ps_elastic(c->o.config)) {
        core_fail(why, "%s is already here; every rank joins once",
                  member_name(&c->members, n->member, name));
        c->o.meeting.gives_up(c->o.meeting.ctx, n->member, n->life, why);
        return;
    }
    if (m->present) replaced(c, n->member, now);
    membership_came(&c->members, n);
}

static void failed(struct scheduler_core *c, int i, const struct meeting_failed *f, double now) {
    char text[WIRE_TEXT_MAX] = "", name[48];
    bool worker = i < c->members.workers, has = worker && rounds_has(c->rounds, i);
    if (!c->members.m[i].present || f->epoch != c->epochs.epoch) return;
    // A worker that was started again has not come so far, or the others can do without it once more.
    bool alone = is_elastic(c, i) && (!has || (c->members.m[i].life > 1 && bears(c, i)));
    core_fail(text, "%s: %s", member_name(&c->members, i, name), TEXT_WORDS(440, f->why));
    if (f->lost && has)
        death(c, -1, "died", text, now);  // it may lack a peer that has died, which this side has not noticed
    else if (alone)
        lose(c, i, "left", text, now);
    else
        scheduler_core_abort(c, text);
}

// Of a member that was not present nothing is lost: it is waited for.
static void lost(struct scheduler_core *c, const struct member_news *n, double now) {
    struct membership *m = &c->members;
    int i = n->member;
    char why[WIRE_TEXT_MAX], name[48];
    if (!m->m[i].present) {
        membership_forget(m, i, now);
    } else if (!strcmp(n->word, "replaced")) {
        replaced(c, i, now);
    } else {
        membership_lost_words(m, n, rounds_step(c->rounds), why);
        if (c->o.epochs.replaced && !bears(c, i)) c->given_up[i] = m->m[i].pid;
        if (c->o.epochs.lost) c->o.epochs.lost(c->o.epochs.ctx, m->m[i].pid, member_name(m, i, name));
        death(c, i, strcmp(n->word, "silent") ? "died" : "silent", why, now);
    }
}

static void said(struct scheduler_core *c, const struct member_news *n, double now) {
    struct meeting_ready ready;
    struct meeting_failed fails;
    if (!strcmp(n->word, MEETING_READY) && meeting_ready_read(n->data, n->bytes, &ready)) {
        membership_ready(&c->members, n->member, &ready, now);
        free((char *)ready.identity);
    }
    if (!strcmp(n->word, MEETING_FAILED) && meeting_failed_read(n->data, n->bytes, &fails))
        failed(c, n->member, &fails, now);
}

void scheduler_core_hears(struct scheduler_core *c, const struct member_news *n, double now) {
    bool known = n->member >= 0 && n->member < c->members.workers + c->members.servers;
    if (c->error[0]) return;
    if (n->kind == MEMBER_REFUSED) membership_refused(&c->members, n->why);
    if (n->kind == MEMBER_CAME && known) came(c, n, now);
    if (!known || !membership_is(&c->members.m[n->member], n)) return;
    if (n->kind == MEMBER_SAID) said(c, n, now);
    if (n->kind == MEMBER_LEFT) membership_left(&c->members, n->member, now);
    if (n->kind == MEMBER_LOST) lost(c, n, now);
}

// ---------------------------------------------------------------- messages
int scheduler_core_knows(const struct scheduler_core *c, const struct wire_header *h) {
    return membership_find(&c->members, h);
}

void scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, double now) {
    int i = membership_heard(&c->members, h), shard = i - membership_shard(&c->members, 0), rc = 0;
    bool worker = i < c->members.workers;
    if (i < 0 || c->error[0]) return;
    if (h->kind == WIRE_HEARTBEAT && shard < 0) membership_heartbeat(&c->members, i, h, now);
    if (h->kind == WIRE_JOIN && worker) rounds_join(c->rounds, i);
    if (h->kind == WIRE_REPORT && worker) rc = rounds_report(c->rounds, i, h, now);
    if (h->kind == WIRE_TAKE && worker) rounds_take(c->rounds, i, h);
    if (c->members.stop) rounds_stop(c->rounds);
    if (h->kind == WIRE_GATHER && worker) rc = rounds_gather(c->rounds, i, h, now);
    if (h->kind == WIRE_ARRIVED && shard >= 0) rc = rounds_arrived(c->rounds, shard, h, now);
    if (h->kind == WIRE_SHARD_SUM && shard >= 0) rc = rounds_sum(c->rounds, shard, h, now);
    if (rc != 0) scheduler_core_abort(c, rounds_error(c->rounds));
}

int scheduler_core_tick(struct scheduler_core *c, double now) {
    const struct membership *m = &c->members;
    if (c->error[0]) return -1;
    bool started = m->started;
    int rc = membership_tick(&c->members, now);
    if (m->started && !started) epoch_begins(c, now);
    if (rc == 0 && m->started && rounds_tick(c->rounds, now) != 0)
        return scheduler_core_abort(c, rounds_error(c->rounds));
    // A worker has come to the running job: it and the shards hear of it as soon as it may come to them.
    for (int w = 0; w < m->workers && m->started; w++)
        if (m->m[w].joins && m->m[w].present && !m->m[w].let_in && rounds_lets_in(c->rounds, w))
            membership_let_in(&c->members, w);
    if (rc == 0) return 0;
    if (!m->late || !c->o.epochs.replaced) return scheduler_core_abort(c, m->error);
    // The launcher ends the members that did not come, and starts them again.
    for (int i = 0; i < m->workers + m->servers; i++) {
        char name[48];
        if (!membership_late(m, i, now)) continue;
        c->given_up[i] = ANY;
        c->o.epochs.lost(c->o.epochs.ctx, 0, member_name(m, i, name));
    }
    death(c, -1, "died", m->error, now);
    return c->error[0] ? -1 : 0;
}

bool scheduler_core_hurry(const struct scheduler_core *c) { return rounds_hurry(c->rounds); }

bool scheduler_core_slow(struct scheduler_core *c, double now, char text[WIRE_TEXT_MAX]) {
    struct membership *m = &c->members;
    if (m->closing || c->error[0]) return false;
    return m->started ? rounds_slow(c->rounds, now, text) : membership_slow(m, now, text);
}

bool scheduler_core_news(struct scheduler_core *c, char text[WIRE_TEXT_MAX]) {
    bool any = c->news[0] != 0;
    memcpy(text, c->news, sizeof c->news);
    c->news[0] = 0;
    return any;
}
bool scheduler_core_done(const struct scheduler_core *c) { return c->members.done; }
const char *scheduler_core_error(const struct scheduler_core *c) { return c->error; }
const struct epochs *scheduler_core_epochs(const struct scheduler_core *c) { return &c->epochs; }

// Where each goes at its own pace, it is worker 0's that are written down.
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
    epoch_opens(c, o->start_s);
    c->fell = xcalloc((unsigned long)c->members.count + 1, sizeof *c->fell);
    c->given_up = xcalloc((unsigned long)c->members.count, sizeof *c->given_up);
    return c;
}

void scheduler_core_destroy(struct scheduler_core **c) {
    if (!*c) return;
    rounds_destroy(&(*c)->rounds);
    membership_free(&(*c)->members);
    free((*c)->fell);
    free((*c)->given_up);
    free(*c);
    *c = NULL;
}
