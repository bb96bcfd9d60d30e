// The cpu backend's tables, one per way of multiplying bf16: each operation of cpu.h as an op_fn.
#include "kernels/cpu/cpu.h"

#define RUN(name, ...)                                                       \
    static int run_##name(int threads, const void *args, const char **why) { \
        const char *text = __VA_ARGS__;                                      \
        if (text) *why = text;                                               \
        return text ? -1 : 0;                                                \
    }
#define BY_FMA(OP, name, args_t)   RUN(name, cpu_##name(threads, CPU_KERNEL_FMA, args))
#define BY_PAIRS(OP, name, args_t) RUN(name##_pairs, cpu_##name(threads, CPU_KERNEL_AVX512_BF16, args))
#define BY_AMX(OP, name, args_t)   RUN(name##_amx, cpu_##name(threads, CPU_KERNEL_AMX, args))
#define ANYHOW(OP, name, args_t)   RUN(name, cpu_##name(threads, args))
OPERATIONS_WITH_PRODUCTS(BY_FMA)
OPERATIONS_WITH_PRODUCTS(BY_PAIRS)
OPERATIONS_WITH_PRODUCTS(BY_AMX)
OPERATIONS_WITHOUT_PRODUCTS(ANYHOW)

#define ENTRY(OP, name, args_t)       [OP] = run_##name,
#define ENTRY_PAIRS(OP, name, args_t) [OP] = run_##name##_pairs,
#define ENTRY_AMX(OP, name, args_t)   [OP] = run_##name##_amx,
#define THE_OTHERS                    OPERATIONS_WITHOUT_PRODUCTS(ENTRY)

const op_fn cpu_ops[OP_COUNT] = {OPERATIONS_WITH_PRODUCTS(ENTRY) THE_OTHERS};

const op_fn *cpu_ops_by(enum cpu_kernel kernel) {
    static const op_fn pairs[OP_COUNT] = {OPERATIONS_WITH_PRODUCTS(ENTRY_PAIRS) THE_OTHERS};
    static const op_fn amx[OP_COUNT] = {OPERATIONS_WITH_PRODUCTS(ENTRY_AMX) THE_OTHERS};
    return kernel == CPU_KERNEL_AMX ? amx : kernel == CPU_KERNEL_AVX512_BF16 ? pairs : cpu_ops;
}
