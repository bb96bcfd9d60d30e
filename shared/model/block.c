// One transformer block, forward and backward, for both families.
#include <math.h>

#include "shared/model/model_impl.h"

void linear_forward(struct model *m, void *y, const void *x, const void *w, const void *b, int64_t in,
                    int64_t out) {
    op_matmul(
        m->s,
        &(struct matmul_args){
            .c = y, .a = x, .b = w, .bias = b, .m = m->R, .n = out, .k = in, .trans_b = true, .dt = m->dt});
}

void linear_backward(struct model *m, const struct linear_grad *g) {
    if (g->dx)
        op_matmul(m->s, &(struct matmul_args){.c = g->dx,
                                              .a = g->dy,
                                              .b = g->w,
                                              .aux = g->gelu_of,
                                              .m = m->R,
                                              .n = g->in,
                                              .k = g->out,
                                              .epilogue = g->gelu_of ? EPILOGUE_GELU_GRAD : EPILOGUE_NONE,
                                              .dt = m->dt});
    op_matmul(m->s, &(struct matmul_args){.c = g->dw,
                                          .a = g->dy,
                                          .b = g->x,
                                          .bias_grad = g->db,
                                          .m = g->out,
                                          .n = g->in,
                                          .k = m->R,
                                          .trans_a = true,
                                          .accumulate = g->accumulate,
                                          .epilogue = g->db ? EPILOGUE_BIAS_GRAD : EPILOGUE_NONE,
                                          .dt = m->dt});
}

// Backward, with v: the gradient of qkv's bias, if there is one, goes with the rotation.
static void rope(struct model *m, void *qkv, const struct unit_view *v, int64_t bias) {
    if (m->spec.family != FAMILY_LLAMA) return;
    op_rope(m->s, &(struct rope_args){.qkv = qkv,
                                      .cos_sin = m->rope,
                                      .dbias = v ? grad_at(m, v, bias) : NULL,
                                      .batch = m->B,
                                      .seq = m->T,
                                      .heads = m->spec.heads,
                                      .kv_heads = m->spec.kv_heads,
                                      .head_size = m->spec.head_size,
                                      .inverse = v != NULL,
                                      .accumulate = v && v->accumulate,
                                      .dt = m->dt});
}

// Up projection and activation. GPT-2's GELU goes with the product, forward and backward; whether a GPU fuses
// the two is cuda.gelu's to say (kernels/cuda/host/matmul.c has the reasons).
static void up_forward(struct model *m, int i, const struct unit_view *v) {
    const struct block_tensors *at = &m->at[i];
    const struct block_saved *a = &m->saved[i];
    const void *w = weight_at(m, v, at->w_up), *b = weight_at(m, v, at->b_up);
    if (m->spec.family == FAMILY_LLAMA) {
        linear_forward(m, a->up, a->n2, w, b, m->C, m->U);
        op_swiglu_fwd(m->s, &(struct swiglu_args){
                                .y = a->act, .gate_up = a->up, .rows = m->R, .width = m->F, .dt = m->dt});
        return;
    }
    op_matmul(m->s, &(struct matmul_args){.c = a->act,
                                          .a = a->n2,
                                          .b = w,
                                          .bias = b,
                                          .aux = a->up,
                                          .m = m->R,
                                          .n = m->U,
                                          .k = m->C,
                                          .trans_b = true,
                                          .epilogue = EPILOGUE_GELU,
                                          .dt = m->dt});
}

void block_forward(struct model *m, int i, const struct unit_view *v) {
    const struct block_tensors *at = &m->at[i];
    const struct block_saved *a = &m->saved[i];
    // x[i] is the sum of what the previous block left: its mid and, in `pass`, its mlp.
    struct norm_fwd_args n1 = {.y = a->n1,
                               .sum = i ? a->x : NULL,
                               .mean = a->mean1,
                               .rstd = a->rstd1,
                               .x = i ? m->saved[i - 1].mid : a->x,
                               .residual = i ? m->pass : NULL,
                               .weight = weight_at(m, v, at->norm1),
                               .bias = weight_at(m, v, at->norm1_b),
                               .rows = m->R,
                               .channels = m->C,
                               .eps = m->spec.norm_eps,
                               .kind = model_norm(m),
                               .dt = m->dt};
    op_norm_fwd(m->s, &n1);
    linear_forward(m, a->qkv, a->n1, weight_at(m, v, at->wqkv), weight_at(m, v, at->bqkv), m->C, m->QKV);
    rope(m, a->qkv, NULL, -1);
    op_attn_fwd(m->s, &(struct attn_fwd_args){.out = a->att,
                                              .lse = a->lse,
                                              .qkv = a->qkv,
                                              .scratch = m->scratch,
                                              .batch = m->B,
                                              .seq = m->T,
                                              .heads = m->spec.heads,
                                              .kv_heads = m->spec.kv_heads,
                                              .head_size = m->spec.head_size,
                                              .scale = 1.0f / sqrtf((float)m->spec.head_size),
                                              .dt = m->dt});
    linear_forward(m, m->pass, a->att, weight_at(m, v, at->wo), weight_at(m, v, at->bo), m->A, m->C);
    op_norm_fwd(m->s, &(struct norm_fwd_args){.y = a->n2,
                                              .sum = a->mid,
                                              .mean = a->mean2,
                                              .rstd = a->rstd2,
                                              .x = a->x,
                                              .residual = m->pass,
                                              .weight = weight_at(m, v, at->norm2),
                                              .bias = weight_at(m, v, at->norm2_b),
                                              .rows = m->R,
                                              .channels = m->C,
                                              .eps = m->spec.norm_eps,
                                              .kind = model_norm(m),
                                              .dt = m->dt});
    up_forward(m, i, v);
    linear_forward(m, m->pass, a->act, weight_at(m, v, at->w_down), weight_at(m, v, at->b_down), m->F, m->C);
}

