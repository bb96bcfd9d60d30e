// Writing a config.json that transformers loads. The keys are the ones LlamaConfig, MistralConfig,
// Qwen2Config and GPT2Config read; what they would default to otherwise is written all the same.
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "shared/core/error.h"
#include "shared/core/shortest.h"
#include "shared/hf/spec_hf.h"

// The double with the fewest decimal digits that still rounds to x: 1e-5f is written 1e-05.
static double shortest(float x) {
    char text[32];
    shortest_f32(text, x);
    return strtod(text, NULL);
}

static void add_token(cJSON *j, const char *key, int32_t token) {
    if (token < 0)
        cJSON_AddNullToObject(j, key);
    else
        cJSON_AddNumberToObject(j, key, token);
}

static void add_rope(cJSON *j, const struct model_spec *s) {
    cJSON_AddNumberToObject(j, "rope_theta", shortest(s->rope_theta));
    if (s->rope_scaling == ROPE_PLAIN) {
        cJSON_AddNullToObject(j, "rope_scaling");
        return;
    }
    cJSON *r = cJSON_AddObjectToObject(j, "rope_scaling");
    cJSON_AddStringToObject(r, "rope_type", s->rope_scaling == ROPE_LINEAR ? "linear" : "llama3");
    cJSON_AddNumberToObject(r, "factor", shortest(s->rope_factor));
    if (s->rope_scaling == ROPE_LINEAR) return;
    cJSON_AddNumberToObject(r, "low_freq_factor", shortest(s->rope_low_freq_factor));
    cJSON_AddNumberToObject(r, "high_freq_factor", shortest(s->rope_high_freq_factor));
    cJSON_AddNumberToObject(r, "original_max_position_embeddings", s->rope_original_positions);
}

// model_type and architecture, by what the model has, whatever the family's name here: biases on q, k and v
// alone are what transformers calls qwen2.
static const char *const *type_of(const struct model_spec *s) {
    static const char *const types[][2] = {{"gpt2", "GPT2LMHeadModel"},
                                           {"qwen2", "Qwen2ForCausalLM"},
                                           {"mistral", "MistralForCausalLM"},
                                           {"llama", "LlamaForCausalLM"}};
    bool mistral = !strcmp(s->hf_type, "mistral");
    return types[s->family == FAMILY_GPT2 ? 0 : s->qkv_bias ? 1 : mistral ? 2 : 3];
}

static void add_llama(cJSON *j, const struct model_spec *s) {
    cJSON_AddNumberToObject(j, "hidden_size", s->channels);
    cJSON_AddNumberToObject(j, "num_hidden_layers", s->layers);
    cJSON_AddNumberToObject(j, "num_attention_heads", s->heads);
    cJSON_AddNumberToObject(j, "num_key_value_heads", s->kv_heads);
    cJSON_AddNumberToObject(j, "head_dim", s->head_size);
    cJSON_AddNumberToObject(j, "intermediate_size", s->ffn);
    cJSON_AddNumberToObject(j, "max_position_embeddings", s->max_positions);
    cJSON_AddNumberToObject(j, "rms_norm_eps", shortest(s->norm_eps));
    cJSON_AddStringToObject(j, "hidden_act", "silu");
    cJSON_AddNumberToObject(j, "attention_dropout", 0.0);
    add_rope(j, s);
    const char *type = type_of(s)[0];
    if (!strcmp(type, "mistral")) {
        if (s->sliding_window)
            cJSON_AddNumberToObject(j, "sliding_window", s->sliding_window);
        else
            cJSON_AddNullToObject(j, "sliding_window");
    }
    if (!strcmp(type, "qwen2")) cJSON_AddFalseToObject(j, "use_sliding_window");
    if (!strcmp(type, "llama")) {
        cJSON_AddFalseToObject(j, "attention_bias");
        cJSON_AddFalseToObject(j, "mlp_bias");
    }
}

static void add_gpt2(cJSON *j, const struct model_spec *s) {
    cJSON_AddNumberToObject(j, "n_embd", s->channels);
    cJSON_AddNumberToObject(j, "n_layer", s->layers);
    cJSON_AddNumberToObject(j, "n_head", s->heads);
    cJSON_AddNumberToObject(j, "n_inner", s->ffn);
    cJSON_AddNumberToObject(j, "n_positions", s->max_positions);
    cJSON_AddNumberToObject(j, "n_ctx", s->max_positions);
    cJSON_AddNumberToObject(j, "layer_norm_epsilon", shortest(s->norm_eps));
    cJSON_AddStringToObject(j, "activation_function", "gelu_new");
    cJSON_AddTrueToObject(j, "scale_attn_weights");
    cJSON_AddNumberToObject(j, "resid_pdrop", 0.0);
    cJSON_AddNumberToObject(j, "embd_pdrop", 0.0);
    cJSON_AddNumberToObject(j, "attn_pdrop", 0.0);
}

char *model_spec_write_hf(const struct model_spec *s, enum dtype dt) {
    const char *type = type_of(s)[0], *architecture = type_of(s)[1];
    cJSON *j = cJSON_CreateObject();
    cJSON *a = cJSON_AddArrayToObject(j, "architectures");
    cJSON_AddItemToArray(a, cJSON_CreateString(architecture));
    cJSON_AddStringToObject(j, "model_type", type);
    cJSON_AddStringToObject(j, "torch_dtype",
                            dt == DT_BF16  ? "bfloat16"
                            : dt == DT_F16 ? "float16"
                                           : "float32");
    cJSON_AddNumberToObject(j, "vocab_size", s->vocab);
    if (s->family == FAMILY_GPT2)
        add_gpt2(j, s);
    else
        add_llama(j, s);
    cJSON_AddBoolToObject(j, "tie_word_embeddings", s->tied);
    cJSON_AddNumberToObject(j, "initializer_range", shortest(s->init_std));
    cJSON_AddTrueToObject(j, "use_cache");
    add_token(j, "bos_token_id", s->bos_token);
    add_token(j, "eos_token_id", s->eos_token);
    char *printed = cJSON_Print(j);
    char *text = xasprintf("%s\n", printed ? printed : "{}");
    cJSON_free(printed);
    cJSON_Delete(j);
    return text;
}
