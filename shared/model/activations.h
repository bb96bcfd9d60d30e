// Inside of the model: the memory of one micro-batch, and the layers that work on it. For shared/model alone.
//
// R = B*T rows, QKV = (H+2KV)*D, A = H*D, U = 2F (SwiGLU) or F (GELU):
//
//     embedding   x[0] (R,C)
//     block i     x[i] -> n1 -> qkv -> att -> (proj) ; mid = x[i] + proj
//                 mid  -> n2 -> up -> act -> (mlp)   ; x[i+1] = mid + mlp, added by the next norm
//     head        x[L] -> nf -> logits, in chunks of rows
//
// Values in brackets pass through `pass`; everything else is kept for the backward, unless that computes it
// again (recompute.h). `carry` is the gradient of the residual stream on its way down.
//
// forward_only keeps nothing for a backward: all blocks' buffers are the same. A block reads the previous
// one's mid into its x before it writes its own.
#ifndef STARRING_SHARED_MODEL_ACTIVATIONS_H
#define STARRING_SHARED_MODEL_ACTIVATIONS_H

#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/model/recompute.h"
#include "shared/model/spec.h"

// A norm, its tensors by their offsets in the unit (elements; -1: none), and what it keeps.
struct norm {
    int64_t weight, bias;
    void *x, *y;         // (R,C) input, output
    float *mean, *rstd;  // (R); mean: LayerNorm
};

// y(R,out) = x(R,in) w(out,in)^T + b; w and b by their offsets.
struct linear {
    int64_t weight, bias, in, out;
};

struct block {
    struct norm norm1, norm2;  // x -> n1, mid -> n2
    struct linear wqkv, wo, w_up, w_down;
    void *qkv, *att, *up, *act;  // (R,QKV) (R,A) (R,U) (R,F)
    float *lse;                  // (B,H,T)
};

// Where the inputs of the blocks that keep nothing else lie.
struct kept_inputs {
    int blocks;      // k: how many they are; 0: not RECOMPUTE_BLOCK
    bool on_host;    // the rest is of that alone (kept_inputs_open)
    void *slots[2];  // (R,C) each
    char *host;      // (k-2,R,C)
    struct stream *copies;
    struct event *used[2], *copied[2];  // compute is through with the slot; so are the copies
};

struct model {
    struct model_spec spec;
    const struct layout *layout;
    struct stream *s;
    enum dtype dt;
    int64_t B, T, R, C, QKV, A, F, U, V;
    int64_t most_seq;  // what memory was taken for, the largest T
    struct arena arena;
    int64_t wte, wpe, projection;  // offsets in unit 0, and of the head's matrix in its owner
    struct block *blocks;          // (L)
    struct norm final;             // x[L] -> nf
    struct recompute_options recompute;
    struct kept_inputs inputs;
    bool keeps_act;             // RECOMPUTE_CHEAP: act too is each block's own
    int32_t *tokens, *targets;  // (B,T)
    float *rope;                // (T,D/2,2); NULL: no rotary positions
    float *loss;                // (R)
    double *loss_sum;           // (1)
    bool watches;               // takes the counts of grad_watch.h:
    struct exact_sum *watch;    // (tensors)
    void *watch_rest;           // (tensors, SUMSQ_BLOCK) behind a tensor's last whole block, then zeros
    void *logits;               // (chunk,VP) in rows of VS elements
    int64_t VS;                 // V and the classes reserved behind it
    int64_t VP;                 // what the head's products run over: V on CPUs, VS on GPUs
    int64_t chunk;              // rows of logits at a time
    void *head_share;           // (VP,C): where a micro-batch adds its chunks; NULL: in the gradient itself
    void *pass;                 // (R,C): proj and mlp on their way to the next norm
    void *carry, *d_c;          // (R,C): gradients of the residual stream, and of a norm's output
    void *d_qkv, *d_att;
    void *d_mlp;       // (R,F): gradient of act (SwiGLU, whose up takes its own gradient) or of up (GELU)
    void *scratch;     // of operations
    float grad_scale;  // of the summed loss
    bool zero_loss;
    bool apart;  // of the head's plan
    bool forward_only;
};

// A tensor's place in a view; NULL where it has none (offset -1).
static inline const void *weight_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (const char *)v->weights + (size_t)offset * dtype_size(m->dt);
}
static inline void *grad_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    return offset < 0 ? NULL : (char *)v->grad + (size_t)offset * dtype_size(m->dt);
}

// ---------------------------------------------------------------- layers (layers.c)
// The block (attention, then feed-forward, each on a norm of the residual stream that it adds to) and the head. Functions
// only enqueue on the model's stream. `v` is the view of the unit that the tensors lie in.
// Reads the residual stream as block i-1 left it (mid and m->pass; for block 0 its own x) and leaves it
// likewise.
void block_forward(struct model *m, int i, const struct unit_view *v);
// The gradient of the residual stream comes in and leaves in m->carry.
void block_backward(struct model *m, int i, const struct unit_view *v);

// The head: final norm, output projection and cross-entropy, in chunks of rows so that the logits of the
// whole batch never exist at once. v: the head's own unit; tied: unit 0 where the projection is the
// embedding.
void head_forward(struct model *m, const struct unit_view *v, const struct unit_view *tied, bool want_loss);
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied);
// As model_row_logits.
int head_row_logits(struct model *m, const struct unit_view *v, const struct unit_view *tied, int64_t row,
                    float *out);

// ---------------------------------------------------------------- memory (activations.c)
// Takes the memory of a model whose sizes are set: from its arena, which measures when it has no device.
void activations_carve(struct model *m);

// ---------------------------------------------------------------- inputs on the host
// The inputs of blocks that keep nothing else (recompute.h), where they lie on the host.
//
// Only two are on the device, by parity of the block. A stream of the model's own copies; events
// order it, and the host never waits:
//
//     compute   | x0 .. block 0 | x1 .. block 1 | x2 .. block 2 |    ..    | back 3 | back 2 | back 1 |
//     copies         | x0 out       | x1 out                                        | x1 in  | x0 in  |
//                                                 ^ x0 is out                                ^ x1 is in
//
// The last two need no copy: they are still there.
// The stream and the events; nothing where inputs stay on the device. 0, or -1 after fail().
int kept_inputs_open(struct model *m);
void kept_inputs_close(struct model *m);

// Around the writing of x[i] in the forward: before it is written, and behind it.
void kept_input_begins(struct model *m, int i);
void kept_input_ends(struct model *m, int i);
// Around the use of x[i] in the backward.
void kept_input_needed(struct model *m, int i);
void kept_input_done(struct model *m, int i);

#endif
