#include "ps/worker/unit_slots.h"

#include <stdlib.h>

#include "ps/job/unit_moves.h"
#include "shared/core/error.h"
#include "shared/model/grad_buffers.h"
#include "shared/model/unit_schedule.h"

// A unit's push on its way from compute to the core, until its buffer is free.
struct push_task {
    struct unit_slots *slots;
    int unit;
    struct push_info push;
    int64_t count;  // pushes so far
};

// The last pull of a unit.
struct pull_task {
    struct unit_slots *slots;
    int unit;
    struct pull_info pull;
    int64_t count;  // pulls so far
};

struct weight_slot {
    int unit;      // the unit whose weights it has or gets; -1: none yet
    bool held;     // between acquire and release or push
    bool awaited;  // its last pull has landed
};

struct grad_buffer {
    int unit, shape;  // the last unit that used it, and the shape whose gaps are zero; -1: none
    bool held;        // between acquire and push
};

struct unit_slots {
    struct unit_slots_options o;
    struct unit_schedule schedule;
    struct weight_slot *weights;   // (unit_schedule_count)
    struct grad_buffer *grads;     // (1 + lead, units): buffer of a unit, or of units that share it
    struct push_task *pushes;      // (1 + lead, units)
    struct pull_task *pulls;       // (units)
    struct transfer_ids *arrival;  // (units) the transfer that brings the unit's weights
    int *shape;                    // (units) grad_shape
};

bool unit_slots_all_resident(const struct unit_slots *s) { return s->schedule.prefetch.all; }

static const struct layout *layout_of(const struct unit_slots *s) { return s->o.layout; }
static bool is_frozen(const struct unit_slots *s) { return s->o.first > 0; }
static struct weight_slot *slot_of(struct unit_slots *s, int u) {
    return &s->weights[unit_schedule_slot(&s->schedule, u)];
}
static struct grad_buffer *buffer_of(struct unit_slots *s, int u, int64_t step) {
    int of = unit_slots_all_resident(s) ? u : grad_slot(layout_of(s), u);
    return &s->grads[worker_buffer(s->o.buffers, of, step)];
}

// ---------------------------------------------------------------- weights
static int pull_now(void *arg) {
    const struct pull_task *task = arg;
    timeline_own_ready(task->pull.ids.in, task->pull.ids.weights, now_ns());
    struct worker_core *core = comm_lock(task->slots->o.comm);
    worker_core_pull_unit(core, task->slots->o.first + task->unit, &task->pull, now_seconds());
    comm_unlock_wake(task->slots->o.comm);
    return 0;
}

// Asks the timeline for the id of u's weights.
static uint64_t weights_id(struct unit_slots *s, int u) {
    struct topology *t = s->o.t;
    struct transfer x = {.unit = s->o.first + u,
                         .bytes = (uint64_t)layout_of(s)->units[u].n_pad * dtype_size(t->dtype),
                         .kind = TRANSFER_WEIGHTS};
    return timeline_ask(t->timeline, &x);
}

// Pulls u into its slot, which must be free and whose last pull must have landed.
static void start_pull(struct unit_slots *s, int64_t step, int u, enum pass pass) {
    struct topology *t = s->o.t;
    struct weight_slot *slot = slot_of(s, u);
    struct pull_task *task = &s->pulls[u];
    task->pull = (struct pull_info){.step = step, .as_control = pass == PASS_EVAL, .ids.in = t->timeline};
    if (!task->pull.as_control) task->pull.ids.weights = weights_id(s, u);
    s->arrival[u] = task->pull.ids;
    task->count++;
    slot->unit = u;
    slot->awaited = false;
    unit_schedule_gathered(&s->schedule, u, pass);
    stream_host(staging_behind(s->o.staging, t->compute), "pull", pull_now, task);
}

void unit_slots_prefetch(struct unit_slots *s, int64_t step, int u, enum pass pass) {
    for (int k = 0, v; (v = unit_schedule_ahead(&s->schedule, u, pass, k)) >= 0; k++) {
        const struct weight_slot *slot = slot_of(s, v);
        if (!unit_schedule_holds(&s->schedule, v, pass) && !slot->held && slot->awaited)
            start_pull(s, step, v, pass);
    }
}

static int land(struct unit_slots *s, int u, int64_t step) {
    const struct comm_wait wait = {worker_core_has_landed, s->o.first + u, step, s->pulls[u].count};
    slot_of(s, u)->awaited = true;
    return comm_wait_timed(s->o.comm, &wait, s->o.t->timeline, s->arrival[u].weights,
                           "new weights have not landed");
}

int unit_slots_await_weights(struct unit_slots *s, int u, int64_t step) {
    if (!unit_slots_all_resident(s)) return 0;
    if (land(s, u, step) != 0) return -1;
    staging_await_weights(s->o.staging, u, s->arrival[u]);
    return 0;
}

int unit_slots_await_buffer(struct unit_slots *s, int u, int64_t step) {
    const struct push_task *task = &s->pushes[worker_buffer(s->o.buffers, u, step)];
    const struct comm_wait wait = {worker_core_has_freed, u, step, task->count};
    return comm_wait_timed(s->o.comm, &wait, s->o.t->timeline, task->push.ids.gradients,
                           "the last gradient has not been taken");
}

