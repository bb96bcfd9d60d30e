#include "ps/scheduler/scheduler_core.h"

#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"

struct scheduler_core {
    struct membership members;
    struct rounds *rounds;
    char error[WIRE_TEXT_MAX];
};

int scheduler_core_abort(struct scheduler_core *c, const char *why) {
    struct wire_header h = {.kind = WIRE_ABORT};
    if (c->error[0]) return -1;
    snprintf(c->error, sizeof c->error, "%s", why[0] ? why : "aborted without a reason");
    snprintf(h.text, sizeof h.text, "%s", c->error);
    membership_tell_all(&c->members, &h);
    return -1;
}

static int member_aborts(struct scheduler_core *c, int i, const char *why) {
    char text[WIRE_TEXT_MAX] = "", name[48];
    core_fail(text, "%s: %.400s", member_name(&c->members, i, name), why);
    return scheduler_core_abort(c, text);
}

static void dispatch(struct scheduler_core *c, int i, const struct wire_header *h, double now) {
    int shard = i - membership_shard(&c->members, 0), rc = 0;
    bool worker = i < c->members.workers;
    if (h->kind == WIRE_HEARTBEAT) membership_heartbeat(&c->members, i, h, now);
    if (h->kind == WIRE_GOODBYE) membership_goodbye(&c->members, i);
    if (h->kind == WIRE_REPORT && worker) rc = rounds_report(c->rounds, i, h, now);
    if (h->kind == WIRE_GATHER && worker) rc = rounds_gather(c->rounds, i, h, now);
    if (h->kind == WIRE_SHARD_SUM && shard >= 0) rc = rounds_sum(c->rounds, shard, h, now);
    if (h->kind == WIRE_ABORT) member_aborts(c, i, h->text);
    if (rc != 0) scheduler_core_abort(c, rounds_error(c->rounds));
}

int scheduler_core_message(struct scheduler_core *c, const struct wire_header *h, struct ps_frame *frame,
                           double now) {
    bool hello = h->kind == WIRE_HELLO;
    int i = hello ? membership_hello(&c->members, h, frame, now) : membership_heard(&c->members, h, now);
    if (i >= 0 && !hello && !c->error[0]) dispatch(c, i, h, now);
    ps_frame_release(frame);
    return i;
}

int scheduler_core_tick(struct scheduler_core *c, double now) {
    const struct membership *m = &c->members;
    if (c->error[0]) return -1;
    if (membership_tick(&c->members, rounds_step(c->rounds), now) != 0)
        return scheduler_core_abort(c, m->error);
    return 0;
}

bool scheduler_core_slow(struct scheduler_core *c, double now, char text[ROUNDS_TEXT_MAX]) {
    const struct membership *m = &c->members;
    return m->started && !m->closing && !c->error[0] && rounds_slow(c->rounds, now, text);
}

bool scheduler_core_done(const struct scheduler_core *c) { return c->members.done; }
const char *scheduler_core_error(const struct scheduler_core *c) { return c->error; }
int scheduler_core_members(const struct scheduler_core *c) { return c->members.count; }

bool scheduler_core_waits(const struct scheduler_core *c, int *workers, int *servers) {
    const struct membership *m = &c->members;
    *workers = *servers = 0;
    for (int i = 0; i < m->workers + m->servers; i++)
        if (!m->m[i].present) (*(i < m->workers ? workers : servers))++;
    return !m->started;
}

struct scheduler_core *scheduler_core_create(const struct scheduler_options *o) {
    struct scheduler_core *c = xcalloc(1, sizeof *c);
    membership_init(&c->members, o);
    c->rounds = rounds_create(o, &c->members);
    return c;
}

void scheduler_core_destroy(struct scheduler_core **c) {
    if (!*c) return;
    rounds_destroy(&(*c)->rounds);
    membership_free(&(*c)->members);
    free(*c);
    *c = NULL;
}
