// GELU, SwiGLU, sums of two buffers, and rows of a bias. The formulas are those of kernels/cpu/ops/activation.c.
#include "kernels/cuda/common/platform.h"

// ---------------------------------------------------------------- element by element
// Operations over n elements: out[i] = f(a[i]) or f(a[i], b[i]), in fp32, rounded once. A block covers
// MAP_VECTORS * MAP_THREADS vectors. A thread issues all its loads before it needs the first result and before
// its stores, so out may be one of the inputs.
#define MAP_THREADS 256
#define MAP_VECTORS 2  // per thread

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
    bool wide = aligned16(args.out) && aligned16(args.a) && aligned16(args.b);  // NULL is aligned
    return with_width<T>(wide, [&](auto width) {
        constexpr int V = decltype(width)::value;
        int64_t threads = divide_up(args.n, (int64_t)V * MAP_VECTORS);
        return launch_over<map_kernel<T, V, F>>(ctx, threads, MAP_THREADS, args, f);
    });
}

// ---------------------------------------------------------------- the activations
#define GELU_2C   1.59576912f  // 2 sqrt(2/pi)
#define GELU_A    0.044715f
#define GELU_FLAT 10.0f  // beyond it gelu' rounds to 1, or is within 1e-34 of 0

// 1/(1 + exp(-x)). The fast division is within two units in the last digit; it gives 0 if exp(-x) > 2^126.
template <typename T>
__device__ static inline float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + exp_for<T>(-x));
}

// 0.5 (1 + tanh(u)) = sigmoid(2u). This form keeps its relative precision where tanh is near -1.
template <typename T>
struct gelu_fn {
    static constexpr int inputs = 1;
    __device__ float operator()(float x, float) const {
        return x * sigmoid<T>(GELU_2C * x * fmaf(GELU_A * x, x, 1.0f));
    }
};

// a: x, b: dy. gelu'(x) = s + x s (1 - s) d(2u)/dx with s = sigmoid(2u) = 1/(1 + e), 1 - s = e s.
template <typename T>
struct gelu_slope_fn {
    static constexpr int inputs = 2;
    __device__ float operator()(float x, float dy) const {
        // Keeps e finite, which avoids 0 * infinity. NaN fails both comparisons and is kept.
        x = x > GELU_FLAT ? GELU_FLAT : x;
        x = x < -GELU_FLAT ? -GELU_FLAT : x;
        float x2 = x * x;
        float e = exp_for<T>(-GELU_2C * x * fmaf(GELU_A, x2, 1.0f));
        float s = __fdiv_rn(1.0f, 1.0f + e);  // e is up to 1e37, where the fast division gives 0
        float du2 = GELU_2C * fmaf(3.0f * GELU_A, x2, 1.0f);
        return dy * fmaf(x * s * (e * s), du2, s);
    }
};

int cuda_op_gelu_fwd(struct cuda_ctx *ctx, const struct gelu_args *a) {
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return map_launch(ctx, map_args<T>{(T *)a->y, (const T *)a->x, NULL, a->n}, gelu_fn<T>());
    });
}

int cuda_op_gelu_bwd(struct cuda_ctx *ctx, const struct gelu_args *a) {
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return map_launch(ctx, map_args<T>{(T *)a->y, (const T *)a->x, (const T *)a->dy, a->n},
                          gelu_slope_fn<T>());
    });
}

// ---------------------------------------------------------------- SwiGLU
// A thread computes V adjacent columns of one row. gate and up are `width` elements apart.
template <typename T>
struct swiglu_buffers {
    T *y;
    const T *gate_up, *dy;
    uint32_t groups, row_groups;  // groups of V columns: in all, and per row
};

