// A toy training of a ring topology against a plain scalar reference: no model, gradients are functions of
// (rank, step, micro-batch, element). The same cases serve threads and processes. Functions of ranks return
// 0, or -1 after printing what differed.
//
// The reference is one loop over whole units: the ranks' gradients added in fp32 in rank order and rounded
// once, the exact sum of squares, the decision, AdamW as kernels/backend.h writes it. Weights are kept for
// every step, so that each acquired view is compared to the bit where a model would read it.
#ifndef STARRING_TESTS_ZERO_CASES_H
#define STARRING_TESTS_ZERO_CASES_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/zero.h"
#include "shared/core/error.h"
#include "shared/core/rng.h"

#define ZERO_CASE_UNITS      5
#define ZERO_CASE_STEPS      8
#define ZERO_CASE_LOSS_SCALE 128.0f
#define ZERO_CASE_CLIP       0.75f

struct zero_case {
    int world, stage;
    enum dtype dtype;
    bool tied;
    int steps, micro;  // steps <= ZERO_CASE_STEPS
};

struct zero_reference {
    struct layout *layout;
    void *weights[ZERO_CASE_STEPS + 1][ZERO_CASE_UNITS];  // before step i, of the run's type
    struct step_stats stats[ZERO_CASE_STEPS];
};

// ---------------------------------------------------------------- the toy

