// Honest numbers: what was predicted is what was measured, to the byte, in every topology; and
// --dry-run predicts the same without running.
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

static void check_memory(const char *what, const cJSON *memory) {
    const cJSON *rank, *class;
    cJSON_ArrayForEach(rank, memory) {
        const cJSON *peak = cJSON_GetObjectItem(rank, "peak");
        const char *role = cJSON_GetObjectItem(rank, "role")->valuestring;
        double total = 0;
        cJSON_ArrayForEach(class, cJSON_GetObjectItem(rank, "predicted")) {
            double measured = job_number(peak, class->string);
            if (class->valuedouble != measured)
                fail_msg("%s, %s %.0f, %s: predicted %.0f, measured %.0f", what, role,
                         job_number(rank, "rank"), class->string, class->valuedouble, measured);
            total += measured;
        }
        assert_true(total > job_number(rank, "formula_bytes") / 4);
        assert_true(job_number(rank, "late_allocations") == 0);
    }
}

static void check_wire(const char *what, const cJSON *wire, bool silent) {
    static const char *const pairs[][2] = {{"predicted_sent", "sent_per_step"},
                                           {"predicted_received", "received_per_step"}};
    double all = 0;
    bool shares = strstr(what, "ps:async");  // one budget: a worker may find no batch that is left
    const cJSON *rank;
    cJSON_ArrayForEach(rank, wire) for (int i = 0; i < 2; i++) {
        double predicted = job_number(rank, pairs[i][0]), measured = job_number(rank, pairs[i][1]);
        if (predicted != measured)
            fail_msg("%s, rank %.0f: %s %.0f, %s %.3f", what, job_number(rank, "rank"), pairs[i][0],
                     predicted, pairs[i][1], measured);
        assert_true(silent ? measured == 0 : measured > 0 || shares);
        all += measured;
    }
    assert_true(silent || all > 0);
}

static void check_dry_run(const struct job_place *p, const char *options, const cJSON *summary,
                          const char *what) {
    struct job_output out = job_run(p, "%s --dry-run --json", options);
    if (out.status) fail_msg("%s --dry-run: %s", what, out.err);
    cJSON *dry = cJSON_Parse(out.out);
    const cJSON *a = cJSON_GetObjectItem(dry, "memory"), *b = cJSON_GetObjectItem(summary, "memory");
    assert_int_equal(cJSON_GetArraySize(a), cJSON_GetArraySize(b));
    for (int i = 0; i < cJSON_GetArraySize(a); i++)
        assert_true(cJSON_Compare(cJSON_GetObjectItem(cJSON_GetArrayItem(a, i), "predicted"),
                                  cJSON_GetObjectItem(cJSON_GetArrayItem(b, i), "predicted"), 1));
    cJSON_Delete(dry);
    job_output_free(&out);
}

static void check_micro(const struct job_place *p, const char *model, const char *topology, int workers,
                        int servers, const char *dtype, const char *micro) {
    char options[512], what[128];
    bool local = !strcmp(topology, "local");
    snprintf(what, sizeof what, "%s %s, N=%d, S=%d, %s", model, topology, workers, servers, dtype);
    snprintf(
        options, sizeof options,
        "train --model %s --data data.txt --topology %s --workers %d --set parameter_server.servers=%d --dtype %s --steps 3 "
        "--seq 32 "
        "--batch 2 --threads 1 --set gradient_clipping=1 --set eval_batches=1 --set "
        "parameter_server.partition_bytes=4096 --set gradient_accumulation_steps=%s",
        model, topology, workers, servers, dtype, micro);
    struct job_output out = job_run(p, "%s --quiet --out run --force", options);
    if (out.status) fail_msg("%s: %s", what, out.err);
    job_output_free(&out);
    cJSON *s = job_summary(p, "run");
    assert_null(cJSON_GetObjectItem(s, "missing_reports"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(s, "memory")),
                     workers + (!strncmp(topology, "ps", 2) ? servers : 0));
    check_memory(what, cJSON_GetObjectItem(s, "memory"));
    check_wire(what, cJSON_GetObjectItem(s, "wire"), local || (workers == 1 && topology[0] == 'z'));
    check_dry_run(p, options, s, what);
    cJSON_Delete(s);
}

static void check(const struct job_place *p, const char *model, const char *topology, int workers,
                  int servers, const char *dtype) {
    check_micro(p, model, topology, workers, servers, dtype, "1");
}

