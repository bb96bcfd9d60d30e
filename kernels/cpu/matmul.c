// op_matmul of the cpu backend.
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"
#include "kernels/strides.h"

static int product(int threads, const struct matmul_args *g, const char **why) {
    if (g->dt == DT_BF16 && gemm_pairs_are_faster()) return gemm_pairs(threads, g, why);
    return gemm_blocked(threads, g, why);
}

// A GELU epilogue is a pass of its own: it reads again what the product has just written.
int cpu_op_matmul(int threads, const void *args, const char **why) {
    const struct matmul_args *g = args;
    struct matmul_args p = *g;
    struct gelu_args gelu = {.y = g->c, .x = g->aux, .dy = g->c, .n = g->m * g->n, .dt = g->dt};
    assert(g->dt == DT_F32 || g->dt == DT_BF16 || g->dt == DT_F16);
    assert(matmul_valid(g));
    if (g->epilogue == EPILOGUE_GELU) p.c = g->aux;
    if (product(threads, &p, why) != 0) return -1;
    if (g->epilogue == EPILOGUE_GELU) return cpu_op_gelu_fwd(threads, &gelu, why);
    if (g->epilogue == EPILOGUE_GELU_GRAD) return cpu_op_gelu_bwd(threads, &gelu, why);
    return 0;
}
