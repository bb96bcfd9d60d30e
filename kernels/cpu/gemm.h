// Our own matrix product: any of the three types in, fp32 arithmetic, one rounding out.
#ifndef STARRING_KERNELS_CPU_GEMM_H
#define STARRING_KERNELS_CPU_GEMM_H

#include "kernels/backend.h"

// As op_matmul, on `threads` OpenMP threads; the bits do not depend on their number. 0, or -1 with
// *why when the host has no memory for the packed blocks.
int gemm_blocked(int threads, const struct matmul_args *g, const char **why);

#endif
