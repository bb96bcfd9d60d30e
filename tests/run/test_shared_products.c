// Tables of measured products: what is written is read back, what is wrong is named; and workers whose
// devices were given other choices find out, whoever they are.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "kernels/backend.h"
#include "shared/bench/bench_tune.h"
#include "shared/core/error.h"
#include "shared/device/product_choice.h"
#include "shared/device/product_table.h"
#include "shared/hf/presets.h"
#include "tests/fixture.h"

struct place {
    char dir[64], path[80];
};

static int open_place(void **state) {
    struct place *p = calloc(1, sizeof *p);
    if (fixture_folder(p->dir, "products")) return -1;
    snprintf(p->path, sizeof p->path, "%s/table.json", p->dir);
    *state = p;
    return 0;
}
static int close_place(void **state) {
    struct place *p = *state;
    int rc = fixture_remove(p->dir);
    free(p);
    return rc;
}

static struct product_entry entry(int64_t m, const char *device, size_t library, uint64_t algo) {
    struct product_entry e;
    memset(&e, 0, sizeof e);
    e.choice.key = (struct product_key){.m = m,
                                        .n = 768,
                                        .k = INT64_C(1) << 40,
                                        .lda = 5,
                                        .ldb = 6,
                                        .ldc = 7,
                                        .a_align = 16,
                                        .b_align = 8,
                                        .c_align = 4,
                                        .aux_align = 2,
                                        .trans_b = 1,
                                        .epilogue = EPILOGUE_GELU,
                                        .dt = DT_BF16};
    for (int i = 0; i < PRODUCT_ALGO_WORDS; i++) e.choice.algo.word[i] = algo * (uint64_t)(i + 1);
    snprintf(e.device, sizeof e.device, "%s", device);
    e.sm = 90;
    e.library = library;
    e.rank = 3;
    e.first_s = 0.002;
    e.best_s = 0.001;
    return e;
}

static void what_is_written_is_read(void **state) {
    const struct place *p = *state;
    struct product_table t = {0}, again;
    struct product_entry a = entry(1, "NVIDIA H200", 130000, 0x8000000000000001u),
                         b = entry(2, "NVIDIA H200", 130000, 7), c = entry(1, "NVIDIA H100", 130000, 8),
                         d = entry(1, "NVIDIA H200", 130001, 9);
    product_table_put(&t, &a);
    product_table_put(&t, &b);
    product_table_put(&t, &c);
    product_table_put(&t, &d);
    assert_int_equal(t.count, 4);
    b.choice.algo.word[0]++;
    product_table_put(&t, &b);  // in its own place
    assert_int_equal(t.count, 4);
    assert_int_equal(product_table_writable(p->path), 0);
    assert_int_equal(product_table_write(p->path, &t), 0);
    assert_int_equal(product_table_read(p->path, &again), 0);
    assert_int_equal(again.count, 4);
    const struct product_entry *expected[] = {&a, &b, &c, &d};
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(&again.entries[i].choice, &expected[i]->choice, sizeof a.choice);
        assert_string_equal(again.entries[i].device, expected[i]->device);
        assert_true(again.entries[i].sm == 90 && again.entries[i].library == expected[i]->library);
        assert_true(again.entries[i].rank == 3 && again.entries[i].first_s > again.entries[i].best_s);
    }
    product_table_free(&again);
    product_table_free(&t);
}

// Each part of an entry is part of its hash, but what was measured is not.
static void a_hash_is_of_all_that_matters(void **state) {
    (void)state;
    struct product_entry e = entry(1, "NVIDIA H200", 130000, 5);
    const uint64_t hash = product_entry_hash(&e);
    struct product_entry other[8];
    for (int i = 0; i < 8; i++) other[i] = e;
    other[0].choice.key.m++;
    other[1].choice.key.trans_a = 1;
    other[2].choice.key.epilogue = EPILOGUE_NONE;
    other[3].choice.key.dt = DT_F16;
    other[4].choice.algo.word[PRODUCT_ALGO_WORDS - 1] ^= 1;
    other[5].sm = 80;
    other[6].library++;
    other[7].device[0] = 'n';
    for (int i = 0; i < 8; i++)
        if (product_entry_hash(&other[i]) == hash) fail_msg("change %d does not change the hash", i);
    e.first_s = 1;
    e.rank = 0;
    assert_true(product_entry_hash(&e) == hash);
}

