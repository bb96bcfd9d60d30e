// What the directions of the fallback attention share: tiles of TILE times in shared memory, in fp32,
// and the two products of tiles. A block of 16 x 16 threads holds a 64 x 64 tile of scores, 4 x 4 in
// each thread: thread (y, x) rows 4y .. 4y+3, columns x, x + 16, x + 32, x + 48. The 16 threads of a row are
// half a warp, so a row's softmax is shuffles alone.
#ifndef STARRING_KERNELS_CUDA_OPS_ATTENTION_H
#define STARRING_KERNELS_CUDA_OPS_ATTENTION_H

#include "kernels/cuda/common/platform.h"

#define TILE         64  // queries, keys
#define TILE_THREADS 256
#define HALF         16  // threads of a row
#define SIDE         4   // rows and columns of a thread
#define SCORE_PITCH  (TILE + 4)
#define SCORE_FLOATS (TILE * SCORE_PITCH)
#define HEAD_SIZES   "attention: the fallback does even head sizes up to 128"

// Rows of DP elements, 16 bytes of gap: float4 reads down a column meet every bank once.
template <int DP>
struct tile {
    static constexpr int pitch = DP + 4, floats = TILE * pitch, columns = DP / HALF;
};

__device__ static inline int tile_x(void) { return (int)threadIdx.x % HALF; }
__device__ static inline int tile_row(int i) { return (int)threadIdx.x / HALF * SIDE + i; }
__device__ static inline int tile_column(int j) { return tile_x() + j * HALF; }

// Where one head's vectors lie: element d of time t at p[t * stride + d].
template <typename T>
struct head_view {
    T *p;
    int64_t stride;
};

// Times [t0, t0 + TILE) to shared memory; zero beyond the sequence and the head's size.
template <typename T, int DP>
__device__ static inline void load_tile(float *to, struct head_view<const T> from, int64_t t0, int64_t seq,
                                        int size) {
    for (int i = (int)threadIdx.x; i < TILE * DP; i += TILE_THREADS) {
        int r = i / DP, d = i % DP;
        bool inside = t0 + r < seq && d < size;
        to[r * tile<DP>::pitch + d] = inside ? to_f32(from.p[(t0 + r) * from.stride + d]) : 0.0f;
    }
}

// y(times, D) = x scaled by rows.
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

// acc(64,DP) += p(64,64) v(64,DP); p of SCORE_PITCH.
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

// A thread's scores to shared memory, where the threads of the same rows (and nobody else) read them.
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

// f(constant DP) for the smallest tile that holds a head; both directions do the same sizes.
template <typename F>
static inline int with_head_size(struct cuda_ctx *ctx, int32_t size, F f) {
    if (size < 2 || size > 128 || size % 2) return cuda_refused(ctx, HEAD_SIZES);
    if (size <= 32) return f(width_tag<32>());
    return size <= 64 ? f(width_tag<64>()) : f(width_tag<128>());
}

#endif
