// What a block and the head are made of: norms and linear layers, forward and backward. Functions only
// enqueue on the model's stream. `v` is the view of the unit that the layer's tensors lie in.
#ifndef STARRING_SHARED_MODEL_LAYERS_H
#define STARRING_SHARED_MODEL_LAYERS_H

#include "shared/model/activations.h"

// A tensor's place in a view; NULL where it has none (offset -1).
static inline const void *weight_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (const char *)v->weights + (size_t)offset * dtype_size(m->dt);
}
static inline void *grad_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (char *)v->grad + (size_t)offset * dtype_size(m->dt);
}

// n->y = norm(n->x), n->x = x + m->pass first. x NULL: n->x is there already.
void norm_forward(struct model *m, const struct norm *n, const struct unit_view *v, const void *x);
// m->carry = gradient of n->x from m->d_c, that of n->y, + residual (NULL: nothing; m->carry is allowed).
void norm_backward(struct model *m, const struct norm *n, const struct unit_view *v, const void *residual);

// y(R,out) = x(R,in) w^T + b. pre_gelu not NULL: that goes there (R,out), and y is its GELU.
struct linear_io {
    void *y;
    const void *x;
    void *pre_gelu;
};
void linear_forward(struct model *m, const struct linear *l, const struct unit_view *v,
                    const struct linear_io *io);

// dx(R,in) = dy w ; gradient of w (+)= dy^T x ; of b (+)= column sums of dy, unless no_bias. gelu_of not
// NULL: x is gelu(gelu_of(R,in)), and dx becomes the gradient of gelu_of.
struct linear_grad {
    void *dx;
    const void *dy, *x;
    void *gelu_of;
    bool no_bias;
};
void linear_backward(struct model *m, const struct linear *l, const struct unit_view *v,
                     const struct linear_grad *g);

#endif
