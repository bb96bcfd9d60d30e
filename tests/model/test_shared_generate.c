// Generation: greedy ids equal those of transformers (stored by tests/make_vectors.py), logits equal those of
// the whole model, padding and sliding change nothing that they should not, draws follow the softmax and
// repeat, memory is as predicted. STARRING_TEST_DEVICE=cuda runs the model's part on that backend.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"
#include "shared/infer/generate.h"
#include "shared/infer/generate_input.h"
#include "shared/model/model.h"
#include "tests/fixture.h"
#include "tests/model/expected.h"

#define VECTORS   "tests/data/vectors/"
#define VOCAB     37
#define TOLERANCE 2e-5f  // of a logit of about 1, fp32; the least margin of a greedy choice is 500 times that
#define MARGIN    0.01

struct rig {
    char dir[64];
    struct model_spec spec;
    struct layout *layout;
    struct device *dev;
    struct stream *compute;
};

static void rig_open(struct rig *r, const char *name) {
    const char *device = getenv("STARRING_TEST_DEVICE"), *why = "";
    const struct backend *b = backend_find(device ? device : "cpu", &why);
    if (!b) {
        printf("device: skipped: %s\n", why);
        skip();
    }
    snprintf(r->dir, sizeof r->dir, VECTORS "%s", name);
    assert_int_equal(model_spec_load(r->dir, &r->spec), 0);
    assert_int_equal(r->spec.vocab, VOCAB);
    r->layout = model_layout_create(&r->spec, 1);
    assert_int_equal(dev_open(b, &(struct device_options){.threads = 1, .label = "test"}, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
}

static void rig_close(struct rig *r) {
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
}

static struct generator_options options_of(const struct rig *r, int64_t window) {
    return (struct generator_options){.spec = &r->spec,
                                      .layout = r->layout,
                                      .dev = r->dev,
                                      .compute = r->compute,
                                      .dtype = DT_F32,
                                      .window = window};
}

static struct generator *generator_of(const struct rig *r, int64_t window) {
    struct generator_options o = options_of(r, window);
    struct hf_reader *reader = hf_open(r->dir, &r->spec, r->layout);
    assert_non_null(reader);
    struct generator *g = generator_create(&o, reader);
    assert_non_null(g);
    hf_close(&reader);
    return g;
}

static int read_ids(const cJSON *list, int32_t *out, int room) {
    int n = 0;
    const cJSON *id;
    cJSON_ArrayForEach(id, list) {
        assert_true(n < room);
        out[n++] = id->valueint;
    }
    return n;
}

// ---------------------------------------------------------------- transformers
static int check_case(struct generator *g, const char *model, const cJSON *c) {
    int32_t prompt[16], wanted[64], got[64];
    int n = read_ids(cJSON_GetObjectItem(c, "prompt"), prompt, 16);
    int count = read_ids(cJSON_GetObjectItem(c, "ids"), wanted, 64);
    // Rounding moves a logit by less than a thousandth of the margin: the ids have to be equal.
    assert_true(cJSON_GetObjectItem(c, "least_margin")->valuedouble >= MARGIN);
    struct generate_options o = {.prompt = prompt, .prompt_count = n, .count = count};
    assert_int_equal(generate(g, &o, got), count);
    for (int i = 0; i < count; i++)
        if (got[i] != wanted[i])
            fail_msg("%s, prompt of %d: token %d is %d, transformers' is %d", model, n, i, got[i], wanted[i]);
    return count;
}

static void check_greedy(const char *name, int tokens) {
    struct rig r;
    rig_open(&r, name);
    char *path = xasprintf("%s/greedy.json", r.dir);
    cJSON *root = relaxed_json_load(path);
    assert_non_null(root);
    struct generator *g = generator_of(&r, r.spec.max_positions);
    const cJSON *c;
    int checked = 0;
    cJSON_ArrayForEach(c, cJSON_GetObjectItem(root, "cases")) checked += check_case(g, name, c);
    assert_int_equal(checked, tokens);
    generator_destroy(&g);
    cJSON_Delete(root);
    free(path);
    rig_close(&r);
}

static void greedy_gpt2_is_transformers(void **state) {
    (void)state;
    check_greedy("gpt2", 12 + 10 + 8 + 6);
}
static void greedy_llama_is_transformers(void **state) {
    (void)state;
    check_greedy("llama", 160);
}
static void greedy_qwen2_is_transformers(void **state) {
    (void)state;
    check_greedy("qwen", 160);
}

// ---------------------------------------------------------------- logits
static float distance(const float *a, const float *b) {
    float most = 0;
    for (int i = 0; i < VOCAB; i++) most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

// Every prefix of the stored sequences: its last row, as PyTorch computed it in fp64.
static void logits_are_those_of_the_whole_model(void **state) {
    static const char *const names[] = {"gpt2", "llama", "qwen"};
    (void)state;
    for (int k = 0; k < 3; k++) {
        struct rig r;
        rig_open(&r, names[k]);
        char *path = xasprintf("%s/expected.safetensors", r.dir);
        struct st_file *f = st_open(path);
        const struct st_tensor *ids = st_find(f, "tokens"), *wanted = st_find(f, "logits");
        struct generator *g = generator_of(&r, r.spec.max_positions);
        int64_t T = ids->shape[1];
        double id[64], row[VOCAB];
        int32_t tokens[64];
        float got[VOCAB], reference[VOCAB];
        assert_int_equal(st_to_f64(ids, T, T, id), 0);  // the second sequence
        for (int64_t n = 0; n < T; n++) tokens[n] = (int32_t)id[n];
        for (int64_t n = 1; n <= T; n++) {
            assert_int_equal(generator_logits(g, tokens, n, got), 0);
            assert_int_equal(st_to_f64(wanted, (T + n - 1) * VOCAB, VOCAB, row), 0);
            for (int i = 0; i < VOCAB; i++) reference[i] = (float)row[i];
            if (distance(got, reference) > TOLERANCE)
                fail_msg("%s, %d tokens: off by %g", names[k], (int)n, (double)distance(got, reference));
        }
        generator_destroy(&g);
        st_close(&f);
        free(path);
        rig_close(&r);
    }
}

// Five tokens in a window of five (no padding) and of 64 (eleven to the right).
static void padding_changes_nothing(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r, "llama");
    const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
    float tight[VOCAB], wide[VOCAB], more[VOCAB];
    struct generator *small = generator_of(&r, 5), *large = generator_of(&r, 64);
    assert_int_equal(generator_logits(large, tokens, 8, more), 0);  // leaves tokens behind
    assert_int_equal(generator_logits(small, tokens, 5, tight), 0);
    assert_int_equal(generator_logits(large, tokens, 5, wide), 0);
    assert_true(distance(tight, wide) <= TOLERANCE);
    assert_true(distance(more, wide) > MARGIN);
    generator_destroy(&small);
    generator_destroy(&large);
    rig_close(&r);
}

// Tokens before the window have no effect, and positions start from zero in it.
static void window_slides(void **state) {
    static const char *const names[] = {"gpt2", "llama"};
    enum { WINDOW = 6, COUNT = 20 };
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct rig r;
        rig_open(&r, names[k]);
        int32_t all[3 + COUNT] = {7, 30, 2};
        float slid[VOCAB], alone[VOCAB], whole[VOCAB];
        struct generator *g = generator_of(&r, WINDOW), *wide = generator_of(&r, r.spec.max_positions);
        struct generate_options o = {.prompt = all, .prompt_count = 3, .count = COUNT};
        assert_int_equal(generate(g, &o, all + 3), COUNT);
        for (int n = 3; n < 3 + COUNT; n++) {
            int first = n > WINDOW ? n - WINDOW : 0;
            assert_int_equal(generator_logits(wide, all + first, n - first, alone), 0);
            assert_int_equal(generator_logits(g, all, n, slid), 0);
            assert_true(distance(slid, alone) <= TOLERANCE);
            assert_int_equal(sample_argmax(slid, VOCAB), all[n]);
        }
        assert_int_equal(generator_logits(wide, all, WINDOW + 4, whole), 0);
        assert_int_equal(generator_logits(g, all, WINDOW + 4, slid), 0);
        assert_true(distance(slid, whole) > MARGIN);
        generator_destroy(&g);
        generator_destroy(&wide);
        rig_close(&r);
    }
}

static void memory_is_predicted_and_holds_no_gradients(void **state) {
    static const char *const names[] = {"gpt2", "llama"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct rig r;
        rig_open(&r, names[k]);
        size_t predicted[MEM_CLASSES], training[MEM_CLASSES];
        struct generator_options o = options_of(&r, 12);
        float logits[VOCAB];
        const int32_t tokens[] = {1, 2};
        generator_predict(&o, predicted);
        model_predict(
            &(struct model_options){
                .spec = &r.spec, .layout = r.layout, .dtype = DT_F32, .batch = 1, .seq = o.window},
            training);
        struct generator *g = generator_of(&r, o.window);
        assert_int_equal(generator_logits(g, tokens, 2, logits), 0);
        struct mem_usage usage;
        dev_usage(r.dev, &usage);
        for (int c = 0; c < MEM_CLASSES; c++) assert_int_equal(usage.peak_bytes[c], predicted[c]);
        assert_int_equal(predicted[MEM_GRADIENT] + predicted[MEM_MASTER] + predicted[MEM_OPTIMIZER], 0);
        assert_true(2 * predicted[MEM_ACTIVATION] < training[MEM_ACTIVATION]);
        generator_destroy(&g);
        dev_usage(r.dev, &usage);
        for (int c = 0; c < MEM_CLASSES; c++) assert_int_equal(usage.current_bytes[c], 0);
        rig_close(&r);
    }
}

// ---------------------------------------------------------------- the loop
static int until_third(void *ctx, int32_t token) {
    (void)token;
    return ++*(int *)ctx == 3;
}

static void seeds_repeat_and_ends_end(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r, "llama");
    const int32_t prompt[] = {5};
    int32_t a[30], b[30], c[30];
    struct generator *g = generator_of(&r, 40);
    struct generate_options o = {
        .prompt = prompt, .prompt_count = 1, .count = 30, .sample = {.temperature = 1.0, .seed = 3}};
    assert_int_equal(generate(g, &o, a), 30);
    assert_int_equal(generate(g, &o, b), 30);
    assert_memory_equal(a, b, sizeof a);
    o.sample.seed = 4;
    assert_int_equal(generate(g, &o, c), 30);
    assert_memory_not_equal(a, c, sizeof a);
    // The first token that differs from its predecessors, taken for an end: it is the last one.
    int at = 1;
    while (a[at] == a[0]) at++;
    o.sample.seed = 3;
    o.end = &a[at];
    o.end_count = 1;
    assert_int_equal(generate(g, &o, b), at + 1);
    int told = 0;
    o.end_count = 0;
    o.on_token = until_third;
    o.ctx = &told;
    assert_int_equal(generate(g, &o, b), 3);
    // top_k 1 at any temperature is greedy.
    struct generate_options greedy = {.prompt = prompt, .prompt_count = 1, .count = 30};
    assert_int_equal(generate(g, &greedy, a), 30);
    greedy.sample = (struct sample_options){.temperature = 5.0, .top_k = 1, .seed = 9};
    assert_int_equal(generate(g, &greedy, b), 30);
    assert_memory_equal(a, b, sizeof a);
    generator_destroy(&g);
    rig_close(&r);
}

