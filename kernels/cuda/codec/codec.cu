// The codes of gradients (kernels/codec/codec.h). A block of 256 elements is a warp's, as in ../ops/onebit.cu; top-k of a
// partition is one thread block's. Every operation is written with its rounding: the bits are those of
// kernels/cpu/ops/codec.c.
#include "kernels/codec/codec.h"

#include "kernels/cuda/common/platform.h"

#define CODE_WARPS   8
#define CODE_THREADS (CODE_WARPS * WARP)
#define PER_LANE     (CODE_BLOCK / WARP)
#define TOPK_THREADS 1024
#define DIGITS       256

__device__ static inline uint32_t size_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

template <typename T>
__device__ static inline float element_of(const struct code_encode_args &a, int64_t i) {
    return __fmaf_rn(a.error[i], a.factor, to_f32(static_cast<const T *>(a.grad)[i]));
}

__device__ static inline void encode_onebit(struct onebit_block *out, const float x[PER_LANE], int lane) {
    double sum = 0.0;
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) sum = __fma_rn((double)x[w], (double)x[w], sum);
#pragma unroll
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2) sum = __dadd_rn(sum, __shfl_down_sync(FULL_WARP, sum, d));
    float scale = (float)__dsqrt_rn(__ddiv_rn(sum, (double)CODE_BLOCK));
    if (lane == 0) out->scale = is_finite(scale) ? scale : __uint_as_float(0x7f800000u);
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) {
        uint32_t word = __ballot_sync(FULL_WARP, x[w] >= 0.0f);
        if (lane == 0) out->sign[w] = word;
    }
}

__device__ static inline void encode_int8(struct int8_block *out, const float x[PER_LANE], int lane) {
    uint32_t most = 0;
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) most = greater(most, size_bits(x[w]));
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) most = greater(most, __shfl_down_sync(FULL_WARP, most, d));
    most = __shfl_sync(FULL_WARP, most, 0);
    bool finite = most < 0x7f800000u;
    float scale = finite ? __fdiv_rn(__uint_as_float(most), 127.0f) : __uint_as_float(0x7f800000u);
    bool some = finite && scale > 0.0f;
    if (lane == 0) out->scale = scale;
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) {
        float q = some ? rintf(__fdiv_rn(x[w], scale)) : 0.0f;
        out->q[w * WARP + lane] = (int8_t)(q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q);
    }
}

template <typename T>
__global__ void __launch_bounds__(CODE_THREADS) code_blocks_kernel(struct code_encode_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t block = (int64_t)blockIdx.x * CODE_WARPS + (int)threadIdx.x / WARP;
    if (block >= a.n / CODE_BLOCK) return;
    float x[PER_LANE];
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) x[w] = element_of<T>(a, block * CODE_BLOCK + w * WARP + lane);
    if (a.format.kind == CODE_ONEBIT)
        encode_onebit(static_cast<struct onebit_block *>(a.out) + block, x, lane);
    else
        encode_int8(static_cast<struct int8_block *>(a.out) + block, x, lane);
}

// What a thread block shares while it selects.
struct topk_state {
    uint32_t count[DIGITS];
    uint32_t found, known;
    int64_t rest;                          // kept among those whose known bits are found's
    uint32_t larger[WARP], equal[WARP];    // of each warp's elements of a row
    int64_t done, equals;                  // so far
};

// The magnitude of the kept-th largest: eight bits a round, the highest first.
template <typename T>
__device__ static void find_least(const struct code_encode_args &a, int64_t kept, struct topk_state *s) {
    if (threadIdx.x == 0) {
        s->found = s->known = 0;
        s->rest = kept;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < DIGITS) s->count[threadIdx.x] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < a.n; i += TOPK_THREADS) {
            uint32_t size = size_bits(element_of<T>(a, i));
            if ((size & s->known) == s->found) atomicAdd(&s->count[size >> shift & 255u], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t digit = DIGITS - 1;
            while (s->rest > (int64_t)s->count[digit]) s->rest -= s->count[digit--];
            s->found |= digit << shift;
            s->known |= 255u << shift;
        }
        __syncthreads();
    }
}

// Rows of TOPK_THREADS elements: where each of a row's kept elements goes follows from counts of those before it.
template <typename T>
__global__ void __launch_bounds__(TOPK_THREADS) topk_kernel(struct code_encode_args a, int64_t kept) {
    SHARED_ARRAY(struct topk_state, state, 1);
    struct topk_state *s = &state[0];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    uint32_t before = (1u << lane) - 1u, *index = static_cast<uint32_t *>(a.out);
    float *value = reinterpret_cast<float *>(index + kept);
    find_least<T>(a, kept, s);
    if (threadIdx.x == 0) s->done = s->equals = 0;
    for (int64_t row = 0; row < a.n; row += TOPK_THREADS) {
        int64_t i = row + threadIdx.x;
        float x = i < a.n ? element_of<T>(a, i) : 0.0f;
        bool is_larger = i < a.n && size_bits(x) > s->found, is_equal = i < a.n && size_bits(x) == s->found;
        uint32_t larger = __ballot_sync(FULL_WARP, is_larger), equal = __ballot_sync(FULL_WARP, is_equal);
        if (lane == 0) {
            s->larger[warp] = (uint32_t)__popc(larger);
            s->equal[warp] = (uint32_t)__popc(equal);
        }
        __syncthreads();
        int64_t equals = s->equals + __popc(equal & before), at = s->done + __popc(larger & before);
        for (int w = 0; w < warp; w++) {
            equals += s->equal[w];
            at += s->larger[w];
        }
        // Of those before it in the row, as many equal ones are kept as there is room for.
        at += lesser(equals, s->rest) - lesser(s->equals, s->rest);
        if (is_larger || (is_equal && equals < s->rest)) {
            index[at] = (uint32_t)i;
            value[at] = x;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int64_t was = lesser(s->equals, s->rest);
            for (int w = 0; w < TOPK_THREADS / WARP; w++) {
                s->done += s->larger[w];
                s->equals += s->equal[w];
            }
            s->done += lesser(s->equals, s->rest) - was;
        }
        __syncthreads();
    }
}

