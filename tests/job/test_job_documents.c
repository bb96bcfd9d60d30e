// Whole documents (data.documents): micro-batches of their own length, the same ones and the same bits in every topology, a mean over
// the tokens of the global batch however it is cut, memory as predicted, runs that go on; and what is refused.
#include <math.h>
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

#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "tests/job/job.h"

#define STEPS 5
#define SEQ   31  // buckets of 8, 16, 24 and 31; some documents are longer

// Paragraphs of 3 to 80 bytes, most of them short.
static int open_place(void **state) {
    if (job_setup(state)) return -1;
    const struct job_place *p = *state;
    char *text = run_file_read(p->dir, "data.txt", false);
    size_t n = strlen(text);
    uint64_t draws = 0;
    for (size_t at = 0; at < n;) {
        bool likely = rng_below(1, draws++, 0, 3) > 0;
        at += 3 + rng_below(1, draws++, 0, likely ? 20 : 78);
        if (at + 1 < n) text[at] = text[at + 1] = '\n';
        at += 2;
    }
    int rc = run_file_write(p->dir, "documents.txt", text);
    free(text);
    return rc;
}

struct outcome {
    char *curve, hash[20];
    cJSON *summary;
};

static struct outcome train(const struct job_place *p, const char *words) {
    struct outcome o = {0};
    struct job_output out =
        job_run(p,
                "train --model gpt2.json --data documents.txt --documents whole --seq %d --steps %d "
                "--batch 2 --lr 0.01 --threads 1 --set eval_batches=1 --set fp16.initial_scale_power=10 "
                "--set parameter_server.partition_bytes=4096 --no-weights --quiet --out run --force %s",
                SEQ, STEPS, words);
    if (out.status) fail_msg("%s:\n%s", words, out.err);
    job_output_free(&out);
    o.summary = job_summary(p, "run");
    o.curve = job_curve(p, "run");
    snprintf(o.hash, sizeof o.hash, "%s", job_text(o.summary, "weights_hash"));
    const cJSON *rank, *class;
    cJSON_ArrayForEach(rank, job_item(o.summary, "memory")) {
        cJSON_ArrayForEach(class, job_item(rank, "predicted"))
            assert_true(class->valuedouble == job_number(job_item(rank, "peak"), class->string));
        assert_true(job_number(rank, "late_allocations") == 0);
    }
    return o;
}

static void forget(struct outcome *o) {
    free(o->curve);
    cJSON_Delete(o->summary);
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *words) {
    if (strcmp(a->curve, b->curve)) fail_msg("%s:\n%s-- is not --\n%s", words, b->curve, a->curve);
    if (strcmp(a->hash, b->hash)) fail_msg("%s: weights %s, not %s", words, b->hash, a->hash);
}

// All these topologies with the same words more end alike.
static void all_alike(const struct job_place *p, const char *const *topologies, int count, const char *more) {
    struct outcome first = {0};
    for (int i = 0; i < count; i++) {
        char *words = xasprintf("--topology %s %s", topologies[i], more);
        struct outcome o = train(p, words);
        if (i) assert_same(&first, &o, words);
        if (i)
            forget(&o);
        else
            first = o;
        free(words);
    }
    forget(&first);
}
#define ALL_ALIKE(p, more, ...)                                   \
    do {                                                          \
        static const char *const all[] = {__VA_ARGS__};           \
        all_alike(p, all, (int)(sizeof all / sizeof *all), more); \
    } while (0)

