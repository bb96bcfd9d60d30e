// The inner product of blocks that matmul and attention share: fp32 panels and a register tile, after
// Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
//
//     tile(MR,NR) = sum over k of a[k][0..MR) outer b[k][0..NR)
//
//     a panel: MR rows of op(a), element (r,k) at a[k*lda + r]     packed panels have lda = MR
//     b panel: NR columns of op(b), element (k,c) at b[k*NR + c]   always packed
//
// Each element of the tile is one chain of fused multiply-adds in the order of k: its bits depend on
// neither the position of the tile, nor the width of the vectors, nor the number of threads.
#ifndef STARRING_KERNELS_CPU_GEMM_GEMM_KERNEL_H
#define STARRING_KERNELS_CPU_GEMM_GEMM_KERNEL_H

#include <stdbool.h>

#include "kernels/cpu/vec.h"

// 2 * MR accumulators, 2 vectors of b and one broadcast of a fit the registers (32 or 16).
#define MR      (VEC == 16 ? 12 : 6)
#define NR      (2 * VEC)
#define A_SLACK VEC  // floats that packing may write past the end of an a panel

// The other kind of step multiplies pairs of bf16 and adds both products to an fp32 sum, on machines that
// can: each 32-bit element of a panel holds (k, k+1), the last one of an odd depth (k, 0).
#if defined(__AVX512BF16__) && VEC == 16
#define GEMM_HAS_PAIRS 1
#else
#define GEMM_HAS_PAIRS 0
#endif

// sum + x*y in each lane; pairs: sum + x.low*y.low + x.high*y.high.
VEC_INLINE vecf gemm_step(bool pairs, vecf x, vecf y, vecf sum) {
#if GEMM_HAS_PAIRS
    if (pairs) return (vecf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y);
#endif
    (void)pairs;
    return vec_fma(x, y, sum);
}

// out(MR,NR), rows ldo floats apart, of k steps; and of k steps of pairs. In kernels/cpu/gemm/gemm_tile.c.
void gemm_tile(const float *a, int64_t lda, const float *b, int64_t k, float *out, int64_t ldo);
void gemm_tile_pairs(const float *a, int64_t lda, const float *b, int64_t k, float *out, int64_t ldo);

#if VEC == 16
#define VEC_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VEC_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#else
#define VEC_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define VEC_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#endif

// Transposes VEC vectors in place: log2(VEC) rounds of perfect shuffles.
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

// out[k*width + r] = src[r*stride + k] for r < rows <= VEC, k < depth; rows up to `width` become 0.
// src is type t; writes up to VEC - width floats past the end when width < VEC.
VEC_INLINE void pack_across(enum dtype t, const void *src, int64_t start, int64_t stride, int64_t rows,
                            int64_t depth, int64_t width, float *out) {
    int64_t k = 0;
    for (; k + VEC <= depth; k += VEC) {
        vecf v[VEC];
        if (rows == VEC) {
            _Pragma("GCC unroll 16") for (int r = 0; r < VEC; r++) v[r] =
                vec_load(t, src, start + r * stride + k);
        } else {
            for (int r = 0; r < VEC; r++)
                v[r] = r < rows ? vec_load(t, src, start + r * stride + k) : (vecf){0};
        }
        vec_transpose(v);
        _Pragma("GCC unroll 16") for (int i = 0; i < VEC; i++) vec_store_f32(out + (k + i) * width, v[i]);
    }
    int64_t lanes = width < VEC ? width : VEC;
    for (; k < depth; k++)
        for (int64_t r = 0; r < lanes; r++)
            out[k * width + r] = r < rows ? dtype_load(t, src, (size_t)(start + r * stride + k)) : 0.0f;
}

// out[k*width + c] = src[k*stride + c] for c < columns <= width, zeros up to width; k < depth.
VEC_INLINE void pack_along(enum dtype t, const void *src, int64_t start, int64_t stride, int64_t columns,
                           int64_t depth, int64_t width, float *out) {
    for (int64_t k = 0; k < depth; k++) {
        int64_t from = start + k * stride, c = 0;
        float *row = out + k * width;
        for (; c + VEC <= columns; c += VEC) vec_store_f32(row + c, vec_load(t, src, from + c));
        for (; c < columns; c++) row[c] = dtype_load(t, src, (size_t)(from + c));
        for (; c < width; c++) row[c] = 0.0f;
    }
}

