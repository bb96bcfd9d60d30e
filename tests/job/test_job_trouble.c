// Trouble on demand: no topology's results change by a bit, the ledger stays exact, the time is where it was put,
// and what cannot be is refused.
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

#define RUN                                                                                                  \
    "train --model llama.json --data data.txt --dtype bf16 --steps 6 --seq 32 --batch 2 --threads 1 --quiet" \
    " --set eval_batches=1 --set parameter_server.partition_bytes=4096 --out run --force "

static cJSON *run(const struct job_place *p, const char *topology, const char *trouble) {
    struct job_output out = job_run(p, RUN "--topology %s %s", topology, trouble);
    if (out.status) fail_msg("%s %s: %s", topology, trouble, out.err);
    job_output_free(&out);
    cJSON *s = job_summary(p, "run");
    const cJSON *rank, *class;
    cJSON_ArrayForEach(rank, job_item(s, "memory")) {
        cJSON_ArrayForEach(class, job_item(rank, "predicted"))
            assert_true(class->valuedouble == job_number(job_item(rank, "peak"), class->string));
        assert_true(job_number(rank, "late_allocations") == 0);
    }
    return s;
}

static double phase_s(const cJSON *summary, int worker, const char *phase) {
    return job_number(cJSON_GetArrayItem(job_item(summary, "time_per_rank"), worker), phase);
}

static double stood_still_s(const cJSON *summary, int worker) {
    const cJSON *one;
    cJSON_ArrayForEach(
        one, cJSON_GetObjectItem(summary, "stood_still")) if (!strcmp(job_text(one, "role"), "worker") &&
                                                              job_number(one, "rank") ==
                                                                  worker) return job_number(one, "seconds");
    return 0;
}

// 6 steps of 50 ms more: 0.3 s of compute, all of it in the forward pass, on the worker that was named; but for what the
// machine kept its process from running meanwhile.
static void check(const struct job_place *p, const char *topology, int worker) {
    char trouble[96], form[64];
    cJSON *plain = run(p, topology, "");
    char *curve = job_curve(p, "run");
    assert_null(cJSON_GetObjectItem(plain, "trouble"));
    snprintf(trouble, sizeof trouble, "--straggle %d:2:0.5 --delay %d:constant:50", worker, worker);
    cJSON *slow = run(p, topology, trouble);
    char *slow_curve = job_curve(p, "run");
    assert_string_equal(job_text(plain, "weights_hash"), job_text(slow, "weights_hash"));
    assert_string_equal(curve, slow_curve);
    double took = phase_s(slow, worker, "forward"), stood = stood_still_s(slow, worker);
    if (took + stood < 0.3) fail_msg("%s: %.3f s of forward, and %.3f s stood still", topology, took, stood);
    const cJSON *told = job_item(slow, "trouble");
    snprintf(form, sizeof form, "%d:constant:50", worker);
    assert_string_equal(cJSON_GetArrayItem(job_item(told, "delay"), 0)->valuestring, form);
    snprintf(form, sizeof form, "rank %d computes 50 ms longer", worker);
    assert_non_null(strstr(job_text(told, "text"), form));
    cJSON_Delete(plain);
    cJSON_Delete(slow);
    free(curve);
    free(slow_curve);
}

// Drawn anew for each micro-batch, of which a step has two here.
static void micro_batches_do_not_change(const struct job_place *p) {
    cJSON *plain = run(p, "zero:2 --workers 2 --set gradient_accumulation_steps=2", "");
    cJSON *slow =
        run(p, "zero:2 --workers 2 --set gradient_accumulation_steps=2", "--straggle *:lognormal:0.5");
    assert_string_equal(job_text(plain, "weights_hash"), job_text(slow, "weights_hash"));
    assert_string_equal(job_text(job_item(slow, "trouble"), "text"),
                        "each rank computes 1.5 times as long on average (lognormal) in each micro-batch");
    cJSON_Delete(plain);
    cJSON_Delete(slow);
}

static void results_do_not_change(void **state) {
    const struct job_place *p = *state;
    micro_batches_do_not_change(p);
    check(p, "local", 0);
    check(p, "ps:sync --workers 2 --servers 2", 1);
    check(p, "zero:0 --workers 2", 1);
    check(p, "zero:1 --workers 2", 0);
    check(p, "zero:2 --workers 2", 1);
    check(p, "zero:3 --workers 2", 0);
}

