// Arithmetic without surprises: sizes that saturate, medians, random numbers by counter.
//
// Sizes are computed from numbers that users give: batch, sequence, parameters, ranks. Products and sums saturate at
// SIZE_TOP, so that nothing overflows on the way. The code that allocates memory or prints a size checks once, at
// the end. SIZE_TOP can still be rounded up, and fits int64_t and size_t.
#ifndef STARRING_SHARED_CORE_NUMBERS_H
#define STARRING_SHARED_CORE_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define SIZE_TOP ((int64_t)1 << 62)

// a and b are in [0, SIZE_TOP].
static inline int64_t size_times(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_mul_overflow(a, b, &out) || out > SIZE_TOP ? SIZE_TOP : out;
}

static inline int64_t size_plus(int64_t a, int64_t b) {
    int64_t out;
    return __builtin_add_overflow(a, b, &out) || out > SIZE_TOP ? SIZE_TOP : out;
}

// Returns the bytes of (rows, columns) elements of `element` bytes each.
static inline size_t size_bytes(int64_t rows, int64_t columns, size_t element) {
    return (size_t)size_times(size_times(rows, columns), (int64_t)element);
}

static inline bool size_is_too_large(size_t bytes) { return bytes >= (size_t)SIZE_TOP; }

// ---------------------------------------------------------------- order statistics
static inline int statistics_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void sort_ascending(double *v, size_t n) { qsort(v, n, sizeof *v, statistics_compare); }

// Sorts v and returns its median; n >= 1. For an even n that is the mean of the two middle values.
static inline double median(double *v, int n) {
    sort_ascending(v, (size_t)n);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

// ---------------------------------------------------------------- random numbers
// Counter-based random numbers: a value is a pure function of (key, counter), so it does not depend on ranks,
// threads or order. Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3).

struct philox_out {
    uint32_t v[4];
};

struct philox_out philox(uint64_t key, uint64_t counter_low, uint64_t counter_high);
// Uniform in [0, n), n > 0; the bias is negligible (64-bit multiply-high).
uint64_t rng_below(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint64_t n);
// Standard normal (Box & Muller 1958), element `index` of the stream `key`.
float rng_normal(uint64_t key, uint64_t index);
float rng_uniform(uint64_t key, uint64_t index);  // in [-1, 1), 24 bits

#endif
