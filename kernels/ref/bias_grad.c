// The gradient of a bias.
#include "kernels/ref/ref.h"

int ref_op_bias_grad(int threads, const void *args, const char **why) {
    const struct bias_grad_args *a = args;
    (void)threads;
    (void)why;
    for (int64_t c = 0; c < a->n; c++) {
        double total = a->accumulate ? (double)dtype_load(a->dt, a->dbias, c) : 0.0;
        for (int64_t r = 0; r < a->rows; r++) total += (double)dtype_load(a->dt, a->dy, r * a->n + c);
        dtype_store(a->dt, a->dbias, c, (float)total);
    }
    return 0;
}
