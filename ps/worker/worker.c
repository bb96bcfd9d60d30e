// The worker: struct topology over its communication thread (worker_comm.h) and the staging of a device's
// memory. What is here belongs to the main thread.
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ps/consistency.h"
#include "ps/medium.h"
#include "ps/worker/worker_comm.h"
#include "shared/core/error.h"

#define NOTICED_NS 1000  // shorter waits are none: what was waited for was there

struct worker;

// A unit on its way from compute to the communication thread.
struct unit_task {
    struct worker *worker;
    int unit;
    struct push_info push;
    struct transfer_ids ids;
};

struct worker {
    struct topology t;  // first: hooks cast
    const struct config *c;
    struct consistency_rule rule;
    struct shard_map *map;
    struct arena arena;
    struct worker_buffers buffers;
    struct sharing sharing;
    struct staging *staging;  // NULL: the device's memory is host memory
    struct comm *comm;
    struct unit_task *tasks;  // (units)
    int64_t step, updates;
    int micro, micro_count;
    bool watched;  // the timeline knows of all streams
    uint64_t load_round;
    bool *unit_loaded;  // (units) in this round
    int units_loaded;
    bool loaded;
    bool sum_started;          // alone: this step's first unit has zeroed the sum in buffers.words
    struct event *words_read;  // the host has its copy of buffers.words
};

// The worker decides about its step alone.
static bool is_alone(const struct worker *w) { return w->rule.row->on_arrival; }

// What the loop may read without a lock, after a wait.
static struct published refresh(struct worker *w) {
    struct published p = comm_published(w->comm);
    const struct ps_clock *clock = &p.status.clock;
    int64_t error = ps_later(clock->worst_ns, ps_clock_error(clock, timeline_now()));
    timeline_set_clock(w->t.timeline, (struct timeline_clock){clock->offset_ns, error});
    w->t.staleness = p.status.staleness;
    return p;
}

// comm_wait, as the record of this worker's time has it: the host stands still for transfer id (0: for none).
static int await(struct worker *w, enum comm_event event, int u, uint64_t id, const char *what) {
    int64_t begin = timeline_now();
    int rc = comm_wait(w->comm, event, u, w->step, what);
    int64_t end = timeline_now();
    if (end - begin > NOTICED_NS) timeline_blocked(w->t.timeline, id, begin, end);
    return rc;
}

static int gather(struct worker *w, double *values, int count) {
    struct command c = {.kind = COMMAND_GATHER, .count = count};
    const char *late = "the other workers did not come to a barrier";
    memcpy(c.gather, values, (size_t)count * sizeof *values);
    comm_command(w->comm, &c);
    if (comm_wait(w->comm, COMM_GATHERED, -1, w->step, late) != 0) return -1;
    struct published p = refresh(w);
    memcpy(values, p.status.gathered, (size_t)count * sizeof *values);
    return 0;
}

static int barrier(struct worker *w) {
    double none = 0;
    return gather(w, &none, 0);
}

// All weights of the step have landed, and none of the next: their versions tell how far the whole job has come.
static void count_samples(struct worker *w) {
    int64_t own = w->c->micro_batch * w->c->accumulation;
    w->t.samples = comm_published(w->comm).version * own;
}

// ---------------------------------------------------------------- hooks
// A pull follows each push at once: a hint cannot bring weights earlier.
static void worker_prefetch(struct topology *t, int u, enum pass pass) { (void)t, (void)u, (void)pass; }

static int worker_acquire(struct topology *t, int u, enum pass pass, struct unit_view *view) {
    struct worker *w = (struct worker *)t;
    if (!w->loaded)
        return fail("unit %s: initial weights were not loaded; call load_unit for every unit first",
                    t->layout->units[u].name);
    struct transfer_ids ids = w->tasks[u].ids;
    if (await(w, COMM_LANDED, u, ids.weights, "new weights have not landed") != 0) return -1;
    bool overwrites = pass == PASS_BACKWARD && w->micro == 0;
    const char *in_use = "the last step's gradient has not been taken";
    if (overwrites && await(w, COMM_FREE, u, ids.gradients, in_use) != 0) return -1;
    staging_await_weights(w->staging, u, ids);
    if (overwrites && is_alone(w) && u == t->layout->count - 1) count_samples(w);
    *view = (struct unit_view){.weights = w->buffers.weights[u],
                               .grad = pass == PASS_BACKWARD ? w->buffers.grads[u] : NULL,
                               .accumulate = pass == PASS_BACKWARD && w->micro > 0};
    return 0;
}

