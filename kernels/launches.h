// Each operation's launch with its own arguments. Part of kernels/backend.h, which includes it where
// everything here is declared.
#ifndef STARRING_KERNELS_LAUNCHES_H
#define STARRING_KERNELS_LAUNCHES_H

#include "kernels/backend.h"

// Typed launches: op_matmul(stream, &(struct matmul_args){...}).
#define DEFINE_LAUNCH(fn, OP, args_t)                                                         \
    static_assert(sizeof(struct args_t) <= OP_ARGS_MAX_BYTES, "a queue's slot is too small"); \
    static inline void fn(struct stream *s, const struct args_t *a) { dev_launch(s, OP, a, sizeof *a); }
DEFINE_LAUNCH(op_matmul, OP_MATMUL, matmul_args)
DEFINE_LAUNCH(op_bias_grad, OP_BIAS_GRAD, bias_grad_args)
DEFINE_LAUNCH(op_embed_fwd, OP_EMBED_FWD, embed_fwd_args)
DEFINE_LAUNCH(op_embed_bwd, OP_EMBED_BWD, embed_bwd_args)
DEFINE_LAUNCH(op_norm_fwd, OP_NORM_FWD, norm_fwd_args)
DEFINE_LAUNCH(op_norm_bwd, OP_NORM_BWD, norm_bwd_args)
DEFINE_LAUNCH(op_rope, OP_ROPE, rope_args)
DEFINE_LAUNCH(op_attn_fwd, OP_ATTN_FWD, attn_fwd_args)
DEFINE_LAUNCH(op_attn_bwd, OP_ATTN_BWD, attn_bwd_args)
DEFINE_LAUNCH(op_gelu_fwd, OP_GELU_FWD, gelu_args)
DEFINE_LAUNCH(op_gelu_bwd, OP_GELU_BWD, gelu_args)
DEFINE_LAUNCH(op_swiglu_fwd, OP_SWIGLU_FWD, swiglu_args)
DEFINE_LAUNCH(op_swiglu_bwd, OP_SWIGLU_BWD, swiglu_args)
DEFINE_LAUNCH(op_add, OP_ADD, add_args)
DEFINE_LAUNCH(op_xent, OP_XENT, xent_args)
DEFINE_LAUNCH(op_loss_sum, OP_LOSS_SUM, loss_sum_args)
DEFINE_LAUNCH(op_sumsq, OP_SUMSQ, sumsq_args)
DEFINE_LAUNCH(op_decide, OP_DECIDE, decide_args)
DEFINE_LAUNCH(op_adamw, OP_ADAMW, adamw_args)
DEFINE_LAUNCH(op_reduce, OP_REDUCE, reduce_args)
DEFINE_LAUNCH(op_cast, OP_CAST, cast_args)
DEFINE_LAUNCH(op_fill_zero, OP_FILL_ZERO, fill_zero_args)

#endif
