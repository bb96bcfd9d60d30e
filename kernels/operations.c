// The operations' names, and the update decision that hosts make too. kernels/cuda/ops/optimizer.cu has the same
// decision for the device (decide_kernel), with the same bits. No state: the CUDA object contains this file as well.
#include "kernels/operations.h"

const char *op_name(enum op op) {
    static const char *const names[OP_COUNT] = {
#define OP_NAME(OP, name, args_t) [OP] = #name,
        OPERATIONS(OP_NAME)
#undef OP_NAME
    };
    assert(op >= 0 && op < OP_COUNT);
    return names[op];
}

struct update_scalars update_decide(const struct exact_sum *sum, float loss_scale, float clip) {
    struct update_scalars u = {.grad_scale = 0.0f, .skip = 1, .norm = INFINITY};
    if (sum->nonfinite > 0) return u;
    u.skip = 0;
    u.norm = sqrt(exact_sum_value(sum)) / (double)loss_scale;
    double factor = clip > 0.0f && u.norm > (double)clip ? (double)clip / (u.norm + 1e-6) : 1.0;
    u.grad_scale = (float)(factor / (double)loss_scale);
    return u;
}
