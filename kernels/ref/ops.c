// The ref backend's table: which function runs which operation.
#include "kernels/ref/ref.h"

const op_fn ref_ops[OP_COUNT] = {
    [OP_MATMUL] = ref_op_matmul,
    [OP_BIAS_GRAD] = ref_op_bias_grad,
    [OP_EMBED_FWD] = ref_op_embed_fwd,
    [OP_EMBED_BWD] = ref_op_embed_bwd,
    [OP_NORM_FWD] = ref_op_norm_fwd,
    [OP_NORM_BWD] = ref_op_norm_bwd,
    [OP_ROPE] = ref_op_rope,
    [OP_ATTN_FWD] = ref_op_attn_fwd,
    [OP_ATTN_BWD] = ref_op_attn_bwd,
    [OP_GELU_FWD] = ref_op_gelu_fwd,
    [OP_GELU_BWD] = ref_op_gelu_bwd,
    [OP_SWIGLU_FWD] = ref_op_swiglu_fwd,
    [OP_SWIGLU_BWD] = ref_op_swiglu_bwd,
    [OP_ADD] = ref_op_add,
    [OP_XENT] = ref_op_xent,
    [OP_LOSS_SUM] = ref_op_loss_sum,
    [OP_SUMSQ] = ref_op_sumsq,
    [OP_DECIDE] = ref_op_decide,
    [OP_ADAMW] = ref_op_adamw,
    [OP_REDUCE] = ref_op_reduce,
    [OP_CAST] = ref_op_cast,
    [OP_FILL_ZERO] = ref_op_fill_zero,
};
