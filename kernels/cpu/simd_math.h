// Scalar functions that a compiler can vectorise in a plain loop, and sums in a fixed order.
//
// Every lane of a vectorised loop and its scalar remainder give the same bits: these are straight
// lines of +, *, fma and integer operations (libm's vector variants differ from its scalar ones).
#ifndef STARRING_KERNELS_CPU_SIMD_MATH_H
#define STARRING_KERNELS_CPU_SIMD_MATH_H

#include <stdint.h>

#include "kernels/dtype.h"

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

// 1 / (1 + e^-x); its relative error stays small in the negative tail, unlike (1 + tanh)/2.
static inline float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }

#define SUM_LANES 32  // partial sums: enough to hide the latency of an addition

// Adds the lanes pairwise: lane i and lane i + half, until one is left.
static inline float sum_lanes(float *lane) {
    for (int half = SUM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

// sum of x(n): element i goes to lane i mod SUM_LANES.
static inline float sum_f32(const float *restrict x, int64_t n) {
    float lane[SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_LANES; j++) lane[j] += x[i + j];
    for (int j = 0; i + j < n; j++) lane[j] += x[i + j];
    return sum_lanes(lane);
}

// sum of x[i] * y[i], lanes as sum_f32. x may be y.
static inline float dot_f32(const float *x, const float *y, int64_t n) {
    float lane[SUM_LANES] = {0};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_LANES; j++) lane[j] = __builtin_fmaf(x[i + j], y[i + j], lane[j]);
    for (int j = 0; i + j < n; j++) lane[j] = __builtin_fmaf(x[i + j], y[i + j], lane[j]);
    return sum_lanes(lane);
}

// Largest of x(n), n >= 1; NaN is passed over.
static inline float max_f32(const float *restrict x, int64_t n) {
    float lane[SUM_LANES];
    int64_t i = 0;
    for (int j = 0; j < SUM_LANES; j++) lane[j] = x[0];
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int j = 0; i + j < n; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    float m = lane[0];
    for (int j = 1; j < SUM_LANES; j++) m = lane[j] > m ? lane[j] : m;
    return m;
}

#endif
