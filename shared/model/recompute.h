// Recomputation: activations that the backward recomputes instead of keeping them (DeepSpeed's
// activation_checkpointing; docs/ring.md).
//
//     kept of a block      x    n1   qkv  att  mid  n2   up   act       n1, n2: outputs of the norms
//     RECOMPUTE_NONE       own  own  own  own  own  own  own  own
//     RECOMPUTE_CHEAP      own  -    own  own  own  -    own  -         no product is computed twice
//     RECOMPUTE_BLOCK      own  -    -    -    -    -    -    -         recomputes all but the last product
//
// "-": one buffer for all blocks (that of block 0). The block's backward fills it again from the kept values,
// by the same operations, so with the same bits. For the last block the buffer is still filled. So if k blocks
// keep only their input, k-1 blocks are recomputed.
//
// Chen et al. 2016 (Training Deep Nets with Sublinear Memory Cost) keep one input per segment of several
// blocks. Here a segment is one block. Recomputing a longer segment needs the weights of all its blocks
// together, while ring stage 3 holds two. It also needs one set of buffers per block, so it saves memory only
// in models of more than 32 blocks.
#ifndef STARRING_SHARED_MODEL_RECOMPUTE_H
#define STARRING_SHARED_MODEL_RECOMPUTE_H

#include "shared/model/spec.h"

enum recompute_kind { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_BLOCK };
const char *recompute_name(enum recompute_kind k);  // "none", "cheap", "block"

struct recompute_options {
    enum recompute_kind kind;
    // RECOMPUTE_BLOCK: how many blocks keep only their input, counted from the first; 0 or more than exist:
    // all.
    int64_t blocks;
    bool inputs_on_host;  // RECOMPUTE_BLOCK: in host memory (MEM_HOST)
    // RECOMPUTE_CHEAP on GPUs: GELU is a separate operation after its product (cuda.gelu: apart). A fused GELU
    // may round differently from OP_GELU_FWD, so where it may be fused its output is kept.
    bool gelu_apart;
};

// Flops per token of recomputed products and attention, counted in both ways of model_flops_per_token. As
// there, norms and activation functions count nothing.
struct token_flops recompute_flops_per_token(const struct recompute_options *o, const struct model_spec *s,
                                             double seq);

// The same of one unit: the first k-1 blocks of k that keep only their input.
struct unit_flops recompute_unit_flops(const struct recompute_options *o, const struct model_spec *s,
                                       int unit, double seq);

// Elements per token, of the run's type, that recomputed norms and activation functions read and write.
double recompute_elements_per_token(const struct recompute_options *o, const struct model_spec *s);

// k: how many blocks keep only their input with RECOMPUTE_BLOCK; else 0.
int recompute_blocks(const struct recompute_options *o, const struct model_spec *s);

#endif
