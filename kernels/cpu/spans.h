// Running an operation over ranges, in parallel. The operation must give the same bits however the
// range is cut at multiples of the grain: then its result does not depend on the thread count.
#ifndef STARRING_KERNELS_CPU_SPANS_H
#define STARRING_KERNELS_CPU_SPANS_H

#include "kernels/cpu/parallel.h"

// Does items [begin, end); args is what the operation was given.
typedef void (*span_fn)(const void *args, int64_t begin, int64_t end);

#define SPAN_ELEMENTS 8192  // fewer than this are not worth waking a thread for

// fn over [0, n): one contiguous range a thread, cut at multiples of grain.
static inline void for_spans(int threads, int64_t n, int64_t grain, span_fn fn, const void *args) {
    int64_t blocks = (n + grain - 1) / grain;
    if (threads > blocks) threads = (int)blocks;
    if (threads <= 1) {
        if (n > 0) fn(args, 0, n);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        parallel_range(n, grain, parallel_index(), parallel_count(), &begin, &end);
        if (begin < end) fn(args, begin, end);
    }
}

// The same, handing out ranges of grain items as threads become free: for items of unequal cost.
static inline void for_spans_dynamic(int threads, int64_t n, int64_t grain, span_fn fn, const void *args) {
    int64_t blocks = (n + grain - 1) / grain;
    if (threads > blocks) threads = (int)blocks;
    if (threads <= 1) {
        if (n > 0) fn(args, 0, n);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t b = 0; b < blocks; b++) fn(args, b * grain, b + 1 < blocks ? (b + 1) * grain : n);
}

// The grain for rows of `width` elements each.
static inline int64_t row_grain(int64_t width) { return width >= SPAN_ELEMENTS ? 1 : SPAN_ELEMENTS / width; }

#endif
