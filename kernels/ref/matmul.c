// Matrix product, the definition in double.
#include <assert.h>

#include "kernels/ref/ref.h"

static void product(const struct matmul_args *g, void *c) {
    int64_t lda = matmul_lda(g), ldb = matmul_ldb(g), ldc = matmul_ldc(g);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            size_t at = (size_t)(i * ldc + j);
            double sum = 0;
            for (int64_t k = 0; k < g->k; k++) {
                size_t ia = (size_t)(g->trans_a ? k * lda + i : i * lda + k);
                size_t ib = (size_t)(g->trans_b ? j * ldb + k : k * ldb + j);
                sum += (double)dtype_load(g->dt, g->a, ia) * dtype_load(g->dt, g->b, ib);
            }
            if (g->bias) sum += dtype_load(g->dt, g->bias, (size_t)j);
            if (g->accumulate) sum += dtype_load(g->dt, c, at);
            dtype_store(g->dt, c, at, (float)sum);
        }
}

void ref_matmul(const struct matmul_args *g) {
    struct gelu_args gelu = matmul_gelu(g);
    struct bias_grad_args bias = matmul_bias_grad(g);
    assert(matmul_valid(g));
    product(g, g->epilogue == EPILOGUE_GELU ? g->aux : g->c);
    if (g->epilogue == EPILOGUE_GELU) ref_gelu_fwd(&gelu);
    if (g->epilogue == EPILOGUE_GELU_GRAD) ref_gelu_bwd(&gelu);
    if (g->epilogue == EPILOGUE_BIAS_GRAD) ref_bias_grad(&bias);
}
