#include "shared/hf/hf_adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/hf/families.h"

static cJSON *load(const char *dir, char **path) {
    *path = xasprintf("%s/" ADAPTER_CONFIG, dir);
    cJSON *root = relaxed_json_load(*path);
    if (root && !cJSON_IsObject(root)) {
        fail("%s: holds no JSON object", *path);
        cJSON_Delete(root);
        return NULL;
    }
    return root;
}

// ---------------------------------------------------------------- the base model
char *hf_adapter_base(const char *given) {
    char *path, *dir = without_slashes(given), *found = NULL;
    cJSON *root = load(dir, &path);
    const char *named = json_text(root, "base_model_name_or_path", NULL);
    if (named && !*named) named = NULL;
    // A relative path is looked for in the working directory, as in peft, and then in the adapter's directory.
    char *places[] = {xasprintf("%s/base", dir), xstrdup(named ? named : ""),
                      xasprintf("%s/%s", dir, named ? named : "")};
    for (int i = 0; i < 3; i++) {
        bool there = root && !found && (i == 0 || named) && has_file(places[i], "config.json");
        if (there) found = xstrdup(places[i]);
        free(places[i]);
    }
    if (root && !found && !named)
        fail(
            "%s: \"base_model_name_or_path\" is missing or no text: write there the directory of the model that the adapter belongs to",
            path);
    else if (root && !found) {
        bool hub = is_hub_name(named);
        char *fetch =
            hub ? xasprintf("fetch it (hf download %s --local-dir BASE)", named) : xstrdup("put it there");
        fail(
            "%s: \"base_model_name_or_path\" is %.300s, which is no directory with a config.json here: %s, or write the "
            "directory of the base model there, or link it: ln -s /path/to/BASE %s/base",
            path, named, fetch, dir);
        free(fetch);
    }
    cJSON_Delete(root);
    free(path);
    free(dir);
    return found;
}

// ---------------------------------------------------------------- reading
#define NAMES_MAX 256  // a block has fewer modules

// Only the first error is logged.
struct parse {
    const char *path;
    const cJSON *root;
    struct model_spec *spec;
    char *targets;  // joined by commas; NULL: peft's default for the model
    int failed;
};

#define WITHOUT \
    "; merge the adapter in peft (merge_and_unload()) and train the merged model, or make one without it"

static void reject(struct parse *p, const cJSON *j, const char *why) {
    char *text = cJSON_PrintUnformatted(j);
    if (!p->failed) fail("%s: \"%s\" is %.200s: %s", p->path, j->string, text ? text : "?", why);
    cJSON_free(text);
    p->failed = 1;
}

static bool is_text(const cJSON *j, const char *text) {
    return cJSON_IsString(j) && !strcmp(j->valuestring, text);
}

static void read_type(struct parse *p, const cJSON *j) {
    if (!is_text(j, "LORA")) reject(p, j, "this program supports only LORA" WITHOUT);
}

static void read_task(struct parse *p, const cJSON *j) {
    if (!cJSON_IsNull(j) && !is_text(j, "CAUSAL_LM"))
        reject(p, j, "this program supports only language models, which predict the next token (CAUSAL_LM)");
}

static void read_rank(struct parse *p, const cJSON *j) {
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 1 && j->valuedouble <= LORA_R_MAX) ||
        j->valuedouble != floor(j->valuedouble))
        reject(p, j, "must be a whole number from 1 to 65536");
    else
        p->spec->lora.r = (int32_t)j->valuedouble;
}

static void read_alpha(struct parse *p, const cJSON *j) {
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= LORA_ALPHA_MIN && j->valuedouble <= LORA_ALPHA_MAX))
        reject(p, j, "must be a number from 1e-30 to 1e30");
    else
        p->spec->lora.alpha = (float)j->valuedouble;
}

