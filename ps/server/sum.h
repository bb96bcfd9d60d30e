// A server's arithmetic on one key: worker gradients are added in fp32 in worker order, then rounded once to the
// run's dtype. The same bits as OP_REDUCE over the same inputs.
// Pure; runs on the calling thread.
#ifndef STARRING_PS_SERVER_SUM_H
#define STARRING_PS_SERVER_SUM_H

#include <stdbool.h>

#include "kernels/backend.h"

struct sum_args {
    float *acc;        // (n)
    const void *grad;  // (n) of dtype; need not be aligned
    int64_t n;
    enum dtype dtype;
    bool first;  // acc = grad instead of acc += grad
};
void sum_add(const struct sum_args *a);

// buffer holds n floats and afterwards, from its start, n elements of dtype, each rounded once.
void sum_round(void *buffer, int64_t n, enum dtype dtype);

#endif
