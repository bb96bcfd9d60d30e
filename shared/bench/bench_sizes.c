#include "shared/bench/bench_sizes.h"

#include "shared/model/layout.h"

#define BOTH_KINDS \
    (BENCH_RMS | BENCH_LAYER | BENCH_SWIGLU | BENCH_GELU | BENCH_ROPE | BENCH_POSITIONS | BENCH_BIASES)

static const struct bench_sizes host_sizes = {.batch = 4,
                                              .seq = 1024,
                                              .rows = 4096,
                                              .channels = 768,
                                              .heads = 12,
                                              .kv_heads = 12,
                                              .head_size = 64,
                                              .width = 2048,
                                              .wide = 3072,
                                              .wide_rows = 4096,
                                              .vocab = 50257,
                                              .logit_rows = 512,
                                              .unit = INT64_C(1) << 24,
                                              .product = 2048,
                                              .parts = BOTH_KINDS};
static const struct bench_sizes gpu_sizes = {.batch = 64,
                                             .seq = 1024,
                                             .rows = 65536,
                                             .channels = 2048,
                                             .heads = 16,
                                             .kv_heads = 16,
                                             .head_size = 128,
                                             .width = 2048,
                                             .wide = 8192,
                                             .wide_rows = 16384,
                                             .vocab = 50257,
                                             .logit_rows = 2688,
                                             .unit = INT64_C(1) << 27,
                                             .product = 8192,
                                             .parts = BOTH_KINDS};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

struct bench_sizes bench_sizes_of(bool gpu, int64_t elements, int64_t product) {
    const struct bench_sizes *full = gpu ? &gpu_sizes : &host_sizes;
    struct bench_sizes n = *full;
    if (product) n.product = product;
    n.classes = n.vocab;
    n.copy = n.unit;
    if (!elements) return n;
    n.unit = n.copy = elements;
    n.rows = most(1, full->rows * elements / full->unit);
    n.seq = least(full->seq, n.rows);
    n.batch = n.rows / n.seq;
    n.rows = n.batch * n.seq;
    n.wide_rows = most(1, full->wide_rows * elements / full->unit);
    n.logit_rows = least(n.rows, most(1, full->logit_rows * elements / full->unit));
    n.vocab = n.classes = least(full->vocab, most(64, full->vocab * elements / full->unit));
    return n;
}

int64_t bench_logit_stride(const struct bench_sizes *n) { return model_classes_padded(n->vocab); }
