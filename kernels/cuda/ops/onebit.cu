// 1-bit Adam's operations (kernels/codec/onebit.h). A block of 256 elements is a warp's: lane l has elements l, l+32, ..,
// so that loads are whole lines, a word of signs is one ballot, and the lanes are those of the scale's sum. Every
// operation is written with its rounding: the bits are those of kernels/cpu/ops/onebit.c.
#include "kernels/cuda/common/platform.h"

#define ONEBIT_WARPS   8
#define ONEBIT_THREADS (ONEBIT_WARPS * WARP)

// What a block says of the lane's element of word w.
__device__ static inline float said(const struct onebit_block *b, int w, int lane) {
    return b->sign[w] >> lane & 1 ? b->scale : -b->scale;
}

// Lane 0's sum is the contract's; every lane gets it.
__device__ static inline double lanes_sum(double x) {
#pragma unroll
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2) x = __dadd_rn(x, __shfl_down_sync(FULL_WARP, x, d));
    return __shfl_sync(FULL_WARP, x, 0);
}

// x: the lane's elements; becomes what *out does not say. v 0: masked.
__device__ static inline void encode(struct onebit_block *out, float x[ONEBIT_WORDS], const float v[ONEBIT_WORDS],
                                     int lane) {
    double sum = 0.0;
    int counted = 0;
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        if (v[w] == 0.0f) x[w] = 0.0f;
        counted += __popc(__ballot_sync(FULL_WARP, v[w] != 0.0f));
        sum = __fma_rn((double)x[w], (double)x[w], sum);
    }
    sum = lanes_sum(sum);
    float scale = counted ? (float)__dsqrt_rn(__ddiv_rn(sum, (double)counted)) : 0.0f;
    if (lane == 0) out->scale = scale;
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        bool plus = x[w] >= 0.0f, open = v[w] != 0.0f;
        uint32_t word = __ballot_sync(FULL_WARP, plus && open);
        if (lane == 0) out->sign[w] = word;
        if (open) x[w] = __fadd_rn(x[w], plus ? -scale : scale);
    }
}

template <typename T>
__global__ void __launch_bounds__(ONEBIT_THREADS) onebit_encode_kernel(struct onebit_encode_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t block = (int64_t)blockIdx.x * ONEBIT_WARPS + (int)threadIdx.x / WARP;
    if (a.scalars->skip || block >= a.n / ONEBIT_BLOCK) return;
    const T *grad = static_cast<const T *>(a.grad);
    float x[ONEBIT_WORDS], v[ONEBIT_WORDS], scale = a.own->grad_scale, rest1 = __fadd_rn(1.0f, -a.beta1);
    int64_t at = block * ONEBIT_BLOCK + lane;
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        int64_t i = at + w * WARP;
        float m = __fmaf_rn(a.beta1, a.m[i], __fmul_rn(rest1, __fmul_rn(to_f32(grad[i]), scale)));
        x[w] = __fadd_rn(a.error[i], m);
        v[w] = a.v[i];
    }
    encode(&a.out[block], x, v, lane);
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) a.error[at + w * WARP] = x[w];
}

// The launch for n elements; blocks 0: there is nothing to do.
static int blocks_of(struct cuda_ctx *ctx, int64_t n, int64_t *blocks) {
    *blocks = divide_up(n / ONEBIT_BLOCK, (int64_t)ONEBIT_WARPS);
    if (n % ONEBIT_BLOCK) return cuda_refused(ctx, "1-bit code: the count must be a multiple of 256");
    if (*blocks >= LARGEST_GRID) return cuda_refused(ctx, "1-bit code: more elements than one launch covers");
    return 0;
}

int cuda_op_onebit_encode(struct cuda_ctx *ctx, const void *args) {
    const struct onebit_encode_args *a = static_cast<const struct onebit_encode_args *>(args);
    int64_t blocks;
    if (blocks_of(ctx, a->n, &blocks)) return -1;
    if (!blocks) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        return launch<onebit_encode_kernel<decltype(type)>>(ctx, flat_shape(blocks, ONEBIT_THREADS), *a);
    });
}

