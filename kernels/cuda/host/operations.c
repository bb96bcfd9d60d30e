// Which function carries out which operation.
#include <stdio.h>

#include "kernels/cuda/host/cuda_impl.h"

static int run(struct cuda_stream *s, enum op op, const void *args) {
    typedef int (*cuda_op_fn)(struct cuda_ctx * ctx, const void *args);
    static const cuda_op_fn own[OP_COUNT] = {
#define OWN_OPERATION(OP, name, args_t) [OP] = cuda_op_##name,
        OPERATIONS_BUT_MATMUL(OWN_OPERATION)
#undef OWN_OPERATION
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
        device_fail(s->queue.head.dev, "stream %s: %s failed: %s", s->queue.name, op_name(op),
                    s->ctx.why ? s->ctx.why : "?");
    else
        device_fail(s->queue.head.dev, "stream %s: %s failed: %s (%s)", s->queue.name, op_name(op),
                    s->ctx.why ? s->ctx.why : "?", cudaGetErrorString(e));
    return -1;
}
