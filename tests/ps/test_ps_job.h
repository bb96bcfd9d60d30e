// One star in one process: every role a thread, real sockets, a toy model whose gradients are computed
// on a real compute stream. Used by test_ps_net.c (bits, bytes) and test_ps_loss.c (losses, as processes).
#ifndef STARRING_TESTS_PS_TEST_PS_JOB_H
#define STARRING_TESTS_PS_TEST_PS_JOB_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ps/job/ps.h"
#include "shared/time/timeline.h"
#include "shared/train/saver.h"
#include "test_ps_far.h"
#include "test_ps_toy.h"
#include "tests/trust/trust_helper.h"

// The input of a gradient's computation, on the compute stream.
struct toy_compute {
    const struct toy_case *t;
    const struct layout *l;
    int unit, worker;
    int64_t step;
    struct unit_view view;
};

// An evaluation's use of a unit's weights: they must stay what they are while it lasts.
struct toy_look {
    const void *weights;
    size_t bytes;
    int *torn;
};

#define TOY_STEPS_MAX 64
struct toy_worker_result {
    int rc, rank;
    void *weights[TOY_UNITS];
    struct step_stats last;
    int64_t steps, sample;  // of its own; the last one's
    struct topology_memory memory;
    struct mem_usage usage;
    uint64_t sent, received, predicted_sent, predicted_received;
    struct staleness staleness;
    int64_t samples[TOY_STEPS_MAX];  // of the job, in the weights of each step
    float lr[TOY_STEPS_MAX];
    struct saver *saver;
    double sums[2];
    const char *medium;
    int torn;  // evaluations whose weights changed while they were read
    char error[512];
    // In the last step: transfers whose times are in order, by kind; others; parts of all steps / their time.
    int transfers[TRANSFER_KINDS], odd_transfers;
    double parts;
    struct toy_compute compute[TOY_UNITS];  // what the stream is given lives until the device is closed
    struct toy_look looks[TOY_UNITS];
};

static inline int toy_compute_run(void *arg) {
    struct toy_compute *x = arg;
    if (x->t->far) far_pause(NULL);
    toy_grad(x->t, x->l, x->unit, x->worker, x->step, far_seen(x->view.weights), far_seen(x->view.grad));
    return 0;
}

static inline int toy_look_run(void *arg) {
    struct toy_look *x = arg;
    void *before = xcalloc(x->bytes, 1);
    memcpy(before, far_seen(x->weights), x->bytes);
    usleep(3000);
    *x->torn += memcmp(before, far_seen(x->weights), x->bytes) != 0;
    free(before);
    return 0;
}

// Enqueues an evaluation; looks holds a task a unit.
static inline int toy_evaluate(struct topology *t, struct toy_look *looks, int *torn) {
    struct unit_view view;
    for (int u = 0; u < TOY_UNITS; u++) {
        if (topology_acquire(t, u, PASS_EVAL, &view)) return -1;
        looks[u] =
            (struct toy_look){view.weights, (size_t)t->layout->units[u].n_pad * dtype_size(t->dtype), torn};
        stream_host(t->compute, "look", toy_look_run, &looks[u]);
        if (topology_release(t, u, PASS_EVAL)) return -1;
    }
    return 0;
}

static inline int toy_load(struct topology *t, const struct layout *l) {
    int rc = 0;
    for (int u = 0; u < l->count && !rc; u++) {
        float *values = xcalloc((unsigned long)l->units[u].n_pad, sizeof *values);
        toy_init(l, u, values);
        rc = topology_load_unit(t, u, values);
        free(values);
    }
    return rc;
}

// Which sample of the run the worker computes on: with all workers there, its own of the step.
static inline int64_t toy_sample(const struct toy_case *c, struct topology *t, int64_t step) {
    (void)c, (void)step;
    return t->plan.first;
}

// Forward and backward of one step; x holds a task a unit.
static inline int toy_pass(const struct toy_case *c, struct topology *t, struct toy_compute *x,
                           int64_t step) {
    struct unit_view view;
    if (topology_begin_micro(t, 0, 1)) return -1;
    for (int u = 0; u < TOY_UNITS; u++) {
        topology_prefetch(t, u, PASS_FORWARD);
        if (topology_acquire(t, u, PASS_FORWARD, &view) || topology_release(t, u, PASS_FORWARD)) return -1;
    }
    for (int u = TOY_UNITS - 1; u >= 0; u--) {
        x[u] = (struct toy_compute){
            c, t->layout, u, toy_sample(c, t, step) % c->workers, toy_sample(c, t, step) / c->workers, {0}};
        if (topology_acquire(t, u, PASS_BACKWARD, &x[u].view)) return -1;
        stream_host(t->compute, "toy", toy_compute_run, &x[u]);
        if (topology_grad_ready(t, u)) return -1;
    }
    return stream_sync(t->compute);
}

struct toy_worker_options {
    const struct toy_case *t;
    struct ps_role_options role;
    int (*on_step)(void *ctx, int rank, int64_t step);
    void (*on_stepped)(void *ctx, const struct topology *t, int64_t step);  // behind each; or NULL
    void *ctx;
};

