// The worker: struct topology over the communication thread (worker_comm.c) and its core.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "ps/worker/worker_state.h"

#define PARTING_S     2.0  // for the scheduler's answer to a goodbye
#define LAST_WORDS_MS 500  // for an abort to leave

// The worker decides about its step alone.
static bool is_alone(const struct worker *w) { return w->rule.row->on_arrival; }

// ---------------------------------------------------------------- conditions, under the mutex
static bool has_landed(const struct worker *w, int u) { return w->now.landed[u] >= w->step; }
static bool is_free(const struct worker *w, int u) { return w->now.busy[u] == 0; }
static bool is_sent(const struct worker *w, int u) { return w->obeyed == w->issued && w->now.busy[u] == 0; }
static bool is_pulled(const struct worker *w, int u) {
    (void)u;
    return w->obeyed == w->issued && w->now.pulling == 0;
}
static bool is_gathered(const struct worker *w, int u) {
    (void)u;
    return w->now.gathers_done >= w->gathers;
}
static bool is_done(const struct worker *w, int u) {
    (void)u;
    return consistency_allows(&w->rule, w->step + 1 - w->now.steps_done);
}

// What the loop may read without a lock, after a wait. What compute stood still for are copies of weights.
static void refresh(struct worker *w) {
    struct stream_times times = {0};
    if (w->staging) stream_get_times(w->t.compute, &times);
    pthread_mutex_lock(&w->mutex);
    w->t.staleness = w->now.staleness;
    w->t.comm.busy_s = w->now.busy_s;
    pthread_mutex_unlock(&w->mutex);
    w->t.comm.wait_s = w->waited_s;
    for (int p = 0; p < PHASES; p++) w->t.comm.wait_s += times.wait_s[p];
}

static int gather(struct worker *w, double *values, int count) {
    struct command c = {.kind = COMMAND_GATHER, .count = count};
    struct worker_wait wait = {is_gathered, -1, "the other workers did not come to a barrier", true};
    memcpy(c.gather, values, (size_t)count * sizeof *values);
    w->gathers++;
    worker_command(w, &c);
    if (worker_wait(w, &wait) != 0) return -1;
    pthread_mutex_lock(&w->mutex);
    memcpy(values, w->now.gathered, (size_t)count * sizeof *values);
    pthread_mutex_unlock(&w->mutex);
    refresh(w);
    return 0;
}

static int barrier(struct worker *w) {
    double none = 0;
    return gather(w, &none, 0);
}

// ---------------------------------------------------------------- hooks
// Pulls follow each push at once, so there is nothing a hint could hasten.
static void worker_prefetch(struct topology *t, int u, enum pass pass) {
    (void)t;
    (void)u;
    (void)pass;
}

static int worker_acquire(struct topology *t, int u, enum pass pass, struct unit_view *view) {
    struct worker *w = (struct worker *)t;
    struct worker_wait landed = {has_landed, u, "new weights have not landed", false};
    struct worker_wait released = {is_free, u, "the last step's gradient has not been taken", false};
    if (!w->loaded)
        return fail("unit %s: initial weights were not loaded; call load_unit for every unit first",
                    t->layout->units[u].name);
    if (worker_wait(w, &landed) != 0) return -1;
    bool overwrites = pass == PASS_BACKWARD && w->micro == 0;
    if (overwrites && worker_wait(w, &released) != 0) return -1;
    staging_await_weights(w->staging, u);
    *view = (struct unit_view){.weights = w->buffers.weights[u],
                               .grad = pass == PASS_BACKWARD ? w->buffers.grads[u] : NULL,
                               .accumulate = pass == PASS_BACKWARD && w->micro > 0};
    return 0;
}

static int worker_release(struct topology *t, int u, enum pass pass) {
    (void)t;
    (void)u;
    (void)pass;
    return 0;
}

static int worker_begin_micro(struct topology *t, int index, int count) {
    struct worker *w = (struct worker *)t;
    w->micro = index;
    w->micro_count = count;
    if (index == 0) w->sum_started = false;
    return 0;
}

// On the compute stream, or behind the copy from the device: the unit's gradient is complete.
static int hand_over(void *arg) {
    struct unit_task *task = arg;
    struct command c = {.kind = COMMAND_PUSH, .unit = task->unit, .push = task->push};
    worker_command(task->worker, &c);
    return 0;
}

static void push_unit(struct worker *w, int u) {
    stream_host(staging_push_stream(w->staging, w->t.compute), "push", hand_over, &w->tasks[u]);
}

static float lr_now(const struct worker *w) {
    return schedule_lr(&w->c->schedule, w->c->optimizer.lr, w->updates);
}

static int worker_grad_ready(struct topology *t, int u) {
    struct worker *w = (struct worker *)t;
    if (w->micro + 1 < w->micro_count) return 0;
    staging_fetch_grad(w->staging, u);
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
    push_unit(w, u);
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
    event_record(w->told, compute);
    if (event_sync(w->told) != 0) return fail("step %lld: %s", (long long)in->step + 1, dev_error(w->t.dev));
    *out = seen ? *seen : words ? *words : (struct worker_words){.loss_sum = *in->loss_sum};
    return 0;
}

