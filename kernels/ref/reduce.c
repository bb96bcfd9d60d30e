// Ordered sums, the gradient of a bias, casts and zero fill.
#include <assert.h>

#include "kernels/ref/ref.h"

static void reduce_f32(const struct reduce_args *a, int64_t i) {
    float total = dtype_load(a->dt, a->inputs[0], i);
    for (int32_t k = 1; k < a->count; k++) total += dtype_load(a->dt, a->inputs[k], i);
    dtype_store(a->dt, a->out, i, total);
}

static void reduce_f64(const struct reduce_args *a, int64_t i) {
    double total = ((const double *)a->inputs[0])[i];
    for (int32_t k = 1; k < a->count; k++) total += ((const double *)a->inputs[k])[i];
    ((double *)a->out)[i] = total;
}

static void reduce_i64(const struct reduce_args *a, int64_t i) {
    uint64_t total = 0;  // unsigned: wraps instead of overflowing
    for (int32_t k = 0; k < a->count; k++) total += ((const uint64_t *)a->inputs[k])[i];
    ((uint64_t *)a->out)[i] = total;
}

void ref_reduce(const struct reduce_args *a) {
    assert(a->count >= 1 && a->count <= REDUCE_MAX && a->dt != DT_U8);
    for (int64_t i = 0; i < a->n; i++) {
        if (a->dt == DT_F64)
            reduce_f64(a, i);
        else if (a->dt == DT_I64)
            reduce_i64(a, i);
        else
            reduce_f32(a, i);
    }
}

void ref_cast(const struct cast_args *a) {
    if (a->from == a->to) {  // a copy: NaN payloads and all
        memcpy(a->out, a->in, (size_t)a->n * dtype_size(a->to));
        return;
    }
    for (int64_t i = 0; i < a->n; i++) dtype_store(a->to, a->out, i, dtype_load(a->from, a->in, i));
}

void ref_fill_zero(const struct fill_zero_args *a) { memset(a->out, 0, (size_t)a->bytes); }

void ref_bias_grad(const struct bias_grad_args *a) {
    for (int64_t c = 0; c < a->n; c++) {
        double total = a->accumulate ? (double)dtype_load(a->dt, a->dbias, c) : 0.0;
        for (int64_t r = 0; r < a->rows; r++) total += (double)dtype_load(a->dt, a->dy, r * a->n + c);
        dtype_store(a->dt, a->dbias, c, (float)total);
    }
}
