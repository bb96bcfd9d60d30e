// Reading Hugging Face's config.json. Names and defaults are those of transformers' configuration_llama.py,
// _mistral, _qwen2 and _gpt2 (5.23); sizes have no default here.
#include "shared/hf/spec_hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/relaxed_json.h"
#include "shared/core/error.h"

// One read of a file: the first error sticks, so that readers below need no checks in between; after an
// error sizes read as 1, so that divisions by them stay defined.
struct reading {
    const char *path;
    const cJSON *root;
    int failed;
};

// The value, or NULL when the key is missing or null.
static const cJSON *find(const cJSON *object, const char *key) {
    const cJSON *j = cJSON_GetObjectItemCaseSensitive(object, key);
    return j && !cJSON_IsNull(j) ? j : NULL;
}

static void reject(struct reading *r, const char *key, const cJSON *value, const char *why) {
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    if (!r->failed) fail("%s: \"%s\" is %.200s: %s", r->path, key, text ? text : "missing", why);
    cJSON_free(text);
    r->failed = 1;
}

static int32_t integer_of(struct reading *r, const char *key, const cJSON *j) {
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= -1.0 && j->valuedouble <= INT32_MAX) ||
        j->valuedouble != floor(j->valuedouble)) {
        reject(r, key, j, "must be a whole number that fits 32 bits");
        return 1;
    }
    return (int32_t)j->valuedouble;
}

static int32_t need_size(struct reading *r, const char *key) {
    const cJSON *j = find(r->root, key);
    if (!j) {
        reject(r, key, NULL, "the model's sizes have no default; add the key");
        return 1;
    }
    int32_t v = integer_of(r, key, j);
    if (v >= 1) return v;
    reject(r, key, j, "must be at least 1");
    return 1;
}

static int32_t get_size(struct reading *r, const char *key, int32_t missing) {
    return find(r->root, key) ? need_size(r, key) : missing;
}

static float get_float(struct reading *r, const cJSON *object, const char *key, double missing) {
    const cJSON *j = find(object, key);
    if (!j) return (float)missing;
    if (!cJSON_IsNumber(j) || !isfinite((float)j->valuedouble)) reject(r, key, j, "must be a finite number");
    return (float)j->valuedouble;
}

static bool get_bool(struct reading *r, const char *key, bool missing) {
    const cJSON *j = find(r->root, key);
    if (!j) return missing;
    if (!cJSON_IsBool(j)) reject(r, key, j, "must be true or false");
    return cJSON_IsTrue(j);
}

static void need_bool(struct reading *r, const char *key, bool wanted, const char *why) {
    if (get_bool(r, key, wanted) != wanted) reject(r, key, find(r->root, key), why);
}

// eos_token_id may be a list (LLaMA 3 Instruct): its first element is taken.
static int32_t get_token(struct reading *r, const char *key) {
    const cJSON *j = find(r->root, key);
    if (j && cJSON_IsArray(j)) j = cJSON_GetArrayItem(j, 0);
    return j ? integer_of(r, key, j) : -1;
}

static void need_activation(struct reading *r, const char *key, const char *const *names, const char *why) {
    const cJSON *j = find(r->root, key);
    if (!j) return;
    for (; *names; names++)
        if (cJSON_IsString(j) && strcmp(j->valuestring, *names) == 0) return;
    reject(r, key, j, why);
}

static void warn_dropout(struct reading *r, const char *key) {
    const cJSON *j = find(r->root, key);
    if (j && cJSON_IsNumber(j) && j->valuedouble != 0.0)
        warn("%s: \"%s\" is %g; training here applies no dropout", r->path, key, j->valuedouble);
}

