// Inside of the model: shared by model.c (life cycle), block.c and head.c. Nobody else includes it.
//
// Activations of one micro-batch, R = B*T rows, QKV = (H+2KV)*D, A = H*D, U = 2F (SwiGLU) or F (GELU):
//
//     embedding   x[0] (R,C)
//     block i     x[i] -> n1 -> qkv (rope) -> att -> (proj) ; mid = x[i] + proj
//                 mid  -> n2 -> up -> act -> (mlp)          ; x[i+1] = mid + mlp, added by the next norm
//     head        x[L] -> nf -> logits, in chunks of rows
//
// What stands in brackets passes through scratch; everything else is kept for the backward. GELU is part of
// the products around it (kernels/operations.h, EPILOGUE_GELU): `act` leaves the first with `up` beside it, and
// the gradient of `up` leaves the second's backward.
// `carry` is the gradient of the residual stream on its way down.
//
// forward_only keeps nothing for a backward: every block's `saved` is the same buffers. A block reads the
// previous one's mid into its x before it writes its own.
#ifndef STARRING_SHARED_MODEL_MODEL_IMPL_H
#define STARRING_SHARED_MODEL_MODEL_IMPL_H

#include "shared/model/model.h"

// Offsets (elements) of a block's tensors in its unit; -1: the family has none.
struct block_tensors {
    int64_t norm1, norm1_b, wqkv, bqkv, wo, bo, norm2, norm2_b, w_up, b_up, w_down, b_down;
};

struct block_saved {
    void *x, *n1, *qkv, *att, *mid, *n2, *up, *act;  // (R,C) (R,C) (R,QKV) (R,A) (R,C) (R,C) (R,U) (R,F)
    float *mean1, *rstd1, *mean2, *rstd2;            // (R)
    float *lse;                                      // (B,H,T)
};

struct model {
    struct model_spec spec;
    const struct layout *layout;
    struct stream *s;
    enum dtype dt;
    int64_t B, T, R, C, QKV, A, F, U, V;
    int64_t most_seq;  // what memory was taken for; T changes when forward_only
    struct arena arena;
    struct block_tensors *at;   // (L)
    struct block_saved *saved;  // (L)
    int32_t *tokens, *targets;  // (B,T)
    float *rope;                // (T,D/2,2), LLaMA
    void *final_x, *nf;         // (R,C)
    float *meanf, *rstdf;       // (R)
    float *loss;                // (R)
    double *loss_sum;           // (1)
    void *logits;               // (chunk,VP) in rows of VS elements
    int64_t VS;                 // V and the classes reserved behind it
    int64_t VP;                 // what the head's products run over: V on CPUs, VS on GPUs
    int64_t chunk;              // rows of logits at a time
    void *head_share;           // (VP,C): where a micro-batch adds its chunks; NULL: in the gradient itself
    void *pass;                 // (R,C): proj and mlp on their way to the next norm
    void *carry, *d_c;          // (R,C)
    void *d_qkv, *d_att;
    void *d_up;        // (R,U), GPT-2: the product that writes it reads `up`. LLaMA's is written over `up`
    void *d_act;       // (R,F), LLaMA: GPT-2's is never stored
    void *scratch;     // of operations
    float grad_scale;  // of the summed loss
    bool zero_loss;
    bool apart;  // of the head's plan
    bool forward_only;
};

// The tensor's place in a view; NULL when it has none (offset -1).
static inline const void *weight_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (const char *)v->weights + (size_t)offset * dtype_size(m->dt);
}
static inline void *grad_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (char *)v->grad + (size_t)offset * dtype_size(m->dt);
}

static inline enum norm_kind model_norm(const struct model *m) {
    return m->spec.family == FAMILY_LLAMA ? NORM_RMS : NORM_LAYER;
}

// Offset of "<unit>.<name>" in its unit, -1 when the unit has no such tensor.
int64_t unit_tensor_offset(const struct unit *u, const char *name);

// y(R,out) = x(R,in) w(out,in)^T + b
void linear_forward(struct model *m, void *y, const void *x, const void *w, const void *b, int64_t in,
                    int64_t out);
// dx(R,in) = dy w ; dw (+)= dy^T x ; db (+)= column sums of dy. dx, db may be NULL. gelu_of not NULL: x
// is gelu(gelu_of(R,in)), and dx becomes the gradient of gelu_of.
struct linear_grad {
    void *dx, *dw, *db;
    const void *dy, *x, *w;
    void *gelu_of;
    int64_t in, out;
    bool accumulate;
};
void linear_backward(struct model *m, const struct linear_grad *g);

void block_forward(struct model *m, int i, const struct unit_view *v);
void block_backward(struct model *m, int i, const struct unit_view *v);
void head_forward(struct model *m, const struct unit_view *v, const struct unit_view *tied, bool want_loss);
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied);

#endif
