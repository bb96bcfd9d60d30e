// Each step names what it writes and its shape. R = B*T rows, C channels, QKV = (H+2KV)*D, A = H*D, F the
// width of the feed-forward, U = 2F (SwiGLU: gate and up) or F (GELU).
#include "shared/model/block.h"

#include <math.h>

#include "shared/model/kept_inputs.h"
#include "shared/model/layers.h"

// Rotates q and k in place; nothing without rotary positions. In the backward pass it rotates back, and
// writes the gradient of qkv's bias to dbias (NULL: there is no bias).
static void rotate(struct model *m, void *qkv, const struct unit_view *backward, void *dbias) {
    if (!m->rope) return;
    op_rope(m->s, &(struct rope_args){.qkv = qkv,
                                      .cos_sin = m->rope,
                                      .dbias = dbias,
                                      .batch = m->B,
                                      .seq = m->T,
                                      .heads = m->spec.heads,
                                      .kv_heads = m->spec.kv_heads,
                                      .head_size = m->spec.head_size,
                                      .inverse = backward != NULL,
                                      .accumulate = backward && backward->accumulate,
                                      .dt = m->dt});
}

// Steps 2 to 5, from n1: pass (R,C) = proj.
static void attend(struct model *m, const struct block *b, const struct unit_view *v) {
    // 2. Projection of queries, keys and values: qkv (R,QKV).
    linear_forward(m, &b->wqkv, v, &(struct linear_io){.y = b->qkv, .x = b->norm1.y});
    // 3. Rotary positions: q and k of qkv, in place.
    rotate(m, b->qkv, NULL, NULL);
    // 4. Causal attention: att (R,A), lse (B,H,T).
    op_attn_fwd(m->s, &(struct attn_fwd_args){.out = b->att,
                                              .lse = b->lse,
                                              .qkv = b->qkv,
                                              .scratch = m->scratch,
                                              .batch = m->B,
                                              .seq = m->T,
                                              .heads = m->spec.heads,
                                              .kv_heads = m->spec.kv_heads,
                                              .head_size = m->spec.head_size,
                                              .scale = 1.0f / sqrtf((float)m->spec.head_size),
                                              .dt = m->dt});
    // 5. Output projection: pass (R,C) = proj.
    linear_forward(m, &b->wo, v, &(struct linear_io){.y = m->pass, .x = b->att});
}

static void swiglu(struct model *m, const struct block *b) {
    op_swiglu_fwd(
        m->s, &(struct swiglu_args){.y = b->act, .gate_up = b->up, .rows = m->R, .width = m->F, .dt = m->dt});
}

// Steps 6 and 7, from x and pass.
static void widen(struct model *m, const struct block *b, const struct unit_view *v) {
    // 6. Norm: mid (R,C) = x + proj; n2 (R,C).
    norm_forward(m, &b->norm2, v, b->norm1.x);
    // 7. Up projection and activation: up (R,U), act (R,F). GELU is part of the product, forward and
    //    backward; cuda.gelu decides whether a GPU fuses the two (kernels/cuda/host/matmul.c has the
    //    reasons).
    if (m->spec.traits.mlp == MLP_GELU) {
        linear_forward(m, &b->w_up, v, &(struct linear_io){.y = b->act, .x = b->norm2.y, .pre_gelu = b->up});
    } else {
        linear_forward(m, &b->w_up, v, &(struct linear_io){.y = b->up, .x = b->norm2.y});
        swiglu(m, b);
    }
}

void block_forward(struct model *m, int i, const struct unit_view *v) {
    const struct block *b = &m->blocks[i];
    // 1. Norm: x (R,C) = mid + mlp of the block before; n1 (R,C). The embedding has written x of block 0.
    if (i) kept_input_begins(m, i);
    norm_forward(m, &b->norm1, v, i ? m->blocks[i - 1].norm2.x : NULL);
    kept_input_ends(m, i);
    attend(m, b, v);
    widen(m, b, v);
    // 8. Down projection: pass (R,C) = mlp, which the next norm adds to mid.
    linear_forward(m, &b->w_down, v, &(struct linear_io){.y = m->pass, .x = b->act});
}

