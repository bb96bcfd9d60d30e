// op_matmul of the cpu backend.
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"

typedef int product_fn(int threads, const struct matmul_args *g, const char **why);

static int by_instruction(int threads, const struct matmul_args *g, const char **why) {
    if (g->dt != DT_BF16) return gemm_blocked(threads, g, why);
    return gemm_pairs(threads, PAIRS_BY_INSTRUCTION, g, why);
}

static int by_fma(int threads, const struct matmul_args *g, const char **why) {
    if (g->dt != DT_BF16) return gemm_blocked(threads, g, why);
    return gemm_pairs(threads, PAIRS_BY_FMA, g, why);
}

// An epilogue is a pass of its own: it reads again what the product has just written or read.
static const char *matmul(product_fn *product, int threads, const struct matmul_args *g) {
    const char *why = NULL;
    struct matmul_args p = *g;
    assert(g->dt == DT_F32 || g->dt == DT_BF16 || g->dt == DT_F16);
    assert(matmul_valid(g));
    struct gelu_args gelu = matmul_gelu(g);
    struct bias_grad_args bias = matmul_bias_grad(g);
    if (g->epilogue == EPILOGUE_GELU) p.c = g->aux;
    if (product(threads, &p, &why) != 0) return why;
    if (g->epilogue == EPILOGUE_GELU) return cpu_gelu_fwd(threads, &gelu);
    if (g->epilogue == EPILOGUE_GELU_GRAD) return cpu_gelu_bwd(threads, &gelu);
    if (g->epilogue == EPILOGUE_BIAS_GRAD) return cpu_bias_grad(threads, &bias);
    return NULL;
}

const char *cpu_matmul(int threads, const struct matmul_args *g) { return matmul(gemm_blocked, threads, g); }

const char *cpu_matmul_pairs(int threads, const struct matmul_args *g) { return matmul(by_fma, threads, g); }

const char *cpu_matmul_pairs_fast(int threads, const struct matmul_args *g) {
    return matmul(by_instruction, threads, g);
}
