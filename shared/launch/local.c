#include "shared/launch/local.h"

#include <stdlib.h>
#include <string.h>

#include "shared/config/config.h"
#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/launch/run.h"
#include "shared/model/grad_buffers.h"
#include "shared/model/step_tasks.h"
#include "shared/state/checkpoint_read.h"

struct buffers {
    void *grad;
    struct update_range update;  // the update of the whole unit; in fp32 the weights are their own master
    char *old;  // (delay, n_pad): row t % delay has the weights after t steps, as long as they are read
};

// The results of a step, which one copy brings to the host.
struct outcome {
    double loss_sum;
    struct update_scalars scalars;
};

struct local {
    struct topology base;
    struct arena arena;
    struct optimizer_config optimizer;
    struct buffers *units;
    struct exact_sum *sum;
    struct outcome *outcome;  // on the device
    struct outcome *seen;     // its copy in page-locked memory; the same pointer if the host can read it
    struct event *told;       // recorded when `seen` is complete
    struct grad_sums sums;
    int micro, micro_count;
    int delay;
    int64_t steps;    // steps done
    int64_t drained;  // each step computes on weights after at least so many steps
    int64_t updates;
};

static void carve(const struct local_options *o, struct arena *a, struct local *t) {
    size_t e = dtype_size(o->dtype);
    for (int u = 0; u < o->layout->count; u++) {
        const struct unit *unit = &o->layout->units[u];
        size_t n = (size_t)unit->n_pad;
        void *grad;
        struct update_range r = {.unit = unit, .end = unit->n_pad, .dtype = o->dtype};
        r.weight = arena_take(a, MEM_PARAMETER, n * e);
        r.grad = grad = arena_take(a, MEM_GRADIENT, n * e);
        r.master = o->dtype == DT_F32 ? r.weight : arena_take(a, MEM_MASTER, n * sizeof(float));
        optimizer_carve(a, o->optimizer.row, unit->n_pad, r.state);
        char *old = o->delay ? arena_take(a, MEM_PARAMETER, (size_t)o->delay * n * e) : NULL;
        if (t) t->units[u] = (struct buffers){grad, r, old};
    }
    struct grad_sums measured = {0};
    if (o->sums_in_fp32) grad_sums_carve(t ? &t->sums : &measured, a, o->layout, GRAD_WHOLE);
    grad_sums_free(&measured);
    void *sum = arena_take(a, MEM_WORKSPACE, sizeof(struct exact_sum));
    void *outcome = arena_take(a, MEM_WORKSPACE, sizeof(struct outcome));
    void *seen = o->device_memory ? arena_take(a, MEM_HOST, sizeof(struct outcome)) : outcome;
    if (t) {
        t->sum = sum;
        t->outcome = outcome;
        t->seen = seen;
    }
}

// With Adam 16P: weights and gradients 2P each, master and two states 4P each; in fp32 4 + 4 + 8.
struct textbook local_textbook(const struct optimizer *o, enum dtype dtype) {
    return (struct textbook){.whole = 2 * dtype_size(dtype) + optimizer_bytes(o, dtype != DT_F32)};
}

int local_predict(const struct local_options *o, struct topology_memory *mem) {
    struct arena a;
    arena_init(&a, NULL);
    carve(o, &a, NULL);
    for (int c = 0; c < MEM_CLASSES; c++) mem->predicted_bytes[c] = a.bytes[c];
    mem->formula_bytes = textbook_bytes(local_textbook(o->optimizer.row, o->dtype), o->layout->params, 1);
    return 0;
}

static char *old_of(const struct local *t, int u, int64_t steps) {
    size_t bytes = (size_t)t->base.layout->units[u].n_pad * dtype_size(t->base.dtype);
    return t->units[u].old + (size_t)(steps % t->delay) * bytes;
}

