// The cpu backend's tables, one per micro-kernel for bf16: each operation of cpu.h as an op_fn.
#include "kernels/cpu/cpu.h"

#define RUN(name, ...)                                                       \
    static int run_##name(int threads, const void *args, const char **why) { \
        const char *text = __VA_ARGS__;                                      \
        if (text) *why = text;                                               \
        return text ? -1 : 0;                                                \
    }
#define RUN_BY(OP, name, args_t, ID, kernel) RUN(name##_##kernel, cpu_##name(threads, CPU_KERNEL_##ID, args))
#define RUN_KERNEL(ID, kernel)               OPERATIONS_WITH_PRODUCTS(RUN_BY, ID, kernel)
#define RUN_ANY(OP, name, args_t)            RUN(name, cpu_##name(threads, args))
CPU_KERNELS(RUN_KERNEL)
OPERATIONS_WITHOUT_PRODUCTS(RUN_ANY)

#define ENTRY_BY(OP, name, args_t, kernel) [OP] = run_##name##_##kernel,
#define ENTRY(OP, name, args_t)            [OP] = run_##name,
#define TABLE(kernel) \
    { OPERATIONS_WITH_PRODUCTS(ENTRY_BY, kernel) OPERATIONS_WITHOUT_PRODUCTS(ENTRY) }

const op_fn cpu_ops[OP_COUNT] = TABLE(fma);

const op_fn *cpu_ops_by(enum cpu_kernel kernel) {
#define TABLE_OF(ID, kernel) [CPU_KERNEL_##ID] = TABLE(kernel),
    static const op_fn tables[CPU_KERNEL_COUNT][OP_COUNT] = {CPU_KERNELS(TABLE_OF)};
    return tables[kernel];
}
