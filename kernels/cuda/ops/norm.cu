// RMSNorm and LayerNorm with the residual addition fused in, and their backward. A block does a row,
// which its threads hold in registers: one read, one write. Rows too long or not a multiple of 16 bytes
// take the *_any kernels, which read a row again for every pass.
#include "kernels/cuda/common/columns.h"

#define NORM_THREADS 256
#define NORM_COLUMNS 32  // a thread holds in registers, at most

template <typename T>
struct norm_fwd_buffers {
    T *y, *sum;
    float *mean, *rstd;
    const T *x, *residual, *weight, *bias;
    int64_t channels;
    float eps;
};

// x(V) = the row's input at c, the residual added and rounded to T, which is what the norm then sees.
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
    // Each thread reads what it wrote itself.
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

// How a row is spread: the fewest vectors a thread that NORM_THREADS threads can hold, 0 for *_any.
static int vectors_a_thread(int64_t channels, int lanes_count, bool aligned) {
    if (!aligned || channels % lanes_count) return 0;
    for (int per = 1; per * lanes_count <= NORM_COLUMNS; per *= 2)
        if (channels <= (int64_t)per * lanes_count * NORM_THREADS) return per;
    return 0;
}

static unsigned threads_of_row(int64_t channels, int lanes_count, int per) {
    return (unsigned)(divide_up(channels, (int64_t)lanes_count * per * WARP) * WARP);
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
    struct launch_shape shape = flat_shape(a->rows, per ? threads_of_row(a->channels, V, per) : NORM_THREADS);
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

int cuda_op_norm_fwd(struct cuda_ctx *ctx, const void *args) {
    const struct norm_fwd_args *a = static_cast<const struct norm_fwd_args *>(args);
    if (a->rows == 0) return 0;
    if (a->rows >= LARGEST_GRID) return cuda_refused(ctx, "norm_fwd: more rows than one launch covers");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return a->kind == NORM_LAYER ? norm_fwd_launch<T, true>(ctx, a) : norm_fwd_launch<T, false>(ctx, a);
    });
}
