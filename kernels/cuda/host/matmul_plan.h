// Descriptions and algorithms of cuBLASLt, one per product, kept after the first call. matmul.c runs these
// plans.
//
// Locking   The device's matmul_lock guards its list and the descriptions in it, which contain the pointers of
//           a call. Callers hold it when they call these functions.
#ifndef STARRING_KERNELS_CUDA_HOST_MATMUL_PLAN_H
#define STARRING_KERNELS_CUDA_HOST_MATMUL_PLAN_H

#include "kernels/cuda/host/cuda_impl.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)  // cuBLAS's default on compute capability 9.0

// Everything that a product's algorithm may depend on: the arguments of OP_MATMUL (struct matmul_args), with
// the promised alignment of each pointer instead of the pointer. Compared as bytes, so memset to 0 before it is
// filled.
struct matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint32_t a_align, b_align, c_align;  // bytes; as the library sees them (matmul_layout.h): a is our b
    uint32_t bias_align, aux_align;      // 0: no pointer
    uint8_t trans_a, trans_b, accumulate;
    uint8_t epilogue;  // enum matmul_epilogue
    uint8_t dt;        // enum dtype
};

struct matmul_plan {
    struct matmul_plan *next;
    struct matmul_key key;
    cublasStatus_t absent;  // not 0: why the library lacks the epilogue; the members below are unset
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

// Returns the device's plan for these arguments, and creates it if there is none. Returns NULL with *e set.
struct matmul_plan *matmul_plan_of(struct cuda_device *d, const struct matmul_args *m, cublasStatus_t *e);
// Enqueues the product of m, for which p was made. workspace: at least the plan's bytes.
cublasStatus_t matmul_plan_run(struct cuda_device *d, struct matmul_plan *p, const struct matmul_args *m,
                               void *workspace, cudaStream_t stream);

#endif
