// Our own matrix product: operands of any of the three types, fp32 arithmetic, one rounding of the result. Its bits depend on the
// type and the shape alone: not on the way, the number of threads, the width of the vectors, or earlier work.
#ifndef STARRING_KERNELS_CPU_GEMM_GEMM_H
#define STARRING_KERNELS_CPU_GEMM_GEMM_H

#include "kernels/cpu/gemm/product_way.h"
#include "kernels/operations.h"

// As op_matmul without its epilogues, on `threads` threads, by a way of g's type. 0, or -1 with *why when the host has no
// memory for the packed blocks.
int gemm(int threads, const struct product_way *way, const struct matmul_args *g, const char **why);

#endif