// ---------------------------------------------------------------- sampling
static void argmax_takes_the_lowest_of_equals(void **state) {
    (void)state;
    const float logits[] = {1, 3, -INFINITY, 3, 2};
    assert_int_equal(sample_argmax(logits, 5), 1);
    assert_int_equal(sample_argmax((const float[]){1, NAN, 2}, 3), -1);
    assert_int_equal(sample_argmax((const float[]){-INFINITY, -INFINITY}, 2), -1);
    assert_int_equal(sample_argmax((const float[]){0, INFINITY}, 2), -1);
    assert_int_equal(
        sample_token((const float[]){1, NAN, 2}, 3, &(struct sample_options){.temperature = 1}, 0), -1);
}

static void count_draws(const float *logits, int n, const struct sample_options *o, int draws, int *count) {
    memset(count, 0, (size_t)n * sizeof *count);
    for (int i = 0; i < draws; i++) count[sample_token(logits, n, o, i)]++;
}

static void draws_follow_the_softmax(void **state) {
    (void)state;
    enum { DRAWS = 40000 };
    const float logits[] = {0.5f, -1.0f, 2.0f, 1.0f, -INFINITY};
    struct sample_options o = {.temperature = 0.7, .seed = 11};
    double p[5], sum = 0;
    int count[5];
    for (int i = 0; i < 5; i++) sum += p[i] = exp(logits[i] / o.temperature);
    count_draws(logits, 5, &o, DRAWS, count);
    for (int i = 0; i < 5; i++) {
        double q = p[i] / sum;
        assert_true(fabs(count[i] - DRAWS * q) <= 4.0 * sqrt(DRAWS * q * (1.0 - q)));
    }
    // Only the two highest, in the same proportion to each other.
    o.top_k = 2;
    count_draws(logits, 5, &o, DRAWS, count);
    double q = p[2] / (p[2] + p[3]);
    assert_int_equal(count[2] + count[3], DRAWS);
    assert_true(fabs(count[2] - DRAWS * q) <= 4.0 * sqrt(DRAWS * q * (1.0 - q)));
}

