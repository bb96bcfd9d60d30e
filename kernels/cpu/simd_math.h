// Functions of vectors: 2^t, 1/d, sigmoid; and sums in a fixed order.
//
// Each result is a straight line of +, *, fma and integer operations on its own lane, so its bits depend neither
// on the vectors' width nor on libm. There is no division: a vector of 16 takes 10 to 16 cycles, in which other
// products wait, where Newton's steps take 5.
#ifndef STARRING_KERNELS_CPU_SIMD_MATH_H
#define STARRING_KERNELS_CPU_SIMD_MATH_H

#include <stdint.h>

#include "kernels/cpu/vec.h"

// Vectors that are computed side by side, statement by statement. Each is one long chain of dependent
// instructions, and a processor looks ahead over little more than one chain.
#define GROUP 4
#define EACH  for (int k = 0; k < GROUP; k++)

#define LOG2_E 1.44269504f

// y = 2^t + plus for t in [-126, 127]; NaN stays NaN. t = n + r with |r| <= 1/2; 2^r is a polynomial with the
// smallest relative error (Remez) and 1 at 0: 2^-28.9 for fp32, 2^-18.4, a fiftieth of a unit of fp16, for results
// that are rounded to 16 bits. y may be t.
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

// y = 1/d for d in [1, 2^125], at most 7e-6 of it too small for 16 bits, rounded for fp32: Newton's steps from what
// the negated exponent and mantissa give, which is within 5% (as in the inverse root of Quake III). y may not be d.
VEC_INLINE void vec_inverse(enum dtype dt, const vecf *d, vecf *y) {
    vecf much[GROUP];
    EACH y[k] = (vecf)(0x7ef31000u - (vecu)d[k]);
    for (int step = 0; step < (dt == DT_F32 ? 3 : 2); step++) {
        EACH much[k] = vec_fma(d[k], y[k], vec_set(-1.0f));
        EACH y[k] = vec_fma(-much[k], y[k], y[k]);
    }
}

// s = 1 / (1 + 2^t); its relative error stays small in the tail, unlike (1 + tanh)/2, and from 2^-120 on it is 0.
VEC_INLINE void vec_sigmoid2(enum dtype dt, const vecf *t, vecf *s) {
    vecf d[GROUP];
    EACH d[k] = vec_max(vec_set(-126.0f), t[k]);
    vec_exp2(dt, d, 1.0f, d);
    vec_inverse(dt, d, s);
    EACH s[k] = vec_zero_above(t[k], 120.0f, s[k]);
}

// GROUP * VEC elements of a buffer of type t from element i on. Where there are but n of them, the others are
// loaded as `pad`, and not stored.
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

// Asks for such elements early: where what is read next is in another page, the processor's own prefetching ends.
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

// Sums over elements in 2 * SUM_WIDTH lanes, so that additions do not wait for one another: of each SUM_BLOCK elements
// the first half goes to the first SUM_WIDTH lanes, element i and then i + SUM_WIDTH to lane i, the other half to the
// others. A block is as many groups as vectors of that width need.
#define SUM_BLOCK  (4 * SUM_WIDTH)
#define SUM_GROUPS (SUM_BLOCK / (GROUP * VEC))
struct lanes {
    vecf v[SUM_GROUPS * GROUP / 2];
};
// For each group of n elements: it begins at i, and is group h of its block.
#define EACH_GROUP(i, h, n)                                     \
    for (int64_t block_ = 0; block_ < (n); block_ += SUM_BLOCK) \
        for (int64_t h = 0, i = block_; h < SUM_GROUPS && i < (n); h++, i += GROUP * VEC)

// 0 from element n on.
VEC_INLINE void group_zero(vecf *x, int64_t n) {
    float lane[GROUP * VEC];
    memcpy(lane, x, sizeof lane);
    for (int64_t k = n; k < GROUP * VEC; k++) lane[k] = 0.0f;
    memcpy(x, lane, sizeof lane);
}

// Elements of a group that go to one lane are PAIR apart.
#define PAIR      (SUM_WIDTH / VEC)
#define FIRST(j)  ((j) * (GROUP / 2 / PAIR))
#define SECOND(j) (FIRST(j) + PAIR)

// group h of a block of x joins; and of x[i] * y[i].
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
