// Shared by all hand-written kernels: storage types, 16-byte vectors, reductions, launches. The same sources run
// on a GPU and, in tests, in the host emulation (tests/emulation), whose headers replace CUDA's. No code here
// depends on which of the two it is.
//
// Storage types convert with the bits of kernels/dtype.h, except that every NaN becomes CUDA's own.
#ifndef STARRING_KERNELS_CUDA_COMMON_PLATFORM_H
#define STARRING_KERNELS_CUDA_COMMON_PLATFORM_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/kernels.h"

// Block-shared memory. The emulation allocates each array separately, so that an access past its end is
// detected.
#ifndef SHARED_ARRAY
#define SHARED_ARRAY(type, name, count) __shared__ type name[count]
#define SHARED_DYNAMIC(type, name)                                  \
    extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
    type *name = reinterpret_cast<type *>(dynamic_shared)
#endif

#define WARP               32
#define FULL_WARP          0xffffffffu
#define PLAIN_SHARED_BYTES (40u << 10)  // of the 48 KB for every kernel; the rest is for static arrays
#define LARGEST_GRID       ((int64_t)1 << 31)

// ---------------------------------------------------------------- storage types
struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};

template <typename T>
__host__ __device__ constexpr T lesser(T a, T b) {
    return a < b ? a : b;
}
template <typename T>
__host__ __device__ constexpr T greater(T a, T b) {
    return a > b ? a : b;
}
template <typename T>
__host__ __device__ constexpr T divide_up(T a, T b) {
    return (a + b - 1) / b;
}