static int worker_release(struct topology *t, int u, enum pass pass) {
    (void)t, (void)u, (void)pass;
    return 0;
}

static int worker_begin_micro(struct topology *t, int index, int count) {
    struct worker *w = (struct worker *)t;
    w->micro = index;
    w->micro_count = count;
    if (index == 0) w->sum_started = false;
    if (w->watched || !t->timeline) return 0;
    w->watched = true;
    return staging_watch(w->staging, t->timeline);
}

// On the compute stream, or behind the copy from the device: the unit's gradient is complete.
static int hand_over(void *arg) {
    struct unit_task *task = arg;
    struct command c = {.kind = COMMAND_PUSH, .unit = task->unit, .push = task->push, .ids = task->ids};
    c.push.ready_ns = timeline_now();
    timeline_own_ready(c.ids.in, c.ids.gradients, c.push.ready_ns);
    timeline_own_ready(c.ids.in, c.ids.weights, c.push.ready_ns);
    comm_command(task->worker->comm, &c);
    return 0;
}

static void push_unit(struct worker *w, int u) {
    struct transfer x = {.unit = u,
                         .bytes = (uint64_t)w->t.layout->units[u].n_pad * dtype_size(w->t.dtype),
                         .kind = TRANSFER_GRADIENTS};
    struct transfer_ids *ids = &w->tasks[u].ids;
    ids->in = w->t.timeline;
    ids->gradients = timeline_ask(ids->in, &x);
    x.kind = TRANSFER_WEIGHTS;
    ids->weights = timeline_ask(ids->in, &x);
    if (w->c->no_overlap)
        hand_over(&w->tasks[u]);  // by the host: compute has nothing to do any more
    else
        stream_host(staging_push_stream(w->staging, w->t.compute), "push", hand_over, &w->tasks[u]);
}

// As the loop computes it: gradients may go out before the loop asks for the step.
static float lr_now(const struct worker *w) {
    int64_t samples = is_alone(w) ? w->t.samples : w->updates * w->c->train_batch;
    return schedule_lr(&w->c->schedule, w->c->optimizer.lr, schedule_steps(samples, w->c->train_batch));
}

static int worker_grad_ready(struct topology *t, int u) {
    struct worker *w = (struct worker *)t;
    if (w->micro + 1 < w->micro_count) return 0;
    if (!w->c->no_overlap) staging_fetch_grad(w->staging, u);
    if (is_alone(w)) {
        op_sumsq(t->compute, &(struct sumsq_args){.out = &w->buffers.words->sum,
                                                  .x = w->buffers.grads[u],
                                                  .n = t->layout->units[u].n_pad,
                                                  .zero_out = !w->sum_started,
                                                  .dt = t->dtype});
        w->sum_started = true;
        if (commit_round(w->c)) return 0;  // pushed in step, when the whole gradient is known
    }
    w->tasks[u].push = (struct push_info){.step = w->step, .lr = lr_now(w), .grad_scale = 1.0f};
    if (!w->c->no_overlap) push_unit(w, u);
    return 0;
}

// Without overlap gradients leave when the backward pass has ended: first they all are where pushes read them.
static int fetch_all(struct worker *w, int64_t step) {
    for (int u = w->t.layout->count - 1; u >= 0; u--) staging_fetch_grad(w->staging, u);
    event_record(w->words_read, staging_push_stream(w->staging, w->t.compute));
    if (event_sync(w->words_read) == 0) return 0;
    return fail("step %lld: %s", (long long)step + 1, dev_error(w->t.dev));
}

// The last unit's first, as with overlap.
static void push_all(struct worker *w) {
    for (int u = w->t.layout->count - 1; u >= 0; u--) push_unit(w, u);
}

