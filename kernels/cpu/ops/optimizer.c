// The optimizer's operations: exact sum of squares, the step's decision, and the updates of kernels/update.h.
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/vec.h"

// ---------------------------------------------------------------- sum of squares
#define SUMSQ_WIDE  8                 // blocks summed in one vector, each in the order of operations.h
#define SUMSQ_LANES (2 * SUMSQ_WIDE)  // two such vectors, so that additions of one do not wait

typedef int32_t v8i __attribute__((vector_size(SUMSQ_WIDE * sizeof(int32_t))));
typedef float v8f __attribute__((vector_size(SUMSQ_WIDE * sizeof(float))));
typedef double vecd __attribute__((vector_size(sizeof(vecf))));
#define SUMSQ_VECTORS (SUMSQ_WIDE / (VEC / 2))

// Transposes 8 x 8 words: swaps single words, then pairs of words, then halves.
VEC_INLINE void transpose(v8i r[SUMSQ_WIDE]) {
    v8i a[SUMSQ_WIDE], b[SUMSQ_WIDE];
    for (int i = 0; i < 8; i += 2) {
        a[i] = VEC_PICK(v8i, r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = VEC_PICK(v8i, r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = VEC_PICK(v8i, a[i + k], a[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            b[i + 2 * k + 1] = VEC_PICK(v8i, a[i + k], a[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = VEC_PICK(v8i, b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = VEC_PICK(v8i, b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// Adds the squares of one vector, which holds one element of each block, to the blocks' sums. The square of a
// float is exact in double, so a fused multiply-add gives the same result.
VEC_INLINE void add_squares(vecd sum[SUMSQ_VECTORS], v8i bits) {
#if VEC == 16 && defined(__AVX512F__)
    __m512d x = _mm512_cvtps_pd((__m256)bits);
    sum[0] = (vecd)_mm512_fmadd_pd(x, x, (__m512d)sum[0]);
#elif VEC == 8 && defined(__AVX__)
    vecd x = (vecd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)bits));
    vecd y = (vecd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)bits, 1));
    sum[0] += x * x;
    sum[1] += y * y;
#else
    for (int k = 0; k < SUMSQ_WIDE; k++) {
        double x = (double)((v8f)bits)[k];
        sum[k / (VEC / 2)][k % (VEC / 2)] += x * x;
    }
#endif
}

// Sums SUMSQ_LANES blocks from x on, and prefetches the blocks at `next`. A 32-bit word is one float, or two
// bf16 elements, which are converted in place.
VEC_INLINE void sum_lanes(const bool bf16, const char *x, const char *next, double lane[SUMSQ_LANES]) {
    const int bytes = SUMSQ_BLOCK * (bf16 ? 2 : 4);
    vecd low[SUMSQ_VECTORS] = {0}, high[SUMSQ_VECTORS] = {0};
    for (int i = 0; i < bytes; i += (int)sizeof(v8i)) {
        v8i r[SUMSQ_WIDE], s[SUMSQ_WIDE];
        for (int k = 0; k < SUMSQ_WIDE; k++) {
            memcpy(&r[k], x + k * bytes + i, sizeof r[k]);
            memcpy(&s[k], x + (SUMSQ_WIDE + k) * bytes + i, sizeof s[k]);
            __builtin_prefetch(next + i * SUMSQ_LANES + 64 * k);
        }
        transpose(r);
        transpose(s);
        for (int k = 0; k < SUMSQ_WIDE; k++) {
            if (bf16) {
                add_squares(low, r[k] << 16);
                add_squares(high, s[k] << 16);
            }
            add_squares(low, bf16 ? r[k] & (int32_t)0xffff0000 : r[k]);
            add_squares(high, bf16 ? s[k] & (int32_t)0xffff0000 : s[k]);
        }
    }
    memcpy(lane, low, sizeof low);
    memcpy(lane + SUMSQ_WIDE, high, sizeof high);
}

// Adds `blocks` <= SUMSQ_LANES consecutive blocks of x, from element `at` on, to *sum.
static void sumsq_blocks(const struct sumsq_args *a, int64_t at, int64_t blocks, struct exact_sum *sum) {
    float room[SUMSQ_LANES * SUMSQ_BLOCK];
    double lane[SUMSQ_LANES];
    int64_t n = blocks * SUMSQ_BLOCK;
    const void *x = dtype_at(a->dt, a->x, at), *next = dtype_at(a->dt, a->x, at + n);
    if (a->dt == DT_F16 || blocks < SUMSQ_LANES) {
        if (blocks < SUMSQ_LANES) memset(room, 0, sizeof room);
        if (a->dt == DT_F16)
            load_f32(a->dt, room, x, 0, n);
        else
            memcpy(room, x, (size_t)n * dtype_size(a->dt));
        x = room;
    }
    if (a->dt == DT_BF16)
        sum_lanes(true, x, next, lane);
    else
        sum_lanes(false, x, next, lane);
    for (int j = 0; j < blocks; j++) {
        // Squares of finite floats never overflow a double.
        if (isfinite(lane[j]))
            exact_sum_add(sum, lane[j]);
        else
            for (int64_t i = 0; i < SUMSQ_BLOCK; i++)
                sum->nonfinite += !isfinite(dtype_load(a->dt, a->x, (size_t)(at + j * SUMSQ_BLOCK + i)));
    }
}

// Blocks [begin, end). Merging is integer addition, so the order of the threads does not matter.
static void sumsq_range(const void *args, int64_t begin, int64_t end) {
    const struct sumsq_args *a = args;
    struct exact_sum sum = {0};
    for (int64_t b = begin; b < end; b += SUMSQ_LANES)
        sumsq_blocks(a, b * SUMSQ_BLOCK, chunk_min(SUMSQ_LANES, end - b), &sum);
    for (int i = 0; i < EXACT_SUM_WORDS; i++)
        __atomic_fetch_add((int64_t *)a->out + i, ((const int64_t *)&sum)[i], __ATOMIC_RELAXED);
}

const char *cpu_sumsq(int threads, const struct sumsq_args *a) {
    assert(a->n % SUMSQ_BLOCK == 0);
    if (a->zero_out) memset(a->out, 0, sizeof *a->out);
    for_ranges(threads, a->n / SUMSQ_BLOCK, RANGE_ELEMENTS / SUMSQ_BLOCK, sumsq_range, a);
    return NULL;
}

const char *cpu_decide(int threads, const struct decide_args *a) {
    (void)threads;
    *a->scalars = update_decide(a->sum, a->loss_scale, a->clip);
    return NULL;
}

// ---------------------------------------------------------------- updates
// Updates masters and states of elements [at, at + n), all of one group with that decay. grad(n): their gradients.
typedef void update_fn(const struct update_args *a, const float *grad, int64_t at, int64_t n, float decay);
struct update {
    const struct update_args *a;
    update_fn *block;
};

// Processes chunks that do not cross a group's end: loads the gradients as fp32, updates, then stores the
// weights of the new masters.
static void update_range(const void *update, int64_t begin, int64_t end) {
    const struct update *u = update;
    const struct update_args *a = u->a;
    float grad[CHUNK], value[ONEBIT_BLOCK];
    int g = 0;
    for (int64_t i = begin, n; i < end; i += n) {
        while (a->ends[g] <= i) g++;
        n = chunk_min(CHUNK, chunk_min(end, a->ends[g]) - i);
        if (!a->codes) load_f32(a->dt, grad, a->grad, i, n);
        for (int64_t k = 0, part; a->codes && k < n; k += part) {  // (part) elements of one block
            int64_t first = (i + k) % ONEBIT_BLOCK;
            part = chunk_min(ONEBIT_BLOCK - first, n - k);
            onebit_decode(&a->codes[(i + k) / ONEBIT_BLOCK], value);
            memcpy(grad + k, value + first, (size_t)part * sizeof *grad);
        }
        u->block(a, grad, i, n, a->weight_decay[g]);
        if (a->weight && a->weight != (void *)a->master) store_f32(a->dt, a->weight, i, a->master + i, n);
    }
}

static const char *run_update(int threads, const struct update_args *a, update_fn *block) {
    assert(a->groups >= 1 && a->groups <= UPDATE_GROUPS_MAX && a->ends[a->groups - 1] == a->n);
    assert(!a->codes || a->n % ONEBIT_BLOCK == 0);
    if (!a->scalars->skip)
        for_ranges(threads, a->n, RANGE_ELEMENTS, update_range, &(struct update){.a = a, .block = block});
    return NULL;
}

// A row's loop over elements [at, at + n) of one group. states and variant are constants, because GCC 12 does not
// vectorise a loop that tests an invariant flag; the arguments are copied, so that no store can change them.
#define UPDATE_LOOP(first, OP, name, states_of, frozen, variant_of)                                        \
    VEC_INLINE void name##_loop(const struct update_args *args, const float *grad, int64_t at, int64_t n,  \
                                float decay, const int states, const bool variant) {                       \
        const struct update_args a = *args;                                                                \
        const float scale = a.codes ? 1 : a.scalars->grad_scale;                                           \
        float *restrict p = a.master + at;                                                                 \
        float *restrict m = states > 0 ? a.m + at : NULL, *restrict v = states > 1 ? a.v + at : NULL;      \
        for (int64_t i = 0; i < n; i++) {                                                                  \
            struct update_element e = {.p = p[i], .g = grad[i] * scale, .decay = decay};                   \
            if (states > 0) e.m = m[i];                                                                    \
            if (states > 1) e.v = v[i];                                                                    \
            update_##name(&a, &e, states, variant);                                                        \
            p[i] = e.p;                                                                                    \
            if (states > frozen) m[i] = e.m;                                                               \
            if (states > 1 + frozen) v[i] = e.v;                                                           \
        }                                                                                                  \
    }                                                                                                      \
    static void name(const struct update_args *a, const float *grad, int64_t at, int64_t n, float decay) { \
        const int states = states_of;                                                                      \
        const bool variant = variant_of;                                                                   \
        if (states == 0)                                                                                   \
            name##_loop(a, grad, at, n, decay, 0, false);                                                  \
        else if (states == 1 && !variant)                                                                  \
            name##_loop(a, grad, at, n, decay, 1, false);                                                  \
        else if (states == 1)                                                                              \
            name##_loop(a, grad, at, n, decay, 1, true);                                                   \
        else if (!variant)                                                                                 \
            name##_loop(a, grad, at, n, decay, 2, false);                                                  \
        else                                                                                               \
            name##_loop(a, grad, at, n, decay, 2, true);                                                   \
    }                                                                                                      \
    const char *cpu_##name(int threads, const struct update_args *a) { return run_update(threads, a, name); }
UPDATES(UPDATE_LOOP, )
