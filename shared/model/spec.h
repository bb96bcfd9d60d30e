// The description of a model: its sizes, and the traits that select its layers. Plain data; no name of a model
// family decides anything. shared/hf makes a description from a preset or a Hugging Face directory.
#ifndef STARRING_SHARED_MODEL_SPEC_H
#define STARRING_SHARED_MODEL_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/operations.h"

enum model_positions { POSITIONS_ROTARY, POSITIONS_LEARNED };
enum model_mlp { MLP_SWIGLU, MLP_GELU };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

// All combinations work. A new trait needs a field here, its tensors in layout.c and its operations in
// layers.c.
struct model_traits {
    enum norm_kind norm;             // LayerNorm has a bias, RMSNorm has none
    enum model_positions positions;  // learned: wpe (P,C)
    enum model_mlp mlp;
    bool qkv_bias;  // on q, k and v
    bool out_bias;  // on attention's output projection
    bool mlp_bias;  // on the products of the feed-forward
};

// LoRA (Hu et al. 2021): y = W x + (alpha / r) B (A x), with A (r, in) and B (out, r). W is frozen. Some linear layers of
// our blocks are several matrices in Hugging Face's files: q, k and v; gate and up. Each such part is some of the layer's
// rows, and has an adapter of its own.
enum lora_linear { LORA_QKV, LORA_OUT, LORA_UP, LORA_DOWN, LORA_LINEARS };
#define LORA_PARTS 3
#define LORA_R_MAX 65536
// alpha / r stays a normal number in fp32; 0 would train nothing.
#define LORA_ALPHA_MIN 1e-30
#define LORA_ALPHA_MAX 1e30
struct lora_spec {
    int32_t r;  // 0: no adapters, all tensors are trained
    float alpha;
    uint8_t parts[LORA_LINEARS];  // the number of matrices as which Hugging Face stores the layer
    uint8_t mask[LORA_LINEARS];   // bit p: part p has an adapter
};

struct model_spec {
    char name[64];
    char hf_type[32];  // Hugging Face's model_type: its row of shared/hf/families.c
    struct model_traits traits;
    int32_t vocab;           // V
    int32_t channels;        // C
    int32_t layers;          // L
    int32_t heads;           // H
    int32_t kv_heads;        // KV
    int32_t head_size;       // D
    int32_t ffn;             // F: width of the feed-forward's activation
    int32_t max_positions;   // P: rows of wpe; with rotary positions, the length it was trained for
    int32_t sliding_window;  // how many tokens a position attends to, at most; 0: all
    bool tied;               // the head multiplies with wte
    float norm_eps;
    float rope_theta;
    enum rope_scaling rope_scaling;
    float rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int32_t rope_original_positions;
    float init_std;                // residual projections get init_std / sqrt(2L)
    int32_t bos_token, eos_token;  // -1: none; kept for the written config.json
    struct lora_spec lora;
};

int model_spec_check(const struct model_spec *s);  // 0, or -1 after fail() with the size that is impossible
// Returns the tokens of the longest sequence that the model supports; 0: any length.
int64_t model_longest_seq(const struct model_spec *s);
// Returns 0 if the model supports sequences of seq tokens, or -1 after fail() with --seq and the longest.
int model_spec_check_seq(const struct model_spec *s, int64_t seq);
// Some rows of a linear layer of a block, and the columns (in) of the layer.
struct lora_rows {
    int64_t first, rows, columns;
};
// Returns the rows of one of the layer's parts (struct lora_spec). A layer with one part has all rows in it.
struct lora_rows lora_rows_of(const struct model_spec *s, enum lora_linear l, int part);
const char *lora_tensor(const struct model_spec *s, enum lora_linear l);  // its name within a unit: "wqkv"

// U, rows of the product before the activation: gate and up (2F) for SwiGLU, up (F) for GELU.
static inline int64_t model_up_width(const struct model_spec *s) {
    return s->traits.mlp == MLP_SWIGLU ? 2 * (int64_t)s->ffn : s->ffn;
}

// Flops of forward and backward per token, without recomputation: 6 x the parameters in matrix products (the lookup of an
// embedding is no product), 4 x those that LoRA freezes, because they have no gradient; and for attention
//     in full   12 L T H D   every position sees all T (PaLM, appendix B; nanoGPT)
//     causal     6 L T H D   position t sees t of them, on average half; only these are computed.
//               llm.c counts this way (gpt2_estimate_mfu, commit f1e2ace; its 6N takes all parameters, padding
//               too), and so does LLM.Q (get_transformer_ops, commit b77d969)
struct token_flops {
    double full, causal;
};
// seq: T. For sequences of several lengths pass the mean of T over all tokens, not over sequences: a token of a longer
// sequence costs more.
struct token_flops model_flops_per_token(const struct model_spec *s, double seq);
// Flops per token of one unit (0 the embedding, 1 .. layers the blocks, then the head). Its forward pass has `products`
// and `attention` (counted in full); its backward pass has `gradients` and twice `attention`.
struct unit_flops {
    double products, attention, gradients;
};
struct unit_flops model_unit_flops(const struct model_spec *s, int unit, double seq);
// The two ways of counting as text, for tables and documents.
#define FLOPS_FULL   "6 x parameters in matrix products (4 x if frozen) + 12 L T H D"
#define FLOPS_CAUSAL "6 x parameters in matrix products (4 x if frozen) + 6 L T H D"

#endif
