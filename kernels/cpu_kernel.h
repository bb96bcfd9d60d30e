// The kernels with which the cpu backend can multiply bf16 matrices. All give the same bits
// (kernels/bf16_product.h), so a kernel is chosen for its speed, or to measure it. fp32 and fp16 share one.
#ifndef STARRING_KERNELS_CPU_KERNEL_H
#define STARRING_KERNELS_CPU_KERNEL_H

// Enumerator and name, slower ones first: "auto" takes the last one that the processor can use and that is preferred on it. A kernel's row bf16_NAME_kernel and its code are a file of kernels/cpu/gemm
// (micro_kernel.h).
#define CPU_KERNELS(ROW)                ROW(FMA, fma) ROW(AVX512_BF16, avx512_bf16) ROW(AMX, amx)
#define CPU_KERNEL_ENUMERATOR(ID, name) CPU_KERNEL_##ID,
enum cpu_kernel {
    CPU_KERNEL_AUTO,  // the fastest kernel of this processor
    CPU_KERNELS(CPU_KERNEL_ENUMERATOR) CPU_KERNEL_COUNT
};

// "auto", "fma", "avx512_bf16", "amx"; then NULL.
const char *cpu_kernel_name(enum cpu_kernel k);
extern const char *const cpu_kernel_names[CPU_KERNEL_COUNT + 1];
// *out receives the kernel that `asked` means on this machine, never CPU_KERNEL_AUTO. Returns 0, or -1 with a
// constant text in *why if this program, processor or system does not support it.
int cpu_kernel_resolve(enum cpu_kernel asked, enum cpu_kernel *out, const char **why);
// The vector instructions that this program was built for, as printed: "AVX2 and FMA".
const char *cpu_kernel_vectors(void);

#endif