// A straggler's forward pass is slowed as its backward pass is. The factor is large: a core taken away is no factor.
static void both_passes_are_slow(void **state) {
    static const char *const phases[] = {"forward", "backward"};
    for (int attempt = 0;; attempt++) {
        cJSON *s = run(*state, "zero:0 --workers 2", "--straggle 1:40");
        const char *quick = NULL;
        for (size_t i = 0; i < sizeof phases / sizeof *phases; i++)
            if (phase_s(s, 1, phases[i]) < 5 * phase_s(s, 0, phases[i])) quick = phases[i];
        cJSON_Delete(s);
        if (!quick) return;
        if (attempt == 2) fail_msg("the straggler's %s pass is not slow", quick);
    }
}

// Slow is not dead: a worker that computes for two deadlines is waited for and named, once. The deadline is long
// enough for the start, and half of it for a heartbeat, of processes that wait for a core. In ps:async worker 0 may take
// the job's whole budget before worker 1 has a core: then nobody is slow, and the run is made again.
static void slow_is_not_dead(void **state) {
    const struct job_place *p = *state;
    static const struct {
        const char *topology, *who, *where;
    } rows[] = {{"ps:sync --workers 2", "waiting for worker 1: ", " s in step 1, it is alive"},
                {"ps:async --workers 2", "waiting for worker 1: ", " s at a barrier, it is alive"},
                {"zero:3 --workers 2", "waiting for rank 1: ", " s in "},
                {"zero:1 --workers 2 --medium shm", "waiting for rank 1: ", " s in "}};
    int again = 3;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct job_output out =
            job_run(p,
                    "train --model llama.json --data data.txt --steps 1 --seq 32 --batch 2 "
                    "--threads 1 --set parameter_server.deadline_ms=6000 --delay "
                    "1:constant:12000 --out run --force --topology %s",
                    rows[i].topology);
        const char *first = strstr(out.err, rows[i].who);
        if (!out.status && !strstr(out.err, "waiting for") && strstr(rows[i].topology, "async") &&
            again-- > 0) {
            job_output_free(&out);
            i--;
            continue;
        }
        if (out.status || !first || !strstr(first, rows[i].where) || strstr(first + 1, "waiting for"))
            fail_msg("%s: status %d, %s", rows[i].topology, out.status, out.err);
        job_output_free(&out);
    }
}

static void refused(const struct job_place *p, const char *words, const char *text) {
    struct job_output out = job_run(p, RUN "%s", words);
    assert_int_equal(out.status, EXIT_USAGE);
    if (!strstr(out.err, text)) fail_msg("%s: \"%s\" is not in:\n%s", words, text, out.err);
    job_output_free(&out);
}

static void what_cannot_be_is_refused(void **state) {
    const struct job_place *p = *state;
    refused(p, "--topology zero:1 --workers 2 --straggle 2:3",
            "--straggle: trouble.straggle: \"2:3\": there is no rank 2: the ranks that compute are 0 to 1");
    refused(p, "--straggle 1:3", "rank 0 alone computes");
    refused(p, "--delay 0:gauss:3", "--delay: trouble.delay: \"0:gauss:3\"");
    refused(p, "--straggle 0:2 --straggle 0:3", "rank 0 is there twice");
    refused(p, "--straggle 0:weibull:3", "DISTRIBUTION constant, exponential, pareto or lognormal");
    refused(p, "--set trouble.straggle=[1]", "expected an array of texts");
}

// The printed values can be read again, whether they were given as flags, lists or arrays.
static void the_configuration_shows_it(void **state) {
    const struct job_place *p = *state;
    const char *const words[] = {
        "--straggle 0:2 --straggle 1:3:0.5 --delay 1:pareto:5",
        "--straggle 0:2,1:3:0.5 --set trouble.delay=[\"1:pareto:5\"]",
        "--set trouble={\"straggle\":[\"0:2\",\"1:3:0.5\"],\"delay\":\"1:pareto:5\"}"};
    for (int i = 0; i < 3; i++) {
        cJSON *c = job_json(p, "train --topology zero:1 --workers 2 %s --print-config", words[i]);
        char *text = cJSON_PrintUnformatted(job_item(c, "trouble"));
        assert_string_equal(text, "{\"straggle\":[\"0:2\",\"1:3:0.5\"],\"delay\":[\"1:pareto:5\"]}");
        free(text);
        cJSON_Delete(c);
    }
    struct job_output out = job_run(p,
                                    "train --model llama.json --data data.txt --seq 32 --batch 2 --steps 1 "
                                    "--out run --force --straggle 0:2");
    assert_int_equal(out.status, 0);
    assert_non_null(strstr(out.out, "trouble: rank 0 computes 2 times as long in all steps\n"));
    job_output_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_change),      cmocka_unit_test(both_passes_are_slow),
        cmocka_unit_test(slow_is_not_dead),           cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(the_configuration_shows_it),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
