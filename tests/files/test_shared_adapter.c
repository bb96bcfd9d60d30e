// peft's adapter directories: those that peft has written (tests/data/vectors/*/lora), what the program writes, and what it
// refuses.
#include "tests/files/st_helper.h"

#include <sys/stat.h>

#include "shared/core/file.h"
#include "shared/core/json.h"
#include "shared/hf/families.h"
#include "shared/hf/hf_adapter.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"
#include "shared/hf/safetensors.h"
#include "shared/model/layout.h"

#define VECTORS "tests/data/vectors/"
static const char *const models[] = {"llama", "qwen", "mistral", "gpt2"};

// A directory with an adapter of a model: copies of peft's files, and base/, a link to the model.
struct adapter {
    char dir[64], *config, *weights, *base, *bases_config;
};

static void copy(const char *from, const char *to) {
    size_t n;
    char *bytes = get_file(from, &n);
    put_file(to, bytes, n);
    free(bytes);
}

static int open_adapter(void **state) {
    struct adapter *a = calloc(1, sizeof *a);
    assert_int_equal(fixture_folder(a->dir, "adapter"), 0);
    a->config = xasprintf("%s/" ADAPTER_CONFIG, a->dir);
    a->weights = xasprintf("%s/" ADAPTER_WEIGHTS, a->dir);
    a->base = xasprintf("%s/base", a->dir);
    a->bases_config = xasprintf("%s/config.json", a->dir);
    *state = a;
    return 0;
}

static int close_adapter(void **state) {
    struct adapter *a = *state;
    char *all[] = {a->config, a->weights, a->base, a->bases_config};
    for (int i = 0; i < 4; i++) {
        unlink(all[i]);
        free(all[i]);
    }
    int left = rmdir(a->dir);
    free(a);
    return left;
}

static void put_adapter(const struct adapter *a, const char *model) {
    char *config = xasprintf(VECTORS "%s/lora/" ADAPTER_CONFIG, model);
    char *weights = xasprintf(VECTORS "%s/lora/" ADAPTER_WEIGHTS, model);
    char *base = xasprintf(VECTORS "%s", model), *whole = realpath(base, NULL);
    copy(config, a->config);
    copy(weights, a->weights);
    unlink(a->base);
    assert_int_equal(symlink(whole, a->base), 0);
    free(config);
    free(weights);
    free(base);
    free(whole);
}

// The tensors of the adapter equal those of its file; all others those of the base model's directory.
static void compare(const char *dir, const char *base, const char *weights) {
    struct model_spec s, plain;
    assert_int_equal(model_spec_load(dir, &s), 0);
    assert_int_equal(model_spec_load(base, &plain), 0);
    assert_int_equal(s.lora.r, 4);
    assert_true(s.lora.alpha == 6.0f);
    assert_int_equal(plain.lora.r, 0);
    struct layout *l = model_layout_create(&s, 3), *lb = model_layout_create(&plain, 1);
    const struct layout *m = layout_of_model(l);
    struct hf_reader *r = hf_open(dir, &s, l), *b = hf_open(base, &plain, lb);
    assert_true(r && b);
    assert_int_equal(hf_dtype(r), DT_F32);
    struct st_file *f = st_open(weights);
    assert_non_null(f);
    int adapters = 0;
    for (int u = 0; u < m->count; u++) {
        float *got = malloc((size_t)m->units[u].n_pad * sizeof *got);
        float *want = malloc((size_t)lb->units[u].n_pad * sizeof *want);
        assert_int_equal(hf_read_unit(r, u, got), 0);
        assert_int_equal(hf_read_unit(b, u, want), 0);
        const struct tensor *of_base = lb->units[u].tensors;
        for (int t = 0; t < m->units[u].count; t++) {
            const struct tensor *x = &m->units[u].tensors[t];
            if (!x->adapter) {
                assert_string_equal(x->name, of_base->name);
                assert_memory_equal(got + x->offset, want + of_base->offset, (size_t)x->numel * sizeof *got);
                of_base++;
                continue;
            }
            struct hf_part part[HF_MAX_PARTS];
            assert_int_equal(hf_parts(&s, m, u, t, part), 1);
            char *name = xasprintf(ADAPTER_PREFIX "%s", part->name);
            const struct st_tensor *in_file = st_find(f, name);
            assert_non_null(in_file);
            float *values = malloc((size_t)x->numel * sizeof *values);
            assert_int_equal(in_file->numel, x->numel);
            assert_int_equal(st_to_f32(in_file, 0, x->numel, values), 0);
            assert_memory_equal(got + x->offset, values, (size_t)x->numel * sizeof *got);
            free(values);
            free(name);
            adapters++;
        }
        free(got);
        free(want);
    }
    assert_int_equal(adapters, st_count(f));
    st_close(&f);
    hf_close(&r);
    hf_close(&b);
    layout_destroy(&l);
    layout_destroy(&lb);
}

