// Our own matrix product: fp32, bf16 or fp16 operands, fp32 arithmetic, one rounding of the result. Its bits
// depend only on type and shape: not on the way, the number of threads, the width of the vectors, or earlier
// work.
#ifndef STARRING_KERNELS_CPU_GEMM_GEMM_H
#define STARRING_KERNELS_CPU_GEMM_GEMM_H

#include "kernels/cpu/gemm/product_way.h"
#include "kernels/operations.h"

// As op_matmul without epilogues, on `threads` threads, by a way for g's type. Returns 0, or -1 with *why if
// the host has no memory for the packed blocks.
int gemm(int threads, const struct product_way *way, const struct matmul_args *g, const char **why);

#endif