// With a delay, step t computes on the weights after t - delay steps, or after `drained` steps if these are more. That
// is bounded delay by clock that reads the oldest allowed version (ps/job/consistency.c), with one worker. The updates
// themselves are not late.
static int local_acquire(struct topology *base, int u, enum pass pass, struct unit_view *view) {
    struct local *t = (struct local *)base;
    int64_t least = t->steps - t->delay, from = least > t->drained ? least : t->drained;
    bool newest = pass == PASS_EVAL || from == t->steps;
    *view = (struct unit_view){.weights = newest ? t->units[u].update.weight : old_of(t, u, from),
                               .grad = pass == PASS_BACKWARD ? t->units[u].grad : NULL,
                               .accumulate = t->micro > 0 && !grad_sums_used(&t->sums)};
    return 0;
}

static int local_begin_micro(struct topology *base, int index, int count) {
    ((struct local *)base)->micro = index;
    ((struct local *)base)->micro_count = count;
    return 0;
}

static int local_grad_ready(struct topology *base, int u) {
    struct local *t = (struct local *)base;
    grad_sums_add(&t->sums, base->compute,
                  &(struct grad_micro){.unit = u,
                                       .index = t->micro,
                                       .count = t->micro_count,
                                       .grad = t->units[u].grad,
                                       .n = base->layout->units[u].n_pad,
                                       .dt = base->dtype});
    return 0;
}

// Enqueues loss, norm and decision, and their copy to the host.
static void launch_decision(struct local *t, const struct step_input *in) {
    struct topology *base = &t->base;
    const struct layout *l = base->layout;
    dev_copy(base->compute, &t->outcome->loss_sum, in->loss_sum, sizeof(double));
    for (int u = 0; u < l->count; u++)
        op_sumsq(base->compute, &(struct sumsq_args){.out = t->sum,
                                                     .x = t->units[u].grad,
                                                     .n = l->units[u].n_pad,
                                                     .zero_out = u == 0,
                                                     .dt = base->dtype});
    op_decide(base->compute, &(struct decide_args){&t->outcome->scalars, t->sum, in->loss_scale, in->clip});
    if (t->seen != t->outcome) dev_copy(base->compute, t->seen, t->outcome, sizeof *t->seen);
    event_record(t->told, base->compute);
}

static int local_step(struct topology *base, const struct step_input *in, struct step_stats *out) {
    struct local *t = (struct local *)base;
    stream_phase(base->compute, PHASE_OPTIMIZER);
    launch_decision(t, in);
    const struct update_step update = {.lr = in->lr, .t = t->updates + 1, .scalars = &t->outcome->scalars};
    for (int u = 0; u < base->layout->count; u++) {
        const struct update_range *r = &t->units[u].update;
        size_t bytes = (size_t)base->layout->units[u].n_pad * dtype_size(base->dtype);
        if (t->delay) dev_copy(base->compute, old_of(t, u, t->steps), r->weight, bytes);
        optimizer_launch(base->compute, &t->optimizer, r, &update);
    }
    stream_phase(base->compute, PHASE_OTHER);
    // The host waits only for the outcome. Updates continue, and the next forward pass is queued after them.
    if (event_sync(t->told)) return fail("step %lld: %s", (long long)in->step + 1, dev_error(base->dev));
    *out = (struct step_stats){.loss = t->seen->loss_sum / in->loss_tokens,
                               .grad_norm = t->seen->scalars.norm,
                               .skipped = t->seen->scalars.skip,
                               .stop = in->stop,
                               .snapshot = in->snapshot};
    t->steps = in->step + 1;
    t->updates += !out->skipped;
    if (base->plan.drain) t->drained = t->steps;
    step_plan_advance(base, out->skipped && base->plan.lag == 0);
    return 0;
}

static int local_finish(struct topology *base) {
    struct local *t = (struct local *)base;
    return stream_sync(base->compute)
               ? fail("the update of step %lld: %s", (long long)t->steps, dev_error(base->dev))
               : 0;
}

static int local_load_unit(struct topology *base, int u, const float *values) {
    struct local *t = (struct local *)base;
    const struct update_range *r = &t->units[u].update;
    int64_t n = base->layout->units[u].n_pad;
    dev_copy(base->compute, r->master, values, (size_t)n * sizeof(float));
    if (base->dtype != DT_F32)
        op_cast(base->compute, &(struct cast_args){r->weight, r->master, n, DT_F32, base->dtype, 1});
    return stream_sync(base->compute)
               ? fail("loading unit %s: %s", base->layout->units[u].name, dev_error(base->dev))
               : 0;
}

