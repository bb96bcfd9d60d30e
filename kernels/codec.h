// The codes in which a star's workers may push their gradients, one row per code. Ring and star share them: the
// blocks of 1-bit Adam are those of CODE_ONEBIT. A worker keeps the error of a code and adds it to its next
// gradient (error feedback: Karimireddy et al. 2019, "Error Feedback Fixes SignSGD"; Stich et al. 2018,
// "Sparsified SGD with Memory", for top-k):
//
//     x = error * factor + gradient       OP_CODE_ENCODE: code of x
//     sum of the workers' codes, in fp32  OP_CODE_ADD
//     error = x - the code's value        OP_CODE_ERROR, then OP_CODE_ADD with CODE_MINUS; neither for a
//     skipped step
//
// A code has n elements, a multiple of CODE_BLOCK. A non-finite element stays visible in the sum: its block
// decodes to non-finite values only, and topk ranks it above all finite elements.
//
//     name    bytes of n elements                          value
//     onebit  n/256 x {fp32 scale, 256 signs}: 36          +-scale, the root of the block's mean square
//     int8    n/256 x {fp32 scale, 256 x int8}: 260        scale * q, q = round(x / scale) to nearest even,
//                                                          scale = the block's largest |x| / 127
//     topk    kept x uint32, then kept x fp32: 8 each      the `kept` largest |x| unchanged, by rising index;
//                                                          of equal ones the first; 0 elsewhere
//
// To add one   In blocks of a scale and 1, 2, 4 or 8 bits per element: its row in BLOCK_CODES, three formulas here.
//              Every backend's loops, the bytes and the names follow. Another kind of code, as topk: its row in
//              CODE_LIST, its check in codec.c, and its functions in codec.c of ref and cpu/ops, and in codec.cu.
#ifndef STARRING_KERNELS_CODEC_H
#define STARRING_KERNELS_CODEC_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/formula.h"

// The 1-bit code of 1-bit Adam (Tang et al. 2021, section 4; DeepSpeed's runtime/comm/nccl.py): one sign bit
// per number and one fp32 scale per block of 256 numbers. A number decodes to +scale or -scale. 36 bytes per
// block, 1.125 bits per number.
//
// The scale is the root of the block's mean square, as in DeepSpeed, which has one scale per tensor and
// destination. The blocks are those of the gradient's norm (SUMSQ_BLOCK): every shard is whole blocks, so no
// code crosses a boundary. A row of small numbers does not share the scale of a matrix of large ones.
//
// Order of the sum of squares, in double: lane l = 0..31 adds x[l], x[l+32], .. x[l+224]. Then lane l adds lane
// l+16, l+8, l+4, l+2, l+1, each for all l below that distance. The square of a float is exact in double.
#define ONEBIT_BLOCK 256  // elements; = SUMSQ_BLOCK
#define ONEBIT_LANES 32
#define ONEBIT_WORDS (ONEBIT_BLOCK / 32)

// Element i is +scale if bit i % 32 of sign[i / 32] is set, else -scale. A masked element's bit is 0.
struct onebit_block {
    float scale;
    uint32_t sign[ONEBIT_WORDS];
};

// Bytes of n elements; n is a multiple of ONEBIT_BLOCK.
static inline size_t onebit_bytes(int64_t n) {
    return (size_t)(n / ONEBIT_BLOCK) * sizeof(struct onebit_block);
}

// ---------------------------------------------------------------- all codes
#define CODE_BLOCK ONEBIT_BLOCK

// The codes in blocks: {fp32 scale, CODE_BLOCK numbers of `bits` bits, the first in the lowest bits of 32-bit words}.
// The scale follows from a statistic of the block's x: squares, their sum in the order above, in double; or largest,
// the largest |x| (a number that is not finite if there is one).
//      id      name    bits  statistic
#define BLOCK_CODES(ROW)            \
    ROW(ONEBIT, onebit, 1, squares) \
    ROW(INT8, int8, 8, largest)
// Their formulas: code_scale_NAME of the statistic, infinite if that is not finite; the number of an element, its low
// `bits` bits count; and the value of a number.

// counted: elements that are not masked (1-bit Adam); a masked one is 0.
FORMULA float onebit_root(double squares, int counted) {
    return counted ? (float)sqrt(squares / counted) : 0.0f;
}
FORMULA float code_scale_onebit(double squares) {
    float scale = onebit_root(squares, CODE_BLOCK);
    return scale < INFINITY ? scale : INFINITY;  // also where it is NaN
}
FORMULA uint32_t code_number_onebit(float x, float scale) {
    (void)scale;
    return x >= 0;
}
FORMULA float code_value_onebit(uint32_t number, float scale) { return number ? scale : -scale; }
// The value of element i of a block.
FORMULA float onebit_value(const struct onebit_block *b, int64_t i) {
    return code_value_onebit(b->sign[i / 32] >> (i % 32) & 1, b->scale);
}

FORMULA float code_scale_int8(double largest) {
    return largest < (double)INFINITY ? (float)largest / 127.0f : INFINITY;
}
// A subnormal scale may have been rounded down by up to a half, so x / scale can exceed 127.
FORMULA uint32_t code_number_int8(float x, float scale) {
    float q = scale > 0 && scale < INFINITY ? rintf(x / scale) : 0;
    return (uint32_t)(int32_t)(q > 127 ? 127 : q < -127 ? -127 : q);
}
FORMULA float code_value_int8(uint32_t number, float scale) { return scale * (float)(int8_t)number; }

// All codes: id and name. A received block may hold any bits, so only the number of blocks is checked; topk's indices
// must rise.
#define BLOCK_CODE_BYTES(bits) (sizeof(float) + CODE_BLOCK / 8 * (bits))
#define CODE_LIST(ROW)         BLOCK_CODES(ROW) ROW(TOPK, topk, , )
#define CODE_KIND(id, ...)     CODE_##id,
enum code_kind { CODE_NONE, CODE_LIST(CODE_KIND) CODE_KINDS };

struct code_format {
    enum code_kind kind;
    double share;  // of topk: share of the elements that are kept, above 0, at most 1
};

// How many of n elements topk keeps: at least one if n > 0.
static inline int64_t code_kept(double share, int64_t n) {
    int64_t kept = (int64_t)ceil(share * (double)n);
    return kept < 1 ? (n > 0) : kept < n ? kept : n;
}

struct codec {
    const char *name;
    // Returns the fault of a received code of this many bytes, or NULL. code need not be aligned.
    const char *(*fault)(const struct code_format *f, const void *code, size_t bytes, int64_t n);
};

const struct codec *codec_of(enum code_kind kind);  // its row; NULL for CODE_NONE
// Bytes of the code of n elements; 0 for CODE_NONE.
size_t code_bytes(const struct code_format *f, int64_t n);

#endif
