// The answers of cuBLASLt, asked once per product and kept: its description and its algorithm. matmul.c runs
// plans.
//
// Locking   A device's list, and the descriptions in it (they carry the pointers of a call), are guarded by
//           its matmul_lock; the functions here are called with it held.
#ifndef STARRING_KERNELS_CUDA_HOST_MATMUL_PLAN_H
#define STARRING_KERNELS_CUDA_HOST_MATMUL_PLAN_H

#include "kernels/cuda/host/cuda_impl.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)  // what cuBLAS takes by itself on compute capability 9.0

// Everything that a product's algorithm may depend on: the arguments of OP_MATMUL (struct matmul_args) without its
// pointers, but with the alignment promised of each. Compared as bytes: memset to 0 before it is filled.
struct matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t a_align, b_align, c_align;  // bytes; a and b as the library sees them (matmul_layout.h): a is b
    uint32_t bias_align, aux_align;      // 0: there is none
    uint8_t trans_a, trans_b, accumulate;
    uint8_t epilogue;  // enum matmul_epilogue
    uint8_t dt;        // enum dtype
};

struct matmul_plan {
    struct matmul_plan *next;
    struct matmul_key key;
    cublasStatus_t
        absent;  // not 0: the library does not do the product's epilogue, and why. Then nothing below is set
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

// The device's plan for these arguments, made when there is none. NULL with *e set.
struct matmul_plan *matmul_plan_of(struct cuda_device *d, const struct matmul_args *m, cublasStatus_t *e);
// Enqueues the product of m, which the plan is for. workspace: of at least the plan's bytes.
cublasStatus_t matmul_plan_run(struct cuda_device *d, struct matmul_plan *p, const struct matmul_args *m,
                               void *workspace, cudaStream_t stream);

#endif