static void top_k_takes_lower_ids_of_equals(void **state) {
    (void)state;
    const float logits[] = {1, 2, 1, 1, 1};
    struct sample_options o = {.temperature = 100, .top_k = 3};
    int count[5];
    count_draws(logits, 5, &o, 3000, count);
    assert_true(count[0] > 800 && count[1] > 800 && count[2] > 800);
    assert_int_equal(count[3] + count[4], 0);
    // More than there are, and a temperature that leaves one.
    o.top_k = 50;
    count_draws(logits, 5, &o, 3000, count);
    assert_true(count[4] > 400);
    o.temperature = 1e-3;
    count_draws(logits, 5, &o, 1000, count);
    assert_int_equal(count[1], 1000);
}

// ---------------------------------------------------------------- prompts, directories
static void prompts_are_bytes_or_ids(void **state) {
    (void)state;
    struct prompt p;
    assert_int_equal(prompt_read(&p, "a\xc3\xa4", NULL, 256), 0);
    assert_true(p.bytes && p.count == 3 && p.ids[0] == 'a' && p.ids[1] == 0xc3 && p.ids[2] == 0xa4);
    prompt_free(&p);
    assert_int_equal(prompt_read(&p, NULL, " 1,2 ,36\n", VOCAB), 0);
    assert_true(!p.bytes && p.count == 3 && p.ids[0] == 1 && p.ids[2] == 36);
    prompt_free(&p);
    static const char *const wrong[][2] = {
        {"", "empty"},     {" , ", "empty"},   {"1,x", "\"x\""},   {"1,37", "0 to 36"},
        {"-1", "0 to 36"}, {"3.5", "\"3.5\""}, {"1;2", "\"1;2\""}, {"99999999999999999999", "not a token"}};
    error_quiet(1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(prompt_read(&p, NULL, wrong[i][0], VOCAB), -1);
        if (!strstr(error_last(), wrong[i][1]) || !strstr(error_last(), "--prompt-ids"))
            fail_msg("\"%s\": %s", wrong[i][0], error_last());
        prompt_free(&p);
    }
    assert_int_equal(prompt_read(&p, "", NULL, 256), -1);
    assert_non_null(strstr(error_last(), "--prompt: is empty"));
    prompt_free(&p);
    error_quiet(0);
}