// "rope_scaling" (transformers 4) or "rope_parameters" (5, which also holds rope_theta).
static void read_rope(struct reading *r, struct model_spec *s) {
    s->rope_theta = get_float(r, r->root, "rope_theta", 10000.0);
    const char *key = find(r->root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const cJSON *j = find(r->root, key);
    if (!j) return;
    if (!cJSON_IsObject(j)) {
        reject(r, key, j, "must be an object or null");
        return;
    }
    s->rope_theta = get_float(r, j, "rope_theta", (double)s->rope_theta);
    const cJSON *type = find(j, "rope_type");
    if (!type) type = find(j, "type");
    const char *name = type && cJSON_IsString(type) ? type->valuestring : "";
    if (strcmp(name, "default") == 0) return;
    s->rope_factor = get_float(r, j, "factor", 0.0);
    if (strcmp(name, "linear") == 0) {
        s->rope_scaling = ROPE_LINEAR;
    } else if (strcmp(name, "llama3") == 0) {
        s->rope_scaling = ROPE_LLAMA3;
        s->rope_low_freq_factor = get_float(r, j, "low_freq_factor", 0.0);
        s->rope_high_freq_factor = get_float(r, j, "high_freq_factor", 0.0);
        const cJSON *original = find(j, "original_max_position_embeddings");
        if (original)
            s->rope_original_positions = integer_of(r, "original_max_position_embeddings", original);
        else
            reject(r, key, j, "llama3 needs original_max_position_embeddings");
        if (!find(j, "low_freq_factor") || !find(j, "high_freq_factor"))
            reject(r, key, j, "llama3 needs low_freq_factor and high_freq_factor");
    } else {
        reject(r, key, j, "unknown rope type; known are default, linear and llama3");
    }
    if (!find(j, "factor")) reject(r, key, j, "needs a factor");
}

// Qwen2 may mix windowed and full attention, by a switch or by layer_types.
static void need_full_attention(struct reading *r) {
    need_bool(r, "use_sliding_window", false, "sliding-window attention is not implemented");
    const cJSON *types = find(r->root, "layer_types"), *t;
    cJSON_ArrayForEach(t, types) {
        if (cJSON_IsString(t) && strcmp(t->valuestring, "full_attention") == 0) continue;
        reject(r, "layer_types", t, "only full_attention is implemented");
        return;
    }
}

// Mistral's window: absent it is transformers' default of 4096, null is none.
static int32_t read_window(struct reading *r) {
    const cJSON *j = cJSON_GetObjectItemCaseSensitive(r->root, "sliding_window");
    if (!j) return 4096;
    return cJSON_IsNull(j) ? 0 : need_size(r, "sliding_window");
}

static void read_biases(struct reading *r, struct model_spec *s) {
    s->qkv_bias = !strcmp(s->hf_type, "qwen2");
    if (!s->qkv_bias)
        need_bool(r, "attention_bias", false,
                  "a bias on o_proj is not implemented; q/k/v biases alone are model_type qwen2");
    need_bool(r, "mlp_bias", false, "biases in the LLaMA feed-forward are not implemented");
}

static void read_llama(struct reading *r, struct model_spec *s) {
    static const char *const silu[] = {"silu", "swish", NULL};
    bool qwen = !strcmp(s->hf_type, "qwen2"), mistral = !strcmp(s->hf_type, "mistral");
    s->family = FAMILY_LLAMA;
    s->channels = need_size(r, "hidden_size");
    s->layers = need_size(r, "num_hidden_layers");
    s->heads = need_size(r, "num_attention_heads");
    s->ffn = need_size(r, "intermediate_size");
    s->kv_heads = get_size(r, "num_key_value_heads", s->heads);
    s->max_positions = get_size(r, "max_position_embeddings", mistral ? 131072 : qwen ? 32768 : 2048);
    s->norm_eps = get_float(r, r->root, "rms_norm_eps", 1e-6);
    s->tied = get_bool(r, "tie_word_embeddings", false);
    if (mistral) s->sliding_window = read_window(r);
    if (!find(r->root, "head_dim") && s->channels % s->heads && !r->failed)
        reject(r, "num_attention_heads", find(r->root, "num_attention_heads"),
               "does not divide hidden_size, and there is no head_dim");
    s->head_size = get_size(r, "head_dim", s->channels / s->heads);
    read_rope(r, s);
    need_activation(r, "hidden_act", silu, "only silu is implemented for this family");
    need_full_attention(r);
    read_biases(r, s);
    const cJSON *partial = find(r->root, "partial_rotary_factor");
    if (partial && !(cJSON_IsNumber(partial) && partial->valuedouble == 1.0))
        reject(r, "partial_rotary_factor", partial, "only 1 is implemented");
    warn_dropout(r, "attention_dropout");
}

static void read_gpt2(struct reading *r, struct model_spec *s) {
    // The three are the same tanh form.
    static const char *const gelu[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast", NULL};
    s->family = FAMILY_GPT2;
    s->channels = need_size(r, "n_embd");
    s->layers = need_size(r, "n_layer");
    s->heads = need_size(r, "n_head");
    s->kv_heads = s->heads;
    if (s->channels % s->heads && !r->failed)
        reject(r, "n_head", find(r->root, "n_head"), "does not divide n_embd");
    s->head_size = s->channels / s->heads;
    s->ffn = get_size(r, "n_inner", s->channels <= INT32_MAX / 4 ? 4 * s->channels : INT32_MAX);
    s->max_positions = get_size(r, "n_positions", get_size(r, "n_ctx", 1024));
    s->norm_eps = get_float(r, r->root, "layer_norm_epsilon", 1e-5);
    s->tied = get_bool(r, "tie_word_embeddings", true);
    s->qkv_bias = true;
    need_activation(r, "activation_function", gelu,
                    "only the tanh form (gelu_new, gelu_pytorch_tanh) is implemented");
    need_bool(r, "scale_attn_weights", true, "unscaled attention is not implemented");
    need_bool(r, "scale_attn_by_inverse_layer_idx", false, "scaling by layer is not implemented");
    need_bool(r, "add_cross_attention", false, "cross attention is not implemented");
    warn_dropout(r, "resid_pdrop");
    warn_dropout(r, "embd_pdrop");
    warn_dropout(r, "attn_pdrop");
}

// The models there are, and what some neighbours would need.
static const struct {
    const char *type, *architecture;
    const char *needs;  // NULL: it is there
} types[] = {
    {"llama", "LlamaForCausalLM", NULL},
    {"mistral", "MistralForCausalLM", NULL},
    {"qwen2", "Qwen2ForCausalLM", NULL},
    {"qwen3", "Qwen3ForCausalLM", "an RMSNorm of each head of q and k"},
    {"gpt2", "GPT2LMHeadModel", NULL},
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
#define KNOWN_MODELS "known are llama, mistral, qwen2 and gpt2"

// The row of model_type, or of what "architectures" says in configs that lack it; -1: none.
static int type_row(const char *type, const char *architecture) {
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++)
        if (type ? !strcmp(type, types[i].type) : !strcmp(architecture, types[i].architecture)) return i;
    return -1;
}

// The row of a model that is there, or -1 after rejecting the key that says which it is.
static int read_type(struct reading *r) {
    const cJSON *type = find(r->root, "model_type");
    const cJSON *list = find(r->root, "architectures"), *first = type ? NULL : cJSON_GetArrayItem(list, 0);
    if (!type && !cJSON_IsString(first)) {
        reject(r, "model_type", NULL, KNOWN_MODELS);
        return -1;
    }
    int row = type && !cJSON_IsString(type)
                  ? -1
                  : type_row(cJSON_GetStringValue(type), cJSON_GetStringValue(first));
    if (row >= 0 && !types[row].needs) return row;
    char why[256];
    if (row >= 0)
        snprintf(why, sizeof why, "it needs %s, which this program does not have; " KNOWN_MODELS,
                 types[row].needs);
    else
        snprintf(why, sizeof why, "not a model this program has; " KNOWN_MODELS);
    reject(r, type ? "model_type" : "architectures", type ? type : list, why);
    return -1;
}

// "runs/a/config.json" -> "a"; "my.json" -> "my".
static void name_from_path(const char *path, char *out, size_t bytes) {
    const char *base = strrchr(path, '/');
    const char *end = path + strlen(path);
    if (base && strcmp(base, "/config.json") == 0) {
        for (end = base; end > path && end[-1] == '/';) end--;
        for (base = end; base > path && base[-1] != '/';) base--;
    } else {
        base = base ? base + 1 : path;
        if (end - base > 5 && strcmp(end - 5, ".json") == 0) end -= 5;
    }
    snprintf(out, bytes, "%.*s", (int)(end - base), base);
    if (!*out || strcmp(out, ".") == 0) snprintf(out, bytes, "model");
}

static void read_all(struct reading *r, struct model_spec *s) {
    int row = read_type(r);
    if (row < 0) return;
    const char *type = types[row].type;
    snprintf(s->hf_type, sizeof s->hf_type, "%s", type);
    s->vocab = need_size(r, "vocab_size");
    s->init_std = get_float(r, r->root, "initializer_range", 0.02);
    s->bos_token = get_token(r, "bos_token_id");
    s->eos_token = get_token(r, "eos_token_id");
    if (find(r->root, "quantization_config"))
        reject(r, "quantization_config", find(r->root, "quantization_config"),
               "quantized weights cannot be trained");
    if (strcmp(type, "gpt2") == 0)
        read_gpt2(r, s);
    else
        read_llama(r, s);
}

int model_spec_read_hf(const char *path, struct model_spec *out) {
    cJSON *root = relaxed_json_load(path);
    if (!root) return -1;
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return fail("%s: holds no JSON object", path);
    }
    struct model_spec s = {0};
    name_from_path(path, s.name, sizeof s.name);
    struct reading r = {path, root, 0};
    read_all(&r, &s);
    cJSON_Delete(root);
    if (r.failed || model_spec_check(&s)) return -1;
    *out = s;
    return 0;
}
