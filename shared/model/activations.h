// Inside the model: the memory of one micro-batch, and the layers that work on it. Only shared/model includes
// this file.
//
// R = B*T rows, QKV = (H+2KV)*D, A = H*D, U = 2F (SwiGLU) or F (GELU):
//
//     embedding   x[0] (R,C)
//     block i     x[i] -> n1 -> qkv -> att -> (proj) ; mid = x[i] + proj
//                 mid  -> n2 -> up -> act -> (mlp)   ; x[i+1] = mid + mlp, added by the next norm
//     head        x[L] -> nf -> logits, in chunks of rows
//
// Values in parentheses are only in the buffer `pass`, until the next norm adds them. All others are kept for the backward,
// unless the backward recomputes them (recompute.h) or does not read them: with LoRA, the input of a frozen layer without
// adapters. `carry` is the gradient of the residual stream during the backward.
//
// forward_only keeps nothing for a backward: all blocks use the same buffers. A block reads the previous
// block's mid to compute its x before it writes its own mid.
#ifndef STARRING_SHARED_MODEL_ACTIVATIONS_H
#define STARRING_SHARED_MODEL_ACTIVATIONS_H

#include "shared/core/arena.h"
#include "shared/core/topology.h"
#include "shared/model/recompute.h"
#include "shared/model/spec.h"

// A norm: the offsets of its tensors in the unit (elements; -1: none), and what it keeps.
struct norm {
    int64_t weight, bias;
    void *x, *y;         // (R,C) input, output
    float *mean, *rstd;  // (R); mean: LayerNorm
};

// An adapter of LoRA on `rows` rows of a linear layer, from row `first` on: those rows of y += scale B (A x). a (r,in) and
// b (rows,r) are offsets.
struct adapter {
    int64_t a, b, first, rows;
    void *h;  // (R,r): scale A x, kept for the backward; NULL: these rows have no adapter
};

// y(R,out) = x(R,in) w(out,in)^T + b; w and b are offsets.
struct linear {
    int64_t weight, bias, in, out;
    struct adapter adapters[LORA_PARTS];
};

struct block {
    struct norm norm1, norm2;  // x -> n1, mid -> n2
    struct linear wqkv, wo, w_up, w_down;
    void *qkv, *att, *up, *act;  // (R,QKV) (R,A) (R,U) (R,F)
    float *lse;                  // (B,H,T)
};

// The inputs of the blocks that keep only their input.
struct kept_inputs {
    int blocks;    // k, the number of these blocks; 0: not RECOMPUTE_BLOCK
    bool on_host;  // the inputs are kept on the host; the members below are used only then (kept_inputs_open)
    void *slots[2];  // (R,C) each
    char *host;      // (k-2,R,C)
    struct stream *copies;
    struct event *used[2], *copied[2];  // used: compute has finished with the slot. copied: its copy is done
};

struct model {
    struct model_spec spec;
    const struct layout *layout;
    struct stream *s;
    enum dtype dt;
    int64_t B, T, R, C, QKV, A, F, U, V;
    int64_t most_seq;  // the largest T, for which memory was taken
    struct arena arena;
    // LoRA: the offset in a block at which its frozen tensors begin (unit.h); the other units have no gradient. INT64_MAX:
    // all tensors are trained.
    int64_t frozen_from;
    int64_t wte, wpe, projection;  // offsets in unit 0; projection: of the head's matrix in its unit
    struct block *blocks;          // (L)
    struct norm final;             // x[L] -> nf
    struct recompute_options recompute;
    struct kept_inputs inputs;
    bool keeps_act;             // RECOMPUTE_CHEAP: each block keeps its own act too
    int32_t *tokens, *targets;  // (B,T)
    float *rope;                // (T,D/2,2); NULL: no rotary positions
    float *loss;                // (R)
    double *loss_sum;           // (1)
    bool watches;               // grad_watch_unit counts non-finite values, in the next two members
    struct exact_sum *watch;    // (tensors)
    // (tensors, SUMSQ_BLOCK) a copy of each tensor's last, partial block, padded with zeros
    void *watch_rest;
    void *logits;       // (chunk,VP) in rows of VS elements
    int64_t VS;         // V and the reserved classes after it
    int64_t VP;         // columns of the head's products: V on CPUs, VS on GPUs
    int64_t chunk;      // rows of logits per chunk
    void *head_sum;     // (VP,C): where a micro-batch sums its chunks; NULL: in the gradient itself
    void *pass;         // (R,C): proj or mlp, until the next norm adds it
    void *carry, *d_c;  // (R,C): gradient of the residual stream, and of a norm's output
    void *d_qkv, *d_att;
    void *d_h;         // (R,r): of an adapter's h
    void *d_mlp;       // (R,F): gradient of act (SwiGLU; that of up is stored in up) or of up (GELU)
    void *scratch;     // for operations
    float grad_scale;  // factor of the summed loss's gradient
    bool zero_loss;
    bool separate;  // as in struct head_plan
    bool forward_only;
};

