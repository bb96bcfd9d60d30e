// RMSNorm and LayerNorm with the residual addition fused in, and their backward.
#include <math.h>

#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/simd_math.h"

// The backward's column sums are taken over NORM_PARTS blocks of consecutive rows, then over the blocks in
// order. So they do not depend on the number of threads.
#define NORM_PARTS   32
#define NORM_COLUMNS 1024  // with fewer, one thread is faster than waking another

// sum = x + residual, n elements of a row, rounded to the storage type; the norm and the backward use the
// rounded sum.
VEC_INLINE void norm_add_residual(enum dtype dt, const struct norm_fwd_args *a, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; i += GROUP * VEC) {
        vecf x[GROUP], res[GROUP];
        group_load(dt, a->x, at + i, n - i, 0, x);
        group_load(dt, a->residual, at + i, n - i, 0, res);
        EACH x[k] += res[k];
        group_store(dt, a->sum, at + i, n - i, x);
    }
}

// Sums over a row: fp32 lanes over a chunk, then double.
// This one: the sum of x(n) (LayerNorm) or of x^2 (RMSNorm).
VEC_INLINE float norm_first_chunk(enum dtype dt, enum norm_kind kind, const void *in, int64_t at, int64_t n) {
    struct lanes sum = {0};
    EACH_GROUP(i, h, n) {
        vecf x[GROUP];
        group_load(dt, in, at + i, n - i, 0, x);
        if (kind == NORM_RMS)
            lanes_dot(&sum, h, x, x);
        else
            lanes_add(&sum, h, x);
    }
    return lanes_sum(&sum);
}

// The sum of (x - mean)^2; elements after the end of the row count as the mean.
VEC_INLINE float norm_variance_chunk(enum dtype dt, const void *in, int64_t at, int64_t n, float mean) {
    struct lanes sum = {0};
    EACH_GROUP(i, h, n) {
        vecf x[GROUP];
        group_load(dt, in, at + i, n - i, 0, x);
        EACH x[k] -= mean;
        if (n - i < GROUP * VEC) group_zero(x, n - i);
        lanes_dot(&sum, h, x, x);
    }
    return lanes_sum(&sum);
}

VEC_INLINE void norm_fwd_row(enum dtype dt, const struct norm_fwd_args *a, int64_t row) {
    const void *in = a->residual ? a->sum : a->x;
    const int64_t at = row * a->channels;
    const bool layer = a->kind == NORM_LAYER;
    double first = 0.0, square = 0.0;
    float mean = 0.0f;
    if (a->residual) norm_add_residual(dt, a, at, a->channels);
    for (int64_t c = 0; c < a->channels; c += CHUNK)
        first += (double)norm_first_chunk(dt, a->kind, in, at + c, chunk_min(CHUNK, a->channels - c));
    if (layer) {
        a->mean[row] = mean = (float)(first / (double)a->channels);
        for (int64_t c = 0; c < a->channels; c += CHUNK)
            square += (double)norm_variance_chunk(dt, in, at + c, chunk_min(CHUNK, a->channels - c), mean);
    } else {
        square = first;
    }
    float rstd = a->rstd[row] = (float)(1.0 / sqrt(square / (double)a->channels + (double)a->eps));
    for (int64_t c = 0; c < a->channels; c += GROUP * VEC) {
        int64_t n = a->channels - c;
        vecf x[GROUP], w[GROUP], b[GROUP];
        group_load(dt, in, at + c, n, 0, x);
        group_load(dt, a->weight, c, n, 0, w);
        if (layer) {
            group_load(dt, a->bias, c, n, 0, b);
            EACH x[k] = vec_fma((x[k] - mean) * rstd, w[k], b[k]);
        } else {
            EACH x[k] = x[k] * rstd * w[k];
        }
        group_store(dt, a->y, at + c, n, x);
    }
}

static void norm_fwd_range(const void *args, int64_t begin, int64_t end) {
    const struct norm_fwd_args *a = args;
    for (int64_t r = begin; r < end; r++) WITH_DTYPE(a->dt, norm_fwd_row, a, r);
}

const char *cpu_norm_fwd(int threads, const struct norm_fwd_args *a) {
    assert(!a->residual || a->sum);
    assert(a->kind == NORM_RMS || (a->mean && a->bias));
    for_ranges(threads, a->rows, row_grain(a->channels), norm_fwd_range, a);
    return NULL;
}

