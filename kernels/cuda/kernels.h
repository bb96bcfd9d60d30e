// The CUDA operations written by hand: one function for each operation of kernels/operations.h except OP_MATMUL
// (cuBLASLt does most of it). operations.h defines the shapes, types and meaning of args.
//
// Ownership   The context belongs to the caller, one per stream. Pointers in args are device memory; only
//             reduce_args.inputs is a host array, of device pointers.
// Threads     One thread at a time uses a context.
// Blocking    Functions only enqueue on ctx->stream; none synchronises with the device. args and the host array
//             of reduce_args are read before the function returns.
// Errors      Functions return 0, or -1 with a constant text in ctx->why: CUDA refused the launch, or the
//             kernel does not support the shape. A failure at run time is seen at the stream's next query.
// Bits        No result depends on the order of blocks or threads, nor on the number of multiprocessors. add,
//             embed_fwd, reduce, cast, fill_zero, sumsq, decide, the updates of kernels/update.h and the codes give the
//             bits of kernels/cpu (NaN payloads of sums excepted); the others round differently. busy has no result.
// Alignment   Pointers are aligned to their elements (reduce: to bytes). The vectorised paths need 16-byte
//             aligned pointers and widths that are multiples of 16 bytes; other arguments take slower paths.
#ifndef STARRING_KERNELS_CUDA_KERNELS_H
#define STARRING_KERNELS_CUDA_KERNELS_H

#include <cuda_runtime.h>
// The project's headers are C. The headers that they include must be included before, outside extern "C".
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h"

// Scratch that operations need beyond the scratch in their args: partial column sums (norm_bwd, bias_grad), and
// the order and sums of embed_bwd. embed_bwd fails if B*T + B*T/16 + 2C nearly reaches the 2,097,152 numbers
// that fit here. The scratch is used in stream order only, so a stream's matrix products may share it.
#define CUDA_WORKSPACE_BYTES ((size_t)8 << 20)

struct cuda_ctx {
    cudaStream_t stream;
    int sm_count;            // multiprocessors of the device: decides grid sizes, never results
    void *workspace;         // device memory, 256-byte aligned, used by this stream only
    size_t workspace_bytes;  // >= CUDA_WORKSPACE_BYTES
    const char *why;         // set when a function returns -1; constant text
    int shared_bytes;  // shared memory that a block may request (cudaDevAttrMaxSharedMemoryPerBlockOptin);
                       // 0: as much as every device has
    int sm_version;    // 90: compute capability 9.0. Decides how blocks cooperate, never results
};

// Loads every kernel of this file's operations on the calling thread's device (load.cu). Returns 0, or -1 with
// CUDA's constant text in *why.
int cuda_kernels_load(const char **why);

// cuda_op_attn_fwd and cuda_op_attn_bwd are used if cuDNN has no plan: fp32 arithmetic, even head sizes up to
// 128.
#define DECLARE_OPERATION(OP, name, args_t) int cuda_op_##name(struct cuda_ctx *ctx, const struct args_t *a);
OPERATIONS_BUT_MATMUL(DECLARE_OPERATION)
#undef DECLARE_OPERATION
// Sets each row of c(M,N) to bias(N), for a product that then accumulates into c.
int cuda_op_bias_rows(struct cuda_ctx *ctx, const struct matmul_args *a);

#ifdef __cplusplus
}
#endif

#endif
