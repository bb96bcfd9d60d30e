// Names and defaults are those of transformers' configuration_llama.py, _mistral, _qwen2 and _gpt2 (5.23);
// sizes have no default here.
#include "shared/hf/families.h"

#include <stdio.h>
#include <string.h>

#include "shared/core/error.h"

#define FIELD(name) offsetof(struct model_spec, name)
#define LENGTH(a)   ((int)(sizeof(a) / sizeof *(a)))

// ---------------------------------------------------------------- LLaMA and models like it
#define NO_WINDOW     "sliding-window attention is not implemented"
#define NO_OUT_BIAS   "a bias on o_proj is not implemented; q/k/v biases alone are model_type qwen2"
#define NO_MLP_BIAS   "biases in the LLaMA feed-forward are not implemented"
#define HEADS_DIVIDE  "does not divide hidden_size, and there is no head_dim"
#define MISTRAL_WIDTH 4096  // tokens of the sliding window if the file does not say

static const char *const silu[] = {"silu", "swish", NULL};

static const struct hf_key llama_keys[] = {
    {.key = "hidden_size", HF_SIZE, FIELD(channels)},
    {.key = "num_hidden_layers", HF_SIZE, FIELD(layers)},
    {.key = "num_attention_heads", HF_SIZE, FIELD(heads), .why = HEADS_DIVIDE},
    {.key = "num_key_value_heads", HF_SIZE, FIELD(kv_heads), .follows = true},
    {.key = "head_dim", HF_SIZE, FIELD(head_size), .follows = true},
    {.key = "intermediate_size", HF_SIZE, FIELD(ffn)},
    {.key = "max_position_embeddings", HF_SIZE, FIELD(max_positions), .follows = true},
    {.key = "rms_norm_eps", HF_FLOAT, FIELD(norm_eps), .missing = 1e-6},
    {.key = "hidden_act", HF_ACTIVATION, .same = silu, .why = "only silu is implemented for this family"},
    {.key = "attention_dropout", HF_DROPOUT},
    {.key = "rope_scaling", HF_ROPE},
    // Qwen2 may mix windowed and full attention, by a switch or by layer_types.
    {.key = "layer_types", HF_FULL_LAYERS, .unwritten = true, .why = "only full_attention is implemented"},
    {.key = "partial_rotary_factor", HF_ONE, .unwritten = true, .why = "only 1 is implemented"},
    {.key = "is_causal",
     HF_ONLY,
     .missing = true,
     .unwritten = true,
     .why = "attention to what follows is not implemented"},
    {0},
};
static const struct hf_key llama_extra[] = {
    {.key = "use_sliding_window", HF_ONLY, .unwritten = true, .why = NO_WINDOW},
    {.key = "attention_bias", HF_ONLY, .why = NO_OUT_BIAS},
    {.key = "mlp_bias", HF_ONLY, .why = NO_MLP_BIAS},
    {0},
};
static const struct hf_key mistral_extra[] = {
    {.key = "sliding_window", HF_WINDOW, FIELD(sliding_window), .missing = MISTRAL_WIDTH},
    {.key = "use_sliding_window", HF_ONLY, .unwritten = true, .why = NO_WINDOW},
    {.key = "attention_bias", HF_ONLY, .unwritten = true, .why = NO_OUT_BIAS},
    {.key = "mlp_bias", HF_ONLY, .unwritten = true, .why = NO_MLP_BIAS},
    {0},
};
static const struct hf_key qwen2_extra[] = {
    {.key = "use_sliding_window", HF_ONLY, .why = NO_WINDOW},
    {.key = "mlp_bias", HF_ONLY, .unwritten = true, .why = NO_MLP_BIAS},
    {0},
};
static const struct hf_tensor llama_tensors[] = {
    {"wte", {"embed_tokens.weight"}},
    {"norm1", {"input_layernorm.weight"}},
    {"wqkv", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
    {"bqkv", {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}},
    {"wo", {"self_attn.o_proj.weight"}},
    {"norm2", {"post_attention_layernorm.weight"}},
    {"w_gate_up", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
    {"w_down", {"mlp.down_proj.weight"}},
    {"norm", {"norm.weight"}},
    {0},
};

// ---------------------------------------------------------------- GPT-2
static const char *const gelu_tanh[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", NULL};

// clang-format off
static const struct hf_key gpt2_keys[] = {
    {.key = "n_embd", HF_SIZE, FIELD(channels)},
    {.key = "n_layer", HF_SIZE, FIELD(layers)},
    {.key = "n_head", HF_SIZE, FIELD(heads), .why = "does not divide n_embd"},
    {.key = "n_inner", HF_SIZE, FIELD(ffn), .follows = true},
    {.key = "n_positions", HF_SIZE, FIELD(max_positions), .follows = true},
    {.key = "n_ctx", HF_SIZE, FIELD(max_positions), .follows = true},
    {.key = "layer_norm_epsilon", HF_FLOAT, FIELD(norm_eps), .missing = 1e-5},
    {.key = "activation_function", HF_ACTIVATION, .same = gelu_tanh,
     .why = "only the tanh form (gelu_new, gelu_pytorch_tanh) is implemented"},
    {.key = "scale_attn_weights", HF_ONLY, .missing = true, .why = "unscaled attention is not implemented"},
    {.key = "scale_attn_by_inverse_layer_idx", HF_ONLY, .unwritten = true,
     .why = "scaling by layer is not implemented"},
    {.key = "add_cross_attention", HF_ONLY, .unwritten = true, .why = "cross attention is not implemented"},
    {.key = "resid_pdrop", HF_DROPOUT},
    {.key = "embd_pdrop", HF_DROPOUT},
    {.key = "attn_pdrop", HF_DROPOUT},
    {0},
};
// clang-format on
static const struct hf_tensor gpt2_tensors[] = {
    {"wte", {"wte.weight"}},
    {"wpe", {"wpe.weight"}},
    {"norm1", {"ln_1.weight"}},
    {"norm1_b", {"ln_1.bias"}},
    {"wqkv", {"attn.c_attn.weight"}},
    {"bqkv", {"attn.c_attn.bias"}},
    {"wo", {"attn.c_proj.weight"}},
    {"bo", {"attn.c_proj.bias"}},
    {"norm2", {"ln_2.weight"}},
    {"norm2_b", {"ln_2.bias"}},
    {"w_up", {"mlp.c_fc.weight"}},
    {"b_up", {"mlp.c_fc.bias"}},
    {"w_down", {"mlp.c_proj.weight"}},
    {"b_down", {"mlp.c_proj.bias"}},
    {"norm", {"ln_f.weight"}},
    {"norm_b", {"ln_f.bias"}},
    {0},
};

// ---------------------------------------------------------------- the rows
#define LLAMA_TRAITS .norm = NORM_RMS, .positions = POSITIONS_ROTARY, .mlp = MLP_SWIGLU
#define GPT2_TRAITS                                                                                          \
    .norm = NORM_LAYER, .positions = POSITIONS_LEARNED, .mlp = MLP_GELU, .qkv_bias = true, .out_bias = true, \
    .mlp_bias = true
#define LLAMA_FORM                                                                        \
    .keys = llama_keys, .prefix = "model.", .layers = "layers", .tensors = llama_tensors, \
    .lora = "q_proj,v_proj"
#define GPT2_FORM                                                                                        \
    .keys = gpt2_keys, .prefix = "transformer.", .layers = "h", .tensors = gpt2_tensors, .conv1d = true, \
    .lora = "c_attn"

// clang-format off
static const struct hf_family families[] = {
    {"llama", "LlamaForCausalLM", {LLAMA_TRAITS}, .positions = 2048, .bos = 1, .eos = 2, LLAMA_FORM, .extra = llama_extra},
    {"mistral", "MistralForCausalLM", {LLAMA_TRAITS}, .positions = 131072, .kv_heads = 8, .bos = 1, .eos = 2, LLAMA_FORM,
     .extra = mistral_extra},
    {"qwen2", "Qwen2ForCausalLM", {LLAMA_TRAITS, .qkv_bias = true}, .positions = 32768, .kv_heads = 32, .bos = -1, .eos = -1,
     LLAMA_FORM, .extra = qwen2_extra},
    {"gpt2", "GPT2LMHeadModel", {GPT2_TRAITS}, .positions = 1024, .bos = 50256, .eos = 50256, .tied = true, GPT2_FORM},
};
// clang-format on

// Models without a row, and the missing features that they need.
static const struct {
    const char *type, *architecture, *needs;
} neighbours[] = {
    {"qwen3", "Qwen3ForCausalLM", "an RMSNorm of each head of q and k"},
    {"mixtral", "MixtralForCausalLM", "a mixture of experts"},
    {"qwen2_moe", "Qwen2MoeForCausalLM", "a mixture of experts"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "a mixture of experts"},
    {"gpt_oss", "GptOssForCausalLM", "a mixture of experts and attention sinks"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", "a mixture of experts and latent attention"},
    {"gemma", "GemmaForCausalLM",
     "scaled embeddings, norms that add one to their weight, and GELU in the gate"},
    {"gemma2", "Gemma2ForCausalLM", "four norms per block, soft caps, and windowed layers"},
    {"gemma3_text", "Gemma3ForCausalLM", "four norms per block and windowed layers"},
    {"phi", "PhiForCausalLM",
     "rotary embeddings of a part of the head, and attention beside the feed-forward"},
    {"phi3", "Phi3ForCausalLM", "q, k and v in one stored tensor, and gate and up in another"},
    {"olmo2", "Olmo2ForCausalLM", "norms after attention and feed-forward instead of before them"},
    {"smollm3", "SmolLM3ForCausalLM", "layers without rotary embeddings"},
    {"granite", "GraniteForCausalLM", "multipliers on embeddings, residuals, attention and logits"},
    {"gpt_neox", "GPTNeoXForCausalLM",
     "rotary embeddings of a part of the head, and attention beside the feed-forward"},
    {"opt", "OPTForCausalLM", "ReLU in the feed-forward, and positions that start at two"},
    {"bloom", "BloomForCausalLM", "ALiBi positions"},
};

// ---------------------------------------------------------------- finding one
// Returns whether a row matches type, or architecture if the config has no model_type.
static bool is_row(const char *row_type, const char *row_architecture, const char *type,
                   const char *architecture) {
    return type ? !strcmp(type, row_type) : architecture && !strcmp(architecture, row_architecture);
}

const struct hf_family *hf_family_at(int i) { return i < LENGTH(families) ? &families[i] : NULL; }

const struct hf_family *hf_family_named(const char *type, const char *architecture) {
    for (int i = 0; i < LENGTH(families); i++)
        if (is_row(families[i].type, families[i].architecture, type, architecture)) return &families[i];
    return NULL;
}

const char *hf_needs(const char *type, const char *architecture) {
    for (int i = 0; i < LENGTH(neighbours); i++)
        if (is_row(neighbours[i].type, neighbours[i].architecture, type, architecture))
            return neighbours[i].needs;
    return NULL;
}

static bool same_traits(const struct model_traits *a, const struct model_traits *b) {
    return a->norm == b->norm && a->positions == b->positions && a->mlp == b->mlp &&
           a->qkv_bias == b->qkv_bias && a->out_bias == b->out_bias && a->mlp_bias == b->mlp_bias;
}

const struct hf_family *hf_family_of(const struct model_spec *s) {
    const struct hf_family *row = hf_family_named(s->hf_type, NULL);
    if (row && same_traits(&row->traits, &s->traits)) return row;
    for (int i = 0; i < LENGTH(families); i++)
        if (same_traits(&families[i].traits, &s->traits)) return &families[i];
    return NULL;
}

// ---------------------------------------------------------------- targets of LoRA (peft 0.20, tuners_utils.py)
// Returns the row of the tensor of a linear layer of the block.
static const struct hf_tensor *linear_of(const struct model_spec *s, enum lora_linear l) {
    const struct hf_tensor *row = hf_family_of(s)->tensors;
    while (strcmp(row->ours, lora_tensor(s, l))) row++;
    return row;
}

// Returns whether a module has the target's name, or ends with it after a dot. module: "attn.c_proj.weight".
static bool is_target(const char *module, const char *target, size_t length) {
    size_t n = strlen(module) - strlen(".weight");
    return length && length <= n && !strncmp(module + n - length, target, length) &&
           (length == n || module[n - length - 1] == '.');
}

// Writes the names of all linear layers: "self_attn.q_proj, self_attn.k_proj, ".
static void list_targets(const struct model_spec *s, char *out, size_t bytes) {
    for (int l = 0, at = 0; l < LORA_LINEARS; l++)
        for (int p = 0; p < HF_MAX_PARTS && linear_of(s, l)->theirs[p] && at < (int)bytes; p++) {
            const char *module = linear_of(s, l)->theirs[p];
            at += snprintf(out + at, bytes - (size_t)at, "%.*s, ", (int)(strlen(module) - strlen(".weight")),
                           module);
        }
}

int hf_lora_targets(const struct model_spec *s, const char *targets, const char *where,
                    struct lora_spec *out) {
    bool all = targets && !strcmp(targets, "all-linear");
    if (!targets) targets = hf_family_of(s)->lora;
    for (int l = 0; l < LORA_LINEARS; l++) {
        out->parts[l] = out->mask[l] = 0;
        while (out->parts[l] < HF_MAX_PARTS && linear_of(s, l)->theirs[out->parts[l]]) out->parts[l]++;
        if (all) out->mask[l] = (uint8_t)((1u << out->parts[l]) - 1);
    }
    for (const char *t = targets, *next; !all && *t; t = next) {
        size_t length = strcspn(t, ",");
        bool found = false;
        next = t[length] ? t + length + 1 : t + length;
        for (int l = 0; l < LORA_LINEARS; l++)
            for (int p = 0; p < out->parts[l]; p++)
                if (is_target(linear_of(s, l)->theirs[p], t, length)) {
                    out->mask[l] |= (uint8_t)(1u << p);
                    found = true;
                }
        if (found) continue;
        char possible[256];
        list_targets(s, possible, sizeof possible);
        return fail(
            "%s: %s has no linear layer \"%.*s\" in its blocks; possible are %sor what follows the dot, and \"all-linear\"",
            where, s->name, (int)length, t, possible);
    }
    return 0;
}

bool hf_lora_module(const struct model_spec *s, int i, char name[HF_NAME_MAX]) {
    for (int l = 0; l < LORA_LINEARS; l++)
        for (int p = 0; p < LORA_PARTS; p++) {
            if (!(s->lora.mask[l] >> p & 1) || i--) continue;
            const char *weight = linear_of(s, l)->theirs[p];
            snprintf(name, HF_NAME_MAX, "%.*s", (int)(strlen(weight) - strlen(".weight")), weight);
            return true;
        }
    return false;
}

void hf_types_text(char *out, size_t bytes) {
    int n = LENGTH(families), at = 0;
    for (int i = 0; i < n && at < (int)bytes; i++)
        at += snprintf(out + at, bytes - (size_t)at, "%s%s",
                       i == 0       ? ""
                       : i == n - 1 ? " and "
                                    : ", ",
                       families[i].type);
}