static inline void zero_case_tensor(struct unit *u, const char *name, int64_t rows, int64_t columns,
                                    bool decay) {
    struct tensor *t = &u->tensors[u->count++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->dims = columns > 1 ? 2 : 1;
    t->decay = decay;
}

// Odd sizes, and blocks of two shapes, so that slots change their gaps.
static inline struct layout *zero_case_layout(int world, bool tied) {
    static const char *const names[ZERO_CASE_UNITS] = {"embedding", "block.0", "block.1", "block.2", "head"};
    struct layout *l = calloc(1, sizeof *l);
    l->count = ZERO_CASE_UNITS;
    l->units = calloc(ZERO_CASE_UNITS, sizeof *l->units);
    l->tied = tied;
    for (int u = 0; u < l->count; u++) {
        struct unit *unit = &l->units[u];
        snprintf(unit->name, sizeof unit->name, "%s", names[u]);
        bool block = u > 0 && u + 1 < l->count;
        if (u == 0) zero_case_tensor(unit, "wte", 37, 13, true);
        if (u == 0) zero_case_tensor(unit, "wpe", 5, 13, true);
        if (block) zero_case_tensor(unit, "norm", u == 3 ? 11 : 17, 1, false);
        if (block) zero_case_tensor(unit, "w", u == 3 ? 29 : 61, u == 3 ? 11 : 17, true);
        if (block) zero_case_tensor(unit, "b", 3, 1, false);
        if (u + 1 == l->count) zero_case_tensor(unit, "norm", 13, 1, false);
        if (u + 1 == l->count && !tied) zero_case_tensor(unit, "lm_head", 37, 13, true);
    }
    layout_finish(l, world);
    return l;
}

static inline uint64_t zero_case_bits(uint64_t a, uint64_t b, uint64_t c) {
    struct philox_out r = philox(a, b, c);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

// part 1: the head's share of a tied embedding's gradient.
static inline float zero_case_grad(const struct zero_case *c, int rank, int step, int micro, int u, int64_t i,
                                   int part) {
    uint64_t r =
        zero_case_bits((uint64_t)(step * 10 + micro), (uint64_t)(rank * 100 + u * 2 + part), (uint64_t)i);
    if (step == 1 && rank == c->world - 1 && u == 2 && i == 200 && micro == 0) return INFINITY;
    // Finite on each rank, but in fp16 not their sum.
    if (step == 3 && u == 1 && i == 3) return 40000.0f;
    return ldexpf((float)((int)(r % 2001) - 1000) / 1000.0f, (int)(r >> 32) % 9 - 4);
}

// Element i of unit u's initial master; zero in gaps.
static inline void zero_case_init(const struct unit *unit, int u, float *out) {
    memset(out, 0, (size_t)unit->n_pad * sizeof *out);
    for (int t = 0; t < unit->count; t++)
        for (int64_t i = unit->tensors[t].offset; i < unit->tensors[t].offset + unit->tensors[t].numel; i++)
            out[i] = (float)((int)(zero_case_bits(99, (uint64_t)u, (uint64_t)i) % 4001) - 2000) / 3001.0f;
}

static inline struct optimizer_config zero_case_optimizer(void) {
    return (struct optimizer_config){
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
}

static inline struct step_input zero_case_input(const struct zero_case *c, int rank, int step,
                                                int64_t updates) {
    return (struct step_input){
        .step = step,
        .updates = updates,
        .lr = 0.01f * (float)(step + 1),
        .clip = ZERO_CASE_CLIP,
        .loss_scale = c->dtype == DT_F16 ? ZERO_CASE_LOSS_SCALE : 1.0f,
        .loss = 0.1 * (rank + 1) + 1.0 / (step + 3),
    };
}

// What the "model" does with a gradient buffer: writes tensors (or adds to them), never gaps. A tied
// embedding's first tensor is written by the head (part 1) and added to by the embedding (part 0).
static inline void zero_case_write_grad(const struct zero_case *c, int rank, int step, int micro,
                                        const struct unit *unit, int u, int part, bool accumulate,
                                        void *grad) {
    for (int t = 0; t < (part ? 1 : unit->count); t++) {
        bool add = accumulate || (c->tied && u == 0 && t == 0 && !part);
        int64_t begin = unit->tensors[t].offset;
        if (!add)
            memset((char *)grad + (size_t)begin * dtype_size(c->dtype), 0xff,
                   (size_t)unit->tensors[t].numel * dtype_size(c->dtype));
        for (int64_t i = begin; i < begin + unit->tensors[t].numel; i++) {
            float g;
            uint32_t rounded;
            dtype_store(c->dtype, &rounded, 0, zero_case_grad(c, rank, step, micro, u, i, part));
            g = dtype_load(c->dtype, &rounded, 0);
            dtype_store(c->dtype, grad, (size_t)i, add ? dtype_load(c->dtype, grad, (size_t)i) + g : g);
        }
    }
}

// ---------------------------------------------------------------- the reference

// One rank's gradient of one micro-batch, on top of what grad holds when accumulating.
static inline void zero_reference_backward(const struct zero_case *c, const struct layout *l, int rank,
                                           int step, int micro, int u, bool accumulate, void *grad) {
    if (c->tied && u == 0) zero_case_write_grad(c, rank, step, micro, &l->units[0], 0, 1, accumulate, grad);
    zero_case_write_grad(c, rank, step, micro, &l->units[u], u, 0, accumulate, grad);
}

static inline void zero_reference_add_ranks(const struct zero_case *c, char *const *grads, int64_t n,
                                            void *out) {
    for (int64_t i = 0; i < n; i++) {
        float sum = dtype_load(c->dtype, grads[0], (size_t)i);
        for (int r = 1; r < c->world; r++) sum += dtype_load(c->dtype, grads[r], (size_t)i);
        dtype_store(c->dtype, out, (size_t)i, sum);
    }
}

// The reduced gradient of unit u: full gradients add up over micro-batches before the reduction, sharded
// ones are reduced after each and added in the gradient's type.
static inline void *zero_reference_gradient(const struct zero_case *c, const struct layout *l, int step,
                                            int u) {
    int64_t n = l->units[u].n_pad;
    char *grads[8], *reduced = calloc((size_t)n, 4), *part = calloc((size_t)n, 4);
    for (int r = 0; r < c->world; r++) grads[r] = calloc((size_t)n, 4);
    bool each = c->stage >= 2;
    for (int m = 0; m < c->micro; m++) {
        for (int r = 0; r < c->world; r++)
            zero_reference_backward(c, l, r, step, m, u, !each && m > 0, grads[r]);
        if (!each && m + 1 < c->micro) continue;
        zero_reference_add_ranks(c, grads, n, part);
        for (int64_t i = 0; i < n; i++) {
            float x = dtype_load(c->dtype, part, (size_t)i);
            dtype_store(c->dtype, reduced, (size_t)i,
                        each && m > 0 ? dtype_load(c->dtype, reduced, (size_t)i) + x : x);
        }
    }
    for (int r = 0; r < c->world; r++) free(grads[r]);
    free(part);
    return reduced;
}

static inline void zero_reference_norm(const struct zero_case *c, const void *grad, int64_t n,
                                       struct exact_sum *sum) {
    for (int64_t at = 0; at < n; at += SUMSQ_BLOCK) {
        double block = 0;
        int64_t bad = 0;
        for (int64_t i = at; i < at + SUMSQ_BLOCK; i++) {
            double x = (double)dtype_load(c->dtype, grad, (size_t)i);
            if (!isfinite(x)) bad++;
            block += x * x;
        }
        sum->nonfinite += bad;
        if (!bad) exact_sum_add(sum, block);
    }
}

// AdamW of one element, as kernels/backend.h orders it.
static inline void zero_reference_adamw(const struct step_input *in, const struct update_scalars *s,
                                        float decay, float gradient, float *p, float *m, float *v) {
    struct optimizer_config o = zero_case_optimizer();
    double t = (double)(in->updates + 1);
    float inv_bc1 = (float)(1 / (1 - pow(o.beta1, t))), inv_sqrt_bc2 = (float)(1 / sqrt(1 - pow(o.beta2, t)));
    float g = gradient * s->grad_scale;
    *m = fmaf(o.beta1, *m, (1 - o.beta1) * g);
    *v = fmaf(o.beta2, *v, ((1 - o.beta2) * g) * g);
    float denom = sqrtf(*v) * inv_sqrt_bc2 + o.eps;
    float u = (*m * inv_bc1) / denom;
    u = fmaf(decay, *p, u);
    *p = fmaf(-in->lr, u, *p);
}

static inline void zero_reference_update(const struct unit *unit, const struct step_input *in,
                                         const struct update_scalars *s, enum dtype dt, const void *grad,
                                         float *p, float *m, float *v) {
    for (int t = 0; t < unit->count; t++) {
        float decay = unit->tensors[t].decay ? zero_case_optimizer().weight_decay : 0;
        for (int64_t i = unit->tensors[t].offset; i < unit->tensors[t].offset + unit->tensors[t].numel; i++)
            zero_reference_adamw(in, s, decay, dtype_load(dt, grad, (size_t)i), &p[i], &m[i], &v[i]);
    }
}

static inline void *zero_reference_round(enum dtype dt, const float *p, int64_t n) {
    void *out = calloc((size_t)n, 4);
    for (int64_t i = 0; i < n; i++) dtype_store(dt, out, (size_t)i, p[i]);
    return out;
}

static inline struct zero_reference *zero_reference_create(const struct zero_case *c) {
    struct zero_reference *ref = calloc(1, sizeof *ref);
    struct layout *l = ref->layout = zero_case_layout(c->world, c->tied);
    float *p[ZERO_CASE_UNITS], *m[ZERO_CASE_UNITS], *v[ZERO_CASE_UNITS];
    int64_t updates = 0;
    for (int u = 0; u < l->count; u++) {
        p[u] = calloc((size_t)l->units[u].n_pad, 4);
        m[u] = calloc((size_t)l->units[u].n_pad, 4);
        v[u] = calloc((size_t)l->units[u].n_pad, 4);
        zero_case_init(&l->units[u], u, p[u]);
        ref->weights[0][u] = zero_reference_round(c->dtype, p[u], l->units[u].n_pad);
    }
    for (int step = 0; step < c->steps; step++) {
        void *grads[ZERO_CASE_UNITS];
        struct exact_sum sum = {0};
        struct step_input in = zero_case_input(c, 0, step, updates);
        for (int u = 0; u < l->count; u++) {
            grads[u] = zero_reference_gradient(c, l, step, u);
            zero_reference_norm(c, grads[u], l->units[u].n_pad, &sum);
        }
        struct update_scalars s = update_decide(&sum, in.loss_scale, in.clip);
        struct step_stats *out = &ref->stats[step];
        *out = (struct step_stats){.grad_norm = s.norm, .skipped = s.skip};
        for (int r = 0; r < c->world; r++) out->loss += zero_case_input(c, r, step, updates).loss;
        for (int u = 0; u < l->count; u++) {
            if (!s.skip) zero_reference_update(&l->units[u], &in, &s, c->dtype, grads[u], p[u], m[u], v[u]);
            ref->weights[step + 1][u] = zero_reference_round(c->dtype, p[u], l->units[u].n_pad);
            free(grads[u]);
        }
        updates += !s.skip;
    }
    for (int u = 0; u < l->count; u++) {
        free(p[u]);
        free(m[u]);
        free(v[u]);
    }
    return ref;
}

static inline void zero_reference_destroy(struct zero_reference **r) {
    for (int s = 0; s <= ZERO_CASE_STEPS; s++)
        for (int u = 0; u < ZERO_CASE_UNITS; u++) free((*r)->weights[s][u]);
    layout_destroy(&(*r)->layout);
    free(*r);
    *r = NULL;
}

// ---------------------------------------------------------------- a rank of the ring

struct zero_rank;

// What the "model" enqueues on the compute stream.
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

// What was gathered for a pass belongs to nobody after its release.
static inline int zero_job_poison(void *arg) {
    struct zero_job *j = arg;
    size_t bytes = (size_t)j->z->ref->layout->units[j->u].n_pad * dtype_size(j->z->c->dtype);
    memset((void *)(uintptr_t)j->view.weights, 0xff, bytes);
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
        if (z->c->stage == 3 && !(z->c->tied && u == 0)) zero_rank_launch(z, zero_job_poison, job);
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
        if (z->c->stage == 3) zero_rank_launch(z, zero_job_poison, job);
        rc = topology_grad_ready(z->t, u);
    }
    return rc;
}

static inline int zero_rank_step(struct zero_rank *z, int step, int64_t *updates) {
    struct step_input in = zero_case_input(z->c, z->t->rank, step, *updates);
    struct step_stats got, want = z->ref->stats[step];
    for (int m = 0; m < z->c->micro; m++) {
        if (topology_begin_micro(z->t, m, z->c->micro)) return -1;
        if (zero_rank_forward(z, step, PASS_FORWARD) || zero_rank_backward(z, step, m)) return -1;
    }
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

// Payload counted against the formula; evaluation's gathers are no part of a step and counted apart.
static inline int zero_rank_check_wire(struct zero_rank *z) {
    const struct zero_case *c = z->c;
    uint64_t volume = 0, passes = c->stage == 3   ? 3 * (uint64_t)c->micro
                                  : c->stage == 2 ? 1 + (uint64_t)c->micro
                                                  : 2;
    for (int u = 0; u < z->ref->layout->count; u++)
        volume += (uint64_t)z->ref->layout->units[u].n_pad * dtype_size(c->dtype) * (uint64_t)(c->world - 1) /
                  (uint64_t)c->world;
    uint64_t want = volume * passes * (uint64_t)c->steps;
    uint64_t sent = atomic_load(&z->t->wire.payload_sent),
             received = atomic_load(&z->t->wire.payload_received);
    uint64_t predicted = volume * (c->stage == 3 ? 3 : 2);
    if (sent == want && received == want && z->t->wire_predicted.sent_per_step == predicted &&
        z->t->wire_predicted.received_per_step == predicted &&
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
        if (step % 3 == 2 && zero_rank_forward(z, step, PASS_EVAL)) return -1;
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
    z.jobs = calloc((size_t)(c->steps * (c->micro + 1) + 1) * ZERO_CASE_UNITS * 8, sizeof *z.jobs);
    struct zero_options o = {
        .stage = c->stage,
        .layout = ref->layout,
        .dtype = c->dtype,
        .dev = z.dev,
        .compute = z.compute,
        .optimizer = zero_case_optimizer(),
        .deadline_s = 60,
        .source = src,
    };
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
