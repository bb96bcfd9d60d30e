// Computes multiply-adds on every multiprocessor until an end time of the device's clock. A separate kernel
// decides the end time, so that it is the same for all blocks, whenever they start.
#include "kernels/cuda/common/platform.h"

#define BUSY_THREADS 256
#define BUSY_STEPS   1024  // between two readings of the clock: some microseconds

__global__ void busy_begin_kernel(struct busy_args a) {
    int64_t now = DEVICE_NANOSECONDS(), since = a.clock[0] ? now - a.clock[0] : 0;
    a.clock[1] = now + a.ns + (int64_t)(a.factor * (double)since);
}

// x is never negative, so the store never happens; the compiler cannot know that.
__global__ void __launch_bounds__(BUSY_THREADS) busy_kernel(int64_t *clock) {
    int64_t until = clock[1];
    float x = (float)threadIdx.x;
    while (DEVICE_NANOSECONDS() < until) {
        for (int i = 0; i < BUSY_STEPS; i++) x = __fmaf_rn(x, 0.5f, 1.0f);
    }
    if (x < 0.0f) clock[1] = 0;
}

__global__ void busy_end_kernel(int64_t *clock) { clock[0] = DEVICE_NANOSECONDS(); }

int cuda_op_busy(struct cuda_ctx *ctx, const struct busy_args *a) {
    struct launch_shape one = flat_shape(1, 1), all = flat_shape(ctx->sm_count, BUSY_THREADS);
    if (a->ns > 0 || a->factor > 0) {
        if (launch<busy_begin_kernel>(ctx, one, *a) != 0 || launch<busy_kernel>(ctx, all, a->clock) != 0)
            return -1;
    }
    return launch<busy_end_kernel>(ctx, one, a->clock);
}
