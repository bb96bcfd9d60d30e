// Matrix product, the definition in double.
#include <assert.h>

#include "kernels/ref/ref.h"

int ref_op_matmul(int threads, const void *args, const char **why) {
    (void)threads;
    (void)why;
    const struct matmul_args *g = args;
    assert(!(g->bias && g->accumulate));
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            size_t at = (size_t)(i * g->n + j);
            double sum = 0;
            for (int64_t k = 0; k < g->k; k++) {
                size_t ia = (size_t)(g->trans_a ? k * g->m + i : i * g->k + k);
                size_t ib = (size_t)(g->trans_b ? j * g->k + k : k * g->n + j);
                sum += (double)dtype_load(g->dt, g->a, ia) * dtype_load(g->dt, g->b, ib);
            }
            if (g->bias) sum += dtype_load(g->dt, g->bias, (size_t)j);
            if (g->accumulate) sum += dtype_load(g->dt, g->c, at);
            dtype_store(g->dt, g->c, at, (float)sum);
        }
    return 0;
}