// As pack_across and pack_along for bf16, two elements of depth to a 32-bit one.
VEC_INLINE void pack_pairs_across(const uint16_t *src, int64_t stride, int64_t rows, int64_t depth,
                                  int64_t width, float *out) {
    int64_t k = 0;
    for (; 2 * (k + VEC) <= depth; k += VEC) {
        vecf v[VEC];
        for (int r = 0; r < VEC; r++) {
            v[r] = (vecf){0};
            if (r < rows) memcpy(&v[r], src + r * stride + 2 * k, sizeof v[r]);
        }
        vec_transpose(v);
        for (int i = 0; i < VEC; i++) vec_store_f32(out + (k + i) * width, v[i]);
    }
    int64_t lanes = width < VEC ? width : VEC;
    for (; 2 * k < depth; k++)
        for (int64_t r = 0; r < lanes; r++) {
            uint16_t pair[2] = {0, 0};
            if (r < rows)
                memcpy(pair, src + r * stride + 2 * k, 2 * k + 1 < depth ? sizeof pair : sizeof *pair);
            memcpy(out + k * width + r, pair, sizeof pair);
        }
}

VEC_INLINE void pack_pairs_along(const uint16_t *src, int64_t stride, int64_t columns, int64_t depth,
                                 int64_t width, float *out) {
    for (int64_t k = 0; k < depth; k += 2, out += width) {
        const uint16_t *low = src + k * stride, *high = k + 1 < depth ? low + stride : NULL;
        int64_t c = 0;
        for (; c + VEC <= columns; c += VEC) {
            vech l, h = {0};
            memcpy(&l, low + c, sizeof l);
            if (high) memcpy(&h, high + c, sizeof h);
            vecu pair = __builtin_convertvector(l, vecu) | (__builtin_convertvector(h, vecu) << 16);
            memcpy(out + c, &pair, sizeof pair);
        }
        for (; c < width; c++) {
            uint16_t pair[2] = {c < columns ? low[c] : 0, c < columns && high ? high[c] : 0};
            memcpy(out + c, pair, sizeof pair);
        }
    }
}

// A panel of MR rows, element (r,k) of type t at src[start + r*row_stride + k*k_stride]; one of the
// strides is 1. rows <= MR; the missing ones are zero. out has MR*depth + A_SLACK floats.
VEC_INLINE void pack_a(enum dtype t, const void *src, int64_t start, int64_t row_stride, int64_t k_stride,
                       int64_t rows, int64_t depth, float *out) {
    if (k_stride == 1)
        pack_across(t, src, start, row_stride, rows, depth, MR, out);
    else
        pack_along(t, src, start, k_stride, rows, depth, MR, out);
}

// A panel of NR columns, element (k,c) at src[start + k*k_stride + c*column_stride].
VEC_INLINE void pack_b(enum dtype t, const void *src, int64_t start, int64_t k_stride, int64_t column_stride,
                       int64_t columns, int64_t depth, float *out) {
    if (column_stride == 1) {
        pack_along(t, src, start, k_stride, columns, depth, NR, out);
        return;
    }
    int64_t left = columns < VEC ? columns : VEC, right = columns - left;
    pack_across(t, src, start, column_stride, left, depth, NR, out);
    pack_across(t, src, start + VEC * column_stride, column_stride, right, depth, NR, out + VEC);
}

// The same two panels of bf16 pairs; src is the first element.
VEC_INLINE void pack_pairs_a(const uint16_t *src, int64_t row_stride, int64_t k_stride, int64_t rows,
                             int64_t depth, float *out) {
    if (k_stride == 1)
        pack_pairs_across(src, row_stride, rows, depth, MR, out);
    else
        pack_pairs_along(src, k_stride, rows, depth, MR, out);
}

VEC_INLINE void pack_pairs_b(const uint16_t *src, int64_t k_stride, int64_t column_stride, int64_t columns,
                             int64_t depth, float *out) {
    if (column_stride == 1) {
        pack_pairs_along(src, k_stride, columns, depth, NR, out);
        return;
    }
    int64_t left = columns < VEC ? columns : VEC, right = columns - left;
    pack_pairs_across(src, column_stride, left, depth, NR, out);
    pack_pairs_across(src + (right ? VEC * column_stride : 0), column_stride, right, depth, NR, out + VEC);
}

#endif
