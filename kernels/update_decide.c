// What one optimizer step does with a gradient of known norm: the one formula of every topology.
#include "kernels/backend.h"

struct update_scalars update_decide(const struct exact_sum *sum, float loss_scale, float clip) {
    struct update_scalars u = {.grad_scale = 0.0f, .skip = 1, .norm = INFINITY};
    if (sum->nonfinite > 0) return u;
    u.skip = 0;
    u.norm = sqrt(exact_sum_value(sum)) / (double)loss_scale;
    double factor = clip > 0.0f && u.norm > (double)clip ? (double)clip / (u.norm + 1e-6) : 1.0;
    u.grad_scale = (float)(factor / (double)loss_scale);
    return u;
}
