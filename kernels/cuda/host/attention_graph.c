// The graphs follow the pattern that cuDNN's fused attention engines match (cuDNN developer guide, "Fused Flash
// Attention fprop" and "bprop"). With the same operations in another order, no engine is found.
//
//   forward    S = Q K^T * scale ; masked ; P = softmax(S) with lse = max + log(sum) ; out = P V
//   backward   P = exp(S - lse), masked ; dV = P^T dO ; dP = dO V^T
//              dS = P * (dP - rowsum(dO * out)) * scale ; dK = dS^T Q ; dQ = dS K
//
// The product writes dQ itself; blocks do not accumulate it in fp32 memory. Only this variant repeats bit for
// bit. It needs a workspace of B*H*T*T elements, so the caller cuts the batch.
#include "kernels/cuda/host/attention_graph.h"

#include <string.h>

struct sizes {
    int64_t b, t, h, kv, d;
    int64_t row;  // of qkv: (H+2KV)*D
    cudnnDataType_t io;
};

// ---------------------------------------------------------------- tensors

// Strides in elements; uid 0: a tensor inside the graph.
static graph_tensor tensor(struct cudnn_graph *g, cudnnDataType_t type, int64_t uid, const int64_t dims[4],
                           const int64_t strides[4]) {
    struct graph_tensor_spec spec = {.type = type, .uid = uid};
    memcpy(spec.dims, dims, sizeof spec.dims);
    memcpy(spec.strides, strides, sizeof spec.strides);
    return graph_make_tensor(g, &spec);
}
#define FOUR (const int64_t[4])

// (B,heads,T,D) inside qkv or dqkv; the caller's pointer is that of its first head.
static graph_tensor packed(struct cudnn_graph *g, const struct sizes *z, int64_t uid, int64_t heads) {
    return tensor(g, z->io, uid, FOUR{z->b, heads, z->t, z->d}, FOUR{z->t * z->row, z->d, z->row, 1});
}

// The same memory as (B,heads,D,T).
static graph_tensor packed_transposed(struct cudnn_graph *g, const struct sizes *z, int64_t uid,
                                      int64_t heads) {
    return tensor(g, z->io, uid, FOUR{z->b, heads, z->d, z->t}, FOUR{z->t * z->row, z->d, 1, z->row});
}

// out and dout: (B,T,H*D) viewed as (B,H,T,D).
static graph_tensor heads_of(struct cudnn_graph *g, const struct sizes *z, int64_t uid) {
    return tensor(g, z->io, uid, FOUR{z->b, z->h, z->t, z->d},
                  FOUR{z->t * z->h * z->d, z->d, z->h * z->d, 1});
}

// Inside the graph: (B,H,rows,columns), contiguous rows.
static graph_tensor inner(struct cudnn_graph *g, const struct sizes *z, cudnnDataType_t type, int64_t rows,
                          int64_t columns) {
    return tensor(g, type, 0, FOUR{z->b, z->h, rows, columns},
                  FOUR{z->h * rows * columns, rows * columns, columns, 1});
}

static graph_tensor scores(struct cudnn_graph *g, const struct sizes *z, cudnnDataType_t type) {
    return inner(g, z, type, z->t, z->t);
}

static graph_tensor scores_transposed(struct cudnn_graph *g, const struct sizes *z) {
    return tensor(g, z->io, 0, FOUR{z->b, z->h, z->t, z->t}, FOUR{z->h * z->t * z->t, z->t * z->t, 1, z->t});
}

// (B,H,T,1).
static graph_tensor per_row(struct cudnn_graph *g, const struct sizes *z, int64_t uid) {
    return tensor(g, CUDNN_DATA_FLOAT, uid, FOUR{z->b, z->h, z->t, 1}, FOUR{z->h * z->t, z->t, 1, 1});
}

static graph_tensor scalar(struct cudnn_graph *g, int64_t uid) {
    return graph_make_tensor(g, &(struct graph_tensor_spec){.dims = {1, 1, 1, 1},
                                                            .strides = {1, 1, 1, 1},
                                                            .type = CUDNN_DATA_FLOAT,
                                                            .uid = uid,
                                                            .by_value = true});
}

// ---------------------------------------------------------------- operations

static graph_tensor pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, graph_tensor x,
                              graph_tensor b, graph_tensor y) {
    graph_pointwise(
        g, &(struct graph_pointwise_spec){.mode = mode, .math = CUDNN_DATA_FLOAT, .x = x, .b = b, .y = y});
    return y;
}

// Keeps scores on or below the diagonal: row >= column ? s : masked.
static graph_tensor causal(struct cudnn_graph *g, const struct sizes *z, graph_tensor s,
                           graph_tensor masked) {
    graph_tensor index[2];
    for (int i = 0; i < 2; i++) {
        index[i] = scores(g, z, CUDNN_DATA_INT32);
        graph_pointwise(g, &(struct graph_pointwise_spec){.mode = CUDNN_POINTWISE_GEN_INDEX,
                                                          .math = CUDNN_DATA_FLOAT,
                                                          .x = s,
                                                          .y = index[i],
                                                          .axis = 2 + i});
    }
    graph_tensor keep = scores(g, z, CUDNN_DATA_BOOLEAN), y = scores(g, z, CUDNN_DATA_FLOAT);
    graph_pointwise(g, &(struct graph_pointwise_spec){.mode = CUDNN_POINTWISE_CMP_GE,
                                                      .math = CUDNN_DATA_BOOLEAN,
                                                      .x = index[0],
                                                      .b = index[1],
                                                      .y = keep});
    graph_pointwise(g, &(struct graph_pointwise_spec){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                                      .math = CUDNN_DATA_FLOAT,
                                                      .x = s,
                                                      .b = masked,
                                                      .t = keep,
                                                      .y = y});
    return y;
}

