// The codes of gradients and 1-bit Adam's operations (kernels/codec.h). A warp processes a block of 256
// elements: lane l has elements l, l+32, .. So loads are whole lines, a word of signs is one ballot, and the
// lanes are those of the scale's sum. Every operation is written with its rounding: the bits are those of
// kernels/cpu/ops/codec.c.
#include "kernels/codec.h"
#include "kernels/cuda/common/platform.h"

#define CODE_WARPS   8
#define CODE_THREADS (CODE_WARPS * WARP)
#define PER_LANE     (CODE_BLOCK / WARP)
#define TOPK_THREADS 1024
#define DIGITS       256

// Lane 0's sum is in the order that codec.h demands; every lane gets it.
__device__ static inline double lanes_sum(double x) {
#pragma unroll
    for (int d = ONEBIT_LANES / 2; d > 0; d /= 2) x = __dadd_rn(x, __shfl_down_sync(FULL_WARP, x, d));
    return __shfl_sync(FULL_WARP, x, 0);
}

__device__ static inline uint32_t size_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

template <typename T>
__device__ static inline float element_of(const struct code_encode_args &a, int64_t i) {
    return __fmaf_rn(a.error[i], a.factor, to_f32(static_cast<const T *>(a.grad)[i]));
}

// The statistics of a block's x; every lane gets them.
__device__ static inline double squares(const float x[PER_LANE]) {
    double sum = 0.0;
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) sum = __fma_rn((double)x[w], (double)x[w], sum);
    return lanes_sum(sum);
}
__device__ static inline double largest(const float x[PER_LANE]) {
    uint32_t most = 0;
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) most = greater(most, size_bits(x[w]));
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) most = greater(most, __shfl_down_sync(FULL_WARP, most, d));
    return (double)__uint_as_float(__shfl_sync(FULL_WARP, most, 0));
}

#define CUDA_CODE(id, name, bits, statistic)                                                            \
    struct name##_code {                                                                                \
        static constexpr int BITS = bits;                                                               \
        __device__ static inline float scale(const float x[PER_LANE]) {                                 \
            return code_scale_##name(statistic(x));                                                     \
        }                                                                                               \
        __device__ static inline uint32_t number(float x, float s) { return code_number_##name(x, s); } \
        __device__ static inline float value(uint32_t n, float s) { return code_value_##name(n, s); }   \
    };
BLOCK_CODES(CUDA_CODE)

// Calls f with the row of a code in blocks.
template <typename F>
static int with_code(struct cuda_ctx *ctx, enum code_kind kind, F f) {
    switch (kind) {
#define CODE_CASE(id, name, bits, statistic) \
    case CODE_##id:                          \
        return f(name##_code());
        BLOCK_CODES(CODE_CASE)
        default:
            return cuda_refused(ctx, "codes: no such code");
    }
}

template <typename C, typename T>
__global__ void __launch_bounds__(CODE_THREADS) code_blocks_kernel(struct code_encode_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t block = (int64_t)blockIdx.x * CODE_WARPS + (int)threadIdx.x / WARP;
    if (block >= a.n / CODE_BLOCK) return;
    float x[PER_LANE];
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) x[w] = element_of<T>(a, block * CODE_BLOCK + w * WARP + lane);
    // A word holds the numbers of SHARERS lanes, each shifted to its bits.
    constexpr int BITS = C::BITS, SHARERS = WARP / BITS;
    uint32_t *out = static_cast<uint32_t *>(a.out) + block * (1 + CODE_BLOCK / 32 * BITS);
    float scale = C::scale(x);
    if (lane == 0) out[0] = __float_as_uint(scale);
#pragma unroll
    for (int w = 0; w < PER_LANE; w++) {
        uint32_t number = C::number(x[w], scale), word = (number & ((1u << BITS) - 1u))
                                                         << lane % SHARERS * BITS;
        if (BITS == 1)
            word = __ballot_sync(FULL_WARP, number);
        else
#pragma unroll
            for (int d = SHARERS / 2; d > 0; d /= 2) word |= __shfl_xor_sync(FULL_WARP, word, d);
        if (lane % SHARERS == 0) out[1 + w * BITS + lane / SHARERS] = word;
    }
}

// ---------------------------------------------------------------- top-k
// Radix selection (Alabi et al. 2012, "Fast k-Selection Algorithms for Graphics Processors"), eight bits of the
// magnitudes per pass, the highest first. Each thread block has one part of the elements, in rows of
// TOPK_THREADS:
//
//     pass 0..3   counts each value of the pass's digit, among the elements whose earlier digits equal those
//                 of the kept-th largest; every block computes these digits from the previous pass's counts
//     pass 4      counts each part's elements that are larger than the kept-th largest, and those equal to it
//     writing     a part's kept elements are written after those of the earlier parts, whose counts are known
#define TOPK_PASSES 4
#define TOPK_PARTS  256

// The state before a pass: the known digits of the kept-th largest, and how many of the elements with these
// digits are kept.
struct topk_known {
    uint32_t found, known;
    int64_t rest;
};

struct topk_work {
    uint32_t count[TOPK_PASSES][DIGITS];
    struct topk_known before[TOPK_PASSES + 1];
    uint32_t larger[TOPK_PARTS], equal[TOPK_PARTS];
};

struct topk_part {
    int64_t begin, end;
};

__device__ static inline struct topk_part part_of(int64_t n) {
    int64_t rows = divide_up(n, (int64_t)TOPK_THREADS),
            each = divide_up(rows, (int64_t)gridDim.x) * TOPK_THREADS;
    return {lesser((int64_t)blockIdx.x * each, n), lesser(((int64_t)blockIdx.x + 1) * each, n)};
}

// Called by every thread of the block: *known (shared) receives the state before this pass.
__device__ static inline void find_digits(struct topk_work *w, int pass, int64_t kept,
                                          struct topk_known *known) {
    if (pass == 0) {
        if (threadIdx.x == 0) *known = {0, 0, kept};
    } else if (threadIdx.x < DIGITS) {
        const struct topk_known before = w->before[pass - 1];
        const uint32_t *count = w->count[pass - 1];
        int64_t above = 0;
        int shift = 8 * (TOPK_PASSES - pass);
#pragma unroll 8
        for (int d = 1; d < DIGITS; d++) above += d > (int)threadIdx.x ? count[d] : 0;
        if (above < before.rest && before.rest <= above + count[threadIdx.x])
            *known = {before.found | (uint32_t)threadIdx.x << shift, before.known | 255u << shift,
                      before.rest - above};
    }
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) w->before[pass] = *known;
}

