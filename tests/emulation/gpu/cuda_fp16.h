// Stands in for CUDA's header of this name: conversions from and to fp16, with CUDA's canonical NaN.
#ifndef STARRING_TESTS_EMULATION_CUDA_FP16_H
#define STARRING_TESTS_EMULATION_CUDA_FP16_H

#include <math.h>

#include "kernels/dtype.h"

struct __half {
    uint16_t bits;
};

static inline __half __float2half_rn(float x) { return {isnan(x) ? (uint16_t)0x7fff : f32_to_f16(x)}; }
struct __half2 {
    __half x, y;
};
static inline __half2 __floats2half2_rn(float a, float b) { return {__float2half_rn(a), __float2half_rn(b)}; }
static inline float __half2float(__half x) {
    float f = f16_to_f32(x.bits);
    return isnan(f) ? bits_to_f32(0x7fffffffu) : f;
}
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }

#endif