static void one_result(void **state) {
    const struct job_place *p = *state;
    ALL_ALIKE(p, "--workers 1 --dtype fp32", "local", "zero:0", "zero:1", "zero:2", "zero:3", "ps:sync",
              "ps:async");
    ALL_ALIKE(p, "--workers 2 --dtype bf16 --model llama.json", "zero:0", "zero:1", "zero:2", "zero:3",
              "ps:sync --servers 2");
    ALL_ALIKE(p, "--workers 3 --dtype fp16", "zero:0", "zero:1", "zero:2", "zero:3", "ps:sync");
    ALL_ALIKE(p, "--workers 1 --dtype bf16", "local --set local.delay=2",
              "ps:ssp:2 --set parameter_server.read=oldest");
    ALL_ALIKE(p, "--workers 3 --dtype bf16", "ps:sync --elastic 1:3", "ps:backup:0 --elastic 1:3",
              "ps:quorum:3 --elastic 1:3");
}

// Stages 2 and 3 add each micro-batch over the ranks, the others each step.
static void one_result_of_several_micro_batches(void **state) {
    const struct job_place *p = *state;
#define THREE "--set gradient_accumulation_steps=3 --batch 1 "
    ALL_ALIKE(p, THREE "--workers 1 --dtype bf16", "local", "zero:0", "zero:3", "ps:sync");
    ALL_ALIKE(p, THREE "--workers 2 --dtype bf16", "zero:0", "zero:1", "ps:sync --servers 2");
    ALL_ALIKE(p, THREE "--workers 2 --dtype bf16", "zero:2", "zero:3",
              "ps:sync --servers-on workers --set parameter_server.resident=units");
    ALL_ALIKE(p, THREE "--workers 2 --model llama.json --dtype bf16 --straggle *:exponential:0.5", "zero:2",
              "zero:3");
#undef THREE
}

static void computed_again_is_the_same(void **state) {
    ALL_ALIKE(*state, "--dtype bf16 --model llama.json --set gradient_accumulation_steps=2", "local",
              "local --set activation_checkpointing.recompute=cheap",
              "local --set activation_checkpointing.recompute=block",
              "local --set activation_checkpointing.recompute=block --set "
              "activation_checkpointing.cpu_checkpointing=true");
}

// Six documents a step, however they are cut: in fp32 the same losses and norms but for the order of sums, and the same tokens.
static void the_mean_is_over_the_global_batch(void **state) {
    const struct job_place *p = *state;
    static const char *const cuts[] = {
        "--topology local --batch 6", "--topology local --batch 1 --set gradient_accumulation_steps=6",
        "--topology zero:1 --workers 2 --batch 3", "--topology ps:sync --workers 3 --batch 2",
        "--topology zero:3 --workers 3 --batch 1 --set gradient_accumulation_steps=2"};
    double losses[STEPS], norms[STEPS], tokens[STEPS], sum = 0;
    int several = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct outcome o = train(p, cuts[i]);
        char *lines = run_file_read(p->dir, "run/metrics.jsonl", false), *line = lines;
        for (int s = 0; s < STEPS; s++) {
            const char *end;
            cJSON *record = cJSON_ParseWithOpts(line, &end, 0);
            double loss = job_number(record, "loss"), norm = job_number(record, "grad_norm");
            if (!i) losses[s] = loss, norms[s] = norm, tokens[s] = job_number(record, "tokens");
            if (!i) sum += tokens[s];
            several += s && !i && tokens[s] != tokens[0];
            if (fabs(loss - losses[s]) > 1e-5 * losses[s] || fabs(norm - norms[s]) > 1e-4 * norms[s])
                fail_msg("%s, step %d: %.9f %.9f, not %.9f %.9f", cuts[i], s + 1, loss, norm, losses[s],
                         norms[s]);
            assert_true(job_number(record, "tokens") == tokens[s]);
            cJSON_Delete(record);
            line = (char *)(uintptr_t)end;
            while (*line == '\n') line++;
        }
        free(lines);
        assert_true(job_number(o.summary, "tokens_applied") == sum);
        assert_true(fabs(job_number(o.summary, "tokens_per_sequence") - sum / (6 * STEPS)) < 1e-9);
        assert_true(job_number(o.summary, "padding") > 0 && job_number(o.summary, "padding") < 1);
        forget(&o);
    }
    assert_true(several >= STEPS - 2);
}

