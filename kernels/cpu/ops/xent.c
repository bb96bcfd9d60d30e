// Cross-entropy with its gradient in place, and the sum of the losses.
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/exact_math.h"

#define XENT_CHUNK 2048  // logits exponentiated with one maximum: 8 KiB of floats
#define XENT_ABOVE 8.0f  // up to e^8 times the maximum is allowed before the row is rescaled

// e(n) = x as fp32, then -infinity up to a whole group. Returns the largest; NaN is ignored.
VEC_INLINE float load_logits(enum dtype dt, const void *x, int64_t at, int64_t n, float *e) {
    vecf v[GROUP], most[GROUP];
    float lane[VEC], max = -INFINITY;
    EACH most[k] = vec_set(-INFINITY);
    for (int64_t i = 0; i < n; i += GROUP * VEC) {
        group_load(dt, x, at + i, n - i, -INFINITY, v);
        EACH most[k] = vec_max(v[k], most[k]);
        EACH vec_store_f32(e + i + k * VEC, v[k]);
    }
    vec_store_f32(lane, vec_max(vec_max(most[0], most[1]), vec_max(most[2], most[3])));
    for (int k = 0; k < VEC; k++) max = lane[k] > max ? lane[k] : max;
    return max;
}

// e(n) = exp(e - from), 0 below e^-87; returns their sum. The exponent is limited to -126, and the 2^-126 that
// this adds is subtracted. next: prefetched, read after this.
VEC_INLINE float exp_logits(enum dtype dt, float *e, int64_t n, float from, const void *next) {
    struct lanes sum = {0};
    EACH_GROUP(i, h, n) {
        vecf t[GROUP];
        group_prefetch(dt, next, i);
        EACH t[k] = vec_max(vec_set(-126.0f), (vec_load_f32(e + i + k * VEC) - from) * LOG2_E);
        vec_exp2(dt, t, -0x1p-126f, t);
        EACH vec_store_f32(e + i + k * VEC, t[k]);
        lanes_add(&sum, h, t);
    }
    return lanes_sum(&sum);
}

// e(V) = exp(logit - *max), and returns their sum, in one pass over the row. If a chunk has a much larger
// logit, the earlier results are rescaled to it (Milakov & Gimelshein 2018, "Online normalizer calculation for
// softmax").
VEC_INLINE double row_exps(enum dtype dt, const struct xent_args *a, int64_t row, float *e, float *max) {
    double total = 0.0;
    *max = -INFINITY;
    for (int64_t i = 0; i < a->vocab; i += XENT_CHUNK) {
        int64_t n = chunk_min(XENT_CHUNK, a->vocab - i);
        float chunk_max = load_logits(dt, a->logits, row * xent_stride(a) + i, n, e + i);
        if (chunk_max > *max + XENT_ABOVE) {
            double factor = exact_exp((double)*max - (double)chunk_max);
            for (int64_t j = 0; j < i; j++) e[j] *= (float)factor;
            total *= factor;
            *max = chunk_max;
        }
        total +=
            (double)exp_logits(dt, e + i, n, *max, dtype_at(dt, a->logits, row * xent_stride(a) + i + n));
    }
    return total;
}

VEC_INLINE void row_gradient(enum dtype dt, const struct xent_args *a, int64_t row, const float *e,
                             double total) {
    float scale = (float)((double)a->grad_scale / total);
    int64_t at = row * xent_stride(a), target = a->targets[row];
    for (int64_t i = 0; i < a->vocab; i += GROUP * VEC) {
        vecf v[GROUP];
        EACH v[k] = vec_load_f32(e + i + k * VEC) * scale;
        group_store(dt, a->logits, at + i, a->vocab - i, v);
    }
    dtype_store(dt, a->logits, (size_t)(at + target), e[target] * scale - a->grad_scale);
}

// Columns [from, padded) of a gradient row become 0.
static void zero_columns(const struct xent_args *a, int64_t row, int64_t from) {
    memset(dtype_at_mut(a->dt, a->logits, row * xent_stride(a) + from), 0,
           (size_t)(xent_written(a) - from) * dtype_size(a->dt));
}

// e: (V), rounded up to a whole group.
VEC_INLINE void xent_row(enum dtype dt, const struct xent_args *a, int64_t row, float *e) {
    int64_t target = a->targets[row];
    assert(target < a->vocab);
    if (target < 0) {
        a->loss[row] = 0.0f;
        if (a->want_grad) zero_columns(a, row, 0);
        return;
    }
    float max, logit = dtype_load(dt, a->logits, (size_t)(row * xent_stride(a) + target));
    double total = row_exps(dt, a, row, e, &max);
    a->loss[row] = (float)(exact_log(total) + ((double)max - (double)logit));
    if (!a->want_grad) return;
    row_gradient(dt, a, row, e, total);
    zero_columns(a, row, a->vocab);
}

struct xent_rows {
    const struct xent_args *a;
    atomic_bool *failed;
};

static void xent_range(const void *args, int64_t begin, int64_t end) {
    const struct xent_rows *x = args;
    float *e = thread_scratch((size_t)(x->a->vocab + SUM_BLOCK) * sizeof *e);
    if (!e) *x->failed = true;
    for (int64_t r = begin; r < end && e; r++) WITH_DTYPE(x->a->dt, xent_row, x->a, r, e);
}

const char *cpu_xent(int threads, const struct xent_args *a) {
    atomic_bool failed = false;
    assert(xent_valid(a));
    for_ranges(threads, a->rows, row_grain(a->vocab), xent_range, &(struct xent_rows){a, &failed});
    return failed ? "out of host memory for a row of logits" : NULL;
}

// On one thread, because operations.h demands the order of the rows; these are a few thousand additions.
const char *cpu_loss_sum(int threads, const struct loss_sum_args *a) {
    double total = 0.0;
    (void)threads;
    for (int64_t r = 0; r < a->rows; r++) total += (double)a->loss[r];
    *a->out = a->accumulate ? *a->out + total : total;
    return NULL;
}
