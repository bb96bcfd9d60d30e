// The peak of a processor's arithmetic: the tile of a matrix product (kernels/cpu/gemm/product_way.h) over panels that stay in
// the first level of cache, on all threads. A matrix product cannot be faster.
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
    int64_t tiles;           // of a thread in one call
    double flops;            // of one call, all threads
    // Lets a test check the arithmetic: each thread adds the last element of its tile, which is the depth of all its tiles.
    atomic_llong results;
};

// Prepares what a run in type t does on this machine with `kernel`, about 10 ms per call; a kernel that
// cpu_kernel_resolve refuses counts as fma.
void cpu_peak_init(struct cpu_peak *p, enum cpu_kernel kernel, enum dtype t, int threads);
// One call, on the calling thread and its team. A function for stream_host: arg is a struct cpu_peak; 0.
int cpu_peak_run(void *arg);
// For people: which instruction, and what it means for the type. Cut to `bytes`; returns text.
const char *cpu_peak_text(const struct cpu_peak *p, char *text, int bytes);

#endif
