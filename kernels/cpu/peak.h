// The peak of a processor's arithmetic: the tile of a matrix product (kernels/cpu/gemm/micro_kernel.h) on panels
// in the first level of cache, on all threads. No matrix product can be faster.
#ifndef STARRING_KERNELS_CPU_PEAK_H
#define STARRING_KERNELS_CPU_PEAK_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/dtype.h"

struct cpu_peak {
    int threads;
    enum cpu_kernel kernel;  // of bf16
    enum dtype dtype;        // of the run
    int64_t depth;           // of a tile
    int64_t tiles;           // per thread in one call
    double flops;            // of one call, all threads
    // For tests of the arithmetic: each thread adds the last element of its tile, which is the total depth of
    // its tiles.
    atomic_llong results;
};

// Prepares the measurement for type t on this machine with `kernel`, about 10 ms per call. A kernel that
// cpu_kernel_resolve refuses is replaced by fma.
void cpu_peak_init(struct cpu_peak *p, enum cpu_kernel kernel, enum dtype t, int threads);
// One call, on the calling thread and its team. A function for stream_host: arg is a struct cpu_peak. Returns
// 0.
int cpu_peak_run(void *arg);
// To print: the instruction, and its meaning for the type. Cut to `bytes`; returns text.
const char *cpu_peak_text(const struct cpu_peak *p, char *text, int bytes);

#endif
