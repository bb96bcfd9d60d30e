// The operations that `starring bench kernels` times: at least a row each of kernels/operations.h.
//
// bytes counts each tensor that an operation reads or writes once, gathered rows once for each different row,
// whatever the implementation reads again. On a GPU every large tensor is several times the L2 (256 MiB in 16
// bits; H200: 60 MB), so that no launch finds what the one before it left; a model's need not be.
#ifndef STARRING_SHARED_BENCH_BENCH_OPERATIONS_H
#define STARRING_SHARED_BENCH_BENCH_OPERATIONS_H

#include "shared/bench/bench_sizes.h"
#include "shared/bench/bench_work.h"

#define BENCH_WORKS_MAX 48
#define BENCH_WAYS      4  // buffers a reduction sums

struct bench_table {
    struct bench_device *d;
    struct bench_sizes n;
    int64_t large;                    // elements of x, y and z
    void *x, *y, *z;                  // (large)
    void *qkv, *out;                  // (R, 3C), (R, C) or more
    float *master, *m, *v;            // (unit)
    float *mean, *rstd, *lse, *loss;  // (R), (R), (B, H, T), (R)
    float *cos_sin;                   // (T, D/2, 2)
    int32_t *tokens;                  // (R)
    int64_t distinct;                 // different tokens among them
    void *scratch;
    struct exact_sum *sum;
    struct update_scalars *scalars;
    double *total;
    const void *inputs[BENCH_WAYS];  // (unit) each
    struct bench_work work[BENCH_WORKS_MAX];
    int count;
};

// Bytes that a table of these sizes takes on its device.
size_t bench_table_bytes(enum dtype dt, const struct bench_sizes *sizes);

// The numbers of an update of n elements, all in one group; its arrays are the caller's.
struct update_args bench_update(enum dtype dt, int64_t n);

// Takes the buffers from d's arena and describes the operations and d's yardsticks. 0, or -1 after logging.
int bench_operations_fill(struct bench_table *t, struct bench_device *d, const struct bench_sizes *sizes);

#endif
