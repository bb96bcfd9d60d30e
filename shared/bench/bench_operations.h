// The operations that `starring bench kernels` times: at least a row each of kernels/operations.h.
//
// bytes counts each tensor that an operation reads or writes once, gathered rows once for each different row,
// whatever the implementation reads again. On a GPU every large tensor is several times the L2 (256 MiB in 16
// bits; H200: 60 MB), so that no launch finds what the one before it left; a model's need not be.
#ifndef STARRING_SHARED_BENCH_BENCH_OPERATIONS_H
#define STARRING_SHARED_BENCH_BENCH_OPERATIONS_H

#include "shared/bench/bench_table.h"

// Takes the buffers from d's arena and describes the operations and d's yardsticks. 0, or -1 after logging.
int bench_operations_fill(struct bench_table *t, struct bench_device *d, const struct bench_sizes *sizes);

#endif
