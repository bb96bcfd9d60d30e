#include "ps/scheduler/scheduler_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/timing.h"
#include "shared/core/error.h"
#include "shared/core/text.h"

#define PARTING_MOST_S 1.0  // for members to hear why the job has ended
#define ANY            -1

struct scheduler_core {
    struct scheduler_options o;
    struct epochs epochs;
    struct membership members;
    bool *fell;  // (members + 1) that died since the last START; the last: a member did not come
    // (members) Whose death has been counted before its launcher tells of it, as it was lost by silence: its process, or ANY; 0: none.
    int *given_up;
    struct rounds *rounds;
    char news[WIRE_TEXT_MAX];
    char error[WIRE_TEXT_MAX];
    bool parting;  // once it is set, since:
    double parting_s;
};

int scheduler_core_abort(struct scheduler_core *c, const char *why) {
    if (c->error[0]) return -1;
    struct wire_header h = {.kind = WIRE_ABORT};
    snprintf(c->error, sizeof c->error, "%s", why[0] ? why : "aborted without a reason");
    memcpy(h.text, c->error, sizeof h.text);
    membership_tell_all(&c->members, &h);
    return -1;
}

bool scheduler_core_part(struct scheduler_core *c, double now) {
    const struct membership *m = &c->members;
    bool all = true;
    if (!c->parting) c->parting_s = now;
    c->parting = true;
    for (int i = 0; i < m->workers + m->servers; i++) all = all && (!m->m[i].present || m->m[i].gone);
    return all || now - c->parting_s > PARTING_MOST_S;
}

// ---------------------------------------------------------------- epochs
// The halves of a fresh epoch: nobody is there.
static void login_opens(struct scheduler_core *c, double start_s) {
    struct scheduler_options o = c->o;
    o.job = c->epochs.job;
    o.start_s = start_s;
    membership_init(&c->members, &o);
    c->members.epochs = &c->epochs;
    c->rounds = rounds_create(&o, &c->members);
}