static void a_run_goes_on_in_the_middle(void **state) {
    const struct job_place *p = *state;
    static const char *const topologies[] = {"zero:1 --workers 2", "ps:sync --workers 2"};
    for (int i = 0; i < 2; i++) {
        char *words = xasprintf("--topology %s --checkpoint-every 2 --checkpoint-keep 0", topologies[i]);
        struct outcome whole = train(p, words);
        job_remove(p, "first");
        char *from = xasprintf("%s/run", p->dir), *to = xasprintf("%s/first", p->dir);
        assert_int_equal(rename(from, to), 0);
        char *again = xasprintf("--topology %s --resume first/checkpoints/step-2", topologies[1 - i]);
        struct outcome rest = train(p, again);
        if (strcmp(whole.hash, rest.hash)) fail_msg("%s: weights %s, not %s", again, rest.hash, whole.hash);
        struct job_output o =
            job_run(p,
                    "train --model gpt2.json --data documents.txt --seq %d --batch 2 --steps %d --lr 0.01 "
                    "--topology %s --resume first/checkpoints/step-2 --out other",
                    SEQ, STEPS, topologies[i]);
        assert_int_not_equal(o.status, 0);
        if (!strstr(o.err, "data.documents")) fail_msg("%s", o.err);
        job_output_free(&o);
        forget(&whole);
        forget(&rest);
        free(words);
        free(again);
        free(from);
        free(to);
    }
}

// Workers that share a budget: lines and the whole count the tokens of whoever's documents were applied.
static void workers_go_alone(void **state) {
    struct outcome o = train(*state, "--topology ps:async --workers 3 --dtype bf16");
    assert_true(job_number(o.summary, "samples_applied") == 3 * 2 * STEPS);
    double each = job_number(o.summary, "tokens_per_sequence");
    assert_true(each > 1 && each < SEQ);
    // Whoever has done which: together they are the documents of the other topologies.
    struct outcome sync = train(*state, "--topology ps:sync --workers 3 --dtype bf16");
    assert_true(job_number(o.summary, "tokens_applied") == job_number(sync.summary, "tokens_applied"));
    assert_true(each == job_number(sync.summary, "tokens_per_sequence"));
    forget(&sync);
    forget(&o);
}

// Shapes of products that a run of one step has asked a GPU's library for: it asks once for each.
static int shapes(const struct job_place *p, const char *documents) {
    char *file = xasprintf("%s/asked", p->dir);
    setenv("EMULATED_CUBLAS_ASKED", file, 1);
    struct job_output out =
        job_run(p,
                "train --model gpt2.json --data documents.txt --documents %s --seq %d --steps 1 --batch 1 "
                "--device cuda --set eval_batches=0 --no-weights --quiet --out run --force",
                documents, SEQ);
    assert_int_equal(out.status, 0);
    job_output_free(&out);
    char *asked = run_file_read(p->dir, "asked", false);
    int n = 0;
    for (const char *at = asked; *at; at++) n += *at == '\n';
    free(asked);
    assert_int_equal(unlink(file), 0);
    unsetenv("EMULATED_CUBLAS_ASKED");
    free(file);
    return n;
}

// A step that goes on without some of its workers is a mean over the tokens of the others, and of no more: its first loss is one of
// fresh weights, whoever was late.
static void steps_without_the_late(void **state) {
    struct outcome o = train(
        *state, "--topology ps:backup:2 --workers 3 --batch 1 --dtype bf16 --straggle 1:9 --lr 0.000001");
    char *lines = run_file_read(((const struct job_place *)*state)->dir, "run/metrics.jsonl", false),
         *line = lines;
    double tokens = 0;
    for (int s = 0; s < STEPS; s++) {
        const char *end;
        cJSON *record = cJSON_ParseWithOpts(line, &end, 0);
        double loss = job_number(record, "loss");
        if (fabs(loss - log(257)) > 0.4) fail_msg("step %d: a loss of %.3f", s + 1, loss);
        assert_true(job_number(record, "workers") == 1);
        tokens += job_number(record, "tokens");
        cJSON_Delete(record);
        line = (char *)(uintptr_t)end;
        while (*line == '\n') line++;
    }
    free(lines);
    assert_true(job_number(o.summary, "samples_applied") == STEPS &&
                job_number(o.summary, "tokens_applied") == tokens);
    forget(&o);
}

