// The cpu backend's operations, each run on the calling thread and `threads` threads: NULL when it has run, or a constant
// text that says why not. ops.c makes op_fn (kernels/operations.h) of them.
#ifndef STARRING_KERNELS_CPU_CPU_H
#define STARRING_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

#define DECLARE_OPERATION(OP, name, args_t) const char *cpu_##name(int threads, const struct args_t *a);
OPERATIONS_WITHOUT_PRODUCTS(DECLARE_OPERATION)
#undef DECLARE_OPERATION
// Those that multiply matrices, by the way of this name where they are of bf16: all ways give the same bits.
#define DECLARE_OPERATION(OP, name, args_t) \
    const char *cpu_##name(int threads, enum cpu_kernel kernel, const struct args_t *a);
OPERATIONS_WITH_PRODUCTS(DECLARE_OPERATION)
#undef DECLARE_OPERATION

// The frame of every update: masters and states of elements [at, at + n), whose gradients are grad(n), of a group with
// that decay. It does the rest.
typedef void cpu_update_fn(const struct update_args *a, const float *grad, int64_t at, int64_t n,
                           float decay);
const char *cpu_update(int threads, const struct update_args *a, cpu_update_fn *block);

// The table of operations by that way, as cpu_kernel_resolve gives it; cpu_ops (kernels/operations.h) is fma's.
const op_fn *cpu_ops_by(enum cpu_kernel kernel);

#endif
