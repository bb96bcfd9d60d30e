#include "ps/worker/resident_units.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/model/grad_slots.h"
#include "shared/model/unit_schedule.h"

// The next pull of a unit.
struct pull_task {
    struct resident *r;
    int unit;
    struct pull_info pull;
};

struct weight_slot {
    int unit;      // the unit pulled last
    bool held;     // between acquire and release or grad_ready
    bool awaited;  // it has landed; else it is in transfer
};

struct grad_buffer {
    int unit, shape;  // the last unit that used it, and the shape whose gaps are zero; -1: none
    bool held;        // between acquire and grad_ready
};

struct resident {
    struct resident_options o;
    struct unit_schedule schedule;
    struct weight_slot *slots;  // (unit_schedule_count)
    struct grad_buffer grads[GRAD_SLOTS];
    struct pull_task *tasks;  // (units)
    int64_t *pulls, *pushes;  // (units) so far
    int *shape;               // (units) grad_shape
};

static const struct layout *layout_of(const struct resident *r) { return r->o.t->layout; }
static struct weight_slot *slot_of(struct resident *r, int u) {
    return &r->slots[unit_schedule_slot(&r->schedule, u)];
}

// comm_wait that the timeline records: the host is blocked on the transfer id (0: on none).
static int await(struct resident *r, const struct comm_wait *wait, uint64_t id, const char *late) {
    int64_t begin = now_ns();
    int rc = comm_wait(r->o.comm, wait, late);
    timeline_blocked(r->o.t->timeline, id, begin, now_ns());
    return rc;
}

static int await_pushes(struct resident *r, int u, int64_t step) {
    const struct comm_wait wait = {worker_core_has_freed, u, step, r->pushes[u]};
    return await(r, &wait, 0, "a gradient has not been taken");
}

// ---------------------------------------------------------------- weights
static int ask(void *arg) {
    const struct pull_task *task = arg;
    timeline_own_ready(task->pull.ids.in, task->pull.ids.weights, now_ns());
    struct worker_core *core = comm_lock(task->r->o.comm);
    worker_core_pull_unit(core, task->unit, &task->pull, now_seconds());
    comm_unlock_wake(task->r->o.comm);
    return 0;
}

// Pulls u into its slot, which must be free and whose last pull must have landed.
static void start_pull(struct resident *r, int64_t step, int u, enum pass pass) {
    struct topology *t = r->o.t;
    struct weight_slot *s = slot_of(r, u);
    struct pull_task *task = &r->tasks[u];
    struct transfer x = {.unit = u,
                         .bytes = (uint64_t)layout_of(r)->units[u].n_pad * dtype_size(t->dtype),
                         .kind = TRANSFER_WEIGHTS};
    *task = (struct pull_task){r, u, {.step = step, .aside = pass == PASS_EVAL, .ids.in = t->timeline}};
    if (!task->pull.aside) task->pull.ids.weights = timeline_ask(t->timeline, &x);
    r->pulls[u]++;
    s->unit = u;
    s->awaited = false;
    unit_schedule_gathered(&r->schedule, u, pass);
    stream_host(staging_behind(r->o.staging, t->compute), "pull", ask, task);
}

void resident_prefetch(struct resident *r, int64_t step, int u, enum pass pass) {
    for (int k = 0, v; (v = unit_schedule_ahead(&r->schedule, u, pass, k)) >= 0; k++) {
        const struct weight_slot *s = slot_of(r, v);
        if (!unit_schedule_there(&r->schedule, v, pass) && !s->held && s->awaited)
            start_pull(r, step, v, pass);
    }
}

static int land(struct resident *r, struct weight_slot *s) {
    if (s->awaited) return 0;
    s->awaited = true;
    const struct pull_info *pull = &r->tasks[s->unit].pull;
    const struct comm_wait wait = {worker_core_has_landed, s->unit, pull->step, r->pulls[s->unit]};
    return await(r, &wait, pull->ids.weights, "new weights have not landed");
}

