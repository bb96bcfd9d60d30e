// The program with --device cuda on the emulated device: the oracle (--topology local) trains as on a CPU,
// repeats bit for bit, whatever the streams' timing, and counts its memory to the byte. Rings and stars on it
// have programs of their own.
#include <math.h>
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

#define STEPS  4
#define DELAYS "400"  // the longest one, in microseconds

struct outcome {
    char *curve;
    char hash[20];
    double loss[STEPS];
    cJSON *summary;
};

struct setting {
    const char *model, *dtype;
    double tolerance;  // of a loss, relative, against the CPU
    const char *more;  // options; NULL: none
};

static void read_losses(const char *curve, double *loss) {
    int step = 0;
    for (const char *at = curve; (at = strstr(at, "\"loss\":")) != NULL && step < STEPS; at++)
        loss[step++] = strtod(at + strlen("\"loss\":"), NULL);
    assert_int_equal(step, STEPS);
}

// fp16 starts with a scale that overflows: a skip, then updates. Two micro-batches: gradients accumulate in their own type.
static struct job_output run(const struct job_place *p, const struct setting *s, const char *device) {
    return job_run(
        p,
        "train --model %s --data data.txt --dtype %s --topology local --device %s --steps %d --seq 16 "
        "--batch 1 --lr 0.01 --threads 1 --set gradient_clipping=0.5 --set eval_batches=1 --set "
        "gradient_accumulation_steps=2 --set data_types.grad_accum_dtype=%s --set fp16.initial_scale_power=19 --set fp16.hysteresis=1 --set "
        "fp16.loss_scale_window=2 --set memory.check=off --no-weights --quiet --out run --force %s",
        s->model, s->dtype, device, STEPS, s->dtype, s->more ? s->more : "");
}

static struct outcome train(const struct job_place *p, const struct setting *s, const char *device) {
    struct outcome o = {0};
    struct job_output out = run(p, s, device);
    if (out.status) fail_msg("%s, %s on %s: status %d\n%s", s->model, s->dtype, device, out.status, out.err);
    if (strstr(out.err, "emulated CUDA:")) fail_msg("%s, %s: %s", s->model, s->dtype, out.err);
    job_output_free(&out);
    o.summary = job_summary(p, "run");
    o.curve = job_curve(p, "run");
    read_losses(o.curve, o.loss);
    snprintf(o.hash, sizeof o.hash, "%s", cJSON_GetObjectItem(o.summary, "weights_hash")->valuestring);
    return o;
}

static void outcome_free(struct outcome *o) {
    cJSON_Delete(o->summary);
    free(o->curve);
}

static void assert_repeats(const struct job_place *p, const struct setting *s, const struct outcome *first,
                           const char *when) {
    struct outcome again = train(p, s, "cuda");
    if (strcmp(again.curve, first->curve) != 0 || strcmp(again.hash, first->hash) != 0)
        fail_msg("%s, %s, %s:\n%s%s\n-- is not --\n%s%s", s->model, s->dtype, when, again.curve, again.hash,
                 first->curve, first->hash);
    outcome_free(&again);
}

static void assert_counted(const struct outcome *o) {
    const cJSON *rank = cJSON_GetArrayItem(cJSON_GetObjectItem(o->summary, "memory"), 0), *class;
    assert_non_null(rank);
    double total = 0;
    cJSON_ArrayForEach(class, cJSON_GetObjectItem(rank, "predicted")) {
        double peak = cJSON_GetObjectItem(cJSON_GetObjectItem(rank, "peak"), class->string)->valuedouble;
        if (peak != class->valuedouble)
            fail_msg("%s: predicted %.0f, measured %.0f", class->string, class->valuedouble, peak);
        total += peak;
    }
    assert_true(total > 100000);
    assert_true(cJSON_GetObjectItem(rank, "late_allocations")->valuedouble == 0);
}

static void check(const struct job_place *p, const struct setting *s) {
    struct outcome cpu = train(p, s, "cpu"), cuda = train(p, s, "cuda");
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(cuda.loss[i] - cpu.loss[i]) <= s->tolerance * cpu.loss[i]))
            fail_msg("%s, %s, step %d: loss %.7f on the GPU, %.7f on the CPU", s->model, s->dtype, i + 1,
                     cuda.loss[i], cpu.loss[i]);
    assert_true(cuda.loss[STEPS - 1] < cuda.loss[0]);
    assert_int_equal(cJSON_GetObjectItem(cuda.summary, "skipped")->valueint,
                     cJSON_GetObjectItem(cpu.summary, "skipped")->valueint);
    assert_counted(&cuda);
    assert_repeats(p, s, &cuda, "a second time");
    setenv("EMULATED_CUDA_DELAY_US", DELAYS, 1);
    for (int seed = 1; seed <= 3; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("EMULATED_CUDA_SEED", text, 1);
        assert_repeats(p, s, &cuda, "with delays");
    }
    unsetenv("EMULATED_CUDA_DELAY_US");
    unsetenv("EMULATED_CUDA_SEED");
    outcome_free(&cpu);
    outcome_free(&cuda);
}

