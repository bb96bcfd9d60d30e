// The cpu backend's tables, which differ in the matrix product: which function runs which operation.
#include "kernels/cpu/cpu.h"

#define CPU_OPERATION(OP, name, args_t) [OP] = cpu_op_##name,
#define BUT_MATMUL                      OPERATIONS_BUT_MATMUL(CPU_OPERATION)

const op_fn cpu_ops[OP_COUNT] = {[OP_MATMUL] = cpu_op_matmul, BUT_MATMUL};
const op_fn cpu_ops_pairs[OP_COUNT] = {[OP_MATMUL] = cpu_op_matmul_pairs, BUT_MATMUL};
const op_fn cpu_ops_pairs_fast[OP_COUNT] = {[OP_MATMUL] = cpu_op_matmul_pairs_fast, BUT_MATMUL};