static int local_weights(struct topology *base, int u, struct state_range *out) {
    const struct local *t = (const struct local *)base;
    if (u >= base->layout->count) return -1;
    *out = (struct state_range){.unit = u,
                                .kind = STATE_WEIGHTS,
                                .end = base->layout->units[u].n_pad,
                                .data = t->units[u].update.weight};
    return 0;
}

static int local_state(struct topology *base, int index, struct state_range *out) {
    const struct local *t = (const struct local *)base;
    int kinds = 1 + t->optimizer.row->states, u = index / kinds, kind = index % kinds;
    if (u >= base->layout->count) return -1;
    const struct update_range *r = &t->units[u].update;
    *out = (struct state_range){.unit = u,
                                .kind = kind,
                                .begin = r->begin,
                                .end = r->end,
                                .data = kind == STATE_MASTER ? r->master : r->state[kind - STATE_OPTIMIZER]};
    return 0;
}

int local_own_state(struct topology *local, int index, struct state_range *out) {
    if (local_state(local, index, out)) return -1;
    out->kind = STATE_OWN - out->kind;
    return 0;
}

// ranks 0: loads the state that all ranks share. Otherwise loads the own state of `rank`, one of `ranks`.
int local_load_own(struct topology *base, struct checkpoint *c, int rank, int ranks) {
    struct local *t = (struct local *)base;
    const struct layout *l = base->layout;
    struct state_range r;
    t->steps = t->drained = base->start.step;
    t->updates = base->start.updates;
    for (int i = 0; !local_state(base, i, &r); i++) {
        size_t bytes = (size_t)(r.end - r.begin) * sizeof(float);
        float *values = xcalloc(1, bytes);
        int rc = ranks ? checkpoint_own(c, STATE_OWN - r.kind, rank, ranks, &l->units[r.unit], values)
                       : checkpoint_read(c, l, r.unit, r.kind, r.begin, r.end, values);
        if (!rc && r.kind == STATE_MASTER) rc = local_load_unit(base, r.unit, values);
        if (!rc && r.kind != STATE_MASTER) {
            dev_copy(base->compute, t->units[r.unit].update.state[r.kind - STATE_OPTIMIZER], values, bytes);
            rc = stream_sync(base->compute) ? fail("loading a checkpoint: %s", dev_error(base->dev)) : 0;
        }
        free(values);
        if (rc) return rc;
    }
    return 0;
}

static int local_load(struct topology *t, struct checkpoint *c) { return local_load_own(t, c, 0, 0); }

static void local_destroy(struct topology *base) {
    struct local *t = (struct local *)base;
    if (t->told) stream_sync(base->compute);  // waits for the last updates
    event_destroy(&t->told);
    arena_release(&t->arena);
    grad_sums_free(&t->sums);
    free(t->units);
    free(t);
}

static const struct topology_ops local_ops = {
    .name = "local",
    .acquire = local_acquire,
    .begin_micro = local_begin_micro,
    .grad_ready = local_grad_ready,
    .step = local_step,
    .finish = local_finish,
    .weights = local_weights,
    .state = local_state,
    .load = local_load,
    .load_unit = local_load_unit,
    .destroy = local_destroy,
};

struct topology *local_create(const struct local_options *o) {
    struct local *t = xcalloc(1, sizeof *t);
    t->base = (struct topology){.ops = &local_ops,
                                .layout = o->layout,
                                .dev = o->dev,
                                .compute = o->compute,
                                .dtype = o->dtype,
                                .rank = 0,
                                .size = 1,
                                .lag = o->delay};
    t->optimizer = o->optimizer;
    t->delay = o->delay;
    t->units = xcalloc((size_t)o->layout->count, sizeof *t->units);
    struct local_options own = *o;
    own.device_memory = !dev_host_memory(o->dev);
    local_predict(&own, &t->base.memory);
    arena_init(&t->arena, o->dev);
    carve(&own, &t->arena, t);
    t->told = event_create(o->dev);
    struct topology *base = &t->base;
    base->medium = "none";
    base->launch = "threads";
    if (t->arena.failed || !t->told) topology_destroy(&base);
    return base;
}