// On a GPU every length has been run before the first step.
static void a_gpu(void **state) {
    const struct job_place *p = *state;
    struct outcome cpu = train(p, "--topology local --device cpu"), gpu, ring;
    if (!job_emulate(p, 1)) {
        forget(&cpu);
        skip();
    }
    gpu = train(p, "--topology local --device cuda");
    ring = train(p, "--topology zero:3 --workers 1 --device cuda --launch threads");
    assert_same(&gpu, &ring, "zero:3 on a GPU");
    double a = job_number(job_item(cpu.summary, "loss"), "last"),
           b = job_number(job_item(gpu.summary, "loss"), "last");
    if (fabs(a - b) > 1e-3 * a) fail_msg("loss %.6f on a GPU, %.6f on a CPU", b, a);
    assert_true(job_number(gpu.summary, "tokens_applied") == job_number(cpu.summary, "tokens_applied"));
    assert_int_equal(shapes(p, "whole"), 4 * shapes(p, "packed"));
    unsetenv("STARRING_CUDA_SO");
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("EMULATED_CUDA_DEVICES");
    forget(&cpu);
    forget(&gpu);
    forget(&ring);
}

static void refused(const struct job_place *p, const char *words, const char *says) {
    struct job_output o = job_run(p, "%s", words);
    if (o.status != EXIT_USAGE || !strstr(o.err, says)) fail_msg("%s: status %d, %s", words, o.status, o.err);
    job_output_free(&o);
}

static void what_cannot_be_is_refused(void **state) {
    const struct job_place *p = *state;
#define WHOLE "train --model gpt2.json --documents whole --seq 16 --steps 1 --out no "
    refused(p, WHOLE "--data data.txt", "no blank line ends a document");
    refused(p, WHOLE "--documents half", "packed");
    refused(p,
            "bench step --model gpt2.json --seq 16 --set data.path=documents.txt --set data.documents=whole",
            "bench step: data.documents whole: steps of one length are timed");
#undef WHOLE
    struct job_output o = job_run(p, "data info documents.txt");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "documents         "));
    assert_non_null(strstr(o.out, "  up to         8 "));
    job_output_free(&o);
    cJSON *info = job_json(p, "data info data.txt --json");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(info, "documents")));
    cJSON_Delete(info);
    info = job_json(p, "data info documents.txt --json");
    const cJSON *d = job_item(info, "documents"), *bin;
    double n = 0, tokens = 0;
    cJSON_ArrayForEach(bin, job_item(d, "histogram")) {
        n += job_number(bin, "documents");
        tokens += job_number(bin, "tokens");
    }
    assert_true(n == job_number(d, "count") && fabs(tokens - n * job_number(d, "mean")) < 1e-6 * tokens);
    assert_true(job_number(d, "longest") > SEQ && job_number(d, "longest") < 85);
    cJSON_Delete(info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_result),
        cmocka_unit_test(one_result_of_several_micro_batches),
        cmocka_unit_test(computed_again_is_the_same),
        cmocka_unit_test(the_mean_is_over_the_global_batch),
        cmocka_unit_test(a_run_goes_on_in_the_middle),
        cmocka_unit_test(workers_go_alone),
        cmocka_unit_test(steps_without_the_late),
        cmocka_unit_test(a_gpu),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("documents", tests, open_place, job_teardown);
}
