// Vectors of VEC floats: 16 if the compiler targets AVX-512, else 8. They use GCC's vector extensions, and
// intrinsics only for what the extensions cannot express (fused multiply-add, half precision).
//
// No result depends on VEC (test_bits.py): sums over lanes always use SUM_WIDTH lanes, and sums that omit
// blocks of terms omit the same blocks (ops/attention.c). STARRING_VEC overrides VEC, so that tests can build
// both on one machine.
#ifndef STARRING_KERNELS_CPU_VEC_H
#define STARRING_KERNELS_CPU_VEC_H

#include <math.h>
#include <string.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/dtype.h"

#if defined(STARRING_VEC)
#define VEC STARRING_VEC
#elif defined(__AVX512F__)
#define VEC 16
#else
#define VEC 8
#endif

typedef float vecf __attribute__((vector_size(VEC * 4)));
typedef int32_t veci __attribute__((vector_size(VEC * 4)));
typedef uint32_t vecu __attribute__((vector_size(VEC * 4)));
typedef uint16_t vech __attribute__((vector_size(VEC * 2)));

#if !defined(__AVX__)
// Every function that passes vectors is inlined, so the calling convention does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define VEC_INLINE static inline __attribute__((always_inline))
// Selects elements of two vectors by constant numbers. GCC before 12 has only __builtin_shuffle, clang only the
// other. mask: GCC's type of the numbers.
#ifdef __clang__
#define VEC_PICK(mask, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VEC_PICK(mask, a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

VEC_INLINE vecf vec_set(float x) { return x - (vecf){0}; }

// *p in every lane, with its bits unchanged.
VEC_INLINE vecf vec_splat(const float *p) {
    int32_t bits;
    memcpy(&bits, p, sizeof bits);
    return (vecf)(bits - (veci){0});
}

