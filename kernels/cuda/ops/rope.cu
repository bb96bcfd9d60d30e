// Rotary position embedding, in place on the query and key heads of qkv; in the backward also the gradient of
// qkv's bias.
#include "kernels/cuda/common/columns.h"

#define ROPE_THREADS 256
#define ROPE_HEADS   4  // a thread loads angles once for at least this many heads

template <typename T>
struct rope_buffers {
    T *qkv;
    const float *cos_sin;
    uint32_t items, seq, pair_groups;  // groups of V pairs per head
    uint32_t head_groups, heads;       // threads that share the heads of a row; heads to rotate
    int64_t width;                     // of a row of qkv
    float sign;
};

// Thread (row, head group, pair group), the last fastest: rotates its V pairs in heads group, group +
// head_groups, ...
template <typename T, int V>
__global__ void __launch_bounds__(ROPE_THREADS) rope_kernel(struct rope_buffers<T> p) {
    uint32_t i = blockIdx.x * ROPE_THREADS + threadIdx.x;
    if (i >= p.items) return;
    uint32_t pair_group = i % p.pair_groups, rest = i / p.pair_groups;
    uint32_t first_head = rest % p.head_groups, row = rest / p.head_groups;
    int64_t half = (int64_t)p.pair_groups * V;
    const float *angle = p.cos_sin + ((int64_t)(row % p.seq) * half + (int64_t)pair_group * V) * 2;
    float cosine[V], sine[V];
#pragma unroll
    for (int j = 0; j < V; j++) {
        vec<float, 2> cs = load_vec<float, 2>(angle + 2 * j);
        cosine[j] = cs.v[0];
        sine[j] = p.sign * cs.v[1];
    }
    for (uint32_t h = first_head; h < p.heads; h += p.head_groups) {
        T *at = p.qkv + row * p.width + h * 2 * half + (int64_t)pair_group * V;
        float x[V], y[V], left[V], right[V];
        load_f32<T, V>(at, x);
        load_f32<T, V>(at + half, y);
#pragma unroll
        for (int j = 0; j < V; j++) {
            left[j] = __fmaf_rn(x[j], cosine[j], -__fmul_rn(y[j], sine[j]));
            right[j] = __fmaf_rn(y[j], cosine[j], __fmul_rn(x[j], sine[j]));
        }
        store_f32<T, V>(at, left);
        store_f32<T, V>(at + half, right);
    }
}

// ---------------------------------------------------------------- with the gradient of a bias
#define SUM_LANES  32  // items side by side
#define SUM_DEEP   8   // rows side by side
#define SUM_AHEAD  2   // rows that a thread has in flight: 64 bytes, 16 KB per block
#define SUM_BLOCKS 1024

// Bytes: qkv read once, queries and keys written once. For 32768 rows of Qwen2.5 1.5B's 2048 columns, of which
// 1792 are rotated, that is 252 MB in 16 bits; a rotation and a separate sum would move 369 MB.
template <typename T>
struct rope_sums_buffers {
    T *qkv;
    const float *cos_sin;
    float *parts;  // (count, width)
    int64_t rows, width;
    uint32_t seq, pair_groups, items, rotated;  // items: groups of V pairs per row; the first are rotated
    float sign;
};

