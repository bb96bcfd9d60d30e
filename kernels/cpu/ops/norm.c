// RMSNorm and LayerNorm with the residual addition fused in, and their backward.
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/spans.h"

// The backward's column sums are taken in NORM_PARTS blocks of consecutive rows, then over the
// blocks in order, however many threads there are.
#define NORM_PARTS   32
#define NORM_COLUMNS 1024  // fewer are combined faster by one thread than by waking another

// Adds the residual (rounded to the storage type, which is what the norm and the backward then see)
// and returns the mean of x (LayerNorm) or of x^2 (RMSNorm). Row sums: fp32 in a chunk, then double.
static double norm_fwd_first_pass(const struct norm_fwd_args *a, int64_t row) {
    float x[CHUNK], res[CHUNK];
    double total = 0.0;
    for (int64_t c = 0; c < a->channels; c += CHUNK) {
        int64_t n = chunk_min(CHUNK, a->channels - c), at = row * a->channels + c;
        load_f32(a->dt, x, a->x, at, n);
        if (a->residual) {
            load_f32(a->dt, res, a->residual, at, n);
            for (int64_t j = 0; j < n; j++) x[j] += res[j];
            store_f32(a->dt, a->sum, at, x, n);
            if (a->dt != DT_F32) load_f32(a->dt, x, a->sum, at, n);
        }
        total += (double)(a->kind == NORM_RMS ? dot_f32(x, x, n) : sum_f32(x, n));
    }
    return total / (double)a->channels;
}

static double norm_variance(const struct norm_fwd_args *a, const void *in, int64_t row, float mean) {
    float x[CHUNK];
    double total = 0.0;
    for (int64_t c = 0; c < a->channels; c += CHUNK) {
        int64_t n = chunk_min(CHUNK, a->channels - c);
        load_f32(a->dt, x, in, row * a->channels + c, n);
        for (int64_t j = 0; j < n; j++) x[j] -= mean;
        total += (double)dot_f32(x, x, n);
    }
    return total / (double)a->channels;
}

static void norm_fwd_span(const void *args, int64_t begin, int64_t end) {
    const struct norm_fwd_args *a = args;
    const void *in = a->residual ? a->sum : a->x;
    float x[CHUNK], w[CHUNK], b[CHUNK];
    for (int64_t r = begin; r < end; r++) {
        double first = norm_fwd_first_pass(a, r), square = first;
        float mean = 0.0f;
        if (a->kind == NORM_LAYER) {
            a->mean[r] = mean = (float)first;
            square = norm_variance(a, in, r, mean);
        }
        float rstd = a->rstd[r] = (float)(1.0 / sqrt(square + (double)a->eps));
        for (int64_t c = 0; c < a->channels; c += CHUNK) {
            int64_t n = chunk_min(CHUNK, a->channels - c), at = r * a->channels + c;
            load_f32(a->dt, x, in, at, n);
            load_f32(a->dt, w, a->weight, c, n);
            if (a->kind == NORM_LAYER) {
                load_f32(a->dt, b, a->bias, c, n);
                for (int64_t j = 0; j < n; j++) x[j] = __builtin_fmaf((x[j] - mean) * rstd, w[j], b[j]);
            } else {
                for (int64_t j = 0; j < n; j++) x[j] = x[j] * rstd * w[j];
            }
            store_f32(a->dt, a->y, at, x, n);
        }
    }
}

const char *cpu_norm_fwd(int threads, const struct norm_fwd_args *a) {
    assert(!a->residual || a->sum);
    assert(a->kind == NORM_RMS || (a->mean && a->bias));
    for_spans(threads, a->rows, row_grain(a->channels), norm_fwd_span, a);
    return NULL;
}

