// Scalar functions that a compiler can vectorise in a plain loop, and sums in a fixed order.
//
// Every lane of a vectorised loop and its scalar remainder give the same bits: these are straight
// lines of +, *, fma and integer operations (libm's vector variants differ from its scalar ones).
#ifndef STARRING_KERNELS_CPU_SIMD_MATH_H
#define STARRING_KERNELS_CPU_SIMD_MATH_H

#include <stdint.h>

#include "kernels/cpu/vec.h"

// e^x: at most 1.5 units in the last place for results that are normal numbers; subnormal results
// are rounded twice; 0 below -104, infinity from 88.73 on; NaN stays NaN.
//
// x = n ln2 + r with |r| <= ln2/2 (Cody & Waite 1980, two constants for ln2), then the Taylor
// polynomial of degree 7 (truncation < 0.35^8/8! = 6e-9), then 2^n as two factors, so that neither
// leaves the range of a float.
static inline float exp_f32(float x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(y) in the low bits
    x = x > 89.0f ? 89.0f : x;        // a comparison with NaN is false: NaN passes
    x = x < -104.0f ? -104.0f : x;
    float t = __builtin_fmaf(x, 1.44269504f, magic);
    int32_t n = (int32_t)(f32_to_bits(t) - 0x4b400000u);
    float nf = t - magic;
    float r = __builtin_fmaf(nf, -0.693145752f, x);  // 15 bits of ln2: nf times it is exact
    r = __builtin_fmaf(nf, -1.42860677e-6f, r);      // the rest of ln2
    float p = 1.98412698e-4f;
    p = __builtin_fmaf(p, r, 1.38888889e-3f);
    p = __builtin_fmaf(p, r, 8.33333333e-3f);
    p = __builtin_fmaf(p, r, 4.16666667e-2f);
    p = __builtin_fmaf(p, r, 1.66666667e-1f);
    p = __builtin_fmaf(p, r, 0.5f);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    uint32_t half = (uint32_t)(n >> 1), rest = (uint32_t)n - half;
    return p * bits_to_f32((half + 127u) << 23) * bits_to_f32((rest + 127u) << 23);
}

// Vectors that are computed side by side, statement by statement. Each is one long chain of dependent
// instructions, and a processor looks ahead over little more than one chain.
#define GROUP 4
#define EACH  for (int k = 0; k < GROUP; k++)

// y = exp_f32 of each lane of x, bit for bit, in fewer instructions: the clamps are one each, and 2^n's
// factors come out of the low bits of t directly. Those hold n + 254, so t << 22 is n/2 + 127 in a float's
// exponent and half a unit below. y may be x.
VEC_INLINE void vec_exp_f32(const vecf *x, vecf *y) {
    const vecf magic = vec_set(12582912.0f + 254.0f);  // even: halves round as with exp_f32's
    vecf t[GROUP], n[GROUP], r[GROUP], p[GROUP];
    vecu half[GROUP], rest[GROUP];
    EACH r[k] = vec_min(vec_set(89.0f), x[k]);
    EACH r[k] = vec_max(vec_set(-104.0f), r[k]);
    EACH t[k] = vec_fma(r[k], vec_set(1.44269504f), magic);
    EACH n[k] = t[k] - magic;
    EACH r[k] = vec_fma(n[k], vec_set(-0.693145752f), r[k]);
    EACH r[k] = vec_fma(n[k], vec_set(-1.42860677e-6f), r[k]);
    EACH p[k] = vec_fma(vec_set(1.98412698e-4f), r[k], vec_set(1.38888889e-3f));
    EACH p[k] = vec_fma(p[k], r[k], vec_set(8.33333333e-3f));
    EACH p[k] = vec_fma(p[k], r[k], vec_set(4.16666667e-2f));
    EACH p[k] = vec_fma(p[k], r[k], vec_set(1.66666667e-1f));
    EACH p[k] = vec_fma(p[k], r[k], vec_set(0.5f));
    EACH p[k] = vec_fma(p[k], r[k], vec_set(1.0f));
    EACH p[k] = vec_fma(p[k], r[k], vec_set(1.0f));
    EACH half[k] = ((vecu)t[k] << 22) & 0xff800000u;
    EACH rest[k] = ((vecu)t[k] << 23) - half[k];
    EACH p[k] *= (vecf)half[k];
    EACH y[k] = p[k] * (vecf)rest[k];
}