static void put_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static char *get_text(const char *path) {
    char *text = calloc(1, 1 << 16);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

static void expect_refused(const char *path, const char *text, const char *what) {
    struct product_table t;
    put_text(path, text);
    error_clear();
    assert_int_equal(product_table_read(path, &t), -1);
    product_table_free(&t);
    if (!strstr(error_last(), path) || !strstr(error_last(), what))
        fail_msg("not \"%s\": %s", what, error_last());
}

static void what_is_wrong_is_named(void **state) {
    const struct place *p = *state;
    static const struct {
        const char *key, *value, *what;
    } edits[] = {
        {"m", "0", "products[0].m: expected a whole number of at least 1, got 0"},
        {"m", "2", "products[0]: its check does not fit"},
        {"k", "1.5", "products[0].k: expected a whole number"},
        {"b_align", "4294967296", "products[0].b_align"},
        {"trans_a", "1", "products[0].trans_a: expected true or false"},
        {"trans_a", "true", "its check does not fit"},
        {"epilogue", "\"relu\"", "products[0].epilogue: expected none, gelu, gelu_grad or bias_grad"},
        {"dtype", "\"fp8\"", "products[0].dtype: expected fp32, bf16 or fp16"},
        {"dtype", "\"int64\"", "products[0].dtype: expected fp32, bf16 or fp16"},
        {"device", "\"\"", "products[0].device"},
        {"device", "\"NVIDIA H100\"", "its check does not fit"},
        {"cublaslt", "130001", "its check does not fit"},
        {"algorithm", "\"12\"", "products[0].algorithm: expected 8 words of 16 hexadecimal digits"},
        {"algorithm", "null", "products[0].algorithm"},
        {"check", "\"0000000000000000\"", "its check does not fit"},
        {"check", NULL, "its check does not fit"},
        {"lda", NULL, "products[0].lda: expected a whole number of at least 1, got nothing"},
    };
    struct product_table t = {0};
    struct product_entry e = entry(1, "NVIDIA H200", 130000, 5);
    product_table_put(&t, &e);
    assert_int_equal(product_table_write(p->path, &t), 0);
    char *whole = get_text(p->path);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        cJSON *root = cJSON_Parse(whole);
        cJSON *o = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "products"), 0);
        cJSON_DeleteItemFromObject(o, edits[i].key);
        if (edits[i].value) cJSON_AddItemToObject(o, edits[i].key, cJSON_Parse(edits[i].value));
        char *text = cJSON_Print(root);
        expect_refused(p->path, text, edits[i].what);
        free(text);
        cJSON_Delete(root);
    }
    cJSON *root = cJSON_Parse(whole), *list = cJSON_GetObjectItem(root, "products");
    cJSON_AddItemToArray(list, cJSON_Duplicate(cJSON_GetArrayItem(list, 0), 1));
    char *twice = cJSON_Print(root);
    expect_refused(p->path, twice, "products[0] and products[1] are of the same product");
    whole[strlen(whole) / 2] = 0;
    expect_refused(p->path, whole, "end of the text");
    expect_refused(p->path, "{\"format\": \"starring tokens\"}", "no table of products");
    expect_refused(p->path, "[]", "no table of products");
    expect_refused(p->path, "{\"format\": \"starring products\", \"version\": 2, \"products\": []}",
                   "another version");
    struct product_table absent;
    unlink(p->path);
    assert_int_equal(product_table_read(p->path, &absent), -1);
    assert_int_equal(product_table_writable("/nowhere/table.json"), -1);
    assert_non_null(strstr(error_last(), "--out"));
    free(twice);
    cJSON_Delete(root);
    free(whole);
    product_table_free(&t);
}

// ---------------------------------------------------------------- workers compare

#define RANKS 3
#define SUMS  9
static double given[RANKS][SUMS];

// The first round notes what each rank has to say and ends there, the second answers with the sum.
static int note_sum(struct topology *t, double *values, int count) {
    assert_int_equal(count, SUMS);
    memcpy(given[t->rank], values, sizeof given[0]);
    return -1;
}
static int add_up(struct topology *t, double *values, int count) {
    (void)t;
    for (int i = 0; i < count; i++) {
        values[i] = 0;
        for (int r = 0; r < RANKS; r++) values[i] += given[r][i];
    }
    return 0;
}