// And nothing is computed before all weights are there. w->step is the next one.
static int await_all(struct worker *w) {
    for (int u = 0; u < w->t.layout->count; u++) {
        struct transfer_ids ids = w->tasks[u].ids;
        if (await(w, COMM_LANDED, u, ids.weights, "new weights have not landed") != 0 ||
            await(w, COMM_FREE, u, ids.gradients, "the last step's gradient has not been taken") != 0)
            return -1;
        staging_await_weights(w->staging, u, ids);
    }
    return 0;
}

// What the host needs of the step's results: one copy and the step's one wait for the device.
static int read_words(struct worker *w, const struct step_input *in, struct worker_words *out) {
    struct stream *compute = w->t.compute;
    struct worker_words *words = w->buffers.words, *seen = w->buffers.wire_words;
    if (words) dev_copy(compute, &words->loss_sum, in->loss_sum, sizeof(double));
    if (seen && words)
        dev_copy(compute, seen, words, sizeof *words);
    else if (seen)
        dev_copy(compute, &seen->loss_sum, in->loss_sum, sizeof(double));
    event_record(w->words_read, compute);
    if (event_sync(w->words_read) != 0)
        return fail("step %lld: %s", (long long)in->step + 1, dev_error(w->t.dev));
    *out = seen ? *seen : words ? *words : (struct worker_words){.loss_sum = *in->loss_sum};
    return 0;
}

static int step_together(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words;
    if (read_words(w, in, &words) != 0) return -1;
    if (w->c->no_overlap) push_all(w);
    uint64_t id = timeline_ask(w->t.timeline, &(struct transfer){.kind = TRANSFER_CONTROL, .unit = -1});
    struct command c = {
        .kind = COMMAND_REPORT,
        .report = {.in = *in, .loss = words.loss_sum / in->loss_tokens, .ready_ns = timeline_now()}};
    const char *late = "the scheduler did not close the step";
    timeline_own_ready(w->t.timeline, id, c.report.ready_ns);
    comm_command(w->comm, &c);
    if (await(w, COMM_STEP_DONE, -1, id, late) != 0) return -1;
    struct published p = comm_published(w->comm);
    timeline_peers_ready(w->t.timeline, id, p.status.done_peers_ns);
    timeline_done(w->t.timeline, id, p.status.done_ns);
    *out = p.status.stats;
    return 0;
}

// The whole gradient is this worker's own: norm, clip and skip are decided here. loss and norm in the
// stats are this worker's.
static int step_alone(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words;
    if (read_words(w, in, &words) != 0) return -1;
    struct update_scalars s = update_decide(&words.sum, in->loss_scale, in->clip);
    *out = (struct step_stats){
        .loss = words.loss_sum / in->loss_tokens, .grad_norm = s.norm, .skipped = s.skip != 0};
    if (commit_round(w->c)) {
        struct push_info push = {
            .step = in->step, .lr = in->lr, .grad_scale = s.grad_scale, .skip = s.skip != 0};
        for (int u = 0; u < w->t.layout->count; u++) {
            w->tasks[u].push = push;
            push_unit(w, u);
        }
        return 0;
    }
    if (w->c->no_overlap) push_all(w);
    if (s.skip)
        return fail(
            "step %lld: %lld gradient elements are not finite and were pushed as "
            "they came; lower the learning rate or set gradient_clipping",
            (long long)in->step, (long long)words.sum.nonfinite);
    return 0;
}

// A worker that decides alone exchanges nothing with the scheduler at the end of a step: heartbeats carry the
// request to stop.
static bool stop_alone(struct worker *w, bool own) {
    if (own) comm_command(w->comm, &(struct command){.kind = COMMAND_STOP});
    return own || comm_published(w->comm).status.stopped;
}

static int worker_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct worker *w = (struct worker *)t;
    if (in->step != w->step)
        return fail("step %lld: the topology is at step %lld", (long long)in->step, (long long)w->step);
    if (f32_to_bits(in->lr) != f32_to_bits(lr_now(w)))
        return fail("step %lld: gradients went out with the schedule's learning rate %.9g, the loop has %.9g",
                    (long long)in->step, (double)lr_now(w), (double)in->lr);
    if (w->c->no_overlap && fetch_all(w, in->step) != 0) return -1;
    int rc = is_alone(w) ? step_alone(w, in, out) : step_together(w, in, out);
    refresh(w);
    if (rc != 0) return -1;
    if (is_alone(w)) out->stop = stop_alone(w, in->stop);
    out->snapshot = in->snapshot;  // worker 0 has it collected by itself
    w->step++;
    if (!out->skipped) w->updates++;
    return w->c->no_overlap ? await_all(w) : 0;
}

