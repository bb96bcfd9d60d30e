// The sizes at which `starring bench kernels` times operations: those of a training step.
#ifndef STARRING_SHARED_BENCH_BENCH_SIZES_H
#define STARRING_SHARED_BENCH_BENCH_SIZES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype.h"

// Which operations the table has: a model has one of each pair, the table without a model has both.
enum bench_part {
    BENCH_RMS = 1,
    BENCH_LAYER = 2,  // LayerNorm
    BENCH_SWIGLU = 4,
    BENCH_GELU = 8,
    BENCH_ROPE = 16,
    BENCH_POSITIONS = 32,  // learned positions
    BENCH_TIED = 64,       // the embedding's gradient is added to the head's
    BENCH_BIASES = 128,    // gradients of biases by a pass of their own
    BENCH_ROPE_BIAS = 256  // qkv has a bias and rope: one pass does the gradient of both
};

// A linear layer: y(R,out) = x(R,in) w(out,in)^T + b.
struct bench_linear {
    const char *name;
    int64_t out, in;
    bool bias, gelu;  // gelu: of y, as part of the product
};
#define BENCH_LINEARS 4

// B batch, T seq, R rows = B*T, C channels, H heads, KV kv_heads, D head_size, F width, V vocab.
struct bench_sizes {
    int64_t batch, seq, rows, channels, heads, kv_heads, head_size;
    int64_t width;            // of SwiGLU
    int64_t wide, wide_rows;  // of GELU, its products and biases: (wide_rows, wide)
    int64_t vocab, logit_rows;
    int64_t classes;  // columns that the head's products run over: V, or V and the zeros behind it
    int64_t unit;     // elements the optimizer updates
    int64_t copy;     // fp32 numbers that the yardstick copies
    int64_t product;  // side of the large matrix product
    unsigned parts;   // of enum bench_part
    struct bench_linear linear[BENCH_LINEARS];
    int linears;  // 0: those of an MLP of (wide_rows, wide) alone
};
// elements 0: those of a training step on this kind of device; otherwise the optimizer's arrays hold so many
// (a multiple of 256) and the other sizes follow in proportion. product 0: 2048, on a GPU 8192.
struct bench_sizes bench_sizes_of(bool gpu, int64_t elements, int64_t product);

// Those of one training step of a model (preset, config.json or directory), for `bench kernels --model`.
struct bench_request {
    const char *model;
    int64_t batch, seq;  // 0: 1 sequence, on a GPU 32; 1024 tokens, or as many as the model can
    int64_t elements;    // as above; 0: a block's parameters, and a copy larger than the caches
    int64_t product;     // as above
    bool gpu;
    enum dtype dtype;
};
int bench_sizes_of_model(const struct bench_request *q, struct bench_sizes *out);  // 0, or -1 after logging

// Distance in elements from row to row of the logits: they start at multiples of 64 elements, as the model's
// do.
int64_t bench_logit_stride(const struct bench_sizes *n);

#endif
