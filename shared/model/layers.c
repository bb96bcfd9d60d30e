// Forward and backward of a block and of the head, and what a block computes again (recompute.h).
//
// Each step names what it writes and its shape. R = B*T rows, C channels, QKV = (H+2KV)*D, A = H*D, F the
// width of the feed-forward, U = 2F (SwiGLU: gate and up) or F (GELU).
#include "shared/model/activations.h"

#include <math.h>
#include <stdlib.h>

#include "shared/core/error.h"

// ---------------------------------------------------------------- norms and linear layers
// n->y = norm(n->x), after n->x = x + m->pass. x NULL: n->x is set already.
static void norm_forward(struct model *m, const struct norm *n, const struct unit_view *v, const void *x) {
    op_norm_fwd(m->s, &(struct norm_fwd_args){.y = n->y,
                                              .sum = x ? n->x : NULL,
                                              .mean = n->mean,
                                              .rstd = n->rstd,
                                              .x = x ? x : n->x,
                                              .residual = x ? m->pass : NULL,
                                              .weight = weight_at(m, v, n->weight),
                                              .bias = weight_at(m, v, n->bias),
                                              .rows = m->R,
                                              .channels = m->C,
                                              .eps = m->spec.norm_eps,
                                              .kind = m->spec.traits.norm,
                                              .dt = m->dt});
}

// m->carry = gradient of n->x, from m->d_c (the gradient of n->y), + residual (NULL: none; may be m->carry).
static void norm_backward(struct model *m, const struct norm *n, const struct unit_view *v,
                          const void *residual) {
    op_norm_bwd(m->s, &(struct norm_bwd_args){.dx = m->carry,
                                              .dweight = grad_at(m, v, n->weight),
                                              .dbias = grad_at(m, v, n->bias),
                                              .dy = m->d_c,
                                              .dresidual = residual,
                                              .x = n->x,
                                              .mean = n->mean,
                                              .rstd = n->rstd,
                                              .weight = weight_at(m, v, n->weight),
                                              .scratch = m->scratch,
                                              .rows = m->R,
                                              .channels = m->C,
                                              .accumulate = v->accumulate,
                                              .kind = m->spec.traits.norm,
                                              .dt = m->dt});
}

// dx(R,in) = dy w (NULL: not needed); gradient of w (+)= dy^T x; gradient of b (+)= column sums of dy, unless
// no_bias. If gelu_of is not NULL, x is gelu(gelu_of(R,in)), and dx receives the gradient of gelu_of. Frozen tensors
// get no gradient.
struct linear_grad {
    void *dx;
    const void *dy, *x;
    void *gelu_of;
    bool no_bias;
};
// ---- adapters of LoRA. The product with the frozen matrix comes first, and an adapter adds to its rows of it.
static bool adapted(const struct linear *l) {
    for (int part = 0; part < LORA_PARTS; part++)
        if (l->adapters[part].h) return true;
    return false;
}

// Returns the address of the adapter's columns in y or dy, (R,out).
static void *columns_at(const struct model *m, const struct adapter *a, const void *y) {
    return (char *)y + (size_t)a->first * dtype_size(m->dt);
}

static void scale_by_alpha(struct model *m, void *h) {
    float scale = m->spec.lora.alpha / (float)m->spec.lora.r;
    if (scale != 1.0f)
        op_cast(
            m->s,
            &(struct cast_args){
                .out = h, .in = h, .n = m->R * m->spec.lora.r, .from = m->dt, .to = m->dt, .factor = scale});
}

// h(R,r) = scale x A^T; the adapter's columns of y += h B^T. y NULL: only h.
static void adapter_forward(struct model *m, const struct linear *l, const struct adapter *a,
                            const struct unit_view *v, void *y, const void *x) {
    int64_t r = m->spec.lora.r;
    op_matmul(m->s, &(struct matmul_args){.c = a->h,
                                          .a = x,
                                          .b = weight_at(m, v, a->a),
                                          .m = m->R,
                                          .n = r,
                                          .k = l->in,
                                          .trans_b = true,
                                          .dt = m->dt});
    scale_by_alpha(m, a->h);
    if (y)
        op_matmul(m->s, &(struct matmul_args){.c = columns_at(m, a, y),
                                              .a = a->h,
                                              .b = weight_at(m, v, a->b),
                                              .m = m->R,
                                              .n = a->rows,
                                              .k = r,
                                              .ldc = l->out,
                                              .trans_b = true,
                                              .accumulate = true,
                                              .dt = m->dt});
}

