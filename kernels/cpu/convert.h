// Storage <-> fp32 in blocks. Operations work on CHUNK floats that stay in the first-level cache, in plain fp32
// loops; only this file converts 16-bit elements to floats and back.
//
// The conversions give the same bits per element as dtype_load and dtype_store (kernels/dtype.h), so results do
// not depend on how a range is cut. Addresses need no alignment: a server sums directly from received frames.
#ifndef STARRING_KERNELS_CPU_CONVERT_H
#define STARRING_KERNELS_CPU_CONVERT_H

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <assert.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"

#define CHUNK 1024  // floats: 4 KiB, several of them fit a first-level cache

typedef uint16_t u16_any __attribute__((aligned(1), may_alias));

static inline const void *dtype_at(enum dtype dt, const void *p, int64_t i) {
    return (const char *)p + (size_t)i * dtype_size(dt);
}

static inline void *dtype_at_mut(enum dtype dt, void *p, int64_t i) {
    return (char *)p + (size_t)i * dtype_size(dt);
}

static inline void bf16_load_block(float *restrict out, const u16_any *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = bf16_to_f32(in[i]);
}

static inline void bf16_store_block(u16_any *restrict out, const float *restrict in, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = f32_to_bf16(in[i]);
}

// GCC 12 does not vectorise _Float16 conversions, so the intrinsic is used.
static inline void f16_load_block(float *restrict out, const u16_any *restrict in, int64_t n) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(in + i))));
#endif
    for (; i < n; i++) out[i] = f16_to_f32(in[i]);
}

static inline void f16_store_block(u16_any *restrict out, const float *restrict in, int64_t n) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i_u *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) out[i] = f32_to_f16(in[i]);
}

// out[0..n) = elements [offset, offset + n) of in, as fp32. dt: fp32, bf16 or fp16.
static inline void load_f32(enum dtype dt, float *restrict out, const void *in, int64_t offset, int64_t n) {
    const void *from = dtype_at(dt, in, offset);
    assert(dt == DT_F32 || dt == DT_BF16 || dt == DT_F16);
    if (dt == DT_F32)
        memcpy(out, from, (size_t)n * sizeof(float));
    else if (dt == DT_BF16)
        bf16_load_block(out, from, n);
    else
        f16_load_block(out, from, n);
}

// Elements [offset, offset + n) of out = in[0..n), each rounded once. dt as above.
static inline void store_f32(enum dtype dt, void *out, int64_t offset, const float *restrict in, int64_t n) {
    void *to = dtype_at_mut(dt, out, offset);
    assert(dt == DT_F32 || dt == DT_BF16 || dt == DT_F16);
    if (dt == DT_F32)
        memcpy(to, in, (size_t)n * sizeof(float));
    else if (dt == DT_BF16)
        bf16_store_block(to, in, n);
    else
        f16_store_block(to, in, n);
}

// out[i] = value of element i of b.
static inline void onebit_decode(const struct onebit_block *b, float *restrict out) {
    uint32_t minus = f32_to_bits(-b->scale);
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        uint32_t word = b->sign[w];
        for (uint32_t l = 0; l < 32; l++)
            out[32 * (uint32_t)w + l] = bits_to_f32(minus ^ (word >> l & 1u) << 31);
    }
}

static inline int64_t chunk_min(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
