// A toy model for the star's tests: odd tensor sizes, gradients that depend on the weights, and the
// plain in-process trainer that every way of running it must equal to the last bit.
#ifndef STARRING_TESTS_PS_TEST_PS_TOY_H
#define STARRING_TESTS_PS_TEST_PS_TOY_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/job/consistency.h"
#include "ps/job/ps.h"
#include "ps/job/shard_map.h"
#include "ps/job/timing.h"
#include "ps/star.h"
#include "shared/config/config.h"
#include "shared/core/error.h"
#include "shared/model/optimizer.h"
#include "tests/ps_codec/plain_codes.h"

#define TOY_UNITS 4
#define TOY_LR    0.01f

static inline void toy_tensor(struct layout *l, int unit, int64_t rows, int64_t cols, bool decay) {
    struct unit *u = &l->units[unit];
    struct tensor *t = &u->tensors[u->count];
    snprintf(t->name, sizeof t->name, "u%d.t%d", unit, u->count++);
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->dims = cols > 1 ? 2 : 1;
    t->decay = decay;
}

static inline struct layout *toy_layout(int workers, int64_t rows) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = TOY_UNITS;
    l->units = xcalloc(TOY_UNITS, sizeof *l->units);
    for (int u = 0; u < TOY_UNITS; u++) {
        snprintf(l->units[u].name, sizeof l->units[u].name, u == 0 ? "embedding" : "block.%d", u - 1);
        toy_tensor(l, u, rows + 3 * u, 17, true);
        toy_tensor(l, u, 13 + u, 1, false);
        if (u == 2) toy_tensor(l, u, 5, 7, true);
    }
    layout_finish(l, workers);
    return l;
}

// State shared by the simulation's workers and shards. MIXED: worker 0 shares with shards of even number alone, the
// others
// with all.
enum toy_share { SHARE_NOTHING, SHARE_WRITTEN, SHARE_IN_PLACE, SHARE_MIXED };

struct toy_case {
    enum dtype dtype;
    const char *consistency;  // as behind "ps:"
    int lead;                 // of the simulation's cores: steps that are open beyond the oldest one
    int lag;                  // and whose outcome a worker need not have heard, where these are more
    bool oldest;              // of the weights that such a step may be computed on
    int workers, servers, threads, steps;
    float clip;
    int64_t overflow_step;  // -1: never; worker 1 (or 0) has an infinity then
    uint64_t seed;
    enum toy_share share;
    struct code_format code;  // of pushes
    int elastic_min;          // 0: all workers, always
    int group;                // workers of a group whose gradients are added first; 0: none
    enum medium medium;       // of real roles
    int partition_bytes;      // 0: small ones
    int64_t rows;             // of the first matrix; 0: 80
    bool far;                 // the workers' device has memory of its own (test_ps_far.h)
    bool refused;             // the last one's cannot page-lock what it shares
    double repeat_s;          // of the simulation: between two questions, at most; 0: 0.2
    bool look;                // an evaluation is under way when finish is called
    struct schedule_config schedule;
    int micro;         // of workers that keep two units at a time: micro-batches of a step; 0: they keep all
    bool beside;       // the servers are beside the workers
    int credit_bytes;  // of the simulation; 0: 4096
    // For pushes that are applied on arrival:
    int per_update, max_lead;
    int fresh;  // ages that count, from 0 on; 0: all
    bool damping;
    float lambda, decay;
    float age_decay, age_cutoff;  // of cgad; 0: no local steps
    const char *snapshots;        // the directory of those that worker 0 takes
    int every;
    int64_t grace_ms;
};

