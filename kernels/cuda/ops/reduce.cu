// Ordered reductions of several buffers, casts and zero fill, with the bits of a CPU.
#include "kernels/cuda/common/columns.h"
#include "kernels/cuda/common/platform.h"

#define REDUCE_THREADS 256

// The pointers are in a kernel argument (2 KiB of the 4 KiB that every device allows). So nothing must be
// copied or kept alive, and a captured graph contains them.
template <typename T>
struct reduce_inputs {
    T *out;
    int64_t n;
    int32_t count;
    enum reduction how;
    const T *in[REDUCE_GPU_MAX];
};

// The type in which a sum of T is computed. The sum starts as the first input (zero plus it would lose -0).
template <typename T>
struct sum_type {
    using type = float;
    __device__ static float load(T x) { return to_f32(x); }
    __device__ static float add(float a, float b) { return __fadd_rn(a, b); }
    __device__ static void store(float x, T *out) { from_f32(x, out); }
};
template <>
struct sum_type<double> {
    using type = double;
    __device__ static double load(double x) { return x; }
    __device__ static double add(double a, double b) { return __dadd_rn(a, b); }
    __device__ static void store(double x, double *out) { *out = x; }
};
template <>
struct sum_type<uint64_t> {
    using type = uint64_t;
    __device__ static uint64_t load(uint64_t x) { return x; }
    __device__ static uint64_t add(uint64_t a, uint64_t b) { return a + b; }  // wraps
    __device__ static void store(uint64_t x, uint64_t *out) { *out = x; }
};

// 64-bit integers are stored unsigned, so that sums wrap, but compared as signed.
template <typename A>
__device__ static bool at_most(A a, A b) {
    return a <= b;
}
template <>
__device__ bool at_most(uint64_t a, uint64_t b) {
    return (int64_t)a <= (int64_t)b;
}

// SUM: the kernel only adds, without testing `how`; else `how` selects the reduction.
template <typename T, bool SUM>
__device__ static typename sum_type<T>::type join(enum reduction how, typename sum_type<T>::type a,
                                                  typename sum_type<T>::type b) {
    using A = typename sum_type<T>::type;
    if (SUM) return sum_type<T>::add(a, b);
    if (how == REDUCTION_MIN) return a != a || at_most(a, b) ? a : b;
    if (how == REDUCTION_MAX) return a != a || at_most(b, a) ? a : b;
    if (how == REDUCTION_PROD) return a * b;  // -fmad=false
    return a != A(0) || b != A(0) ? A(1) : A(0);
}

// The start value of a reduction. LOR turns even a single input into 0 or 1.
template <typename T, bool SUM>
__device__ static typename sum_type<T>::type join_first(enum reduction how, typename sum_type<T>::type a) {
    return SUM || how != REDUCTION_LOR ? a : join<T, SUM>(how, a, a);
}

// REDUCE_AHEAD inputs are loaded together before they are joined, in order.
#define REDUCE_AHEAD 4