static int step_together(struct worker *w, const struct step_input *in, struct step_stats *out) {
    struct worker_words words;
    if (read_words(w, in, &words) != 0) return -1;
    struct command c = {.kind = COMMAND_REPORT, .report = *in, .loss = words.loss_sum / in->loss_tokens};
    struct worker_wait wait = {is_done, -1, "the scheduler did not close the step", false};
    worker_command(w, &c);
    if (worker_wait(w, &wait) != 0) return -1;
    pthread_mutex_lock(&w->mutex);
    *out = w->now.stats;
    pthread_mutex_unlock(&w->mutex);
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
    } else if (s.skip) {
        return fail(
            "step %lld: %lld gradient elements are not finite and were pushed as they came; lower the "
            "learning "
            "rate or set gradient_clipping",
            (long long)in->step, (long long)words.sum.nonfinite);
    }
    return 0;
}

// Asynchronous steps have no exchange with the scheduler: heartbeats carry the word.
static bool stop_alone(struct worker *w, bool own) {
    struct command c = {.kind = COMMAND_STOP};
    if (own) worker_command(w, &c);
    pthread_mutex_lock(&w->mutex);
    bool stop = own || w->now.stopped;
    pthread_mutex_unlock(&w->mutex);
    return stop;
}

static int worker_step(struct topology *t, const struct step_input *in, struct step_stats *out) {
    struct worker *w = (struct worker *)t;
    if (in->step != w->step)
        return fail("step %lld: the topology is at step %lld", (long long)in->step, (long long)w->step);
    if (f32_to_bits(in->lr) != f32_to_bits(lr_now(w)))
        return fail("step %lld: gradients went out with the schedule's learning rate %.9g, the loop has %.9g",
                    (long long)in->step, (double)lr_now(w), (double)in->lr);
    int rc = is_alone(w) ? step_alone(w, in, out) : step_together(w, in, out);
    refresh(w);
    if (rc != 0) return -1;
    if (is_alone(w)) out->stop = stop_alone(w, in->stop);
    w->step++;
    if (!out->skipped) w->updates++;
    return 0;
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
        struct worker_wait landed = {has_landed, u, "the last weights have not landed", false};
        struct worker_wait released = {is_free, u, "the last gradient has not been taken", false};
        if (worker_wait(w, &landed) != 0 || worker_wait(w, &released) != 0) return -1;
    }
    if (barrier(w) != 0) return -1;
    if (is_alone(w)) {
        // These pulls follow no push, which would say that the weights they replace have come and been read.
        for (int u = 0; u < t->layout->count; u++) staging_await_weights(w->staging, u);
        if (stream_sync(t->compute) != 0)
            return fail("step %lld: finishing: %s", (long long)w->step, dev_error(t->dev));
        struct command c = {.kind = COMMAND_PULL_ALL};
        struct worker_wait pulled = {is_pulled, -1, "the final weights have not landed", false};
        worker_command(w, &c);
        if (worker_wait(w, &pulled) != 0) return -1;
    }
    refresh(w);
    return 0;
}

// The values are the caller's to free from here on: nothing may send them any more.
static int load_failed(struct worker *w) {
    worker_join(w);
    net_destroy(&w->net, LAST_WORDS_MS);
    return -1;
}

