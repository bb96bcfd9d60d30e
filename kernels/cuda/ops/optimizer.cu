// The optimizer's operations: exact sum of squares, the step's decision, and the updates of kernels/update.h. Every
// operation is written with its rounding, so that the bits are those of kernels/cpu/ops/optimizer.c and
// kernels/operations.c (update_decide).
#include "kernels/cuda/common/platform.h"

// ---------------------------------------------------------------- sum of squares
// operations.h demands index order within a block of SUMSQ_BLOCK elements, so one thread sums a block. A warp
// processes 32 blocks. It reads them in slices of 128 bytes per block, whole lines at a time, and transposes
// each slice in shared memory:
//
//     lanes read     block 0: | word 0 .. 31 |        and lane b then adds   block b, word 0, 1, ..
//                    block 1: | word 0 .. 31 | ...
//
// Bytes: each element once. 4 KB are in flight per warp, with 48 warps per multiprocessor (34 KB of shared
// memory per block), far more than the latency needs. The conversion to double, 16 per clock, takes 10 of every
// 16 clocks that the memory needs for 16-bit elements.
#define SUMSQ_WARPS 8
#define SLICE_WORDS 32                 // of 4 bytes
#define SLICE_PITCH (SLICE_WORDS + 1)  // no two lanes use the same bank, in either access

template <typename T>
struct sumsq_buffers {
    struct exact_sum *out;
    const T *x;
    int64_t blocks;
};

__device__ static inline void add_limb(int64_t *limb, uint64_t x) {
    if (x) atomicAdd(reinterpret_cast<unsigned long long *>(limb), (unsigned long long)x);
}

// Returns x summed over the warp.
__device__ static inline uint64_t warp_add(uint32_t x) {
    return __reduce_add_sync(FULL_WARP, x & 0xffffu) +
           ((uint64_t)__reduce_add_sync(FULL_WARP, x >> 16) << 16);
}

struct min_of {
    __device__ int operator()(int a, int b) const { return lesser(a, b); }
};

// exact_sum_add of kernels/exact_sum.h for every lane's x >= 0, from the number's bits: x = mantissa
// 2^(exponent - 1075). Lanes whose digits begin at the same limb, usually all lanes, are first added together.
// These are integers, so the order does not matter. Shared memory has no 64-bit addition of its own: 256
// threads that compare and swap one limb would take longer than their loads.
__device__ static inline void add_exact(struct exact_sum *s, double x) {
    uint64_t bits = (uint64_t)__double_as_longlong(x),
             mantissa = (bits & 0xfffffffffffffu) | (uint64_t)1 << 52;
    int shift = x > 0.0 ? (int)(bits >> 52) - 1075 + 320 : 0;  // a square of a float is a normal double
    if (shift < 0) {
        mantissa >>= -shift;
        shift = 0;
    }
    int limb = x > 0.0 ? shift / 32 : EXACT_SUM_LIMBS, r = shift % 32;
    // mantissa << r, under 2^85, in three digits.
    uint64_t low = (mantissa & 0xffffffffu) << r, high = ((mantissa >> 32) << r) + (low >> 32);
    uint32_t digit[3] = {(uint32_t)low, (uint32_t)high, (uint32_t)(high >> 32)};
    for (;;) {
        int first = warp_reduce(limb, min_of());
        if (first == EXACT_SUM_LIMBS) return;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            uint64_t sum = warp_add(limb == first ? digit[k] : 0);
            if (threadIdx.x % WARP == 0 && first + k < EXACT_SUM_LIMBS) add_limb(&s->limb[first + k], sum);
        }
        if (limb == first) limb = EXACT_SUM_LIMBS;
    }
}

// Adds the squares of the elements in one word; T is 4 or 2 bytes.
template <typename T>
__device__ static inline void add_squares(uint32_t word, double *total, int *bad) {
    constexpr int COUNT = 4 / (int)sizeof(T);
    union {
        uint32_t word;
        T v[COUNT];
    } u;
    u.word = word;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        float x = to_f32(u.v[k]);
        *bad += !is_finite(x);
        *total = __fma_rn((double)x, (double)x, *total);  // the square is exact, so only the sum rounds
    }
}

