// Stands in for CUDA's header of this name: conversions to bf16, with CUDA's canonical NaN.
#ifndef STARRING_TESTS_EMULATION_CUDA_BF16_H
#define STARRING_TESTS_EMULATION_CUDA_BF16_H

#include <math.h>

#include "kernels/dtype.h"

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    return {isnan(x) ? (uint16_t)0x7fff : f32_to_bf16(x)};
}
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }

#endif
