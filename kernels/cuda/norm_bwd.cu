// The backward of RMSNorm and LayerNorm. With g = dy w and xhat the normalised input:
//     dx = rstd (g - mean(g) - xhat mean(g xhat)) + dresidual        (RMSNorm has no mean(g))
//     dweight = sum over rows of dy xhat,  dbias = sum over rows of dy
// A block does a run of rows, one after another, the next row's loads in flight while registers last;
// a thread owns its columns in all of them, so the column sums stay in registers until the run ends
// (columns.h goes on).
#include "kernels/cuda/columns.h"

#define NORM_THREADS 256
#define NORM_COLUMNS 32  // a thread owns in registers, at most
#define NORM_AHEAD   16  // columns of a thread up to which the next row waits in registers as well

template <typename T>
struct norm_bwd_buffers {
    T *dx;
    float *parts;  // (gridDim.x, 2, C); RMSNorm: (gridDim.x, 1, C)
    const T *dy, *dresidual, *x, *weight;
    const float *mean, *rstd;
    int64_t rows, channels;
};

// What a thread holds of a row.
template <typename T, int V, int PER>
struct norm_row {
    vec<T, V> x[PER], dy[PER], dresidual[PER];
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
        out->x[k] = load_vec<T, V>(p.x + at);
        out->dy[k] = load_vec<T, V>(p.dy + at);
        if (p.dresidual) out->dresidual[k] = load_vec<T, V>(p.dresidual + at);
    }
}

// Both sums over the block by one barrier. slots (2 WARP): as block_reduce's.
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

template <typename T, int V, int PER, bool LAYER>
__global__ void __launch_bounds__(NORM_THREADS) norm_bwd_kernel(struct norm_bwd_buffers<T> p) {
    SHARED_ARRAY(float, slots, 4 * WARP);  // two rows' worth: a row's sums are read while the next ones come
    float w[PER][V], dweight[PER][V] = {}, dbias[PER][V] = {};
    int64_t part = blockIdx.x, begin = p.rows * part / gridDim.x, end = p.rows * (part + 1) / gridDim.x;
    norm_row<T, V, PER> row = {}, next = {};
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        if (c < p.channels) load_f32<T, V>(p.weight + c, w[k]);
#pragma unroll
        for (int j = 0; j < V; j++) w[k][j] = c < p.channels ? w[k][j] : 0.0f;
    }
    constexpr bool AHEAD = PER * V <= NORM_AHEAD;
    if (AHEAD && begin < end) norm_row_load<T, V, PER, LAYER>(p, begin, &next);
    for (int64_t r = begin; r < end; r++) {
        if (AHEAD) {
            row = next;
            if (r + 1 < end) norm_row_load<T, V, PER, LAYER>(p, r + 1, &next);
        } else {
            norm_row_load<T, V, PER, LAYER>(p, r, &row);
        }
        float mean_g = 0.0f, mean_gx = 0.0f;
#pragma unroll
        for (int k = 0; k < PER; k++)
#pragma unroll
            for (int j = 0; j < V; j++) {
                float xhat = (to_f32(row.x[k].v[j]) - row.mean) * row.rstd, dy = to_f32(row.dy[k].v[j]);
                float g = dy * w[k][j];
                if (LAYER) mean_g += g;
                mean_gx = fmaf(g, xhat, mean_gx);
                dweight[k][j] = fmaf(dy, xhat, dweight[k][j]);
                if (LAYER) dbias[k][j] += dy;
            }
        block_sum_pair(&mean_g, &mean_gx, slots + (r & 1) * 2 * WARP);
        mean_g = mean_g / (float)p.channels;
        mean_gx = mean_gx / (float)p.channels;
#pragma unroll
        for (int k = 0; k < PER; k++) {
            int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
            float dx[V];
#pragma unroll
            for (int j = 0; j < V; j++) {
                float xhat = (to_f32(row.x[k].v[j]) - row.mean) * row.rstd;
                dx[j] = row.rstd * fmaf(-mean_gx, xhat, fmaf(to_f32(row.dy[k].v[j]), w[k][j], -mean_g));
                if (p.dresidual) dx[j] += to_f32(row.dresidual[k].v[j]);
            }
            if (c < p.channels) store_f32<T, V>(p.dx + r * p.channels + c, dx);
        }
    }
    float *sums = p.parts + part * (LAYER ? 2 : 1) * p.channels;
#pragma unroll
    for (int k = 0; k < PER; k++) {
        int64_t c = ((int64_t)k * blockDim.x + threadIdx.x) * V;
        if (c >= p.channels) continue;
        store_sums<V>(sums + c, dweight[k]);
        if (LAYER) store_sums<V>(sums + p.channels + c, dbias[k]);
    }
}

// Any width: the column sums live in the block's part of the workspace, each column its thread's own.
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
    if (!registers) return launch(ctx, shape, norm_bwd_any_kernel<T, LAYER>, p);
    if (per == 1) return launch(ctx, shape, norm_bwd_kernel<T, V, 1, LAYER>, p);
    if (per == 2) return launch(ctx, shape, norm_bwd_kernel<T, V, 2, LAYER>, p);
    if (per == 4) return launch(ctx, shape, norm_bwd_kernel<T, V, 4, LAYER>, p);
    return launch(ctx, shape, norm_bwd_kernel<T, V, MOST, LAYER>, p);
}

int cuda_op_norm_bwd(struct cuda_ctx *ctx, const void *args) {
    const struct norm_bwd_args *a = static_cast<const struct norm_bwd_args *>(args);
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
        return rc == 0 ? combine_launch(ctx, c) : -1;
    });
}
