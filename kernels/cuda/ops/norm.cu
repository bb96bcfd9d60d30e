// RMSNorm and LayerNorm, forward and backward.
#include "kernels/cuda/common/columns.h"

// ---------------------------------------------------------------- forward
// The residual addition is fused. A block processes a row, which its threads hold in registers: one read, one
// write. Rows that are too long or not a multiple of 16 bytes use the *_any kernels, which read a row again for
// every pass.
#define NORM_THREADS 256
#define NORM_COLUMNS 32  // limit of the columns that a thread holds in registers

template <typename T>
struct norm_fwd_buffers {
    T *y, *sum;
    float *mean, *rstd;
    const T *x, *residual, *weight, *bias;
    int64_t channels;
    float eps;
};

// x(V) = the row's input at c, with the residual added and rounded to T; the norm uses the rounded value.
template <typename T, int V>
__device__ static inline void norm_input(const struct norm_fwd_buffers<T> &p, int64_t at, float *x) {
    load_f32<T, V>(p.x + at, x);
    if (!p.residual) return;
    float res[V];
    load_f32<T, V>(p.residual + at, res);
#pragma unroll
    for (int j = 0; j < V; j++) x[j] = __fadd_rn(x[j], res[j]);
    vec<T, V> rounded = pack<T, V>(x);
    store_vec<T, V>(p.sum + at, rounded);
    unpack<T, V>(rounded, x);
}

template <typename T, int V, bool LAYER>
__device__ static inline void norm_output(const struct norm_fwd_buffers<T> &p, int64_t at, int64_t c,
                                          const float *x, float mean, float rstd) {
    float w[V], b[V], y[V];
    load_f32<T, V>(p.weight + c, w);
    if (LAYER) load_f32<T, V>(p.bias + c, b);
#pragma unroll
    for (int j = 0; j < V; j++) y[j] = LAYER ? fmaf((x[j] - mean) * rstd, w[j], b[j]) : x[j] * rstd * w[j];
    store_f32<T, V>(p.y + at, y);
}

__device__ static inline float norm_rstd(float square, int64_t channels, float eps) {
    return __fdiv_rn(1.0f, __fsqrt_rn(square / (float)channels + eps));
}

template <typename T, int V, int PER, bool LAYER>
__global__ void __launch_bounds__(NORM_THREADS) norm_fwd_kernel(struct norm_fwd_buffers<T> p) {
    SHARED_ARRAY(float, slots, 2 * WARP);
    int64_t row = blockIdx.x;
    float x[PER][V], mean = 0.0f, square = 0.0f;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        if (c < p.channels) norm_input<T, V>(p, row * p.channels + c, x[k]);
#pragma unroll
        for (int j = 0; j < V; j++) x[k][j] = c < p.channels ? x[k][j] : 0.0f;
    }
    if (LAYER) {
#pragma unroll
        for (int k = 0; k < PER; k++)
#pragma unroll
            for (int j = 0; j < V; j++) mean += x[k][j];
        mean = block_reduce(mean, slots + WARP, 0.0f, sum_of()) / (float)p.channels;
    }
#pragma unroll
    for (int k = 0; k < PER; k++)
#pragma unroll
        for (int j = 0; j < V; j++) {
            bool inside = ((int64_t)k * blockDim.x + threadIdx.x) * V < p.channels;
            float d = inside ? x[k][j] - mean : 0.0f;
            square = fmaf(d, d, square);
        }
    square = block_reduce(square, slots, 0.0f, sum_of());
    float rstd = norm_rstd(square, p.channels, p.eps);
    if (threadIdx.x == 0) {
        p.rstd[row] = rstd;
        if (LAYER) p.mean[row] = mean;
    }
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        if (c < p.channels) norm_output<T, V, LAYER>(p, row * p.channels + c, c, x[k], mean, rstd);
    }
}

template <typename T, bool LAYER>
__global__ void __launch_bounds__(NORM_THREADS) norm_fwd_any_kernel(struct norm_fwd_buffers<T> p) {
    SHARED_ARRAY(float, slots, 2 * WARP);
    int64_t row = blockIdx.x, at = row * p.channels;
    const T *in = p.residual ? p.sum : p.x;
    float mean = 0.0f, square = 0.0f;
    for (int64_t c = threadIdx.x; c < p.channels; c += NORM_THREADS) {
        float x;
        norm_input<T, 1>(p, at + c, &x);
        mean += x;
    }
    mean = LAYER ? block_reduce(mean, slots + WARP, 0.0f, sum_of()) / (float)p.channels : 0.0f;
    // Each thread reads what it has written itself.
    for (int64_t c = threadIdx.x; c < p.channels; c += NORM_THREADS) {
        float d = to_f32(in[at + c]) - mean;
        square = fmaf(d, d, square);
    }
    float rstd = norm_rstd(block_reduce(square, slots, 0.0f, sum_of()), p.channels, p.eps);
    if (threadIdx.x == 0) {
        p.rstd[row] = rstd;
        if (LAYER) p.mean[row] = mean;
    }
    for (int64_t c = threadIdx.x; c < p.channels; c += NORM_THREADS) {
        float x = to_f32(in[at + c]);
        norm_output<T, 1, LAYER>(p, at + c, c, &x, mean, rstd);
    }
}

