// Which way products of bf16 take.
#include "kernels/cpu_kernel.h"

const char *cpu_kernel_name(enum cpu_kernel k) {
    static const char *const names[CPU_KERNEL_COUNT] = {"auto", "fma", "avx512_bf16", "amx"};
    return names[k];
}

int cpu_kernel_resolve(enum cpu_kernel asked, enum cpu_kernel *out, const char **why) {
    *out = CPU_KERNEL_FMA;
    if (asked == CPU_KERNEL_AUTO || asked == CPU_KERNEL_FMA) return 0;
    *why = asked == CPU_KERNEL_AMX ? "this processor has no AMX"
                                   : "this program multiplies bf16 by fused multiply-adds alone";
    return -1;
}

const char *cpu_kernel_vectors(void) {
#if defined(__AVX512BF16__)
    return "AVX-512 with bf16";
#elif defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    return "AVX2 and FMA";
#elif defined(__AVX__)
    return "AVX";
#elif defined(__SSE2__)
    return "SSE2";
#else
    return "none";
#endif
}
