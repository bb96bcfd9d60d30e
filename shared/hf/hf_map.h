// Which Hugging Face tensors a tensor of ours is made of, and the reverse. Pure functions.
//
//     wqkv ((H+2KV)D, C)  =  rows of  q_proj (HD, C) | k_proj (KVD, C) | v_proj (KVD, C)
//     w_gate_up (2F, C)   =  rows of  gate_proj (F, C) | up_proj (F, C)
//     GPT-2's matrices are Conv1D: stored (in, out), ours is the transpose; everything else is one to one.
//
// The names are the model's row of families.c.
#ifndef STARRING_SHARED_HF_HF_MAP_H
#define STARRING_SHARED_HF_HF_MAP_H

#include "shared/core/unit.h"
#include "shared/hf/families.h"

#define HF_NAME_MAX 96

struct hf_part {
    char name[HF_NAME_MAX];  // "model.layers.3.self_attn.q_proj.weight"
    int dims;
    int64_t shape[2];  // as Hugging Face stores it
    int64_t rows;      // of our tensor that it fills, following those of the part before
    bool transposed;
};

// The parts of tensor t of unit u, in row order; returns how many.
int hf_parts(const struct model_spec *s, const struct layout *l, int u, int t,
             struct hf_part parts[HF_MAX_PARTS]);

// True for buffers that files of this family carry beside the weights (masks, rotary tables).
bool hf_is_buffer(const char *name);

#endif