// 1-bit Adam: each phase's bytes, and the run's mean of both.
static void onebit(void **state) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    for (int k = 0; k < 3; k++) {
        char options[512];
        snprintf(
            options, sizeof options,
            "train --model %s --data data.txt --topology zero:0 --workers %d --dtype %s --steps 5 --seq 32 "
            "--batch 1 --threads 1 --set eval_batches=1 --set optimizer.type=OneBitAdam --set "
            "optimizer.params.freeze_step=2 --set fp16.initial_scale_power=4 --set "
            "gradient_accumulation_steps=%d",
            k ? "llama.json" : "gpt2.json", 2 + k % 2, dtypes[k], 1 + k % 2);
        struct job_output out = job_run(*state, "%s --quiet --out run --force", options);
        if (out.status) fail_msg("%s: %s", options, out.err);
        job_output_free(&out);
        cJSON *s = job_summary(*state, "run"), *wire = cJSON_GetObjectItem(s, "wire");
        const cJSON *phases = cJSON_GetObjectItem(cJSON_GetArrayItem(wire, 0), "phases");
        check_memory(options, cJSON_GetObjectItem(s, "memory"));
        check_wire(options, wire, false);
        check_wire(options, phases, false);
        assert_int_equal(cJSON_GetArraySize(phases), 2);
        assert_true(job_number(phases->child, "steps") == 2);
        double ratio =
            job_number(phases->child, "sent_per_step") / job_number(phases->child->next, "sent_per_step");
        assert_true(ratio == (k ? 2 : 4) * 256.0 / 36);
        check_dry_run(*state, options, s, options);
        cJSON_Delete(s);
    }
}

static void local_run(void **state) {
    check(*state, "gpt2.json", "local", 1, 1, "fp32");
    check(*state, "llama.json", "local", 1, 1, "bf16");
}

static void rings(void **state) {
    check(*state, "gpt2.json", "zero:0", 3, 1, "bf16");
    check(*state, "llama.json", "zero:1", 2, 1, "fp16");
    check(*state, "gpt2.json", "zero:2", 3, 1, "bf16");
    check(*state, "gpt2.json", "zero:3", 2, 1, "bf16");
    check(*state, "llama.json", "zero:3", 3, 1, "fp32");
    check(*state, "llama.json", "zero:2", 1, 1, "bf16");
}

static void stars(void **state) {
    check(*state, "gpt2.json", "ps:sync", 2, 1, "bf16");
    check(*state, "llama.json", "ps:sync", 3, 3, "fp16");
    check(*state, "llama.json", "ps:sync", 2, 2, "fp32");
    check(*state, "gpt2.json", "ps:async", 2, 2, "bf16");
    check(*state, "gpt2.json", "ps:async --set parameter_server.delay_compensation=0.5", 3, 2, "bf16");
    check(
        *state, "llama.json",
        "ps:async --set parameter_server.delay_compensation=0.5 --set parameter_server.delay_compensation_decay=0.9",
        2, 1, "fp32");
}

static void accumulation(void **state) {
    check_micro(*state, "gpt2.json", "zero:1", 2, 1, "bf16", "3");
    check_micro(*state, "gpt2.json", "zero:2", 2, 1, "bf16", "3");
    check_micro(*state, "llama.json", "zero:3", 2, 1, "fp32", "2");
    check_micro(*state, "gpt2.json", "ps:sync", 2, 2, "bf16", "2");
}

static void accumulation_in_bf16(void **state) {
    static const char *const topologies[] = {"local",  "zero:0",  "zero:1",  "zero:2",
                                             "zero:3", "ps:sync", "ps:async"};
    for (size_t i = 0; i < sizeof topologies / sizeof *topologies; i++)
        check_micro(*state, "gpt2.json", topologies[i], i ? 2 : 1, 1, "bf16",
                    "2 --set data_types.grad_accum_dtype=bf16");
}

// The units that stage 3 gathers ahead of use, and the limit of its slots.
static void prefetch(void **state) {
    check_micro(*state, "gpt2.json", "zero:3", 2, 1, "bf16",
                "2 --set zero_optimization.stage3_prefetch_bucket_size=0");
    check_micro(*state, "gpt2.json", "zero:3", 2, 1, "bf16",
                "2 --set zero_optimization.prefetch_bucket_size=1e9");
    check_micro(*state, "llama.json", "zero:3", 3, 1, "bf16",
                "1 --set zero_optimization.stage3_prefetch_bucket_size=1e9 --set "
                "zero_optimization.max_live_parameters=60000");
}

// Secondary shards of stage 3.
static void hpz(void **state) {
    check_micro(*state, "gpt2.json", "zero:3", 4, 1, "bf16",
                "1 --set zero_optimization.zero_hpz_partition_size=2");
    check_micro(*state, "llama.json", "zero:3", 6, 1, "fp32",
                "2 --set zero_optimization.zero_hpz_partition_size=3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_run), cmocka_unit_test(rings),
        cmocka_unit_test(stars),     cmocka_unit_test(accumulation),
        cmocka_unit_test(onebit),    cmocka_unit_test(prefetch),
        cmocka_unit_test(hpz),       cmocka_unit_test(accumulation_in_bf16),
    };
    return cmocka_run_group_tests_name("ledger", tests, job_setup, job_teardown);
}