static int acquire_grad(struct unit_slots *s, int64_t step, int u, struct unit_view *view) {
    struct topology *t = s->o.t;
    struct grad_buffer *g = buffer_of(s, u, step);
    view->grad = s->o.buffers->grads[worker_buffer(s->o.buffers, u, step)];
    if (g->held && g->unit == u) return 0;
    if (g->held)
        return fail(
            "worker %d, step %lld: the gradient of unit %s is requested while unit %s still holds its slot",
            t->rank, (long long)step, layout_of(s)->units[u].name, layout_of(s)->units[g->unit].name);
    if (g->unit >= 0 && unit_slots_await_buffer(s, g->unit, step) != 0) return -1;
    if (g->shape != s->shape[u]) grad_zero_gaps(t->compute, &layout_of(s)->units[u], view->grad, t->dtype);
    *g = (struct grad_buffer){.unit = u, .shape = s->shape[u], .held = true};
    return 0;
}

int unit_slots_acquire(struct unit_slots *s, int64_t step, int u, enum pass pass, struct unit_view *view) {
    struct weight_slot *slot = slot_of(s, u);
    *view = (struct unit_view){.weights = s->o.buffers->weights[s->o.first + u]};
    if (!unit_schedule_holds(&s->schedule, u, pass)) {
        if (slot->held)
            return fail("worker %d, step %lld: unit %s is requested while unit %s still holds its slot",
                        s->o.t->rank, (long long)step, layout_of(s)->units[u].name,
                        layout_of(s)->units[slot->unit].name);
        if (!slot->awaited && land(s, slot->unit, s->pulls[slot->unit].pull.step) != 0) return -1;
        start_pull(s, step, u, pass);
    }
    if (land(s, u, step) != 0) return -1;
    staging_await_weights(s->o.staging, s->o.first + u, s->arrival[u]);
    slot->held = true;
    return pass == PASS_BACKWARD && !is_frozen(s) ? acquire_grad(s, step, u, view) : 0;
}

void unit_slots_release(struct unit_slots *s, int u) { slot_of(s, u)->held = false; }

void unit_slots_invalidate(struct unit_slots *s) { unit_schedule_invalidate(&s->schedule); }

// ---------------------------------------------------------------- gradients
// Runs on the compute stream, or after the copy from the device, when the unit's gradient is complete.
static int hand_over(void *arg) {
    struct push_task *task = arg;
    struct push_info *push = &task->push;
    push->ready_ns = now_ns();
    timeline_own_ready(push->ids.in, push->ids.gradients, push->ready_ns);
    timeline_own_ready(push->ids.in, push->ids.weights, push->ready_ns);
    worker_core_push_unit(comm_lock(task->slots->o.comm), task->unit, push);
    comm_unlock_wake(task->slots->o.comm);
    return 0;
}

void unit_slots_push(struct unit_slots *s, int u, const struct push_info *info, enum phase phase) {
    struct topology *t = s->o.t;
    struct push_task *task = &s->pushes[worker_buffer(s->o.buffers, u, info->step)];
    struct transfer x = {.unit = u, .bytes = s->o.buffers->push_bytes[u], .kind = TRANSFER_GRADIENTS};
    struct push_info *push = &task->push;
    *push = *info;
    push->pulls_separately = !unit_slots_all_resident(s);
    push->ids = (struct transfer_ids){.in = t->timeline, .gradients = timeline_ask(t->timeline, &x)};
    if (!push->pulls_separately) {
        push->ids.weights = weights_id(s, u);
        s->arrival[u] = push->ids;
    }
    task->count++;
    unit_slots_release(s, u);
    buffer_of(s, u, push->step)->held = false;
    if (s->o.config->no_overlap) {
        hand_over(task);  // runs on this thread: compute has no work left
        return;
    }
    // Without staging, pushes run as host functions on the compute stream, which computes nothing during them.
    struct stream *stream = staging_push_stream(s->o.staging, t->compute);
    if (stream == t->compute) stream_phase(stream, PHASE_COMM);
    stream_host(stream, "push", hand_over, task);
    if (stream == t->compute) stream_phase(stream, phase);
}

// ---------------------------------------------------------------- create and destroy
struct unit_slots *unit_slots_create(const struct unit_slots_options *o) {
    struct unit_slots *s = xcalloc(1, sizeof *s);
    const struct layout *l = o->layout;
    const struct unit_prefetch residence = unit_residence(o->config);
    unsigned long units = (unsigned long)l->count, open = units * (1 + (unsigned long)o->buffers->lead);
    s->o = *o;
    unit_schedule_open(&s->schedule, l, &residence);
    int slots = unit_schedule_count(&s->schedule);
    s->weights = xcalloc((unsigned long)slots, sizeof *s->weights);
    s->grads = xcalloc(open, sizeof *s->grads);
    s->pushes = xcalloc(open, sizeof *s->pushes);
    s->pulls = xcalloc(units, sizeof *s->pulls);
    s->arrival = xcalloc(units, sizeof *s->arrival);
    s->shape = xcalloc(units, sizeof *s->shape);
    for (int u = 0; u < l->count; u++) {
        s->shape[u] = grad_shape(l, u);
        s->pulls[u] = (struct pull_task){.slots = s, .unit = u};
    }
    for (int i = 0; i < slots; i++) s->weights[i] = (struct weight_slot){.unit = -1, .awaited = true};
    for (int i = 0; i < (int)open; i++) {
        int u = i % l->count;
        s->pushes[i] = (struct push_task){.slots = s, .unit = u};
        // A buffer that belongs to one unit never has another shape, so its gaps are zero from the start.
        s->grads[i] =
            (struct grad_buffer){.unit = -1, .shape = unit_slots_all_resident(s) ? s->shape[u] : -1};
    }
    return s;
}

void unit_slots_destroy(struct unit_slots **at) {
    struct unit_slots *s = *at;
    if (!s) return;
    unit_schedule_close(&s->schedule);
    free(s->weights);
    free(s->grads);
    free(s->pushes);
    free(s->pulls);
    free(s->arrival);
    free(s->shape);
    free(s);
    *at = NULL;
}