static void adapters_forward(struct model *m, const struct linear *l, const struct unit_view *v, void *y,
                             const void *x) {
    for (const struct adapter *a = l->adapters; a < l->adapters + LORA_PARTS; a++)
        if (a->h) adapter_forward(m, l, a, v, y, x);
}

// Gradient of B (+)= dy^T h; d_h(R,r) = scale dy B; gradient of A (+)= d_h^T x; dx += d_h A. dy: the adapter's columns.
static void adapter_backward(struct model *m, const struct linear *l, const struct adapter *a,
                             const struct unit_view *v, const struct linear_grad *g) {
    int64_t r = m->spec.lora.r;
    const void *dy = columns_at(m, a, g->dy);
    op_matmul(m->s, &(struct matmul_args){.c = grad_at(m, v, a->b),
                                          .a = dy,
                                          .b = a->h,
                                          .m = a->rows,
                                          .n = r,
                                          .k = m->R,
                                          .lda = l->out,
                                          .trans_a = true,
                                          .accumulate = v->accumulate,
                                          .dt = m->dt});
    op_matmul(m->s, &(struct matmul_args){.c = m->d_h,
                                          .a = dy,
                                          .b = weight_at(m, v, a->b),
                                          .m = m->R,
                                          .n = r,
                                          .k = a->rows,
                                          .lda = l->out,
                                          .dt = m->dt});
    scale_by_alpha(m, m->d_h);
    op_matmul(m->s, &(struct matmul_args){.c = grad_at(m, v, a->a),
                                          .a = m->d_h,
                                          .b = g->x,
                                          .m = r,
                                          .n = l->in,
                                          .k = m->R,
                                          .trans_a = true,
                                          .accumulate = v->accumulate,
                                          .dt = m->dt});
    if (g->dx)
        op_matmul(m->s, &(struct matmul_args){.c = g->dx,
                                              .a = m->d_h,
                                              .b = weight_at(m, v, a->a),
                                              .m = m->R,
                                              .n = l->in,
                                              .k = r,
                                              .accumulate = true,
                                              .dt = m->dt});
}

// y(R,out) = x(R,in) w^T + b + what the adapters add. If pre_gelu is not NULL, it receives that value (R,out), and y
// receives its GELU.
struct linear_io {
    void *y;
    const void *x;
    void *pre_gelu;
};
static void linear_forward(struct model *m, const struct linear *l, const struct unit_view *v,
                           const struct linear_io *io) {
    bool gelu_apart = io->pre_gelu && adapted(l);
    void *y = gelu_apart ? io->pre_gelu : io->y, *aux = gelu_apart ? NULL : io->pre_gelu;
    op_matmul(m->s, &(struct matmul_args){.c = y,
                                          .a = io->x,
                                          .b = weight_at(m, v, l->weight),
                                          .bias = weight_at(m, v, l->bias),
                                          .aux = aux,
                                          .m = m->R,
                                          .n = l->out,
                                          .k = l->in,
                                          .trans_b = true,
                                          .epilogue = aux ? EPILOGUE_GELU : EPILOGUE_NONE,
                                          .dt = m->dt});
    adapters_forward(m, l, v, y, io->x);
    if (gelu_apart)
        op_gelu_fwd(m->s, &(struct gelu_args){.y = io->y, .x = y, .n = m->R * l->out, .dt = m->dt});
}