template <typename T, int V, bool SUM>
__global__ void __launch_bounds__(REDUCE_THREADS) reduce_kernel(struct reduce_inputs<T> p) {
    using sum = sum_type<T>;
    int64_t i = ((int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x) * V;
    if (i >= p.n) return;
    typename sum::type total[V];
    vec<T, V> x = load_vec<T, V>(p.in[0] + i);
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = join_first<T, SUM>(p.how, sum::load(x.v[j]));
    int32_t k = 1;
    for (; k + REDUCE_AHEAD <= p.count; k += REDUCE_AHEAD) {
        vec<T, V> ahead[REDUCE_AHEAD];
#pragma unroll
        for (int a = 0; a < REDUCE_AHEAD; a++) ahead[a] = load_vec<T, V>(p.in[k + a] + i);
#pragma unroll
        for (int a = 0; a < REDUCE_AHEAD; a++)
#pragma unroll
            for (int j = 0; j < V; j++) total[j] = join<T, SUM>(p.how, total[j], sum::load(ahead[a].v[j]));
    }
    for (; k < p.count; k++) {
        x = load_vec<T, V>(p.in[k] + i);
#pragma unroll
        for (int j = 0; j < V; j++) total[j] = join<T, SUM>(p.how, total[j], sum::load(x.v[j]));
    }
#pragma unroll
    for (int j = 0; j < V; j++) sum::store(total[j], &x.v[j]);
    store_vec<T, V>(p.out + i, x);
}

// Elements at any byte address, from element `first` on: for tails, and for buffers that are not aligned.
template <typename T, bool SUM>
__global__ void __launch_bounds__(REDUCE_THREADS)
    reduce_bytes_kernel(struct reduce_inputs<T> p, int64_t first) {
    using sum = sum_type<T>;
    int64_t i = first + (int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x;
    if (i >= p.n) return;
    typename sum::type total = {};
    union {
        T value;
        unsigned char byte[sizeof(T)];
    } x;
    for (int32_t k = 0; k < p.count; k++) {
        const unsigned char *from = reinterpret_cast<const unsigned char *>(p.in[k]) + i * (int64_t)sizeof(T);
        for (int b = 0; b < (int)sizeof(T); b++) x.byte[b] = from[b];
        total = k == 0 ? join_first<T, SUM>(p.how, sum::load(x.value))
                       : join<T, SUM>(p.how, total, sum::load(x.value));
    }
    sum::store(total, &x.value);
    // Each byte is selected by PRMT, because plain stores give wrong bytes (seen on an H100): ptxas 13.0 takes
    // the lower byte of the result of cvt.rn.bf16.f32 and cvt.rn.f16.f32 as a number to convert (F2I.U8.F16,
    // sm_80 and sm_90).
    uint32_t words[2] = {};
    memcpy(words, &x.value, sizeof(T));
    unsigned char *to = reinterpret_cast<unsigned char *>(p.out) + i * (int64_t)sizeof(T);
    for (int b = 0; b < (int)sizeof(T); b++)
        to[b] = (unsigned char)__byte_perm(words[b / 4], 0, 0x4440u + (unsigned)b % 4);
}

template <typename T, bool SUM>
static int reduce_launch_as(struct cuda_ctx *ctx, const struct reduce_args *a) {
    constexpr int V = lanes<T>::count;
    struct reduce_inputs<T> p = {};
    p.out = (T *)a->out;
    p.count = a->count;
    p.how = a->how;
    bool wide = aligned16(a->out);
    for (int32_t k = 0; k < a->count; k++) {
        p.in[k] = (const T *)a->inputs[k];
        wide = wide && aligned16(p.in[k]);
    }
    int64_t whole = wide ? a->n / V * V : 0;
    p.n = whole;
    if (launch_over<reduce_kernel<T, V, SUM>>(ctx, whole / V, REDUCE_THREADS, p) != 0) return -1;
    p.n = a->n;
    return launch_over<reduce_bytes_kernel<T, SUM>>(ctx, a->n - whole, REDUCE_THREADS, p, whole);
}

template <typename T>
static int reduce_launch(struct cuda_ctx *ctx, const struct reduce_args *a) {
    return a->how == REDUCTION_SUM ? reduce_launch_as<T, true>(ctx, a) : reduce_launch_as<T, false>(ctx, a);
}

int cuda_op_reduce(struct cuda_ctx *ctx, const struct reduce_args *a) {
    if (a->count < 1 || a->count > REDUCE_GPU_MAX)
        return cuda_refused(ctx, "a reduction takes 1 to 256 inputs");
    if (a->dt == DT_F64) return reduce_launch<double>(ctx, a);
    if (a->dt == DT_I64) return reduce_launch<uint64_t>(ctx, a);
    return with_type(ctx, a->dt, [&](auto type) { return reduce_launch<decltype(type)>(ctx, a); });
}

// ---------------------------------------------------------------- casts
template <typename To, typename From>
struct cast_buffers {
    To *out;
    const From *in;
    int64_t n;
    float factor;
};

// The conversions of kernels/dtype.h with the same bits, NaN payloads included; CUDA's own give a single NaN.
__device__ static inline float exact_to_f32(float x) { return x; }
__device__ static inline float exact_to_f32(bf16 x) { return to_f32(x); }
__device__ static inline float exact_to_f32(f16 x) {
    uint32_t magnitude = x.bits & 0x7fffu, sign = (uint32_t)(x.bits & 0x8000u) << 16;
    return magnitude > 0x7c00u ? __uint_as_float(sign | 0x7fc00000u | (magnitude & 0x3ffu) << 13) : to_f32(x);
}

__device__ static inline void exact_from_f32(float x, float *out) { *out = x; }
__device__ static inline void exact_from_f32(float x, bf16 *out) {
    from_f32(x, out);
    if (is_nan(x)) out->bits = (uint16_t)(__float_as_uint(x) >> 16 | 0x40u);
}
__device__ static inline void exact_from_f32(float x, f16 *out) {
    uint32_t u = __float_as_uint(x);
    from_f32(x, out);
    if (is_nan(x)) out->bits = (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu));
}

// A product would change a NaN's payload.
__device__ static inline float scaled(float x, float factor) {
    return factor == 1.0f ? x : __fmul_rn(x, factor);
}

// A thread converts V elements: 16 bytes of the narrower type.
template <typename To, typename From, int V>
__global__ void __launch_bounds__(REDUCE_THREADS) cast_kernel(struct cast_buffers<To, From> p) {
    constexpr int IN = lesser(V, lanes<From>::count), OUT = lesser(V, lanes<To>::count);
    int64_t i = ((int64_t)blockIdx.x * REDUCE_THREADS + threadIdx.x) * V;
    if (i + V > p.n) {
        for (; i < p.n; i++) exact_from_f32(scaled(exact_to_f32(p.in[i]), p.factor), &p.out[i]);
        return;
    }
    vec<From, IN> in[V / IN];
    vec<To, OUT> out[V / OUT];
#pragma unroll
    for (int k = 0; k < V / IN; k++) in[k] = load_vec<From, IN>(p.in + i + k * IN);
#pragma unroll
    for (int j = 0; j < V; j++)
        exact_from_f32(scaled(exact_to_f32(in[j / IN].v[j % IN]), p.factor), &out[j / OUT].v[j % OUT]);
#pragma unroll
    for (int k = 0; k < V / OUT; k++) store_vec<To, OUT>(p.out + i + k * OUT, out[k]);
}

template <typename To, typename From>
static int cast_launch(struct cuda_ctx *ctx, const struct cast_args *a) {
    constexpr int widest = greater(lanes<To>::count, lanes<From>::count);
    struct cast_buffers<To, From> p = {
        (To *)a->out, (const From *)a->in, a->n, a->factor != 0 ? a->factor : 1.0f
    };
    bool wide = aligned16(a->out) && aligned16(a->in);
    int64_t threads = divide_up(a->n, (int64_t)(wide ? widest : 1));
    return wide ? launch_over<cast_kernel<To, From, widest>>(ctx, threads, REDUCE_THREADS, p)
                : launch_over<cast_kernel<To, From, 1>>(ctx, threads, REDUCE_THREADS, p);
}

int cuda_op_cast(struct cuda_ctx *ctx, const struct cast_args *a) {
    if (a->n == 0) return 0;
    if (a->from == a->to && (a->factor == 0 || a->factor == 1.0f))
        return cuda_checked(ctx, cudaMemcpyAsync(a->out, a->in, (size_t)a->n * dtype_size(a->to),
                                                 cudaMemcpyDeviceToDevice, ctx->stream));
    return with_type(ctx, a->to, [&](auto to) {
        return with_type(ctx, a->from,
                         [&](auto from) { return cast_launch<decltype(to), decltype(from)>(ctx, a); });
    });
}

int cuda_op_fill_zero(struct cuda_ctx *ctx, const struct fill_zero_args *a) {
    if (a->bytes == 0) return 0;
    return cuda_checked(ctx, cudaMemsetAsync(a->out, 0, (size_t)a->bytes, ctx->stream));
}

// ---------------------------------------------------------------- the gradient of a bias
#define BIAS_LANES 32  // vectors of columns per block
#define BIAS_DEEP  8   // rows read in parallel
#define BIAS_AHEAD 4   // rows that a thread has in flight: 16 KB per block

// Bytes: dy once, and each part's N sums in fp32 written and read. This many blocks give 7 to 8 per
// multiprocessor of a large device (132), and keep the sums within 1/20 of dy. For R = 32768, N = 3072 in 16
// bits dy is 201 MB, and 85 parts are 2 MB of sums (512 would be 13).
#define BIAS_BLOCKS 1024

template <typename T>
struct bias_buffers {
    const T *dy;   // (R,N)
    float *parts;  // (count,N)
    int64_t rows, n;
};

// Block (x, part): BIAS_LANES vectors of columns, the rows of the part. Thread (lane, deep) adds every
// BIAS_DEEP-th row in order; then the threads' sums are added in order.
template <typename T, int V>
__global__ void __launch_bounds__(BIAS_LANES *BIAS_DEEP) bias_parts_kernel(struct bias_buffers<T> p) {
    SHARED_ARRAY(float, sums, BIAS_DEEP *BIAS_LANES *V);
    int lane = (int)threadIdx.x % BIAS_LANES, deep = (int)threadIdx.x / BIAS_LANES;
    int64_t c = ((int64_t)blockIdx.x * BIAS_LANES + lane) * V, part = blockIdx.y, parts = gridDim.y;
    int64_t row = p.rows * part / parts + deep, end = p.rows * (part + 1) / parts;
    float total[V] = {};
    if (c < p.n) {
        for (; row + (BIAS_AHEAD - 1) * BIAS_DEEP < end; row += BIAS_AHEAD * BIAS_DEEP) {
            vec<T, V> x[BIAS_AHEAD];
#pragma unroll
            for (int k = 0; k < BIAS_AHEAD; k++)
                x[k] = load_vec<T, V>(p.dy + (row + k * BIAS_DEEP) * p.n + c);
#pragma unroll
            for (int k = 0; k < BIAS_AHEAD; k++)
#pragma unroll
                for (int j = 0; j < V; j++) total[j] += to_f32(x[k].v[j]);
        }
        for (; row < end; row += BIAS_DEEP) {
            vec<T, V> x = load_vec<T, V>(p.dy + row * p.n + c);
#pragma unroll
            for (int j = 0; j < V; j++) total[j] += to_f32(x.v[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) sums[(deep * V + j) * BIAS_LANES + lane] = total[j];
    __syncthreads();
    if (deep != 0 || c >= p.n) return;
#pragma unroll
    for (int j = 0; j < V; j++)
        for (int d = 1; d < BIAS_DEEP; d++) total[j] += sums[(d * V + j) * BIAS_LANES + lane];
    store_sums<V>(p.parts + part * p.n + c, total);
}

int cuda_op_bias_grad(struct cuda_ctx *ctx, const struct bias_grad_args *a) {
    if (a->n == 0) return 0;
    int64_t most = column_parts(a->rows, a->n);
    if (most == 0 && a->rows > 0) return cuda_refused(ctx, "bias_grad: a row of sums exceeds the workspace");
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        bool wide = a->n % lanes<T>::count == 0 && aligned16(a->dy);
        int64_t across = divide_up(a->n, (int64_t)BIAS_LANES * (wide ? lanes<T>::count : 1));
        int64_t parts = lesser(most, divide_up((int64_t)BIAS_BLOCKS, across));
        int rc = with_width<T>(wide, [&](auto width) {
            constexpr int V = decltype(width)::value;
            struct bias_buffers<T> p = {
                (const T *)a->dy, (float *)ctx->workspace, a->rows, a->n
            };
            struct launch_shape shape = {dim3((unsigned)across, (unsigned)parts),
                                         dim3(BIAS_LANES * BIAS_DEEP), 0};
            return parts ? launch<bias_parts_kernel<T, V>>(ctx, shape, p) : 0;
        });
        struct combine_buffers<T> c = {
            (T *)a->dbias, NULL, (const float *)ctx->workspace, a->n, a->n, parts, a->accumulate
        };
        return rc == 0 ? combine_launch(ctx, c) : -1;
    });
}
