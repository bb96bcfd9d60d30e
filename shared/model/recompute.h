// Recomputation: activations that the backward computes again instead of keeping them (DeepSpeed's activation_checkpointing; docs/ring.md).
//
//     kept of a block      x    n1   qkv  att  mid  n2   up   act       n1, n2: outputs of the norms
//     RECOMPUTE_NONE       own  own  own  own  own  own  own  own
//     RECOMPUTE_CHEAP      own  -    own  own  own  -    own  -         no product is computed twice
//     RECOMPUTE_BLOCK      own  -    -    -    -    -    -    -         the block's forward, less its last product
//
// "-": one buffer for all blocks. The block's backward fills it again from what is kept, by the same operations on the
// same values, hence to the same bits; the last block's is still there. So k blocks that keep their input alone have k-1
// recomputed. The buffers are those of block 0, which the others point to.
//
// Chen et al. 2016 (Training Deep Nets with Sublinear Memory Cost) keep one input for each segment of several blocks. A
// segment here is one block: recomputing a longer one needs the weights of all its blocks at once, of which ring stage 3
// holds two, and its blocks' buffers, one set each, which saves memory in models of more than 32 blocks alone.
#ifndef STARRING_SHARED_MODEL_RECOMPUTE_H
#define STARRING_SHARED_MODEL_RECOMPUTE_H

#include "shared/model/spec.h"

enum recompute_kind { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_BLOCK };
const char *recompute_name(enum recompute_kind k);  // "none", "cheap", "block"

struct recompute_options {
    enum recompute_kind kind;
    // RECOMPUTE_BLOCK: how many blocks keep their input alone, counted from the first; 0, or more than there are: all.
    int64_t blocks;
    bool inputs_on_host;  // RECOMPUTE_BLOCK: in host memory (MEM_HOST)
    // RECOMPUTE_CHEAP on GPUs: GELU is an operation of its own behind its product (cuda.gelu: apart). A fused one may round
    // otherwise than OP_GELU_FWD, so its output is kept where it may be fused.
    bool gelu_apart;
};

// Flops of products and attention that a token costs again, in the two countings of model_flops_per_token. Norms and
// activation functions count nothing, there as here.
struct token_flops recompute_flops_per_token(const struct recompute_options *o, const struct model_spec *s,
                                             double seq);

// Elements, of the run's type, that a token costs again in norms and activation functions: read and written.
double recompute_elements_per_token(const struct recompute_options *o, const struct model_spec *s);

// k: how many blocks keep their input alone, of RECOMPUTE_BLOCK; else 0.
int recompute_blocks(const struct recompute_options *o, const struct model_spec *s);

#endif