template <typename T>
__global__ void __launch_bounds__(SUMSQ_WARPS *WARP) sumsq_kernel(struct sumsq_buffers<T> p) {
    SHARED_ARRAY(struct exact_sum, sum, 1);
    SHARED_ARRAY(uint32_t, slices, SUMSQ_WARPS * WARP * SLICE_PITCH);
    constexpr int WORDS = SUMSQ_BLOCK * (int)sizeof(T) / 4;  // of a block of elements
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    if (threadIdx.x < EXACT_SUM_WORDS) reinterpret_cast<int64_t *>(sum)[threadIdx.x] = 0;
    __syncthreads();
    uint32_t *slice = slices + warp * WARP * SLICE_PITCH;
    int64_t first = ((int64_t)blockIdx.x * SUMSQ_WARPS + warp) * WARP;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(p.x) + first * WORDS;
    double total = 0.0;
    int bad = 0;
    for (int at = 0; at < WORDS; at += SLICE_WORDS) {
        // Eight lanes read the 128 bytes of a block, four words each; four blocks at a time.
        vec<uint32_t, 4> read[8] = {};
#pragma unroll
        for (int k = 0; k < 8; k++) {
            int block = k * 4 + lane / 8;
            if (first + block < p.blocks)
                read[k] = load_vec<uint32_t, 4>(words + block * WORDS + at + lane % 8 * 4);
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                slice[(k * 4 + lane / 8) * SLICE_PITCH + lane % 8 * 4 + j] = read[k].v[j];
        __syncwarp();
        if (first + lane < p.blocks)
            for (int j = 0; j < SLICE_WORDS; j++) add_squares<T>(slice[lane * SLICE_PITCH + j], &total, &bad);
        __syncwarp();
    }
    add_exact(sum, bad ? 0.0 : total);
    uint64_t all_bad = warp_add((uint32_t)bad);
    if (lane == 0) add_limb(&sum->nonfinite, all_bad);
    __syncthreads();
    if (threadIdx.x < EXACT_SUM_WORDS) {
        unsigned long long mine = (unsigned long long)reinterpret_cast<int64_t *>(sum)[threadIdx.x];
        if (mine) atomicAdd(reinterpret_cast<unsigned long long *>(p.out) + threadIdx.x, mine);
    }
}

int cuda_op_sumsq(struct cuda_ctx *ctx, const struct sumsq_args *a) {
    if (a->n % SUMSQ_BLOCK) return cuda_refused(ctx, "sumsq: the count must be a multiple of 256");
    if (!aligned16(a->x))
        return cuda_refused(ctx, "sumsq: the elements must start at a multiple of 16 bytes");
    if (a->zero_out && cuda_checked(ctx, cudaMemsetAsync(a->out, 0, sizeof *a->out, ctx->stream)) != 0)
        return -1;
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        struct sumsq_buffers<T> p = {
            a->out, (const T *)a->x, a->n / SUMSQ_BLOCK
        };
        return launch_over<sumsq_kernel<T>>(ctx, p.blocks, SUMSQ_WARPS * WARP, p);
    });
}

// ---------------------------------------------------------------- the decision
// exact_sum_value of kernels/exact_sum.h.
__device__ static inline double exact_value(const struct exact_sum *s) {
    int64_t digit[EXACT_SUM_LIMBS], carry = 0;
    for (int i = 0; i < EXACT_SUM_LIMBS; i++) {
        int64_t v = s->limb[i] + carry;
        digit[i] = v & 0xffffffff;
        carry = v >> 32;
    }
    double x = (double)carry;
    for (int i = EXACT_SUM_LIMBS - 1; i >= 0; i--)
        x = __dadd_rn(__dmul_rn(x, 4294967296.0), (double)digit[i]);
    return ldexp(x, -320);
}

__global__ void decide_kernel(struct decide_args a) {
    struct update_scalars u = {0.0f, 1, (double)INFINITY};
    if (a.sum->nonfinite <= 0) {
        double scale = (double)a.loss_scale, clip = (double)a.clip, factor = 1.0;
        u.skip = 0;
        u.norm = __ddiv_rn(__dsqrt_rn(exact_value(a.sum)), scale);
        if (a.clip > 0.0f && u.norm > clip) factor = __ddiv_rn(clip, __dadd_rn(u.norm, 1e-6));
        u.grad_scale = (float)__ddiv_rn(factor, scale);
    }
    *a.scalars = u;
}

int cuda_op_decide(struct cuda_ctx *ctx, const struct decide_args *a) {
    return launch<decide_kernel>(ctx, flat_shape(1, 1), *a);
}

// ---------------------------------------------------------------- updates
#define UPDATE_THREADS 256
#define UPDATE_VECTOR  4

// Groups are few, and their ends are kernel parameters, which a warp reads together. A search costs a fraction
// of the latency of the warp's loads, which are issued before it.
__device__ static inline float group_decay(const struct update_args &a, int64_t i) {
    int g = 0;
    while (a.ends[g] <= i) g++;
    return a.weight_decay[g];
}