static void fp32_trains_as_on_a_cpu(void **state) {
    check(*state, &(struct setting){"gpt2.json", "fp32", 1e-5, NULL});
    check(*state, &(struct setting){"llama.json", "fp32", 1e-5, NULL});
}

static void bf16_trains_as_on_a_cpu(void **state) {
    check(*state, &(struct setting){"gpt2.json", "bf16", 2e-3, NULL});
    check(*state, &(struct setting){"llama.json", "bf16", 2e-3, NULL});
}

static void fp16_trains_as_on_a_cpu(void **state) {
    check(*state, &(struct setting){"llama.json", "fp16", 3e-4, NULL});
}

static void write_deep(const struct job_place *p, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", p->dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    free(path);
}

// Blocks computed again, and their inputs on their way to the host and back while streams are delayed: the bits of the
// run that keeps everything. For GPT-2's GELU the library's epilogue may round differently from the operation.
static void recomputed_runs_have_the_same_bits(void **state) {
    static const char *const ways[] = {"recompute=cheap", "recompute=block", "cpu_checkpointing=true"};
    write_deep(
        *state, "deep-gpt2.json",
        "{\"model_type\":\"gpt2\",\"vocab_size\":259,\"n_embd\":24,\"n_layer\":5,\"n_head\":3,\"n_positions\":64}");
    write_deep(*state, "deep-llama.json",
               "{\"model_type\":\"llama\",\"vocab_size\":259,\"hidden_size\":24,\"num_hidden_layers\":5,"
               "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"intermediate_size\":40}");
    for (int i = 0; i < 4; i++) {
        struct setting s = {.model = i & 1 ? "deep-llama.json" : "deep-gpt2.json",
                            .dtype = i & 2 ? "fp32" : "bf16",
                            .more = i & 2 ? "--set cuda.gelu=apart" : NULL};
        struct outcome plain = train(*state, &s, "cuda");
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            char *more = xasprintf("--set activation_checkpointing.%s %s", ways[k], s.more ? s.more : "");
            struct setting again = {.model = s.model, .dtype = s.dtype, .more = more};
            struct outcome o = train(*state, &again, "cuda");
            assert_counted(&o);
            outcome_free(&o);
            setenv("EMULATED_CUDA_DELAY_US", DELAYS, 1);
            setenv("EMULATED_CUDA_SEED", "5", 1);
            assert_repeats(*state, &again, &plain, ways[k]);
            unsetenv("EMULATED_CUDA_DELAY_US");
            unsetenv("EMULATED_CUDA_SEED");
            free(more);
        }
        outcome_free(&plain);
    }
}

// Without room for a stream's workspace, for the model, and for what its products want.
static void too_little_memory_is_an_error(void **state) {
    static const struct setting s = {"gpt2.json", "bf16", 0, NULL};
    static const char *const cases[][2] = {{"0", "no 8 MiB for the workspace: out of memory"},
                                           {"8", "out of device memory"},
                                           {"9", "no 32 MiB for the workspace: out of memory"}};
    for (int i = 0; i < 3; i++) {
        setenv("EMULATED_CUDA_MEMORY_MIB", cases[i][0], 1);
        struct job_output out = run(*state, &s, "cuda");
        unsetenv("EMULATED_CUDA_MEMORY_MIB");
        if (out.status != 1 || !strstr(out.err, cases[i][1]))
            fail_msg("%s MiB: status %d, not \"%s\":\n%s", cases[i][0], out.status, cases[i][1], out.err);
        job_output_free(&out);
    }
}

static void no_device_is_an_error(void **state) {
    static const struct setting s = {"gpt2.json", "bf16", 0, NULL};
    assert_true(job_emulate(*state, 0));
    struct job_output out = run(*state, &s, "cuda");
    assert_true(job_emulate(*state, 1));
    if (out.status != 2 || !strstr(out.err, "sees no GPU")) fail_msg("status %d:\n%s", out.status, out.err);
    job_output_free(&out);
}

static int open_emulated(void **state) {
    int rc = job_setup(state);
    if (rc == 0 && !job_emulate(*state, 1)) {
        fprintf(stderr, "tests/emulated/ has not been built\n");
        rc = -1;
    }
    return rc;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_trains_as_on_a_cpu), cmocka_unit_test(bf16_trains_as_on_a_cpu),
        cmocka_unit_test(fp16_trains_as_on_a_cpu), cmocka_unit_test(too_little_memory_is_an_error),
        cmocka_unit_test(no_device_is_an_error),   cmocka_unit_test(recomputed_runs_have_the_same_bits),
    };
    return cmocka_run_group_tests_name("cuda, emulated", tests, open_emulated, job_teardown);
}