template <typename T, int V>
__global__ void __launch_bounds__(MAP_THREADS) swiglu_fwd_kernel(struct swiglu_buffers<T> p) {
    uint32_t i = blockIdx.x * MAP_THREADS + threadIdx.x;
    if (i >= p.groups) return;
    int64_t row = i / p.row_groups, at = (row * p.row_groups + i) * V;  // = (2 row row_groups + column) V
    float gate[V], up[V];
    load_f32<T, V>(p.gate_up + at, gate);
    load_f32<T, V>(p.gate_up + at + (int64_t)p.row_groups * V, up);
#pragma unroll
    for (int j = 0; j < V; j++) gate[j] = gate[j] * sigmoid<T>(gate[j]) * up[j];
    store_f32<T, V>(p.y + (int64_t)i * V, gate);
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
template <typename T, int V>
__global__ void __launch_bounds__(MAP_THREADS) swiglu_bwd_kernel(struct swiglu_buffers<T> p) {
    uint32_t i = blockIdx.x * MAP_THREADS + threadIdx.x;
    if (i >= p.groups) return;
    int64_t row = i / p.row_groups, at = (row * p.row_groups + i) * V, width = (int64_t)p.row_groups * V;
    float gate[V], up[V], dy[V];
    load_f32<T, V>(p.gate_up + at, gate);
    load_f32<T, V>(p.gate_up + at + width, up);
    load_f32<T, V>(p.dy + (int64_t)i * V, dy);
#pragma unroll
    for (int j = 0; j < V; j++) {
        float g = gate[j], s = sigmoid<T>(g);
        gate[j] = dy[j] * up[j] * (s * fmaf(g, 1.0f - s, 1.0f));
        up[j] = dy[j] * (g * s);
    }
    store_f32<T, V>(p.y + at, gate);
    store_f32<T, V>(p.y + at + width, up);
}

static int swiglu_launch(struct cuda_ctx *ctx, const struct swiglu_args *a, bool backward) {
    if (a->rows == 0 || a->width == 0) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide =
            a->width % lanes<T>::count == 0 && aligned16(a->y) && aligned16(a->gate_up) && aligned16(a->dy);
        return with_width<T>(wide, [&](auto width_of) {
            constexpr int V = decltype(width_of)::value;
            int64_t groups = a->rows * (a->width / V);
            if (groups >= LARGEST_GRID) return cuda_refused(ctx, "more elements than one launch covers");
            struct swiglu_buffers<T> p = {
                (T *)a->y, (const T *)a->gate_up, (const T *)a->dy, (uint32_t)groups, (uint32_t)(a->width / V)
            };
            return backward ? launch_over<swiglu_bwd_kernel<T, V>>(ctx, groups, MAP_THREADS, p)
                            : launch_over<swiglu_fwd_kernel<T, V>>(ctx, groups, MAP_THREADS, p);
        });
    });
}

int cuda_op_swiglu_fwd(struct cuda_ctx *ctx, const struct swiglu_args *a) {
    return swiglu_launch(ctx, a, false);
}

int cuda_op_swiglu_bwd(struct cuda_ctx *ctx, const struct swiglu_args *a) {
    return swiglu_launch(ctx, a, true);
}

struct add_fn {
    static constexpr int inputs = 2;
    __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};

int cuda_op_add(struct cuda_ctx *ctx, const struct add_args *a) {
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return map_launch(ctx, map_args<T>{(T *)a->y, (const T *)a->a, (const T *)a->b, a->n}, add_fn());
    });
}

template <typename T>
struct row_buffers {
    T *c;           // (M,N), ld elements from row to row
    const T *bias;  // (N)
    int64_t n, ld;
};

// Block (row, x): MAP_THREADS elements of a row.
template <typename T>
__global__ void __launch_bounds__(MAP_THREADS) bias_rows_kernel(struct row_buffers<T> p) {
    int64_t j = (int64_t)blockIdx.y * MAP_THREADS + threadIdx.x;
    if (j < p.n) p.c[(int64_t)blockIdx.x * p.ld + j] = p.bias[j];
}

int cuda_op_bias_rows(struct cuda_ctx *ctx, const struct matmul_args *m) {
    if (m->m >= LARGEST_GRID || m->n >= (int64_t)65535 * MAP_THREADS)
        return cuda_refused(ctx, "more rows or columns than one launch covers");
    return with_type(ctx, m->dt, [&](auto type) {
        using T = decltype(type);
        struct row_buffers<T> p = {
            (T *)m->c, (const T *)m->bias, m->n, matmul_ldc(m)
        };
        struct launch_shape shape = {dim3((unsigned)m->m, (unsigned)divide_up(m->n, (int64_t)MAP_THREADS)),
                                     dim3(MAP_THREADS), 0};
        return launch<bias_rows_kernel<T>>(ctx, shape, p);
    });
}
