#include "shared/model/head.h"

#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/model/layers.h"

// The output projection: in the head's own unit, or in unit 0 if tied. Rows from V on are reserved zeros. The
// loss ignores their logits and makes the gradient of these zero, so the rows stay zero.
struct projection {
    const void *w;  // (VP,C)
    void *dw;       // (VP,C) or NULL
    bool accumulate;
};

static struct projection projection_of(const struct model *m, const struct unit_view *v,
                                       const struct unit_view *tied) {
    const struct unit_view *owner = m->layout->tied ? tied : v;
    return (struct projection){weight_at(m, owner, m->projection),
                               owner->grad ? grad_at(m, owner, m->projection) : NULL, owner->accumulate};
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

// From the gradient of a chunk's logits: the gradient of its rows of nf, and its share of dw, which is added
// to dw (accumulate) or replaces it.
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
                                          .b = row_at(m, m->final.y, row, m->C),
                                          .m = m->VP,
                                          .n = m->C,
                                          .k = rows,
                                          .lda = m->VS,
                                          .trans_a = true,
                                          .accumulate = accumulate,
                                          .dt = m->dt});
}

// The logits are computed here and not in the forward, but their time counts as the backward's: on a GPU,
// measuring it apart would put a timestamp between the products.
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied) {
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
    norm_backward(m, &m->final, v, NULL);
}

int head_row_logits(struct model *m, const struct unit_view *v, const struct unit_view *tied, int64_t row,
                    float *out) {
    struct projection p = projection_of(m, v, tied);
    size_t bytes = (size_t)m->VS * dtype_size(m->dt);
    void *host = xcalloc(bytes, 1);  // logits may lie in device memory
    logits_of(m, &p, row, 1);
    dev_copy(m->s, host, m->logits, bytes);
    int rc = stream_sync(m->s);
    for (int64_t i = 0; i < m->V && rc == 0; i++) out[i] = dtype_load(m->dt, host, (size_t)i);
    free(host);
    return rc;
}
