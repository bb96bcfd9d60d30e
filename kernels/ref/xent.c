// Cross-entropy in double, and the sum of the losses.
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

static void xent_row(const struct xent_args *a, int64_t row) {
    int64_t at = row * xent_stride(a), target = a->targets[row];
    double max = -INFINITY, total = 0.0;
    for (int64_t i = 0; i < a->vocab; i++) max = fmax(max, (double)dtype_load(a->dt, a->logits, at + i));
    for (int64_t i = 0; i < a->vocab; i++) total += exp((double)dtype_load(a->dt, a->logits, at + i) - max);
    double lse = max + log(total);
    a->loss[row] = target < 0 ? 0.0f : (float)(lse - (double)dtype_load(a->dt, a->logits, at + target));
    if (!a->want_grad) return;
    for (int64_t i = 0; i < a->vocab; i++) {
        double p = exp((double)dtype_load(a->dt, a->logits, at + i) - lse) - (i == target ? 1.0 : 0.0);
        dtype_store(a->dt, a->logits, at + i, target < 0 ? 0.0f : (float)(p * (double)a->grad_scale));
    }
    for (int64_t i = a->vocab; i < xent_written(a); i++) dtype_store(a->dt, a->logits, at + i, 0.0f);
}

void ref_xent(const struct xent_args *a) {
    assert(xent_valid(a));
    for (int64_t r = 0; r < a->rows; r++) xent_row(a, r);
}

void ref_loss_sum(const struct loss_sum_args *a) {
    double total = 0.0;
    for (int64_t r = 0; r < a->rows; r++) total += (double)a->loss[r];
    *a->out = a->accumulate ? *a->out + total : total;
}
