// The peak of a processor's arithmetic: multiply-adds whose operands stay in registers, in as many
// independent chains as hide their latency, on all threads. A matrix product cannot be faster.
#ifndef STARRING_KERNELS_CPU_PEAK_H
#define STARRING_KERNELS_CPU_PEAK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/dtype.h"

struct cpu_peak {
    int threads;
    bool pairs;        // the instruction that multiplies pairs of bf16
    enum dtype dtype;  // of the run
    int64_t steps;     // of a chain in one call
    double flops;      // of one call, all threads
    // Keeps the compiler from leaving the arithmetic out, and lets a test check it: the exclusive or, over
    // threads and calls, of the bits of the 12 chains' sum plus the thread's index. Chains start at 1 to 12
    // and add 1 a step.
    atomic_uint results;
};

// Prepares what a run in type t does on this machine with `kernel`: about 10 ms per call. A kernel that
// cpu_kernel_resolve refuses counts as fma.
void cpu_peak_init(struct cpu_peak *p, enum cpu_kernel kernel, enum dtype t, int threads);
// One call, on the calling thread and its team. A function for stream_host: arg is a struct cpu_peak; 0.
int cpu_peak_run(void *arg);
// For people: which instruction, and what it means for the type. Cut to `bytes`; returns text.
const char *cpu_peak_text(const struct cpu_peak *p, char *text, int bytes);

#endif
