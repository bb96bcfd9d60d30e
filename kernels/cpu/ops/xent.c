// Cross-entropy with its gradient in place, and the sum of the losses.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/spans.h"
#include "kernels/exact_math.h"

// x = exp_f32(x - max) * scale for the elements [at, at + n) of a buffer of type dt.
VEC_INLINE void exp_range(enum dtype dt, void *p, int64_t at, int64_t n, float max, float scale) {
    for (int64_t i = 0; i < n; i += GROUP * VEC) {
        vecf v[GROUP];
        group_load(dt, p, at + i, n - i, v);
        EACH v[k] -= max;
        vec_exp_f32(v, v);
        EACH v[k] *= scale;
        group_store(dt, p, at + i, n - i, v);
    }
}

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
        exp_range(DT_F32, x, 0, n, max, 1.0f);
        total += (double)sum_f32(x, n);
    }
    *max_out = max;
    return total;
}

// logit: the target's, before its place is written.
static void row_gradient(const struct xent_args *a, int64_t row, float max, double total, float logit) {
    float scale = (float)((double)a->grad_scale / total), hit = exp_f32(logit - max) * scale - a->grad_scale;
    int64_t at = row * xent_stride(a);
    WITH_DTYPE(a->dt, exp_range, a->logits, at, a->vocab, max, scale);
    store_f32(a->dt, a->logits, at + a->targets[row], &hit, 1);
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
        row_gradient(a, r, max, total, logit);
        zero_columns(a, r, a->vocab);
    }
}

const char *cpu_xent(int threads, const struct xent_args *a) {
    assert(xent_valid(a));
    for_spans(threads, a->rows, row_grain(a->vocab), xent_span, a);
    return NULL;
}

// In row order, on one thread: a few thousand additions, and the order is the contract.
const char *cpu_loss_sum(int threads, const struct loss_sum_args *a) {
    double total = 0.0;
    (void)threads;
    for (int64_t r = 0; r < a->rows; r++) total += (double)a->loss[r];
    *a->out = a->accumulate ? *a->out + total : total;
    return NULL;
}
