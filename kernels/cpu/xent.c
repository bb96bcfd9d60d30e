// Cross-entropy with its gradient in place, and the sum of the losses.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/spans.h"
#include "kernels/exact_math.h"
#include "kernels/strides.h"

// max over the row and sum of exp(x - max), in one pass: when a chunk brings a larger maximum, what
// was summed is scaled to it (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax").
static double row_sum_exp(const struct xent_args *a, int64_t row, float *max_out) {
    float x[CHUNK], max = 0.0f;
    double total = 0.0;
    for (int64_t i = 0; i < a->vocab; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, a->vocab - i);
        load_f32(a->dt, x, a->logits, row * xent_stride(a) + i, n);
        float chunk_max = max_f32(x, n);
        if (i == 0) {
            max = chunk_max;
        } else if (chunk_max > max) {
            total *= exact_exp((double)max - (double)chunk_max);
            max = chunk_max;
        }
        for (int64_t j = 0; j < n; j++) x[j] = exp_f32(x[j] - max);
        total += (double)sum_f32(x, n);
    }
    *max_out = max;
    return total;
}

static void row_gradient(const struct xent_args *a, int64_t row, float max, double total) {
    float x[CHUNK];
    float scale = (float)((double)a->grad_scale / total);
    for (int64_t i = 0; i < a->vocab; i += CHUNK) {
        int64_t n = chunk_min(CHUNK, a->vocab - i), at = row * xent_stride(a) + i, hit = a->targets[row] - i;
        load_f32(a->dt, x, a->logits, at, n);
        for (int64_t j = 0; j < n; j++) x[j] = exp_f32(x[j] - max) * scale;
        if (hit >= 0 && hit < n) x[hit] -= a->grad_scale;
        store_f32(a->dt, a->logits, at, x, n);
    }
}

// Columns [from, padded) of a gradient row become 0.
static void zero_columns(const struct xent_args *a, int64_t row, int64_t from) {
    memset(dtype_at_mut(a->dt, a->logits, row * xent_stride(a) + from), 0,
           (size_t)(xent_written(a) - from) * dtype_size(a->dt));
}

static void xent_span(const void *args, int64_t begin, int64_t end) {
    const struct xent_args *a = args;
    for (int64_t r = begin; r < end; r++) {
        int64_t target = a->targets[r];
        assert(target < a->vocab);
        if (target < 0) {
            a->loss[r] = 0.0f;
            if (a->want_grad) zero_columns(a, r, 0);
            continue;
        }
        float max, logit;
        double total = row_sum_exp(a, r, &max);
        load_f32(a->dt, &logit, a->logits, r * xent_stride(a) + target, 1);
        a->loss[r] = (float)(exact_log(total) + ((double)max - (double)logit));
        if (!a->want_grad) continue;
        row_gradient(a, r, max, total);
        zero_columns(a, r, a->vocab);
    }
}

int cpu_op_xent(int threads, const void *args, const char **why) {
    const struct xent_args *a = args;
    (void)why;
    assert(xent_valid(a));
    for_spans(threads, a->rows, row_grain(a->vocab), xent_span, a);
    return 0;
}

// In row order, on one thread: a few thousand additions, and the order is the contract.
int cpu_op_loss_sum(int threads, const void *args, const char **why) {
    const struct loss_sum_args *a = args;
    double total = 0.0;
    (void)threads;
    (void)why;
    for (int64_t r = 0; r < a->rows; r++) total += (double)a->loss[r];
    *a->out = a->accumulate ? *a->out + total : total;
    return 0;
}