// All are there that the epoch waits for, and where they go on is known.
static void login_is_over(struct scheduler_core *c, double now) {
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

// From here on nothing is decided any more. A member that does not hear of it now is told when it speaks.
static void epoch_end(struct scheduler_core *c, const char *why) {
    struct membership *m = &c->members;
    for (int i = 0; i < m->count; i++)
        if (m->m[i].present) epochs_retire(&c->epochs, m->m[i].incarnation);
    // An epoch that has not begun has decided nothing: what is lost is still of the one before. Where pushes are applied
    // on arrival the scheduler decides no step, and worker 0's lines tell.
    if (m->started)
        c->epochs.reached = consistency_of(c->o.config).row->on_arrival ? -1 : rounds_step(c->rounds);
    epochs_next(&c->epochs, why);
    struct wire_header h = epochs_rollback(&c->epochs);
    for (int i = 0; i < m->count; i++)
        if (m->m[i].present) port_tell(&c->o.port, i, &h);
    rounds_destroy(&c->rounds);
}

// ---------------------------------------------------------------- workers that come and go
static bool is_elastic(const struct scheduler_core *c, int member) {
    return ps_elastic(c->o.config) && member >= 0 && member < c->members.workers && c->members.started;
}

// Whether the job goes on without this member, without a step that is done twice (ps/agree/step_set.h).
static bool bears(const struct scheduler_core *c, int member) {
    return is_elastic(c, member) && rounds_bears(c->rounds, member);
}

static int lose(struct scheduler_core *c, int worker, const char *cause, const char *why, double now) {
    const struct loss loss = {cause, why};
    snprintf(c->news, sizeof c->news, "%s: the job goes on without it", TEXT_WORDS(440, why));
    epochs_retire(&c->epochs, c->members.m[worker].incarnation);
    membership_lose(&c->members, worker);
    return rounds_lost(c->rounds, worker, &loss, now) ? scheduler_core_abort(c, rounds_error(c->rounds)) : 0;
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
    if (free || epochs_take(&c->epochs)) return true;
    if (c->o.epochs.restarts)
        core_fail(text, "%s; all restarts are used up (--restart %d)", TEXT_WORDS(440, why),
                  c->o.epochs.restarts);
    scheduler_core_abort(c, text[0] ? text : why);
    return false;
}

// A member has died (-1: one that nobody knows), as why says: the one place where that becomes an epoch, or the job's
// end. -1: its end.
static int death(struct scheduler_core *c, int member, const char *why, double now) {
    char text[WIRE_TEXT_MAX] = "", own[WIRE_TEXT_MAX - 64];
    if (c->error[0]) return -1;
    if (bears(c, member)) {
        snprintf(text, sizeof text, "%s", why);
        return lose(c, member, c->members.lost == member ? "silent" : "died", text, now);
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
        return scheduler_core_abort(c, text[0] ? text : why);
    }
    bool follows = !c->members.started && c->epochs.why[0];
    if (!takes_restart(c, member, why)) return -1;
    text_words(own, sizeof own, why);  // it may be in what ends now
    snprintf(text, sizeof text, "%s", follows ? c->epochs.why : why);
    epoch_end(c, text);
    login_opens(c, now);
    if (follows) snprintf(c->news, sizeof c->news, "%s: all log in anew, to epoch %u", own, c->epochs.epoch);
    if (!c->o.epochs.replaced)
        snprintf(c->news, sizeof c->news,
                 "%s: the job begins anew when all roles are there; start whichever has gone again, with the "
                 "command that it was started with, within %g s",
                 TEXT_WORDS(340, text), ps_deadline_s(c->o.config));
    return 0;
}

struct verdict scheduler_core_dead(struct scheduler_core *c, const struct death *d, double now) {
    const struct membership *m = &c->members;
    uint32_t epoch = c->epochs.epoch;
    struct verdict v = {.pid = d->pid};
    char name[48];
    int i = 0, all = m->workers + m->servers;
    memcpy(v.name, d->name, sizeof v.name);
    while (i < all && strcmp(member_name(m, i, name), d->name) != 0) i++;
    // It may have been lost by silence before it was killed, or not have logged in yet.
    bool counted = i < all && (c->given_up[i] == ANY || c->given_up[i] == d->pid);
    bool there = i < all && m->m[i].present && m->m[i].pid == d->pid;
    if (counted) c->given_up[i] = 0;
    if (counted) c->fell[i] = !there;  // else it has logged in anew meanwhile
    if (d->leaving && !c->error[0] && (there ? !bears(c, i) : !m->started))
        scheduler_core_abort(c, d->why);
    else if (there)
        death(c, i, d->why, now);
    else if (i < all && !m->started && !counted && !c->error[0])
        takes_restart(c, i, d->why);
    bool without = c->epochs.epoch == epoch && m->started;
    v.kind = c->error[0] ? VERDICT_ENDS : without ? VERDICT_WITHOUT : VERDICT_ANEW;
    v.again = i < all && !d->leaving &&
              (v.kind == VERDICT_ANEW || (v.kind == VERDICT_WITHOUT && (counted || epochs_take(&c->epochs))));
    v.left = c->o.epochs.restarts - c->epochs.used;
    // The launcher knows the dead process; the rest of the text says why that is the end.
    size_t known = strlen(d->why);
    const char *reason = c->error;
    if (!strncmp(reason, d->why, known)) reason += known + strspn(reason + known, "; ");
    snprintf(v.reason, sizeof v.reason, "%s", TEXT_WORDS(240, reason));
    return v;
}

// A HELLO for a rank that another process has. Returns whether the HELLO is to be heard now.
static bool replaces(struct scheduler_core *c, int i, const struct wire_header *h, double now) {
    struct member *m = &c->members.m[i];
    struct wire_header refused = {.kind = WIRE_REFUSED};
    char text[WIRE_TEXT_MAX] = "", name[48];
    member_name(&c->members, i, name);
    // Its server comes first, always: this one's has begun anew, or gone.
    if (h->role == PS_SHARD) return false;
    // A process that was given up for lost, and is back: another has its place.
    if (h->seq && h->seq != m->incarnation) {
        core_fail(refused.text,
                  "%s has been replaced while it was silent: this process is not needed any more", name);
        port_tell(&c->o.port, PEER_SENDER, &refused);
        return false;
    }
    // It said HELLO, began anew, and the repetition of that first HELLO has made it a member before the second one.
    if (h->seq && !c->members.started) {
        membership_forget(&c->members, i);
        return true;
    }
    core_fail(text, "%s was started again", name);
    return death(c, i, text, now) == 0;
}

// Whether a message is of this epoch, and to be heard.
static bool is_heard(struct scheduler_core *c, const struct wire_header *h, double now) {
    if (epochs_old(&c->epochs, h)) {
        struct wire_header rollback = epochs_rollback(&c->epochs);
        if (!c->error[0]) port_tell(&c->o.port, PEER_SENDER, &rollback);
        return false;
    }
    bool again = c->o.epochs.restarts || ps_elastic(c->o.config);
    if (h->kind != WIRE_HELLO && ps_elastic(c->o.config) && epochs_retired(&c->epochs, h->incarnation)) {
        struct wire_header refused = {.kind = WIRE_REFUSED};
        snprintf(refused.text, sizeof refused.text,
                 "the job has gone on without this worker, which was silent for too long: start it again to "
                 "have it back");
        port_tell(&c->o.port, PEER_SENDER, &refused);
        return false;
    }
    if (h->kind != WIRE_HELLO || !again || c->error[0] || h->manifest != c->o.manifest.hash) return true;
    if (h->seq) epochs_former(&c->epochs, h->seq);
    int i = membership_assign(&c->members, h);
    bool taken = i >= 0 && c->members.m[i].present && c->members.m[i].incarnation != h->incarnation;
    return !taken || replaces(c, i, h, now);
}

// ---------------------------------------------------------------- messages
static void dispatch(struct scheduler_core *c, int i, const struct wire_header *h, double now) {
    int shard = i - membership_shard(&c->members, 0), rc = 0;
    bool worker = i < c->members.workers;
    char name[48];
    if (h->kind == WIRE_HEARTBEAT) membership_heartbeat(&c->members, i, h, now);
    if (h->kind == WIRE_JOIN && worker) rounds_join(c->rounds, i);
    if (h->kind == WIRE_GOODBYE) membership_goodbye(&c->members, i);
    if (h->kind == WIRE_REPORT && worker) rc = rounds_report(c->rounds, i, h, now);
    if (h->kind == WIRE_TAKE && worker) rounds_take(c->rounds, i, h);
    if (c->members.stop) rounds_stop(c->rounds);
    if (h->kind == WIRE_GATHER && worker) rc = rounds_gather(c->rounds, i, h, now);
    if (h->kind == WIRE_ARRIVED && shard >= 0) rc = rounds_arrived(c->rounds, shard, h, now);
    if (h->kind == WIRE_SHARD_SUM && shard >= 0) rc = rounds_sum(c->rounds, shard, h, now);
    if (h->kind == WIRE_ABORT) {
        char text[WIRE_TEXT_MAX] = "";
        bool has = worker && rounds_has(c->rounds, i);
        // A worker that was started again has not come so far, or the others can do without it once more.
        bool alone = is_elastic(c, i) && (!has || (c->members.m[i].life > 1 && bears(c, i)));
        core_fail(text, "%s: %s", member_name(&c->members, i, name), TEXT_WORDS(440, h->text));
        if (h->flags & WIRE_LOST && has)
            death(c, -1, text, now);  // it may lack a peer that has died, which this side has not noticed
        else if (alone)
            lose(c, i, "left", text, now);
        else
            scheduler_core_abort(c, text);
    }
    if (rc != 0) scheduler_core_abort(c, rounds_error(c->rounds));
}

int scheduler_core_knows(const struct scheduler_core *c, const struct wire_header *h) {
    return membership_find(&c->members, h);
}

int scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, struct ps_frame *frame,
                           double now) {
    bool hello = h->kind == WIRE_HELLO;
    if (!is_heard(c, h, now)) {
        ps_frame_release(frame);
        return -1;
    }
    int i = hello ? membership_hello(&c->members, h, frame, now) : membership_heard(&c->members, h, now);
    // A worker that has come to the running job is heard: the shards learn of it as soon as it may come to them. Pulses come
    // from another socket than answers go to.
    if (i >= 0 && i < c->members.workers && c->members.m[i].joins && rounds_lets_in(c->rounds, i))
        membership_let_in(&c->members, i, hello || h->kind == WIRE_HEARTBEAT, now);
    if (i >= 0 && !hello && !c->error[0]) dispatch(c, i, h, now);
    if (i >= 0 && c->error[0] && h->kind == WIRE_GOODBYE) membership_goodbye(&c->members, i);
    ps_frame_release(frame);
    return i;
}

