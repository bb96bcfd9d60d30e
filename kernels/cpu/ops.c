// The cpu backend's tables, which differ in the matrix product: each operation of cpu.h as an op_fn.
#include "kernels/cpu/cpu.h"

#define AS_OP_FN(OP, name, args_t)                                           \
    static int run_##name(int threads, const void *args, const char **why) { \
        const char *text = cpu_##name(threads, args);                        \
        if (text) *why = text;                                               \
        return text ? -1 : 0;                                                \
    }
OPERATIONS(AS_OP_FN)
AS_OP_FN(, matmul_pairs, )
AS_OP_FN(, matmul_pairs_fast, )

#define ENTRY(OP, name, args_t) [OP] = run_##name,
#define BUT_MATMUL              OPERATIONS_BUT_MATMUL(ENTRY)

const op_fn cpu_ops[OP_COUNT] = {[OP_MATMUL] = run_matmul, BUT_MATMUL};
const op_fn cpu_ops_pairs[OP_COUNT] = {[OP_MATMUL] = run_matmul_pairs, BUT_MATMUL};
const op_fn cpu_ops_pairs_fast[OP_COUNT] = {[OP_MATMUL] = run_matmul_pairs_fast, BUT_MATMUL};
