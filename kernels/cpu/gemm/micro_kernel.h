// How blocks of matrices are multiplied: packed panels and a register tile, after Goto & van de Geijn, "Anatomy
// of high-performance matrix multiplication" (2008). The matrix product and attention use it.
//
//     c(rows, columns) = or += a panel times b panel, over `depth` values of k
//
// A micro-kernel is a layout of panels and a tile function. fp32 and fp16 have one: fp32 panels,
// each element of c one chain of fused multiply-adds in the order of k. bf16 has three, with the bits of
// kernels/bf16_product.h:
//
//     fma           fp32 panels, two chains of fused multiply-adds, in the processor's modes DAZ and FTZ
//     avx512_bf16   pairs of bf16. vdpbf16ps adds the product of a pair's high halves, then of its low ones;
//                   there are two chains, of pairs (high: k, low: k + 2)
//     amx           tiles of bf16; tdpbf16ps
//
// An element's bits do not depend on its position in a tile, on how k is cut into calls (at multiples of
// k_grain), on the width of the vectors, or on the number of threads. For bf16, every micro-kernel gives NaN where the
// definition does, but the NaN's other bits may differ.
#ifndef STARRING_KERNELS_CPU_GEMM_MICRO_KERNEL_H
#define STARRING_KERNELS_CPU_GEMM_MICRO_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/dtype.h"

// One side of a product: `rows` rows of op(a), or columns of op(b). Element (r, k) is p[r * row_stride + k *
// k_stride], of type t. One of the strides is 1.
struct operand {
    const void *p;
    enum dtype t;
    int64_t row_stride, k_stride;
};

// To add one for bf16   Its line in CPU_KERNELS (kernels/cpu_kernel.h), and a file here with its code and its row. The
//                       names, the choice, the backend's tables and the tests of its bits follow.
struct micro_kernel {
    const char *instruction;  // that its peak is measured with, as printed: "AMX, tiles of bf16"
    // Why it cannot run: constant text with what the program, the processor or the system does not support; NULL: it can.
    // No function: it runs everywhere.
    const char *(*unsupported)(void);
    bool (*preferred)(void);  // whether it is faster here than the rows before it; no function: it is
    int rows, columns;        // of a tile of c; a panel of a has `rows` rows, one of b `columns` columns
    int k_grain;              // a panel's depth is rounded up to this, with zeros
    int bytes;                // of a panel, per row and value of k
    int depth_max;            // values of k per pass of a large product; a multiple of 32
    int row_panels;           // panels of a that stay in the second level of cache
    int row_panels_max;       // panels of a per pass over b
    int column_panels_max;    // panels of b that are packed together
    // Packs `rows` rows of x (columns for b), at most a panel's, and `depth` values of k. Missing rows are
    // zero.
    void (*pack_a)(const struct operand *x, int64_t rows, int64_t depth, void *panel);
    void (*pack_b)(const struct operand *x, int64_t rows, int64_t depth, void *panel);
    // Computes the tile c (fp32, rows ldc apart). accumulate: adds to c's values; else starts at zero. The caller
    // needs only the first `rows_needed` rows; the tile may omit the others.
    void (*tile)(const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c, int64_t ldc,
                 bool accumulate);
    // Called by a thread before its first tile and after its last one; NULL: not needed.
    void (*begin)(void);
    void (*end)(void);
};

// Bytes of a packed panel of `rows` rows: a multiple of 64, with room for one vector that packing may write
// past the end.
static inline size_t panel_bytes(const struct micro_kernel *micro, int64_t rows, int64_t depth) {
    int64_t padded = (depth + micro->k_grain - 1) / micro->k_grain * micro->k_grain;
    return ((size_t)(rows * padded * micro->bytes) + 127) / 64 * 64;
}

// Returns the micro-kernel for products of type t. kernel: a result of cpu_kernel_resolve.
const struct micro_kernel *micro_kernel_of(enum dtype t, enum cpu_kernel kernel);

extern const struct micro_kernel chain_kernel;  // fp32 and fp16
#define DECLARE_KERNEL(ID, name) extern const struct micro_kernel bf16_##name##_kernel;
CPU_KERNELS(DECLARE_KERNEL)
#undef DECLARE_KERNEL

#endif
