// What model it is: one description for both families. Plain data.
#ifndef STARRING_SHARED_MODEL_SPEC_H
#define STARRING_SHARED_MODEL_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/core/unit.h"

enum model_family { FAMILY_LLAMA, FAMILY_GPT2 };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

struct model_spec {
    char name[64];
    enum model_family family;
    char hf_type[32];        // Hugging Face model_type: "llama", "mistral", "qwen2", "gpt2"
    int32_t vocab;           // V
    int32_t channels;        // C
    int32_t layers;          // L
    int32_t heads;           // H
    int32_t kv_heads;        // KV; = H in GPT-2
    int32_t head_size;       // D
    int32_t ffn;             // F: LLaMA intermediate size, GPT-2 4C
    int32_t max_positions;   // GPT-2: rows of wpe
    bool qkv_bias;           // Qwen2.5; GPT-2 always
    int32_t sliding_window;  // Mistral; 0: none. A token sees so many: sequences up to it see everything
    bool tied;
    float norm_eps;
    float rope_theta;
    enum rope_scaling rope_scaling;
    float rope_factor, rope_low_freq_factor, rope_high_freq_factor;  // LLaMA 3
    int32_t rope_original_positions;
    float init_std;                // 0.02; residual projections get init_std / sqrt(2L)
    int32_t bos_token, eos_token;  // -1: none; kept for the written config.json
};

// PRESET name, or a Hugging Face config.json, or a directory holding one. 0 or -1.
int model_spec_load(const char *preset_or_path, struct model_spec *out);
// Space-separated names of the presets.
const char *model_spec_presets(void);
int model_spec_check(const struct model_spec *s);  // -1 after naming what is impossible
// Whether the model takes sequences of seq tokens. 0, or -1 after fail() named --seq and the longest.
int model_spec_check_seq(const struct model_spec *s, int64_t seq);

// Units of the model, padded for world ranks. Tensor names (ours), in logical order:
//   embedding  wte (V,C) [wpe (P,C)]
//   block.i    LLaMA: norm1 (C), wqkv ((H+2KV)D,C) [bqkv], wo (C,H*D), norm2 (C),
//   w_gate_up (2F,C), w_down (C,F)
//              GPT-2: norm1, norm1_b, wqkv (3C,C), bqkv, wo (C,C), bo, norm2, norm2_b, w_up (F,C), b_up,
//              w_down (C,F), b_down
//   head       norm (C) [norm_b], lm_head (V,C) unless tied
// Full names are "<unit>.<tensor>": "block.3.wqkv". Matrices are (out, in), as torch.nn.Linear stores them.
//
// Behind the tensor that the head multiplies with (wte when tied, else lm_head) zeros are reserved for the
// rows up to a multiple of HEAD_CLASSES_ALIGN: with 50257 rows none of the head's three products meets the
// alignment that a GPU's tensor cores want (m, n and k multiples of 8 in 16 bits: NVIDIA's Matrix
// Multiplication Background User's Guide; nanoGPT pads GPT-2's 50257 to 50304 for the same reason). The
// layout is the same on every device, since a server on a CPU may serve a worker on a GPU; CPUs do not
// multiply over the reserved rows.
#define HEAD_CLASSES_ALIGN 64
static inline int64_t model_classes_padded(int64_t vocab) {
    return (vocab + HEAD_CLASSES_ALIGN - 1) / HEAD_CLASSES_ALIGN * HEAD_CLASSES_ALIGN;
}
struct layout *model_layout_create(const struct model_spec *s, int world);

// Counter-based initial fp32 values of unit u (n_pad, zeros in gaps), keyed by (seed, logical index):
// the same for every world size.
void model_init_unit(const struct layout *l, int u, uint64_t seed, float *out);

// Flops of forward and backward of one token, nothing recomputed counted: 6 x the parameters that are in
// matrix products (a lookup is none), and for attention
//     in full   12 L T H D   every position sees all T (PaLM, appendix B; nanoGPT)
//     causal     6 L T H D   position t sees t of them, half on the average, which is all that is computed.
//               llm.c counts so (gpt2_estimate_mfu, commit f1e2ace; its 6N takes all parameters, padding
//               too), and LLM.Q (get_transformer_ops, commit b77d969)
struct token_flops {
    double full, causal;
};
struct token_flops model_flops_per_token(const struct model_spec *s, int64_t seq);
// The two countings in words, for tables and documents.
#define FLOPS_FULL   "6 x parameters in matrix products + 12 L T H D"
#define FLOPS_CAUSAL "6 x parameters in matrix products + 6 L T H D"

#endif