VEC_INLINE vecf vec_fma(vecf a, vecf b, vecf c) {
#if VEC == 16 && defined(__AVX512F__)
    return (vecf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VEC == 8 && defined(__FMA__)
    return (vecf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < VEC; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

// a where the mask's lane is all ones, b where it is zero.
VEC_INLINE vecf vec_select(veci mask, vecf a, vecf b) {
#if VEC == 8 && defined(__AVX__)
    return (vecf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (vecf)((mask & (veci)a) | (~mask & (veci)b));
#endif
}

// The larger (smaller) of each lane. Returns b if one is NaN or both are equal, as the instructions do.
VEC_INLINE vecf vec_max(vecf a, vecf b) {
#if VEC == 16 && defined(__AVX512F__)
    return (vecf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC == 8 && defined(__AVX__)
    return (vecf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vec_select(a > b, a, b);
#endif
}

VEC_INLINE vecf vec_min(vecf a, vecf b) {
#if VEC == 16 && defined(__AVX512F__)
    return (vecf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VEC == 8 && defined(__AVX__)
    return (vecf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vec_select(a < b, a, b);
#endif
}

// Returns y, but 0 where x > most; y where x is NaN.
VEC_INLINE vecf vec_zero_above(vecf x, float most, vecf y) {
#if VEC == 16 && defined(__AVX512F__)
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)vec_set(most), _CMP_NGT_UQ);
    return (vecf)_mm512_maskz_mov_ps(kept, (__m512)y);
#else
    return (vecf)((veci)y & ~(x > most));
#endif
}

#define SUM_WIDTH 16  // lanes of a sum, for every VEC

// Adds SUM_WIDTH lanes pairwise, in a fixed order.
VEC_INLINE float vec_sum(const vecf x[SUM_WIDTH / VEC]) {
    float lane[SUM_WIDTH];
    for (int i = 0; i < SUM_WIDTH / VEC; i++) memcpy(lane + i * VEC, &x[i], sizeof x[i]);
    for (int w = SUM_WIDTH / 2; w; w /= 2)
        for (int i = 0; i < w; i++) lane[i] += lane[i + w];
    return lane[0];
}

VEC_INLINE vecf vec_load_f32(const float *p) {
    vecf v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void vec_store_f32(float *p, vecf v) { memcpy(p, &v, sizeof v); }

// The lower halves of lanes below 2^16, and back. GCC 12 would use 15 and 4 instructions, AVX2 needs 2 and 1.
VEC_INLINE vech vec_narrow(vecu u) {
#if VEC == 8 && defined(__AVX2__)
    __m256i packed = _mm256_packus_epi32((__m256i)u, (__m256i)u);
    return (vech)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(u, vech);
#endif
}

VEC_INLINE vecu vec_widen(vech h) {
#if VEC == 8 && defined(__AVX2__)
    return (vecu)_mm256_cvtepu16_epi32((__m128i)h);
#else
    return __builtin_convertvector(h, vecu);
#endif
}

// VEC elements of a buffer of type t from element i on, as fp32.
VEC_INLINE vecf vec_load(enum dtype t, const void *p, int64_t i) {
    if (t == DT_F32) return vec_load_f32((const float *)p + i);
    vech h;
    memcpy(&h, (const uint16_t *)p + i, sizeof h);
    if (t == DT_BF16) return (vecf)(vec_widen(h) << 16);
#if VEC == 16 && defined(__AVX512F__)
    return (vecf)_mm512_cvtph_ps((__m256i)h);
#elif VEC == 8 && defined(__F16C__)
    return (vecf)_mm256_cvtph_ps((__m128i)h);
#else
    vecf v;
    for (int k = 0; k < VEC; k++) v[k] = f16_to_f32(h[k]);
    return v;
#endif
}

// bf16 in the upper halves, rounded as f32_to_bf16 does (not for NaN); the lower halves are undefined.
VEC_INLINE vecu vec_round_bf16(vecu u) { return u + 0x7fffu + ((u >> 16) & 1u); }

// Rounds once, as dtype_store does.
VEC_INLINE void vec_store(enum dtype t, void *p, int64_t i, vecf v) {
    if (t == DT_F32) {
        vec_store_f32((float *)p + i, v);
        return;
    }
    vech h;
    if (t == DT_BF16) {
        vecu u = (vecu)v;
        h = vec_narrow((vecu)vec_select(v == v, (vecf)vec_round_bf16(u), (vecf)(u | 0x400000u)) >> 16);
    } else {
#if VEC == 16 && defined(__AVX512F__)
        h = (vech)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT);
#elif VEC == 8 && defined(__F16C__)
        h = (vech)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
#else
        for (int k = 0; k < VEC; k++) h[k] = f32_to_f16(v[k]);
#endif
    }
    memcpy((uint16_t *)p + i, &h, sizeof h);
}

// Stores a at element i and b after it, in fewer instructions than two stores. AVX512_BF16's instruction turns
// numbers below 2^-126 to 0, so if a result is 0, both are stored separately.
VEC_INLINE void vec_store2(enum dtype t, void *p, int64_t i, vecf a, vecf b) {
#if VEC == 16 && defined(__AVX512BF16__) && defined(__AVX512BW__)
    if (t == DT_BF16) {
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
        if (__builtin_expect(!_mm512_testn_epi16_mask(both, _mm512_set1_epi16(0x7fff)), 1)) {
            memcpy((uint16_t *)p + i, &both, sizeof both);
            return;
        }
    }
#elif VEC == 8 && defined(__AVX2__)
    // One comparison finds a NaN in either vector.
    int nan = t == DT_BF16 ? _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) : 1;
    if (__builtin_expect(!nan, 1)) {
        vecu low = vec_round_bf16((vecu)a) >> 16, high = vec_round_bf16((vecu)b) >> 16;
        __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)low, (__m256i)high), 0xd8);
        memcpy((uint16_t *)p + i, &both, sizeof both);
        return;
    }
#endif
    vec_store(t, p, i, a);
    vec_store(t, p, i + VEC, b);
}

// n < VEC elements from element i on; the other lanes are zero, and are not stored.
VEC_INLINE vecf vec_load_part(enum dtype t, const void *p, int64_t i, int64_t n) {
    float lane[VEC] = {0};
    for (int64_t k = 0; k < n; k++) lane[k] = dtype_load(t, p, (size_t)(i + k));
    return vec_load_f32(lane);
}

VEC_INLINE void vec_store_part(enum dtype t, void *p, int64_t i, int64_t n, vecf v) {
    float lane[VEC];
    vec_store_f32(lane, v);
    for (int64_t k = 0; k < n; k++) dtype_store(t, p, (size_t)(i + k), lane[k]);
}

// e^x for x <= 88, within 2 units in the last digit; below -87 the result is 0. Cody & Waite's reduction x = n
// ln 2 + r, |r| <= ln 2 / 2, and Taylor's polynomial of degree 6 in r, whose error there is 2e-8 of the value.
// NaN gives 0 or NaN; callers check for it if it matters.
VEC_INLINE vecf vec_exp(vecf x) {
    const vecf magic = vec_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vecf shifted = vec_fma(x, vec_set(1.44269504f), magic);
    vecf n = shifted - magic;
    vecf r = vec_fma(n, vec_set(-0.693359375f), x);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vecf y = vec_set(1.0f / 720);
    y = vec_fma(y, r, vec_set(1.0f / 120));
    y = vec_fma(y, r, vec_set(1.0f / 24));
    y = vec_fma(y, r, vec_set(1.0f / 6));
    y = vec_fma(y, r, vec_set(0.5f));
    y = vec_fma(y, r, vec_set(1.0f));
    y = vec_fma(y, r, vec_set(1.0f));
    vecu power = ((vecu)shifted + 127u) << 23;  // the low bits of shifted hold n
    y = y * (vecf)power;
    return vec_select(x < -87.0f, (vecf){0}, y);
}

// Calls fn(type, ...) with a constant type, so that an inlined fn is compiled once per type.
#define WITH_DTYPE(t, fn, ...)        \
    do {                              \
        if ((t) == DT_F32)            \
            fn(DT_F32, __VA_ARGS__);  \
        else if ((t) == DT_BF16)      \
            fn(DT_BF16, __VA_ARGS__); \
        else                          \
            fn(DT_F16, __VA_ARGS__);  \
    } while (0)

#endif
