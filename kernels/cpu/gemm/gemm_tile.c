// The register tile of every product (gemm_kernel.h), in functions of its own. Inlined into the surrounding
// loops, the tile would share its registers with their constants, and GCC would reload b's vectors for each
// row: with 16 registers 18 loads to 12 multiply-adds, and half the speed.
#include "kernels/cpu/gemm/gemm_kernel.h"

#if VEC == 16 && !defined(__AVX512F__)  // only tests build this: small code, for the compiler's sake
#define TILE_UNROLL
#else
#define TILE_UNROLL _Pragma("GCC unroll 12")
#endif

VEC_INLINE void tile_of(bool pairs, const float *a, int64_t lda, const float *b, int64_t k, float *out,
                        int64_t ldo) {
    vecf acc[MR][2];
    TILE_UNROLL
    for (int r = 0; r < MR; r++) acc[r][0] = acc[r][1] = (vecf){0};
    for (int64_t p = 0; p < k; p++) {
        vecf b0 = vec_load_f32(b), b1 = vec_load_f32(b + VEC);
        TILE_UNROLL
        for (int r = 0; r < MR; r++) {
            vecf x = vec_splat(a + r);
            acc[r][0] = gemm_step(pairs, x, b0, acc[r][0]);
            acc[r][1] = gemm_step(pairs, x, b1, acc[r][1]);
        }
        a += lda;
        b += NR;
    }
    TILE_UNROLL
    for (int r = 0; r < MR; r++) {
        vec_store_f32(out + r * ldo, acc[r][0]);
        vec_store_f32(out + r * ldo + VEC, acc[r][1]);
    }
}

void gemm_tile(const float *a, int64_t lda, const float *b, int64_t k, float *out, int64_t ldo) {
    tile_of(false, a, lda, b, k, out, ldo);
}

void gemm_tile_pairs(const float *a, int64_t lda, const float *b, int64_t k, float *out, int64_t ldo) {
    tile_of(true, a, lda, b, k, out, ldo);
}
