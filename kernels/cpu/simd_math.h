// Functions on vectors: 2^t, 1/d, sigmoid, and sums in a fixed order.
//
// Each lane is computed by straight-line +, *, fma and integer operations, so its bits depend neither on the
// width of the vectors nor on libm. Division is avoided: a vector of 16 takes 10 to 16 cycles in the divider,
// while Newton's steps take 5.
#ifndef STARRING_KERNELS_CPU_SIMD_MATH_H
#define STARRING_KERNELS_CPU_SIMD_MATH_H

#include <stdint.h>

#include "kernels/cpu/vec.h"

// GROUP vectors are computed together, statement by statement (EACH). Each vector is one long chain of
// dependent instructions, and a processor's look-ahead covers little more than one chain.
#define GROUP 4
#define EACH  for (int k = 0; k < GROUP; k++)

#define LOG2_E 1.44269504f

// y = 2^t + plus for t in [-126, 127]; NaN gives NaN. t = n + r with |r| <= 1/2; 2^r is the polynomial with the
// smallest relative error (Remez) that is 1 at 0. The error is 2^-28.9 for fp32, and for results that are
// rounded to 16 bits 2^-18.4, a fiftieth of a unit of fp16. y may be t.
VEC_INLINE void vec_exp2(enum dtype dt, const vecf *t, float plus, vecf *y) {
    static const float p32[] = {
        0x1.41fbbp-13f, 0x1.5f3e58p-10f, 0x1.3b2d4ep-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f, 0x1.62e43p-1f, 1.0f};
    static const float p16[] = {0x1.3a028ap-7f, 0x1.c9fc4p-5f, 0x1.ec0378p-3f, 0x1.62e12cp-1f, 1.0f};
    const float *c = dt == DT_F32 ? p32 : p16;
    const int degree = dt == DT_F32 ? 6 : 4;
    const vecf magic = vec_set(12582912.0f + 127.0f);  // 1.5 * 2^23: adding it leaves n + 127 in the low bits
    vecf shifted[GROUP], r[GROUP], p[GROUP];
    EACH shifted[k] = t[k] + magic;
    EACH r[k] = t[k] - (shifted[k] - magic);
    EACH p[k] = vec_fma(vec_set(c[0]), r[k], vec_set(c[1]));
    for (int i = 2; i <= degree; i++) EACH p[k] = vec_fma(p[k], r[k], vec_set(c[i]));
    EACH y[k] = vec_fma(p[k], (vecf)((vecu)shifted[k] << 23), vec_set(plus));
}

// y = 1/d for d in [1, 2^125]: for 16-bit types at most a relative 7e-6 too small, for fp32 rounded. Newton's
// steps start from the negated exponent and mantissa, which is within 5% (as in Quake III's inverse root). y
// may not be d.
VEC_INLINE void vec_inverse(enum dtype dt, const vecf *d, vecf *y) {
    vecf much[GROUP];
    EACH y[k] = (vecf)(0x7ef31000u - (vecu)d[k]);
    for (int step = 0; step < (dt == DT_F32 ? 3 : 2); step++) {
        EACH much[k] = vec_fma(d[k], y[k], vec_set(-1.0f));
        EACH y[k] = vec_fma(-much[k], y[k], y[k]);
    }
}

// s = 1 / (1 + 2^t). Unlike (1 + tanh)/2, its relative error stays small in the tail. For t > 120, s is 0.
VEC_INLINE void vec_sigmoid2(enum dtype dt, const vecf *t, vecf *s) {
    vecf d[GROUP];
    EACH d[k] = vec_max(vec_set(-126.0f), t[k]);
    vec_exp2(dt, d, 1.0f, d);
    vec_inverse(dt, d, s);
    EACH s[k] = vec_zero_above(t[k], 120.0f, s[k]);
}

