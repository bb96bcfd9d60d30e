// The answers of cuBLASLt, asked once per product and kept: its description and its algorithm. matmul.c runs
// plans, tune.c measures other algorithms for them.
//
// Locking   A device's list, and the descriptions in it (they carry the pointers of a call), are guarded by
//           its matmul_lock; the functions here are called with it held.
#ifndef STARRING_KERNELS_CUDA_HOST_MATMUL_PLAN_H
#define STARRING_KERNELS_CUDA_HOST_MATMUL_PLAN_H

#include "kernels/cuda/host/cuda_impl.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)  // what cuBLAS takes by itself on compute capability 9.0

struct matmul_plan {
    struct matmul_plan *next;
    struct product_key key;
    enum product_source source;  // PRODUCT_ABSENT: nothing below calls is set
    cublasStatus_t absent;       // .. and this is why
    uint64_t calls;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

// The device's plan for these arguments, made when there is none. NULL with *e set.
struct matmul_plan *matmul_plan_of(struct cuda_device *d, const struct matmul_args *m, cublasStatus_t *e);
// The plan of a key; NULL: there is none.
struct matmul_plan *matmul_plan_find(struct cuda_device *d, const struct product_key *key);
// Enqueues the product of m, which the plan is for, by an algorithm that may be another than the plan's.
cublasStatus_t matmul_plan_run(struct cuda_device *d, struct matmul_plan *p, const struct matmul_args *m,
                               const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                               cudaStream_t stream);
// The library's heuristics for the plan, best first, up to room. *count of them, 0 when it has none.
cublasStatus_t matmul_plan_ask(struct cuda_device *d, const struct matmul_plan *p,
                               cublasLtMatmulHeuristicResult_t *found, int room, int *count);
// NULL when an algorithm that wants so much workspace may be used, else why not: too much, or partial sums of
// a split K that are added in 16 bits or in place.
const char *matmul_algo_refused(const cublasLtMatmulAlgo_t *algo, size_t workspace_bytes);

#endif
