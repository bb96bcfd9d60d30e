// Model descriptions: presets, config.json, layouts and initial values.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/exact_sum.h"
#include "shared/core/error.h"
#include "shared/hf/families.h"
#include "shared/hf/presets.h"
#include "shared/model/layout.h"
#include "tests/fixture.h"

struct dir {
    char path[64];
};

static int make_dir(void **state) {
    struct dir *d = calloc(1, sizeof *d);
    assert_int_equal(fixture_folder(d->path, "spec"), 0);
    *state = d;
    return 0;
}

static int remove_dir(void **state) {
    struct dir *d = *state;
    int rc = fixture_remove(d->path);
    free(d);
    return rc;
}

// Loads text as DIR/config.json.
static int load(void **state, const char *text, struct model_spec *s) {
    struct dir *d = *state;
    assert_int_equal(fixture_write(d->path, "config.json", text), 0);
    error_clear();
    error_quiet(1);
    char *config = xasprintf("%s/config.json", d->path);
    int rc = model_spec_load(config, s);
    error_quiet(0);
    free(config);
    return rc;
}

// The text that hf_config_json makes of s.
static char *written(const struct model_spec *s, enum dtype dt) {
    cJSON *config = hf_config_json(s, dt);
    char *text = cJSON_Print(config);
    cJSON_Delete(config);
    return text;
}

static void expect_error(void **state, const char *text, const char *part) {
    struct model_spec s;
    assert_int_equal(load(state, text, &s), -1);
    if (!strstr(error_last(), part)) fail_msg("\"%s\" does not say \"%s\"", error_last(), part);
    if (!strstr(error_last(), "config.json") && !strstr(error_last(), "model starring-spec"))
        fail_msg("\"%s\" names no file", error_last());
}

static void test_parameter_counts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t params;
    } known[] = {{"gpt2-124m", 124439808},
                 {"gpt2-1558m", 1557611200},
                 {"qwen2.5-0.5b", 494032768},
                 {"qwen2.5-1.5b", 1543714304},
                 {"llama-3.2-1b", 1235814400},
                 {"llama-2-7b", 6738415616},
                 {"demo", 2853312},
                 {"tiny", 125248}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct model_spec s;
        assert_int_equal(model_spec_load(known[i].name, &s), 0);
        assert_int_equal(model_spec_check(&s), 0);
        assert_string_equal(s.name, known[i].name);
        struct layout *l = model_layout_create(&s, 2);
        assert_int_equal(l->params, known[i].params);
        assert_int_equal(l->count, s.layers + 2);
        layout_destroy(&l);
    }
    assert_null(model_preset_name(sizeof known / sizeof *known));
}

static void check_layout(const char *name, int world) {
    struct model_spec s;
    assert_int_equal(model_spec_load(name, &s), 0);
    struct layout *l = model_layout_create(&s, world);
    assert_int_equal(l->tied, s.tied);
    int64_t logical = 0;
    for (int u = 0; u < l->count; u++) {
        const struct unit *unit = &l->units[u];
        int64_t end = 0;
        for (int i = 0; i < unit->count; i++) {
            const struct tensor *t = &unit->tensors[i];
            assert_int_equal(t->offset % UNIT_ALIGN, 0);
            assert_true(t->offset >= end && t->offset < end + UNIT_ALIGN);
            assert_int_equal(t->logical_start, logical);
            assert_int_equal(t->decay, t->dims == 2);
            assert_int_equal(t->init == INIT_NORMAL, t->dims == 2);
            assert_int_equal(strncmp(t->name, unit->name, strlen(unit->name)), 0);
            end = t->offset + t->numel + t->reserved;
            logical += t->numel;
        }
        assert_int_equal(unit->n, end);
        assert_int_equal(unit->n_pad % ((int64_t)SUMSQ_BLOCK * world), 0);
    }
    assert_int_equal(l->params, logical);
    layout_destroy(&l);
}

