// The elementwise updates of the optimizers: a row and a formula each. The operations, their loops on every backend,
// their bytes (op_work.c), their rows of `bench kernels` and their comparisons in the tests follow from the rows.
//
// To add one   Its row in UPDATES and its formula here, and the optimizer's row in shared/model/optimizer.c.
//              For a setting that no other update has, also a member of update_args; for a third state, also the loops.
#ifndef STARRING_KERNELS_UPDATE_H
#define STARRING_KERNELS_UPDATE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/codec.h"
#include "kernels/dtype.h"
#include "kernels/formula.h"

// states: how many of m and v it reads. frozen: how many of them it does not write, the last ones. variant: a choice
// between two forms of the formula. states and variant are expressions of the arguments `a`; loops are compiled for
// each of their values. ROW receives `first` before them.
// clang-format off
//             enumerator      name         states        frozen variant
#define UPDATES(ROW, first) \
    ROW(first, OP_ADAMW,       adamw,       2,            0,     a->l2_mode) \
    ROW(first, OP_SGD,         sgd,         a->m ? 1 : 0, 0,     a->nesterov) \
    ROW(first, OP_LION,        lion,        1,            0,     false) \
    ROW(first, OP_RMSPROP,     rmsprop,     a->v ? 2 : 1, 0,     false) \
    ROW(first, OP_ADAM_FROZEN, adam_frozen, 2,            1,     a->codes != NULL)
// clang-format on

// The decision for one step's update; made once, the same on every rank (docs/numerics.md).
struct update_scalars {
    float grad_scale;  // multiply gradients by this: clip / loss_scale
    int32_t skip;      // 1: a gradient was not finite; change nothing
    double norm;       // of the unscaled gradient, before clipping; not finite if skip
};

// One launch updates n elements: for each, its formula below with g = (float)grad * grad_scale, or g = the value of its
// code, then weight = round(p). scalars->skip: nothing is written. Parameter groups are ranges of elements: group g is
// [ends[g-1], ends[g]), the first begins at 0.
#define UPDATE_GROUPS_MAX 24
struct update_args {                   // each update reads what its formula names
    float *master, *m, *v;             // (n)
    void *weight;                      // (n) of type dt; may equal master in fp32; NULL: not written
    const void *grad;                  // (n) of type dt; not read with codes
    const struct onebit_block *codes;  // adam_frozen: (n / ONEBIT_BLOCK), n a multiple of it; NULL: grad
    const struct update_scalars *scalars;
    int64_t n;
    int64_t ends[UPDATE_GROUPS_MAX];        // (groups) rising; the last is n
    float weight_decay[UPDATE_GROUPS_MAX];  // (groups)
    int32_t groups;                         // at least 1
    float lr, beta1, beta2, eps;
    float inv_bc1, inv_sqrt_bc2;  // 1/(1-beta1^t) and 1/sqrt(1-beta2^t), computed in double, then rounded
    float momentum, rest;         // rest: of sgd
    float alpha;                  // of rmsprop
    bool l2_mode, nesterov;
    enum dtype dt;
};

// One element: a formula changes p and the states.
struct update_element {
    float p, g, decay;  // the master, the scaled gradient or the code's value, the weight decay of its group
    float m, v;         // 0 beyond the update's states
};
// states, variant: the row's, constants of the loop that inlines the formula.
typedef void update_formula(const struct update_args *a, struct update_element *e, int states, bool variant);

// AdamW (Loshchilov & Hutter 2019, algorithm 2). l2: Adam with "adam_w_mode": false.
FORMULA void update_adamw(const struct update_args *a, struct update_element *e, int states, bool l2) {
    float g = l2 ? fmaf(e->decay, e->p, e->g) : e->g;
    (void)states;
    e->m = fmaf(a->beta1, e->m, (1.0f - a->beta1) * g);
    e->v = fmaf(a->beta2, e->v, ((1.0f - a->beta2) * g) * g);
    float denom = sqrtf(e->v) * a->inv_sqrt_bc2 + a->eps;  // a product, then a sum: two roundings
    float u = (e->m * a->inv_bc1) / denom;
    if (!l2) u = fmaf(e->decay, e->p, u);
    e->p = fmaf(-a->lr, u, e->p);
}

// Stochastic gradient descent as torch.optim.SGD computes it (Sutskever et al. 2013 for the two kinds of momentum).
// rest is 1 - dampening; at the first update, where m holds zeros, it is 1, because torch's momentum begins as the
// gradient. a->m NULL: no momentum.
FORMULA void update_sgd(const struct update_args *a, struct update_element *e, int states, bool nesterov) {
    float g = fmaf(e->decay, e->p, e->g);
    if (states > 0) {
        e->m = fmaf(a->momentum, e->m, a->rest * g);
        g = nesterov ? fmaf(a->momentum, e->m, g) : e->m;
    }
    e->p = fmaf(-a->lr, g, e->p);
}

// Lion (Chen et al. 2023, algorithm 2). The sign of 0 is 0, as in the paper, so elements that are zero (gaps,
// padding) stay zero.
FORMULA void update_lion(const struct update_args *a, struct update_element *e, int states, bool variant) {
    float c = fmaf(a->beta1, e->m, (1.0f - a->beta1) * e->g);
    float u = (float)(c > 0) - (float)(c < 0);
    (void)states, (void)variant;
    e->p = fmaf(-a->lr, fmaf(e->decay, e->p, u), e->p);
    e->m = fmaf(a->beta2, e->m, (1.0f - a->beta2) * e->g);
}

// RMSProp (Tieleman & Hinton 2012) as torch.optim.RMSprop 2.x computes it with centered=False. m is the mean square,
// v the momentum; a->v NULL: no momentum.
FORMULA void update_rmsprop(const struct update_args *a, struct update_element *e, int states, bool variant) {
    float g = fmaf(e->decay, e->p, e->g);
    (void)variant;
    e->m = fmaf(a->alpha, e->m, ((1.0f - a->alpha) * g) * g);
    float u = g / (sqrtf(e->m) + a->eps);
    if (states > 1) u = e->v = fmaf(a->momentum, e->v, u);
    e->p = fmaf(-a->lr, u, e->p);
}

// 1-bit Adam (Tang et al. 2021, algorithm 1) after its warm-up: Adam with a frozen variance. coded: g is the momentum on
// which all ranks agreed. An element whose variance is 0 is masked (kernels/operations.h).
FORMULA void update_adam_frozen(const struct update_args *a, struct update_element *e, int states,
                                bool coded) {
    float m = coded ? e->g : fmaf(a->beta1, e->m, (1.0f - a->beta1) * e->g);
    (void)states;
    e->m = e->v != 0 ? m : 0;
    float u = e->m / (sqrtf(e->v) + a->eps);
    e->p = fmaf(-a->lr, fmaf(e->decay, e->p, u), e->p);
}

#endif
