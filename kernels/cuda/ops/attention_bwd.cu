// Causal attention backward, the fallback where cuDNN has no plan, after FlashAttention (Dao et al.
// 2022, appendix B), in fp32. Scores are computed again from the saved log-sum-exp. No atomics: one
// kernel owns rows of queries, another rows of keys, and each sums in its own fixed order.
//
//     delta = rowsum(dout * out)                       p = exp(scale q k^T - lse)
//     dp = dout v^T,  ds = scale p (dp - delta)        dq = ds k,  dk = ds^T q,  dv = p^T dout
#include "kernels/cuda/ops/attention.h"

template <typename T>
struct attn_bwd_buffers {
    T *dqkv;
    const T *dout, *qkv, *out;
    const float *lse;
    float *delta;       // (B,H,T), the operation's scratch
    int64_t seq, rows;  // rows: B*T*H
    int32_t heads, kv_heads, size;
    float scale;
};

// One warp for each row (b,t,h) of out.
template <typename T>
__global__ void __launch_bounds__(TILE_THREADS) attn_delta_kernel(struct attn_bwd_buffers<T> p) {
    int lane = (int)threadIdx.x % WARP;
    int64_t row = (int64_t)blockIdx.x * (TILE_THREADS / WARP) + threadIdx.x / WARP;
    float sum = 0.0f;
    if (row < p.rows)
        for (int d = lane; d < p.size; d += WARP)
            sum = fmaf(to_f32(p.dout[row * p.size + d]), to_f32(p.out[row * p.size + d]), sum);
    sum = warp_reduce(sum, sum_of());
    if (row >= p.rows || lane != 0) return;
    int64_t h = row % p.heads, bt = row / p.heads;
    p.delta[(bt / p.seq * p.heads + h) * p.seq + bt % p.seq] = sum;
}

// The views of one (sequence, key/value head); those of a query head lie h * size from q and dout.
template <typename T>
struct attn_views {
    struct head_view<const T> q, k, v, dout;
    struct head_view<T> dq, dk, dv;
};

template <typename T>
__device__ static inline struct attn_views<T> views_of(const struct attn_bwd_buffers<T> &p, int64_t b,
                                                       int64_t kv) {
    int64_t width = (int64_t)(p.heads + 2 * p.kv_heads) * p.size, out_width = (int64_t)p.heads * p.size;
    int64_t at = b * p.seq * width, k = (p.heads + kv) * (int64_t)p.size,
            v = k + (int64_t)p.kv_heads * p.size;
    return {{p.qkv + at, width},     {p.qkv + at + k, width},
            {p.qkv + at + v, width}, {p.dout + b * p.seq * out_width, out_width},
            {p.dqkv + at, width},    {p.dqkv + at + k, width},
            {p.dqkv + at + v, width}};
}

// TILE queries of one head.
template <typename T, int DP>
__global__ void __launch_bounds__(TILE_THREADS) attn_dq_kernel(struct attn_bwd_buffers<T> p) {
    SHARED_DYNAMIC(float, shared);
    float *queries = shared, *douts = queries + tile<DP>::floats, *keys = douts + tile<DP>::floats;
    float *values = keys + tile<DP>::floats, *scores = values + tile<DP>::floats;
    int64_t b = blockIdx.z, h = blockIdx.y, query0 = ((int64_t)gridDim.x - 1 - blockIdx.x) * TILE;
    struct attn_views<T> view = views_of(p, b, h / (p.heads / p.kv_heads));
    float dq[SIDE][tile<DP>::columns] = {}, lse[SIDE], delta[SIDE], one[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        int64_t t = lesser(query0 + tile_row(i), p.seq - 1), at = (b * p.heads + h) * p.seq + t;
        lse[i] = p.lse[at];
        delta[i] = p.delta[at];
        one[i] = 1.0f;
    }
    load_tile<T, DP>(queries, {view.q.p + h * p.size, view.q.stride}, query0, p.seq, p.size);
    load_tile<T, DP>(douts, {view.dout.p + h * p.size, view.dout.stride}, query0, p.seq, p.size);
    for (int64_t key0 = 0; key0 <= query0; key0 += TILE) {
        float s[SIDE][SIDE], dp[SIDE][SIDE];
        __syncthreads();
        load_tile<T, DP>(keys, view.k, key0, p.seq, p.size);
        load_tile<T, DP>(values, view.v, key0, p.seq, p.size);
        __syncthreads();
        product_nt<DP>(queries, keys, s);
        product_nt<DP>(douts, values, dp);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                bool seen = key0 + tile_column(j) <= query0 + tile_row(i);
                float prob = seen ? expf(s[i][j] * p.scale - lse[i]) : 0.0f;
                s[i][j] = prob * (dp[i][j] - delta[i]) * p.scale;
            }
        share_scores(scores, s);
        product_nn<DP>(scores, keys, dq);
    }
    store_tile<T, DP>({view.dq.p + h * p.size, view.dq.stride}, query0, p.seq, p.size, dq, one);
}

