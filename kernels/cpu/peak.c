#include "kernels/cpu/peak.h"

#include <stdio.h>

#include "kernels/cpu/gemm/micro_kernel.h"
#include "kernels/cpu/team.h"

#define DEPTH    128  // panels of the largest tile take 2 x 16 KiB
#define SIDE_MAX 32

#if defined(__FMA__)
#define FLOPS 1e9  // per thread and call
#else
#define FLOPS 1e7  // slow: every fma calls fmaf
#endif

static void run_part(void *arg, int index, int count) {
    struct cpu_peak *p = arg;
    const struct micro_kernel *micro = micro_kernel_of(p->dtype, p->kernel);
    _Alignas(64) char a[DEPTH * SIDE_MAX * 4 + 128], b[DEPTH * SIDE_MAX * 4 + 128];
    _Alignas(64) float c[SIDE_MAX * SIDE_MAX];
    uint8_t ones[SIDE_MAX * DEPTH * 4];
    for (int i = 0; i < SIDE_MAX * DEPTH; i++) dtype_store(p->dtype, ones, (size_t)i, 1.0f);
    const struct operand x = {ones, p->dtype, DEPTH, 1};
    micro->pack_a(&x, micro->rows, DEPTH, a);
    micro->pack_b(&x, micro->columns, DEPTH, b);
    if (micro->begin) micro->begin();
    for (int i = index; i < p->threads; i += count) {
        for (int64_t n = 0; n < p->tiles; n++)
            micro->tile(a, b, micro->rows, DEPTH, c, micro->columns, n > 0);
        atomic_fetch_add(&p->results, (long long)c[micro->rows * micro->columns - 1]);
    }
    if (micro->end) micro->end();
}

void cpu_peak_init(struct cpu_peak *p, enum cpu_kernel kernel, enum dtype t, int threads) {
    const char *why;
    *p = (struct cpu_peak){.threads = threads, .dtype = t, .depth = DEPTH};
    if (cpu_kernel_resolve(kernel, &p->kernel, &why)) p->kernel = CPU_KERNEL_FMA;
    const struct micro_kernel *micro = micro_kernel_of(t, p->kernel);
    double flops = 2.0 * micro->rows * micro->columns * DEPTH;
    p->tiles = (int64_t)(FLOPS / flops) + 1;
    // fp32 holds c's sums of ones exactly up to 2^24.
    if (p->tiles > (1 << 24) / DEPTH) p->tiles = (1 << 24) / DEPTH;
    p->flops = flops * (double)p->tiles * threads;
}

int cpu_peak_run(void *arg) {
    struct cpu_peak *p = arg;
    team_run(p->threads, run_part, p);
    return 0;
}

const char *cpu_peak_text(const struct cpu_peak *p, char *text, int bytes) {
    const char *what = micro_kernel_of(p->dtype, p->kernel)->instruction;
#if !defined(__FMA__)
    what = "fp32 fma by a function of the C library (ARCH=x86-64-v3 or later has an instruction)";
#endif
    snprintf(text, (size_t)bytes, "%s on panels in the first level of cache, built for %s, %d thread%s", what,
             cpu_kernel_vectors(), p->threads, p->threads == 1 ? "" : "s");
    return text;
}