static int acquire_grad(struct resident *r, int64_t step, int u, struct unit_view *view) {
    struct topology *t = r->o.t;
    struct grad_buffer *g = &r->grads[grad_slot(layout_of(r), u)];
    view->grad = r->o.buffers->grads[u];
    if (g->held && g->unit == u) return 0;
    if (g->held)
        return fail(
            "worker %d, step %lld: the gradient of unit %s is asked for while unit %s still holds its slot",
            t->rank, (long long)step, layout_of(r)->units[u].name, layout_of(r)->units[g->unit].name);
    if (g->unit >= 0 && await_pushes(r, g->unit, step) != 0) return -1;
    if (g->shape != r->shape[u]) grad_zero_gaps(t->compute, &layout_of(r)->units[u], view->grad, t->dtype);
    *g = (struct grad_buffer){.unit = u, .shape = r->shape[u], .held = true};
    return 0;
}

int resident_acquire(struct resident *r, int64_t step, int u, enum pass pass, struct unit_view *view) {
    struct weight_slot *s = slot_of(r, u);
    *view = (struct unit_view){.weights = r->o.buffers->weights[u]};
    if (!unit_schedule_there(&r->schedule, u, pass)) {
        if (s->held)
            return fail("worker %d, step %lld: unit %s is asked for while unit %s still holds its slot",
                        r->o.t->rank, (long long)step, layout_of(r)->units[u].name,
                        layout_of(r)->units[s->unit].name);
        if (land(r, s) != 0) return -1;
        start_pull(r, step, u, pass);
    }
    if (land(r, s) != 0) return -1;
    staging_await_weights(r->o.staging, u, r->tasks[u].pull.ids);
    s->held = true;
    return pass == PASS_BACKWARD ? acquire_grad(r, step, u, view) : 0;
}

void resident_release(struct resident *r, int u) { slot_of(r, u)->held = false; }

// ---------------------------------------------------------------- gradients
void resident_pushed(struct resident *r, int u) {
    resident_release(r, u);
    r->grads[grad_slot(layout_of(r), u)].held = false;
    r->pushes[u]++;
}

void resident_forget(struct resident *r) { unit_schedule_forget(&r->schedule); }

int resident_quiet(struct resident *r, int64_t step) {
    for (int u = 0; u < layout_of(r)->count; u++)
        if (await_pushes(r, u, step) != 0) return -1;
    return 0;
}

// ---------------------------------------------------------------- create and destroy
struct resident *resident_create(const struct resident_options *o) {
    struct resident *r = xcalloc(1, sizeof *r);
    const struct layout *l = o->t->layout;
    unsigned long units = (unsigned long)l->count;
    r->o = *o;
    unit_schedule_open(&r->schedule, l, &(struct unit_prefetch){0});
    int slots = unit_schedule_count(&r->schedule);
    r->slots = xcalloc((unsigned long)slots, sizeof *r->slots);
    for (int i = 0; i < slots; i++) r->slots[i] = (struct weight_slot){.unit = -1, .awaited = true};
    for (int i = 0; i < GRAD_SLOTS; i++) r->grads[i] = (struct grad_buffer){.unit = -1, .shape = -1};
    r->tasks = xcalloc(units, sizeof *r->tasks);
    r->pulls = xcalloc(units, sizeof *r->pulls);
    r->pushes = xcalloc(units, sizeof *r->pushes);
    r->shape = xcalloc(units, sizeof *r->shape);
    for (int u = 0; u < l->count; u++) r->shape[u] = grad_shape(l, u);
    return r;
}

void resident_destroy(struct resident **at) {
    struct resident *r = *at;
    if (!r) return;
    unit_schedule_close(&r->schedule);
    free(r->slots);
    free(r->tasks);
    free(r->pulls);
    free(r->pushes);
    free(r->shape);
    free(r);
    *at = NULL;
}
