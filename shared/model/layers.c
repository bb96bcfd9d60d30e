#include "shared/model/layers.h"

void norm_forward(struct model *m, const struct norm *n, const struct unit_view *v, const void *x) {
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

void norm_backward(struct model *m, const struct norm *n, const struct unit_view *v, const void *residual) {
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

void linear_forward(struct model *m, const struct linear *l, const struct unit_view *v,
                    const struct linear_io *io) {
    op_matmul(m->s, &(struct matmul_args){.c = io->y,
                                          .a = io->x,
                                          .b = weight_at(m, v, l->weight),
                                          .bias = weight_at(m, v, l->bias),
                                          .aux = io->pre_gelu,
                                          .m = m->R,
                                          .n = l->out,
                                          .k = l->in,
                                          .trans_b = true,
                                          .epilogue = io->pre_gelu ? EPILOGUE_GELU : EPILOGUE_NONE,
                                          .dt = m->dt});
}

void linear_backward(struct model *m, const struct linear *l, const struct unit_view *v,
                     const struct linear_grad *g) {
    void *db = g->no_bias ? NULL : grad_at(m, v, l->bias);
    op_matmul(m->s, &(struct matmul_args){.c = g->dx,
                                          .a = g->dy,
                                          .b = weight_at(m, v, l->weight),
                                          .aux = g->gelu_of,
                                          .m = m->R,
                                          .n = l->in,
                                          .k = l->out,
                                          .epilogue = g->gelu_of ? EPILOGUE_GELU_GRAD : EPILOGUE_NONE,
                                          .dt = m->dt});
    op_matmul(m->s, &(struct matmul_args){.c = grad_at(m, v, l->weight),
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
}
