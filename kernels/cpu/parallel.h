// OpenMP where there is one; plain loops where the compiler was given none (the thread sanitizer's
// build, which cannot see OpenMP's barriers). Include this instead of omp.h.
#ifndef STARRING_KERNELS_CPU_PARALLEL_H
#define STARRING_KERNELS_CPU_PARALLEL_H

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
static inline int parallel_index(void) { return omp_get_thread_num(); }
static inline int parallel_count(void) { return omp_get_num_threads(); }
#else
static inline int parallel_index(void) { return 0; }
static inline int parallel_count(void) { return 1; }
#endif

// Part `index` of `count` of [0, n), cut at multiples of `grain`: [*begin, *end), possibly empty.
static inline void parallel_range(int64_t n, int64_t grain, int index, int count, int64_t *begin,
                                  int64_t *end) {
    int64_t blocks = (n + grain - 1) / grain;
    *begin = blocks * index / count * grain;
    *end = blocks * (index + 1) / count * grain;
    if (*begin > n) *begin = n;
    if (*end > n) *end = n;
}

#endif
