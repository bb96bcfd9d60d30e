// The optimizer's operations: exact sum of squares, the step's decision, AdamW, SGD, Lion.
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/spans.h"
#include "kernels/cpu/vec.h"

// ---------------------------------------------------------------- sum of squares
#define SUMSQ_LANES 8  // blocks summed side by side: the order within each is the contract's
#define SUMSQ_HALF  4  // of them in a vector

typedef float v4f __attribute__((vector_size(SUMSQ_HALF * sizeof(float))));
typedef int32_t v4i __attribute__((vector_size(SUMSQ_HALF * sizeof(int32_t))));
typedef double v4d __attribute__((vector_size(SUMSQ_HALF * sizeof(double))));

static int64_t count_nonfinite(const float *restrict x, int64_t n) {
    int32_t count = 0;
    for (int64_t i = 0; i < n; i++) count += (f32_to_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
    return count;
}

// The squares of one vector, an element of each block, join the blocks' sums. A square of a float is exact in
// double, so that it does not matter whether this becomes a fused multiply-add.
static inline v4d add_squares(v4d sum, v4f x) {
    v4d wide = __builtin_convertvector(x, v4d);
    return sum + wide * wide;
}

// Element i of four blocks from x on, then i + 1, .. i + 3: four of each are loaded and turned into columns.
static inline v4d add_columns(v4d sum, const float *restrict x) {
    v4f a, b, c, d;
    memcpy(&a, x, sizeof a);
    memcpy(&b, x + SUMSQ_BLOCK, sizeof b);
    memcpy(&c, x + 2 * SUMSQ_BLOCK, sizeof c);
    memcpy(&d, x + 3 * SUMSQ_BLOCK, sizeof d);
    v4f ab_low = VEC_PICK(v4i, a, b, 0, 4, 1, 5), ab_high = VEC_PICK(v4i, a, b, 2, 6, 3, 7);
    v4f cd_low = VEC_PICK(v4i, c, d, 0, 4, 1, 5), cd_high = VEC_PICK(v4i, c, d, 2, 6, 3, 7);
    sum = add_squares(sum, VEC_PICK(v4i, ab_low, cd_low, 0, 1, 4, 5));
    sum = add_squares(sum, VEC_PICK(v4i, ab_low, cd_low, 2, 3, 6, 7));
    sum = add_squares(sum, VEC_PICK(v4i, ab_high, cd_high, 0, 1, 4, 5));
    return add_squares(sum, VEC_PICK(v4i, ab_high, cd_high, 2, 3, 6, 7));
}

// Two vectors of sums at once: one alone would wait for its own additions.
static void sum_lanes(const float x[SUMSQ_LANES * SUMSQ_BLOCK], double lane[SUMSQ_LANES]) {
    v4d low = {0}, high = {0};
    for (int i = 0; i < SUMSQ_BLOCK; i += SUMSQ_HALF) {
        low = add_columns(low, x + i);
        high = add_columns(high, x + SUMSQ_HALF * SUMSQ_BLOCK + i);
    }
    memcpy(lane, &low, sizeof low);
    memcpy(lane + SUMSQ_HALF, &high, sizeof high);
}

// Adds `blocks` <= SUMSQ_LANES consecutive blocks of x, from element `at` on, to *sum.
static void sumsq_blocks(const struct sumsq_args *a, int64_t at, int blocks, struct exact_sum *sum) {
    float x[SUMSQ_LANES * SUMSQ_BLOCK];
    double lane[SUMSQ_LANES];
    int64_t n = (int64_t)blocks * SUMSQ_BLOCK;
    load_f32(a->dt, x, a->x, at, n);
    memset(x + n, 0, sizeof x - (size_t)n * sizeof *x);
    sum_lanes(x, lane);
    for (int j = 0; j < blocks; j++) {
        // Squares of finite floats never reach the end of double's range.
        if (isfinite(lane[j]))
            exact_sum_add(sum, lane[j]);
        else
            sum->nonfinite += count_nonfinite(x + j * SUMSQ_BLOCK, SUMSQ_BLOCK);
    }
}

// Blocks [begin, end). Merging is integer addition: the order of the threads does not matter.
static void sumsq_span(const void *args, int64_t begin, int64_t end) {
    const struct sumsq_args *a = args;
    struct exact_sum sum = {0};
    for (int64_t b = begin; b < end; b += SUMSQ_LANES)
        sumsq_blocks(a, b * SUMSQ_BLOCK, (int)chunk_min(SUMSQ_LANES, end - b), &sum);
    for (int i = 0; i < EXACT_SUM_WORDS; i++)
        __atomic_fetch_add((int64_t *)a->out + i, ((const int64_t *)&sum)[i], __ATOMIC_RELAXED);
}

const char *cpu_sumsq(int threads, const struct sumsq_args *a) {
    assert(a->n % SUMSQ_BLOCK == 0);
    if (a->zero_out) memset(a->out, 0, sizeof *a->out);
    for_spans(threads, a->n / SUMSQ_BLOCK, SPAN_ELEMENTS / SUMSQ_BLOCK, sumsq_span, a);
    return NULL;
}

const char *cpu_decide(int threads, const struct decide_args *a) {
    (void)threads;
    *a->scalars = update_decide(a->sum, a->loss_scale, a->clip);
    return NULL;
}

// ---------------------------------------------------------------- updates
struct update {
    const struct update_args *a;
    cpu_update_fn *block;
};

// Chunks that no group's end cuts, with their gradients in fp32; then the weights of the new masters.
static void update_span(const void *update, int64_t begin, int64_t end) {
    const struct update *u = update;
    const struct update_args *a = u->a;
    float grad[CHUNK];
    int g = 0;
    for (int64_t i = begin, n; i < end; i += n) {
        while (a->ends[g] <= i) g++;
        n = chunk_min(CHUNK, chunk_min(end, a->ends[g]) - i);
        if (a->grad) load_f32(a->dt, grad, a->grad, i, n);
        u->block(a, grad, i, n, a->weight_decay[g]);
        if (a->weight && a->weight != (void *)a->master) store_f32(a->dt, a->weight, i, a->master + i, n);
    }
}

const char *cpu_update(int threads, const struct update_args *a, cpu_update_fn *block) {
    assert(a->groups >= 1 && a->groups <= UPDATE_GROUPS_MAX && a->ends[a->groups - 1] == a->n);
    if (!a->scalars->skip)
        for_spans(threads, a->n, SPAN_ELEMENTS, update_span, &(struct update){.a = a, .block = block});
    return NULL;
}

// The order of operations is operations.h's, to the letter. Always inlined with a constant l2: GCC 12 does not vectorise a
// loop that tests an invariant flag.
static inline __attribute__((always_inline)) void adamw(const struct update_args *a, const float *grad,
                                                        int64_t at, int64_t n, float decay, const bool l2) {
    const float scale = a->scalars->grad_scale, eps = a->eps;
    const float beta1 = a->beta1, rest1 = 1.0f - a->beta1, beta2 = a->beta2, rest2 = 1.0f - a->beta2;
    const float inv_bc1 = a->inv_bc1, inv_sqrt_bc2 = a->inv_sqrt_bc2, minus_lr = -a->lr;
    float *restrict p = a->master + at, *restrict m = a->m + at, *restrict v = a->v + at;
    for (int64_t i = 0; i < n; i++) {
        float x = grad[i] * scale;
        if (l2) x = __builtin_fmaf(decay, p[i], x);
        m[i] = __builtin_fmaf(beta1, m[i], rest1 * x);
        v[i] = __builtin_fmaf(beta2, v[i], (rest2 * x) * x);
        float denom = __builtin_sqrtf(v[i]) * inv_sqrt_bc2 + eps;
        float u = (m[i] * inv_bc1) / denom;
        if (!l2) u = __builtin_fmaf(decay, p[i], u);
        p[i] = __builtin_fmaf(minus_lr, u, p[i]);
    }
}

static void adamw_l2(const struct update_args *a, const float *grad, int64_t at, int64_t n, float decay) {
    adamw(a, grad, at, n, decay, true);
}

static void adamw_decoupled(const struct update_args *a, const float *grad, int64_t at, int64_t n,
                            float decay) {
    adamw(a, grad, at, n, decay, false);
}

const char *cpu_adamw(int threads, const struct update_args *a) {
    return cpu_update(threads, a, a->l2_mode ? adamw_l2 : adamw_decoupled);
}

enum sgd_kind { SGD_PLAIN, SGD_MOMENTUM, SGD_NESTEROV };

// As adamw.
static inline __attribute__((always_inline)) void sgd(const struct update_args *a, const float *grad,
                                                      int64_t at, int64_t n, float decay,
                                                      const enum sgd_kind kind) {
    const float scale = a->scalars->grad_scale, minus_lr = -a->lr, momentum = a->momentum, rest = a->rest;
    float *restrict p = a->master + at, *restrict m = kind == SGD_PLAIN ? NULL : a->m + at;
    for (int64_t i = 0; i < n; i++) {
        float x = __builtin_fmaf(decay, p[i], grad[i] * scale);
        if (kind != SGD_PLAIN) {
            m[i] = __builtin_fmaf(momentum, m[i], rest * x);
            x = kind == SGD_NESTEROV ? __builtin_fmaf(momentum, m[i], x) : m[i];
        }
        p[i] = __builtin_fmaf(minus_lr, x, p[i]);
    }
}

static void sgd_any(const struct update_args *a, const float *grad, int64_t at, int64_t n, float decay) {
    if (!a->m)
        sgd(a, grad, at, n, decay, SGD_PLAIN);
    else if (a->nesterov)
        sgd(a, grad, at, n, decay, SGD_NESTEROV);
    else
        sgd(a, grad, at, n, decay, SGD_MOMENTUM);
}

const char *cpu_sgd(int threads, const struct update_args *a) { return cpu_update(threads, a, sgd_any); }

static void lion(const struct update_args *a, const float *grad, int64_t at, int64_t n, float decay) {
    const float scale = a->scalars->grad_scale, minus_lr = -a->lr;
    const float beta1 = a->beta1, rest1 = 1.0f - a->beta1, beta2 = a->beta2, rest2 = 1.0f - a->beta2;
    float *restrict p = a->master + at, *restrict m = a->m + at;
    for (int64_t i = 0; i < n; i++) {
        float x = grad[i] * scale, c = __builtin_fmaf(beta1, m[i], rest1 * x);
        float u = (float)(c > 0) - (float)(c < 0);
        p[i] = __builtin_fmaf(minus_lr, __builtin_fmaf(decay, p[i], u), p[i]);
        m[i] = __builtin_fmaf(beta2, m[i], rest2 * x);
    }
}

const char *cpu_lion(int threads, const struct update_args *a) { return cpu_update(threads, a, lion); }
