// How blocks of matrices are multiplied: packed panels and a register tile, after Goto & van de Geijn, "Anatomy of
// high-performance matrix multiplication" (2008). The matrix product and attention share it.
//
//     c(rows, columns) = or += a panel times b panel, over `depth` values of k
//
// A way has a layout of its panels and a tile of its own. There is one way for fp32 and fp16: fp32 panels, each element of c one
// chain of fused multiply-adds in the order of k. For bf16 there are three, with the bits of kernels/bf16_product.h:
//
//     fma           fp32 panels, two chains of fused multiply-adds, the processor's modes DAZ and FTZ on
//     avx512_bf16   pairs of bf16; vdpbf16ps adds the product of a pair's high halves, then of its low ones: two chains, of
//                   pairs (high: k, low: k + 2)
//     amx           tiles of bf16; tdpbf16ps
//
// An element's bits depend on neither its place in a tile, nor how k is cut into calls (at multiples of k_grain), nor the width
// of the vectors, nor the number of threads. For bf16, NaN is NaN in each way, but its other bits are the way's.
#ifndef STARRING_KERNELS_CPU_GEMM_PRODUCT_WAY_H
#define STARRING_KERNELS_CPU_GEMM_PRODUCT_WAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/dtype.h"

// One side of a product: `rows` of op(a), or columns of op(b). Element (r, k) lies at p[r * row_stride + k * k_stride], of type t;
// one of the strides is 1.
struct operand {
    const void *p;
    enum dtype t;
    int64_t row_stride, k_stride;
};

struct product_way {
    int rows, columns;      // of a tile of c: a panel of a has `rows`, one of b `columns`
    int k_grain;            // a panel's depth is rounded up to this; the added values are zero
    int bytes;              // of a panel, per row and value of k
    int depth_max;          // values of k that a pass of a large product takes; a multiple of 32
    int row_panels;         // panels of a that stay in the second level of cache
    int row_panels_max;     // .. that one pass over b serves
    int column_panels_max;  // panels of b that are packed at once
    // Packs `rows` of x (of columns for b), at most a panel's, and `depth` values of k; missing rows are zero.
    void (*pack_a)(const struct operand *x, int64_t rows, int64_t depth, void *panel);
    void (*pack_b)(const struct operand *x, int64_t rows, int64_t depth, void *panel);
    // The tile c (fp32, rows ldc apart) begins at zero, or goes on from what it holds. Of its rows, `wanted` are: the others
    // may be left out.
    void (*tile)(const void *a, const void *b, int64_t wanted, int64_t depth, float *c, int64_t ldc,
                 bool goes_on);
    // What a thread does before its first tile and after its last one; NULL: nothing.
    void (*begin)(void);
    void (*end)(void);
};

// Bytes of a packed panel of `rows`, a multiple of 64, with room for a vector that packing may write behind it.
static inline size_t panel_bytes(const struct product_way *way, int64_t rows, int64_t depth) {
    int64_t padded = (depth + way->k_grain - 1) / way->k_grain * way->k_grain;
    return ((size_t)(rows * padded * way->bytes) + 127) / 64 * 64;
}

// The way for products of type t; kernel as cpu_kernel_resolve gives it.
const struct product_way *product_way(enum dtype t, enum cpu_kernel kernel);

// Each way's own, NULL where this program, processor or system lacks it.
extern const struct product_way chain_way, bf16_fma_way;
const struct product_way *bf16_pairs_way(void), *bf16_amx_way(void);

#endif
