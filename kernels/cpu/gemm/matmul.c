// op_matmul of the cpu backend.
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm.h"

// An epilogue is a separate pass over what the product has just written or read.
const char *cpu_matmul(int threads, enum cpu_kernel kernel, const struct matmul_args *g) {
    const char *why = NULL;
    struct matmul_args p = *g;
    assert(g->dt == DT_F32 || g->dt == DT_BF16 || g->dt == DT_F16);
    assert(matmul_valid(g));
    struct gelu_args gelu = matmul_gelu(g);
    struct bias_grad_args bias = matmul_bias_grad(g);
    if (g->epilogue == EPILOGUE_GELU) p.c = g->aux;
    if (gemm(threads, product_way(g->dt, kernel), &p, &why) != 0) return why;
    if (g->epilogue == EPILOGUE_GELU) return cpu_gelu_fwd(threads, &gelu);
    if (g->epilogue == EPILOGUE_GELU_GRAD) return cpu_gelu_bwd(threads, &gelu);
    if (g->epilogue == EPILOGUE_BIAS_GRAD) return cpu_bias_grad(threads, &bias);
    return NULL;
}
