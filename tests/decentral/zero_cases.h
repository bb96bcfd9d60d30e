// A toy training of a ring topology by one rank, compared with the scalar reference at every view and step.
// The same cases serve threads and processes. Functions return 0, or -1 after printing what differed.
#ifndef STARRING_TESTS_DECENTRAL_ZERO_CASES_H
#define STARRING_TESTS_DECENTRAL_ZERO_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/zero/zero.h"
#include "decentral/zero/zero_state.h"
#include "tests/decentral/zero_reference.h"

struct zero_rank;

// The "model"'s work on the compute stream.
struct zero_job {
    struct zero_rank *z;
    struct unit_view view;
    int u, step, micro, part;
};

struct zero_rank {
    const struct zero_case *c;
    const struct zero_reference *ref;
    struct topology *t;
    struct device *dev;
    struct stream *compute;
    struct zero_job *jobs;
    int job_count;
    int wrong;  // written by the compute stream, read after a sync
};

static inline void zero_rank_complain(struct zero_rank *z, const char *what, int u, int step) {
    fprintf(stderr, "zero:%d %s, rank %d of %d%s: step %d, unit %d: %s\n", z->c->stage,
            dtype_name(z->c->dtype), z->t->rank, z->c->world, z->c->tied ? ", tied" : "", step, u, what);
}

// Reads the view twice with a pause, as a model that takes its time.
static inline int zero_job_read(void *arg) {
    struct zero_job *j = arg;
    struct zero_rank *z = j->z;
    size_t bytes = (size_t)z->ref->layout->units[j->u].n_pad * dtype_size(z->c->dtype);
    for (int pass = 0; pass < 2; pass++) {
        if (memcmp(j->view.weights, z->ref->weights[j->step][j->u], bytes) != 0 && !z->wrong++)
            zero_rank_complain(z, "weights differ from the reference's", j->u, j->step);
        uint64_t r = zero_case_bits(5, (uint64_t)(z->t->rank * 1000 + j->step), (uint64_t)j->u);
        if (!pass && r % 8 == 0) usleep(r >> 32 & 511);
    }
    return 0;
}

// A gathered unit is valid up to the step, and belongs to no rank after it.
static inline int zero_job_poison(void *arg) {
    struct zero_job *j = arg;
    struct zero *z = (struct zero *)j->z->t;
    for (int i = 0; i < zero_weight_slots(z); i++)
        if (z->weight_slots[i].elements)  // an empty one has no buffer
            memset(z->weight_slots[i].buf, 0xff,
                   (size_t)z->weight_slots[i].elements * dtype_size(j->z->c->dtype));
    return 0;
}

static inline int zero_job_grad(void *arg) {
    struct zero_job *j = arg;
    zero_case_write_grad(j->z->c, j->z->t->rank, j->step, j->micro, &j->z->ref->layout->units[j->u], j->u,
                         j->part, j->view.accumulate, j->view.grad);
    return 0;
}

static inline void zero_rank_launch(struct zero_rank *z, int (*fn)(void *), struct zero_job job) {
    struct zero_job *j = &z->jobs[z->job_count++];
    *j = job;
    j->z = z;
    stream_host(z->compute, "toy", fn, j);
}

static inline int zero_rank_forward(struct zero_rank *z, int step, enum pass pass) {
    int n = z->ref->layout->count, rc = 0;
    for (int u = 0; u < n && !rc; u++) {
        struct zero_job job = {.u = u, .step = step}, tied = {.u = 0, .step = step};
        rc = topology_acquire(z->t, u, pass, &job.view);
        if (u + 1 < n) topology_prefetch(z->t, u + 1, pass);
        if (!rc && z->c->tied && u == n - 1) {
            rc = topology_acquire(z->t, 0, pass, &tied.view);
            if (!rc) zero_rank_launch(z, zero_job_read, tied);
            if (!rc) rc = topology_release(z->t, 0, pass);
        }
        if (rc) return -1;
        if (job.view.grad) zero_rank_complain(z, "a forward view has a gradient", u, step);
        zero_rank_launch(z, zero_job_read, job);
        rc = topology_release(z->t, u, pass);
    }
    return rc;
}