template <typename T>
__global__ void __launch_bounds__(TOPK_THREADS)
    topk_count_kernel(struct code_encode_args a, struct topk_work *w, int64_t kept, int pass) {
    SHARED_ARRAY(struct topk_known, known, 1);
    SHARED_ARRAY(uint32_t, count, DIGITS);
    struct topk_part part = part_of(a.n);
    int shift = 8 * (TOPK_PASSES - 1 - pass);
    if (threadIdx.x < DIGITS) count[threadIdx.x] = 0;
    find_digits(w, pass, kept, known);
    for (int64_t i = part.begin + threadIdx.x; i < part.end; i += TOPK_THREADS) {
        uint32_t size = size_bits(element_of<T>(a, i));
        if ((size & known->known) == known->found) atomicAdd(&count[size >> shift & 255u], 1u);
    }
    __syncthreads();
    if (threadIdx.x < DIGITS && count[threadIdx.x])
        atomicAdd(&w->count[pass][threadIdx.x], count[threadIdx.x]);
}

template <typename T>
__global__ void __launch_bounds__(TOPK_THREADS)
    topk_parts_kernel(struct code_encode_args a, struct topk_work *w, int64_t kept) {
    SHARED_ARRAY(struct topk_known, known, 1);
    SHARED_ARRAY(uint32_t, slots, WARP);
    struct topk_part part = part_of(a.n);
    uint32_t larger = 0, equal = 0;
    find_digits(w, TOPK_PASSES, kept, known);
    for (int64_t i = part.begin + threadIdx.x; i < part.end; i += TOPK_THREADS) {
        uint32_t size = size_bits(element_of<T>(a, i));
        larger += size > known->found;
        equal += size == known->found;
    }
    larger = block_reduce(larger, slots, 0u, sum_of());
    __syncthreads();
    equal = block_reduce(equal, slots, 0u, sum_of());
    if (threadIdx.x == 0) {
        w->larger[blockIdx.x] = larger;
        w->equal[blockIdx.x] = equal;
    }
}

// State that a thread block shares while it writes.
struct topk_state {
    uint32_t larger[WARP], equal[WARP];  // counts of each warp in a row
    int64_t done, equals;                // counts so far
};

