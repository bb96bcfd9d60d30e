// y = a + b, and a bias repeated over all rows.
#include "kernels/cuda/common/map.h"

struct add_fn {
    static constexpr int inputs = 2;
    __device__ float operator()(float a, float b) const { return __fadd_rn(a, b); }
};

int cuda_op_add(struct cuda_ctx *ctx, const void *args) {
    const struct add_args *a = static_cast<const struct add_args *>(args);
    return with_type(ctx, a->dt, [&](auto type) {
        using T = decltype(type);
        return map_launch(ctx, map_args<T>{(T *)a->y, (const T *)a->a, (const T *)a->b, a->n}, add_fn());
    });
}

template <typename T>
struct row_buffers {
    T *c;           // (M,N), rows ld apart
    const T *bias;  // (N)
    int64_t n, ld;
};

// Block (x, row): MAP_THREADS elements of a row.
template <typename T>
__global__ void __launch_bounds__(MAP_THREADS) bias_rows_kernel(struct row_buffers<T> p) {
    int64_t j = (int64_t)blockIdx.y * MAP_THREADS + threadIdx.x;
    if (j < p.n) p.c[(int64_t)blockIdx.x * p.ld + j] = p.bias[j];
}

int cuda_op_bias_rows(struct cuda_ctx *ctx, const void *args) {
    const struct matmul_args *m = static_cast<const struct matmul_args *>(args);
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
