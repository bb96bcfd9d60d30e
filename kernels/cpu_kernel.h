// How the cpu backend computes products of bf16: three ways to the same bits. Other types have one way. No bit
// depends on them, on the vector instructions that the program was built for, on the processor, or on the
// number of threads.
#ifndef STARRING_KERNELS_CPU_KERNEL_H
#define STARRING_KERNELS_CPU_KERNEL_H

enum cpu_kernel {
    CPU_KERNEL_AUTO,         // the fastest one that this program and this processor have
    CPU_KERNEL_FMA,          // fp32 fused multiply-adds; on every machine
    CPU_KERNEL_AVX512_BF16,  // pairs of bf16 by VDPBF16PS
    CPU_KERNEL_AMX,          // tiles of bf16 by TDPBF16PS
    CPU_KERNEL_COUNT
};

// "auto", "fma", "avx512_bf16", "amx".
const char *cpu_kernel_name(enum cpu_kernel k);
// The way that products of bf16 take here if `asked` is asked for: never CPU_KERNEL_AUTO. Returns -1 with *why set
// to a constant text if this program or this processor does not have it.
int cpu_kernel_resolve(enum cpu_kernel asked, enum cpu_kernel *out, const char **why);
// The vector instructions that this program was built for, for people: "AVX2, FMA, F16C".
const char *cpu_kernel_vectors(void);

#endif