template <typename T>
__global__ void __launch_bounds__(TOPK_THREADS)
    topk_write_kernel(struct code_encode_args a, const struct topk_work *w, int64_t kept) {
    SHARED_ARRAY(struct topk_state, state, 1);
    struct topk_state *s = &state[0];
    const struct topk_known k = w->before[TOPK_PASSES];
    struct topk_part part = part_of(a.n);
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    uint32_t before = (1u << lane) - 1u, *index = static_cast<uint32_t *>(a.out);
    float *value = reinterpret_cast<float *>(index + kept);
    if (warp == 0) {
        int64_t larger = 0, equals = 0;
        for (int p = lane; p < (int)blockIdx.x; p += WARP) larger += w->larger[p], equals += w->equal[p];
        larger = warp_reduce(larger, sum_of());
        equals = warp_reduce(equals, sum_of());
        if (lane == 0) s->done = larger + lesser(equals, k.rest), s->equals = equals;
    }
    __syncthreads();
    for (int64_t row = part.begin; row < part.end; row += TOPK_THREADS) {
        int64_t i = row + threadIdx.x;
        float x = i < part.end ? element_of<T>(a, i) : 0.0f;
        bool is_larger = i < part.end && size_bits(x) > k.found,
             is_equal = i < part.end && size_bits(x) == k.found;
        uint32_t larger = __ballot_sync(FULL_WARP, is_larger), equal = __ballot_sync(FULL_WARP, is_equal);
        if (lane == 0) {
            s->larger[warp] = (uint32_t)__popc(larger);
            s->equal[warp] = (uint32_t)__popc(equal);
        }
        __syncthreads();
        int64_t equals = s->equals + __popc(equal & before), at = s->done + __popc(larger & before);
        for (int other = 0; other < warp; other++) {
            equals += s->equal[other];
            at += s->larger[other];
        }
        // Only the first k.rest equal elements are kept: counts the kept ones in front of this element.
        at += lesser(equals, k.rest) - lesser(s->equals, k.rest);
        if (is_larger || (is_equal && equals < k.rest)) {
            index[at] = (uint32_t)i;
            value[at] = x;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int64_t was = lesser(s->equals, k.rest);
            for (int other = 0; other < TOPK_THREADS / WARP; other++) {
                s->done += s->larger[other];
                s->equals += s->equal[other];
            }
            s->done += lesser(s->equals, k.rest) - was;
        }
        __syncthreads();
    }
}

template <typename T>
static int encode_topk(struct cuda_ctx *ctx, const struct code_encode_args *a) {
    static_assert(sizeof(struct topk_work) <= CUDA_WORKSPACE_BYTES, "of the stream");
    struct topk_work *w = static_cast<struct topk_work *>(ctx->workspace);
    int64_t kept = code_kept(a->format.share, a->n), rows = divide_up(a->n, (int64_t)TOPK_THREADS);
    struct launch_shape shape = flat_shape(lesser(rows, (int64_t)TOPK_PARTS), TOPK_THREADS);
    if (cuda_checked(ctx, cudaMemsetAsync(w->count, 0, sizeof w->count, ctx->stream)) != 0) return -1;
    for (int pass = 0; pass < TOPK_PASSES; pass++)
        if (launch<topk_count_kernel<T>>(ctx, shape, *a, w, kept, pass) != 0) return -1;
    if (launch<topk_parts_kernel<T>>(ctx, shape, *a, w, kept) != 0) return -1;
    return launch<topk_write_kernel<T>>(ctx, shape, *a, w, kept);
}

static int refuse_ragged(struct cuda_ctx *ctx) {
    return cuda_refused(ctx, "codes: the count must be a multiple of 256");
}

// One warp per block of n elements.
static int64_t threads_of(int64_t n) { return n / CODE_BLOCK * WARP; }

int cuda_op_code_encode(struct cuda_ctx *ctx, const struct code_encode_args *a) {
    if (a->n % CODE_BLOCK) return refuse_ragged(ctx);
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        if (a->format.kind == CODE_TOPK) return a->n ? encode_topk<T>(ctx, a) : 0;
        return with_code(ctx, a->format.kind, [&](auto code) {
            return launch_over<code_blocks_kernel<decltype(code), T>>(ctx, threads_of(a->n), CODE_THREADS,
                                                                      *a);
        });
    });
}

template <typename T>
__global__ void __launch_bounds__(CODE_THREADS) code_error_kernel(struct code_error_args a) {
    int64_t i = (int64_t)blockIdx.x * CODE_THREADS + threadIdx.x;
    if (i < a.n) a.error[i] = __fmaf_rn(a.error[i], a.factor, to_f32(static_cast<const T *>(a.grad)[i]));
}

int cuda_op_code_error(struct cuda_ctx *ctx, const struct code_error_args *a) {
    return with_type(ctx, a->dt, [&](auto type) {
        return launch_over<code_error_kernel<decltype(type)>>(ctx, a->n, CODE_THREADS, *a);
    });
}

// ---------------------------------------------------------------- decoding
__device__ static inline void use(float *out, float decoded, enum code_use how) {
    *out = how == CODE_SET    ? decoded
           : how == CODE_PLUS ? __fadd_rn(*out, decoded)
                              : __fadd_rn(*out, -decoded);
}

