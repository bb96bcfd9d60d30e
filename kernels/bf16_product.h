// The definition of a product of bf16 matrices on a CPU: what Intel's instruction TDPBF16PS (AMX) computes, 32
// values of k at a time. Every implementation (kernels/cpu/gemm/micro_kernel.h) gives these bits, on every
// processor.
//
//     k     0  1  2  3  4  5  ..  30 31      and so on; after the last k, zeros up to a multiple of 32
//           |  |  |  |  |  |      |  |
//     even  +0 ---> fma -> fma .. fma        16 fused multiply-adds of fp32 in rising k
//     odd      +0 ---> fma -> fma .. fma
//     C     = C + (even + odd)               C begins at +0
//
// Each addition and multiply-add rounds to nearest even. A subnormal operand counts as zero, and a subnormal
// result becomes zero with its sign ("denormals are zero" and "flush to zero" of x86). Later additions
// to C (bias, earlier value) are plain fp32 arithmetic.
//
// Source   Intel's Software Developer's Manual, TDPBF16PS, and a measurement: 5,120,000 elements computed by a
//          Xeon with AMX have these bits. Intel's intrinsics guide prints another order of the additions, which
//          gives other bits.
#ifndef STARRING_KERNELS_BF16_PRODUCT_H
#define STARRING_KERNELS_BF16_PRODUCT_H

#include <math.h>

#include "kernels/dtype.h"

#define BF16_BLOCK 32  // values of k per addition to C

static inline float bf16_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

// Returns a b + c. Whether a result is subnormal is decided after rounding to 24 bits. A result equal to the
// smallest normal number is therefore computed again 2^64 times as large, where rounding keeps all bits. (Such
// a result has no operand near 2^64.)
static inline float bf16_fma(float a, float b, float c) {
    a = bf16_flush(a), b = bf16_flush(b), c = bf16_flush(c);
    float sum = fmaf(a, b, c);
    if (fabsf(sum) != 0x1p-126f) return bf16_flush(sum);
    return fabsf(fmaf(a * 0x1p64f, b, c * 0x1p64f)) < 0x1p-62f ? copysignf(0, sum) : sum;
}

// Returns C after one more block, with the values a[0..32) and b[0..32).
static inline float bf16_block(const float *a, const float *b, float c) {
    float chain[2] = {0, 0};
    for (int k = 0; k < BF16_BLOCK; k++) chain[k % 2] = bf16_fma(a[k], b[k], chain[k % 2]);
    return bf16_flush(bf16_flush(c) + bf16_flush(chain[0] + chain[1]));
}

#endif