static graph_tensor scaled_scores(struct cudnn_graph *g, const struct sizes *z, graph_tensor q,
                                  graph_tensor kt, graph_tensor scale) {
    graph_tensor s = scores(g, z, CUDNN_DATA_FLOAT);
    graph_matmul(g, q, kt, s);
    return pointwise(g, CUDNN_POINTWISE_MUL, s, scale, scores(g, z, CUDNN_DATA_FLOAT));
}

static void forward(struct cudnn_graph *g, const struct sizes *z) {
    graph_tensor q = packed(g, z, ATTENTION_Q, z->h), kt = packed_transposed(g, z, ATTENTION_K, z->kv),
                 v = packed(g, z, ATTENTION_V, z->kv), out = heads_of(g, z, ATTENTION_OUT),
                 lse = per_row(g, z, ATTENTION_LSE), scale = scalar(g, ATTENTION_SCALE),
                 masked = scalar(g, ATTENTION_MASKED);
    graph_tensor s = causal(g, z, scaled_scores(g, z, q, kt, scale), masked);
    graph_tensor max = per_row(g, z, 0), sum = per_row(g, z, 0);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, max);
    graph_tensor e = pointwise(g, CUDNN_POINTWISE_SUB, s, max, scores(g, z, CUDNN_DATA_FLOAT));
    e = pointwise(g, CUDNN_POINTWISE_EXP, e, NULL, scores(g, z, CUDNN_DATA_FLOAT));
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    graph_tensor log_sum = pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, per_row(g, z, 0));
    pointwise(g, CUDNN_POINTWISE_ADD, max, log_sum, lse);
    graph_tensor p = pointwise(g, CUDNN_POINTWISE_DIV, e, sum, scores(g, z, z->io));
    graph_matmul(g, p, v, out);
}

// grad(B,KV,T,D) = left(B,H,T,T) right(B,H,T,D), summed over the heads of a group.
static void product_by_group(struct cudnn_graph *g, const struct sizes *z, graph_tensor left,
                             graph_tensor right, graph_tensor grad) {
    if (z->h == z->kv) {
        graph_matmul(g, left, right, grad);
        return;
    }
    graph_tensor all = inner(g, z, z->io, z->t, z->d);
    graph_matmul(g, left, right, all);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, all, grad);
}

static void backward(struct cudnn_graph *g, const struct sizes *z) {
    graph_tensor q = packed(g, z, ATTENTION_Q, z->h), kt = packed_transposed(g, z, ATTENTION_K, z->kv),
                 vt = packed_transposed(g, z, ATTENTION_V, z->kv), out = heads_of(g, z, ATTENTION_OUT),
                 dout = heads_of(g, z, ATTENTION_DOUT), lse = per_row(g, z, ATTENTION_LSE),
                 dot = per_row(g, z, ATTENTION_DOT), scale = scalar(g, ATTENTION_SCALE),
                 masked = scalar(g, ATTENTION_MASKED), one = scalar(g, ATTENTION_ONE),
                 dq = packed(g, z, ATTENTION_DQ, z->h), dk = packed(g, z, ATTENTION_DK, z->kv),
                 dv = packed(g, z, ATTENTION_DV, z->kv);

    graph_tensor product = inner(g, z, CUDNN_DATA_FLOAT, z->t, z->d);
    pointwise(g, CUDNN_POINTWISE_MUL, dout, out, product);
    graph_tensor rows = per_row(g, z, 0);
    graph_reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, rows);
    pointwise(g, CUDNN_POINTWISE_MUL, rows, one, dot);

    graph_tensor s = scaled_scores(g, z, q, kt, scale);
    s = pointwise(g, CUDNN_POINTWISE_SUB, s, lse, scores(g, z, CUDNN_DATA_FLOAT));
    s = causal(g, z, s, masked);
    graph_tensor p = pointwise(g, CUDNN_POINTWISE_EXP, s, NULL, scores(g, z, CUDNN_DATA_FLOAT));
    graph_tensor pt = scores_transposed(g, z);
    graph_reshape(g, p, pt);
    product_by_group(g, z, pt, dout, dv);

    graph_tensor dp = scores(g, z, CUDNN_DATA_FLOAT);
    graph_matmul(g, dout, vt, dp);
    dp = pointwise(g, CUDNN_POINTWISE_SUB, dp, dot, scores(g, z, CUDNN_DATA_FLOAT));
    dp = pointwise(g, CUDNN_POINTWISE_MUL, dp, p, scores(g, z, CUDNN_DATA_FLOAT));
    graph_tensor ds = pointwise(g, CUDNN_POINTWISE_MUL, dp, scale, scores(g, z, CUDNN_DATA_FLOAT));
    graph_tensor dst = scores_transposed(g, z);
    graph_reshape(g, ds, dst);
    product_by_group(g, z, dst, q, dk);

    // The engines expect this view of K, and dS, as fp32; they round when they load.
    graph_tensor k =
        tensor(g, CUDNN_DATA_FLOAT, 0, FOUR{z->b, z->kv, z->t, z->d}, FOUR{z->t * z->row, z->d, z->row, 1});
    graph_reshape(g, kt, k);
    graph_matmul(g, ds, k, dq);
}

void attention_graph(struct cudnn_graph *g, const struct attention_shape *s) {
    struct sizes z = {.b = s->batch,
                      .t = s->seq,
                      .h = s->heads,
                      .kv = s->kv_heads,
                      .d = s->head_size,
                      .row = ((int64_t)s->heads + 2 * s->kv_heads) * s->head_size,
                      .io = s->dt == DT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF};
    (s->backward ? backward : forward)(g, &z);
}