__device__ static inline float code_of(const struct update_args &a, int64_t i) {
    return onebit_value(&a.codes[i / ONEBIT_BLOCK], i % ONEBIT_BLOCK);
}

// A thread updates V elements of one group: 16 bytes of each fp32 array. states and variant are the same for all
// threads, so their branches cost nothing beside the loads.
template <typename R, typename T, int V>
__global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(struct update_args a, int states, bool variant) {
    if (a.scalars->skip) return;
    const float scale = a.scalars->grad_scale;
    const int written = states - R::FROZEN;
    const T *grad = static_cast<const T *>(a.grad);
    T *weight = static_cast<T *>(a.weight);
    bool store_weight = weight && a.weight != a.master;
    int64_t i = ((int64_t)blockIdx.x * UPDATE_THREADS + threadIdx.x) * V;
    if (i + V <= a.n) {
        float g[V], p[V], m[V] = {}, v[V] = {};
        if (!a.codes) load_f32<T, V>(grad + i, g);
        load_f32<float, V>(a.master + i, p);
        if (states > 0) load_f32<float, V>(a.m + i, m);
        if (states > 1) load_f32<float, V>(a.v + i, v);
        float decay = group_decay(a, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            float value = a.codes ? code_of(a, i + j) : g[j] * scale;
            struct update_element e = {p[j], value, decay, m[j], v[j]};
            R::element(a, &e, states, variant);
            p[j] = e.p, m[j] = e.m, v[j] = e.v;
        }
        store_f32<float, V>(a.master + i, p);
        if (written > 0) store_f32<float, V>(a.m + i, m);
        if (written > 1) store_f32<float, V>(a.v + i, v);
        if (store_weight) store_f32<T, V>(weight + i, p);
        return;
    }
    for (; i < a.n; i++) {
        float value = a.codes ? code_of(a, i) : to_f32(grad[i]) * scale;
        struct update_element e = {a.master[i], value, group_decay(a, i), states > 0 ? a.m[i] : 0.0f,
                                   states > 1 ? a.v[i] : 0.0f};
        R::element(a, &e, states, variant);
        a.master[i] = e.p;
        if (written > 0) a.m[i] = e.m;
        if (written > 1) a.v[i] = e.v;
        if (store_weight) from_f32(e.p, &weight[i]);
    }
}

// Wide vectors need groups that do not end within a vector. A model's tensors begin at multiples of 128
// elements, so its groups do not.
template <typename R>
static int update(struct cuda_ctx *ctx, const struct update_args *a, int states, bool variant) {
    bool wide = aligned16(a->master) && aligned16(a->m) && aligned16(a->v) && aligned16(a->weight) &&
                aligned16(a->grad);
    for (int g = 0; g + 1 < a->groups; g++) wide = wide && a->ends[g] % UPDATE_VECTOR == 0;
    int64_t threads = divide_up(a->n, (int64_t)(wide ? UPDATE_VECTOR : 1));
    if (a->groups < 1 || a->groups > UPDATE_GROUPS_MAX || a->ends[a->groups - 1] != a->n)
        return cuda_refused(ctx, "an update: 1 to 24 groups, the last of which ends with the elements");
    if (a->codes && a->n % ONEBIT_BLOCK)
        return cuda_refused(ctx, "an update: a code's count must be a multiple of 256");
    if ((states > 0 && !a->m) || (states > 1 && !a->v))
        return cuda_refused(ctx, "an update: a state is missing");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return wide ? launch_over<update_kernel<R, T, UPDATE_VECTOR>>(ctx, threads, UPDATE_THREADS, *a,
                                                                      states, variant)
                    : launch_over<update_kernel<R, T, 1>>(ctx, threads, UPDATE_THREADS, *a, states, variant);
    });
}

#define CUDA_UPDATE(first, OP, name, states, frozen, variant)                                           \
    struct name##_row {                                                                                 \
        static constexpr int FROZEN = frozen;                                                           \
        __device__ static inline void element(const struct update_args &args, struct update_element *e, \
                                              int count, bool form) {                                   \
            update_##name(&args, e, count, form);                                                       \
        }                                                                                               \
    };                                                                                                  \
    int cuda_op_##name(struct cuda_ctx *ctx, const struct update_args *a) {                             \
        return update<name##_row>(ctx, a, states, variant);                                             \
    }
UPDATES(CUDA_UPDATE, )