static void test_layouts(void **state) {
    (void)state;
    for (int world = 1; world <= 3; world++) {
        check_layout("tiny", world);
        check_layout("demo", world);
        check_layout("gpt2-124m", world);
        check_layout("qwen2.5-0.5b", world);
    }
    struct model_spec s;
    model_spec_load("qwen2.5-0.5b", &s);
    struct layout *l = model_layout_create(&s, 1);
    assert_string_equal(l->units[4].tensors[2].name, "block.3.bqkv");
    assert_int_equal(l->units[4].tensors[2].shape[0], (14 + 4) * 64);
    assert_string_equal(l->units[0].tensors[0].name, "embedding.wte");
    assert_string_equal(l->units[25].tensors[0].name, "head.norm");
    assert_int_equal(l->units[25].count, 1);
    layout_destroy(&l);
}

// Room for the rows up to a multiple of 64 behind the head's tensor and behind no other, in whole blocks of
// the norm: what lies behind it keeps its place within its block. Nothing else knows of it.
static void check_reserved(const char *model, int vocab, bool tied, int64_t rows) {
    struct model_spec s, even;
    assert_int_equal(model_spec_load(model, &s), 0);
    s.vocab = vocab;
    s.tied = tied;
    even = s;
    even.vocab = (int32_t)(vocab + rows);
    struct layout *l = model_layout_create(&s, 2), *e = model_layout_create(&even, 2);
    const struct tensor *head =
        tied ? &l->units[0].tensors[0] : &l->units[l->count - 1].tensors[l->units[l->count - 1].count - 1];
    int64_t tables = tied ? 1 : 2, logical = 0;
    for (int u = 0; u < l->count; u++)
        for (int i = 0; i < l->units[u].count; i++) {
            const struct tensor *t = &l->units[u].tensors[i];
            assert_int_equal(t->logical_start, logical);
            logical += t->numel;
            if (t != head) assert_int_equal(t->reserved, 0);
        }
    assert_int_equal(head->shape[0], vocab);
    assert_int_equal(head->numel, (int64_t)vocab * s.channels);
    assert_true(head->reserved >= rows * s.channels && head->reserved < rows * s.channels + SUMSQ_BLOCK);
    assert_int_equal(head->reserved % SUMSQ_BLOCK, 0);
    assert_int_equal(l->params, logical);
    assert_int_equal(e->params - l->params, tables * rows * s.channels);
    uint64_t hash = layout_hash(l, 1);
    ((struct tensor *)(uintptr_t)head)->reserved += SUMSQ_BLOCK;
    assert_true(layout_hash(l, 1) != hash);
    layout_destroy(&l);
    layout_destroy(&e);
}

static void test_reserved_classes(void **state) {
    (void)state;
    check_reserved("gpt2-124m", 50257, true, 47);
    check_reserved("tiny", 259, false, 61);
    check_reserved("tiny", 321, true, 63);
    check_reserved("qwen2.5-0.5b", 151936, true, 0);
    check_reserved("demo", 256, true, 0);
}

static double std_of(const float *x, int64_t n) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    return sqrt(squares / (double)n - sum / (double)n * (sum / (double)n));
}

