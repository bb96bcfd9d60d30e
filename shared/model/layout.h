// Units of the model, padded for `world` ranks, and the initial values of their tensors. Tensors (ours), in logical order; those in brackets depend on
// traits:
//
//     embedding   wte (V,C) [wpe (P,C)]
//     block.i     norm1 (C) [norm1_b]  wqkv ((H+2KV)D,C) [bqkv]  wo (C,H*D) [bo]
//                 norm2 (C) [norm2_b]
//                 SwiGLU: w_gate_up (2F,C) [b_gate_up]    GELU: w_up (F,C) [b_up]
//                 w_down (C,F) [b_down]
//     head        norm (C) [norm_b]  [lm_head (V,C) unless tied]
//
// Full names are "<unit>.<tensor>": "block.3.wqkv". Matrices are (out, in), as torch.nn.Linear stores them.
//
// With LoRA a block's trained tensors come first, the adapters: <tensor><part>_A (r, in) and <tensor><part>_B (out, r), as
// in "block.3.wqkv2_B" (unit.h has the two layouts). Weight decay applies to both, as PyTorch's AdamW does.
//
// After the tensor that the head multiplies with (wte if tied, else lm_head), zeros are reserved for the rows
// up to a multiple of HEAD_CLASSES_ALIGN. With 50257 rows none of the head's three products has the alignment
// that a GPU's tensor cores need (m, n and k multiples of 8 in 16 bits: NVIDIA's Matrix Multiplication
// Background User's Guide; nanoGPT pads GPT-2's 50257 to 50304 for the same reason). The layout is the same on
// every device, because a server on a CPU may serve a worker on a GPU. CPUs do not multiply the reserved rows.
#ifndef STARRING_SHARED_MODEL_LAYOUT_H
#define STARRING_SHARED_MODEL_LAYOUT_H

#include "shared/core/unit.h"
#include "shared/model/spec.h"

#define HEAD_CLASSES_ALIGN 64
static inline int64_t model_classes_padded(int64_t vocab) {
    return (vocab + HEAD_CLASSES_ALIGN - 1) / HEAD_CLASSES_ALIGN * HEAD_CLASSES_ALIGN;
}

// Returns the layout of the model's trained units (unit.h), padded for `world` ranks, or NULL after logging if there are
// more parameters than can be counted.
struct layout *model_layout_create(const struct model_spec *s, int world);

// Writes the initial fp32 values of unit u of the model's own layout to out (n_pad, zeros in gaps). They are random numbers
// of the key (seed, logical index), so they are the same for every world size, and those of frozen tensors are the same
// as without LoRA. Adapters begin as in peft: A is uniform, torch's kaiming_uniform_ with a = sqrt(5), B is 0.
void model_init_unit(const struct layout *l, int u, uint64_t seed, float *out);
// Writes only the adapters' initial values; all other elements of out are unchanged.
void model_init_adapters(const struct layout *l, int u, uint64_t seed, float *out);

#endif
