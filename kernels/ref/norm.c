// RMSNorm and LayerNorm, forward and backward, with sums in double.
#include <math.h>

#include "kernels/ref/ref.h"

static void norm_fwd_row(const struct norm_fwd_args *a, int64_t row) {
    const void *in = a->residual ? a->sum : a->x;
    int64_t n = a->channels, at = row * n;
    double mean = 0.0, square = 0.0;
    for (int64_t c = 0; c < n; c++) {
        if (a->residual)
            dtype_store(a->dt, a->sum, at + c,
                        dtype_load(a->dt, a->x, at + c) + dtype_load(a->dt, a->residual, at + c));
        mean += (double)dtype_load(a->dt, in, at + c);
    }
    mean = a->kind == NORM_LAYER ? mean / (double)n : 0.0;
    for (int64_t c = 0; c < n; c++) {
        double x = (double)dtype_load(a->dt, in, at + c) - mean;
        square += x * x;
    }
    double rstd = 1.0 / sqrt(square / (double)n + (double)a->eps);
    if (a->kind == NORM_LAYER) a->mean[row] = (float)mean;
    a->rstd[row] = (float)rstd;
    for (int64_t c = 0; c < n; c++) {
        double y =
            ((double)dtype_load(a->dt, in, at + c) - mean) * rstd * (double)dtype_load(a->dt, a->weight, c);
        if (a->kind == NORM_LAYER) y += (double)dtype_load(a->dt, a->bias, c);
        dtype_store(a->dt, a->y, at + c, (float)y);
    }
}

void ref_norm_fwd(const struct norm_fwd_args *a) {
    for (int64_t r = 0; r < a->rows; r++) norm_fwd_row(a, r);
}

static double norm_xhat(const struct norm_bwd_args *a, int64_t row, int64_t c) {
    double mean = a->kind == NORM_LAYER ? (double)a->mean[row] : 0.0;
    return ((double)dtype_load(a->dt, a->x, row * a->channels + c) - mean) * (double)a->rstd[row];
}

static void norm_bwd_row(const struct norm_bwd_args *a, int64_t row) {
    int64_t n = a->channels, at = row * n;
    double mean_g = 0.0, mean_gx = 0.0;
    for (int64_t c = 0; c < n; c++) {
        double g = (double)dtype_load(a->dt, a->dy, at + c) * (double)dtype_load(a->dt, a->weight, c);
        mean_g += g / (double)n;
        mean_gx += g * norm_xhat(a, row, c) / (double)n;
    }
    if (a->kind == NORM_RMS) mean_g = 0.0;
    for (int64_t c = 0; c < n; c++) {
        double g = (double)dtype_load(a->dt, a->dy, at + c) * (double)dtype_load(a->dt, a->weight, c);
        double dx = (double)a->rstd[row] * (g - mean_g - norm_xhat(a, row, c) * mean_gx);
        if (a->dresidual) dx += (double)dtype_load(a->dt, a->dresidual, at + c);
        dtype_store(a->dt, a->dx, at + c, (float)dx);
    }
}

void ref_norm_bwd(const struct norm_bwd_args *a) {
    for (int64_t c = 0; c < a->channels && a->dweight; c++) {
        double dw = a->accumulate ? (double)dtype_load(a->dt, a->dweight, c) : 0.0;
        double db = a->accumulate && a->dbias ? (double)dtype_load(a->dt, a->dbias, c) : 0.0;
        for (int64_t r = 0; r < a->rows; r++) {
            double dy = dtype_load(a->dt, a->dy, r * a->channels + c);
            dw += dy * norm_xhat(a, r, c);
            db += dy;
        }
        dtype_store(a->dt, a->dweight, c, (float)dw);
        if (a->dbias) dtype_store(a->dt, a->dbias, c, (float)db);
    }
    for (int64_t r = 0; r < a->rows; r++) norm_bwd_row(a, r);
}
