// Which matrix product a run takes.
#include "kernels/cpu_kernel.h"

#include "kernels/cpu/gemm/gemm.h"

const char *cpu_kernel_name(enum cpu_kernel k) {
    static const char *const names[CPU_KERNEL_COUNT] = {"auto", "fma", "bf16-pairs"};
    return names[k];
}

// "auto" is the faster one: twice the speed in bf16 where the instruction is there. Summaries name the one
// taken, which tells apart runs on unlike machines; asking for one of them makes such runs comparable.
int cpu_kernel_resolve(enum cpu_kernel asked, enum dtype t, enum cpu_kernel *out, const char **why) {
    *out = CPU_KERNEL_FMA;
    if (asked == CPU_KERNEL_FMA) return 0;
    if (asked == CPU_KERNEL_AUTO) {
        if (t == DT_BF16 && gemm_pairs_are_faster() && gemm_pairs_agree()) *out = CPU_KERNEL_PAIRS;
        return 0;
    }
    if (t != DT_BF16) {
        *why = "it multiplies bf16, and this run's dtype is another";
        return -1;
    }
    if (!gemm_can_pairs()) {
        *why = "this program was built without fused multiply-adds (ARCH=x86-64-v3 or later has them)";
        return -1;
    }
    *out = CPU_KERNEL_PAIRS;
    return 0;
}

bool cpu_kernel_by_instruction(enum cpu_kernel asked, enum dtype t) {
    enum cpu_kernel kernel;
    const char *why;
    return t == DT_BF16 && cpu_kernel_resolve(asked, t, &kernel, &why) == 0 && kernel == CPU_KERNEL_PAIRS &&
           gemm_pairs_are_faster() && gemm_pairs_agree();
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
