// The kinds of keys in the rows of families.c: how each is read and how it is written.

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/hf/families.h"

// One file that is being read. Only the first error is logged, so the readers below need no checks in between.
// After an error a size reads as 1, so that divisions by it stay defined.
struct parse {
    const char *path;
    const cJSON *root;
    struct model_spec *spec;
    int failed;
};

// Returns the value, or NULL if the key is missing or null.
static const cJSON *find(const cJSON *object, const char *key) {
    const cJSON *j = json_item(object, key);
    return j && !cJSON_IsNull(j) ? j : NULL;
}

static void reject(struct parse *p, const char *key, const cJSON *value, const char *why) {
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    if (!p->failed) fail("%s: \"%s\" is %.200s: %s", p->path, key, text ? text : "missing", why);
    cJSON_free(text);
    p->failed = 1;
}

static int32_t integer_of(struct parse *p, const char *key, const cJSON *j) {
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= -1.0 && j->valuedouble <= INT32_MAX) ||
        j->valuedouble != floor(j->valuedouble)) {
        reject(p, key, j, "must be a whole number that fits 32 bits");
        return 1;
    }
    return (int32_t)j->valuedouble;
}

static int32_t need_size(struct parse *p, const char *key) {
    const cJSON *j = find(p->root, key);
    if (!j) {
        reject(p, key, NULL, "the model's sizes have no default; add the key");
        return 1;
    }
    int32_t v = integer_of(p, key, j);
    if (v >= 1) return v;
    reject(p, key, j, "must be at least 1");
    return 1;
}

static float get_float(struct parse *p, const cJSON *object, const char *key, double missing) {
    const cJSON *j = find(object, key);
    if (!j) return (float)missing;
    if (!cJSON_IsNumber(j) || !isfinite((float)j->valuedouble)) reject(p, key, j, "must be a finite number");
    return (float)j->valuedouble;
}

static bool get_bool(struct parse *p, const char *key, bool missing) {
    const cJSON *j = find(p->root, key);
    if (!j) return missing;
    if (!cJSON_IsBool(j)) reject(p, key, j, "must be true or false");
    return cJSON_IsTrue(j);
}

// eos_token_id may be a list (LLaMA 3 Instruct): its first element is used. null means none. Without the key the
// family's token is used, if the vocabulary has it.
static int32_t get_token(struct parse *p, const char *key, int32_t missing) {
    const cJSON *j = json_item(p->root, key);
    if (!j) return missing < p->spec->vocab ? missing : -1;
    if (cJSON_IsArray(j)) j = cJSON_GetArrayItem(j, 0);
    return j && !cJSON_IsNull(j) ? integer_of(p, key, j) : -1;
}

// ---------------------------------------------------------------- reading each kind
#define FIELD_OF(spec, k, type) ((type *)(void *)((char *)(spec) + (k)->field))

// Reads "rope_scaling" (transformers 4) or "rope_parameters" (transformers 5, which has rope_theta in it). If a file has
// both, "rope_scaling" is used. If it names no type, the type is "default", as in transformers 5.
static void read_rope(struct parse *p, const struct hf_key *k) {
    struct model_spec *s = p->spec;
    s->rope_theta = get_float(p, p->root, "rope_theta", 10000.0);
    const cJSON *j = find(p->root, k->key), *inner;
    const char *key = j && (!cJSON_IsObject(j) || j->child) ? k->key : "rope_parameters";
    j = find(p->root, key);
    if (!j) return;
    if (!cJSON_IsObject(j)) {
        reject(p, key, j, "must be an object or null");
        return;
    }
    cJSON_ArrayForEach(inner, j) if (cJSON_IsObject(inner))
        reject(p, key, j, "rotary embeddings that differ from layer to layer are not implemented");
    const cJSON *part = find(j, "partial_rotary_factor");
    if (part && !(cJSON_IsNumber(part) && part->valuedouble == 1.0))
        reject(p, key, j, "only a partial_rotary_factor of 1 is implemented");
    s->rope_theta = get_float(p, j, "rope_theta", (double)s->rope_theta);
    const cJSON *type = find(j, "rope_type");
    if (!type) type = find(j, "type");
    const char *name = type && cJSON_IsString(type) ? type->valuestring : type ? "" : "default";
    if (strcmp(name, "default") == 0) return;
    s->rope_factor = get_float(p, j, "factor", 0.0);
    if (strcmp(name, "linear") == 0) {
        s->rope_scaling = ROPE_LINEAR;
    } else if (strcmp(name, "llama3") == 0) {
        s->rope_scaling = ROPE_LLAMA3;
        s->rope_low_freq_factor = get_float(p, j, "low_freq_factor", 0.0);
        s->rope_high_freq_factor = get_float(p, j, "high_freq_factor", 0.0);
        const cJSON *original = find(j, "original_max_position_embeddings");
        if (original)
            s->rope_original_positions = integer_of(p, "original_max_position_embeddings", original);
        else
            reject(p, key, j, "llama3 needs original_max_position_embeddings");
        if (!find(j, "low_freq_factor") || !find(j, "high_freq_factor"))
            reject(p, key, j, "llama3 needs low_freq_factor and high_freq_factor");
    } else {
        reject(p, key, j, "unknown rope type; known are default, linear and llama3");
    }
    if (!find(j, "factor")) reject(p, key, j, "needs a factor");
}