// peft's own files, where base_model_name_or_path is a relative path, and where DIR/base exists.
static void test_of_peft(void **state) {
    struct adapter *a = *state;
    for (int i = 0; i < 4; i++) {
        char *dir = xasprintf(VECTORS "%s/lora", models[i]), *base = xasprintf(VECTORS "%s", models[i]);
        char *weights = xasprintf("%s/" ADAPTER_WEIGHTS, dir);
        compare(dir, base, weights);
        put_adapter(a, models[i]);
        compare(a->dir, base, weights);
        assert_true(hf_is_adapter(a->dir) && hf_has_weights(a->dir) && !hf_is_adapter(base));
        char *own = hf_files_identity(a->dir), *of_base = hf_files_identity(base);
        assert_non_null(strstr(own, "3 files, "));
        assert_string_not_equal(own, of_base);
        free(own);
        free(of_base);
        free(dir);
        free(base);
        free(weights);
    }
}

// Written adapters have peft's names and values, and are read back.
static void test_written(void **state) {
    struct adapter *a = *state;
    for (int i = 0; i < 4; i++) {
        char *dir = xasprintf(VECTORS "%s/lora", models[i]), *base = xasprintf(VECTORS "%s", models[i]);
        char *weights = xasprintf("%s/" ADAPTER_WEIGHTS, dir);
        struct model_spec s;
        assert_int_equal(model_spec_load(dir, &s), 0);
        struct layout *l = model_layout_create(&s, 2);
        struct hf_reader *r = hf_open(dir, &s, l);
        struct hf_writer *w = hf_writer_create(a->dir, &s, l, DT_F32);
        assert_true(r && w);
        hf_writer_base(w, i % 2 ? base : dir);
        for (int u = 0; u < l->count; u++) {
            float *unit = malloc((size_t)layout_of_model(l)->units[u + 1].n_pad * sizeof *unit);
            assert_int_equal(hf_read_unit(r, u + 1, unit), 0);
            assert_int_equal(hf_write_unit(w, u, unit), 0);
            free(unit);
        }
        assert_int_equal(hf_writer_finish(&w), 0);
        hf_close(&r);
        compare(a->dir, base, weights);
        // The two files have the same tensors, and the configurations say the same of them.
        struct st_file *ours = st_open(a->weights), *theirs = st_open(weights);
        assert_int_equal(st_count(ours), st_count(theirs));
        for (int t = 0; t < st_count(ours); t++) {
            assert_string_equal(st_at(ours, t)->name, st_at(theirs, t)->name);
            assert_int_equal(st_at(ours, t)->bytes, st_at(theirs, t)->bytes);
            assert_memory_equal(st_at(ours, t)->data, st_at(theirs, t)->data, st_at(ours, t)->bytes);
        }
        st_close(&ours);
        st_close(&theirs);
        char *peft = xasprintf("%s/" ADAPTER_CONFIG, dir);
        cJSON *mine = relaxed_json_load(a->config), *its = relaxed_json_load(peft), *key;
        cJSON_ArrayForEach(key, mine) {
            const cJSON *other = json_item(its, key->string);
            assert_non_null(other);
            if (!strcmp(key->string, "base_model_name_or_path")) {
                assert_true(key->valuestring[0] == '/' && same_file(key->valuestring, base));
            } else if (!strcmp(key->string, "target_modules")) {
                assert_int_equal(cJSON_GetArraySize(key), cJSON_GetArraySize(other));
            } else if (!cJSON_Compare(key, other, true)) {
                fail_msg("%s: %s differs", models[i], key->string);
            }
        }
        cJSON_Delete(mine);
        cJSON_Delete(its);
        free(peft);
        layout_destroy(&l);
        free(dir);
        free(base);
        free(weights);
    }
}

