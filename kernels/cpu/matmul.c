// op_matmul of the cpu backend.
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm.h"

int cpu_op_matmul(int threads, const void *args, const char **why) {
    const struct matmul_args *g = args;
    assert(g->dt == DT_F32 || g->dt == DT_BF16 || g->dt == DT_F16);
    assert(!(g->bias && g->accumulate));
    if (g->dt == DT_BF16 && gemm_pairs_are_faster()) return gemm_pairs(threads, g, why);
    return gemm_blocked(threads, g, why);
}
