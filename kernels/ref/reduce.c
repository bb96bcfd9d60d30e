// Ordered reductions, the gradient of a bias, casts and zero fill.
#include <assert.h>

#include "kernels/ref/ref.h"

// Joins floats or doubles; join_i64 joins integers, whose sums and products wrap.
static double join(enum reduction how, double a, double b) {
    switch (how) {
        case REDUCTION_MIN:
            return isnan(a) || a <= b ? a : b;
        case REDUCTION_MAX:
            return isnan(a) || a >= b ? a : b;
        case REDUCTION_LOR:
            return a != 0.0 || b != 0.0;
        default:
            return how == REDUCTION_SUM ? a + b : a * b;
    }
}

static int64_t join_i64(enum reduction how, int64_t a, int64_t b) {
    if (how == REDUCTION_MIN) return a < b ? a : b;
    if (how == REDUCTION_MAX) return a > b ? a : b;
    if (how == REDUCTION_LOR) return a != 0 || b != 0;
    uint64_t x = (uint64_t)a, y = (uint64_t)b;
    return (int64_t)(how == REDUCTION_SUM ? x + y : x * y);
}

// For fp32 inputs, joining two numbers in double and rounding to fp32 gives the bits of fp32 arithmetic
// (Figueroa 1995).
static void reduce_float(const struct reduce_args *a, int64_t i) {
    bool wide = a->dt == DT_F64;
    double total = 0.0;
    for (int32_t k = 0; k < a->count; k++) {
        double x = wide ? ((const double *)a->inputs[k])[i] : (double)dtype_load(a->dt, a->inputs[k], i);
        if (k > 0) x = join(a->how, total, x);
        total = wide ? x : (double)(float)x;
    }
    if (a->how == REDUCTION_LOR) total = total != 0.0;
    if (wide)
        ((double *)a->out)[i] = total;
    else
        dtype_store(a->dt, a->out, i, (float)total);
}

static void reduce_i64(const struct reduce_args *a, int64_t i) {
    int64_t total = ((const int64_t *)a->inputs[0])[i];
    for (int32_t k = 1; k < a->count; k++)
        total = join_i64(a->how, total, ((const int64_t *)a->inputs[k])[i]);
    ((int64_t *)a->out)[i] = a->how == REDUCTION_LOR ? total != 0 : total;
}

void ref_reduce(const struct reduce_args *a) {
    assert(a->count >= 1 && a->count <= REDUCE_MAX && a->dt != DT_U8);
    for (int64_t i = 0; i < a->n; i++) (a->dt == DT_I64 ? reduce_i64 : reduce_float)(a, i);
}

void ref_cast(const struct cast_args *a) {
    float factor = a->factor != 0 ? a->factor : 1.0f;
    if (a->from == a->to && factor == 1.0f) {  // a copy keeps NaN payloads
        memcpy(a->out, a->in, (size_t)a->n * dtype_size(a->to));
        return;
    }
    for (int64_t i = 0; i < a->n; i++) {
        float x = dtype_load(a->from, a->in, i);
        dtype_store(a->to, a->out, i, factor == 1.0f ? x : x * factor);
    }
}

void ref_fill_zero(const struct fill_zero_args *a) { memset(a->out, 0, (size_t)a->bytes); }

void ref_bias_grad(const struct bias_grad_args *a) {
    for (int64_t c = 0; c < a->n; c++) {
        double total = a->accumulate ? (double)dtype_load(a->dt, a->dbias, c) : 0.0;
        for (int64_t r = 0; r < a->rows; r++) total += (double)dtype_load(a->dt, a->dy, r * a->n + c);
        dtype_store(a->dt, a->dbias, c, (float)total);
    }
}
