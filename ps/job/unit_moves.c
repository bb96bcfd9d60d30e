#include "ps/job/unit_moves.h"

#include <stdlib.h>

#include "ps/job/consistency.h"
#include "ps/job/push_code.h"
#include "ps/job/shard_map.h"
#include "shared/core/error.h"
#include "shared/predict/memory_limits.h"

struct unit_prefetch unit_residence(const struct config *c) {
    return (struct unit_prefetch){.all = !ps_by_units(c)};
}

int64_t unit_pushes(const struct config *c) { return ps_by_units(c) ? c->accumulation : 1; }

int64_t credit_of(const struct config *c, int64_t pushed) {
    struct memory_limit free = {0};
    if (c->ps.credit_bytes) return c->ps.credit_bytes;
    int64_t most = memory_limit_read("", &free) == 0 ? (int64_t)(free.free_bytes / 4) / c->workers : 0;
    if (most < CREDIT_LEAST) most = CREDIT_LEAST;
    if (pushed < CREDIT_LEAST) pushed = CREDIT_LEAST;
    return pushed < most ? pushed : most;
}

// ---------------------------------------------------------------- the tasks of a step
struct unit_tasks {
    const struct config *c;
    const struct layout *l;
    size_t *push_bytes;  // (units)
    int *pushed;         // (units) the unit's last push
    bool alone;          // each push is an update of its own
};

static void add_move(struct unit_tasks *x, struct step_tasks *t, enum task_kind kind, int u, int after) {
    struct step_task *s = step_tasks_add(t, kind, kind == TASK_PUSH ? ON_PUSH : ON_PULL);
    bool push = kind == TASK_PUSH;
    step_task_unit(s, u);
    s->pattern = PATTERN_SERVERS;
    s->bytes = push ? x->push_bytes[u] : (uint64_t)x->l->units[u].n_pad * dtype_size(x->c->dtype);
    *(push ? &s->moves.sent : &s->moves.received) = s->bytes;
    step_tasks_need(t, s, after);
    if (push) x->pushed[u] = t->count - 1;
}

// Acquires a unit with a slot of its own. Its weights are those that the last push asked for; its gradient buffer is
// free when the servers have that push.
static void acquire(void *ctx, struct step_tasks *t, int u, enum pass pass) {
    const struct unit_tasks *x = ctx;
    bool all_first = x->c->no_overlap && u == 0;  // the first unit waits for the weights of all units
    if (pass == PASS_FORWARD)
        step_tasks_wait_previous(t, TASK_PULL, all_first ? -1 : u);
    else if (!consistency_of(x->c).lead)
        step_tasks_wait_previous(t, TASK_PUSH, u);
}

// The pull is requested when compute no longer uses the slot.
static void start_pull(void *ctx, struct step_tasks *t, int u, int idle, bool again) {
    (void)idle;
    add_move(ctx, t, TASK_PULL, u, t->last[ON_COMPUTE]);
    if (!again) step_task_after_previous(&t->list[t->count - 1], TASK_PUSH, u);
}

static void start_frozen(void *ctx, struct step_tasks *t, int u, int idle, bool again) {
    const struct unit_tasks *x = ctx;
    (void)idle, (void)again;
    add_move(ctx, t, TASK_PULL, step_tasks_frozen(x->l, u), t->last[ON_COMPUTE]);
}

static int grad_ready(void *ctx, struct step_tasks *t, int u, bool last) {
    struct unit_tasks *x = ctx;
    // Whether gradients are pushed at the end of the step.
    bool later = x->c->no_overlap || (x->alone && commit_round(x->c));
    if (later || !(last || ps_by_units(x->c))) return -1;
    add_move(x, t, TASK_PUSH, u, t->last[ON_COMPUTE]);
    return t->count - 1;
}

// Adds the report of loss and norm to the scheduler, and its decision. With updates on arrival each worker decides by
// itself.
static void add_decision(struct unit_tasks *x, struct step_tasks *t) {
    const struct consistency_rule rule = consistency_of(x->c);
    struct step_task *s = step_tasks_add(t, TASK_DECIDE, x->alone || rule.lag == 0 ? ON_COMPUTE : ON_DECIDE);
    s->pattern = x->alone ? PATTERN_NONE : PATTERN_SCHEDULER;
    s->control = !x->alone;
    step_tasks_need(t, s, t->last[ON_COMPUTE]);
    if (!x->alone && commit_round(x->c)) step_tasks_need(t, s, t->last[ON_PUSH]);
}

static void end_step(void *ctx, struct step_tasks *t) {
    struct unit_tasks *x = ctx;
    const int n = x->l->count, backward = t->last[ON_COMPUTE];
    const bool commits = commit_round(x->c);
    if (x->alone && commits) {
        add_decision(x, t);
        for (int u = 0; u < n; u++) add_move(x, t, TASK_PUSH, u, t->last[ON_COMPUTE]);
    } else if (x->c->no_overlap) {
        for (int u = n - 1; u >= 0; u--) add_move(x, t, TASK_PUSH, u, backward);
    }
    if (!x->alone) add_decision(x, t);
    // Adds the answers to pushes. Without a decision, a key is answered when its last push has arrived.
    for (int i = 0; i < n && !ps_by_units(x->c); i++) {
        int u = commits ? i : n - 1 - i;
        add_move(x, t, TASK_PULL, u, x->pushed[u]);
        int decided = t->last[ON_DECIDE] >= 0 ? t->last[ON_DECIDE] : t->last[ON_COMPUTE];
        if (commits && !x->alone) step_tasks_need(t, &t->list[t->count - 1], decided);
    }
}

int unit_tasks(const struct config *c, const struct layout *l, struct step_tasks *t) {
    struct unit_tasks x = {.c = c,
                           .l = l,
                           .push_bytes = xcalloc((unsigned long)l->count, sizeof *x.push_bytes),
                           .pushed = xcalloc((unsigned long)l->count, sizeof *x.pushed),
                           .alone = consistency_of(c).row->on_arrival};
    const struct unit_prefetch slots = unit_residence(c);
    const struct step_hooks hooks = {.slots = ps_by_units(c) ? &slots : NULL,
                                     .ahead = true,
                                     .fetch = start_pull,
                                     .fetch_frozen = ps_frozen(c, l) ? start_frozen : NULL,
                                     .acquire = acquire,
                                     .grad_ready = grad_ready,
                                     .shared_grads = ps_by_units(c),
                                     .end = end_step};
    int rc = push_bytes_of_units(c, l, x.push_bytes);
    if (!rc) step_tasks_walk(t, l, &hooks, &x);
    free(x.push_bytes);
    free(x.pushed);
    return rc;
}

int unit_pulls(const struct config *c, const struct layout *l, int64_t *out) {
    struct step_tasks t = {.micro_batches = c->accumulation};
    int rc = unit_tasks(c, l, &t);
    step_tasks_count(&t, TASK_PULL, out);
    step_tasks_free(&t);
    return rc;
}

void unit_moves_local(struct wire_prediction *w, uint64_t own_sent, uint64_t own_received) {
    w->local_sent_per_step = own_sent;
    w->local_received_per_step = own_received;
    w->sent_per_step -= own_sent;
    w->received_per_step -= own_received;
}
