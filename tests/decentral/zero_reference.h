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

#include "shared/config/config.h"
#include "shared/core/numbers.h"
#include "shared/core/topology.h"
#include "shared/model/optimizer.h"
#include "shared/model/unit_schedule.h"

// ---------------------------------------------------------------- 1-bit Adam behind its warm-up
// Tang et al. 2021, algorithm 1, over ranks and whole units: no shard, no stream, no collective. The code is
// kernels/codec.h's definition, written out once more.
#define ONEBIT_REFERENCE_RANKS 8

// The size of a unit of n elements.
struct onebit_reference {
    int64_t n;
    float *worker[ONEBIT_REFERENCE_RANKS];  // (n) errors of what each rank says
    float *server;                          // (n) errors of what is said of the mean; shard r is rank r's
};

// said(n) = the code of x(n), x becomes what it leaves out; v 0: masked.
static inline void onebit_reference_code(float *x, const float *v, int64_t n, float *said) {
    for (int64_t at = 0; at < n; at += 256) {
        double lanes[32] = {0};
        int counted = 0;
        for (int64_t i = at; i < at + 256; i++) {
            if (v[i] == 0) x[i] = 0;
            if (v[i] != 0) counted++;
            lanes[i % 32] += (double)x[i] * x[i];
        }
        for (int half = 16; half; half /= 2)
            for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
        float scale = counted ? (float)sqrt(lanes[0] / counted) : 0;
        for (int64_t i = at; i < at + 256; i++) {
            said[i] = v[i] == 0 ? 0 : x[i] >= 0 ? scale : -scale;
            x[i] -= said[i];
        }
    }
}

// m(n) becomes the momentum that all ranks agree on; grads: each rank's gradient times its scale, in fp32.
static inline void onebit_reference_exchange(struct onebit_reference *o, int ranks, float beta1,
                                             float *const *grads, const float *v, float *m) {
    float *mean = calloc((size_t)o->n, sizeof *mean), *said = calloc((size_t)o->n, sizeof *said);
    for (int r = 0; r < ranks; r++) {
        for (int64_t i = 0; i < o->n; i++) o->worker[r][i] += fmaf(beta1, m[i], (1 - beta1) * grads[r][i]);
        onebit_reference_code(o->worker[r], v, o->n, said);
        for (int64_t i = 0; i < o->n; i++) mean[i] = r ? mean[i] + said[i] : said[i];
    }
    for (int64_t i = 0; i < o->n; i++) o->server[i] += mean[i] * (1.0f / (float)ranks);
    onebit_reference_code(o->server, v, o->n, m);
    free(mean);
    free(said);
}

// ---------------------------------------------------------------- the case
#define ZERO_CASE_UNITS      5
#define ZERO_CASE_STEPS      8
#define ZERO_CASE_LOSS_SCALE 128.0f
#define ZERO_CASE_CLIP       0.75f

struct zero_case {
    int world, stage;
    enum dtype dtype;
    bool tied;
    int steps, micro;  // steps <= ZERO_CASE_STEPS
    bool no_overlap;   // without overlap
    int group;         // ranks whose gradients are summed and rounded first; 0: none
    int64_t freeze;    // stage 0: 1-bit Adam whose variance is frozen behind so many updates; 0: AdamW
    struct unit_prefetch prefetch;
};