static inline struct config toy_config(const struct toy_case *t) {
    struct config c = {.row = &topology_star,
                       .workers = t->workers,
                       .dtype = t->dtype,
                       .steps = t->steps,
                       .clip = t->clip,
                       .reduce_group = t->group,
                       .medium = t->medium};
    c.variant = consistency_parse(t->consistency, &c.bound);
    c.optimizer = (struct optimizer_config){optimizers,     .lr = TOY_LR, .beta1 = 0.9f,
                                            .beta2 = 0.99f, .eps = 1e-8f, .weight_decay = 0.1f};
    // A worker's share of a step is one sequence.
    c.train_batch = t->workers;
    c.micro_batch = c.accumulation = 1;
    if (t->micro) c.accumulation = t->micro;
    static const struct config rounds = {.local_steps.steps = 1};
    if (t->age_decay > 0) c.outer_run = &rounds;
    c.local_steps = (struct local_steps_config){
        .outer = OUTER_CGAD, .age_decay = t->age_decay, .age_cutoff = t->age_cutoff};
    c.schedule = t->schedule;
    c.eval_every = t->every;
    c.eval_batches = EVAL_ALL;
    c.device = t->far ? DEVICE_CUDA : DEVICE_CPU;
    c.scaler.enabled = t->dtype == DT_F16;
    c.scaler.static_scale = 256;  // toy_loss_scale
    if (t->elastic_min)
        c.recovery = (struct recovery_config){.elastic_min = t->elastic_min, .elastic_max = t->workers};
    c.ps = (struct ps_config){.servers = t->servers,
                              .threads = t->threads,
                              .partition_bytes = t->partition_bytes ? t->partition_bytes : 2048,
                              .deadline_ms = 30000,
                              .heartbeat_ms = 100,
                              .credit_bytes = 16384,
                              .grace_ms = t->grace_ms,
                              .read_oldest = t->oldest,
                              .code = t->code,
                              .max_lead = t->max_lead,
                              .pushes_per_update = t->per_update,
                              .max_staleness = t->fresh - 1,
                              .age_damping = t->damping,
                              .delay_compensation = t->lambda,
                              .delay_decay = t->decay,
                              .bind = (char *)"tcp://127.0.0.1:*",
                              .servers_on_workers = t->beside,
                              .resident = t->micro ? PS_RESIDENT_UNITS : PS_RESIDENT_ALL};
    return c;
}