// Loads GROUP * VEC elements of a buffer of type t from element i on. If n is smaller, the others are loaded as
// `pad`; group_store does not store them.
VEC_INLINE void group_load(enum dtype t, const void *p, int64_t i, int64_t n, float pad, vecf *v) {
    if (__builtin_expect(n >= GROUP * VEC, 1)) {
        EACH v[k] = vec_load(t, p, i + k * VEC);
        return;
    }
    uint32_t part[GROUP * VEC];
    memcpy(part, (const char *)p + (size_t)i * dtype_size(t), (size_t)n * dtype_size(t));
    for (size_t k = (size_t)n; k < GROUP * VEC; k++) dtype_store(t, part, k, pad);
    EACH v[k] = vec_load(t, part, k * VEC);
}

// Prefetches such elements. The hardware prefetcher stops at the end of a page.
VEC_INLINE void group_prefetch(enum dtype t, const void *p, int64_t i) {
    for (int64_t at = 0; at < GROUP * VEC; at += 64 / (int64_t)dtype_size(t))
        __builtin_prefetch((const char *)p + (size_t)(i + at) * dtype_size(t));
}

VEC_INLINE void group_store(enum dtype t, void *p, int64_t i, int64_t n, const vecf *v) {
    if (__builtin_expect(n >= GROUP * VEC, 1)) {
        for (int k = 0; k < GROUP; k += 2) vec_store2(t, p, i + k * VEC, v[k], v[k + 1]);
        return;
    }
    uint32_t part[GROUP * VEC];
    EACH vec_store(t, part, k * VEC, v[k]);
    memcpy((char *)p + (size_t)i * dtype_size(t), part, (size_t)n * dtype_size(t));
}

// Sums over elements in 2 * SUM_WIDTH lanes, so that additions do not wait for one another. From each SUM_BLOCK
// elements, the first half is added to the first SUM_WIDTH lanes: elements i and i + SUM_WIDTH to lane i. The
// second half is added to the other lanes. A block is as many groups as its vectors need.
#define SUM_BLOCK  (4 * SUM_WIDTH)
#define SUM_GROUPS (SUM_BLOCK / (GROUP * VEC))
struct lanes {
    vecf v[SUM_GROUPS * GROUP / 2];
};
// For each group of n elements: i is its first element, h its number within its block.
#define EACH_GROUP(i, h, n)                                     \
    for (int64_t block_ = 0; block_ < (n); block_ += SUM_BLOCK) \
        for (int64_t h = 0, i = block_; h < SUM_GROUPS && i < (n); h++, i += GROUP * VEC)

// Sets elements from n on to 0.
VEC_INLINE void group_zero(vecf *x, int64_t n) {
    float lane[GROUP * VEC];
    memcpy(lane, x, sizeof lane);
    for (int64_t k = n; k < GROUP * VEC; k++) lane[k] = 0.0f;
    memcpy(x, lane, sizeof lane);
}

// The elements of a group for the same lane are PAIR vectors apart.
#define PAIR      (SUM_WIDTH / VEC)
#define FIRST(j)  ((j) * (GROUP / 2 / PAIR))
#define SECOND(j) (FIRST(j) + PAIR)

// Adds group h of a block: x, or x[i] * y[i] (lanes_dot).
VEC_INLINE void lanes_add(struct lanes *l, int64_t h, const vecf *x) {
    for (int j = 0; j < GROUP / 2; j++) l->v[h * GROUP / 2 + j] += x[FIRST(j)] + x[SECOND(j)];
}

VEC_INLINE void lanes_dot(struct lanes *l, int64_t h, const vecf *x, const vecf *y) {
    for (int j = 0; j < GROUP / 2; j++) {
        vecf *sum = &l->v[h * GROUP / 2 + j];
        *sum = vec_fma(x[SECOND(j)], y[SECOND(j)], vec_fma(x[FIRST(j)], y[FIRST(j)], *sum));
    }
}

VEC_INLINE float lanes_sum(const struct lanes *l) {
    vecf sum[SUM_WIDTH / VEC];
    for (int i = 0; i < SUM_WIDTH / VEC; i++) sum[i] = l->v[i] + l->v[i + SUM_WIDTH / VEC];
    return vec_sum(sum);
}

#endif