static int worker_sum(struct topology *t, double *values, int count) {
    struct worker *w = (struct worker *)t;
    for (int i = 0; i < count || i == 0; i += WIRE_VALUES_MAX) {
        int n = count - i < WIRE_VALUES_MAX ? count - i : WIRE_VALUES_MAX;
        if (gather(w, values + i, n) != 0) return -1;
    }
    return 0;
}

static int worker_finish(struct topology *t) {
    struct worker *w = (struct worker *)t;
    for (int u = 0; u < t->layout->count; u++) {
        if (comm_wait(w->comm, COMM_LANDED, u, w->step, "the last weights have not landed") != 0 ||
            comm_wait(w->comm, COMM_FREE, u, w->step, "the last gradient has not been taken") != 0)
            return -1;
    }
    if (barrier(w) != 0) return -1;
    if (is_alone(w)) {
        // A pull that follows a push replaces weights that compute has read. These pulls follow none.
        for (int u = 0; u < t->layout->count; u++)
            staging_await_weights(w->staging, u, (struct transfer_ids){0});
        if (stream_sync(t->compute) != 0)
            return fail("step %lld: finishing: %s", (long long)w->step, dev_error(t->dev));
        comm_command(w->comm, &(struct command){.kind = COMMAND_PULL_ALL});
        if (comm_wait(w->comm, COMM_PULLED, -1, w->step, "the final weights have not landed") != 0) return -1;
    }
    comm_command(w->comm, &(struct command){.kind = COMMAND_TRACE});
    if (is_alone(w)) count_samples(w);
    // What was collected until now has come before the last weights.
    comm_command(w->comm, &(struct command){.kind = COMMAND_SNAPSHOTS_END});
    if (comm_wait(w->comm, COMM_PULLED, -1, w->step,
                  "the last snapshot was not ended, or the trace not written") != 0)
        return -1;
    refresh(w);
    return 0;
}

static void worker_snapshot(struct topology *t, int64_t version, struct snapshot *s) {
    comm_command(((struct worker *)t)->comm,
                 &(struct command){.kind = COMMAND_SNAPSHOT, .version = version, .snapshot = s});
}

static int worker_load_unit(struct topology *t, int u, const float *values) {
    struct worker *w = (struct worker *)t;
    if (w->step > 0)
        return fail("unit %s: weights can be loaded before the first step only", t->layout->units[u].name);
    // Loading once more: nobody still reads what was loaded before, if it is the servers' own.
    if (w->sharing.in_place && w->units_loaded == 0 && w->load_round > 0 && barrier(w) != 0) return -1;
    if (sharing_load(&w->sharing, u, values, w->buffers.wire_weights[u]) != 0) return -1;
    if (staging_load_weights(w->staging, u) != 0)
        return fail("unit %s: loading its weights: %s", t->layout->units[u].name, dev_error(t->dev));
    if (w->units_loaded == 0) w->load_round++;
    if (t->rank == 0) {
        struct command c = {.kind = COMMAND_INIT, .unit = u, .values = values, .round = w->load_round};
        const char *late = "a server did not take the initial weights";
        comm_command(w->comm, &c);
        if (comm_wait(w->comm, COMM_LOADED, u, w->step, late) != 0) {
            comm_hang_up(w->comm);  // the values are the caller's to free: nothing may send them any more
            return -1;
        }
    }
    if (!w->unit_loaded[u]) w->units_loaded++;
    w->unit_loaded[u] = true;
    if (w->units_loaded < t->layout->count) return 0;
    memset(w->unit_loaded, 0, (size_t)t->layout->count * sizeof *w->unit_loaded);
    w->units_loaded = 0;
    if (barrier(w) != 0) return -1;
    w->loaded = true;
    return 0;
}

static void worker_abort(struct topology *t, const char *why) {
    comm_give_up(((struct worker *)t)->comm, why);
}

