// Our own matrix product: operands of any of the three types, fp32 arithmetic, one rounding of the result.
// There are two kinds of product. The bits of each depend on the shape alone: not on the number of threads,
// the width of the vectors, or earlier work.
#ifndef STARRING_KERNELS_CPU_GEMM_GEMM_H
#define STARRING_KERNELS_CPU_GEMM_GEMM_H

#include "kernels/operations.h"

// As op_matmul, on `threads` threads; 16-bit operands are converted to fp32 as blocks of them
// are packed. 0, or -1 with *why when the host has no memory for the packed blocks.
int gemm_blocked(int threads, const struct matmul_args *g, const char **why);

// For bf16, what AVX512_BF16's vdpbf16ps computes (Intel's Software Developer's Manual, volume 2):
//
//     sum = fma(a[k+1], b[k+1], sum) ; sum = fma(a[k], b[k], sum)        k = 0, 2, 4, ..
//
// rounded to nearest even. Subnormal numbers are taken as zero before each fma and flushed to zero after it.
// An odd last k is paired with zeros. The bits differ from gemm_blocked's; both ways give the same bits:
//
//     PAIRS_BY_INSTRUCTION  the instruction itself; only where gemm_has_pairs
//     PAIRS_BY_FMA          fp32 panels whose k are swapped in pairs, multiplied with the processor's modes
//                           DAZ and FTZ on; only where gemm_can_pairs. As fast as gemm_blocked.
enum pairs_way { PAIRS_BY_INSTRUCTION, PAIRS_BY_FMA };
int gemm_pairs(int threads, enum pairs_way way, const struct matmul_args *g, const char **why);
bool gemm_has_pairs(void);  // built with the instruction, and this processor has it
bool gemm_can_pairs(void);  // built with fused multiply-adds and the processor's modes

// Whether the instruction is faster than gemm_blocked: it is twice as fast on AMD since Zen 4 and on Cooper
// Lake, and half as fast on Intel since Sapphire Rapids (measured), whose cores leave bf16 to AMX. The
// processor's name decides, never a clock, so that all ranks on equal machines decide alike.
bool gemm_pairs_are_faster(void);
// Whether this processor's instruction gives the bits above: compares both ways on a few thousand random
// pairs, subnormal numbers included. False also where one of the ways is missing. Takes less than a
// millisecond.
bool gemm_pairs_agree(void);

#endif
