// The operations that `starring bench kernels` times, their sizes and their buffers.
//
// bytes counts each tensor that an operation reads or writes once, gathered rows once for each different row,
// whatever the implementation reads again. On a GPU every large tensor is several times the L2 (256 MiB in 16
// bits; H200: 60 MB), so that no launch finds what the one before it left.
#ifndef STARRING_SHARED_RUN_BENCH_TABLE_H
#define STARRING_SHARED_RUN_BENCH_TABLE_H

#include "shared/run/bench_work.h"

// B batch, T seq, R rows = B*T, C channels, H heads, D head_size, F width, V vocab.
struct bench_sizes {
    int64_t batch, seq, rows, channels, heads, head_size;
    int64_t width;            // of SwiGLU
    int64_t wide, wide_rows;  // of GELU, its products and biases: (wide_rows, wide)
    int64_t vocab, logit_rows;
    int64_t unit;     // elements the optimizer updates
    int64_t product;  // side of the large matrix product
};
// elements 0: those of a training step on this kind of device; otherwise the optimizer's arrays hold so many
// (a multiple of 256) and the other sizes follow in proportion. product 0: 2048, on a GPU 8192.
struct bench_sizes bench_sizes_of(bool gpu, int64_t elements, int64_t product);

#define BENCH_WORKS_MAX 32
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

// Takes the buffers from d's arena and describes the operations and d's yardsticks. 0, or -1 after logging.
int bench_table_fill(struct bench_table *t, struct bench_device *d, const struct bench_sizes *sizes);

#endif