// ---------------------------------------------------------------- create and destroy
static void worker_destroy(struct topology *t) {
    struct worker *w = (struct worker *)t;
    // 1. The communication thread ends: nothing lands any more.
    if (w->comm) comm_part(w->comm);
    // 2. What is enqueued still uses the buffers, and hands units over to w->comm.
    stream_sync(t->compute);
    staging_destroy(&w->staging);
    event_destroy(&w->words_read);
    // 3. The transport lets go of the gradients before the arena does.
    comm_destroy(&w->comm);
    arena_release(&w->arena);
    sharing_destroy(&w->sharing);
    free(w->tasks);
    free(w->unit_loaded);
    worker_buffers_free(&w->buffers);
    shard_map_destroy(&w->map);
    free(w);
}

static const struct topology_ops worker_ops = {
    .name = "ps",
    .prefetch = worker_prefetch,
    .acquire = worker_acquire,
    .release = worker_release,
    .begin_micro = worker_begin_micro,
    .grad_ready = worker_grad_ready,
    .step = worker_step,
    .sum = worker_sum,
    .finish = worker_finish,
    .snapshot = worker_snapshot,
    .load_unit = worker_load_unit,
    .abort = worker_abort,
    .destroy = worker_destroy,
};

static int worker_allocate(struct worker *w, const struct ps_worker_options *o) {
    const struct layout *l = o->role.layout;
    unsigned long units = (unsigned long)l->count;
    bool staged = ps_is_staged(w->c);
    assert(staged == !dev_host_memory(o->dev) && "the configuration names the device that is used");
    if (ps_worker_predict(w->c, l, &w->t.memory, &w->t.wire_predicted) != 0) return -1;
    if (!(w->map = shard_map_of(w->c, l))) return -1;
    worker_buffers_init(&w->buffers, l);
    w->unit_loaded = xcalloc(units, sizeof *w->unit_loaded);
    w->tasks = xcalloc(units, sizeof *w->tasks);
    for (int u = 0; u < l->count; u++) w->tasks[u] = (struct unit_task){.worker = w, .unit = u};
    arena_init(&w->arena, o->dev);
    if (sharing_create(&w->sharing, w->c, l, w->map, &w->arena, &w->buffers) != 0) return -1;
    if (!(w->words_read = event_create(o->dev))) return -1;
    struct staging_options so = {
        .dev = o->dev, .compute = o->compute, .layout = l, .dtype = w->c->dtype, .buffers = &w->buffers};
    return staged && !(w->staging = staging_create(&so)) ? -1 : 0;
}

static int worker_join_job(struct worker *w, const struct ps_role_options *role) {
    struct comm_options o = {.role = *role,
                             .map = w->map,
                             .buffers = &w->buffers,
                             .sharing = &w->sharing,
                             .staging = w->staging,
                             .wire = &w->t.wire};
    struct ps_identity id;
    if (!(w->comm = comm_create(&o, &id))) return -1;
    if (sharing_settle(&w->sharing, &w->arena) != 0) {
        comm_give_up(w->comm, error_last());
        return -1;
    }
    worker_predict_memory(w->sharing.c, w->t.layout, w->map, w->sharing.shared, &w->t.memory);
    w->t.medium = sharing_medium(&w->sharing);
    w->t.rank = id.rank;
    w->t.job = id.job;
    return 0;
}

struct comm *ps_worker_comm(struct topology *t) {
    return ((struct worker *)t)->comm;
}

struct topology *ps_worker_create(const struct ps_worker_options *o) {
    const struct config *c = o->role.config;
    struct worker *w = xcalloc(1, sizeof *w);
    w->t = (struct topology){.ops = &worker_ops,
                             .layout = o->role.layout,
                             .dev = o->dev,
                             .compute = o->compute,
                             .dtype = c->dtype,
                             .rank = o->role.rank,
                             .size = c->workers,
                             .launch = "processes"};
    w->c = c;
    w->rule = consistency_of(c);
    w->t.mean_per_worker = is_alone(w);
    struct topology *t = &w->t;
    if (worker_allocate(w, o) == 0 && worker_join_job(w, &o->role) == 0) return t;
    topology_destroy(&t);
    return NULL;
}