// The same values for every world size; another seed, another unit: other values; gaps are zero.
static void test_initial_values(void **state) {
    (void)state;
    struct model_spec s;
    assert_int_equal(model_spec_load("tiny", &s), 0);
    struct layout *a = model_layout_create(&s, 1), *b = model_layout_create(&s, 3);
    for (int u = 0; u < a->count; u++) {
        const struct unit *ua = &a->units[u], *ub = &b->units[u];
        float *x = malloc((size_t)ua->n_pad * sizeof *x), *y = malloc((size_t)ub->n_pad * sizeof *y);
        memset(x, 0xff, (size_t)ua->n_pad * sizeof *x);
        model_init_unit(a, u, 7, x);
        model_init_unit(b, u, 7, y);
        double zero_outside = 0.0;
        for (int64_t i = 0, t = 0; i < ua->n_pad; i++) {
            while (t < ua->count && i >= ua->tensors[t].offset + ua->tensors[t].numel) t++;
            if (t == ua->count || i < ua->tensors[t].offset) zero_outside += fabs((double)x[i]);
        }
        assert_true(zero_outside == 0.0);
        for (int i = 0; i < ua->count; i++) {
            const struct tensor *t = &ua->tensors[i];
            assert_memory_equal(x + t->offset, y + ub->tensors[i].offset, (size_t)t->numel * sizeof *x);
            double std = std_of(x + t->offset, t->numel);
            bool residual = strstr(t->name, ".wo") || strstr(t->name, ".w_down");
            double wanted = t->dims == 2 ? residual ? 0.02 / sqrt(2.0 * s.layers) : 0.02 : 0.0;
            assert_true(fabs(std - wanted) <= 0.05 * wanted);
            if (t->dims == 1) assert_true(x[t->offset] == (t->init == INIT_ONES ? 1.0f : 0.0f));
        }
        model_init_unit(b, u, 8, y);
        if (ua->tensors[0].dims == 2) assert_true(x[0] != y[0]);
        free(x);
        free(y);
    }
    float *first = malloc((size_t)a->units[1].n_pad * sizeof *first);
    float *second = malloc((size_t)a->units[2].n_pad * sizeof *second);
    model_init_unit(a, 1, 7, first);
    model_init_unit(a, 2, 7, second);
    int64_t at = a->units[1].tensors[1].offset;
    assert_true(first[at] != second[at]);
    free(first);
    free(second);
    layout_destroy(&a);
    layout_destroy(&b);
}

// By hand. gpt2-124m, T=1024: a block has 4 C^2 in attention and 8 C^2 in the MLP, 7,077,888 parameters with
// C=768; 12 of them and a head of 50257 x 768 = 38,597,376 are 123,532,032, times 6 = 741,192,192.
// Attention: 12 x 12 x 1024 x 768 = 113,246,208.
// qwen2.5-0.5b: wqkv (14 + 2 x 2) x 64 x 896 = 1,032,192 (two heads of keys and values serve 14), wo 14 x 64
// x 896 = 802,816, MLP 3 x 896 x 4864 = 13,074,432: 14,909,440 a block; 24 blocks and a head of 151936 x 896
// = 136,134,656 are 493,961,216, times 6 = 2,963,767,296. Attention: 12 x 24 x 1024 x 896 = 264,241,152.
static void test_flops(void **state) {
    static const struct {
        const char *model;
        double products, attention;
    } wants[] = {{"gpt2-124m", 741192192, 113246208}, {"qwen2.5-0.5b", 2963767296, 264241152}};
    (void)state;
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        struct model_spec s;
        assert_int_equal(model_spec_load(wants[i].model, &s), 0);
        struct token_flops f = model_flops_per_token(&s, 1024);
        assert_true(f.full == wants[i].products + wants[i].attention);
        assert_true(f.causal == wants[i].products + wants[i].attention / 2);
    }
}

static void test_minimal_config(void **state) {
    struct model_spec s;
    // 7.5e9 parameters from the necessary keys alone; floats that are whole count as whole.
    assert_int_equal(
        load(state,
             "{\"model_type\":\"llama\",\"vocab_size\":3.2e4,\"hidden_size\":4096,\"num_hidden_layers\":36,"
             "\"num_attention_heads\":32,\"intermediate_size\":11008}",
             &s),
        0);
    assert_int_equal(s.vocab, 32000);
    assert_int_equal(s.kv_heads, 32);
    assert_int_equal(s.head_size, 128);
    assert_false(s.tied);
    assert_false(s.traits.qkv_bias);
    assert_true(s.bos_token == 1 && s.eos_token == 2);
    assert_true(s.init_std == 0.02f && s.norm_eps == 1e-6f && s.rope_theta == 10000.0f);
    struct layout *l = model_layout_create(&s, 64);
    assert_true(l->params > 7400000000 && l->params < 7600000000);
    layout_destroy(&l);
}

