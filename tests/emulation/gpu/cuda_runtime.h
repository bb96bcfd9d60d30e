// Stands in for CUDA's header of this name when the kernels' sources are compiled for the host: the
// part of the language and of the runtime that they use, run by emulation.cc. One block after another;
// a block's threads are fibers, so barriers and shuffles wait as they do on a GPU.
//
// It finds        threads that wait at different barriers or have left while others wait; shuffles
//                 that not every lane of a warp reaches; shared memory read before it is written
//                 (poisoned, and the order of threads can be changed); launches beyond the limits of
//                 a device; with the address sanitizer, every access out of device or shared memory.
// It is not       a model of time, of memory ordering within a barrier interval, or of registers.
#ifndef STARRING_TESTS_EMULATION_CUDA_RUNTIME_H
#define STARRING_TESTS_EMULATION_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

// ---------------------------------------------------------------- language
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

struct emu_place {
    dim3 grid, block, block_index, thread_index;
};
const struct emu_place *emu_here(void);  // of the running thread
#define threadIdx (emu_here()->thread_index)
#define blockIdx  (emu_here()->block_index)
#define blockDim  (emu_here()->block)
#define gridDim   (emu_here()->grid)

// Shared memory: the k-th declaration a thread passes is the k-th allocation of its block.
void *emu_shared(size_t bytes);
void *emu_shared_dynamic(void);
#define SHARED_ARRAY(type, name, count) type *name = static_cast<type *>(emu_shared(sizeof(type) * (count)))
#define SHARED_DYNAMIC(type, name)      type *name = static_cast<type *>(emu_shared_dynamic())

// ---------------------------------------------------------------- synchronisation
void emu_barrier(const char *file, int line);
// Every lane's 64-bit value to every lane; the address stays valid until the lane's next exchange.
const uint64_t *emu_exchange(unsigned mask, uint64_t value, int line);
int emu_lane(void);

static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    emu_barrier(file, line);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    emu_exchange(mask, 0, line);
}

template <typename T>
static inline T emu_from_lane(unsigned mask, T x, int from, int line) {
    static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable<T>::value, "a register or two");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    const uint64_t *all = emu_exchange(mask, bits, line);
    T out;
    memcpy(&out, &all[from >= 0 && from < 32 ? from : emu_lane()], sizeof out);
    return out;
}
template <typename T>
static inline T __shfl_sync(unsigned mask, T x, int from, int line = __builtin_LINE()) {
    return emu_from_lane(mask, x, from % 32, line);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T x, int lanes, int line = __builtin_LINE()) {
    return emu_from_lane(mask, x, emu_lane() ^ lanes, line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T x, int by, int line = __builtin_LINE()) {
    return emu_from_lane(mask, x, emu_lane() + by, line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T x, int by, int line = __builtin_LINE()) {
    return emu_from_lane(mask, x, emu_lane() - by, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    const uint64_t *all = emu_exchange(mask, predicate != 0, line);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (unsigned)all[i] << i;
    return bits;
}
// The lanes that have the same x.
static inline unsigned __match_any_sync(unsigned mask, int x, int line = __builtin_LINE()) {
    const uint64_t *all = emu_exchange(mask, (uint64_t)(int64_t)x, line);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (unsigned)(all[i] == (uint64_t)(int64_t)x) << i;
    return bits;
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned x, int line = __builtin_LINE()) {
    const uint64_t *all = emu_exchange(mask, x, line);
    unsigned sum = 0;
    for (int i = 0; i < 32; i++) sum += (unsigned)all[i];
    return sum;
}

// Clusters of blocks, in the names of kernels/cuda/common/platform.h.
void emu_cluster_arrive(int line);
void emu_cluster_wait(int line);
const void *emu_cluster_place(const void *own, unsigned block, int line);
#define CLUSTER_FUNCTIONS
#define __CUDA_ARCH_LIST__ 800, 900
static inline void cluster_arrive(int line = __builtin_LINE()) { emu_cluster_arrive(line); }
static inline void cluster_wait(int line = __builtin_LINE()) { emu_cluster_wait(line); }
static inline float cluster_load(const float *own, unsigned block, int line = __builtin_LINE()) {
    return *static_cast<const float *>(emu_cluster_place(own, block, line));
}

// Fibers are not preempted: a plain addition is atomic.
template <typename T>
static inline T atomicAdd(T *p, T x) {
    T old = *p;
    *p = old + x;
    return old;
}

template <typename T>
static inline void __stwb(T *p, T x) {
    *p = x;
}

// ---------------------------------------------------------------- arithmetic
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return out;
}
static inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}
static inline long long __double_as_longlong(double x) {
    long long u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
// The hardware's 2^x: what would be subnormal is zero.
static inline float emu_exp2(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}
#define HARDWARE_EXP2(x) emu_exp2(x)
static inline int64_t emu_nanoseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
#define DEVICE_NANOSECONDS() emu_nanoseconds()
// As documented, the fast division gives 0 for divisors above 2^126.
static inline float __fdividef(float a, float b) { return fabsf(b) > 0x1p126f && !isinf(b) ? 0.0f : a / b; }

// ---------------------------------------------------------------- runtime
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };
typedef struct CUstream_st *cudaStream_t;

enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension = 4 };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};

// The fields in CUDA's order; two of CUDA's names for them are taken above.
struct cudaLaunchConfig_t {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    const cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

// In a test program these are now.cc's, which do it at once; beside the emulated driver they are the
// driver's.
extern "C" const char *cudaGetErrorString(cudaError_t e);
extern "C" cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s);
extern "C" cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                       cudaStream_t s);

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
struct cudaFuncAttributes {
    int maxThreadsPerBlock;
};
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *out, const void *kernel);

// A kernel and its arguments, copied when it is launched; from malloc, words: the bytes of the arguments.
struct emu_call {
    void (*thread)(void *call);
    void *call;
    const void *words;
    size_t words_bytes;
};
// Takes the call, also when it refuses the launch.
cudaError_t emu_launch(const cudaLaunchConfig_t *config, const void *kernel, const struct emu_call *call);

template <typename... P>
struct emu_arguments {
    void (*kernel)(P...);
    std::tuple<P...> of;
};

// Compilers that cannot zero what lies within the arguments (the rest of an old address would look like one)
// do without the check of their pointers.
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11
#define EMU_WORDS(bytes)     (bytes)
#define EMU_CLEAR_PADDING(p) __builtin_clear_padding(p)
#else
#define EMU_WORDS(bytes)     0
#define EMU_CLEAR_PADDING(p) (void)(p)
#endif

// An empty argument has no bytes of its own: its one byte of padding may be another argument's.
template <typename T>
static inline void emu_clear_padding(T &x) {
    if constexpr (!std::is_empty<T>::value) EMU_CLEAR_PADDING(&x);
}

template <typename... P, typename... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...args) {
    using arguments = emu_arguments<P...>;
    static_assert((std::is_trivially_copyable<P>::value && ...), "CUDA copies arguments as bytes");
    void *place = calloc(1, sizeof(arguments));
    if (!place) abort();
    arguments *all = new (place) arguments{kernel, std::tuple<P...>(static_cast<P>(args)...)};
    std::apply([](auto &...a) { (emu_clear_padding(a), ...); }, all->of);
    auto thread = [](void *p) {
        arguments *a = static_cast<arguments *>(p);
        std::apply(a->kernel, a->of);
    };
    struct emu_call call = {thread, all, &all->of, sizeof...(P) ? EMU_WORDS(sizeof all->of) : 0};
    return emu_launch(config, reinterpret_cast<const void *>(kernel), &call);
}

#endif
