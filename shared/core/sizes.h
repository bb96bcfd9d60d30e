// Sizes computed from numbers that users give: batch, sequence, parameters, ranks. Products and sums saturate at
// SIZE_TOP, so that nothing overflows on the way. The code that allocates memory or prints a size checks once, at
// the end. SIZE_TOP can still be rounded up, and fits int64_t and size_t.
#ifndef STARRING_SHARED_CORE_SIZES_H
#define STARRING_SHARED_CORE_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

// Bytes of (rows, columns) elements of `element` bytes each.
static inline size_t size_bytes(int64_t rows, int64_t columns, size_t element) {
    return (size_t)size_times(size_times(rows, columns), (int64_t)element);
}

static inline bool size_is_too_large(size_t bytes) { return bytes >= (size_t)SIZE_TOP; }

#endif