static void linear_backward(struct model *m, const struct linear *l, const struct unit_view *v,
                            const struct linear_grad *g) {
    void *dw = grad_at(m, v, l->weight), *db = g->no_bias ? NULL : grad_at(m, v, l->bias);
    bool gelu_apart = g->gelu_of && adapted(l);
    void *aux = gelu_apart ? NULL : g->gelu_of;
    if (g->dx)
        op_matmul(m->s, &(struct matmul_args){.c = g->dx,
                                              .a = g->dy,
                                              .b = weight_at(m, v, l->weight),
                                              .aux = aux,
                                              .m = m->R,
                                              .n = l->in,
                                              .k = l->out,
                                              .epilogue = aux ? EPILOGUE_GELU_GRAD : EPILOGUE_NONE,
                                              .dt = m->dt});
    if (dw)
        op_matmul(m->s, &(struct matmul_args){.c = dw,
                                              .a = g->dy,
                                              .b = g->x,
                                              .bias_grad = db,
                                              .m = l->out,
                                              .n = l->in,
                                              .k = m->R,
                                              .trans_a = true,
                                              .accumulate = v->accumulate,
                                              .epilogue = db ? EPILOGUE_BIAS_GRAD : EPILOGUE_NONE,
                                              .dt = m->dt});
    for (const struct adapter *a = l->adapters; a < l->adapters + LORA_PARTS; a++)
        if (a->h) adapter_backward(m, l, a, v, g);
    if (gelu_apart)
        op_gelu_bwd(m->s, &(struct gelu_args){
                              .y = g->dx, .x = g->gelu_of, .dy = g->dx, .n = m->R * l->in, .dt = m->dt});
}

// ---------------------------------------------------------------- a block
// Rotates q and k in place; does nothing without rotary positions. In the backward it rotates back, and writes
// the gradient of qkv's bias to dbias (NULL: there is no bias).
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

// Computes again what block i does not keep (recompute.h). The last of these blocks recomputes nothing, because the shared
// buffers still hold its values.
static void compute_again(struct model *m, int i, const struct unit_view *v) {
    const struct block *b = &m->blocks[i];
    bool gelu = m->spec.traits.mlp == MLP_GELU;
    kept_input_needed(m, i);
    if (m->recompute.kind == RECOMPUTE_CHEAP && i < m->spec.layers - 1) {
        // RECOMPUTE_CHEAP: norms and the activation function, from x, mid and up.
        norm_forward(m, &b->norm1, v, NULL);
        norm_forward(m, &b->norm2, v, NULL);
        bool act = !m->keeps_act && keeps_input(m, &b->w_down);
        if (act && gelu)
            op_gelu_fwd(m->s, &(struct gelu_args){.y = b->act, .x = b->up, .n = m->R * m->F, .dt = m->dt});
        else if (act)
            swiglu(m, b);
    }
    if (i < m->inputs.blocks - 1) {
        norm_forward(m, &b->norm1, v, NULL);
        attend(m, b, v);
        widen(m, b, v);
        adapters_forward(m, &b->w_down, v, NULL, b->act);
    }
}

void block_backward(struct model *m, int i, const struct unit_view *v) {
    const struct block *b = &m->blocks[i];
    bool gelu = m->spec.traits.mlp == MLP_GELU;
    void *d_up = gelu ? m->d_mlp : b->up;
    bool lowest = i == 0 && m->spec.lora.r;  // the embedding below it is frozen, and needs no gradient
    compute_again(m, i, v);
    // 1. Down projection, from carry (R,C): gradient of act (R,F), or, with GELU as part of the product, of up.
    linear_backward(
        m, &b->w_down, v,
        &(struct linear_grad){.dx = m->d_mlp, .dy = m->carry, .x = b->act, .gelu_of = gelu ? b->up : NULL});
    // 2. SwiGLU: gradient of gate and up (R,2F), in place.
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
        &(struct linear_grad){
            .dx = lowest ? NULL : m->d_c, .dy = m->d_qkv, .x = b->norm1.y, .no_bias = m->rope != NULL});
    // 9. Norm: carry (R,C) = gradient of x: through the norm, plus the residual carry.
    if (!lowest) norm_backward(m, &b->norm1, v, m->carry);
    kept_input_done(m, i);
}

// ---------------------------------------------------------------- the head
// The output projection: in the head's own unit, or in unit 0 if tied. Rows from V on are reserved zeros. The
// loss ignores their logits and sets the gradient of these to zero, so the rows stay zero.
struct projection {
    const void *w;  // (VP,C)
    void *dw;       // (VP,C) or NULL
    bool accumulate;
};

static struct projection projection_of(const struct model *m, const struct unit_view *v,
                                       const struct unit_view *tied) {
    const struct unit_view *owner = m->spec.tied ? tied : v;
    return (struct projection){weight_at(m, owner, m->projection), grad_at(m, owner, m->projection),
                               owner->accumulate};
}

static void *row_at(const struct model *m, void *base, int64_t row, int64_t width) {
    return (char *)base + (size_t)(row * width) * dtype_size(m->dt);
}