// The names of target_modules are the short ones where these name no other module.
static void test_targets_written(void **state) {
    static const struct {
        const char *model, *targets, *written;
    } cases[] = {
        {"llama", "q_proj,v_proj", "[\"q_proj\",\"v_proj\"]"},
        {"llama", "mlp.up_proj,self_attn.o_proj", "[\"o_proj\",\"up_proj\"]"},
        {"gpt2", "attn.c_proj", "[\"attn.c_proj\"]"},
        {"gpt2", "mlp.c_proj,c_attn", "[\"c_attn\",\"mlp.c_proj\"]"},
        {"gpt2", "c_proj", "[\"c_proj\"]"},
        {"gpt2", "all-linear", "[\"c_attn\",\"c_proj\",\"c_fc\"]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = xasprintf(VECTORS "%s", cases[i].model);
        struct model_spec s;
        assert_int_equal(model_spec_load(dir, &s), 0);
        s.lora.r = 2;
        s.lora.alpha = 0.1f;
        assert_int_equal(hf_lora_targets(&s, cases[i].targets, "here", &s.lora), 0);
        cJSON *j = hf_adapter_json(&s, NULL);
        char *text = cJSON_PrintUnformatted(json_item(j, "target_modules"));
        assert_string_equal(text, cases[i].written);
        assert_true(json_number(j, "lora_alpha") == 0.1 &&
                    cJSON_IsNull(json_item(j, "base_model_name_or_path")));
        cJSON_free(text);
        cJSON_Delete(j);
        free(dir);
    }
}

static void expect_refused(const struct adapter *a, const char *what, const char *says, const char *also) {
    struct model_spec s;
    error_clear();
    error_quiet(QUIET_ALL);
    int rc = model_spec_load(a->dir, &s);
    error_quiet(QUIET_NOT);
    if (rc != -1 || !strstr(error_last(), says) || !strstr(error_last(), also))
        fail_msg("%s: \"%s\" should say \"%s\" and \"%s\"", what, error_last(), says, also);
}

// peft's configuration of the LLaMA adapter with a key of another value; NULL: without the key.
static void put_key(const struct adapter *a, const char *key, const char *value) {
    cJSON *root = relaxed_json_load(VECTORS "llama/lora/" ADAPTER_CONFIG);
    cJSON_DeleteItemFromObject(root, key);
    if (value) cJSON_AddItemToObject(root, key, cJSON_Parse(value));
    char *text = cJSON_Print(root);
    put_file(a->config, text, strlen(text));
    cJSON_free(text);
    cJSON_Delete(root);
}

static void test_keys(void **state) {
    static const struct {
        const char *key, *value, *says;  // NULL: it is read
    } cases[] = {
        {"peft_type", "\"IA3\"", "supports only LORA"},
        {"peft_type", NULL, "is missing"},
        {"task_type", "\"SEQ_CLS\"", "CAUSAL_LM"},
        {"task_type", "null", NULL},
        {"r", "0", "from 1 to"},
        {"r", "65537", "to 65536"},
        {"r", "2.5", "whole number"},
        {"r", "\"4\"", "whole number"},
        {"lora_alpha", "0", "from 1e-30"},
        {"lora_alpha", "[6]", "from 1e-30"},
        {"lora_alpha", "1e31", "to 1e30"},
        {"target_modules", "\".*q_proj\"", "instead of a pattern"},
        {"target_modules", "[]", "list"},
        {"target_modules", "[\"q_proj\",7]", "list"},
        {"target_modules", "[\"lm_head\"]", "no linear layer \"lm_head\""},
        {"target_modules", "\"all-linear\"", NULL},
        {"lora_dropout", "0.1", NULL},
        {"lora_dropout", "\"x\"", "number"},
        {"bias", "\"all\"", "merge_and_unload"},
        {"bias", "\"lora_only\"", "biases"},
        {"modules_to_save", "[\"lm_head\"]", "modules that are trained whole"},
        {"modules_to_save", "[]", NULL},
        {"rank_pattern", "{\"q_proj\": 2}", "ranks that differ"},
        {"alpha_pattern", "{\"q_proj\": 2}", "factors that differ"},
        {"use_dora", "true", "DoRA"},
        {"layers_to_transform", "[0]", "some of the layers"},
        {"layers_to_transform", "0", "some of the layers"},
        {"exclude_modules", "[\"q_proj\"]", "target_modules"},
        {"loftq_config", "{\"loftq_bits\": 4}", "quantized"},
        {"trainable_token_indices", "[1]", "tokens"},
        {"init_lora_weights", "\"pissa\"", "path_initial_model_for_weight_conversion"},
        {"init_lora_weights", "\"gaussian\"", NULL},
        {"init_lora_weights", "false", NULL},
        {"lora_bias", "true", "does not have"},
        {"target_parameters", "[\"x\"]", "does not have"},
        {"layer_replication", "[[0,1]]", "does not have"},
        {"a_feature_of_tomorrow", "{\"x\": 1}", "does not have"},
        {"a_feature_of_tomorrow", "false", NULL},
        {"runtime_config", "{\"ephemeral_gpu_offload\": false}", NULL},
        {"base_model_name_or_path", "7", "directory"},
    };
    struct adapter *a = *state;
    put_adapter(a, "llama");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec s;
        put_key(a, cases[i].key, cases[i].value);
        if (cases[i].says) {
            expect_refused(a, cases[i].key, cases[i].says, a->config);
            if (!strstr(error_last(), cases[i].key))
                fail_msg("\"%s\" should name %s", error_last(), cases[i].key);
        } else if (model_spec_load(a->dir, &s)) {
            fail_msg("%s %s: %s", cases[i].key, cases[i].value, error_last());
        }
    }
    // alpha / sqrt(r) is the factor.
    struct model_spec s;
    put_key(a, "use_rslora", "true");
    assert_int_equal(model_spec_load(a->dir, &s), 0);
    assert_true(s.lora.alpha / (float)s.lora.r == 3.0f);
    put_file(a->config, "[]", 2);
    expect_refused(a, "a list", a->config, "no JSON object");
    put_file(a->config, "{", 1);
    expect_refused(a, "half a file", a->config, ":1:2: ");
}

