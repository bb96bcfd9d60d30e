// Order statistics of measurements.
#ifndef STARRING_SHARED_CORE_STATISTICS_H
#define STARRING_SHARED_CORE_STATISTICS_H

#include <stdlib.h>

static inline int statistics_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void sort_ascending(double *v, size_t n) { qsort(v, n, sizeof *v, statistics_compare); }

// Sorts v; n >= 1. For an even n it is the mean of the two middle values.
static inline double median(double *v, int n) {
    sort_ascending(v, (size_t)n);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

#endif