static void read_key(struct parse *p, const struct hf_key *k) {
    const cJSON *any = json_item(p->root, k->key),
                *j = find(p->root, k->key);  // any: the value, even if it is null
    int32_t *size = FIELD_OF(p->spec, k, int32_t), value;
    bool known = false, wanted = k->missing != 0.0;
    switch (k->kind) {
        case HF_SIZE:
            if (k->follows && !j) return;
            value = need_size(p, k->key);
            if (!*size) *size = value;  // not set by an earlier key
            return;
        case HF_FLOAT:
            *FIELD_OF(p->spec, k, float) = get_float(p, p->root, k->key, k->missing);
            return;
        case HF_ONLY:
            if (get_bool(p, k->key, wanted) != wanted) reject(p, k->key, j, k->why);
            return;
        case HF_ONE:
            if (j && !(cJSON_IsNumber(j) && j->valuedouble == 1.0)) reject(p, k->key, j, k->why);
            return;
        case HF_ACTIVATION:
            for (const char *const *name = k->same; *name; name++)
                known |= cJSON_IsString(j) && strcmp(j->valuestring, *name) == 0;
            if (j && !known) reject(p, k->key, j, k->why);
            return;
        case HF_DROPOUT:
            if (cJSON_IsNumber(j) && j->valuedouble != 0.0)
                warn("%s: \"%s\" is %g; training here applies no dropout", p->path, k->key, j->valuedouble);
            return;
        case HF_ROPE:
            read_rope(p, k);
            return;
        case HF_WINDOW:  // without the key transformers' default is used; null means no window
            *size = !any ? (int32_t)k->missing : !j ? 0 : need_size(p, k->key);
            return;
        case HF_FULL_LAYERS:
            for (j = j ? j->child : NULL; j; j = j->next)
                if (!cJSON_IsString(j) || strcmp(j->valuestring, "full_attention") != 0) {
                    reject(p, k->key, j, k->why);
                    return;
                }
            return;
    }
}

// ---------------------------------------------------------------- writing each kind
// Returns the double with the fewest decimal digits that rounds to x: 1e-5f is written as 1e-05.
static double shortest(float x) {
    char text[32];
    shortest_f32(text, x);
    return strtod(text, NULL);
}

static void write_rope(cJSON *j, const struct hf_key *k, const struct model_spec *s) {
    cJSON_AddNumberToObject(j, "rope_theta", shortest(s->rope_theta));
    if (s->rope_scaling == ROPE_PLAIN) {
        cJSON_AddNullToObject(j, k->key);
        return;
    }
    cJSON *r = cJSON_AddObjectToObject(j, k->key);
    cJSON_AddStringToObject(r, "rope_type", s->rope_scaling == ROPE_LINEAR ? "linear" : "llama3");
    cJSON_AddNumberToObject(r, "factor", shortest(s->rope_factor));
    if (s->rope_scaling == ROPE_LINEAR) return;
    cJSON_AddNumberToObject(r, "low_freq_factor", shortest(s->rope_low_freq_factor));
    cJSON_AddNumberToObject(r, "high_freq_factor", shortest(s->rope_high_freq_factor));
    cJSON_AddNumberToObject(r, "original_max_position_embeddings", s->rope_original_positions);
}

static void write_key(cJSON *j, const struct hf_key *k, const struct model_spec *s) {
    const int32_t *size = FIELD_OF(s, k, const int32_t);
    switch (k->kind) {
        case HF_SIZE:
            cJSON_AddNumberToObject(j, k->key, *size);
            return;
        case HF_FLOAT:
            cJSON_AddNumberToObject(j, k->key, shortest(*FIELD_OF(s, k, const float)));
            return;
        case HF_ONLY:
            cJSON_AddBoolToObject(j, k->key, k->missing != 0.0);
            return;
        case HF_ACTIVATION:
            cJSON_AddStringToObject(j, k->key, k->same[0]);
            return;
        case HF_DROPOUT:
            cJSON_AddNumberToObject(j, k->key, 0.0);
            return;
        case HF_ROPE:
            write_rope(j, k, s);
            return;
        case HF_WINDOW:
            json_put(j, k->key, *size ? *size : NAN);
            return;
        case HF_ONE:
        case HF_FULL_LAYERS:  // never written
            return;
    }
}

// ---------------------------------------------------------------- a file
// Returns the model's row, or NULL after rejecting the key that names the model.
static const struct hf_family *read_type(struct parse *p) {
    const cJSON *type = find(p->root, "model_type");
    const cJSON *list = find(p->root, "architectures"), *first = type ? NULL : cJSON_GetArrayItem(list, 0);
    const char *type_text = cJSON_GetStringValue(type), *architecture = cJSON_GetStringValue(first);
    char known[128], why[384];
    hf_types_text(known, sizeof known);
    const struct hf_family *row = hf_family_named(type_text, architecture);
    if (row) return row;
    const char *needs = hf_needs(type_text, architecture);
    if (needs)
        snprintf(why, sizeof why, "it needs %s, which this program does not have; known are %s", needs,
                 known);
    else if (type || architecture)
        snprintf(why, sizeof why, "not a model this program has; known are %s", known);
    else
        snprintf(why, sizeof why, "known are %s", known);
    reject(p, type || !architecture ? "model_type" : "architectures", type || !architecture ? type : list,
           why);
    return NULL;
}

