// The cpu backend's table: which function runs which operation.
#include "kernels/cpu/cpu.h"

// Everything but the matrix product.
#define COMMON_OPS                                                                                           \
    [OP_BIAS_GRAD] = cpu_op_bias_grad, [OP_EMBED_FWD] = cpu_op_embed_fwd, [OP_EMBED_BWD] = cpu_op_embed_bwd, \
    [OP_NORM_FWD] = cpu_op_norm_fwd, [OP_NORM_BWD] = cpu_op_norm_bwd, [OP_ROPE] = cpu_op_rope,               \
    [OP_ATTN_FWD] = cpu_op_attn_fwd, [OP_ATTN_BWD] = cpu_op_attn_bwd, [OP_GELU_FWD] = cpu_op_gelu_fwd,       \
    [OP_GELU_BWD] = cpu_op_gelu_bwd, [OP_SWIGLU_FWD] = cpu_op_swiglu_fwd,                                    \
    [OP_SWIGLU_BWD] = cpu_op_swiglu_bwd, [OP_ADD] = cpu_op_add, [OP_XENT] = cpu_op_xent,                     \
    [OP_LOSS_SUM] = cpu_op_loss_sum, [OP_SUMSQ] = cpu_op_sumsq, [OP_DECIDE] = cpu_op_decide,                 \
    [OP_ADAMW] = cpu_op_adamw, [OP_REDUCE] = cpu_op_reduce, [OP_CAST] = cpu_op_cast,                         \
    [OP_FILL_ZERO] = cpu_op_fill_zero,

const op_fn cpu_ops[OP_COUNT] = {[OP_MATMUL] = cpu_op_matmul, COMMON_OPS};
const op_fn cpu_ops_pairs[OP_COUNT] = {[OP_MATMUL] = cpu_op_matmul_pairs, COMMON_OPS};
const op_fn cpu_ops_pairs_fast[OP_COUNT] = {[OP_MATMUL] = cpu_op_matmul_pairs_fast, COMMON_OPS};
