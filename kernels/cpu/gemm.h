// Our own matrix product: any of the three types in, fp32 arithmetic, one rounding out. The bits of a
// result depend on the shape alone: not on the number of threads, nor on what ran before.
#ifndef STARRING_KERNELS_CPU_GEMM_H
#define STARRING_KERNELS_CPU_GEMM_H

#include "kernels/backend.h"

// As op_matmul, on `threads` OpenMP threads; 16-bit operands are converted to fp32 as blocks of them
// are packed. 0, or -1 with *why when the host has no memory for the packed blocks.
int gemm_blocked(int threads, const struct matmul_args *g, const char **why);

// The same for bf16 by the machine's products of pairs of bf16 (AVX512_BF16's vdpbf16ps), which take
// subnormal numbers for zero. Only where gemm_has_pairs.
int gemm_pairs(int threads, const struct matmul_args *g, const char **why);
bool gemm_has_pairs(void);

// Whether gemm_pairs is the faster one: twice as fast on AMD since Zen 4 and on Cooper Lake; half as
// fast as converting on Intel since Sapphire Rapids (measured), whose cores leave bf16 to AMX. Decided
// by the processor's name and never by a clock, so that all ranks on equal machines decide alike.
bool gemm_pairs_are_faster(void);

#endif