struct zero_reference {
    struct layout *layout;
    void *weights[ZERO_CASE_STEPS + 1][ZERO_CASE_UNITS];  // before step i, of the run's type
    struct step_stats stats[ZERO_CASE_STEPS];
    int64_t compressed;  // steps in which momenta travel
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

static inline struct optimizer_config zero_case_optimizer_of(const struct zero_case *c) {
    return (struct optimizer_config){c->freeze ? optimizer_find("OneBitAdam") : optimizers,
                                     .lr = 0.01f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .freeze_step = c->freeze};
}

static inline struct optimizer_config zero_case_optimizer(void) {
    return zero_case_optimizer_of(&(struct zero_case){.dtype = DT_F32});
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

// The "model" writes tensors into a gradient buffer (or adds to them), never gaps. A tied
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
// ones are reduced after each and added in the gradient's type. One rank's are full in every stage.
static inline void *zero_reference_gradient(const struct zero_case *c, const struct layout *l, int step,
                                            int u) {
    int64_t n = l->units[u].n_pad;
    char *grads[8], *reduced = calloc((size_t)n, 4), *part = calloc((size_t)n, 4);
    for (int r = 0; r < c->world; r++) grads[r] = calloc((size_t)n, 4);
    bool each = c->stage >= 2 && c->world > 1;
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

// The effect of a step on the gradient, and the contents of unit u.
struct zero_reference_unit {
    float *p, *m, *v;
    void *grad;  // reduced
    struct onebit_reference onebit;
};

// The update of one element, as kernels/operations.h orders it. frozen: m is what it has become already.
static inline void zero_reference_element(const struct zero_case *c, const struct step_input *in, float decay,
                                          float g, bool frozen, float *p, float *m, float *v) {
    struct optimizer_config o = zero_case_optimizer_of(c);
    double t = (double)(in->updates + 1);
    float inv_bc1 = (float)(1 / (1 - pow(o.beta1, t))), inv_sqrt_bc2 = (float)(1 / sqrt(1 - pow(o.beta2, t)));
    if (c->freeze) inv_bc1 = inv_sqrt_bc2 = 1;
    if (!frozen) *m = fmaf(o.beta1, *m, (1 - o.beta1) * g);
    if (!frozen) *v = fmaf(o.beta2, *v, ((1 - o.beta2) * g) * g);
    float denom = sqrtf(*v) * inv_sqrt_bc2 + o.eps;
    float u = (*m * inv_bc1) / denom;
    u = fmaf(decay, *p, u);
    *p = fmaf(-in->lr, u, *p);
}

static inline void zero_reference_update(const struct zero_case *c, const struct unit *unit,
                                         const struct step_input *in, const struct update_scalars *s,
                                         struct zero_reference_unit *x) {
    bool frozen = c->freeze && in->updates >= c->freeze;
    for (int t = 0; t < unit->count; t++) {
        float decay = unit->tensors[t].decay ? zero_case_optimizer_of(c).weight_decay : 0;
        for (int64_t i = unit->tensors[t].offset; i < unit->tensors[t].offset + unit->tensors[t].numel; i++) {
            float g = frozen && c->world > 1 ? 0 : dtype_load(c->dtype, x->grad, (size_t)i) * s->grad_scale;
            if (frozen && c->world == 1)  // nothing to agree on
                x->m[i] = x->v[i] == 0 ? 0
                                       : fmaf(zero_case_optimizer_of(c).beta1, x->m[i],
                                              (1 - zero_case_optimizer_of(c).beta1) * g);
            zero_reference_element(c, in, decay, g, frozen, &x->p[i], &x->m[i], &x->v[i]);
        }
    }
}

// Each rank's own gradient of a step, behind its last micro-batch; its norm joins own[r] and *all.
static inline void zero_reference_own(const struct zero_case *c, const struct layout *l, int step, int u,
                                      void **grads, struct exact_sum *own, struct exact_sum *all) {
    for (int r = 0; r < c->world; r++) {
        struct exact_sum sum = {0};
        grads[r] = calloc((size_t)l->units[u].n_pad, 4);
        for (int m = 0; m < c->micro; m++) zero_reference_backward(c, l, r, step, m, u, m > 0, grads[r]);
        zero_reference_norm(c, grads[r], l->units[u].n_pad, &sum);
        exact_sum_merge(&own[r], &sum);
        exact_sum_merge(all, &sum);
    }
}

// A step in which momenta travel: the decision, and each unit's new momentum.
static inline struct update_scalars zero_reference_compressed(const struct zero_case *c,
                                                              const struct layout *l,
                                                              const struct step_input *in,
                                                              struct zero_reference_unit *units) {
    void *grads[ZERO_CASE_UNITS][ONEBIT_REFERENCE_RANKS];
    struct exact_sum own[ONEBIT_REFERENCE_RANKS] = {{.nonfinite = 0}}, all = {0};
    for (int u = 0; u < l->count; u++) zero_reference_own(c, l, (int)in->step, u, grads[u], own, &all);
    struct update_scalars s = update_decide(&all, (float)((double)in->loss_scale / sqrt(c->world)), in->clip);
    for (int u = 0; u < l->count; u++) {
        float *scaled[ONEBIT_REFERENCE_RANKS];
        int64_t n = l->units[u].n_pad;
        for (int r = 0; r < c->world; r++) {
            float scale =
                update_decide(&own[r], (float)((double)in->loss_scale / c->world), in->clip).grad_scale;
            scaled[r] = calloc((size_t)n, 4);
            for (int64_t i = 0; i < n; i++)
                scaled[r][i] = dtype_load(c->dtype, grads[u][r], (size_t)i) * scale;
            free(grads[u][r]);
        }
        if (!s.skip)
            onebit_reference_exchange(&units[u].onebit, c->world, zero_case_optimizer_of(c).beta1, scaled,
                                      units[u].v, units[u].m);
        for (int r = 0; r < c->world; r++) free(scaled[r]);
    }
    return s;
}

// A step in which gradients are reduced.
static inline struct update_scalars zero_reference_reduced(const struct zero_case *c, const struct layout *l,
                                                           const struct step_input *in,
                                                           struct zero_reference_unit *units) {
    struct exact_sum sum = {0};
    for (int u = 0; u < l->count; u++) {
        units[u].grad = zero_reference_gradient(c, l, (int)in->step, u);
        zero_reference_norm(c, units[u].grad, l->units[u].n_pad, &sum);
    }
    return update_decide(&sum, in->loss_scale, in->clip);
}

static inline void *zero_reference_round(enum dtype dt, const float *p, int64_t n) {
    void *out = calloc((size_t)n, 4);
    for (int64_t i = 0; i < n; i++) dtype_store(dt, out, (size_t)i, p[i]);
    return out;
}

static inline void zero_reference_unit_init(const struct zero_case *c, const struct unit *unit, int u,
                                            struct zero_reference_unit *x) {
    size_t n = (size_t)unit->n_pad;
    *x = (struct zero_reference_unit){.p = calloc(n, 4), .m = calloc(n, 4), .v = calloc(n, 4)};
    x->onebit = (struct onebit_reference){.n = unit->n_pad, .server = calloc(n, 4)};
    for (int r = 0; r < c->world && c->freeze; r++) x->onebit.worker[r] = calloc(n, 4);
    zero_case_init(unit, u, x->p);
}

static inline void zero_reference_unit_fini(struct zero_reference_unit *x) {
    free(x->p);
    free(x->m);
    free(x->v);
    free(x->onebit.server);
    for (int r = 0; r < ONEBIT_REFERENCE_RANKS; r++) free(x->onebit.worker[r]);
}

static inline struct zero_reference *zero_reference_create(const struct zero_case *c) {
    struct zero_reference *ref = calloc(1, sizeof *ref);
    struct layout *l = ref->layout = zero_case_layout(c->world, c->tied);
    struct zero_reference_unit units[ZERO_CASE_UNITS];
    int64_t updates = 0;
    for (int u = 0; u < l->count; u++) {
        zero_reference_unit_init(c, &l->units[u], u, &units[u]);
        ref->weights[0][u] = zero_reference_round(c->dtype, units[u].p, l->units[u].n_pad);
    }
    for (int step = 0; step < c->steps; step++) {
        struct step_input in = zero_case_input(c, NULL, step, updates);
        bool compressed = c->freeze && c->world > 1 && updates >= c->freeze;
        struct update_scalars s =
            (compressed ? zero_reference_compressed : zero_reference_reduced)(c, l, &in, units);
        struct step_stats *out = &ref->stats[step];
        *out = (struct step_stats){.grad_norm = s.norm, .skipped = s.skip};
        for (int r = 0; r < c->world; r++) out->loss += zero_case_loss_sum(r, step) / ZERO_CASE_TOKENS;
        for (int u = 0; u < l->count; u++) {
            if (!s.skip) zero_reference_update(c, &l->units[u], &in, &s, &units[u]);
            ref->weights[step + 1][u] = zero_reference_round(c->dtype, units[u].p, l->units[u].n_pad);
            free(units[u].grad);
            units[u].grad = NULL;
        }
        updates += !s.skip;
        ref->compressed += compressed;
    }
    for (int u = 0; u < l->count; u++) zero_reference_unit_fini(&units[u]);
    return ref;
}

static inline void zero_reference_destroy(struct zero_reference **r) {
    for (int s = 0; s <= ZERO_CASE_STEPS; s++)
        for (int u = 0; u < ZERO_CASE_UNITS; u++) free((*r)->weights[s][u]);
    layout_destroy(&(*r)->layout);
    free(*r);
    *r = NULL;
}

static inline struct config zero_case_config(const struct zero_case *c) {
    return (struct config){.variant = c->stage,
                           .workers = c->world,
                           .dtype = c->dtype,
                           .optimizer = zero_case_optimizer_of(c),
                           .accumulation = c->micro,
                           .grad_accum = 1 + (int)c->dtype,
                           .no_overlap = c->no_overlap,
                           .reduce_group = c->group,
                           .prefetch_elements = c->prefetch.bounded ? c->prefetch.elements : PREFETCH_AUTO,
                           .live_elements = c->prefetch.live,
                           .deadline_ms = 60000};
}

#endif