__device__ inline bool is_nan(float x) { return (__float_as_uint(x) & 0x7fffffffu) > 0x7f800000u; }
__device__ inline bool is_finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(bf16 x) { return __uint_as_float((uint32_t)x.bits << 16); }
__device__ inline float to_f32(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

// One rounding, to nearest even.
__device__ inline void from_f32(float x, float *out) { *out = x; }
__device__ inline void from_f32(float x, bf16 *out) {
    out->bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ inline void from_f32(float x, f16 *out) { out->bits = __half_as_ushort(__float2half_rn(x)); }

// Two conversions in one instruction.
__device__ inline void pair_from_f32(float a, float b, float *out) {
    out[0] = a;
    out[1] = b;
}
__device__ inline void pair_from_f32(float a, float b, bf16 *out) {
    __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
    out[0].bits = __bfloat16_as_ushort(both.x);
    out[1].bits = __bfloat16_as_ushort(both.y);
}
__device__ inline void pair_from_f32(float a, float b, f16 *out) {
    __half2 both = __floats2half2_rn(a, b);
    out[0].bits = __half_as_ushort(both.x);
    out[1].bits = __half_as_ushort(both.y);
}

// 2^x by the hardware unit, one instruction; below 2^-126 the result is 0. (CUDA's __expf uses four more
// instructions for those numbers.)
#ifndef HARDWARE_EXP2
__device__ inline float hardware_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define HARDWARE_EXP2(x) hardware_exp2(x)
#endif

// exp(x) by the hardware unit. The relative error grows with |x|: |x| 2^-23.
__device__ inline float fast_exp(float x) { return HARDWARE_EXP2(x * 1.44269504f); }

// exp(x). For 16-bit storage, the fast one: its error is far below the rounding of the store.
template <typename T>
__device__ inline float exp_for(float x) {
    return sizeof(T) == sizeof(float) ? expf(x) : fast_exp(x);
}

// The device's clock, which all of its blocks share.
#ifndef DEVICE_NANOSECONDS
__device__ inline int64_t device_nanoseconds(void) {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return (int64_t)t;
}
#define DEVICE_NANOSECONDS() device_nanoseconds()
#endif

// ---------------------------------------------------------------- vectors
template <typename T, int N>
struct alignas(sizeof(T) * N) vec {
    T v[N];
};

// Elements of T in 16 bytes.
template <typename T>
struct lanes {
    static constexpr int count = 16 / (int)sizeof(T);
};

// The register type that is loaded and stored whole. The compiler sometimes splits structs of 16-bit elements.
template <int BYTES>
struct raw_of;
template <>
struct raw_of<1> {
    using type = uint8_t;
};
template <>
struct raw_of<2> {
    using type = uint16_t;
};
template <>
struct raw_of<4> {
    using type = uint32_t;
};
template <>
struct raw_of<8> {
    using type = uint2;
};
template <>
struct raw_of<16> {
    using type = uint4;
};

template <typename T, int N>
__device__ inline vec<T, N> load_vec(const T *p) {
    typename raw_of<(int)sizeof(vec<T, N>)>::type raw = *reinterpret_cast<const decltype(raw) *>(p);
    vec<T, N> out;
    memcpy(&out, &raw, sizeof out);
    return out;
}

// Ordinary stores, but wide ones by CUDA's function: near branches the compiler splits them.
__device__ inline void store_raw(uint16_t *p, uint16_t x) { *p = x; }
__device__ inline void store_raw(uint32_t *p, uint32_t x) { *p = x; }
__device__ inline void store_raw(uint2 *p, uint2 x) { __stwb(p, x); }
__device__ inline void store_raw(uint4 *p, uint4 x) { __stwb(p, x); }

// p is in device memory, not in shared memory.
template <typename T, int N>
__device__ inline void store_vec(T *p, const vec<T, N> &x) {
    typename raw_of<(int)sizeof(vec<T, N>)>::type raw;
    memcpy(&raw, &x, sizeof raw);
    store_raw(reinterpret_cast<decltype(raw) *>(p), raw);
}

template <typename T, int N>
__device__ inline void unpack(const vec<T, N> &x, float *out) {
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = to_f32(x.v[i]);
}

template <typename T, int N>
__device__ inline vec<T, N> pack(const float *x) {
    vec<T, N> out;
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) pair_from_f32(x[i], x[i + 1], &out.v[i]);
    if (N % 2) from_f32(x[N - 1], &out.v[N - 1]);
    return out;
}

// N elements kept in the registers they were loaded into, for data that is loaded long before it is used. Kept
// as vec across iterations of a loop, each 16-bit element would take a register.
template <typename T, int N>
struct packed {
    typename raw_of<(int)sizeof(vec<T, N>)>::type raw;
};

template <typename T, int N>
__device__ inline packed<T, N> load_packed(const T *p) {
    return {*reinterpret_cast<const decltype(packed<T, N>::raw) *>(p)};
}

template <typename T, int N>
__device__ inline void unpack(const packed<T, N> &x, float *out) {
    vec<T, N> v;
    memcpy(&v, &x, sizeof v);
    unpack<T, N>(v, out);
}

template <typename T, int N>
__device__ inline void load_f32(const T *p, float *out) {
    unpack<T, N>(load_vec<T, N>(p), out);
}

template <typename T, int N>
__device__ inline void store_f32(T *p, const float *x) {
    store_vec<T, N>(p, pack<T, N>(x));
}

// ---------------------------------------------------------------- reductions
struct sum_of {
    template <typename T>
    __device__ T operator()(T a, T b) const {
        return a + b;
    }
};
struct max_of {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <typename T, typename F>
__device__ inline T warp_reduce(T x, F f) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x = f(x, __shfl_xor_sync(FULL_WARP, x, step));
    return x;
}

// Combines x of all threads of a one-dimensional block in a fixed order; every thread gets the result. slots
// (WARP) are shared memory. They may be reused after one more barrier of all threads.
template <typename T, typename F>
__device__ inline T block_reduce(T x, T *slots, T identity, F f) {
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;
    x = warp_reduce(x, f);
    if (warps == 1) return x;
    if (lane == 0) slots[warp] = x;
    __syncthreads();
    return warp_reduce(lane < warps ? slots[lane] : identity, f);
}

// ---------------------------------------------------------------- clusters
// Blocks of a cluster run at the same time and can read each other's shared memory: compute capability 9.0 and
// up (CUDA C++ programming guide, thread block clusters; PTX ISA, barrier.cluster and mapa). All threads of a
// cluster arrive and then wait. After the wait they see what was written before the arrival. A block whose
// memory others may still read must not end: it arrives and waits once more.
#ifndef CLUSTER_FUNCTIONS
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ inline void cluster_arrive(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait(void) {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The number at the address of *own, but in the shared memory of block `rank` of the cluster.
__device__ inline float cluster_load(const float *own, unsigned rank) {
    uint32_t here = (uint32_t)__cvta_generic_to_shared(own), there;
    float x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
    return x;
}
#else  // never launched
__device__ inline void cluster_arrive(void) { __trap(); }
__device__ inline void cluster_wait(void) { __trap(); }
__device__ inline float cluster_load(const float *own, unsigned) { return *own; }
#endif
#endif

// Whether blocks may form clusters: the device can, and its code was compiled for a device that can (code
// translated from an older architecture cannot).
static inline bool has_clusters(const struct cuda_ctx *ctx) {
    const int compiled[] = {__CUDA_ARCH_LIST__};
    for (int arch : compiled)
        if (arch >= 900 && arch <= 10 * ctx->sm_version) return true;
    return false;
}

// ---------------------------------------------------------------- host side
struct launch_shape {
    dim3 grid, block;
    size_t shared_bytes;
    unsigned cluster = 0;  // blocks of one cluster, along x; 0: no clusters
};

static inline int cuda_refused(struct cuda_ctx *ctx, const char *why) {
    ctx->why = why;
    return -1;
}

static inline int cuda_checked(struct cuda_ctx *ctx, cudaError_t e) {
    return e == cudaSuccess ? 0 : cuda_refused(ctx, cudaGetErrorString(e));
}

// The list of all kernels that launch<> can launch, built before main. cuda_kernels_load (load.cu) loads them.
// A kernel launched in another way would be loaded at its first launch, which load.cu avoids.
struct kernel_link {
    const void *kernel;
    struct kernel_link *next;
    static struct kernel_link *&all() {
        static struct kernel_link *first;
        return first;
    }
    explicit kernel_link(const void *k) : kernel(k), next(all()) { all() = this; }
};

template <auto KERNEL>
struct kernel_of;
template <typename... P, void (*KERNEL)(P...)>
struct kernel_of<KERNEL> {
    static inline struct kernel_link link { reinterpret_cast<const void *>(KERNEL) };

    template <typename... A>
    static int launch(struct cuda_ctx *ctx, const struct launch_shape &shape, A... args) {
        cudaLaunchAttribute cluster = {};
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {shape.cluster, 1, 1};
        cudaLaunchConfig_t config = {shape.grid,  shape.block, shape.shared_bytes,
                                     ctx->stream, &cluster,    shape.cluster ? 1u : 0u};
        if (shape.shared_bytes > (size_t)ctx->shared_bytes)
            return cuda_refused(ctx, "this GPU has too little shared memory for the kernel at this shape");
        if (shape.shared_bytes > PLAIN_SHARED_BYTES) {
            cudaError_t e = cudaFuncSetAttribute(link.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                 (int)shape.shared_bytes);
            if (e != cudaSuccess) return cuda_checked(ctx, e);
        }
        return cuda_checked(ctx, cudaLaunchKernelEx(&config, KERNEL, static_cast<P>(args)...));
    }
};

// Enqueues KERNEL(args...) on the context's stream.
template <auto KERNEL, typename... A>
static inline int launch(struct cuda_ctx *ctx, const struct launch_shape &shape, A... args) {
    return kernel_of<KERNEL>::launch(ctx, shape, args...);
}

// A one-dimensional grid of blocks of `threads` threads; at most LARGEST_GRID blocks.
static inline struct launch_shape flat_shape(int64_t blocks, unsigned threads) {
    struct launch_shape shape = {dim3((unsigned)blocks), dim3(threads), 0, 0};
    return shape;
}

// Runs KERNEL(args...) on `count` threads, in blocks of `threads`. Does nothing if count is 0.
template <auto KERNEL, typename... A>
static inline int launch_over(struct cuda_ctx *ctx, int64_t count, unsigned threads, A... args) {
    int64_t blocks = divide_up(count, (int64_t)threads);
    if (blocks >= LARGEST_GRID) return cuda_refused(ctx, "more elements than one launch covers");
    return blocks ? launch<KERNEL>(ctx, flat_shape(blocks, threads), args...) : 0;
}

static inline bool aligned16(const void *p) { return (uintptr_t)p % 16 == 0; }

// Calls f with a zero of the storage type: fp32, bf16 or fp16.
template <typename F>
static inline int with_type(struct cuda_ctx *ctx, enum dtype dt, F f) {
    switch (dt) {
        case DT_F32:
            return f(float());
        case DT_BF16:
            return f(bf16());
        case DT_F16:
            return f(f16());
        default:
            return cuda_refused(ctx, "the storage type must be fp32, bf16 or fp16");
    }
}

// Calls f with a constant: the number of elements that a thread processes together, 16 bytes of them, or one.
template <int N>
struct width_tag {
    static constexpr int value = N;
};
template <typename T, typename F>
static inline int with_width(bool wide, F f) {
    return wide ? f(width_tag<lanes<T>::count>()) : f(width_tag<1>());
}

#endif