static inline uint64_t toy_hash(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

static inline float toy_noise(uint64_t a, uint64_t b) {
    return (float)((double)(int64_t)toy_hash(a * 0x9e3779b97f4a7c15ULL + b) / 9.3e18);
}

static inline void toy_init(const struct layout *l, int u, float *out) {
    for (int i = 0; i < l->units[u].count; i++) {
        const struct tensor *t = &l->units[u].tensors[i];
        for (int64_t j = 0; j < t->numel; j++)
            out[t->offset + j] = toy_noise((uint64_t)(77 + u), (uint64_t)(t->offset + j));
    }
}

static inline float toy_loss_scale(const struct toy_case *t) { return t->dtype == DT_F16 ? 256.0f : 1.0f; }

// Worker's gradient of unit u at `step` on these weights; zeros in gaps.
static inline void toy_grad(const struct toy_case *t, const struct layout *l, int u, int worker, int64_t step,
                            const void *weights, void *out) {
    float scale = toy_loss_scale(t) / (float)t->workers;
    for (int i = 0; i < l->units[u].count; i++) {
        const struct tensor *x = &l->units[u].tensors[i];
        for (int64_t j = 0; j < x->numel; j++) {
            int64_t at = x->offset + j;
            float w = dtype_load(t->dtype, weights, (size_t)at);
            float noise = toy_noise((uint64_t)(1000 * step + 10 * worker + u), (uint64_t)at);
            dtype_store(t->dtype, out, (size_t)at, scale * (0.3f * w + noise));
        }
    }
    if (step == t->overflow_step && worker == t->workers - 1 && u == 1)
        dtype_store(t->dtype, out, 3, INFINITY);
}

// The gradient of one key (part), of the job's batch, on the key's weights. weights, out: (part's elements) of t->dtype.
static inline void toy_key_grad(const struct toy_case *t, const struct layout *l,
                                const struct partition *part, const char *weights, int64_t batch, void *out) {
    size_t size = dtype_size(t->dtype), bytes = (size_t)(part->end - part->begin) * size;
    unsigned long all = (unsigned long)l->units[part->unit].n_pad;
    char *unit = xcalloc(all, size), *grad = xcalloc(all, size);
    memcpy(unit + (size_t)part->begin * size, weights, bytes);
    toy_grad(t, l, part->unit, (int)(batch % t->workers), batch / t->workers, unit, grad);
    memcpy(out, grad + (size_t)part->begin * size, bytes);
    free(unit);
    free(grad);
}

static inline double toy_loss(const struct toy_case *t, int worker, int64_t step) {
    return (1.0 + 0.1 * worker) / ((double)t->workers * (double)(step + 1));
}

// ---------------------------------------------------------------- the plain trainer
struct toy_ref {
    void *weight[TOY_UNITS];
    float *master[TOY_UNITS], *m[TOY_UNITS], *v[TOY_UNITS];
    int64_t updates;
    struct step_stats last;
    struct update_scalars scalars;  // of the last step
    struct shard_map *map;          // with codes: their partitions
    struct plain_worker codes[TOY_UNITS][8];
};

static inline struct toy_ref toy_ref_start(const struct toy_case *t, const struct layout *l) {
    struct toy_ref r = {.updates = 0};
    for (int u = 0; u < l->count; u++) {
        unsigned long n = (unsigned long)l->units[u].n_pad;
        r.weight[u] = xcalloc(n, dtype_size(t->dtype));
        r.master[u] = xcalloc(n, 4);
        r.m[u] = xcalloc(n, 4);
        r.v[u] = xcalloc(n, 4);
        toy_init(l, u, r.master[u]);
        for (unsigned long i = 0; i < n; i++) dtype_store(t->dtype, r.weight[u], i, r.master[u][i]);
        for (int w = 0; w < t->workers && t->code.kind != CODE_NONE; w++)
            plain_worker_init(&r.codes[u][w], (int64_t)n);
    }
    struct config c = toy_config(t);
    if (t->code.kind != CODE_NONE) r.map = shard_map_of(&c, l);
    return r;
}

static inline void toy_ref_free(struct toy_ref *r) {
    for (int u = 0; u < TOY_UNITS; u++) {
        free(r->weight[u]);
        free(r->master[u]);
        free(r->m[u]);
        free(r->v[u]);
        for (int w = 0; w < 8; w++) plain_worker_free(&r->codes[u][w]);
    }
    shard_map_destroy(&r->map);
}

// OP_REDUCE over the workers: within each group, whose sum takes the place of its first gradient, then over the groups.
static inline void toy_reduce(const struct toy_case *t, void *total, void *const *in, int64_t n) {
    const char *why = "";
    const void *groups[8];
    int g = t->group ? t->group : t->workers, count = t->workers / g;
    for (int i = 0; i < count; i++) {
        void *out = count == 1 ? total : in[i * g];
        struct reduce_args a = {total, (const void *const *)in + i * g, g, n, t->dtype, REDUCTION_SUM};
        cpu_ops[OP_REDUCE](1, &a, &why);
        if (out != total) memcpy(out, total, (size_t)n * dtype_size(t->dtype));
        groups[i] = out;
    }
    struct reduce_args a = {total, groups, count, n, t->dtype, REDUCTION_SUM};
    if (count > 1) cpu_ops[OP_REDUCE](1, &a, &why);
}

// One synchronous step: OP_REDUCE over workers, OP_SUMSQ over all, the decision, AdamW.
static inline void toy_ref_step(const struct toy_case *t, const struct layout *l, const struct config *c,
                                struct toy_ref *r, int64_t step) {
    struct exact_sum sum = {{0}, 0};
    void *total[TOY_UNITS];
    const char *why = "";
    for (int u = 0; u < l->count; u++) {
        unsigned long n = (unsigned long)l->units[u].n_pad;
        void *inputs[8];
        total[u] = xcalloc(n, dtype_size(t->dtype));
        for (int w = 0; w < t->workers; w++) {
            inputs[w] = xcalloc(n, dtype_size(t->dtype));
            toy_grad(t, l, u, w, step, r->weight[u], inputs[w]);
        }
        if (r->map)
            plain_sum(r->codes[u], t->workers, (int64_t)n, inputs, &t->code, r->map, u, t->dtype, total[u]);
        else
            toy_reduce(t, total[u], inputs, (int64_t)n);
        // A worker that decides by itself decides about its gradient, not about what is reported of it.
        void *judged = consistency_of(c).row->on_arrival ? inputs[0] : total[u];
        struct sumsq_args s = {.out = &sum, .x = judged, .n = (int64_t)n, .dt = t->dtype};
        cpu_ops[OP_SUMSQ](1, &s, &why);
        for (int w = 0; w < t->workers; w++) free(inputs[w]);
    }
    struct update_scalars scalars = update_decide(&sum, toy_loss_scale(t), t->clip);
    for (int u = 0; u < l->count; u++) {
        struct update_range range = {.unit = &l->units[u],
                                     .end = l->units[u].n_pad,
                                     .master = r->master[u],
                                     .state = {r->m[u], r->v[u]},
                                     .weight = r->weight[u],
                                     .grad = total[u],
                                     .dtype = t->dtype};
        const struct update_step update = {TOY_LR, r->updates + 1, &scalars};
        if (!scalars.skip) optimizer_apply(&c->optimizer, &range, &update, 1);
        if (!scalars.skip && r->map) plain_keep(r->codes[u], t->workers, l->units[u].n_pad);
        free(total[u]);
    }
    if (!scalars.skip) r->updates++;
    r->scalars = scalars;
    r->last = (struct step_stats){.grad_norm = scalars.norm, .skipped = scalars.skip != 0};
    r->last.loss = toy_loss(t, 0, step);
    for (int w = 1; w < t->workers; w++) r->last.loss += toy_loss(t, w, step);
}

#endif
