// Row-major products in cuBLASLt's column-major terms. A row-major (R,C) matrix with ld elements from row to
// row is the column-major matrix (C,R) with leading dimension ld, its transpose. So the library computes not c
// = op(a) op(b) but c^T(N,M) = op(b)^T(N,K) op(a)^T(K,M), and gets b as its A and a as its B:
//
//     ours                    stored      library's  rows  columns  ld            operation
//     b (K,N)                 (K,N)       A          N     K        ldb, else N   none
//     b transposed            (N,K)       A          K     N        ldb, else K   transpose
//     a (M,K)                 (M,K)       B          K     M        lda, else K   none
//     a transposed            (K,M)       B          M     K        lda, else M   transpose
//     c (M,N)                 (M,N)       C, D       N     M        ldc, else N
//
// The bias has one value per column of our c, which is a row of the library's D: its bias epilogue adds that.
// The aux matrix of its GELU epilogues has the layout of D. A bias gradient has one value per row of our c, a
// column of D, and sums our a, which is the library's B, over k: its epilogue BGRADB (cublasLt.h).
#ifndef STARRING_KERNELS_CUDA_HOST_MATMUL_LAYOUT_H
#define STARRING_KERNELS_CUDA_HOST_MATMUL_LAYOUT_H

#include "kernels/operations.h"

struct matmul_operand {
    uint64_t rows, columns;
    int64_t ld;  // elements from column to column
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

// The alignment to promise for a pointer, in bytes. Kernels need at most 16. By never promising more, the
// choice of an algorithm, and so the bits, do not depend on a buffer's address.
static inline uint32_t matmul_alignment(const void *p) {
    uintptr_t low = (uintptr_t)p & 15u;
    return low ? (uint32_t)(low & -low) : 16u;
}

#endif
