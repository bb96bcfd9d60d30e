// Number formats: storage sizes and conversions with one rounding (to nearest, ties to even).
// No state; every function is pure and may be called from any thread.
#ifndef STARRING_KERNELS_DTYPE_H
#define STARRING_KERNELS_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DT_F32, DT_BF16, DT_F16, DT_F64, DT_I64, DT_U8, DT_COUNT };

// Bytes of one element.
static inline size_t dtype_size(enum dtype t) {
    static const size_t bytes[DT_COUNT] = {4, 2, 2, 8, 8, 1};
    return bytes[t];
}

static inline const char *dtype_name(enum dtype t) {
    static const char *const names[DT_COUNT] = {"fp32", "bf16", "fp16", "fp64", "int64", "uint8"};
    return names[t];
}

static inline float bits_to_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t f32_to_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bf16_to_f32(uint16_t h) { return bits_to_f32((uint32_t)h << 16); }

// NaN becomes a quiet NaN; overflow becomes infinity, as IEEE 754 rounds.
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u = f32_to_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// GCC and clang compile these conversions to the hardware instruction if there is one. Clang before 15 knows
// the type only by its older name.
#if defined(__clang__) && __clang_major__ < 15
typedef __fp16 half_float;
#else
typedef _Float16 half_float;
#endif
static inline float f16_to_f32(uint16_t h) {
    half_float x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}

static inline uint16_t f32_to_f16(float f) {
    half_float x = (half_float)f;
    uint16_t h;
    memcpy(&h, &x, sizeof h);
    return h;
}

// Element i of a buffer of type fp32, bf16 or fp16, as fp32. The buffer need not be aligned, because payloads
// in messages are not.
static inline float dtype_load(enum dtype t, const void *p, size_t i) {
    if (t == DT_F32) {
        float f;
        memcpy(&f, (const char *)p + i * sizeof f, sizeof f);
        return f;
    }
    uint16_t h;
    memcpy(&h, (const char *)p + i * sizeof h, sizeof h);
    return t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

// Rounds x once to type t and stores it as element i.
static inline void dtype_store(enum dtype t, void *p, size_t i, float x) {
    if (t == DT_F32) {
        memcpy((char *)p + i * sizeof x, &x, sizeof x);
        return;
    }
    uint16_t h = t == DT_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
    memcpy((char *)p + i * sizeof h, &h, sizeof h);
}

#endif