// The fewest vectors per thread with which NORM_THREADS threads hold a row; 0: use *_any.
static int vectors_a_thread(int64_t channels, int lanes_count, bool aligned) {
    if (!aligned || channels % lanes_count) return 0;
    for (int per = 1; per * lanes_count <= NORM_COLUMNS; per *= 2)
        if (channels <= (int64_t)per * lanes_count * NORM_THREADS) return per;
    return 0;
}

template <typename T, bool LAYER>
static int norm_fwd_launch(struct cuda_ctx *ctx, const struct norm_fwd_args *a) {
    constexpr int V = lanes<T>::count;
    struct norm_fwd_buffers<T> p = {
        (T *)a->y, (T *)a->sum, a->mean, a->rstd, (const T *)a->x, (const T *)a->residual,
            (const T *)a->weight, (const T *)a->bias, a->channels, a->eps
    };
    bool aligned = aligned16(a->y) && aligned16(a->sum) && aligned16(a->x) && aligned16(a->residual) &&
                   aligned16(a->weight) && aligned16(a->bias);
    int per = vectors_a_thread(a->channels, V, aligned);
    struct launch_shape shape = flat_shape(
        a->rows, per ? (unsigned)(divide_up(a->channels, (int64_t)V * per * WARP) * WARP) : NORM_THREADS);
    switch (per) {
        case 1:
            return launch<norm_fwd_kernel<T, V, 1, LAYER>>(ctx, shape, p);
        case 2:
            return launch<norm_fwd_kernel<T, V, 2, LAYER>>(ctx, shape, p);
        case 4:
            return launch<norm_fwd_kernel<T, V, 4, LAYER>>(ctx, shape, p);
        case 8:
            return launch<norm_fwd_kernel<T, V, NORM_COLUMNS / V, LAYER>>(ctx, shape, p);
        default:
            return launch<norm_fwd_any_kernel<T, LAYER>>(ctx, shape, p);
    }
}

int cuda_op_norm_fwd(struct cuda_ctx *ctx, const struct norm_fwd_args *a) {
    if (a->rows == 0) return 0;
    if (a->rows >= LARGEST_GRID) return cuda_refused(ctx, "norm_fwd: more rows than one launch covers");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return a->kind == NORM_LAYER ? norm_fwd_launch<T, true>(ctx, a) : norm_fwd_launch<T, false>(ctx, a);
    });
}

// ---------------------------------------------------------------- backward
// The backward of RMSNorm and LayerNorm. With g = dy w and xhat the normalised input:
//     dx = rstd (g - mean(g) - xhat mean(g xhat)) + dresidual        (RMSNorm has no mean(g))
//     dweight = sum over rows of dy xhat,  dbias = sum over rows of dy
// A block processes a run of rows, one after another, with the next rows' loads in flight as far as registers
// suffice. A thread has the same columns in all rows, so the column sums stay in registers until the run ends
// (columns.h then combines them).
//
// Bytes: x, dy, dresidual once, dx once; sums of 512 parts, 4 or 8 bytes per column, written and read. For R =
// 32768, C = 768, LayerNorm, 16 bits: 201 MB and 6 MB. 512 parts are 4 blocks on each of 132 multiprocessors.
// With 96 threads per block and 48 bytes per thread and row, one row ahead is 18 KB in flight, less than the
// latency needs (22 KB), so narrow blocks load two rows ahead. For wider blocks one row is enough, and a second
// one would leave registers for fewer blocks.
#define NORM_AHEAD  16   // up to this many columns per thread, the next row is in registers too
#define NORM_NARROW 128  // up to this many threads per block, so is the row after it

template <typename T>
struct norm_bwd_buffers {
    T *dx;
    float *parts;  // (gridDim.x, 2, C); RMSNorm: (gridDim.x, 1, C)
    const T *dy, *dresidual, *x, *weight;
    const float *mean, *rstd;
    int64_t rows, channels;
};

// The elements of a row that a thread holds.
template <typename T, int V, int PER>
struct norm_row {
    packed<T, V> x[PER], dy[PER], dresidual[PER];
    float mean, rstd;
};

