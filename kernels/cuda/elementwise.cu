// y = a + b.
#include "kernels/cuda/map.h"

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
