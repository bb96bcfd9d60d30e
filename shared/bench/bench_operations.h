// The operations that `starring bench kernels` times: at least one row for each of kernels/operations.h.
//
// The bytes count a row that is gathered several times only once. On a GPU every large tensor is several times the L2 (256
// MiB in 16 bits; H200: 60 MB), so no launch finds the previous launch's data in the cache. A model's tensors may be
// smaller.
#ifndef STARRING_SHARED_BENCH_BENCH_OPERATIONS_H
#define STARRING_SHARED_BENCH_BENCH_OPERATIONS_H

#include "shared/bench/bench_work.h"

// ---------------------------------------------------------------- sizes: those of a training step
// The operations in the table: a model has one of each pair; the table without a model has both.
enum bench_feature {
    BENCH_RMS = 1,
    BENCH_LAYER = 2,  // LayerNorm
    BENCH_SWIGLU = 4,
    BENCH_GELU = 8,
    BENCH_ROPE = 16,
    BENCH_POSITIONS = 32,  // learned positions
    BENCH_TIED = 64,       // the embedding's gradient is added to the head's
    BENCH_BIASES = 128,    // gradients of biases in a separate pass
    BENCH_ROPE_BIAS = 256  // qkv has a bias and rope: one pass computes the gradient of both
};

// A linear layer: y(R,out) = x(R,in) w(out,in)^T + b.
struct bench_linear {
    const char *name;
    int64_t out, in;
    bool bias, gelu;  // gelu: applied to y in the same product
};
#define BENCH_LINEARS 4

// B batch, T seq, R rows = B*T, C channels, H heads, KV kv_heads, D head_size, F width, V vocab.
struct bench_sizes {
    int64_t batch, seq, rows, channels, heads, kv_heads, head_size;
    int64_t width;            // width of SwiGLU
    int64_t wide, wide_rows;  // sizes of GELU, its products and biases: (wide_rows, wide)
    int64_t vocab, logit_rows;
    int64_t classes;    // columns of the head's products: V, or V padded with zeros
    int64_t unit;       // elements the optimizer updates
    int64_t copy;       // fp32 numbers that the yardstick copies
    int64_t product;    // side of the large matrix product
    unsigned features;  // flags of enum bench_feature
    struct bench_linear linear[BENCH_LINEARS];
    int linears;  // 0: only those of an MLP of (wide_rows, wide)
};
// elements 0: the sizes of a training step on this kind of device. Otherwise the optimizer's arrays have this many (a
// multiple of 256), and the other sizes scale in proportion. product 0: 2048, on a GPU 8192.
struct bench_sizes bench_sizes_of(bool gpu, int64_t elements, int64_t product);

// Sizes of one training step of a model (preset, config.json or directory), for `bench kernels --model`.
struct bench_request {
    const char *model;
    int64_t batch, seq;  // 0: 1 sequence, on a GPU 32; 1024 tokens, or the model's maximum
    int64_t elements;  // the optimizer's elements; 0: a block's parameters, and a copy larger than the caches
    int64_t product;   // as in bench_sizes_of
    bool gpu;
    enum dtype dtype;
};
// Returns 0, or -1 after logging.
int bench_sizes_of_model(const struct bench_request *q, struct bench_sizes *out);

// ---------------------------------------------------------------- the table
#define BENCH_WORKS_MAX 128
#define BENCH_WAYS      4  // number of buffers that a reduction sums

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
    int64_t distinct;                 // number of different tokens in it
    void *scratch;
    struct exact_sum *sum;
    struct update_scalars *scalars;
    double *total;
    const void *inputs[BENCH_WAYS];  // (unit) each
    struct bench_work work[BENCH_WORKS_MAX];
    int count;
};

// Returns the bytes that a table of these sizes takes on its device.
size_t bench_table_bytes(enum dtype dt, const struct bench_sizes *sizes);

// Returns the parameters of an update of n elements in one group; the caller sets its arrays.
struct update_args bench_update(enum dtype dt, int64_t n);

// Allocates the buffers from d's arena and sets up the operations and d's yardsticks. Returns 0, or -1 after logging.
int bench_operations_fill(struct bench_table *t, struct bench_device *d, const struct bench_sizes *sizes);

#endif
