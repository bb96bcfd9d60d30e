// Causal attention forward, the fallback where cuDNN has no plan: fp32 arithmetic after FlashAttention
// (Dao et al. 2022, algorithm 1; online softmax: Milakov & Gimelshein 2018). A block does TILE queries
// of one head against all keys up to the diagonal.
#include "kernels/cuda/ops/attention.h"

template <typename T>
struct attn_fwd_buffers {
    T *out;
    float *lse;
    const T *qkv;
    int64_t seq;
    int32_t heads, kv_heads, size;
    float scale;
};

// Masks and scales the scores of one tile, updates the rows' maximum and sum, and turns the scores
// into probabilities relative to the maximum. factor: what the earlier sums are to be multiplied by.
__device__ static inline void softmax_tile(float (&s)[SIDE][SIDE], int64_t query0, int64_t key0, float scale,
                                           float *max, float *sum, float *factor) {
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        float tile_max = -INFINITY, tile_sum = 0.0f;
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            bool seen = key0 + tile_column(j) <= query0 + tile_row(i);
            s[i][j] = seen ? s[i][j] * scale : -INFINITY;
            tile_max = fmaxf(tile_max, s[i][j]);
        }
        float new_max = fmaxf(max[i], row_reduce(tile_max, max_of()));
        factor[i] = expf(max[i] - new_max);
        max[i] = new_max;
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            s[i][j] = expf(s[i][j] - new_max);
            tile_sum += s[i][j];
        }
        sum[i] = sum[i] * factor[i] + row_reduce(tile_sum, sum_of());
    }
}

template <typename T, int DP>
__global__ void __launch_bounds__(TILE_THREADS) attn_fwd_kernel(struct attn_fwd_buffers<T> p) {
    SHARED_DYNAMIC(float, shared);
    float *queries = shared, *keys = queries + tile<DP>::floats, *values = keys + tile<DP>::floats;
    float *scores = values + tile<DP>::floats;
    int64_t qtile = (int64_t)gridDim.x - 1 - blockIdx.x;  // the longest rows first
    int64_t b = blockIdx.z, h = blockIdx.y, kv = h / (p.heads / p.kv_heads), query0 = qtile * TILE;
    int64_t width = (int64_t)(p.heads + 2 * p.kv_heads) * p.size, out_width = (int64_t)p.heads * p.size;
    const T *base = p.qkv + b * p.seq * width;
    struct head_view<const T> q = {base + h * p.size, width}, k = {
        base + (p.heads + kv) * p.size, width
    };
    struct head_view<const T> v = {
        base + (p.heads + p.kv_heads + kv) * p.size, width
    };
    float out[SIDE][tile<DP>::columns] = {}, max[SIDE], sum[SIDE] = {}, factor[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) max[i] = -INFINITY;
    load_tile<T, DP>(queries, q, query0, p.seq, p.size);
    for (int64_t key0 = 0; key0 <= query0; key0 += TILE) {
        float s[SIDE][SIDE];
        __syncthreads();  // the last tiles have been read
        load_tile<T, DP>(keys, k, key0, p.seq, p.size);
        load_tile<T, DP>(values, v, key0, p.seq, p.size);
        __syncthreads();
        product_nt<DP>(queries, keys, s);
        softmax_tile(s, query0, key0, p.scale, max, sum, factor);
        share_scores(scores, s);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < tile<DP>::columns; j++) out[i][j] *= factor[i];
        product_nn<DP>(scores, values, out);
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        int64_t t = query0 + tile_row(i);
        factor[i] = 1.0f / sum[i];
        if (t < p.seq && tile_x() == 0) p.lse[(b * p.heads + h) * p.seq + t] = max[i] + logf(sum[i]);
    }
    store_tile<T, DP>({p.out + b * p.seq * out_width + h * p.size, out_width}, query0, p.seq, p.size, out,
                      factor);
}

int cuda_op_attn_fwd(struct cuda_ctx *ctx, const void *args) {
    const struct attn_fwd_args *a = static_cast<const struct attn_fwd_args *>(args);
    if (a->batch == 0 || a->seq == 0) return 0;
    if (a->batch > 65535 || a->heads > 65535)
        return cuda_refused(ctx, "attention: at most 65535 sequences and heads");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return with_head_size(ctx, a->head_size, [&](auto size) {
            constexpr int DP = decltype(size)::value;
            struct attn_fwd_buffers<T> p = {
                (T *)a->out, a->lse, (const T *)a->qkv, a->seq, a->heads, a->kv_heads, a->head_size, a->scale
            };
            struct launch_shape shape = {
                dim3((unsigned)divide_up(a->seq, (int64_t)TILE), (unsigned)a->heads, (unsigned)a->batch),
                dim3(TILE_THREADS), (3 * tile<DP>::floats + SCORE_FLOATS) * sizeof(float)};
            return launch<attn_fwd_kernel<T, DP>>(ctx, shape, p);
        });
    });
}