// The gradient of the residual stream comes in and leaves in m->carry.
static void norm_backward(struct model *m, const struct unit_view *v, int64_t weight, int64_t bias,
                          const void *x, const float *mean, const float *rstd) {
    op_norm_bwd(m->s, &(struct norm_bwd_args){.dx = m->carry,
                                              .dweight = grad_at(m, v, weight),
                                              .dbias = grad_at(m, v, bias),
                                              .dy = m->d_c,
                                              .dresidual = m->carry,
                                              .x = x,
                                              .mean = mean,
                                              .rstd = rstd,
                                              .weight = weight_at(m, v, weight),
                                              .scratch = m->scratch,
                                              .rows = m->R,
                                              .channels = m->C,
                                              .accumulate = v->accumulate,
                                              .kind = model_norm(m),
                                              .dt = m->dt});
}

static void mlp_backward(struct model *m, int i, const struct unit_view *v) {
    const struct block_tensors *at = &m->at[i];
    const struct block_saved *a = &m->saved[i];
    bool llama = m->spec.family == FAMILY_LLAMA;
    void *d_up = llama ? a->up : m->d_up;
    linear_backward(m, &(struct linear_grad){.dx = llama ? m->d_act : d_up,
                                             .dw = grad_at(m, v, at->w_down),
                                             .db = grad_at(m, v, at->b_down),
                                             .dy = m->carry,
                                             .x = a->act,
                                             .w = weight_at(m, v, at->w_down),
                                             .gelu_of = llama ? NULL : a->up,
                                             .in = m->F,
                                             .out = m->C,
                                             .accumulate = v->accumulate});
    if (llama)
        op_swiglu_bwd(
            m->s, &(struct swiglu_args){
                      .y = d_up, .gate_up = a->up, .dy = m->d_act, .rows = m->R, .width = m->F, .dt = m->dt});
    linear_backward(m, &(struct linear_grad){.dx = m->d_c,
                                             .dw = grad_at(m, v, at->w_up),
                                             .db = grad_at(m, v, at->b_up),
                                             .dy = d_up,
                                             .x = a->n2,
                                             .w = weight_at(m, v, at->w_up),
                                             .in = m->C,
                                             .out = m->U,
                                             .accumulate = v->accumulate});
    norm_backward(m, v, at->norm2, at->norm2_b, a->mid, a->mean2, a->rstd2);
}

static void attention_backward(struct model *m, int i, const struct unit_view *v) {
    const struct block_tensors *at = &m->at[i];
    const struct block_saved *a = &m->saved[i];
    bool rotated = m->spec.family == FAMILY_LLAMA;
    linear_backward(m, &(struct linear_grad){.dx = m->d_att,
                                             .dw = grad_at(m, v, at->wo),
                                             .db = grad_at(m, v, at->bo),
                                             .dy = m->carry,
                                             .x = a->att,
                                             .w = weight_at(m, v, at->wo),
                                             .in = m->A,
                                             .out = m->C,
                                             .accumulate = v->accumulate});
    op_attn_bwd(m->s, &(struct attn_bwd_args){.dqkv = m->d_qkv,
                                              .dout = m->d_att,
                                              .qkv = a->qkv,
                                              .out = a->att,
                                              .lse = a->lse,
                                              .scratch = m->scratch,
                                              .batch = m->B,
                                              .seq = m->T,
                                              .heads = m->spec.heads,
                                              .kv_heads = m->spec.kv_heads,
                                              .head_size = m->spec.head_size,
                                              .scale = 1.0f / sqrtf((float)m->spec.head_size),
                                              .dt = m->dt});
    rope(m, m->d_qkv, v, at->bqkv);
    linear_backward(m, &(struct linear_grad){.dx = m->d_c,
                                             .dw = grad_at(m, v, at->wqkv),
                                             .db = rotated ? NULL : grad_at(m, v, at->bqkv),
                                             .dy = m->d_qkv,
                                             .x = a->n1,
                                             .w = weight_at(m, v, at->wqkv),
                                             .in = m->C,
                                             .out = m->QKV,
                                             .accumulate = v->accumulate});
    norm_backward(m, v, at->norm1, at->norm1_b, a->x, a->mean1, a->rstd1);
}

void block_backward(struct model *m, int i, const struct unit_view *v) {
    mlp_backward(m, i, v);
    attention_backward(m, i, v);
}