// A thread decodes V adjacent elements of a block, whose numbers share a word: 4 if out is aligned to 16 bytes, else 1.
template <typename C, int V>
__global__ void __launch_bounds__(CODE_THREADS) code_add_kernel(struct code_add_args a) {
    int64_t i = ((int64_t)blockIdx.x * CODE_THREADS + threadIdx.x) * V;
    if (i >= a.n) return;
    constexpr int BITS = C::BITS;
    const uint32_t *block =
        static_cast<const uint32_t *>(a.code) + i / CODE_BLOCK * (1 + CODE_BLOCK / 32 * BITS);
    int bit = (int)(i % CODE_BLOCK) * BITS;
    uint32_t numbers = block[1 + bit / 32] >> bit % 32;
    float scale = __uint_as_float(block[0]);
    vec<float, V> out = a.use == CODE_SET ? vec<float, V>() : load_vec<float, V>(a.out + i);
#pragma unroll
    for (int v = 0; v < V; v++)
        use(&out.v[v], C::value(numbers >> v * BITS & ((1u << BITS) - 1u), scale), a.use);
    store_vec<float, V>(a.out + i, out);
}

// For topk and CODE_SET: sets all elements to 0 first.
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

int cuda_op_code_add(struct cuda_ctx *ctx, const struct code_add_args *a) {
    int64_t kept = code_kept(a->format.share, a->n);
    if (a->n % CODE_BLOCK) return refuse_ragged(ctx);
    if (a->format.kind != CODE_TOPK)
        return with_code(ctx, a->format.kind, [&](auto code) {
            using C = decltype(code);
            return aligned16(a->out) ? launch_over<code_add_kernel<C, 4>>(ctx, a->n / 4, CODE_THREADS, *a)
                                     : launch_over<code_add_kernel<C, 1>>(ctx, a->n, CODE_THREADS, *a);
        });
    if (a->use == CODE_SET && launch_over<code_clear_kernel>(ctx, a->n, CODE_THREADS, *a) != 0) return -1;
    return launch_over<topk_add_kernel>(ctx, kept, CODE_THREADS, *a, kept);
}

// ---------------------------------------------------------------- 1-bit Adam
// Encodes the lane's elements x. x receives the error: x minus the value of *out. v 0: masked.
__device__ static inline void encode_with_error(struct onebit_block *out, float x[ONEBIT_WORDS],
                                                const float v[ONEBIT_WORDS], int lane) {
    double sum = 0.0;
    int counted = 0;
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        if (v[w] == 0.0f) x[w] = 0.0f;
        counted += __popc(__ballot_sync(FULL_WARP, v[w] != 0.0f));
        sum = __fma_rn((double)x[w], (double)x[w], sum);
    }
    float scale = onebit_root(lanes_sum(sum), counted);
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
__global__ void __launch_bounds__(CODE_THREADS) onebit_encode_kernel(struct onebit_encode_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t block = (int64_t)blockIdx.x * CODE_WARPS + (int)threadIdx.x / WARP;
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
    encode_with_error(&a.out[block], x, v, lane);
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) a.error[at + w * WARP] = x[w];
}

int cuda_op_onebit_encode(struct cuda_ctx *ctx, const struct onebit_encode_args *a) {
    if (a->n % CODE_BLOCK) return refuse_ragged(ctx);
    return with_type(ctx, a->dt, [&](auto type) {
        return launch_over<onebit_encode_kernel<decltype(type)>>(ctx, threads_of(a->n), CODE_THREADS, *a);
    });
}

__global__ void __launch_bounds__(CODE_THREADS) onebit_sum_kernel(struct onebit_sum_args a) {
    int lane = (int)threadIdx.x % WARP;
    int64_t block = (int64_t)blockIdx.x * CODE_WARPS + (int)threadIdx.x / WARP, blocks = a.n / ONEBIT_BLOCK;
    if (a.scalars->skip || block >= blocks) return;
    float x[ONEBIT_WORDS], v[ONEBIT_WORDS], part = __fdiv_rn(1.0f, (float)a.ranks);
    int64_t at = block * ONEBIT_BLOCK + lane;
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) x[w] = onebit_value(&a.in[block], w * WARP + lane);
    for (int r = 1; r < a.ranks; r++)
#pragma unroll
        for (int w = 0; w < ONEBIT_WORDS; w++)
            x[w] = __fadd_rn(x[w], onebit_value(&a.in[r * blocks + block], w * WARP + lane));
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) {
        x[w] = __fadd_rn(a.error[at + w * WARP], __fmul_rn(x[w], part));
        v[w] = a.v[at + w * WARP];
    }
    encode_with_error(&a.out[block], x, v, lane);
#pragma unroll
    for (int w = 0; w < ONEBIT_WORDS; w++) a.error[at + w * WARP] = x[w];
}

int cuda_op_onebit_sum(struct cuda_ctx *ctx, const struct onebit_sum_args *a) {
    if (a->n % CODE_BLOCK) return refuse_ragged(ctx);
    if (a->ranks < 1) return cuda_refused(ctx, "1-bit code: a sum over no ranks");
    return launch_over<onebit_sum_kernel>(ctx, threads_of(a->n), CODE_THREADS, *a);
}