int cuda_op_code_encode(struct cuda_ctx *ctx, const void *args) {
    const struct code_encode_args *a = static_cast<const struct code_encode_args *>(args);
    int64_t blocks = divide_up(a->n / CODE_BLOCK, (int64_t)CODE_WARPS), kept = code_kept(a->format.share, a->n);
    if (a->n % CODE_BLOCK) return cuda_refused(ctx, "codes: the count must be a multiple of 256");
    if (blocks >= LARGEST_GRID) return cuda_refused(ctx, "codes: more elements than one launch covers");
    if (!blocks) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        if (a->format.kind == CODE_TOPK)
            return launch<topk_kernel<decltype(type)>>(ctx, flat_shape(1, TOPK_THREADS), *a, kept);
        return launch<code_blocks_kernel<decltype(type)>>(ctx, flat_shape(blocks, CODE_THREADS), *a);
    });
}

template <typename T>
__global__ void __launch_bounds__(CODE_THREADS) code_error_kernel(struct code_error_args a) {
    int64_t i = (int64_t)blockIdx.x * CODE_THREADS + threadIdx.x;
    if (i < a.n) a.error[i] = __fmaf_rn(a.error[i], a.factor, to_f32(static_cast<const T *>(a.grad)[i]));
}

int cuda_op_code_error(struct cuda_ctx *ctx, const void *args) {
    const struct code_error_args *a = static_cast<const struct code_error_args *>(args);
    int64_t blocks = divide_up(a->n, (int64_t)CODE_THREADS);
    if (blocks >= LARGEST_GRID) return cuda_refused(ctx, "codes: more elements than one launch covers");
    if (!blocks) return 0;
    return with_type(ctx, a->dt, [&](auto type) {
        return launch<code_error_kernel<decltype(type)>>(ctx, flat_shape(blocks, CODE_THREADS), *a);
    });
}

// ---------------------------------------------------------------- what a code says
__device__ static inline void use(float *out, float said, enum code_use how) {
    *out = how == CODE_SET ? said : how == CODE_PLUS ? __fadd_rn(*out, said) : __fadd_rn(*out, -said);
}

__global__ void __launch_bounds__(CODE_THREADS) code_add_kernel(struct code_add_args a) {
    int64_t i = (int64_t)blockIdx.x * CODE_THREADS + threadIdx.x, block = i / CODE_BLOCK;
    int at = (int)(i % CODE_BLOCK);
    if (i >= a.n) return;
    if (a.format.kind == CODE_ONEBIT) {
        const struct onebit_block *b = static_cast<const struct onebit_block *>(a.code) + block;
        use(a.out + i, b->sign[at / 32] >> at % 32 & 1 ? b->scale : -b->scale, a.use);
    } else {
        const struct int8_block *b = static_cast<const struct int8_block *>(a.code) + block;
        use(a.out + i, __fmul_rn(b->scale, (float)b->q[at]), a.use);
    }
}

// Of topk, = : what is not named.
__global__ void __launch_bounds__(CODE_THREADS) code_clear_kernel(struct code_add_args a) {
    int64_t i = (int64_t)blockIdx.x * CODE_THREADS + threadIdx.x;
    if (i < a.n) a.out[i] = 0.0f;
}

__global__ void __launch_bounds__(CODE_THREADS) topk_add_kernel(struct code_add_args a, int64_t kept) {
    int64_t i = (int64_t)blockIdx.x * CODE_THREADS + threadIdx.x;
    const uint32_t *index = static_cast<const uint32_t *>(a.code);
    const float *value = reinterpret_cast<const float *>(index + kept);
    if (i < kept && index[i] < a.n) use(a.out + index[i], value[i], a.use);
}

int cuda_op_code_add(struct cuda_ctx *ctx, const void *args) {
    const struct code_add_args *a = static_cast<const struct code_add_args *>(args);
    int64_t blocks = divide_up(a->n, (int64_t)CODE_THREADS), kept = code_kept(a->format.share, a->n);
    if (a->n % CODE_BLOCK) return cuda_refused(ctx, "codes: the count must be a multiple of 256");
    if (blocks >= LARGEST_GRID) return cuda_refused(ctx, "codes: more elements than one launch covers");
    if (!blocks) return 0;
    if (a->format.kind != CODE_TOPK)
        return launch<code_add_kernel>(ctx, flat_shape(blocks, CODE_THREADS), *a);
    if (a->use == CODE_SET && launch<code_clear_kernel>(ctx, flat_shape(blocks, CODE_THREADS), *a) != 0) return -1;
    return launch<topk_add_kernel>(ctx, flat_shape(divide_up(kept, (int64_t)CODE_THREADS), CODE_THREADS), *a, kept);
}