// on_step (may be NULL): before each step; non-zero ends the worker as an error. Where role.stop is set the
// worker leaves as the training loop does.
static inline int toy_steps(const struct toy_worker_options *o, struct topology *t,
                            struct toy_worker_result *r) {
    const struct toy_case *c = o->t;
    const struct config *config = o->role.config;
    int64_t updates = t->start.updates;
    if (!t->joined_running_job && toy_load(t, t->layout)) return -1;
    if (c->snapshots && t->rank == 0)
        r->saver = saver_create(&(struct saver_options){
            .config = config, .dir = c->snapshots, .topology = t, .start_number = t->job, .evaluates = true});
    saver_request_first(r->saver, 0);
    saver_start(r->saver, 0);
    int more = 1;
    for (int64_t step = t->start.step; !r->last.stop; step++) {
        if ((more = t->plan.independent || step < c->steps ? topology_plan(t, step) : 0) <= 0) break;
        if (o->on_step && o->on_step(o->ctx, t->rank, step)) return -1;
        timeline_step(t->timeline, step);
        if (toy_pass(c, t, r->compute, step)) return -1;
        int64_t sample = toy_sample(c, t, step);
        r->steps++;
        r->sample = sample;
        double loss = toy_loss(c, (int)(sample % c->workers), sample / c->workers);
        int64_t samples = t->plan.samples;
        float lr = schedule_lr(&c->schedule, TOY_LR, schedule_steps(samples, config->train_batch));
        if (step < TOY_STEPS_MAX) {
            r->samples[step] = samples;
            r->lr[step] = lr;
        }
        struct step_input in = {.step = step,
                                .updates = updates,
                                .lr = lr,
                                .loss_scale = toy_loss_scale(c),
                                .clip = c->clip,
                                .loss_sum = &loss,
                                .loss_tokens = 1,
                                .stop = o->role.stop && *o->role.stop};
        if (topology_step(t, &in, &r->last)) return -1;
        updates += !r->last.skipped;
        if (o->on_stepped) o->on_stepped(o->ctx, t, step);
        struct train_state now = {
            .step = step + 1, .updates = updates, .samples = updates * config->train_batch};
        saver_take_snapshot(r->saver, &now, 1, r->last.snapshot);
    }
    if (more < 0) return -1;
    r->sums[0] = t->rank + 1;
    r->sums[1] = 0.125;
    if (topology_sum(t, r->sums, 2) || (c->look && toy_evaluate(t, r->looks, &r->torn))) return -1;
    if (topology_finish(t) || stream_sync(t->compute)) return -1;
    saver_finish(r->saver);
    return 0;
}

static inline void toy_collect(const struct toy_case *c, struct topology *t, struct toy_worker_result *r) {
    struct unit_view view;
    for (int u = 0; u < TOY_UNITS; u++) {
        size_t bytes = (size_t)t->layout->units[u].n_pad * dtype_size(c->dtype);
        r->weights[u] = xcalloc(bytes, 1);
        if (topology_acquire(t, u, PASS_EVAL, &view) == 0)
            dev_copy(t->compute, r->weights[u], view.weights, bytes);
    }
    stream_sync(t->compute);
    r->rank = t->rank;
    r->medium = t->medium;
    r->memory = t->memory;
    r->staleness = t->staleness;
    r->sent = atomic_load(&t->wire.payload_sent);
    r->received = atomic_load(&t->wire.payload_received);
    r->predicted_sent = t->wire_predicted.sent_per_step;
    r->predicted_received = t->wire_predicted.received_per_step;
}

// The records of the last step are in order: handed over, then peers', then done; nothing is left open.
static inline void toy_check_times(struct timeline *tl, struct toy_worker_result *r) {
    struct timeline_view v;
    struct time_split sum = {0};
    timeline_end(tl);
    if (!timeline_view(tl, 0, &v)) return;
    timeline_split(tl, &sum);
    for (size_t i = 0; i < v.transfer_count; i++) {
        const struct transfer_times *x = &v.transfers[i];
        bool good = x->own_ready && x->own_ready <= x->peers_ready && x->peers_ready <= x->done && x->done;
        r->transfers[x->what.kind] += good;
        r->odd_transfers += !good;
    }
    r->parts = sum.total > 0 ? time_split_parts(&sum) / sum.total : 0;
    timeline_view_free(&v);
}

static inline void toy_worker_run(const struct toy_worker_options *o, struct toy_worker_result *r) {
    const char *why = NULL;
    struct device *dev = NULL;
    struct device_options d = {.threads = 1, .label = "toy"};
    r->rc = -1;
    int rc = o->t->far ? far_open(&d, &dev) : dev_open(backend_find("cpu", &why), &d, &dev);
    if (rc != 0) return;
    struct stream *compute = stream_create(dev, "compute");
    struct ps_worker_options w = {o->role, dev, compute};
    struct topology *t = ps_worker_create(&w);
    struct timeline *tl = NULL;
    if (t) {
        t->timeline = tl = timeline_create(
            &(struct timeline_options){.compute = compute, .layout = o->role.layout, .micro_batches = 1});
        r->rc = toy_steps(o, t, r);
        if (r->rc) topology_abort(t, error_last());
        if (!r->rc) toy_check_times(tl, r);
        if (!r->rc) toy_collect(o->t, t, r);
        struct saver_bytes kept = saver_predict(o->role.config, o->role.layout, r->rank, 0, o->t->far);
        for (int class = 0; r->saver && class < MEM_CLASSES; class ++)
            r->memory.predicted_bytes[class] += kept.snapshots[class];
        topology_destroy(&t);
        timeline_destroy(&tl);
        saver_destroy(&r->saver);
    }
    dev_usage(dev, &r->usage);
    snprintf(r->error, sizeof r->error, "%s", error_last());
    stream_destroy(&compute);
    dev_close(&dev);
}

#endif