static void read_targets(struct parse *p, const cJSON *j) {
    const cJSON *name;
    if (is_text(j, "all-linear")) p->targets = xstrdup("all-linear");
    if (p->targets || cJSON_IsNull(j)) return;
    if (!cJSON_IsArray(j) || !j->child || cJSON_GetArraySize(j) > NAMES_MAX) {
        reject(p, j,
               "must be a list of the modules' names, or all-linear: write such a list instead of a pattern");
        return;
    }
    cJSON_ArrayForEach(name, j) {
        const char *text = cJSON_GetStringValue(name);
        if (!text || !*text || strchr(text, ',')) {
            reject(p, j, "must be a list of the modules' names");
            return;
        }
        text_add(&p->targets, "%s%s", p->targets ? "," : "", text);
    }
}

static void read_dropout(struct parse *p, const cJSON *j) {
    if (!cJSON_IsNumber(j))
        reject(p, j, "must be a number");
    else if (j->valuedouble != 0)
        warn("%s: \"%s\" is %g; training here applies no dropout", p->path, j->string, j->valuedouble);
}

static void read_bias(struct parse *p, const cJSON *j) {
    if (!is_text(j, "none"))
        reject(p, j, "this program does not train biases together with an adapter" WITHOUT);
}

// Some values of init_lora_weights also change the base model's weights: then the adapter belongs to another base model.
static void read_init(struct parse *p, const cJSON *j) {
    static const char *const same[] = {"gaussian", "orthogonal", "eva"};
    bool known = cJSON_IsBool(j) || cJSON_IsNull(j);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) known |= is_text(j, same[i]);
    if (!known)
        reject(
            p, j,
            "peft changes the base model or its training in this way to begin; save the adapter as plain LoRA "
            "(path_initial_model_for_weight_conversion), or merge it in peft (merge_and_unload())");
}

static void read_base(struct parse *p, const cJSON *j) {
    if (!cJSON_IsString(j) && !cJSON_IsNull(j)) reject(p, j, "must be the base model's directory");
}

static void read_rs(struct parse *p, const cJSON *j) {
    if (!cJSON_IsBool(j) && !cJSON_IsNull(j)) reject(p, j, "must be true or false");
}

static void ignore(struct parse *p, const cJSON *j) { (void)p, (void)j; }

// The known keys of a LoRA adapter. Any other key of the file must be off: null, false, or empty. Otherwise it is refused,
// with `why` if it has a row here.
static const struct {
    const char *key;
    void (*read)(struct parse *p, const cJSON *j);
    const char *why;
} keys[] = {
    {"peft_type", read_type, NULL},
    {"task_type", read_task, NULL},
    {"r", read_rank, NULL},
    {"lora_alpha", read_alpha, NULL},
    {"target_modules", read_targets, NULL},
    {"base_model_name_or_path", read_base, NULL},
    {"lora_dropout", read_dropout, NULL},
    {"bias", read_bias, NULL},
    {"init_lora_weights", read_init, NULL},
    {"use_rslora", read_rs, NULL},
    // These do not change what the adapter computes.
    {"auto_mapping", ignore, NULL},
    {"revision", ignore, NULL},
    {"inference_mode", ignore, NULL},
    {"peft_version", ignore, NULL},
    {"fan_in_fan_out", ignore, NULL},  // the module's type determines it
    {"layers_pattern", ignore, NULL},  // only with layers_to_transform
    {"megatron_core", ignore, NULL},
    {"qalora_group_size", ignore, NULL},
    {"runtime_config", ignore, NULL},
    {"eva_config", ignore, NULL},
    {"ensure_weight_tying", ignore, NULL},  // only with modules_to_save
    // Features that many adapters have.
    {"use_dora", NULL, "DoRA's magnitudes are not implemented"},
    {"rank_pattern", NULL, "ranks that differ from module to module are not implemented"},
    {"alpha_pattern", NULL, "factors that differ from module to module are not implemented"},
    {"modules_to_save", NULL, "modules that are trained whole beside the adapter are not implemented"},
    {"layers_to_transform", NULL, "an adapter in some of the layers alone is not implemented"},
    {"exclude_modules", NULL, "write the modules that have an adapter in target_modules instead"},
    {"trainable_token_indices", NULL, "tokens that are trained beside the adapter are not implemented"},
    {"loftq_config", NULL, "a quantized base model is not implemented"},
};

