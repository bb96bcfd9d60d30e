// Row-major products in cuBLASLt's column-major terms. A row-major (R,C) matrix whose rows lie ld elements
// apart is the column-major (C,R) one with leading dimension ld, its transpose. So the library is not asked for
// c = op(a) op(b) but for c^T(N,M) = op(b)^T(N,K) op(a)^T(K,M), and gets b as its A and a as its B:
//
//     ours                    stored      library's  rows  columns  ld            operation
//     b (K,N)                 (K,N)       A          N     K        ldb, else N   none
//     b transposed            (N,K)       A          K     N        ldb, else K   transpose
//     a (M,K)                 (M,K)       B          K     M        lda, else K   none
//     a transposed            (K,M)       B          M     K        lda, else M   transpose
//     c (M,N)                 (M,N)       C, D       N     M        ldc, else N
//
// The bias has one value a column of ours, a row of the library's: what its bias epilogue adds. The aux
// matrix of its GELU epilogues is laid out as D is. A bias gradient has one value a row of ours, a column of
// the library's D, and sums our a, its B, over k: its epilogue BGRADB (cublasLt.h).
#ifndef STARRING_KERNELS_CUDA_HOST_MATMUL_LAYOUT_H
#define STARRING_KERNELS_CUDA_HOST_MATMUL_LAYOUT_H

#include "kernels/operations.h"

struct matmul_operand {
    uint64_t rows, columns;
    int64_t ld;  // of a column
    bool transpose;
};

struct matmul_layout {
    struct matmul_operand a, b, d;  // the library's
};

static inline struct matmul_layout matmul_layout_of(const struct matmul_args *m) {
    struct matmul_layout l = {
        .a = {(uint64_t)m->n, (uint64_t)m->k, matmul_ldb(m), false},
        .b = {(uint64_t)m->k, (uint64_t)m->m, matmul_lda(m), false},
        .d = {(uint64_t)m->n, (uint64_t)m->m, matmul_ldc(m), false},
    };
    if (m->trans_b) l.a = (struct matmul_operand){(uint64_t)m->k, (uint64_t)m->n, matmul_ldb(m), true};
    if (m->trans_a) l.b = (struct matmul_operand){(uint64_t)m->m, (uint64_t)m->k, matmul_lda(m), true};
    return l;
}

// The alignment to promise for a pointer, in bytes: 16 is all that kernels want, and promising no more keeps
// the choice of an algorithm, and so the bits, from depending on where a buffer happens to lie.
static inline uint32_t matmul_alignment(const void *p) {
    uintptr_t low = (uintptr_t)p & 15u;
    return low ? (uint32_t)(low & -low) : 16u;
}

#endif
