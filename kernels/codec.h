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
#ifndef STARRING_KERNELS_CODEC_H
#define STARRING_KERNELS_CODEC_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

struct int8_block {
    float scale;
    int8_t q[CODE_BLOCK];
};

// The codes, one row each: name, bytes of n elements in the format f, and the check of a received code. Blocks
// may hold any bits, so only their number is checked; topk's indices must rise.
#define CODE_LIST(X)                                                                       \
    X(ONEBIT, "onebit", onebit_bytes(n), fault_of_blocks)                                  \
    X(INT8, "int8", (size_t)(n / CODE_BLOCK) * sizeof(struct int8_block), fault_of_blocks) \
    X(TOPK, "topk", (size_t)code_kept(f->share, n) * (sizeof(uint32_t) + sizeof(float)), fault_of_topk)
#define CODE_KIND(id, ...) CODE_##id,
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
