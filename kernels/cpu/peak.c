#include "kernels/cpu/peak.h"

#include <stdio.h>

#include "kernels/cpu/gemm/gemm_kernel.h"
#include "kernels/cpu/team.h"

// Four cycles of latency, two multiply-adds a cycle: eight chains would do. Twelve and two operands fit
// sixteen registers.
#define CHAINS 12

#if defined(__FMA__)
#define STEPS (INT64_C(1) << 22)
#else
#define STEPS (INT64_C(1) << 15)  // calls of fmaf
#endif

VEC_INLINE float chains(bool pairs, const float *operands, int64_t steps) {
    const vecf x = vec_splat(operands), y = vec_splat(operands + 1);
    vecf sum[CHAINS];
    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = vec_set((float)(i + 1));
    for (int64_t s = 0; s < steps; s++) {
        _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) sum[i] = gemm_step(pairs, x, y, sum[i]);
    }
    vecf total = {0};
    _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) total += sum[i];
    return total[0];
}

// Never inlined or analysed (noipa), so that the compiler knows neither the operands nor the number of steps.
static __attribute__((noipa)) float chains_fma(const float *operands, int64_t steps) {
    return chains(false, operands, steps);
}
static __attribute__((noipa)) float chains_pairs(const float *operands, int64_t steps) {
    return chains(true, operands, steps);
}

static void run_part(void *arg, int index, int count) {
    struct cpu_peak *p = arg;
    // 1 in fp32, (0, 1) as a pair of bf16: each step adds one, exactly, so that a test can count them.
    static const float operands[2] = {1.0f, 1.0f};
    for (int i = index; i < p->threads; i += count) {
        float x = p->pairs ? chains_pairs(operands, p->steps) : chains_fma(operands, p->steps);
        atomic_fetch_xor(&p->results, f32_to_bits(x) + (unsigned)i);
    }
}

void cpu_peak_init(struct cpu_peak *p, enum cpu_kernel kernel, enum dtype t, int threads) {
    *p = (struct cpu_peak){.threads = threads, .dtype = t, .steps = STEPS, .pairs = false};
    (void)kernel;
    p->flops = 2.0 * CHAINS * VEC * (p->pairs ? 2 : 1) * (double)STEPS * threads;
}

int cpu_peak_run(void *arg) {
    struct cpu_peak *p = arg;
    team_run(p->threads, run_part, p);
    return 0;
}

const char *cpu_peak_text(const struct cpu_peak *p, char *text, int bytes) {
#if defined(__FMA__)
    const char *what = p->pairs ? "vdpbf16ps, pairs of bf16" : "fp32 fma";
#else
    const char *what = "fp32 fma by a function of the C library (ARCH=x86-64-v3 or later has an instruction)";
#endif
    snprintf(text, (size_t)bytes, "%s in registers, %s, %d chains a thread, %d thread%s%s%s%s", what,
             cpu_kernel_vectors(), CHAINS, p->threads, p->threads == 1 ? "" : "s",
             p->pairs || p->dtype == DT_F32 ? "" : "; ",
             p->pairs || p->dtype == DT_F32 ? "" : dtype_name(p->dtype),
             p->pairs || p->dtype == DT_F32 ? "" : " products run on fp32 fma here");
    return text;
}