// Norms and the activation function, from x, mid and up.
static void again_cheap(struct model *m, const struct block *b, const struct unit_view *v) {
    norm_forward(m, &b->norm1, v, NULL);
    norm_forward(m, &b->norm2, v, NULL);
    if (m->keeps_act) return;
    if (m->spec.traits.mlp == MLP_GELU)
        op_gelu_fwd(m->s, &(struct gelu_args){.y = b->act, .x = b->up, .n = m->R * m->F, .dt = m->dt});
    else
        swiglu(m, b);
}

// Fills the buffers that block i shares with others (recompute.h). Those of the last one that shares them have not been
// overwritten since its forward.
static void compute_again(struct model *m, int i, const struct unit_view *v) {
    const struct block *b = &m->blocks[i];
    kept_input_needed(m, i);
    if (m->recompute.kind == RECOMPUTE_CHEAP && i < m->spec.layers - 1) again_cheap(m, b, v);
    if (i < m->inputs.blocks - 1) {
        norm_forward(m, &b->norm1, v, NULL);
        attend(m, b, v);
        widen(m, b, v);
    }
}

void block_backward(struct model *m, int i, const struct unit_view *v) {
    const struct block *b = &m->blocks[i];
    bool gelu = m->spec.traits.mlp == MLP_GELU;
    void *d_up = gelu ? m->d_mlp : b->up;
    compute_again(m, i, v);
    // 1. Down projection, from carry (R,C): gradient of act (R,F); with GELU, which is part of the product,
    //    of up.
    linear_backward(
        m, &b->w_down, v,
        &(struct linear_grad){.dx = m->d_mlp, .dy = m->carry, .x = b->act, .gelu_of = gelu ? b->up : NULL});
    // 2. SwiGLU: gradient of gate and up (R,2F), in their place.
    if (!gelu)
        op_swiglu_bwd(
            m->s, &(struct swiglu_args){
                      .y = d_up, .gate_up = b->up, .dy = m->d_mlp, .rows = m->R, .width = m->F, .dt = m->dt});
    // 3. Up projection: gradient of n2 (R,C).
    linear_backward(m, &b->w_up, v, &(struct linear_grad){.dx = m->d_c, .dy = d_up, .x = b->norm2.y});
    // 4. Norm: carry (R,C) = gradient of mid: through the norm, plus the residual carry.
    norm_backward(m, &b->norm2, v, m->carry);
    // 5. Output projection, from carry: gradient of att (R,A).
    linear_backward(m, &b->wo, v, &(struct linear_grad){.dx = m->d_att, .dy = m->carry, .x = b->att});
    // 6. Attention: gradient of qkv (R,QKV).
    op_attn_bwd(m->s, &(struct attn_bwd_args){.dqkv = m->d_qkv,
                                              .dout = m->d_att,
                                              .qkv = b->qkv,
                                              .out = b->att,
                                              .lse = b->lse,
                                              .scratch = m->scratch,
                                              .batch = m->B,
                                              .seq = m->T,
                                              .heads = m->spec.heads,
                                              .kv_heads = m->spec.kv_heads,
                                              .head_size = m->spec.head_size,
                                              .scale = 1.0f / sqrtf((float)m->spec.head_size),
                                              .dt = m->dt});
    // 7. Rotary positions: q and k of that gradient rotated back in place; gradient of qkv's bias.
    rotate(m, m->d_qkv, v, grad_at(m, v, b->wqkv.bias));
    // 8. Projection of queries, keys and values: gradient of n1 (R,C).
    linear_backward(
        m, &b->wqkv, v,
        &(struct linear_grad){.dx = m->d_c, .dy = m->d_qkv, .x = b->norm1.y, .no_bias = m->rope != NULL});
    // 9. Norm: carry (R,C) = gradient of x: through the norm, plus the residual carry.
    norm_backward(m, &b->norm1, v, m->carry);
    kept_input_done(m, i);
}