static int worker_load_unit(struct topology *t, int u, const float *values) {
    struct worker *w = (struct worker *)t;
    struct cast_args cast = {.out = w->buffers.wire_weights[u],
                             .in = values,
                             .n = t->layout->units[u].n_pad,
                             .from = DT_F32,
                             .to = t->dtype};
    const char *why = "";
    if (w->step > 0)
        return fail("unit %s: weights can be loaded before the first step only", t->layout->units[u].name);
    if (cpu_ops[OP_CAST](1, &cast, &why) != 0) return fail("unit %s: %s", t->layout->units[u].name, why);
    if (staging_load_weights(w->staging, u) != 0)
        return fail("unit %s: loading its weights: %s", t->layout->units[u].name, dev_error(t->dev));
    if (w->units_loaded == 0) w->load_round++;
    if (t->rank == 0) {
        struct command c = {.kind = COMMAND_INIT, .unit = u, .values = values, .round = w->load_round};
        struct worker_wait sent = {is_sent, u, "a server did not take the initial weights", false};
        worker_command(w, &c);
        if (worker_wait(w, &sent) != 0) return load_failed(w);
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

static void worker_abort(struct topology *t, const char *why) { worker_give_up((struct worker *)t, why); }

// ---------------------------------------------------------------- birth and death
static void part(struct worker *w) {
    struct command c = {.kind = COMMAND_GOODBYE};
    double end = now_seconds() + PARTING_S;
    worker_command(w, &c);
    pthread_mutex_lock(&w->mutex);
    while (!w->failed && !w->now.parted && now_seconds() < end) {
        pthread_mutex_unlock(&w->mutex);
        usleep(1000);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
}

static void worker_destroy(struct topology *t) {
    struct worker *w = (struct worker *)t;
    if (w->thread_started) part(w);
    worker_join(w);
    // What is enqueued still uses the buffers, and hands units over to this worker.
    stream_sync(t->compute);
    staging_destroy(&w->staging);
    event_destroy(&w->told);
    // The transport lets go of the gradients before the arena does.
    net_destroy(&w->net, w->now.parted ? 0 : LAST_WORDS_MS);
    worker_core_destroy(&w->core);
    if (w->wake_fd >= 0) close(w->wake_fd);
    pthread_mutex_destroy(&w->mutex);
    pthread_cond_destroy(&w->changed);
    arena_release(&w->arena);
    free(w->commands);
    free(w->shards);
    free(w->now.landed);
    free(w->now.busy);
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
    w->now.landed = xcalloc(units, sizeof *w->now.landed);
    w->now.busy = xcalloc(units, sizeof *w->now.busy);
    w->unit_loaded = xcalloc(units, sizeof *w->unit_loaded);
    w->tasks = xcalloc(units, sizeof *w->tasks);
    for (int u = 0; u < l->count; u++) w->tasks[u] = (struct unit_task){.worker = w, .unit = u};
    arena_init(&w->arena, o->dev);
    worker_carve(&w->arena, w->c, l, &w->buffers);
    if (w->arena.failed || !(w->told = event_create(o->dev))) return -1;
    struct staging_options so = {
        .dev = o->dev, .compute = o->compute, .layout = l, .dtype = w->c->dtype, .buffers = &w->buffers};
    return staged && !(w->staging = staging_create(&so)) ? -1 : 0;
}

// Connects to every shard of the endpoints' lines. 0 or -1 after logging.
static int worker_connect(struct worker *w, char *endpoints) {
    char *rest = NULL, *line = strtok_r(endpoints, "\n", &rest);
    w->shards = xcalloc((unsigned long)w->map->shards, sizeof *w->shards);
    for (int g = 0; g < w->map->shards; g++, line = strtok_r(NULL, "\n", &rest)) {
        if (!line) return fail("the scheduler named %d of %d server addresses", g, w->map->shards);
        if (!(w->shards[g] = net_dealer(w->net, line))) return -1;
    }
    return 0;
}

static int worker_join_job(struct worker *w) {
    struct manifest manifest = manifest_make(w->c, w->t.layout, w->map);
    struct net_options no = {.wire = &w->t.wire,
                             .max_payload_bytes = (size_t)w->c->ps.partition_bytes + (1 << 20),
                             .queue_messages = 4 * w->map->count + 1024};
    w->net = net_create(&no);
    if (!w->net || !(w->scheduler = net_dealer(w->net, w->role.scheduler))) return -1;
    struct ps_login l = {.socket = w->scheduler,
                         .address = w->role.scheduler,
                         .manifest = &manifest,
                         .deadline_s = ps_deadline_s(w->c),
                         .say_waiting = w->role.say_waiting,
                         .stop = w->role.stop};
    if (ps_login(&l, &w->id) != 0) return -1;
    w->t.rank = w->id.rank;
    w->t.job = w->id.job;
    char label[32];
    snprintf(label, sizeof label, "worker %d", w->id.rank);
    error_set_label(label);
    char *endpoints = ps_wait_start(&l, &w->id, ps_heartbeat_s(w->c));
    int rc = endpoints ? worker_connect(w, endpoints) : -1;
    if (rc != 0) worker_tell_abort(w, error_last());
    free(endpoints);
    return rc;
}

static void worker_make_core(struct worker *w) {
    struct worker_core_options o = {.layout = w->t.layout,
                                    .map = w->map,
                                    .dtype = w->c->dtype,
                                    .weights = w->buffers.wire_weights,
                                    .grads = (const void *const *)w->buffers.wire_grads,
                                    .credit_bytes = w->c->ps.credit_bytes,
                                    .resend_s = ps_resend_s(w->c),
                                    .heartbeat_s = ps_heartbeat_s(w->c),
                                    .lost_s = ps_lost_s(w->c),
                                    .start_s = now_seconds(),
                                    .port = {w, worker_send}};
    w->core = worker_core_create(&o);
}

struct topology *ps_worker_create(const struct ps_worker_options *o) {
    const struct config *c = o->role.config;
    struct worker *w = xcalloc(1, sizeof *w);
    pthread_condattr_t monotonic;
    w->t = (struct topology){.ops = &worker_ops,
                             .layout = o->role.layout,
                             .dev = o->dev,
                             .compute = o->compute,
                             .dtype = c->dtype,
                             .rank = o->role.rank,
                             .size = c->workers};
    w->c = c;
    w->role = o->role;
    w->rule = consistency_of(c);
    w->t.mean_per_worker = is_alone(w);
    w->id = (struct ps_identity){.role = PS_WORKER, .rank = o->role.rank, .incarnation = ps_random_id()};
    w->waited_unit = -1;
    w->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    struct topology *t = &w->t;
    if (worker_allocate(w, o) == 0 && worker_join_job(w) == 0) {
        worker_make_core(w);
        if (worker_start(w) == 0) return t;
    }
    topology_destroy(&t);
    return NULL;
}
