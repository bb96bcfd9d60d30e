// The cpu backend's operations, each run on the calling thread and `threads` threads: NULL when it has run, or a constant
// text that says why not. ops.c makes op_fn (kernels/operations.h) of them.
#ifndef STARRING_KERNELS_CPU_CPU_H
#define STARRING_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

#define DECLARE_OPERATION(OP, name, args_t) const char *cpu_##name(int threads, const struct args_t *a);
OPERATIONS(DECLARE_OPERATION)
#undef DECLARE_OPERATION
// The frame of every update: masters and states of elements [at, at + n), whose gradients are grad(n), of a group with
// that decay. It does the rest.
typedef void cpu_update_fn(const struct update_args *a, const float *grad, int64_t at, int64_t n,
                           float decay);
const char *cpu_update(int threads, const struct update_args *a, cpu_update_fn *block);
// bf16 as CPU_KERNEL_PAIRS, by fp32 fma and by the instruction: the same bits; other types as cpu_matmul.
const char *cpu_matmul_pairs(int threads, const struct matmul_args *g);
const char *cpu_matmul_pairs_fast(int threads, const struct matmul_args *g);

// cpu_ops (kernels/operations.h) with another matrix product.
extern const op_fn cpu_ops_pairs[OP_COUNT], cpu_ops_pairs_fast[OP_COUNT];

#endif
