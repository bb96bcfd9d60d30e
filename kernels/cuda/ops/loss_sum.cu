// The sum of the losses: one block, whose threads take every LOSS_THREADS-th row and then add up in pairs.
// Its size is a constant, so the order of additions depends on the number of rows alone. A step has one such
// sum over some ten thousand rows, which more blocks would not make noticeably shorter.
#include "kernels/cuda/common/platform.h"

#define LOSS_THREADS 1024
#define LOSS_AHEAD   8  // loads of a thread under way

__global__ void __launch_bounds__(LOSS_THREADS) loss_sum_kernel(struct loss_sum_args a) {
    SHARED_ARRAY(double, slots, WARP);
    double total = 0.0;
    for (int64_t first = threadIdx.x; first < a.rows; first += LOSS_AHEAD * LOSS_THREADS) {
        float loss[LOSS_AHEAD];
#pragma unroll
        for (int k = 0; k < LOSS_AHEAD; k++) {
            int64_t row = first + (int64_t)k * LOSS_THREADS;
            loss[k] = row < a.rows ? a.loss[row] : 0.0f;
        }
        // Zeros behind the last row change nothing: the total is never -0.
#pragma unroll
        for (int k = 0; k < LOSS_AHEAD; k++) total = __dadd_rn(total, (double)loss[k]);
    }
    total = block_reduce(total, slots, 0.0, sum_of());
    if (threadIdx.x == 0) *a.out = a.accumulate ? __dadd_rn(*a.out, total) : total;
}

int cuda_op_loss_sum(struct cuda_ctx *ctx, const void *args) {
    return launch<loss_sum_kernel>(ctx, flat_shape(1, LOSS_THREADS),
                                   *static_cast<const struct loss_sum_args *>(args));
}