// TILE keys of one key/value head: all its query heads, all queries from the diagonal on. Scores are
// transposed: rows are keys.
template <typename T, int DP>
__global__ void __launch_bounds__(TILE_THREADS) attn_dkv_kernel(struct attn_bwd_buffers<T> p) {
    SHARED_DYNAMIC(float, shared);
    float *keys = shared, *values = keys + tile<DP>::floats, *queries = values + tile<DP>::floats;
    float *douts = queries + tile<DP>::floats, *scores = douts + tile<DP>::floats;
    float *lse = scores + SCORE_FLOATS, *delta = lse + TILE;
    int64_t b = blockIdx.z, kv = blockIdx.y, key0 = (int64_t)blockIdx.x * TILE, group = p.heads / p.kv_heads;
    struct attn_views<T> view = views_of(p, b, kv);
    float dk[SIDE][tile<DP>::columns] = {}, dv[SIDE][tile<DP>::columns] = {}, one[SIDE];
#pragma unroll
    for (int i = 0; i < SIDE; i++) one[i] = 1.0f;
    load_tile<T, DP>(keys, view.k, key0, p.seq, p.size);
    load_tile<T, DP>(values, view.v, key0, p.seq, p.size);
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t query0 = key0; query0 < p.seq; query0 += TILE) {
            float s[SIDE][SIDE], dp[SIDE][SIDE];
            __syncthreads();
            load_tile<T, DP>(queries, {view.q.p + h * p.size, view.q.stride}, query0, p.seq, p.size);
            load_tile<T, DP>(douts, {view.dout.p + h * p.size, view.dout.stride}, query0, p.seq, p.size);
            if (threadIdx.x < TILE) {
                int64_t t = lesser(query0 + threadIdx.x, p.seq - 1), at = (b * p.heads + h) * p.seq + t;
                lse[threadIdx.x] = p.lse[at];
                delta[threadIdx.x] = p.delta[at];
            }
            __syncthreads();
            product_nt<DP>(keys, queries, s);
            product_nt<DP>(values, douts, dp);
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < SIDE; j++) {
                    int c = tile_column(j);
                    bool seen = query0 + c < p.seq && key0 + tile_row(i) <= query0 + c;
                    s[i][j] = seen ? expf(s[i][j] * p.scale - lse[c]) : 0.0f;
                    dp[i][j] = s[i][j] * (dp[i][j] - delta[c]) * p.scale;
                }
            share_scores(scores, s);
            product_nn<DP>(scores, douts, dv);
            share_scores(scores, dp);
            product_nn<DP>(scores, queries, dk);
        }
    store_tile<T, DP>(view.dk, key0, p.seq, p.size, dk, one);
    store_tile<T, DP>(view.dv, key0, p.seq, p.size, dv, one);
}

template <typename T, int DP>
static int attn_bwd_run(struct cuda_ctx *ctx, const struct attn_bwd_buffers<T> &p, int64_t batch) {
    unsigned tiles = (unsigned)divide_up(p.seq, (int64_t)TILE);
    size_t bytes = (4 * tile<DP>::floats + SCORE_FLOATS) * sizeof(float);
    struct launch_shape delta = flat_shape(divide_up(p.rows, (int64_t)(TILE_THREADS / WARP)), TILE_THREADS);
    struct launch_shape dq = {dim3(tiles, (unsigned)p.heads, (unsigned)batch), dim3(TILE_THREADS), bytes};
    struct launch_shape dkv = {dim3(tiles, (unsigned)p.kv_heads, (unsigned)batch), dim3(TILE_THREADS),
                               bytes + 2 * TILE * sizeof(float)};
    if (launch<attn_delta_kernel<T>>(ctx, delta, p) != 0) return -1;
    if (launch<attn_dq_kernel<T, DP>>(ctx, dq, p) != 0) return -1;
    return launch<attn_dkv_kernel<T, DP>>(ctx, dkv, p);
}

int cuda_op_attn_bwd(struct cuda_ctx *ctx, const void *args) {
    const struct attn_bwd_args *a = static_cast<const struct attn_bwd_args *>(args);
    if (a->batch == 0 || a->seq == 0) return 0;
    if (a->batch > 65535 || a->heads > 65535)
        return cuda_refused(ctx, "attention: at most 65535 sequences and heads");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return with_head_size(ctx, a->head_size, [&](auto size) {
            struct attn_bwd_buffers<T> p = {
                (T *)a->dqkv, (const T *)a->dout, (const T *)a->qkv, (const T *)a->out, a->lse,
                    (float *)a->scratch, a->seq, a->batch * a->seq * a->heads, a->heads, a->kv_heads,
                    a->head_size, a->scale
            };
            return attn_bwd_run<T, decltype(size)::value>(ctx, p, a->batch);
        });
    });
}