// Block (items, part): the rows of the part. Thread (lane, deep) adds every SUM_DEEP-th row in order; then the
// threads' sums are added in order. The stored (rounded) values are summed.
template <typename T, int V>
__global__ void __launch_bounds__(SUM_LANES *SUM_DEEP) rope_sums_kernel(struct rope_sums_buffers<T> p) {
    SHARED_ARRAY(float, sums, SUM_DEEP *SUM_LANES * 2 * V);
    int lane = (int)threadIdx.x % SUM_LANES, deep = (int)threadIdx.x / SUM_LANES;
    uint32_t item = blockIdx.x * SUM_LANES + lane, group = item % p.pair_groups;
    int64_t half = (int64_t)p.pair_groups * V, c = item / p.pair_groups * 2 * half + (int64_t)group * V;
    int64_t row = p.rows * blockIdx.y / gridDim.y + deep, end = p.rows * (blockIdx.y + 1) / gridDim.y;
    float total[2][V] = {};
    for (; item < p.items && row < end; row += SUM_AHEAD * SUM_DEEP) {
        packed<T, V> pair[SUM_AHEAD][2];
#pragma unroll
        for (int k = 0; k < SUM_AHEAD; k++)
#pragma unroll
            for (int s = 0; s < 2; s++)
                if (row + k * SUM_DEEP < end)
                    pair[k][s] = load_packed<T, V>(p.qkv + (row + k * SUM_DEEP) * p.width + c + s * half);
#pragma unroll
        for (int k = 0; k < SUM_AHEAD; k++) {
            int64_t r = row + k * SUM_DEEP;
            if (r >= end) continue;
            float x[V], y[V];
            unpack<T, V>(pair[k][0], x);
            unpack<T, V>(pair[k][1], y);
            if (item < p.rotated) {
                T *at = p.qkv + r * p.width + c;
                const float *angle =
                    p.cos_sin + ((int64_t)((uint32_t)r % p.seq) * half + (int64_t)group * V) * 2;
#pragma unroll
                for (int j = 0; j < V; j++) {
                    vec<float, 2> cs = load_vec<float, 2>(angle + 2 * j);
                    float sine = p.sign * cs.v[1], left = x[j];
                    x[j] = __fmaf_rn(left, cs.v[0], -__fmul_rn(y[j], sine));
                    y[j] = __fmaf_rn(y[j], cs.v[0], __fmul_rn(left, sine));
                }
                vec<T, V> left = pack<T, V>(x), right = pack<T, V>(y);
                store_vec<T, V>(at, left);
                store_vec<T, V>(at + half, right);
                unpack<T, V>(left, x);
                unpack<T, V>(right, y);
            }
#pragma unroll
            for (int j = 0; j < V; j++) {
                total[0][j] += x[j];
                total[1][j] += y[j];
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2 * V; j++) sums[(deep * 2 * V + j) * SUM_LANES + lane] = total[j / V][j % V];
    __syncthreads();
    if (deep != 0 || item >= p.items) return;
#pragma unroll
    for (int j = 0; j < 2 * V; j++)
        for (int d = 1; d < SUM_DEEP; d++) total[j / V][j % V] += sums[(d * 2 * V + j) * SUM_LANES + lane];
    store_sums<V>(p.parts + blockIdx.y * p.width + c, total[0]);
    store_sums<V>(p.parts + blockIdx.y * p.width + c + half, total[1]);
}

template <typename T, int V>
static int rope_sums_launch(struct cuda_ctx *ctx, const struct rope_args *a) {
    int64_t rows = a->batch * a->seq, half = a->head_size / 2, groups = half / V;
    int64_t heads = a->heads + 2 * (int64_t)a->kv_heads, width = heads * a->head_size;
    int64_t most = column_parts(rows, width), across = divide_up(heads * groups, (int64_t)SUM_LANES);
    if (most == 0) return cuda_refused(ctx, "rope: a row of sums exceeds the workspace");
    int64_t parts = lesser(most, divide_up((int64_t)SUM_BLOCKS, across));
    struct rope_sums_buffers<T> p = {
        (T *)a->qkv, a->cos_sin, (float *)ctx->workspace, rows, width, (uint32_t)a->seq, (uint32_t)groups,
            (uint32_t)(heads *groups),
            (uint32_t)((a->heads + a->kv_heads) * groups), a->inverse ? -1.0f : 1.0f
    };
    struct launch_shape shape = {dim3((unsigned)across, (unsigned)parts), dim3(SUM_LANES * SUM_DEEP), 0};
    struct combine_buffers<T> c = {
        (T *)a->dbias, NULL, (const float *)ctx->workspace, width, width, parts, a->accumulate
    };
    return launch<rope_sums_kernel<T, V>>(ctx, shape, p) == 0 ? combine_launch(ctx, c) : -1;
}

int cuda_op_rope(struct cuda_ctx *ctx, const struct rope_args *a) {
    int64_t rows = a->batch * a->seq, half = a->head_size / 2;
    if (a->head_size % 2) return cuda_refused(ctx, "rope: the head size must be even");
    if (rows == 0 || half == 0) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide = half % lanes<T>::count == 0 && aligned16(a->qkv);
        return with_width<T>(wide, [&](auto width) {
            constexpr int V = decltype(width)::value;
            if (a->dbias) return rope_sums_launch<T, V>(ctx, a);
            int32_t heads = a->heads + a->kv_heads;
            int64_t head_groups = divide_up((int64_t)heads, (int64_t)ROPE_HEADS);
            int64_t items = rows * head_groups * (half / V);
            if (items >= LARGEST_GRID) return cuda_refused(ctx, "more elements than one launch covers");
            struct rope_buffers<T> p = {
                (T *)a->qkv, a->cos_sin, (uint32_t)items, (uint32_t)a->seq, (uint32_t)(half / V),
                    (uint32_t)head_groups, (uint32_t)heads,
                    (int64_t)(a->heads + 2 * a->kv_heads) * a->head_size, a->inverse ? -1.0f : 1.0f
            };
            return launch_over<rope_kernel<T, V>>(ctx, items, ROPE_THREADS, p);
        });
    });
}