// y = 1 / (1 + e^-x); its relative error stays small in the negative tail, unlike (1 + tanh)/2.
VEC_INLINE void vec_sigmoid(const vecf *x, vecf *y) {
    EACH y[k] = -x[k];
    vec_exp_f32(y, y);
    EACH y[k] = 1.0f / (1.0f + y[k]);
}

// The first n of GROUP * VEC elements of a buffer of type t from element i on; the other lanes are zero and
// not stored.
VEC_INLINE void group_load(enum dtype t, const void *p, int64_t i, int64_t n, vecf *v) {
    EACH {
        int64_t left = n - k * VEC;
        v[k] = left >= VEC ? vec_load(t, p, i + k * VEC) : vec_load_part(t, p, i + k * VEC, left);
    }
}

VEC_INLINE void group_store(enum dtype t, void *p, int64_t i, int64_t n, const vecf *v) {
    EACH {
        int64_t left = n - k * VEC;
        if (left >= VEC)
            vec_store(t, p, i + k * VEC, v[k]);
        else
            vec_store_part(t, p, i + k * VEC, left, v[k]);
    }
}

#define SUM_LANES 32  // partial sums: enough to hide the latency of an addition

// Adds the lanes pairwise: lane i and lane i + half, until one is left.
static inline float sum_lanes(float *lane) {
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

// sum of x(n): element i goes to lane i mod SUM_LANES.
static inline float sum_f32(const float *restrict x, int64_t n) {
    float lane[SUM_LANES];
    vecf v[SUM_LANES / VEC] = {0};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_LANES / VEC; j++) v[j] += vec_load_f32(x + i + j * VEC);
    for (int j = 0; j < SUM_LANES / VEC; j++) memcpy(lane + j * VEC, &v[j], sizeof v[j]);
    for (int j = 0; i + j < n; j++) lane[j] += x[i + j];
    return sum_lanes(lane);
}

// sum of x[i] * y[i], lanes as sum_f32. x may be y.
static inline float dot_f32(const float *x, const float *y, int64_t n) {
    float lane[SUM_LANES];
    vecf v[SUM_LANES / VEC] = {0};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_LANES / VEC; j++)
            v[j] = vec_fma(vec_load_f32(x + i + j * VEC), vec_load_f32(y + i + j * VEC), v[j]);
    for (int j = 0; j < SUM_LANES / VEC; j++) memcpy(lane + j * VEC, &v[j], sizeof v[j]);
    for (int j = 0; i + j < n; j++) lane[j] = __builtin_fmaf(x[i + j], y[i + j], lane[j]);
    return sum_lanes(lane);
}

// Largest of x(n), n >= 1; NaN is passed over.
static inline float max_f32(const float *restrict x, int64_t n) {
    float lane[SUM_LANES];
    vecf v[SUM_LANES / VEC];
    int64_t i = 0;
    for (int j = 0; j < SUM_LANES / VEC; j++) v[j] = vec_splat(x);
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_LANES / VEC; j++) v[j] = vec_max(vec_load_f32(x + i + j * VEC), v[j]);
    for (int j = 0; j < SUM_LANES / VEC; j++) memcpy(lane + j * VEC, &v[j], sizeof v[j]);
    for (int j = 0; i + j < n; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    float m = lane[0];
    for (int j = 1; j < SUM_LANES; j++) m = lane[j] > m ? lane[j] : m;
    return m;
}

#endif
