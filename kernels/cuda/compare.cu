// How far two buffers differ: for bench tune, which asks whether an algorithm repeats and whether it computes
// what another one does.
#include "kernels/cuda/common/platform.h"

#define COMPARE_THREADS 256
#define COMPARE_EACH    16  // elements a thread, where there are enough blocks

template <typename T>
struct compare_buffers {
    struct cuda_difference *out;
    const T *x, *reference;
    int64_t n;
};

__device__ static inline uint32_t bits_of(float x) { return __float_as_uint(x); }
template <typename T>
__device__ static inline uint32_t bits_of(T x) {
    return x.bits;
}

template <typename T>
__global__ void __launch_bounds__(COMPARE_THREADS) compare_kernel(struct compare_buffers<T> p) {
    SHARED_ARRAY(double, slots, WARP);
    double unequal = 0, difference = 0, reference = 0;
    int64_t step = (int64_t)gridDim.x * COMPARE_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * COMPARE_THREADS + threadIdx.x; i < p.n; i += step) {
        T a = p.x[i], b = p.reference[i];
        double x = (double)to_f32(a), r = (double)to_f32(b);
        unequal += bits_of(a) != bits_of(b);
        difference += (x - r) * (x - r);
        reference += r * r;
    }
    unequal = block_reduce(unequal, slots, 0.0, sum_of());
    __syncthreads();
    difference = block_reduce(difference, slots, 0.0, sum_of());
    __syncthreads();
    reference = block_reduce(reference, slots, 0.0, sum_of());
    if (threadIdx.x == 0) {
        struct cuda_difference d = {unequal, difference, reference};
        p.out[blockIdx.x] = d;
    }
}

int cuda_compare_blocks(int64_t n) {
    int64_t wanted = divide_up(n, (int64_t)COMPARE_THREADS * COMPARE_EACH);
    return (int)lesser(greater(wanted, (int64_t)1), (int64_t)CUDA_COMPARE_BLOCKS);
}

int cuda_compare(struct cuda_ctx *ctx, const struct cuda_compare_args *a) {
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        struct compare_buffers<T> p = {
            a->out, (const T *)a->x, (const T *)a->reference, a->n
        };
        return launch<compare_kernel<T>>(ctx, flat_shape(cuda_compare_blocks(a->n), COMPARE_THREADS), p);
    });
}