// With g = dy w and xhat the normalised input: the means of g and of g xhat over the row.
static void norm_bwd_means(const struct norm_bwd_args *a, int64_t row, float *mean_g, float *mean_gx) {
    float x[CHUNK], g[CHUNK], w[CHUNK];
    float mean = a->kind == NORM_LAYER ? a->mean[row] : 0.0f, rstd = a->rstd[row];
    double sum_g = 0.0, sum_gx = 0.0;
    for (int64_t c = 0; c < a->channels; c += CHUNK) {
        int64_t n = chunk_min(CHUNK, a->channels - c), at = row * a->channels + c;
        load_f32(a->dt, x, a->x, at, n);
        load_f32(a->dt, g, a->dy, at, n);
        load_f32(a->dt, w, a->weight, c, n);
        for (int64_t j = 0; j < n; j++) {
            x[j] = (x[j] - mean) * rstd;
            g[j] *= w[j];
        }
        if (a->kind == NORM_LAYER) sum_g += (double)sum_f32(g, n);
        sum_gx += (double)dot_f32(g, x, n);
    }
    *mean_g = (float)(sum_g / (double)a->channels);
    *mean_gx = (float)(sum_gx / (double)a->channels);
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) + dresidual; RMSNorm has no mean(g).
// dweight(C) += dy xhat and dbias(C) += dy for this row, in fp32.
static void norm_bwd_row(const struct norm_bwd_args *a, int64_t row, float *dweight, float *dbias) {
    float x[CHUNK], dy[CHUNK], w[CHUNK];
    float mean = a->kind == NORM_LAYER ? a->mean[row] : 0.0f, rstd = a->rstd[row], mean_g, mean_gx;
    norm_bwd_means(a, row, &mean_g, &mean_gx);
    for (int64_t c = 0; c < a->channels; c += CHUNK) {
        int64_t n = chunk_min(CHUNK, a->channels - c), at = row * a->channels + c;
        float *restrict dw = dweight + c, *restrict db = dbias + c;
        load_f32(a->dt, x, a->x, at, n);
        load_f32(a->dt, dy, a->dy, at, n);
        load_f32(a->dt, w, a->weight, c, n);
        for (int64_t j = 0; j < n; j++) x[j] = (x[j] - mean) * rstd;
        for (int64_t j = 0; j < n; j++) dw[j] = __builtin_fmaf(dy[j], x[j], dw[j]);
        if (a->dbias)
            for (int64_t j = 0; j < n; j++) db[j] += dy[j];
        for (int64_t j = 0; j < n; j++)
            x[j] = rstd * __builtin_fmaf(-mean_gx, x[j], __builtin_fmaf(dy[j], w[j], -mean_g));
        if (a->dresidual) {
            load_f32(a->dt, w, a->dresidual, at, n);
            for (int64_t j = 0; j < n; j++) x[j] += w[j];
        }
        store_f32(a->dt, a->dx, at, x, n);
    }
}

// scratch: NORM_PARTS times | dweight: C | dbias: C |, fp32.
static float *norm_part(const struct norm_bwd_args *a, int64_t part) {
    return (float *)a->scratch + part * 2 * a->channels;
}

static int64_t norm_part_begin(const struct norm_bwd_args *a, int64_t part) {
    return a->rows * part / NORM_PARTS;
}

static void norm_bwd_parts(const void *args, int64_t begin, int64_t end) {
    const struct norm_bwd_args *a = args;
    for (int64_t part = begin; part < end; part++) {
        float *sums = norm_part(a, part);
        memset(sums, 0, 2 * (size_t)a->channels * sizeof *sums);
        for (int64_t r = norm_part_begin(a, part); r < norm_part_begin(a, part + 1); r++)
            norm_bwd_row(a, r, sums, sums + a->channels);
    }
}

// Columns [c, c + n) of out: = or += the parts' sums, in order. offset 0: dweight, C: dbias.
static void norm_bwd_combine(const struct norm_bwd_args *a, void *out, int64_t offset, int64_t c, int64_t n) {
    float total[CHUNK], old[CHUNK];
    for (int64_t j = 0; j < n; j++) total[j] = 0.0f;
    for (int64_t part = 0; part < NORM_PARTS; part++) {
        const float *restrict sums = norm_part(a, part) + offset + c;
        for (int64_t j = 0; j < n; j++) total[j] += sums[j];
    }
    if (a->accumulate) {
        load_f32(a->dt, old, out, c, n);
        for (int64_t j = 0; j < n; j++) total[j] += old[j];
    }
    store_f32(a->dt, out, c, total, n);
}

static void norm_bwd_columns(const void *args, int64_t begin, int64_t end) {
    const struct norm_bwd_args *a = args;
    for (int64_t c = begin; c < end; c += CHUNK) {
        int64_t n = chunk_min(CHUNK, end - c);
        norm_bwd_combine(a, a->dweight, 0, c, n);
        if (a->dbias) norm_bwd_combine(a, a->dbias, a->channels, c, n);
    }
}

size_t norm_bwd_scratch_bytes(int64_t channels) { return NORM_PARTS * 2 * (size_t)channels * sizeof(float); }

const char *cpu_norm_bwd(int threads, const struct norm_bwd_args *a) {
    assert(a->kind == NORM_RMS || a->mean);
    if (a->rows * a->channels < SPAN_ELEMENTS) threads = 1;
    for_spans(threads, NORM_PARTS, 1, norm_bwd_parts, a);
    for_spans(threads, a->channels, NORM_COLUMNS, norm_bwd_columns, a);
    return NULL;
}
