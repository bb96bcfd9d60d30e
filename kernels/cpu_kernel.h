// How the cpu backend multiplies matrices: the one choice that its bits depend on. They do not depend on the
// vector instructions that the program was built for, on the processor, or on the number of threads.
#ifndef STARRING_KERNELS_CPU_KERNEL_H
#define STARRING_KERNELS_CPU_KERNEL_H

#include <stdbool.h>

#include "kernels/dtype.h"

enum cpu_kernel {
    CPU_KERNEL_AUTO,   // bf16: pairs where the processor has a fast instruction for them; else fma
    CPU_KERNEL_FMA,    // an fp32 chain of fused multiply-adds in the order of k, any type, any machine
    CPU_KERNEL_PAIRS,  // bf16 only: AVX512_BF16's pairs (kernels/cpu/gemm/gemm.h)
    CPU_KERNEL_COUNT
};

// "auto", "fma", "bf16-pairs".
const char *cpu_kernel_name(enum cpu_kernel k);
// Resolves `asked` on this machine for a run in type t to CPU_KERNEL_FMA or CPU_KERNEL_PAIRS. Returns -1 with
// *why set to a constant text if the program or the type does not support it.
int cpu_kernel_resolve(enum cpu_kernel asked, enum dtype t, enum cpu_kernel *out, const char **why);
// Whether products of such a run multiply pairs of bf16 by the processor's instruction. If not, they use fp32
// fused multiply-adds.
bool cpu_kernel_by_instruction(enum cpu_kernel asked, enum dtype t);
// The vector instructions that this program was built for, for people: "AVX2, FMA, F16C".
const char *cpu_kernel_vectors(void);

#endif