static void write_file(const char *dir, const char *name, const char *text) {
    assert_int_equal(fixture_write(dir, name, text), 0);
}

static void ends_are_found(void **state) {
    (void)state;
    char dir[64];
    struct generate_source s;
    assert_int_equal(fixture_folder(dir, "generate"), 0);
    write_file(dir, "model.safetensors", "");
    write_file(dir, "config.json", "{\"eos_token_id\": 5}");
    assert_int_equal(source_open(&s, dir), 0);
    assert_true(s.end_count == 1 && s.end[0] == 5);
    source_close(&s);
    // The generation's own list goes before it.
    write_file(dir, "generation_config.json", "{\"eos_token_id\": [7, 9]}");
    assert_int_equal(source_open(&s, dir), 0);
    assert_true(s.end_count == 2 && s.end[0] == 7 && s.end[1] == 9 && s.train_seq == 0);
    source_close(&s);
    write_file(dir, "generation_config.json", "{\"eos_token_id\": \"</s>\"}");
    error_quiet(1);
    assert_int_equal(source_open(&s, dir), -1);
    assert_non_null(strstr(error_last(), "generation_config.json: eos_token_id"));
    error_quiet(0);
    source_close(&s);
    assert_int_equal(fixture_remove(dir), 0);
}

// A run's directory: its weights, and how it was trained.
static void runs_say_how_they_were_trained(void **state) {
    (void)state;
    char dir[64];
    struct generate_source s;
    assert_int_equal(fixture_folder(dir, "generate"), 0);
    char *weights = xasprintf("%s/weights", dir);
    assert_int_equal(mkdir(weights, 0777), 0);
    write_file(dir, "config.json", "{\"data\": {\"seq_len\": 64, \"tokenizer\": \"byte\"}}");
    write_file(weights, "config.json", "{\"eos_token_id\": null}");
    assert_int_equal(source_open(&s, dir), 0);
    assert_string_equal(s.dir, weights);
    assert_true(s.train_seq == 64 && s.trained_on_bytes && s.end_count == 0);
    source_close(&s);
    write_file(dir, "config.json", "{\"data\": {\"seq_len\": 32, \"tokenizer\": null}}");
    assert_int_equal(source_open(&s, dir), 0);
    assert_true(s.train_seq == 32 && !s.trained_on_bytes);
    source_close(&s);
    assert_int_equal(fixture_remove(dir), 0);
    free(weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_gpt2_is_transformers),
        cmocka_unit_test(greedy_llama_is_transformers),
        cmocka_unit_test(greedy_qwen2_is_transformers),
        cmocka_unit_test(logits_are_those_of_the_whole_model),
        cmocka_unit_test(padding_changes_nothing),
        cmocka_unit_test(window_slides),
        cmocka_unit_test(memory_is_predicted_and_holds_no_gradients),
        cmocka_unit_test(seeds_repeat_and_ends_end),
        cmocka_unit_test(argmax_takes_the_lowest_of_equals),
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(top_k_takes_lower_ids_of_equals),
        cmocka_unit_test(prompts_are_bytes_or_ids),
        cmocka_unit_test(ends_are_found),
        cmocka_unit_test(runs_say_how_they_were_trained),
    };
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
