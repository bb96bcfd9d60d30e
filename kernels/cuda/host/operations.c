// Which function carries out which operation.
#include <stdio.h>

#include "kernels/cuda/host/cuda_impl.h"

static int run(struct cuda_stream *s, enum op op, const void *args) {
    typedef int (*cuda_op_fn)(struct cuda_ctx * ctx, const void *args);
    static const cuda_op_fn own[OP_COUNT] = {
        [OP_BIAS_GRAD] = cuda_op_bias_grad,
        [OP_EMBED_FWD] = cuda_op_embed_fwd,
        [OP_EMBED_BWD] = cuda_op_embed_bwd,
        [OP_NORM_FWD] = cuda_op_norm_fwd,
        [OP_NORM_BWD] = cuda_op_norm_bwd,
        [OP_ROPE] = cuda_op_rope,
        [OP_GELU_FWD] = cuda_op_gelu_fwd,
        [OP_GELU_BWD] = cuda_op_gelu_bwd,
        [OP_SWIGLU_FWD] = cuda_op_swiglu_fwd,
        [OP_SWIGLU_BWD] = cuda_op_swiglu_bwd,
        [OP_ADD] = cuda_op_add,
        [OP_XENT] = cuda_op_xent,
        [OP_LOSS_SUM] = cuda_op_loss_sum,
        [OP_SUMSQ] = cuda_op_sumsq,
        [OP_DECIDE] = cuda_op_decide,
        [OP_ADAMW] = cuda_op_adamw,
        [OP_REDUCE] = cuda_op_reduce,
        [OP_CAST] = cuda_op_cast,
        [OP_FILL_ZERO] = cuda_op_fill_zero,
    };
    switch (op) {
        case OP_MATMUL:
            return cuda_matmul(s, args);
        case OP_ATTN_FWD:
            return cuda_attention_forward(s, args);
        case OP_ATTN_BWD:
            return cuda_attention_backward(s, args);
        default:
            return own[op](&s->ctx, args);
    }
}

int cuda_run_op(struct cuda_stream *s, enum op op, const void *args) {
    s->ctx.why = NULL;
    int rc = run(s, op, args);
    // What CUDA still holds against an earlier launch would otherwise be blamed on a later operation.
    cudaError_t e = cudaGetLastError();
    if (rc == 0) return cuda_check(s, e, op_name(op));
    if (e == cudaSuccess)
        device_fail(s->head.dev, "stream %s: %s failed: %s", s->name, op_name(op),
                    s->ctx.why ? s->ctx.why : "?");
    else
        device_fail(s->head.dev, "stream %s: %s failed: %s (%s)", s->name, op_name(op),
                    s->ctx.why ? s->ctx.why : "?", cudaGetErrorString(e));
    return -1;
}