// Returns whether the value switches a feature off.
static bool is_off(const cJSON *j) {
    bool empty = (cJSON_IsArray(j) || cJSON_IsObject(j)) && !j->child;
    return cJSON_IsNull(j) || cJSON_IsFalse(j) || empty;
}

static void read_key(struct parse *p, const cJSON *j) {
    const char *why = "a feature of peft that this program does not have";
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(keys[i].key, j->string) != 0) continue;
        if (keys[i].read) keys[i].read(p, j);
        if (keys[i].read) return;
        why = keys[i].why;
    }
    if (is_off(j)) return;
    char *text = xasprintf("%s" WITHOUT, why);
    reject(p, j, text);
    free(text);
}

int hf_adapter_read(const char *dir, struct model_spec *s) {
    char *path;
    cJSON *root = load(dir, &path);
    struct parse p = {.path = path, .root = root, .spec = s, .failed = !root};
    const cJSON *j;
    s->lora = (struct lora_spec){.alpha = 8};  // peft's default
    if (root && !json_item(root, "peft_type"))
        p.failed = fail("%s: \"peft_type\" is missing: is it an adapter's?", path);
    cJSON_ArrayForEach(j, root) read_key(&p, j);
    if (!p.failed && !s->lora.r) s->lora.r = 8;
    if (cJSON_IsTrue(json_item(root, "use_rslora"))) s->lora.alpha *= sqrtf((float)s->lora.r);
    char *where = xasprintf("%s: \"target_modules\"", path);
    int rc = p.failed || hf_lora_targets(s, p.targets, where, &s->lora) ? -1 : 0;
    free(where);
    free(p.targets);
    free(path);
    cJSON_Delete(root);
    return rc;
}

// ---------------------------------------------------------------- writing
// The part of a module's name after its last dot is enough if all modules that end with it have an adapter (GPT-2 has two
// c_proj).
static const char *shortest_name(const struct model_spec *s, const char *module) {
    const char *last = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    struct lora_spec named;
    hf_lora_targets(s, last, "", &named);
    for (int l = 0; l < LORA_LINEARS; l++)
        if (named.mask[l] & ~s->lora.mask[l]) return module;
    return last;
}

cJSON *hf_adapter_json(const struct model_spec *s, const char *base) {
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "peft_type", "LORA");
    cJSON_AddStringToObject(j, "task_type", "CAUSAL_LM");
    json_put_text(j, "base_model_name_or_path", base);
    cJSON_AddNumberToObject(j, "r", s->lora.r);
    char alpha[32];
    shortest_f32(alpha, s->lora.alpha);
    cJSON_AddNumberToObject(j, "lora_alpha", strtod(alpha, NULL));
    cJSON *targets = cJSON_AddArrayToObject(j, "target_modules"), *name;
    char module[HF_NAME_MAX];
    for (int i = 0; hf_lora_module(s, i, module); i++) {
        const char *text = shortest_name(s, module);
        bool twice = false;
        cJSON_ArrayForEach(name, targets) twice |= is_text(name, text);
        if (!twice) cJSON_AddItemToArray(targets, cJSON_CreateString(text));
    }
    cJSON_AddBoolToObject(j, "fan_in_fan_out", hf_family_of(s)->conv1d);
    cJSON_AddNumberToObject(j, "lora_dropout", 0);
    cJSON_AddStringToObject(j, "bias", "none");
    cJSON_AddNullToObject(j, "modules_to_save");
    cJSON_AddTrueToObject(j, "init_lora_weights");
    cJSON_AddFalseToObject(j, "use_rslora");
    cJSON_AddFalseToObject(j, "use_dora");
    cJSON_AddTrueToObject(j, "inference_mode");
    return j;
}