template <typename T, int V, int PER, bool LAYER>
__device__ static inline void norm_row_load(const struct norm_bwd_buffers<T> &p, int64_t row,
                                            norm_row<T, V, PER> *out) {
    out->mean = LAYER ? p.mean[row] : 0.0f;
    out->rstd = p.rstd[row];
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V, at = row * p.channels + c;
        if (c >= p.channels) continue;
        out->x[k] = load_packed<T, V>(p.x + at);
        out->dy[k] = load_packed<T, V>(p.dy + at);
        if (p.dresidual) out->dresidual[k] = load_packed<T, V>(p.dresidual + at);
    }
}

// Sums both numbers over the block with one barrier. slots (2 WARP): as for block_reduce.
__device__ static inline void block_sum_pair(float *a, float *b, float *slots) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    *a = warp_reduce(*a, sum_of());
    *b = warp_reduce(*b, sum_of());
    if (warps == 1) return;
    if (lane == 0) {
        slots[warp] = *a;
        slots[WARP + warp] = *b;
    }
    __syncthreads();
    *a = warp_reduce(lane < warps ? slots[lane] : 0.0f, sum_of());
    *b = warp_reduce(lane < warps ? slots[WARP + lane] : 0.0f, sum_of());
}

// A thread's columns, for all rows of a run.
template <int V, int PER>
struct norm_columns {
    float w[PER][V], dweight[PER][V], dbias[PER][V];
};

// The backward of one row; slots (2 WARP).
template <typename T, int V, int PER, bool LAYER>
__device__ static inline void norm_row_backward(const struct norm_bwd_buffers<T> &p, int64_t r,
                                                const norm_row<T, V, PER> &row, norm_columns<V, PER> *cols,
                                                float *slots) {
    float mean_g = 0.0f, mean_gx = 0.0f;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        float x[V], dy[V];
        unpack<T, V>(row.x[k], x);
        unpack<T, V>(row.dy[k], dy);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float xhat = (x[j] - row.mean) * row.rstd, g = dy[j] * cols->w[k][j];
            if (LAYER) mean_g += g;
            mean_gx = fmaf(g, xhat, mean_gx);
            cols->dweight[k][j] = fmaf(dy[j], xhat, cols->dweight[k][j]);
            if (LAYER) cols->dbias[k][j] += dy[j];
        }
    }
    block_sum_pair(&mean_g, &mean_gx, slots);
    mean_g = mean_g / (float)p.channels;
    mean_gx = mean_gx / (float)p.channels;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        float x[V], dy[V], dresidual[V];
        unpack<T, V>(row.x[k], x);
        unpack<T, V>(row.dy[k], dy);
        unpack<T, V>(row.dresidual[k], dresidual);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float xhat = (x[j] - row.mean) * row.rstd;
            x[j] = row.rstd * fmaf(-mean_gx, xhat, fmaf(dy[j], cols->w[k][j], -mean_g));
            if (p.dresidual) x[j] += dresidual[j];
        }
        if (c < p.channels) store_f32<T, V>(p.dx + r * p.channels + c, x);
    }
}

// ROWS: rows of which a thread holds its columns in registers, the present one and those ahead of it. A row
// stays in the same registers.
template <typename T, int V, int PER, int ROWS, bool LAYER>
__global__ void __launch_bounds__(NORM_THREADS) norm_bwd_kernel(struct norm_bwd_buffers<T> p) {
    SHARED_ARRAY(float, slots, 4 * WARP);  // for two rows: one row's sums are read while the next are written
    int64_t part = blockIdx.x, begin = p.rows * part / gridDim.x, end = p.rows * (part + 1) / gridDim.x;
    norm_row<T, V, PER> row[ROWS] = {};
    norm_columns<V, PER> cols = {};
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        if (c < p.channels) load_f32<T, V>(p.weight + c, cols.w[k]);
    }
#pragma unroll
    for (int k = 0; k < ROWS - 1; k++)
        if (begin + k < end) norm_row_load<T, V, PER, LAYER>(p, begin + k, &row[k]);
    for (int64_t first = begin; first < end; first += ROWS) {
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            int64_t r = first + k, ahead = r + ROWS - 1;
            if (r >= end) break;
            if (ahead < end) norm_row_load<T, V, PER, LAYER>(p, ahead, &row[(k + ROWS - 1) % ROWS]);
            norm_row_backward<T, V, PER, LAYER>(p, r, row[k], &cols, slots + (r & 1) * 2 * WARP);
        }
    }
    float *sums = p.parts + part * (LAYER ? 2 : 1) * p.channels;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        if (c >= p.channels) continue;
        store_sums<V>(sums + c, cols.dweight[k]);
        if (LAYER) store_sums<V>(sums + p.channels + c, cols.dbias[k]);
    }
}

