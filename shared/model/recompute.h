// Recomputation: activations that the backward recomputes instead of keeping them (DeepSpeed's
// activation_checkpointing; docs/ring.md). This file chooses and counts; activations.c lays out the buffers, and
// compute_again in layers.c recomputes.
//
//     kept of a block      x    n1   qkv  att  mid  n2   up   act       n1, n2: outputs of the norms
//     RECOMPUTE_NONE       own  own  own  own  own  own  own  own
//     RECOMPUTE_CHEAP      own  -    own  own  own  -    own  -         no product is computed twice
//     RECOMPUTE_BLOCK      own  -    -    -    -    -    -    -         recomputes all but the last product
//
// "own": the block has its own buffer. "-": all blocks use block 0's buffer, and the block's backward computes the value
// again from what is kept, by the same operations and so with the same bits. For the last of these blocks the buffer still
// holds the value. So if k blocks keep only their input, k-1 blocks are recomputed.
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
    // RECOMPUTE_BLOCK: the first `blocks` blocks keep only their input; 0, or more than exist: all blocks.
    int64_t blocks;
    bool inputs_on_host;  // RECOMPUTE_BLOCK: the inputs are kept in host memory (MEM_HOST)
    // RECOMPUTE_CHEAP on GPUs: GELU is a separate operation after its product (cuda.gelu: apart), so it can be recomputed.
    // A GELU that is fused with the product may round differently from OP_GELU_FWD, so its output is kept instead.
    bool gelu_apart;
};

// Returns the flops per token of recomputed products and attention, counted in both ways of model_flops_per_token. As
// there, norms and activation functions count nothing.
struct token_flops recompute_flops_per_token(const struct recompute_options *o, const struct model_spec *s,
                                             double seq);

// Returns what is recomputed of one unit: zero except for the first k-1 of the k blocks that keep only their input.
struct unit_flops recompute_unit_flops(const struct recompute_options *o, const struct model_spec *s,
                                       int unit, double seq);

// Returns the elements per token, of the run's type, that recomputed norms and activation functions read and write.
double recompute_elements_per_token(const struct recompute_options *o, const struct model_spec *s);

// Returns k, how many blocks keep only their input with RECOMPUTE_BLOCK; else 0.
int recompute_blocks(const struct recompute_options *o, const struct model_spec *s);

#endif