__global__ void __launch_bounds__(ONEBIT_THREADS) onebit_sum_kernel(struct onebit_sum_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t block = (int64_t)blockIdx.x * ONEBIT_WARPS + (int)threadIdx.x / WARP, blocks = a.n / ONEBIT_BLOCK;
    if (a.scalars->skip || block >= blocks) return;
    float x[ONEBIT_WORDS], v[ONEBIT_WORDS], part = __fdiv_rn(1.0f, (float)a.ranks);
    int64_t at = block * ONEBIT_BLOCK + lane;
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) x[w] = said(&a.in[block], w, lane);
    for (int r = 1; r < a.ranks; r++)
#pragma unroll
        for (int w = 0; w < ONEBIT_WORDS; w++)
            x[w] = __fadd_rn(x[w], said(&a.in[r * blocks + block], w, lane));
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        x[w] = __fadd_rn(a.error[at + w * WARP], __fmul_rn(x[w], part));
        v[w] = a.v[at + w * WARP];
    }
    encode(&a.out[block], x, v, lane);
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) a.error[at + w * WARP] = x[w];
}

int cuda_op_onebit_sum(struct cuda_ctx *ctx, const void *args) {
    const struct onebit_sum_args *a = static_cast<const struct onebit_sum_args *>(args);
    int64_t blocks;
    if (blocks_of(ctx, a->n, &blocks)) return -1;
    if (a->ranks < 1) return cuda_refused(ctx, "1-bit code: a sum over no ranks");
    return blocks ? launch<onebit_sum_kernel>(ctx, flat_shape(blocks, ONEBIT_THREADS), *a) : 0;
}

// ---------------------------------------------------------------- the update
template <typename T>
__global__ void __launch_bounds__(ONEBIT_THREADS) adam_frozen_kernel(struct adam_frozen_args a) {
    int64_t i = (int64_t)blockIdx.x * ONEBIT_THREADS + threadIdx.x;
    if (a.scalars->skip || i >= a.n) return;
    int g = 0;
    while (a.ends[g] <= i) g++;
    float p = a.master[i], m = 0.0f, v = a.v[i];
    if (v != 0.0f && a.momentum) {
        int at = (int)(i % ONEBIT_BLOCK);
        m = said(&a.momentum[i / ONEBIT_BLOCK], at / WARP, at % WARP);
    } else if (v != 0.0f) {
        float grad = __fmul_rn(to_f32(static_cast<const T *>(a.grad)[i]), a.scalars->grad_scale);
        m = __fmaf_rn(a.beta1, a.m[i], __fmul_rn(__fadd_rn(1.0f, -a.beta1), grad));
    }
    float u = __fdiv_rn(m, __fadd_rn(__fsqrt_rn(v), a.eps));
    u = __fmaf_rn(a.weight_decay[g], p, u);
    p = __fmaf_rn(-a.lr, u, p);
    a.master[i] = p;
    a.m[i] = m;
    if (a.weight && a.weight != a.master) from_f32(p, static_cast<T *>(a.weight) + i);
}

int cuda_op_adam_frozen(struct cuda_ctx *ctx, const void *args) {
    const struct adam_frozen_args *a = static_cast<const struct adam_frozen_args *>(args);
    int64_t blocks = divide_up(a->n, (int64_t)ONEBIT_THREADS);
    if (a->groups < 1 || a->groups > UPDATE_GROUPS_MAX || a->ends[a->groups - 1] != a->n)
        return cuda_refused(ctx, "adam_frozen: 1 to 24 groups, the last of which ends with the elements");
    if (a->momentum && a->n % ONEBIT_BLOCK)
        return cuda_refused(ctx, "1-bit code: the count must be a multiple of 256");
    if (blocks >= LARGEST_GRID) return cuda_refused(ctx, "adam_frozen: more elements than one launch covers");
    if (!blocks) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        return launch<adam_frozen_kernel<decltype(type)>>(ctx, flat_shape(blocks, ONEBIT_THREADS), *a);
    });
}
