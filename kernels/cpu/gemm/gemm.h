// Our own matrix product: any of the three types in, fp32 arithmetic, one rounding out. There are two kinds
// of product, and each one's bits depend on the shape alone: not on the number of threads, the width of the
// vectors, or what ran before.
#ifndef STARRING_KERNELS_CPU_GEMM_GEMM_H
#define STARRING_KERNELS_CPU_GEMM_GEMM_H

#include "kernels/backend.h"

// As op_matmul, on `threads` threads; 16-bit operands are converted to fp32 as blocks of them
// are packed. 0, or -1 with *why when the host has no memory for the packed blocks.
int gemm_blocked(int threads, const struct matmul_args *g, const char **why);

// For bf16: what AVX512_BF16's vdpbf16ps computes (Intel's Software Developer's Manual, volume 2), pair by
// pair
//     sum = fma(a[k+1], b[k+1], sum) ; sum = fma(a[k], b[k], sum)        k = 0, 2, 4, ..
// to nearest even, with subnormal numbers taken for zero before and flushed to zero after each fma. An odd
// last k is paired with zeros. Other bits than gemm_blocked's, the same bits by either way:
//     PAIRS_BY_INSTRUCTION  the instruction itself; only where gemm_has_pairs
//     PAIRS_BY_FMA          fp32 panels whose k are swapped in pairs, multiplied with the processor's modes
//     DAZ
//                           and FTZ on; only where gemm_can_pairs. As fast as gemm_blocked.
enum pairs_way { PAIRS_BY_INSTRUCTION, PAIRS_BY_FMA };
int gemm_pairs(int threads, enum pairs_way way, const struct matmul_args *g, const char **why);
bool gemm_has_pairs(void);  // built with the instruction, and this processor has it
bool gemm_can_pairs(void);  // built with fused multiply-adds and the processor's modes

// Whether the instruction is the faster one: twice as fast as gemm_blocked on AMD since Zen 4 and on Cooper
// Lake; half as fast on Intel since Sapphire Rapids (measured), whose cores leave bf16 to AMX. Decided by the
// processor's name and never by a clock, so that all ranks on equal machines decide alike.
bool gemm_pairs_are_faster(void);
// Whether this processor's instruction gives the bits above: both ways on a few thousand random pairs,
// subnormal numbers among them. False also where one of them is missing. Under a millisecond.
bool gemm_pairs_agree(void);

#endif