static int64_t rows_from(const struct model *m, int64_t row) {
    return m->R - row < m->chunk ? m->R - row : m->chunk;
}

static void logits_of(struct model *m, const struct projection *p, int64_t row, int64_t rows) {
    op_matmul(m->s, &(struct matmul_args){.c = m->logits,
                                          .a = row_at(m, m->final.y, row, m->C),
                                          .b = p->w,
                                          .m = rows,
                                          .n = m->VP,
                                          .k = m->C,
                                          .ldc = m->VS,
                                          .trans_b = true,
                                          .dt = m->dt});
}

static void loss_of(struct model *m, int64_t row, int64_t rows, bool want_grad) {
    op_xent(m->s, &(struct xent_args){.logits = m->logits,
                                      .loss = m->loss + row,
                                      .targets = m->targets + row,
                                      .rows = rows,
                                      .vocab = m->V,
                                      .row_stride = m->VS,
                                      .padded = m->VP,
                                      .grad_scale = m->grad_scale,
                                      .want_grad = want_grad,
                                      .dt = m->dt});
}

static void sum_losses(struct model *m) {
    op_loss_sum(m->s, &(struct loss_sum_args){
                          .out = m->loss_sum, .loss = m->loss, .rows = m->R, .accumulate = !m->zero_loss});
}

void head_forward(struct model *m, const struct unit_view *v, const struct unit_view *tied, bool want_loss) {
    norm_forward(m, &m->final, v, m->blocks[m->spec.layers - 1].norm2.x);
    if (!want_loss) return;
    struct projection p = projection_of(m, v, tied);
    for (int64_t row = 0; row < m->R; row += m->chunk) {
        logits_of(m, &p, row, rows_from(m, row));
        loss_of(m, row, rows_from(m, row), false);
    }
    sum_losses(m);
}

// From the gradient of a chunk's logits, computes the gradient of its rows of nf and its contribution to dw,
// which is added to dw (accumulate) or replaces it. dw NULL: the projection is frozen.
static void chunk_backward(struct model *m, const struct projection *p, int64_t row, int64_t rows, void *dw,
                           bool accumulate) {
    op_matmul(m->s, &(struct matmul_args){.c = row_at(m, m->d_c, row, m->C),
                                          .a = m->logits,
                                          .b = p->w,
                                          .m = rows,
                                          .n = m->C,
                                          .k = m->VP,
                                          .lda = m->VS,
                                          .dt = m->dt});
    if (dw)
        op_matmul(m->s, &(struct matmul_args){.c = dw,
                                              .a = m->logits,
                                              .b = row_at(m, m->final.y, row, m->C),
                                              .m = m->VP,
                                              .n = m->C,
                                              .k = rows,
                                              .lda = m->VS,
                                              .trans_a = true,
                                              .accumulate = accumulate,
                                              .dt = m->dt});
}

// The logits are computed here, not in the forward, and their time counts as backward: on a GPU, a separate measurement
// would put a timestamp between the products.
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied) {
    struct projection p = projection_of(m, v, tied);
    bool separate = p.accumulate && m->head_sum;
    for (int64_t row = 0; row < m->R; row += m->chunk) {
        int64_t rows = rows_from(m, row);
        logits_of(m, &p, row, rows);
        loss_of(m, row, rows, true);  // logits are now their gradient
        chunk_backward(m, &p, row, rows, separate ? m->head_sum : p.dw,
                       row > 0 || (p.accumulate && !separate));
    }
    if (separate)
        op_add(m->s,
               &(struct add_args){.y = p.dw, .a = p.dw, .b = m->head_sum, .n = m->VP * m->C, .dt = m->dt});
    sum_losses(m);
    norm_backward(m, &m->final, v, NULL);
}

int head_row_logits(struct model *m, const struct unit_view *v, const struct unit_view *tied, int64_t row,
                    float *out) {
    struct projection p = projection_of(m, v, tied);
    size_t bytes = (size_t)m->VS * dtype_size(m->dt);
    void *host = xcalloc(bytes, 1);  // logits may be in device memory
    logits_of(m, &p, row, 1);
    dev_copy(m->s, host, m->logits, bytes);
    int rc = stream_sync(m->s);
    for (int64_t i = 0; i < m->V && rc == 0; i++) out[i] = dtype_load(m->dt, host, (size_t)i);
    free(host);
    return rc;
}