// For any width: the column sums are in the block's part of the workspace; each thread has its own columns.
template <typename T, bool LAYER>
__global__ void __launch_bounds__(NORM_THREADS) norm_bwd_any_kernel(struct norm_bwd_buffers<T> p) {
    SHARED_ARRAY(float, slots, 4 * WARP);
    int64_t part = blockIdx.x, begin = p.rows * part / gridDim.x, end = p.rows * (part + 1) / gridDim.x;
    float *sums = p.parts + part * (LAYER ? 2 : 1) * p.channels;
    for (int64_t c = threadIdx.x; c < (LAYER ? 2 : 1) * p.channels; c += NORM_THREADS) sums[c] = 0.0f;
    __syncthreads();
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * p.channels;
        float mean = LAYER ? p.mean[r] : 0.0f, rstd = p.rstd[r], mean_g = 0.0f, mean_gx = 0.0f;
        for (int64_t c = threadIdx.x; c < p.channels; c += NORM_THREADS) {
            float xhat = (to_f32(p.x[at + c]) - mean) * rstd, dy = to_f32(p.dy[at + c]);
            float g = dy * to_f32(p.weight[c]);
            mean_g += g;
            mean_gx = fmaf(g, xhat, mean_gx);
            sums[c] = fmaf(dy, xhat, sums[c]);
            if (LAYER) sums[p.channels + c] += dy;
        }
        block_sum_pair(&mean_g, &mean_gx, slots + (r & 1) * 2 * WARP);
        mean_g = LAYER ? mean_g / (float)p.channels : 0.0f;
        mean_gx = mean_gx / (float)p.channels;
        for (int64_t c = threadIdx.x; c < p.channels; c += NORM_THREADS) {
            float xhat = (to_f32(p.x[at + c]) - mean) * rstd;
            float dx = rstd * fmaf(-mean_gx, xhat, fmaf(to_f32(p.dy[at + c]), to_f32(p.weight[c]), -mean_g));
            if (p.dresidual) dx += to_f32(p.dresidual[at + c]);
            from_f32(dx, &p.dx[at + c]);
        }
    }
}

template <typename T, bool LAYER>
static int norm_bwd_run(struct cuda_ctx *ctx, const struct norm_bwd_buffers<T> &p, int64_t parts,
                        bool aligned) {
    constexpr int V = lanes<T>::count, MOST = NORM_COLUMNS / V;
    int64_t groups = p.channels / V, per = divide_up(groups, (int64_t)NORM_THREADS);
    bool registers = aligned && p.channels % V == 0 && per <= MOST;
    per = per <= 1 ? 1 : per <= 2 ? 2 : per <= 4 ? 4 : MOST;
    unsigned threads = registers ? (unsigned)(divide_up(groups, per * WARP) * WARP) : NORM_THREADS;
    struct launch_shape shape = flat_shape(parts, threads);
    if (!registers) return launch<norm_bwd_any_kernel<T, LAYER>>(ctx, shape, p);
    if (per == 1 && threads <= NORM_NARROW) return launch<norm_bwd_kernel<T, V, 1, 3, LAYER>>(ctx, shape, p);
    if (per == 1) return launch<norm_bwd_kernel<T, V, 1, 2, LAYER>>(ctx, shape, p);
    if (per == 2) return launch<norm_bwd_kernel<T, V, 2, 2, LAYER>>(ctx, shape, p);
    constexpr int ROWS = V * 4 <= NORM_AHEAD ? 2 : 1;
    if (per == 4) return launch<norm_bwd_kernel<T, V, 4, ROWS, LAYER>>(ctx, shape, p);
    return launch<norm_bwd_kernel<T, V, MOST, 1, LAYER>>(ctx, shape, p);
}

int cuda_op_norm_bwd(struct cuda_ctx *ctx, const struct norm_bwd_args *a) {
    bool layer = a->kind == NORM_LAYER;
    int64_t width = (layer ? 2 : 1) * a->channels, parts = column_parts(a->rows, width);
    if (a->channels == 0) return 0;
    if (parts == 0 && a->rows > 0) return cuda_refused(ctx, "norm_bwd: a row of sums exceeds the workspace");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        struct norm_bwd_buffers<T> p = {
            (T *)a->dx, (float *)ctx->workspace, (const T *)a->dy, (const T *)a->dresidual, (const T *)a->x,
                (const T *)a->weight, a->mean, a->rstd, a->rows, a->channels
        };
        bool aligned = aligned16(a->dx) && aligned16(a->dy) && aligned16(a->dresidual) && aligned16(a->x) &&
                       aligned16(a->weight);
        int rc = parts == 0 ? 0
                 : layer    ? norm_bwd_run<T, true>(ctx, p, parts, aligned)
                            : norm_bwd_run<T, false>(ctx, p, parts, aligned);
        struct combine_buffers<T> c = {
            (T *)a->dweight, layer ? (T *)a->dbias : NULL, p.parts, a->channels, width, parts, a->accumulate
        };
        return rc == 0 && a->dweight ? combine_launch(ctx, c) : rc;
    });
}