static inline int zero_rank_backward(struct zero_rank *z, int step, int micro) {
    int n = z->ref->layout->count, rc = 0;
    void *tied_grad = NULL;
    for (int u = n - 1; u >= 0 && !rc; u--) {
        struct zero_job job = {.u = u, .step = step, .micro = micro},
                        tied = {.u = 0, .step = step, .micro = micro, .part = 1};
        rc = topology_acquire(z->t, u, PASS_BACKWARD, &job.view);
        if (u > 0) topology_prefetch(z->t, u - 1, PASS_BACKWARD);
        if (!rc && z->c->tied && u == n - 1) {
            rc = topology_acquire(z->t, 0, PASS_BACKWARD, &tied.view);
            tied_grad = tied.view.grad;
            if (!rc) zero_rank_launch(z, zero_job_read, tied);
            if (!rc) zero_rank_launch(z, zero_job_grad, tied);
        }
        if (rc) return -1;
        if (z->c->tied && u == 0 && job.view.grad != tied_grad) {
            zero_rank_complain(z, "the tied gradient moved", u, step);
            return -1;
        }
        zero_rank_launch(z, zero_job_read, job);
        zero_rank_launch(z, zero_job_grad, job);
        rc = topology_grad_ready(z->t, u);
    }
    return rc;
}

static inline int zero_rank_step(struct zero_rank *z, int step, int64_t *updates) {
    double loss_sum = zero_case_loss_sum(z->t->rank, step);
    struct step_input in = zero_case_input(z->c, &loss_sum, step, *updates);
    struct step_stats got, want = z->ref->stats[step];
    for (int m = 0; m < z->c->micro; m++) {
        if (topology_begin_micro(z->t, m, z->c->micro)) return -1;
        if (zero_rank_forward(z, step, PASS_FORWARD) || zero_rank_backward(z, step, m)) return -1;
    }
    zero_rank_launch(z, zero_job_poison, (struct zero_job){.step = step});
    // A hint too early: the step makes what it gathers stale.
    if (step == 2) topology_prefetch(z->t, 0, PASS_EVAL);
    if (topology_step(z->t, &in, &got)) return -1;
    bool norm = got.grad_norm == want.grad_norm || (got.skipped && !isfinite(got.grad_norm));
    if (got.loss != want.loss || !norm || got.skipped != want.skipped) {
        zero_rank_complain(z, "statistics differ from the reference's", -1, step);
        fprintf(stderr, "    loss %.17g, %.17g; norm %.17g, %.17g; skipped %d, %d\n", got.loss, want.loss,
                got.grad_norm, want.grad_norm, got.skipped, want.skipped);
        return -1;
    }
    *updates += !got.skipped;
    return 0;
}

// The ledger's prediction against the device's own count, to the byte.
static inline int zero_rank_check_memory(struct zero_rank *z, uint64_t allocations) {
    struct mem_usage m;
    dev_usage(z->dev, &m);
    for (int k = 0; k < MEM_CLASSES; k++) {
        if (m.peak_bytes[k] == z->t->memory.predicted_bytes[k] && m.current_bytes[k] == m.peak_bytes[k])
            continue;
        fprintf(stderr, "zero:%d, %d ranks: %s: predicted %zu, used %zu, peak %zu bytes\n", z->c->stage,
                z->c->world, mem_class_name((enum mem_class)k), z->t->memory.predicted_bytes[k],
                m.current_bytes[k], m.peak_bytes[k]);
        return -1;
    }
    if (allocations && m.allocations != allocations) zero_rank_complain(z, "something was allocated", -1, -1);
    return allocations && m.allocations != allocations ? -1 : 0;
}

// For a step in which momenta travel: each shard's code to every other rank, twice. 36 bytes tell 256 elements.
static inline uint64_t zero_case_code_bytes(const struct zero_rank *z) {
    uint64_t bytes = 0;
    for (int u = 0; u < z->ref->layout->count && z->c->freeze; u++)
        bytes += 2 * (uint64_t)(z->ref->layout->units[u].n_pad / z->c->world / 256 * 36 * (z->c->world - 1));
    return bytes;
}

static inline int zero_case_slots(const struct zero_case *c, const struct layout *l) {
    struct unit_schedule s;
    unit_schedule_open(&s, l, &c->prefetch);
    int slots = s.slots;
    unit_schedule_close(&s);
    return slots;
}

// How often a unit's shards move in a step. Stage 3 with K slots: the last K units of the forward pass, and the first
// K of the backward pass, are still there when the next pass begins; a tied unit 0 always is.
static inline uint64_t zero_rank_passes(const struct zero_case *c, const struct layout *l, int u) {
    int K = zero_case_slots(c, l), micro = c->micro;
    if (c->stage < 3) return c->stage == 2 ? 1 + (uint64_t)micro : 2;
    if (c->tied && u == 0) return 1 + (uint64_t)micro;
    return (uint64_t)(micro + 1 + (u < l->count - K ? micro : 0) + (u - c->tied >= K ? micro - 1 : 0));
}