// How many of the ranks refuse.
static int refusals(const uint64_t hash[RANKS], const enum device_kind device[RANKS]) {
    static const struct topology_ops noting = {.sum = note_sum}, adding = {.sum = add_up};
    int count = 0;
    for (int round = 0; round < 2; round++)
        for (int r = 0; r < RANKS; r++) {
            struct topology t = {.ops = round ? &adding : &noting, .rank = r, .size = RANKS};
            struct config c = {.device = device[r]};
            struct products p = {.hash = hash[r], .choices = 1};
            int rc = products_compare(&c, &t, &p);
            if (round == 1) count -= rc;
        }
    return count;
}

static void unlike_choices_are_refused_by_all(void **state) {
    (void)state;
    static const enum device_kind gpus[RANKS] = {DEVICE_CUDA, DEVICE_CUDA, DEVICE_CUDA},
                                  mixed[RANKS] = {DEVICE_CUDA, DEVICE_CPU, DEVICE_CUDA};
    const uint64_t h = 0xfedcba9876543210u;
    assert_int_equal(refusals((uint64_t[]){h, h, h}, gpus), 0);
    assert_int_equal(refusals((uint64_t[]){0, 0, 0}, gpus), 0);
    assert_int_equal(refusals((uint64_t[]){UINT64_MAX, UINT64_MAX, UINT64_MAX}, gpus), 0);
    assert_int_equal(refusals((uint64_t[]){h, h, h ^ 1}, gpus), RANKS);
    assert_int_equal(refusals((uint64_t[]){h, h, h ^ UINT64_C(1) << 63}, gpus), RANKS);
    assert_int_equal(refusals((uint64_t[]){h, 0, h}, gpus), RANKS);
    // The one in the middle is the mean of the others.
    assert_int_equal(refusals((uint64_t[]){h - 1, h, h + 1}, gpus), RANKS);
    // A worker on a CPU has no table.
    assert_int_equal(refusals((uint64_t[]){h, 0, h}, mixed), 0);
    assert_int_equal(refusals((uint64_t[]){h, 0, h + 1}, mixed), RANKS);
    struct topology alone = {.size = 1};
    assert_int_equal(
        products_compare(&(struct config){.device = DEVICE_CUDA}, &alone, &(struct products){.hash = h}), 0);
}

// ---------------------------------------------------------------- what a product is for

static void expect_purpose(const struct model_spec *s, struct product_key k, const char *text) {
    char found[PRODUCT_PURPOSE_BYTES];
    assert_string_equal(product_purpose(found, s, &k), text);
}

static void products_are_named(void **state) {
    (void)state;
    struct model_spec s;
    assert_int_equal(model_spec_load("gpt2-124m", &s), 0);
    expect_purpose(&s, (struct product_key){.m = 32, .n = 2304, .k = 768, .trans_b = 1}, "qkv, forward");
    expect_purpose(&s, (struct product_key){.m = 32, .n = 768, .k = 768}, "attention out, gradient of x");
    expect_purpose(
        &s, (struct product_key){.m = 32, .n = 3072, .k = 768, .trans_b = 1, .epilogue = EPILOGUE_GELU},
        "mlp up, forward, GELU");
    expect_purpose(&s, (struct product_key){.m = 32, .n = 3072, .k = 768, .epilogue = EPILOGUE_GELU_GRAD},
                   "mlp down, gradient of x, GELU's slope");
    expect_purpose(&s, (struct product_key){.m = 768, .n = 3072, .k = 32, .trans_a = 1, .accumulate = 1},
                   "mlp down, gradient of w, added");
    // Rows of logits may be longer than the vocabulary.
    expect_purpose(&s, (struct product_key){.m = 32, .n = 50257, .k = 768, .trans_b = 1}, "head, forward");
    expect_purpose(&s, (struct product_key){.m = 50304, .n = 768, .k = 32, .trans_a = 1},
                   "head, gradient of w");
    expect_purpose(&s, (struct product_key){.m = 32, .n = 11, .k = 12}, "-");
    assert_int_equal(model_spec_load("qwen2.5-0.5b", &s), 0);
    expect_purpose(&s, (struct product_key){.m = 32, .n = 1152, .k = 896, .trans_b = 1}, "qkv, forward");
    expect_purpose(&s, (struct product_key){.m = 32, .n = 896, .k = 9728}, "mlp gate, up, gradient of x");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, open_place, close_place),
        cmocka_unit_test(a_hash_is_of_all_that_matters),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_named, open_place, close_place),
        cmocka_unit_test(unlike_choices_are_refused_by_all),
        cmocka_unit_test(products_are_named),
    };
    return cmocka_run_group_tests_name("shared: tables of products", tests, NULL, NULL);
}
