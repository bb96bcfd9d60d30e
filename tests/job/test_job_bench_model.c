// starring bench kernels --model: the operations of that model and no others, at its sizes, on the CPU and on
// the emulated CUDA device; what is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

// Whether a row of the operation has this shape; fails with the rows there are when it must and has not.
static bool has_row(const cJSON *j, const char *operation, const char *shape) {
    const cJSON *row;
    cJSON_ArrayForEach(row, job_item(j, "operations")) {
        if (job_number(row, "seconds") <= 0) fail_msg("%s takes no time", job_text(row, "operation"));
        if (!strcmp(job_text(row, "operation"), operation) &&
            (!shape || !strcmp(job_text(row, "shape"), shape)))
            return true;
    }
    return false;
}

static void expect_rows(const cJSON *j, const char *const rows[][2]) {
    for (int i = 0; rows[i][0]; i++)
        if (!has_row(j, rows[i][0], rows[i][1]))
            fail_msg("no row %s %s in\n%s", rows[i][0], rows[i][1], cJSON_Print(j));
}

static const char qwen[] =
    "{\"model_type\": \"qwen2\", \"vocab_size\": 101, \"hidden_size\": 48, \"num_hidden_layers\": 2,"
    "\"num_attention_heads\": 6, \"num_key_value_heads\": 2, \"intermediate_size\": 88,"
    "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true, \"rms_norm_eps\": 1e-6}";
static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 77, \"n_embd\": 40, \"n_layer\": 1, \"n_head\": 5,"
    "\"n_positions\": 24}";

static const char *const qwen_rows[][2] = {{"embed_fwd", "R=32 C=48 V=101"},
                                           {"embed_bwd", "R=32 C=48 V=101"},
                                           {"norm_fwd", "R=32 C=48 RMS, residual"},
                                           {"norm_bwd", "R=32 C=48 RMS, residual"},
                                           {"rope", "B=2 T=16 H=6 KV=2 D=8"},
                                           {"rope", "B=2 T=16 H=6 KV=2 D=8, bias"},
                                           {"swiglu_bwd", "R=32 F=88"},
                                           {"xent", "R=32 V=101, gradient"},
                                           {"matmul", "32x80x48 qkv"},
                                           {"matmul", "32x48x48 attention's"},
                                           {"matmul", "32x176x48 gate and up"},
                                           {"matmul", "176x48x32 gate and up, weight grad"},
                                           {"matmul", "32x88x48 down, input grad"},
                                           {NULL, NULL}};
static const char *const gpt2_rows[][2] = {{"embed_bwd", "R=48 C=40 V=77"},
                                           {"norm_fwd", "R=48 C=40 layer, residual"},
                                           {"norm_bwd", "R=48 C=40 layer, residual"},
                                           {"bias_grad", "R=48 N=120"},
                                           {"bias_grad", "R=48 N=40"},
                                           {"bias_grad", "R=48 N=160"},
                                           {"gelu_bwd", "n=7680"},
                                           {"matmul", "48x160x40 up, GELU"},
                                           {"matmul", "48x160x40 down, input grad, GELU"},
                                           {"matmul", "40x160x48 down, weight grad"},
                                           {NULL, NULL}};

static char *write_model(const struct job_place *p, const char *name, const char *json) {
    char *path = xasprintf("%s/%s.json", p->dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(json, f);
    assert_int_equal(fclose(f), 0);
    return path;
}

// The operations of a model, and no others, at its sizes; on a GPU the head's products run over whole lines.
static void a_models_kernels_have_its_sizes(void **state) {
    char *a = write_model(*state, "qwen", qwen), *b = write_model(*state, "gpt2", gpt2);
    bool emulated = job_emulate(*state, 1);
    for (int gpu = 0; gpu <= emulated; gpu++) {
        const char *device = gpu ? "cuda" : "cpu --threads 1";
        char *words = xasprintf(
            "kernels --device %s --rounds 1 --matmul 16 --elements 4096 --batch 2 --seq 16 --model %s",
            device, a);
        cJSON *j = job_json(*state, "bench %s --json", words);
        expect_rows(j, qwen_rows);
        assert_true(has_row(j, "matmul", gpu ? "32x128x48 logits" : "32x101x48 logits"));
        assert_false(has_row(j, "gelu_fwd", NULL) || has_row(j, "bias_grad", NULL));
        assert_false(has_row(j, "norm_fwd", "R=32 C=48 layer, residual"));
        assert_true(job_number(j, "head_chunk_rows") == 32 && job_number(j, "batch") == 2 &&
                    job_number(j, "seq") == 16);
        assert_string_equal(job_text(j, "model"), a);
        cJSON_Delete(j);
        free(words);
        words = xasprintf("kernels --device %s --rounds 1 --matmul 16 --elements 4096 --batch 2 --model %s",
                          device, b);
        j = job_json(*state, "bench %s --json", words);  // as many tokens as it has positions
        expect_rows(j, gpt2_rows);
        assert_false(has_row(j, "rope", NULL) || has_row(j, "swiglu_fwd", NULL));
        cJSON_Delete(j);
        free(words);
    }
    free(a);
    free(b);
}

static void a_wrong_model_is_named(void **state) {
    static const struct {
        const char *words, *text;
        int status;
    } wrong[] = {
        {"--model nobody", "nobody", 2},
        {"--batch 4", "give --model", 2},
        {"--model gpt2-124m --seq 1025", "up to 1024 tokens", 2},
        {"--model tiny --batch 0", "--batch", 2},
        {"--model llama-2-7b --batch 1000000", "smaller --batch", 1},
        {"--dtype fp32 --set cpu.kernel=fma", "cpu.kernel fma: it is about products of bf16", 2},
        {"--set cpu.kernel=neon", "\"avx512_bf16\"", 2},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct job_output o = job_run(*state, "bench kernels --device cpu %s", wrong[i].words);
        if (o.status != wrong[i].status || !strstr(o.err, wrong[i].text))
            fail_msg("bench kernels %s: status %d, \"%s\"", wrong[i].words, o.status, o.err);
        job_output_free(&o);
    }
    struct job_output o = job_run(
        *state, "bench kernels --device cpu --rounds 1 --matmul 16 --elements 4096 --model tiny --seq 8");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "a step of tiny: 1 x 8 tokens, logits in chunks of 8 rows"));
    job_output_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_models_kernels_have_its_sizes, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_wrong_model_is_named, job_setup, job_teardown),
    };
    return cmocka_run_group_tests_name("bench kernels --model", tests, NULL, NULL);
}
