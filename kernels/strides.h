// Distances between rows, as kernels/operations.h's arguments give them: 0 stands for rows without gaps.
#ifndef STARRING_KERNELS_STRIDES_H
#define STARRING_KERNELS_STRIDES_H

#include "kernels/operations.h"

static inline int64_t matmul_lda(const struct matmul_args *g) {
    return g->lda ? g->lda : g->trans_a ? g->m : g->k;
}
static inline int64_t matmul_ldb(const struct matmul_args *g) {
    return g->ldb ? g->ldb : g->trans_b ? g->k : g->n;
}
static inline int64_t matmul_ldc(const struct matmul_args *g) { return g->ldc ? g->ldc : g->n; }
// The operation that an EPILOGUE_BIAS_GRAD does beside the product.
static inline struct bias_grad_args matmul_bias_grad(const struct matmul_args *g) {
    return (struct bias_grad_args){g->bias_grad, g->a, g->k, g->m, g->accumulate, g->dt};
}
// Whether the arguments are within operations.h's contract.
static inline bool matmul_valid(const struct matmul_args *g) {
    bool gelu = g->epilogue == EPILOGUE_GELU || g->epilogue == EPILOGUE_GELU_GRAD;
    bool grad = g->epilogue == EPILOGUE_BIAS_GRAD;
    return g->m > 0 && g->n > 0 && g->k > 0 && matmul_lda(g) >= (g->trans_a ? g->m : g->k) &&
           matmul_ldb(g) >= (g->trans_b ? g->k : g->n) && matmul_ldc(g) >= g->n && gelu == (g->aux != NULL) &&
           !(g->bias && (g->accumulate || g->epilogue == EPILOGUE_GELU_GRAD)) &&
           !(gelu && (g->accumulate || matmul_ldc(g) != g->n)) && grad == (g->bias_grad != NULL) &&
           !(grad && (g->bias || !g->trans_a || matmul_lda(g) != g->m));
}

static inline int64_t xent_stride(const struct xent_args *a) {
    return a->row_stride ? a->row_stride : a->vocab;
}
// Columns of a gradient row that are written: those of the vocabulary, and zeros behind them.
static inline int64_t xent_written(const struct xent_args *a) { return a->padded ? a->padded : a->vocab; }
static inline bool xent_valid(const struct xent_args *a) {
    return a->vocab > 0 && a->vocab <= xent_written(a) && xent_written(a) <= xent_stride(a);
}

#endif