int scheduler_core_tick(struct scheduler_core *c, double now) {
    const struct membership *m = &c->members;
    if (c->error[0]) return -1;
    bool started = m->started;
    int rc = membership_tick(&c->members, rounds_step(c->rounds), now);
    if (m->started && !started) login_is_over(c, now);
    if (rc == 0 && m->started && rounds_tick(c->rounds, now) != 0)
        return scheduler_core_abort(c, rounds_error(c->rounds));
    if (rc == 0) return 0;
    char name[48];
    if (m->late && c->o.epochs.replaced) {
        // The launcher ends the members that did not come, and starts them again.
        for (int i = 0; i < m->workers + m->servers; i++) {
            if (!membership_late(m, i, now)) continue;
            c->given_up[i] = ANY;
            c->o.epochs.lost(c->o.epochs.ctx, 0, member_name(m, i, name));
        }
        return death(c, -1, m->error, now);
    }
    if (m->lost < 0) return scheduler_core_abort(c, m->error);
    if (c->o.epochs.replaced && !bears(c, m->lost)) c->given_up[m->lost] = m->m[m->lost].pid;
    if (c->o.epochs.lost) c->o.epochs.lost(c->o.epochs.ctx, m->m[m->lost].pid, member_name(m, m->lost, name));
    return death(c, m->lost, m->error, now);
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
int scheduler_core_members(const struct scheduler_core *c) { return c->members.count; }

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
    epochs_init(&c->epochs, &o->epochs, o->job);
    login_opens(c, o->start_s);
    c->fell = xcalloc((unsigned long)c->members.count + 1, sizeof *c->fell);
    c->given_up = xcalloc((unsigned long)c->members.count, sizeof *c->given_up);
    return c;
}

void scheduler_core_destroy(struct scheduler_core **c) {
    if (!*c) return;
    rounds_destroy(&(*c)->rounds);
    membership_free(&(*c)->members);
    epochs_free(&(*c)->epochs);
    free((*c)->fell);
    free((*c)->given_up);
    free(*c);
    *c = NULL;
}