static void test_full_configs(void **state) {
    struct model_spec s, p;
    assert_int_equal(
        load(
            state,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":false,\"bos_token_id\":128000,"
            "\"eos_token_id\":[128001,128008],\"head_dim\":64,\"hidden_act\":\"silu\",\"hidden_size\":2048,"
            "\"initializer_range\":0.02,\"intermediate_size\":8192,\"max_position_embeddings\":131072,"
            "\"mlp_bias\":false,\"model_type\":\"llama\",\"num_attention_heads\":32,\"num_hidden_layers\":16,"
            "\"num_key_value_heads\":8,\"pretraining_tp\":1,\"rms_norm_eps\":1e-05,\"rope_scaling\":{"
            "\"factor\":32.0,"
            "\"high_freq_factor\":4.0,\"low_freq_factor\":1.0,\"original_max_position_embeddings\":8192,"
            "\"rope_type\":\"llama3\"},\"rope_theta\":5e5,\"tie_word_embeddings\":true,\"vocab_size\":"
            "128256}",
            &s),
        0);
    assert_int_equal(model_spec_load("llama-3.2-1b", &p), 0);
    memset(s.name, 0, sizeof s.name);
    memset(p.name, 0, sizeof p.name);
    assert_memory_equal(&s, &p, sizeof s);
    // transformers 5 writes rope_parameters.
    assert_int_equal(
        load(state,
             "{\"model_type\":\"qwen2\",\"vocab_size\":100,\"hidden_size\":24,\"num_hidden_layers\":2,"
             "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"intermediate_size\":40,"
             "\"rope_parameters\":{\"rope_theta\":1000000.0,\"rope_type\":\"linear\",\"factor\":2.0},"
             "\"layer_types\":[\"full_attention\",\"full_attention\"]}",
             &s),
        0);
    assert_true(s.traits.qkv_bias && s.rope_theta == 1e6f && s.rope_scaling == ROPE_LINEAR &&
                s.rope_factor == 2.0f);
    assert_int_equal(
        load(state,
             "{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":768,\"n_layer\":12,\"n_head\":12}",
             &s),
        0);
    assert_int_equal(s.ffn, 3072);
    assert_int_equal(s.max_positions, 1024);
    assert_true(s.tied && s.traits.qkv_bias);
}