// Payload counted against the formula; evaluation's gathers are no part of a step and counted apart.
static inline int zero_rank_check_wire(struct zero_rank *z) {
    const struct zero_case *c = z->c;
    uint64_t volume = 0;
    for (int u = 0; u < z->ref->layout->count; u++)
        volume += (uint64_t)z->ref->layout->units[u].n_pad * dtype_size(c->dtype) * (uint64_t)(c->world - 1) /
                  (uint64_t)c->world * zero_rank_passes(c, z->ref->layout, u);
    uint64_t later = (uint64_t)z->ref->compressed, code = zero_case_code_bytes(z);
    uint64_t want = volume * ((uint64_t)c->steps - later) + code * later;
    // A rank sends N/g-1 of its N-1 blocks to other groups, in every operation; with one group, or groups of one,
    // there is no other way.
    uint64_t others = c->group ? (uint64_t)(c->world / c->group - 1) : 0,
             across = volume / (uint64_t)(c->world > 1 ? c->world - 1 : 1) * others;
    if (atomic_load(&z->t->wire.across_sent) != across * (uint64_t)c->steps ||
        atomic_load(&z->t->wire.across_received) != across * (uint64_t)c->steps ||
        z->t->wire_predicted.across_sent_per_step != across ||
        z->t->wire_predicted.across_received_per_step != across) {
        zero_rank_complain(z, "what went to other groups differs", -1, -1);
        return -1;
    }
    uint64_t sent = atomic_load(&z->t->wire.payload_sent),
             received = atomic_load(&z->t->wire.payload_received);
    if (sent == want && received == want && z->t->wire_predicted.sent_per_step == volume &&
        z->t->wire_predicted.received_per_step == volume &&
        (!code || z->t->wire_predicted.later.sent_per_step == code) &&
        z->t->wire_predicted.later.received_per_step == z->t->wire_predicted.later.sent_per_step &&
        z->t->wire_later.steps == z->ref->compressed &&
        (c->world == 1) == (atomic_load(&z->t->wire.control_sent) == 0))
        return 0;
    fprintf(stderr, "zero:%d, %d ranks: sent %llu, received %llu, expected %llu bytes\n", c->stage, c->world,
            (unsigned long long)sent, (unsigned long long)received, (unsigned long long)want);
    return -1;
}

static inline int zero_rank_train(struct zero_rank *z) {
    const struct layout *l = z->ref->layout;
    struct mem_usage before;
    int64_t updates = 0;
    dev_usage(z->dev, &before);
    if (zero_rank_check_memory(z, 0)) return -1;
    for (int u = 0; u < l->count; u++) {
        float *values = calloc((size_t)l->units[u].n_pad, sizeof *values);
        zero_case_init(&l->units[u], u, values);
        int rc = topology_load_unit(z->t, u, values);
        free(values);
        if (rc) return -1;
    }
    for (int step = 0; step < z->c->steps; step++) {
        if (step % 3 == 0 && zero_rank_forward(z, step, PASS_EVAL)) return -1;
        if (zero_rank_step(z, step, &updates)) return -1;
    }
    double sums[40];
    for (int i = 0; i < 40; i++) sums[i] = (double)(z->t->rank + 1) * (i + 1);
    if (topology_sum(z->t, sums, 40)) return -1;
    for (int i = 0; i < 40; i++)
        if (sums[i] != (double)(i + 1) * z->t->size * (z->t->size + 1) / 2) z->wrong++;
    if (topology_finish(z->t) || zero_rank_forward(z, z->c->steps, PASS_EVAL) || topology_finish(z->t))
        return -1;
    if (z->wrong) return -1;
    return zero_rank_check_memory(z, before.allocations) | zero_rank_check_wire(z);
}

// Creates, trains, compares and destroys: one rank's whole life.
static inline int zero_case_rank(const struct zero_case *c, const struct zero_reference *ref,
                                 const struct collective_source *src) {
    struct zero_rank z = {.c = c, .ref = ref};
    const char *why;
    if (dev_open(backend_find("cpu", &why), &(struct device_options){.threads = 1, .label = "toy"}, &z.dev))
        return -1;
    z.compute = stream_create(z.dev, "compute");
    z.jobs = calloc((size_t)(c->steps * (c->micro + 1) + 1) * ZERO_CASE_UNITS * 8 + (size_t)c->steps,
                    sizeof *z.jobs);
    const struct config config = zero_case_config(c);
    struct zero_options o = {
        .config = &config, .layout = ref->layout, .dev = z.dev, .compute = z.compute, .source = src};
    int rc = -1;
    z.t = zero_create(&o);
    if (z.t) {
        rc = zero_rank_train(&z);
        if (rc) topology_abort(z.t, "a rank of the test failed");
        topology_destroy(&z.t);
    }
    stream_destroy(&z.compute);
    struct mem_usage left;
    dev_usage(z.dev, &left);
    for (int k = 0; k < MEM_CLASSES; k++)
        if (left.current_bytes[k]) rc = -1;
    dev_close(&z.dev);
    free(z.jobs);
    return rc;
}

#endif
