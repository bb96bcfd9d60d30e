// 1-bit Adam's operations (kernels/codec/onebit.h), a block of 256 elements at a time.
#include "kernels/cpu/ops/onebit.h"

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spans.h"

#define GRAIN (SPAN_ELEMENTS / ONEBIT_BLOCK)  // blocks

// x(256) becomes what *out does not say; v 0: masked.
static void encode(struct onebit_block *out, float *restrict x, const float *restrict v) {
    int32_t counted = 0;
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        x[i] = v[i] != 0 ? x[i] : 0;
        counted += v[i] != 0;
    }
    out->scale = onebit_scale(x, counted);
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        uint32_t word = 0;
        for (uint32_t l = 0; l < 32; l++) {
            uint32_t i = 32 * (uint32_t)w + l;
            word |= (uint32_t)((x[i] >= 0) & (v[i] != 0)) << l;
        }
        out->sign[w] = word;
    }
    for (int i = 0; i < ONEBIT_BLOCK; i++) {
        float y = x[i] - (x[i] >= 0 ? out->scale : -out->scale);
        x[i] = v[i] != 0 ? y : 0;
    }
}

static void encode_span(const void *args, int64_t begin, int64_t end) {
    const struct onebit_encode_args *a = args;
    const float scale = a->own->grad_scale, beta1 = a->beta1, rest1 = 1.0f - a->beta1;
    float grad[ONEBIT_BLOCK];
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * ONEBIT_BLOCK;
        float *restrict x = a->error + at;
        const float *restrict m = a->m + at;
        load_f32(a->dt, grad, a->grad, at, chunk_min(ONEBIT_BLOCK, a->n - at));
        for (int i = 0; i < ONEBIT_BLOCK; i++) x[i] += __builtin_fmaf(beta1, m[i], rest1 * (grad[i] * scale));
        encode(&a->out[b], x, a->v + at);
    }
}

int cpu_op_onebit_encode(int threads, const void *args, const char **why) {
    const struct onebit_encode_args *a = args;
    (void)why;
    assert(a->n % ONEBIT_BLOCK == 0);
    if (!a->scalars->skip) for_spans(threads, a->n / ONEBIT_BLOCK, GRAIN, encode_span, a);
    return 0;
}

static void sum_span(const void *args, int64_t begin, int64_t end) {
    const struct onebit_sum_args *a = args;
    const float part = 1.0f / (float)a->ranks;
    int64_t blocks = a->n / ONEBIT_BLOCK;
    float total[ONEBIT_BLOCK], one[ONEBIT_BLOCK];
    for (int64_t b = begin; b < end; b++) {
        float *restrict x = a->error + b * ONEBIT_BLOCK;
        onebit_decode(&a->in[b], total);
        for (int32_t r = 1; r < a->ranks; r++) {
            onebit_decode(&a->in[r * blocks + b], one);
            for (int i = 0; i < ONEBIT_BLOCK; i++) total[i] += one[i];
        }
        for (int i = 0; i < ONEBIT_BLOCK; i++) x[i] += total[i] * part;
        encode(&a->out[b], x, a->v + b * ONEBIT_BLOCK);
    }
}

int cpu_op_onebit_sum(int threads, const void *args, const char **why) {
    const struct onebit_sum_args *a = args;
    (void)why;
    assert(a->n % ONEBIT_BLOCK == 0 && a->ranks >= 1);
    if (!a->scalars->skip) for_spans(threads, a->n / ONEBIT_BLOCK, GRAIN, sum_span, a);
    return 0;
}

// ---------------------------------------------------------------- the update
// m(n), the momentum of elements [at, at + n) of one block.
static void momentum(const struct adam_frozen_args *a, float *restrict m, int64_t at, int64_t n) {
    float x[ONEBIT_BLOCK];
    const float *restrict v = a->v + at;
    if (a->momentum) {
        onebit_decode(&a->momentum[at / ONEBIT_BLOCK], x);
        int64_t first = at % ONEBIT_BLOCK;
        for (int64_t i = 0; i < n; i++) m[i] = v[i] != 0 ? x[first + i] : 0;
        return;
    }
    const float scale = a->scalars->grad_scale, beta1 = a->beta1, rest1 = 1.0f - a->beta1;
    load_f32(a->dt, x, a->grad, at, n);
    for (int64_t i = 0; i < n; i++) {
        float y = __builtin_fmaf(beta1, m[i], rest1 * (x[i] * scale));
        m[i] = v[i] != 0 ? y : 0;
    }
}

static void frozen_span(const void *args, int64_t begin, int64_t end) {
    const struct adam_frozen_args *a = args;
    const float minus_lr = -a->lr, eps = a->eps;
    int g = 0;
    for (int64_t at = begin, n; at < end; at += n) {
        while (a->ends[g] <= at) g++;
        n = chunk_min(ONEBIT_BLOCK - at % ONEBIT_BLOCK, chunk_min(end, a->ends[g]) - at);
        float *restrict p = a->master + at, *restrict m = a->m + at;
        const float *restrict v = a->v + at;
        const float decay = a->weight_decay[g];
        momentum(a, m, at, n);
        for (int64_t i = 0; i < n; i++) {
            float u = m[i] / (__builtin_sqrtf(v[i]) + eps);
            u = __builtin_fmaf(decay, p[i], u);
            p[i] = __builtin_fmaf(minus_lr, u, p[i]);
        }
        if (a->weight && a->weight != (void *)a->master) store_f32(a->dt, a->weight, at, p, n);
    }
}

int cpu_op_adam_frozen(int threads, const void *args, const char **why) {
    const struct adam_frozen_args *a = args;
    (void)why;
    assert(a->groups >= 1 && a->groups <= UPDATE_GROUPS_MAX && a->ends[a->groups - 1] == a->n);
    assert(!a->momentum || a->n % ONEBIT_BLOCK == 0);
    if (!a->scalars->skip) for_spans(threads, a->n, SPAN_ELEMENTS, frozen_span, a);
    return 0;
}
