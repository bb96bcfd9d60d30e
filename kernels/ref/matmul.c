// Matrix product: defined in double, but for bf16 in the order that kernels/bf16_product.h defines.
#include <assert.h>

#include "kernels/bf16_product.h"
#include "kernels/ref/ref.h"

static float element(const struct matmul_args *g, int64_t i, int64_t j, int64_t k, float *b) {
    *b = dtype_load(g->dt, g->b, (size_t)(g->trans_b ? j * matmul_ldb(g) + k : k * matmul_ldb(g) + j));
    return dtype_load(g->dt, g->a, (size_t)(g->trans_a ? k * matmul_lda(g) + i : i * matmul_lda(g) + k));
}

static double sum_in_double(const struct matmul_args *g, int64_t i, int64_t j) {
    double sum = 0;
    float b;
    for (int64_t k = 0; k < g->k; k++) sum += (double)element(g, i, j, k, &b) * b;
    return sum;
}

static float sum_of_blocks(const struct matmul_args *g, int64_t i, int64_t j) {
    float c = 0;
    for (int64_t k0 = 0; k0 < g->k; k0 += BF16_BLOCK) {
        float a[BF16_BLOCK] = {0}, b[BF16_BLOCK] = {0};
        for (int k = 0; k < BF16_BLOCK && k0 + k < g->k; k++) a[k] = element(g, i, j, k0 + k, b + k);
        c = bf16_block(a, b, c);
    }
    return c;
}

static void product(const struct matmul_args *g, void *c) {
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            size_t at = (size_t)(i * matmul_ldc(g) + j);
            float bias = g->bias ? dtype_load(g->dt, g->bias, (size_t)j) : 0;
            float kept = g->accumulate ? dtype_load(g->dt, c, at) : 0;
            if (g->dt != DT_BF16) {
                dtype_store(g->dt, c, at, (float)(sum_in_double(g, i, j) + bias + kept));
                continue;
            }
            float sum = sum_of_blocks(g, i, j);
            if (g->bias) sum += bias;
            if (g->accumulate) sum += kept;
            dtype_store(g->dt, c, at, sum);
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
