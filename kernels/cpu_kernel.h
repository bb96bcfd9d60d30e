// How the cpu backend multiplies matrices: the one choice that its bits depend on. For the rest they depend
// neither on the vector instructions that the program was built for, nor on the processor, nor on threads.
#ifndef STARRING_KERNELS_CPU_KERNEL_H
#define STARRING_KERNELS_CPU_KERNEL_H

#include <stdbool.h>

#include "kernels/dtype.h"

enum cpu_kernel {
    CPU_KERNEL_AUTO,  // bf16: pairs where the processor has a fast instruction for them; else fma
    CPU_KERNEL_FMA,   // an fp32 chain of fused multiply-adds in the order of k, any type, any machine
    CPU_KERNEL_PAIRS,  // bf16 only: AVX512_BF16's pairs (kernels/cpu/gemm/gemm.h), by the instruction or by fp32
                       // fma
    CPU_KERNEL_COUNT
};

// "auto", "fma", "bf16-pairs".
const char *cpu_kernel_name(enum cpu_kernel k);
// What `asked` becomes on this machine for a run in type t: CPU_KERNEL_FMA or CPU_KERNEL_PAIRS. -1 with *why
// set to a constant text when this program or type cannot do it.
int cpu_kernel_resolve(enum cpu_kernel asked, enum dtype t, enum cpu_kernel *out, const char **why);
// Whether products of a run in type t then multiply pairs of bf16 by the processor's instruction, and not by
// fp32 fused multiply-adds.
bool cpu_kernel_by_instruction(enum cpu_kernel asked, enum dtype t);
// The vector instructions that this program was built for, for people: "AVX2, FMA, F16C".
const char *cpu_kernel_vectors(void);

#endif