// Refuses classes that do not predict the next token: they have another head.
static void check_architecture(struct parse *p) {
    static const char *const same[] = {"ForCausalLM", "LMHeadModel", "Model"};
    const cJSON *list = find(p->root, "architectures");
    const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!name || ends_with(name, same[i])) return;
    reject(p, "architectures", list,
           "this program supports only language models, which predict the next token (..ForCausalLM)");
}

static void read_keys(struct parse *p, const struct hf_key *k) {
    for (; k && k->key; k++) read_key(p, k);
}

static void read_model(struct parse *p, const struct hf_family *row) {
    struct model_spec *s = p->spec;
    // 1. The keys in the file: those of all models, the row's common keys, and the row's own.
    snprintf(s->hf_type, sizeof s->hf_type, "%s", row->type);
    s->traits = row->traits;
    check_architecture(p);
    s->vocab = need_size(p, "vocab_size");
    s->init_std = get_float(p, p->root, "initializer_range", 0.02);
    s->bos_token = get_token(p, "bos_token_id", row->bos);
    s->eos_token = get_token(p, "eos_token_id", row->eos);
    if (find(p->root, "quantization_config"))
        reject(
            p, "quantization_config", find(p->root, "quantization_config"),
            "quantized weights (GPTQ, AWQ, bitsandbytes, FP8) cannot be trained; take the model's directory from before "
            "quantization");
    read_keys(p, row->keys);
    s->tied = get_bool(p, "tie_word_embeddings", row->tied);
    read_keys(p, row->extra);
    // 2. The sizes that the file omits: keys marked `follows`.
    const struct hf_key *heads = row->keys;
    while (heads->field != offsetof(struct model_spec, heads)) heads++;
    if (!s->head_size && s->channels % s->heads && !p->failed)
        reject(p, heads->key, find(p->root, heads->key), heads->why);
    if (!s->head_size) s->head_size = s->channels / s->heads;
    bool kv_missing = !json_item(p->root, "num_key_value_heads");
    if (!s->kv_heads && row->kv_heads && kv_missing && s->heads % row->kv_heads)
        reject(p, "num_key_value_heads", NULL,
               "the family's default does not divide the heads, so the file has to say how many there are");
    if (!s->kv_heads) s->kv_heads = row->kv_heads && kv_missing ? row->kv_heads : s->heads;
    if (!s->ffn) s->ffn = s->channels <= INT32_MAX / 4 ? 4 * s->channels : INT32_MAX;
    if (!s->max_positions) s->max_positions = row->positions;
}

// Returns a model's name from its file's: "runs/a/config.json" -> "a"; "my.json" -> "my".
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

int hf_config_read(const char *path, struct model_spec *out) {
    cJSON *root = relaxed_json_load(path);
    if (!root) return -1;
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return fail("%s: holds no JSON object", path);
    }
    struct model_spec s = {0};
    name_from_path(path, s.name, sizeof s.name);
    struct parse p = {path, root, &s, 0};
    const struct hf_family *row = read_type(&p);
    if (row) read_model(&p, row);
    cJSON_Delete(root);
    if (p.failed || model_spec_check(&s)) return -1;
    *out = s;
    return 0;
}

static void write_keys(cJSON *j, const struct hf_key *k, const struct model_spec *s) {
    for (; k && k->key; k++)
        if (!k->unwritten) write_key(j, k, s);
}

cJSON *hf_config_json(const struct model_spec *s, enum dtype dt) {
    const struct hf_family *row = hf_family_of(s);
    assert(row);
    cJSON *j = cJSON_CreateObject();
    cJSON *a = cJSON_AddArrayToObject(j, "architectures");
    cJSON_AddItemToArray(a, cJSON_CreateString(row->architecture));
    cJSON_AddStringToObject(j, "model_type", row->type);
    cJSON_AddStringToObject(j, "torch_dtype",
                            dt == DT_BF16  ? "bfloat16"
                            : dt == DT_F16 ? "float16"
                                           : "float32");
    cJSON_AddNumberToObject(j, "vocab_size", s->vocab);
    write_keys(j, row->keys, s);
    write_keys(j, row->extra, s);
    cJSON_AddBoolToObject(j, "tie_word_embeddings", s->tied);
    cJSON_AddNumberToObject(j, "initializer_range", shortest(s->init_std));
    cJSON_AddTrueToObject(j, "use_cache");
    json_put(j, "bos_token_id", s->bos_token < 0 ? NAN : s->bos_token);
    json_put(j, "eos_token_id", s->eos_token < 0 ? NAN : s->eos_token);
    return j;
}
