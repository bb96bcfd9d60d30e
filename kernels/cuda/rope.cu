// Rotary position embedding, in place on the query and key heads of qkv.
#include "kernels/cuda/platform.h"

#define ROPE_THREADS 256
#define ROPE_HEADS   4  // heads a thread rotates by the angles it has loaded, at least

template <typename T>
struct rope_buffers {
    T *qkv;
    const float *cos_sin;
    uint32_t items, seq, pair_groups;  // groups of V pairs in a head
    uint32_t head_groups, heads;       // threads that share the heads of a row; heads to rotate
    int64_t width;                     // of a row of qkv
    float sign;
};

// Thread (row, head group, pair group), the last fastest: its V pairs in heads group, group +
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

int cuda_op_rope(struct cuda_ctx *ctx, const void *args) {
    const struct rope_args *a = static_cast<const struct rope_args *>(args);
    int64_t rows = a->batch * a->seq, half = a->head_size / 2;
    if (a->head_size % 2) return cuda_refused(ctx, "rope: the head size must be even");
    if (rows == 0 || half == 0) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide = half % lanes<T>::count == 0 && aligned16(a->qkv);
        return with_width<T>(wide, [&](auto width) {
            constexpr int V = decltype(width)::value;
            int32_t heads = a->heads + a->kv_heads;
            int64_t head_groups = divide_up((int64_t)heads, (int64_t)ROPE_HEADS);
            int64_t items = rows * head_groups * (half / V);
            if (items >= LARGEST_GRID) return cuda_refused(ctx, "rope: more elements than one launch covers");
            struct rope_buffers<T> p = {
                (T *)a->qkv, a->cos_sin, (uint32_t)items, (uint32_t)a->seq, (uint32_t)(half / V),
                    (uint32_t)head_groups, (uint32_t)heads,
                    (int64_t)(a->heads + 2 * a->kv_heads) * a->head_size, a->inverse ? -1.0f : 1.0f
            };
            struct launch_shape shape = flat_shape(divide_up(items, (int64_t)ROPE_THREADS), ROPE_THREADS);
            return launch(ctx, shape, rope_kernel<T, V>, p);
        });
    });
}
