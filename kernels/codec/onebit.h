// The 1-bit code of 1-bit Adam (Tang et al. 2021, section 4; DeepSpeed's runtime/comm/nccl.py): of each number its
// sign, and of each block of 256 numbers one fp32 scale, so that a number is told as +scale or -scale. 36 bytes a
// block, 1.125 bits a number.
//
// The scale is the root of the block's mean square, as DeepSpeed's, which has one for a whole tensor and destination.
// Blocks are those of the gradient's norm (SUMSQ_BLOCK): every shard is whole blocks, no code crosses a boundary, and
// a row of small numbers is not told in the scale of a matrix of large ones.
//
// Order of the sum of squares, in double: lane l = 0..31 adds x[l], x[l+32], .. x[l+224]; then lane l adds lane l+16,
// l+8, l+4, l+2, l+1, each for all l below that distance. A square of a float is exact in double.
#ifndef STARRING_KERNELS_CODEC_ONEBIT_H
#define STARRING_KERNELS_CODEC_ONEBIT_H

#include <stddef.h>
#include <stdint.h>

#define ONEBIT_BLOCK 256  // elements; = SUMSQ_BLOCK
#define ONEBIT_LANES 32
#define ONEBIT_WORDS (ONEBIT_BLOCK / 32)

// Element i is +scale where bit i % 32 of sign[i / 32] is set, else -scale. A masked element's bit is 0.
struct onebit_block {
    float scale;
    uint32_t sign[ONEBIT_WORDS];
};

// Bytes of n elements, a multiple of ONEBIT_BLOCK.
static inline size_t onebit_bytes(int64_t n) {
    return (size_t)(n / ONEBIT_BLOCK) * sizeof(struct onebit_block);
}

#endif
