// Elementwise operations over n elements: out[i] = f(a[i]) or f(a[i], b[i]), in fp32, rounded once.
// A block covers MAP_VECTORS * MAP_THREADS vectors; all loads of a thread are issued before the first
// result is needed, and before its stores: out may be one of the inputs.
#ifndef STARRING_KERNELS_CUDA_COMMON_MAP_H
#define STARRING_KERNELS_CUDA_COMMON_MAP_H

#include "kernels/cuda/common/platform.h"

#define MAP_THREADS 256
#define MAP_VECTORS 2  // a thread

template <typename T>
struct map_args {
    T *out;
    const T *a, *b;  // b NULL: f ignores its second argument
    int64_t n;
};

template <typename T, int V, typename F>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(struct map_args<T> p, F f) {
    int64_t first = ((int64_t)blockIdx.x * MAP_VECTORS * MAP_THREADS + threadIdx.x) * V;
    vec<T, V> a[MAP_VECTORS], b[MAP_VECTORS];
#pragma unroll
    for (int k = 0; k < MAP_VECTORS; k++) {
        int64_t i = first + (int64_t)k * MAP_THREADS * V;
        if (i + V > p.n) continue;
        a[k] = load_vec<T, V>(p.a + i);
        if (F::inputs == 2) b[k] = load_vec<T, V>(p.b + i);
    }
#pragma unroll
    for (int k = 0; k < MAP_VECTORS; k++) {
        int64_t i = first + (int64_t)k * MAP_THREADS * V;
        if (i + V <= p.n) {
            float out[V];
#pragma unroll
            for (int j = 0; j < V; j++)
                out[j] = f(to_f32(a[k].v[j]), F::inputs == 2 ? to_f32(b[k].v[j]) : 0.0f);
            store_f32<T, V>(p.out + i, out);
        } else {
            for (int64_t j = i; j < p.n; j++)
                from_f32(f(to_f32(p.a[j]), F::inputs == 2 ? to_f32(p.b[j]) : 0.0f), &p.out[j]);
        }
    }
}

// F::inputs: 1 or 2; f(float a, float b) -> float.
template <typename T, typename F>
static inline int map_launch(struct cuda_ctx *ctx, const struct map_args<T> &args, F f) {
    if (args.n == 0) return 0;
    bool wide = aligned16(args.out) && aligned16(args.a) && aligned16(args.b);  // NULL is aligned
    return with_width<T>(wide, [&](auto width) {
        constexpr int V = decltype(width)::value;
        int64_t blocks = divide_up(args.n, (int64_t)V * MAP_VECTORS * MAP_THREADS);
        if (blocks >= LARGEST_GRID) return cuda_refused(ctx, "more elements than one launch covers");
        return launch<map_kernel<T, V, F>>(ctx, flat_shape(blocks, MAP_THREADS), args, f);
    });
}

#endif
