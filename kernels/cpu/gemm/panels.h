// Packing code that the micro-kernels share. `width` is the panel's width, a constant; so is t.
#ifndef STARRING_KERNELS_CPU_GEMM_PANELS_H
#define STARRING_KERNELS_CPU_GEMM_PANELS_H

#include "kernels/bf16_product.h"
#include "kernels/cpu/gemm/micro_kernel.h"
#include "kernels/cpu/vec.h"

// 2 * MR accumulators, 2 vectors of b and one broadcast of a fit in the registers (32 or 16).
#define MR (VEC == 16 ? 12 : 6)
#define NR (2 * VEC)

#if VEC == 16
#define VEC_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VEC_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define VEC_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define VEC_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#endif

// Transposes VEC vectors in place: log2(VEC) steps of perfect shuffles.
VEC_INLINE void vec_transpose(vecf v[VEC]) {
    vecf w[VEC];
    for (int round = VEC; round > 1; round /= 2) {
        _Pragma("GCC unroll 8") for (int i = 0; i < VEC / 2; i++) {
            w[2 * i] = VEC_PICK(veci, v[i], v[i + VEC / 2], VEC_LOW);
            w[2 * i + 1] = VEC_PICK(veci, v[i], v[i + VEC / 2], VEC_HIGH);
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < VEC; i++) v[i] = w[i];
    }
}

static inline int64_t panel_least(int64_t a, int64_t b) { return a < b ? a : b; }

// ---------------------------------------------------------------- bf16: blocks of 32 values of k, in pairs
#define PAIRS (BF16_BLOCK / 2)

// pair[j] = (low: k = 2j, high: k = 2j + 1) of `lanes` <= VEC rows at src. Missing rows and values of k are
// zero.
VEC_INLINE void load_pairs(const uint16_t *src, int64_t row_stride, int64_t k_stride, int64_t rows,
                           int64_t depth, const int lanes, vecf pair[PAIRS]) {
    uint16_t whole[BF16_BLOCK * VEC];
    bool along = row_stride == 1;
    if (rows < (along ? VEC : lanes) || depth < BF16_BLOCK) {
        memset(whole, 0, sizeof whole);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < depth; k++)
                whole[along ? k * VEC + r : r * BF16_BLOCK + k] = src[r * row_stride + k * k_stride];
        src = whole;
        row_stride = along ? 1 : BF16_BLOCK;
        k_stride = along ? VEC : 1;
    }
    if (along) {
        for (int j = 0; j < PAIRS; j++) {
            vech low, high;
            memcpy(&low, src + 2 * j * k_stride, sizeof low);
            memcpy(&high, src + (2 * j + 1) * k_stride, sizeof high);
            pair[j] = (vecf)(vec_widen(low) | (vec_widen(high) << 16));
        }
        return;
    }
    for (int j = 0; j < PAIRS; j += VEC) {
        vecf *v = pair + j;
        _Pragma("GCC unroll 16") for (int r = 0; r < VEC; r++) {
            v[r] = (vecf){0};
            if (r < lanes) memcpy(&v[r], src + r * row_stride + 2 * j, sizeof v[r]);
        }
        vec_transpose(v);
    }
}

// Stores the pairs of VEC columns, the first is `column`, in a block of a panel of `width` columns.
typedef void place_fn(const vecf pair[PAIRS], int width, int column, void *block);

// Packs a panel of bf16: blocks of 32 values of k, block_bytes each.
VEC_INLINE void pack_bf16(const struct operand *x, int64_t rows, int64_t depth, const int width,
                          place_fn *place, size_t block_bytes, void *panel) {
    const int lanes = width < VEC ? width : VEC;
    for (int64_t k = 0; k < depth; k += BF16_BLOCK)
        for (int c = 0; c < width; c += VEC) {
            vecf pair[PAIRS];
            int64_t here = rows > c ? panel_least(rows - c, lanes) : 0;
            const uint16_t *src = (const uint16_t *)x->p + (here ? c * x->row_stride : 0) + k * x->k_stride;
            load_pairs(src, x->row_stride, x->k_stride, here, panel_least(depth - k, BF16_BLOCK), lanes,
                       pair);
            place(pair, width, c, (char *)panel + (size_t)(k / BF16_BLOCK) * block_bytes);
        }
}

#endif
