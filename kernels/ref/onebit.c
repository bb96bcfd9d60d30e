// 1-bit Adam's operations: bit for bit what every backend computes.
#include "kernels/ref/onebit.h"

#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

// x(256) becomes what *out does not say; v 0: masked.
static void encode(struct onebit_block *out, float *x, const float *v) {
    int counted = 0;
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        if (v[i] == 0) x[i] = 0;
        counted += v[i] != 0;
    }
    *out = (struct onebit_block){.scale = onebit_scale(x, counted)};
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        if (v[i] == 0) continue;
        out->sign[i / 32] |= (uint32_t)(x[i] >= 0) << (i % 32);
        x[i] -= onebit_said(out, i);
    }
}

int ref_op_onebit_encode(int threads, const void *args, const char **why) {
    const struct onebit_encode_args *a = args;
    (void)threads;
    (void)why;
    assert(a->n % ONEBIT_BLOCK == 0);
    if (a->scalars->skip) return 0;
    for (int64_t i = 0; i < a->n; i++) {
        float g = dtype_load(a->dt, a->grad, (size_t)i) * a->own->grad_scale;
        a->error[i] += fmaf(a->beta1, a->m[i], (1.0f - a->beta1) * g);
    }
    for (int64_t b = 0; b < a->n / ONEBIT_BLOCK; b++)
        encode(&a->out[b], a->error + b * ONEBIT_BLOCK, a->v + b * ONEBIT_BLOCK);
    return 0;
}

int ref_op_onebit_sum(int threads, const void *args, const char **why) {
    const struct onebit_sum_args *a = args;
    int64_t blocks = a->n / ONEBIT_BLOCK;
    (void)threads;
    (void)why;
    assert(a->n % ONEBIT_BLOCK == 0 && a->ranks >= 1);
    if (a->scalars->skip) return 0;
    for (int64_t i = 0; i < a->n; i++) {
        const struct onebit_block *in = a->in + i / ONEBIT_BLOCK;
        float total = onebit_said(in, i % ONEBIT_BLOCK);
        for (int32_t r = 1; r < a->ranks; r++) total += onebit_said(in + r * blocks, i % ONEBIT_BLOCK);
        a->error[i] += total * (1.0f / (float)a->ranks);
    }
    for (int64_t b = 0; b < blocks; b++)
        encode(&a->out[b], a->error + b * ONEBIT_BLOCK, a->v + b * ONEBIT_BLOCK);
    return 0;
}

int ref_op_adam_frozen(int threads, const void *args, const char **why) {
    const struct adam_frozen_args *a = args;
    (void)threads;
    (void)why;
    assert(a->groups >= 1 && a->groups <= UPDATE_GROUPS_MAX && a->ends[a->groups - 1] == a->n);
    assert(!a->momentum || a->n % ONEBIT_BLOCK == 0);
    if (a->scalars->skip) return 0;
    for (int64_t i = 0, group = 0; i < a->n; i++) {
        while (a->ends[group] <= i) group++;
        float p = a->master[i], m, v = a->v[i];
        if (v == 0) {
            m = 0;
        } else if (a->momentum) {
            m = onebit_said(&a->momentum[i / ONEBIT_BLOCK], i % ONEBIT_BLOCK);
        } else {
            float g = dtype_load(a->dt, a->grad, (size_t)i) * a->scalars->grad_scale;
            m = fmaf(a->beta1, a->m[i], (1.0f - a->beta1) * g);
        }
        float u = m / (sqrtf(v) + a->eps);
        u = fmaf(a->weight_decay[group], p, u);
        p = fmaf(-a->lr, u, p);
        a->master[i] = p;
        a->m[i] = m;
        if (a->weight) dtype_store(a->dt, a->weight, (size_t)i, p);
    }
    return 0;
}
