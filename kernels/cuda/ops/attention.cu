// Our own causal attention, used if cuDNN has no plan: forward and backward in fp32 arithmetic.
#include "kernels/cuda/common/platform.h"

// ---------------------------------------------------------------- tiles of both directions
// Both directions use tiles of TILE positions in shared memory, in fp32, and two products of tiles. A block of
// 16 x 16 threads holds a 64 x 64 tile of scores, 4 x 4 per thread: thread (y, x) has rows 4y .. 4y+3, columns
// x, x + 16, x + 32, x + 48. The 16 threads of a row are half a warp, so a row's softmax needs shuffles only.
#define TILE         64  // queries or keys
#define TILE_THREADS 256
#define HALF         16  // threads per row
#define SIDE         4   // rows and columns per thread
#define SCORE_PITCH  (TILE + 4)
#define SCORE_FLOATS (TILE * SCORE_PITCH)
#define HEAD_SIZES   "attention: the fallback does even head sizes up to 128"

// Rows of DP elements and a gap of 16 bytes: float4 reads down a column then use every bank once.
template <int DP>
struct tile {
    static constexpr int pitch = DP + 4, floats = TILE * pitch, columns = DP / HALF;
};

__device__ static inline int tile_x(void) { return (int)threadIdx.x % HALF; }
__device__ static inline int tile_row(int i) { return (int)threadIdx.x / HALF * SIDE + i; }
__device__ static inline int tile_column(int j) { return tile_x() + j * HALF; }

// One head's vectors: element d of position t is p[t * stride + d].
template <typename T>
struct head_view {
    T *p;
    int64_t stride;
};

// Loads positions [t0, t0 + TILE) to shared memory; zeros beyond the sequence and the head's size.
template <typename T, int DP>
__device__ static inline void load_tile(float *to, struct head_view<const T> from, int64_t t0, int64_t seq,
                                        int size) {
    for (int i = (int)threadIdx.x; i < TILE * DP; i += TILE_THREADS) {
        int r = i / DP, d = i % DP;
        bool inside = t0 + r < seq && d < size;
        to[r * tile<DP>::pitch + d] = inside ? to_f32(from.p[(t0 + r) * from.stride + d]) : 0.0f;
    }
}

// y(positions, D) = x, each row scaled.
template <typename T, int DP>
__device__ static inline void store_tile(struct head_view<T> to, int64_t t0, int64_t seq, int size,
                                         const float (&x)[SIDE][tile<DP>::columns], const float *scale) {
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        int64_t t = t0 + tile_row(i);
        if (t >= seq) continue;
#pragma unroll
        for (int j = 0; j < tile<DP>::columns; j++)
            if (tile_column(j) < size) from_f32(x[i][j] * scale[i], &to.p[t * to.stride + tile_column(j)]);
    }
}

// s(64,64) = a(64,DP) b(64,DP)^T.
template <int DP>
__device__ static inline void product_nt(const float *a, const float *b, float (&s)[SIDE][SIDE]) {
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) s[i][j] = 0.0f;
    for (int d = 0; d < DP; d += 4) {
        vec<float, 4> av[SIDE], bv[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) {
            av[i] = load_vec<float, 4>(a + tile_row(i) * tile<DP>::pitch + d);
            bv[i] = load_vec<float, 4>(b + tile_column(i) * tile<DP>::pitch + d);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < SIDE; j++) s[i][j] = fmaf(av[i].v[e], bv[j].v[e], s[i][j]);
    }
}

// acc(64,DP) += p(64,64) v(64,DP); rows of p are SCORE_PITCH apart.
template <int DP>
__device__ static inline void product_nn(const float *p, const float *v,
                                         float (&acc)[SIDE][tile<DP>::columns]) {
    for (int k = 0; k < TILE; k += 4) {
        vec<float, 4> pv[SIDE];
#pragma unroll
        for (int i = 0; i < SIDE; i++) pv[i] = load_vec<float, 4>(p + tile_row(i) * SCORE_PITCH + k);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int j = 0; j < tile<DP>::columns; j++) {
                float x = v[(k + e) * tile<DP>::pitch + tile_column(j)];
#pragma unroll
                for (int i = 0; i < SIDE; i++) acc[i][j] = fmaf(pv[i].v[e], x, acc[i][j]);
            }
    }
}

// Stores a thread's scores to shared memory. Only the threads of the same rows read them.
__device__ static inline void share_scores(float *p, const float (&s)[SIDE][SIDE]) {
    __syncwarp();  // the rows' earlier contents have been read
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) p[tile_row(i) * SCORE_PITCH + tile_column(j)] = s[i][j];
    __syncwarp();
}

template <typename F>
__device__ static inline float row_reduce(float x, F f) {
#pragma unroll
    for (int step = HALF / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

// Calls f with the smallest constant DP that holds a head. Both directions support the same sizes.
template <typename F>
static inline int with_head_size(struct cuda_ctx *ctx, int32_t size, F f) {
    if (size < 2 || size > 128 || size % 2) return cuda_refused(ctx, HEAD_SIZES);
    if (size <= 32) return f(width_tag<32>());
    return size <= 64 ? f(width_tag<64>()) : f(width_tag<128>());
}

// ---------------------------------------------------------------- forward
// After FlashAttention (Dao et al. 2022, algorithm 1; online softmax: Milakov & Gimelshein 2018). A block
// processes TILE queries of one head and all keys up to the diagonal.
template <typename T>
struct attn_fwd_buffers {
    T *out;
    float *lse;
    const T *qkv;
    int64_t seq;
    int32_t heads, kv_heads, size;
    float scale;
};

// Masks and scales the scores of one tile, updates the rows' maximum and sum, and turns the scores into
// probabilities relative to the maximum. factor receives the number by which earlier sums must be multiplied.
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
    int64_t qtile = (int64_t)gridDim.x - 1 - blockIdx.x;  // the longest rows start first
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
        __syncthreads();  // the previous tiles have been read
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

int cuda_op_attn_fwd(struct cuda_ctx *ctx, const struct attn_fwd_args *a) {
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

// ---------------------------------------------------------------- backward
// Causal attention backward, used if cuDNN has no plan, after FlashAttention (Dao et al. 2022, appendix B), in
// fp32. Scores are computed again from the saved log-sum-exp. There are no atomics: one kernel sums per query
// row, another per key row, each in a fixed order.
//
//     delta = rowsum(dout * out)                       p = exp(scale q k^T - lse)
//     dp = dout v^T,  ds = scale p (dp - delta)        dq = ds k,  dk = ds^T q,  dv = p^T dout
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

// The views of one (sequence, key/value head). A query head begins h * size elements after q and dout.
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

// dq of TILE queries of one head.
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

// dk and dv of TILE keys of one key/value head, from all its query heads and all queries from the diagonal on.
// Scores are transposed: rows are keys.
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

int cuda_op_attn_bwd(struct cuda_ctx *ctx, const struct attn_bwd_args *a) {
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