static void test_base(void **state) {
    struct adapter *a = *state;
    struct model_spec s;
    put_adapter(a, "llama");
    unlink(a->base);
    put_key(a, "base_model_name_or_path", "\"" VECTORS "llama\"");
    assert_int_equal(model_spec_load(a->dir, &s), 0);
    put_key(a, "base_model_name_or_path", "\"meta-llama/Llama-3.2-1B\"");
    expect_refused(a, "of the hub", "hf download meta-llama/Llama-3.2-1B", a->base);
    put_key(a, "base_model_name_or_path", "\"/nowhere\"");
    expect_refused(a, "no directory", "/nowhere", "base_model_name_or_path");
    put_key(a, "base_model_name_or_path", NULL);
    expect_refused(a, "none", "\"base_model_name_or_path\" is missing or no text", a->config);
    // Another base: other shapes; fewer layers than the adapter has; none of the modules.
    put_key(a, "base_model_name_or_path", "\"" VECTORS "mistral\"");
    expect_refused(a, "a narrower base", "self_attn", "is the adapter one of another model?");
    put_key(a, "base_model_name_or_path", "\"" VECTORS "gpt2\"");
    expect_refused(a, "another family", "target_modules", "no linear layer");
}

static void test_tensors(void **state) {
    struct adapter *a = *state;
    size_t n;
    put_adapter(a, "llama");
    // A module without tensors, tensors without a module, another rank.
    put_key(a, "target_modules", "[\"q_proj\"]");
    expect_refused(a, "more tensors", "belongs to no module", a->weights);
    put_adapter(a, "qwen");
    put_key(a, "target_modules", "[\"q_proj\",\"v_proj\",\"o_proj\"]");
    expect_refused(a, "fewer tensors", "self_attn.o_proj.lora_A.weight: missing", a->weights);
    put_adapter(a, "llama");
    put_key(a, "r", "8");
    expect_refused(a, "another rank", "lora_A.weight: shape (4,24), but r", "(8,24)");
    // Every length of a truncated file, in steps.
    put_adapter(a, "llama");
    char *bytes = get_file(a->weights, &n);
    for (size_t k = 0; k < n; k += 97) {
        put_file(a->weights, bytes, k);
        expect_refused(a, "truncated", a->weights, k ? "truncated" : "no safetensors file");
    }
    // A value that is no number.
    struct model_spec s;
    memset(bytes + n - 4, 0xff, 4);
    put_file(a->weights, bytes, n);
    free(bytes);
    assert_int_equal(model_spec_load(a->dir, &s), 0);
    struct layout *l = model_layout_create(&s, 1);
    struct hf_reader *r = hf_open(a->dir, &s, l);
    assert_non_null(r);
    float *unit = malloc((size_t)layout_of_model(l)->units[2].n_pad * sizeof *unit);
    error_quiet(QUIET_ALL);
    assert_int_equal(hf_read_unit(r, 2, unit), -1);
    error_quiet(QUIET_NOT);
    assert_true(strstr(error_last(), a->weights) && strstr(error_last(), "NaN"));
    free(unit);
    hf_close(&r);
    layout_destroy(&l);
    // No tensors at all.
    unlink(a->weights);
    expect_refused(a, "without weights", ADAPTER_WEIGHTS, "a part of a LoRA adapter");
}

int main(void) {
#define CASE(test) cmocka_unit_test_setup_teardown(test, open_adapter, close_adapter)
    const struct CMUnitTest tests[] = {
        CASE(test_of_peft), CASE(test_written), cmocka_unit_test(test_targets_written),
        CASE(test_keys),    CASE(test_base),    CASE(test_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