// The row number and its statistics.
struct norm_row {
    int64_t row;
    float mean, rstd;
};

// A group of the row from channel c on: xhat, the normalised input, dy and w. dy and w are 0 after the row's
// end.
struct norm_group {
    vecf xhat[GROUP], dy[GROUP], w[GROUP];
};
VEC_INLINE struct norm_group norm_bwd_load(enum dtype dt, const struct norm_bwd_args *a, struct norm_row of,
                                           int64_t c) {
    int64_t n = a->channels - c, at = of.row * a->channels + c;
    struct norm_group g;
    group_load(dt, a->x, at, n, 0, g.xhat);
    group_load(dt, a->dy, at, n, 0, g.dy);
    group_load(dt, a->weight, c, n, 0, g.w);
    EACH g.xhat[k] = (g.xhat[k] - of.mean) * of.rstd;
    return g;
}

// With g = dy w: the means of g and of g xhat over the row.
VEC_INLINE void norm_bwd_means(enum dtype dt, const struct norm_bwd_args *a, struct norm_row of,
                               float *mean_g, float *mean_gx) {
    double sum_g = 0.0, sum_gx = 0.0;
    for (int64_t c = 0; c < a->channels; c += CHUNK) {
        struct lanes g = {0}, gx = {0};
        EACH_GROUP(i, h, chunk_min(CHUNK, a->channels - c)) {
            struct norm_group r = norm_bwd_load(dt, a, of, c + i);
            EACH r.dy[k] *= r.w[k];
            lanes_add(&g, h, r.dy);
            lanes_dot(&gx, h, r.dy, r.xhat);
        }
        sum_g += (double)lanes_sum(&g);
        sum_gx += (double)lanes_sum(&gx);
    }
    *mean_g = a->kind == NORM_LAYER ? (float)(sum_g / (double)a->channels) : 0.0f;
    *mean_gx = (float)(sum_gx / (double)a->channels);
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)) + dresidual; RMSNorm has no mean(g).
// dweight(C) += dy xhat and dbias(C) += dy for this row, in fp32.
VEC_INLINE void norm_bwd_row(enum dtype dt, const struct norm_bwd_args *a, int64_t row, float *dweight,
                             float *dbias) {
    const struct norm_row of = {row, a->kind == NORM_LAYER ? a->mean[row] : 0.0f, a->rstd[row]};
    float mean_g, mean_gx;
    norm_bwd_means(dt, a, of, &mean_g, &mean_gx);
    for (int64_t c = 0; c < a->channels; c += GROUP * VEC) {
        int64_t n = a->channels - c, at = row * a->channels + c;
        struct norm_group r = norm_bwd_load(dt, a, of, c);
        vecf sum[GROUP];
        group_load(DT_F32, dweight, c, n, 0, sum);
        EACH sum[k] = vec_fma(r.dy[k], r.xhat[k], sum[k]);
        group_store(DT_F32, dweight, c, n, sum);
        if (a->dbias) {
            group_load(DT_F32, dbias, c, n, 0, sum);
            EACH sum[k] += r.dy[k];
            group_store(DT_F32, dbias, c, n, sum);
        }
        EACH r.dy[k] =
            of.rstd * vec_fma(vec_set(-mean_gx), r.xhat[k], vec_fma(r.dy[k], r.w[k], vec_set(-mean_g)));
        if (a->dresidual) {
            group_load(dt, a->dresidual, at, n, 0, sum);
            EACH r.dy[k] += sum[k];
        }
        group_store(dt, a->dx, at, n, r.dy);
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
            WITH_DTYPE(a->dt, norm_bwd_row, a, r, sums, sums + a->channels);
    }
}

// Columns [c, c + n) of out: = or += the sums of the parts, in order. offset: 0 for dweight, C for dbias.
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
    if (a->rows * a->channels < RANGE_ELEMENTS) threads = 1;
    for_ranges(threads, NORM_PARTS, 1, norm_bwd_parts, a);
    if (a->dweight) for_ranges(threads, a->channels, NORM_COLUMNS, norm_bwd_columns, a);
    return NULL;
}