// ---------------------------------------------------------------- the row
static int parse(const char *text, int *bound) {
    (void)bound;
    return strcmp(text, "local") ? -1 : 0;
}

static bool variant(int i, struct topology_variant *out) {
    *out = (struct topology_variant){.name = "local"};
    return i == 0;
}

static int check_rank(const struct config *c, const struct rank_env *e) {
    (void)c;
    if (e->kind == RANK_ENV_NONE || e->size == 1) return 0;
    return fail("started by %s as rank %d of %d, but --topology local is one process: use zero:0", e->by,
                e->rank, e->size);
}

struct local_options local_options_of(const struct config *c, const struct layout *l) {
    return (struct local_options){.layout = l,
                                  .dtype = c->dtype,
                                  .optimizer = c->optimizer,
                                  .sums_in_fp32 = config_sums_in_fp32(c),
                                  .delay = c->local_delay,
                                  .device_memory = config_device(c)->gpu};
}

static int predict(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out) {
    (void)role, (void)rank;
    out->state_bytes = (size_t)l->padded * optimizer_bytes(c->optimizer.row, true);
    struct local_options o = local_options_of(c, l);
    return local_predict(&o, &out->memory);
}

static int step_tasks(const struct config *c, const struct layout *l, int rank, struct step_tasks *t) {
    const struct step_hooks none = {0};
    (void)c, (void)rank;
    step_tasks_walk(t, l, &none, NULL);
    step_tasks_update_whole(t, l);
    return 0;
}

static struct topology *create(void *ctx, struct device *dev, struct stream *compute) {
    const struct job *j = ctx;
    struct local_options o = local_options_of(j->config, j->layout);
    o.dev = dev;
    o.compute = compute;
    return local_create(&o);
}

static int train_alone(void *ctx, const struct job *j) {
    (void)ctx;
    return session_run(&(struct session_options){.job = j, .create = create, .ctx = (void *)j}, NULL);
}

static int run_local(struct run *r) { return run_here(r, train_alone, NULL); }

static struct topology_formula formula(const struct config *c, const char *role) {
    struct topology_formula f = {.wire = "0"};
    (void)role;
    textbook_text(f.memory, local_textbook(c->optimizer.row, c->dtype), 'N');
    return f;
}

static void explain(const struct config *c, struct topology_texts *out) {
    out->how =
        "One process computes the gradient of the whole batch, and updates all weights with it. It sends nothing.";
    if (c->local_delay)
        out->differs =
            "each step is computed on weights that lack the last updates (local.delay), always as many of them";
}

static int check(const struct config *c) {
    if (c->medium == MEDIUM_AUTO) return 0;
    return fail("--medium %s: --topology local is one process and sends no messages; leave --medium out",
                medium_names[c->medium]);
}

static const struct topology_alias words[] = {{"single", "local", NULL},   {"singleprocess", "local", NULL},
                                              {"serial", "local", NULL},   {"sequential", "local", NULL},
                                              {"alone", "local", NULL},    {"none", "local", NULL},
                                              {"baseline", "local", NULL}, {0}};

const struct topology_row topology_local = {
    .parse = parse,
    .variant = variant,
    .explain = explain,
    .words = words,
    .roles = (const struct topology_role[]){{"worker", offsetof(struct config, workers)}, {0}},
    .default_workers = 1,
    .max_workers = 1,
    .launches = 1 << LAUNCH_DEFAULT | 1 << LAUNCH_THREADS | 1 << LAUNCH_PROCESSES,
    .takes_delay = true,
    .launch_advice = "--topology local is one process; use --topology zero:0 to zero:3",
    .check = check,
    .check_rank = check_rank,
    .predict = predict,
    .step_tasks = step_tasks,
    .formula = formula,
    .run = run_local,
};

const struct topology_table topology_local_alone = {.row = {&topology_local}};