// The writer's output is read back as the same description.
static void test_written_configs(void **state) {
    for (int i = 0; model_preset_name(i); i++) {
        struct model_spec a, b;
        assert_int_equal(model_spec_load(model_preset_name(i), &a), 0);
        char *text = written(&a, DT_BF16);
        assert_non_null(strstr(text, "bfloat16"));
        assert_int_equal(load(state, text, &b), 0);
        free(text);
        memset(a.name, 0, sizeof a.name);
        memset(b.name, 0, sizeof b.name);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

#define MISTRAL                                                                                      \
    "\"model_type\":\"mistral\",\"vocab_size\":64,\"hidden_size\":24,\"num_hidden_layers\":2,\"num_" \
    "attention_heads\":4,"                                                                           \
    "\"num_key_value_heads\":2,\"intermediate_size\":40,\"head_dim\":10"

// Mistral is LLaMA with a window; it is written back as what it was, with its window.
static void test_mistral(void **state) {
    static const struct {
        const char *text;
        int window;
        const char *written;
    } cases[] = {
        {"{" MISTRAL ",\"sliding_window\":null}", 0, "\"sliding_window\":\tnull"},
        {"{" MISTRAL ",\"sliding_window\":512}", 512, "\"sliding_window\":\t512"},
        {"{" MISTRAL "}", 4096, "\"sliding_window\":\t4096"},  // transformers' default
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_spec a, b;
        if (load(state, cases[i].text, &a)) fail_msg("%s", error_last());
        assert_int_equal(a.traits.norm, NORM_RMS);
        assert_int_equal(a.sliding_window, cases[i].window);
        assert_int_equal(a.head_size, 10);
        assert_int_equal(a.max_positions, 131072);
        assert_false(a.traits.qkv_bias || a.tied);
        char *text = written(&a, DT_F32);
        assert_non_null(strstr(text, "\"model_type\":\t\"mistral\""));
        assert_non_null(strstr(text, "\"MistralForCausalLM\""));
        assert_non_null(strstr(text, cases[i].written));
        assert_int_equal(load(state, text, &b), 0);
        assert_memory_equal(&a, &b, sizeof a);
        free(text);
    }
    expect_error(state, "{" MISTRAL ",\"sliding_window\":0}", "sliding_window");
    struct model_spec s;
    static const char by_architecture[] =
        "{\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":null,\"vocab_size\":64,\"hidden_"
        "size\":24,"
        "\"num_hidden_layers\":2,\"num_attention_heads\":16,\"head_dim\":4,\"intermediate_size\":40}";
    assert_int_equal(load(state, by_architecture, &s), 0);
    assert_string_equal(s.hf_type, "mistral");
    assert_int_equal(s.kv_heads, 8);  // the family's, where null means as many as heads
    assert_int_equal(
        load(
            state,
            "{\"model_type\":\"mistral\",\"vocab_size\":64,\"hidden_size\":24,\"num_hidden_layers\":2,"
            "\"num_attention_heads\":3,\"num_key_value_heads\":null,\"intermediate_size\":40,\"bos_token_id\":null}",
            &s),
        0);
    assert_true(s.kv_heads == 3 && s.bos_token == -1 && s.eos_token == 2);
}

// Neighbours are refused with what they would need.
static void test_neighbours(void **state) {
    char types[256], known[320];
    hf_types_text(types, sizeof types);
    snprintf(known, sizeof known, "not a model this program has; known are %s", types);
    const char *const cases[][2] = {
        {"{\"model_type\":\"qwen3\"}", "it needs an RMSNorm of each head of q and k"},
        {"{\"model_type\":\"mixtral\"}", "it needs a mixture of experts"},
        {"{\"architectures\":[\"Phi3ForCausalLM\"]}", "it needs q, k and v in one stored tensor"},
        {"{\"model_type\":\"mamba\"}", known},
        {"{\"model_type\":3}", "\"model_type\" is 3: not a model this program has"},
        {"{\"architectures\":[7]}", "\"model_type\" is missing: known are llama"},
        {"{\"architectures\":[]}", "\"model_type\" is missing: known are llama"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_error(state, cases[i][0], cases[i][1]);
}

#define LLAMA                                                                                               \
    "\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":24,\"num_hidden_layers\":2,\"intermediate_" \
    "size\":40"
#define GOOD LLAMA ",\"num_attention_heads\":3"

static void test_bad_configs(void **state) {
    struct model_spec s;
    assert_int_equal(load(state, "{" GOOD "}", &s), 0);
    expect_error(state, "", "config.json");
    expect_error(state, "{\"model_type\": ", "config.json");
    expect_error(state, "[1,2]", "object");
    expect_error(state, "{\"vocab_size\":3}", "model_type");
    expect_error(state, "{\"model_type\":\"mamba\"}", "mamba");
    expect_error(state, "{\"architectures\":[\"BertModel\"]}", "BertModel");
    expect_error(state, "{" LLAMA "}", "num_attention_heads");
    expect_error(state, "{" LLAMA ",\"num_attention_heads\":0}", "num_attention_heads");
    expect_error(state, "{" LLAMA ",\"num_attention_heads\":-3}", "num_attention_heads");
    expect_error(state, "{" LLAMA ",\"num_attention_heads\":2.5}", "2.5");
    expect_error(state, "{" LLAMA ",\"num_attention_heads\":1e30}", "num_attention_heads");
    expect_error(state, "{" LLAMA ",\"num_attention_heads\":\"3\"}", "num_attention_heads");
    expect_error(state, "{" LLAMA ",\"num_attention_heads\":5}", "does not divide");
    expect_error(state, "{" GOOD ",\"num_key_value_heads\":2}", "evenly");
    expect_error(state, "{" GOOD ",\"head_dim\":7}", "even");
    expect_error(state, "{" GOOD ",\"hidden_act\":\"gelu\"}", "gelu");
    expect_error(state, "{" GOOD ",\"attention_bias\":true}", "attention_bias");
    expect_error(state, "{" GOOD ",\"mlp_bias\":true}", "mlp_bias");
    expect_error(state, "{" GOOD ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", "yarn");
    expect_error(state, "{" GOOD ",\"rope_scaling\":{\"type\":\"linear\"}}", "factor");
    expect_error(state, "{" GOOD ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":4}}", "llama3");
    expect_error(state, "{" GOOD ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":-1}}", "factor");
    expect_error(state, "{" GOOD ",\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2}}", "dynamic");
    expect_error(state, "{" GOOD ",\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.5}}",
                 "partial_rotary_factor");
    expect_error(state, "{" GOOD ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}",
                 "layer to layer");
    expect_error(state, "{" GOOD ",\"architectures\":[\"LlamaForSequenceClassification\"]}", "next token");
    assert_int_equal(
        load(state, "{" GOOD ",\"architectures\":[\"LlamaModel\"],\"rope_parameters\":{\"rope_theta\":5e5}}",
             &s),
        0);
    assert_true(s.rope_theta == 5e5f && s.rope_scaling == ROPE_PLAIN);
    // Where both are given the older one counts, as in transformers.
    assert_int_equal(
        load(state,
             "{" GOOD
             ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_theta\":5e5}}",
             &s),
        0);
    assert_true(s.rope_theta == 1e4f && s.rope_scaling == ROPE_LINEAR);
    expect_error(state, "{" GOOD ",\"rope_theta\":0}", "rope_theta");
    expect_error(state, "{" GOOD ",\"rms_norm_eps\":\"small\"}", "rms_norm_eps");
    expect_error(state, "{" GOOD ",\"use_sliding_window\":true}", "use_sliding_window");
    expect_error(state, "{" GOOD ",\"layer_types\":[\"sliding_attention\"]}", "layer_types");
    expect_error(state, "{" GOOD ",\"quantization_config\":{\"bits\":4}}", "quantization_config");
    expect_error(state, "{" GOOD ",\"tie_word_embeddings\":1}", "tie_word_embeddings");
    expect_error(state, "{" GOOD ",\"vocab_size_\":1,\"hidden_act\":7}", "hidden_act");
    expect_error(state, "{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":10,\"n_layer\":1,\"n_head\":3}",
                 "n_head");
    expect_error(state,
                 "{\"model_type\":\"gpt2\",\"vocab_size\":9,\"n_embd\":12,\"n_layer\":1,\"n_head\":3,"
                 "\"activation_function\":\"gelu\"}",
                 "activation_function");
    expect_error(
        state,
        "{\"model_type\":\"llama\",\"vocab_size\":64,\"hidden_size\":2147483647,"
        "\"num_hidden_layers\":2147483647,\"num_attention_heads\":1,\"intermediate_size\":2147483647}",
        "hidden size");
}

static void test_unknown_model(void **state) {
    (void)state;
    struct model_spec s;
    error_quiet(1);
    assert_int_equal(model_spec_load("gpt5", &s), -1);
    error_quiet(0);
    assert_non_null(strstr(error_last(), "gpt5"));
    assert_non_null(strstr(error_last(), "(tiny demo gpt2-124m "));
    for (int i = 0; model_preset_name(i); i++) assert_non_null(strstr(error_last(), model_preset_name(i)));
    // Names of the hub, and a slip.
    static const char *const cases[][2] = {
        {"gpt2", "hf download openai-community/gpt2 --local-dir gpt2"},
        {"meta-llama/Llama-2-7b-hf", "The preset llama-2-7b has its shape"},
        {"Qwen/Qwen2.5-7B", "hf download Qwen/Qwen2.5-7B --local-dir Qwen2.5-7B"},
        {"llama2-7b", "did you mean llama-2-7b?"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error_quiet(1);
        assert_int_equal(model_spec_load(cases[i][0], &s), -1);
        error_quiet(0);
        if (!strstr(error_last(), cases[i][1]))
            fail_msg("\"%s\" should say \"%s\"", error_last(), cases[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameter_counts),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_reserved_classes),
        cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_flops),
        cmocka_unit_test_setup_teardown(test_minimal_config, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_full_configs, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_written_configs, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_mistral, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_neighbours, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_bad_configs, make_dir, remove_dir),
        cmocka_unit_test(test_unknown_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
