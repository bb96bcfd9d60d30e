// The head: final norm, output projection and cross-entropy, in chunks of rows so that the logits of
// the whole batch never exist at once.
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/model/model_impl.h"

#define FETCH_ROWS 8  // of logits that model_logits brings to the host at a time

// Where the output projection lives: in the head's own unit, or in unit 0 when tied. Rows V and up are the
// reserved ones: zeros. Their logits are no classes, the columns of their gradient are zero, and so the
// products leave zeros in them.
struct projection {
    const void *w;  // (VP,C)
    void *dw;       // (VP,C) or NULL
    bool accumulate;
};

static struct projection projection_of(const struct model *m, const struct unit_view *v,
                                       const struct unit_view *tied) {
    const struct unit_view *owner = m->layout->tied ? tied : v;
    const struct unit *u = &m->layout->units[m->layout->tied ? 0 : m->layout->count - 1];
    int64_t at = unit_tensor_offset(u, m->layout->tied ? "wte" : "lm_head");
    return (struct projection){weight_at(m, owner, at), owner->grad ? grad_at(m, owner, at) : NULL,
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
                                          .a = row_at(m, m->nf, row, m->C),
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
    const struct unit *u = &m->layout->units[m->layout->count - 1];
    op_norm_fwd(m->s, &(struct norm_fwd_args){.y = m->nf,
                                              .sum = m->final_x,
                                              .mean = m->meanf,
                                              .rstd = m->rstdf,
                                              .x = m->saved[m->spec.layers - 1].mid,
                                              .residual = m->pass,
                                              .weight = weight_at(m, v, unit_tensor_offset(u, "norm")),
                                              .bias = weight_at(m, v, unit_tensor_offset(u, "norm_b")),
                                              .rows = m->R,
                                              .channels = m->C,
                                              .eps = m->spec.norm_eps,
                                              .kind = model_norm(m),
                                              .dt = m->dt});
    if (!want_loss) return;
    struct projection p = projection_of(m, v, tied);
    for (int64_t row = 0; row < m->R; row += m->chunk) {
        logits_of(m, &p, row, rows_from(m, row));
        loss_of(m, row, rows_from(m, row), false);
    }
    sum_losses(m);
}

// Gradients of a chunk: of its rows of nf, and its share of dw, added to dw or the first there.
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
    op_matmul(m->s, &(struct matmul_args){.c = dw,
                                          .a = m->logits,
                                          .b = row_at(m, m->nf, row, m->C),
                                          .m = m->VP,
                                          .n = m->C,
                                          .k = rows,
                                          .lda = m->VS,
                                          .trans_a = true,
                                          .accumulate = accumulate,
                                          .dt = m->dt});
}

// Logits are computed here and not in the forward, but all of it is accounted to the backward: on a GPU a
// record of the time around each product would stand between them.
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied) {
    const struct unit *u = &m->layout->units[m->layout->count - 1];
    struct projection p = projection_of(m, v, tied);
    bool apart = p.accumulate && m->head_share;
    for (int64_t row = 0; row < m->R; row += m->chunk) {
        int64_t rows = rows_from(m, row);
        logits_of(m, &p, row, rows);
        loss_of(m, row, rows, true);  // logits are now their gradient
        chunk_backward(m, &p, row, rows, apart ? m->head_share : p.dw, row > 0 || (p.accumulate && !apart));
    }
    if (apart)
        op_add(m->s,
               &(struct add_args){.y = p.dw, .a = p.dw, .b = m->head_share, .n = m->VP * m->C, .dt = m->dt});
    sum_losses(m);
    op_norm_bwd(m->s, &(struct norm_bwd_args){.dx = m->carry,
                                              .dweight = grad_at(m, v, unit_tensor_offset(u, "norm")),
                                              .dbias = grad_at(m, v, unit_tensor_offset(u, "norm_b")),
                                              .dy = m->d_c,
                                              .x = m->final_x,
                                              .mean = m->meanf,
                                              .rstd = m->rstdf,
                                              .weight = weight_at(m, v, unit_tensor_offset(u, "norm")),
                                              .scratch = m->scratch,
                                              .rows = m->R,
                                              .channels = m->C,
                                              .accumulate = v->accumulate,
                                              .kind = model_norm(m),
                                              .dt = m->dt});
}

// Rows [row, row + rows) of the chunk as fp32, through host memory: the chunk is the device's.
static int fetch_logits(struct model *m, void *host, int64_t row, int64_t rows, float *out) {
    dev_copy(m->s, host, row_at(m, m->logits, row, m->VS), (size_t)(rows * m->VS) * dtype_size(m->dt));
    if (stream_sync(m->s)) return -1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < m->V; i++)
            out[r * m->V + i] = dtype_load(m->dt, host, (size_t)(r * m->VS + i));
    return 0;
}

int model_logits(struct model *m, const struct unit_view *head, const struct unit_view *tied, float *out) {
    struct projection p = projection_of(m, head, tied);
    void *host = xcalloc((size_t)(FETCH_ROWS * m->VS), dtype_size(m->dt));
    int rc = 0;
    for (int64_t row = 0; row < m->R && rc == 0; row += m->chunk) {
        int64_t rows = rows_from(m, row);
        logits_of(m, &p, row, rows);
        for (int64_t i = 0; i < rows && rc == 0; i += FETCH_ROWS)
            rc = fetch_logits(m, host, i, rows - i < FETCH_ROWS ? rows - i : FETCH_ROWS,
                              out + (row + i) * m->V);
    }
    free(host);
    return rc;
}

int model_row_logits(struct model *m, const struct unit_view *head, const struct unit_view *tied, int64_t row,
                     float *out) {
    struct projection p = projection_of(m, head, tied);
    void *host = xcalloc((size_t)m->VS, dtype_size(m->dt));
    logits_of(m, &p, row, 1);
    int rc = fetch_logits(m, host, 0, 1, out);
    free(host);
    return rc;
}
