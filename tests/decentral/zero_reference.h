// A toy for the ring's tests and its plain scalar reference: no model, gradients are functions of (rank,
// step, micro-batch, element).
//
// The reference is one loop over whole units: the ranks' gradients added in fp32 in rank order and rounded
// once, the exact sum of squares, the decision, AdamW as kernels/operations.h writes it. Weights are kept for
// every step, so that each acquired view can be compared to the bit where a model would read it.
#ifndef STARRING_TESTS_DECENTRAL_ZERO_REFERENCE_H
#define STARRING_TESTS_DECENTRAL_ZERO_REFERENCE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/rng.h"
#include "shared/core/topology.h"
#include "shared/model/optimizer.h"

#define ZERO_CASE_UNITS      5
#define ZERO_CASE_STEPS      8
#define ZERO_CASE_LOSS_SCALE 128.0f
#define ZERO_CASE_CLIP       0.75f

struct zero_case {
    int world, stage;
    enum dtype dtype;
    bool tied;
    int steps, micro;  // steps <= ZERO_CASE_STEPS
    bool in_turn;      // without overlap
    int group;         // ranks whose gradients are summed and rounded first; 0: none
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

// Odd sizes, and blocks of two shapes, so that slots change their gaps; a block behind the head in its slot
// writes where the head has reserved elements.
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
        if (u == 0 && tied) unit->tensors[0].reserved = SUMSQ_BLOCK;
        if (u == 0) zero_case_tensor(unit, "wpe", 5, 13, true);
        if (block) zero_case_tensor(unit, "norm", u == 3 ? 11 : 17, 1, false);
        if (block) zero_case_tensor(unit, "w", u == 3 ? 29 : 61, u == 3 ? 11 : 17, true);
        if (block) zero_case_tensor(unit, "b", 3, 1, false);
        if (u + 1 == l->count) zero_case_tensor(unit, "norm", 13, 1, false);
        if (u + 1 == l->count && !tied) {
            zero_case_tensor(unit, "lm_head", 37, 13, true);
            unit->tensors[1].reserved = SUMSQ_BLOCK;
        }
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
    return (struct optimizer_config){optimizers,     .lr = 0.01f,  .beta1 = 0.9f,
                                     .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
}

// This rank's share of the loss; the input has the sum of ZERO_CASE_TOKENS losses instead, in *loss_sum.
#define ZERO_CASE_TOKENS 3.0
static inline double zero_case_loss_sum(int rank, int step) { return 0.1 * (rank + 1) + 1.0 / (step + 3); }

static inline struct step_input zero_case_input(const struct zero_case *c, const double *loss_sum, int step,
                                                int64_t updates) {
    return (struct step_input){
        .step = step,
        .updates = updates,
        .lr = 0.01f * (float)(step + 1),
        .clip = ZERO_CASE_CLIP,
        .loss_scale = c->dtype == DT_F16 ? ZERO_CASE_LOSS_SCALE : 1.0f,
        .loss_sum = loss_sum,
        .loss_tokens = ZERO_CASE_TOKENS,
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
    int group = c->group ? c->group : c->world;
    for (int64_t i = 0; i < n; i++) {
        float total = 0;
        for (int first = 0; first < c->world; first += group) {
            float sum = dtype_load(c->dtype, grads[first], (size_t)i);
            for (int r = first + 1; r < first + group; r++) sum += dtype_load(c->dtype, grads[r], (size_t)i);
            dtype_store(c->dtype, out, (size_t)i, sum);
            sum = dtype_load(c->dtype, out, (size_t)i);
            total = first == 0 ? sum : total + sum;
        }
        dtype_store(c->dtype, out, (size_t)i, total);
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

// AdamW of one element, as kernels/operations.h orders it.
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
        struct step_input in = zero_case_input(c, NULL, step, updates);
        for (int u = 0; u < l->count; u++) {
            grads[u] = zero_reference_gradient(c, l, step, u);
            zero_reference_norm(c, grads[u], l->units[u].n_pad, &sum);
        }
        struct update_scalars s = update_decide(&sum, in.loss_scale, in.clip);
        struct step_stats *out = &ref->stats[step];
        *out = (struct step_stats){.grad_norm = s.norm, .skipped = s.skip};
        for (int r = 0; r < c->world; r++) out->loss += zero_case_loss_sum(r, step) / ZERO_CASE_TOKENS;
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

#endif
