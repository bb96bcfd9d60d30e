// The cpu backend's operations. Each runs on the calling thread and `threads` threads, and returns NULL, or a
// constant text with the reason of its failure. ops.c makes op_fn (kernels/operations.h) of them.
#ifndef STARRING_KERNELS_CPU_CPU_H
#define STARRING_KERNELS_CPU_CPU_H

#include "kernels/backend.h"

#define DECLARE_OPERATION(OP, name, args_t) const char *cpu_##name(int threads, const struct args_t *a);
OPERATIONS_WITHOUT_PRODUCTS(DECLARE_OPERATION)
#undef DECLARE_OPERATION
// Operations that multiply matrices. `kernel` selects the micro-kernel for bf16; all of them give the same bits.
#define DECLARE_OPERATION(OP, name, args_t) \
    const char *cpu_##name(int threads, enum cpu_kernel kernel, const struct args_t *a);
OPERATIONS_WITH_PRODUCTS(DECLARE_OPERATION)
#undef DECLARE_OPERATION

// The table of operations for a kernel that cpu_kernel_resolve returned. cpu_ops (kernels/operations.h) is the
// table of fma.
const op_fn *cpu_ops_by(enum cpu_kernel kernel);

#endif