// Returns the address of a tensor in a view; NULL if there is no tensor (offset -1).
static inline const void *weight_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    if (offset < 0) return NULL;
    bool frozen = v->frozen && offset >= m->frozen_from;
    const char *base = frozen ? v->frozen : v->weights;
    return base + (size_t)(offset - (frozen ? m->frozen_from : 0)) * dtype_size(m->dt);
}
// The same for its gradient; NULL also if the tensor is frozen.
static inline void *grad_at(const struct model *m, const struct unit_view *v, int64_t offset) {
    if (offset < 0 || offset >= m->frozen_from || !v->grad) return NULL;
    return (char *)v->grad + (size_t)offset * dtype_size(m->dt);
}

// ---------------------------------------------------------------- layers (layers.c)
// The block (attention, then feed-forward; each reads a norm of the residual stream and adds to the stream) and
// the head. Functions only enqueue on the model's stream. `v` is the view of the unit that holds the tensors.

// Reads the residual stream as block i-1 leaves it: the sum of its mid and m->pass (block 0: its own x). Leaves it in the
// same form.
void block_forward(struct model *m, int i, const struct unit_view *v);
// Replaces m->carry, the gradient of the residual stream after the block, by the gradient before it.
void block_backward(struct model *m, int i, const struct unit_view *v);

// The head: final norm, output projection and cross-entropy, in chunks of rows, so that the logits of the whole
// batch are never in memory together. v: the head's own unit; tied: unit 0 if the projection is the embedding.
void head_forward(struct model *m, const struct unit_view *v, const struct unit_view *tied, bool want_loss);
void head_backward(struct model *m, const struct unit_view *v, const struct unit_view *tied);
// As model_row_logits.
int head_row_logits(struct model *m, const struct unit_view *v, const struct unit_view *tied, int64_t row,
                    float *out);

// ---------------------------------------------------------------- memory (activations.c)
// Takes the memory of a model whose sizes are set, from its arena. Without a device the arena only counts.
void activations_carve(struct model *m);
// Returns whether the backward reads the layer's input: for the gradient of its weight, or of an adapter's A.
bool keeps_input(const struct model *m, const struct linear *l);

// ---------------------------------------------------------------- inputs on the host
// The inputs of blocks that keep only their input (recompute.h), if they are kept on the host.
//
// Only two inputs are on the device: block i's is in slot i % 2. The model has a stream for the copies. Events order the
// streams, and the host never waits:
//
//     compute   | x0 .. block 0 | x1 .. block 1 | x2 .. block 2 |    ..    | back 3 | back 2 | back 1 |
//     copies         | x0 out       | x1 out                                        | x1 in  | x0 in  |
//                                                 ^ x0 is out                                ^ x1 is in
//
// The last two inputs need no copy, because they are still in the slots.

// Creates the stream and the events; does nothing if inputs stay on the device. Returns 0, or -1 after fail().
int kept_inputs_open(struct model *m);
void kept_inputs_close(struct model *m);

// Called before and after x[i] is written in the forward.
void kept_input_begins(struct model *m, int i);
void kept_input_ends(struct model *m, int i);
// Called before and after x[i] is used in the backward.
void kept_input_needed(struct model *m, int i);
void kept_input_done(struct model *m, int i);

#endif
