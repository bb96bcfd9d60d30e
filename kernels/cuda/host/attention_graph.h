// Causal grouped-query attention as cuDNN graphs on our packed qkv (B,T,(H+2KV)*D).
#ifndef STARRING_KERNELS_CUDA_HOST_ATTENTION_GRAPH_H
#define STARRING_KERNELS_CUDA_HOST_ATTENTION_GRAPH_H

#include "kernels/backend.h"
#include "kernels/cuda/host/cudnn_graph.h"

struct attention_shape {
    int64_t batch, seq;
    int32_t heads, kv_heads, head_size;
    enum dtype dt;  // bf16 or fp16; cuDNN has no fp32 attention
    bool backward;
};

// The tensors that are bound to memory at execution. Scalars are fp32 in host memory.
enum attention_uid {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_OUT,     // (B,H,T,D)
    ATTENTION_LSE,     // (B,H,T) fp32: natural log-sum-exp of the scaled scores, as our kernels'
    ATTENTION_SCALE,   // scalar
    ATTENTION_MASKED,  // scalar: -infinity, or the lowest float
    ATTENTION_DOUT,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_DOT,  // (B,H,T) fp32 in the workspace: sum over D of dout * out
    ATTENTION_ONE,  // scalar: 1
    ATTENTION_UIDS
};

// Builds the graph of a shape; graph->status holds the result. The caller plans it and frees it with
// graph_fini.
void attention_graph(struct cudnn_graph *g, const struct attention_shape *s);

#endif
