// A run that is larger than the machine ends before it takes anything: with both figures, with what would
// fit, and without a run directory. The sizes follow from what this machine has left.
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

#include "shared/core/error.h"
#include "shared/predict/memory_limits.h"
#include "tests/job/job.h"

// llama.json's activations are above 1 KiB per token.
static long long batch_that_cannot_fit(int seq) {
    struct memory_limit l;
    assert_int_equal(memory_limit_read("", &l), 0);
    return (long long)(l.free_bytes / 1024 / seq) + 1;
}

static void assert_untouched(const struct job_place *p, const struct job_output *o, const char *says) {
    char *run = xasprintf("%s/run", p->dir);
    if (o->status != 2 || !strstr(o->err, says))
        fail_msg("status %d, not \"%s\":\n%s", o->status, says, o->err);
    assert_int_equal(access(run, F_OK), -1);
    free(run);
}

static struct job_output too_large(const struct job_place *p, const char *topology, const char *more) {
    return job_run(
        p,
        "train --model llama.json --data data.txt --topology %s --workers 2 --set parameter_server.servers=2 --seq 64 "
        "--batch %lld --steps 1 --out run %s",
        topology, batch_that_cannot_fit(64), more);
}

static void what_is_larger_than_the_machine(void **state) {
    static const char *const topologies[] = {"local", "ps:sync", "zero:0", "zero:3"};
    for (int i = 0; i < 4; i++) {
        struct job_output o = too_large(*state, topologies[i], "");
        assert_untouched(*state, &o, "needs ");
        if (!strstr(o.err, "iB predicted, ") || !strstr(o.err, "are left (") ||
            !strstr(o.err, "would fit, by prediction:\n  --batch ") || !strstr(o.err, "memory.check=off"))
            fail_msg("%s does not say it all:\n%s", topologies[i], o.err);
        job_output_free(&o);
    }
}

// A proposal has been predicted: it is taken.
static void the_proposal_fits(void **state) {
    struct job_output o = too_large(*state, "zero:2", "");
    const char *at = strstr(o.err, "--batch ");
    assert_non_null(at);
    long long batch = strtoll(at + strlen("--batch "), NULL, 10);
    assert_true(batch > 0);
    job_output_free(&o);
    o = job_run(
        *state,
        "train --model llama.json --data data.txt --topology zero:2 --workers 2 --seq 64 --batch %lld "
        "--dry-run --json",
        batch / 2);  // memory in use changes meanwhile
    assert_int_equal(o.status, 0);
    cJSON *doc = cJSON_Parse(o.out);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(cJSON_GetObjectItem(doc, "here"), "fits")));
    cJSON_Delete(doc);
    job_output_free(&o);
}

static void a_dry_run_compares_and_goes_on(void **state) {
    struct job_output o = too_large(*state, "ps:sync", "--dry-run");
    assert_int_equal(o.status, 0);
    if (!strstr(o.out, "does not fit")) fail_msg("%s", o.out);
    job_output_free(&o);
    o = job_run(*state, "train --model llama.json --data data.txt --topology ps:sync --dry-run --json");
    cJSON *doc = cJSON_Parse(o.out), *here = cJSON_GetObjectItem(doc, "here");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(here, "fits")));
    cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(here, "limits"), 0);
    double predicted = cJSON_GetObjectItem(one, "predicted_bytes")->valuedouble, sum = 0;
    const cJSON *rank;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(doc, "memory")) sum +=
        cJSON_GetObjectItem(rank, "predicted_bytes")->valuedouble;
    assert_true(predicted == sum && sum > 0);
    cJSON_Delete(doc);
    job_output_free(&o);
}

// The worker's memory is the worker's to check: alone, before it looks for a scheduler.
static void a_role_by_hand_checks_itself(void **state) {
    struct job_output o = job_run(
        *state,
        "worker --scheduler tcp://127.0.0.1:9 --model llama.json --data data.txt --topology ps:sync --seq 64 "
        "--batch %lld --out run",
        batch_that_cannot_fit(64));
    assert_untouched(*state, &o, "needs ");
    job_output_free(&o);
}

// One of two ranks under mpirun speaks, and neither starts.
static void one_rank_of_a_machine_speaks(void **state) {
    struct job_output o = too_large(*state, "zero:1", "--launch mpi");
    const char *first = strstr(o.err, "the run needs ");
    if (o.status != 2 || !first || strstr(first + 1, "the run needs "))
        fail_msg("status %d:\n%s", o.status, o.err);
    char *run = xasprintf("%s/run/config.json", ((struct job_place *)*state)->dir);
    assert_int_equal(access(run, F_OK), -1);
    free(run);
    job_output_free(&o);
}

// A bench has no ranks, and the same limit: its steps, or the matrix product beside them.
static double allowed_in_dry_run(const struct job_place *p, const char *launch) {
    struct job_output o = job_run(p,
                                  "train --model llama.json --topology zero:1 --workers 2 --device cpu "
                                  "--threads 1 --dry-run --json --launch %s",
                                  launch);
    assert_int_equal(o.status, 0);
    cJSON *doc = cJSON_Parse(o.out),
          *limits = cJSON_GetObjectItem(cJSON_GetObjectItem(doc, "here"), "limits");
    double bytes = cJSON_GetObjectItem(cJSON_GetArrayItem(limits, 0), "allowed_bytes")->valuedouble;
    cJSON_Delete(doc);
    job_output_free(&o);
    return bytes;
}

// As in the run: each rank of mpirun is a process, and brings the library along; threads share one process.
static void a_dry_run_counts_the_ranks_of_mpirun(void **state) {
    double more = allowed_in_dry_run(*state, "mpi") - allowed_in_dry_run(*state, "threads");
    assert_int_equal((long long)more >> 20, 2 * (16 + 96) - 16);
    // The same for this program's own, next to the process that starts them: they share windows.
    more = allowed_in_dry_run(*state, "processes") - allowed_in_dry_run(*state, "threads");
    assert_int_equal((long long)more >> 20, 3 * (16 + 16) - 16);
}

static void a_bench_is_compared_too(void **state) {
    struct memory_limit l;
    assert_int_equal(memory_limit_read("", &l), 0);
    struct job_output o = job_run(
        *state, "bench step --model llama.json --batch %lld --seq 64 --matmul 64 --steps 1 --device cpu",
        batch_that_cannot_fit(64));
    if (o.status != 1 || !strstr(o.err, " --seq 64 (smaller ones need less) needs ") ||
        !strstr(o.err, "are left (") || !strstr(o.err, "memory.check=off"))
        fail_msg("status %d:\n%s", o.status, o.err);
    job_output_free(&o);
    if (3.0 * 65536 * 65536 * 4 <= l.free_bytes) return;  // the largest product would fit
    o = job_run(*state,
                "bench step --model llama.json --batch 1 --seq 64 --matmul 65536 --steps 1 --device "
                "cpu --dtype fp32");
    if (o.status != 1 || !strstr(o.err, "(48.1 GiB predicted, ")) fail_msg("status %d:\n%s", o.status, o.err);
    job_output_free(&o);
}

// ---------------------------------------------------------------- --device-memory
#define LIMITED \
    "train --model gpt2.json --data data.txt --topology %s --workers 2 --seq 32 --steps 1 --device cpu "

// For the worker, as predicted.
static long long device_bytes(const struct job_place *p, const char *topology) {
    struct job_output o = job_run(p, LIMITED "--dry-run --json", topology);
    assert_int_equal(o.status, 0);
    cJSON *doc = cJSON_Parse(o.out);
    const cJSON *rank;
    long long most = 0;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(doc, "memory")) {
        if (strcmp(cJSON_GetObjectItem(rank, "role")->valuestring, "worker") != 0) continue;
        long long bytes = (long long)cJSON_GetObjectItem(rank, "predicted_bytes")->valuedouble;
        most = bytes > most ? bytes : most;
    }
    cJSON_Delete(doc);
    job_output_free(&o);
    return most;
}

// To the byte: the prediction fits, one less does not, neither before the run nor, where nobody compares, in it.
static void a_worker_keeps_to_its_device_memory(void **state) {
    static const char *const topologies[] = {"local", "zero:0", "zero:3", "ps:sync"};
    for (int i = 0; i < 4; i++) {
        long long bytes = device_bytes(*state, topologies[i]);
        struct job_output o = job_run(*state, LIMITED "--device-memory %lld --out run", topologies[i], bytes);
        if (o.status) fail_msg("%s within %lld bytes: %s", topologies[i], bytes, o.err);
        job_output_free(&o);
        job_remove(*state, "run");
        o = job_run(*state, LIMITED "--device-memory %lld --out run", topologies[i], bytes - 1);
        assert_untouched(*state, &o, "worker 0 needs ");
        if (!strstr(o.err, " bytes) of its device (") || !strstr(o.err, "(--device-memory) allows ") ||
            !strstr(o.err, "would fit, by prediction:\n") ||
            !strstr(o.err, "starring plan --model gpt2.json --workers "))
            fail_msg("%s does not say it all:\n%s", topologies[i], o.err);
        job_output_free(&o);
        o = job_run(*state, LIMITED "--device-memory %lld --out run --set memory.check=off", topologies[i],
                    bytes - 1);
        if (o.status != 1 || !strstr(o.err, "out of device memory: ") ||
            !strstr(o.err, "memory.device_bytes (--device-memory)"))
            fail_msg("%s, unchecked: status %d\n%s", topologies[i], o.status, o.err);
        job_output_free(&o);
        job_remove(*state, "run");
    }
}

// A setting that costs time and changes no bit is proposed too, and holds.
static void recomputation_and_offload_are_proposed(void **state) {
    static const char *const flags[] = {"--set activation_checkpointing.recompute=",
                                        "--set zero_optimization.offload_optimizer.device=cpu"};
    long long bytes = device_bytes(*state, "zero:3");
    struct job_output o = job_run(*state, LIMITED "--device-memory %lld --out run", "zero:3", bytes - 1);
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(o.err, flags[i]), *end = at ? strstr(at, " (") : NULL;
        if (!end) fail_msg("%s is not proposed: %s", flags[i], o.err);
        char *taken = xasprintf("%.*s", (int)(end - at), at);
        struct job_output run =
            job_run(*state, LIMITED "--device-memory %lld --out run %s", "zero:3", bytes - 1, taken);
        if (run.status) fail_msg("%s: %s", taken, run.err);
        job_output_free(&run);
        job_remove(*state, "run");
        free(taken);
    }
    job_output_free(&o);
}

static void device_memory_is_a_size(void **state) {
    static const char *const texts[] = {"6GX", "0", "-1", "none", "1e9x"};
    for (int i = 0; i < 5; i++) {
        struct job_output o = job_run(*state, LIMITED "--device-memory %s --out run", "local", texts[i]);
        assert_untouched(*state, &o, "memory.device_bytes: expected ");
        job_output_free(&o);
    }
    struct job_output o = job_run(*state, LIMITED "--device-memory 6GiB --print-config", "local");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "\"device_bytes\":\t6442450944"));
    job_output_free(&o);
    o = job_run(*state, LIMITED "--device-memory 64m --dry-run", "local");
    assert_non_null(strstr(o.out, "64.0 MiB left (memory.device_bytes of each worker): fits"));
    job_output_free(&o);
}

static void only_auto_and_off(void **state) {
    struct job_output o =
        job_run(*state, "train --model llama.json --data data.txt --set memory.check=of --out run");
    assert_untouched(*state, &o, "memory.check: expected one of \"auto\", \"off\"");
    job_output_free(&o);
}

// The check on a GPU, and what overrides it: the device then says itself that it is full.
static void a_gpu_has_its_own_limit(void **state) {
    if (!job_emulate(*state, 2)) skip();
    static const char *const topologies[] = {"local", "ps:sync", "zero:1"};
    setenv("EMULATED_CUDA_MEMORY_MIB", "16", 1);
    for (int i = 0; i < 3; i++) {
        struct job_output o = job_run(*state,
                                      "train --model gpt2.json --data data.txt --topology %s --workers 3 "
                                      "--device cuda --seq 32 --steps 1 --out run",
                                      topologies[i]);
        assert_untouched(*state, &o, "16.0 MiB are left (free memory of GPU 0, ");
        job_output_free(&o);
    }
    struct job_output o = job_run(*state,
                                  "train --model gpt2.json --data data.txt --topology local --device cuda "
                                  "--seq 32 --steps 1 --out run --set memory.check=off");
    if (!strstr(o.err, "warning: ") || !strstr(o.err, "memory.check is off")) fail_msg("%s", o.err);
    job_output_free(&o);
    unsetenv("EMULATED_CUDA_MEMORY_MIB");
    job_remove(*state, "run");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_larger_than_the_machine, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(the_proposal_fits, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_dry_run_compares_and_goes_on, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_role_by_hand_checks_itself, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_dry_run_counts_the_ranks_of_mpirun, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(one_rank_of_a_machine_speaks, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_bench_is_compared_too, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_worker_keeps_to_its_device_memory, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(recomputation_and_offload_are_proposed, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(device_memory_is_a_size, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(only_auto_and_off, job_setup, job_teardown),
        cmocka_unit_test_setup_teardown(a_gpu_has_its_own_limit, job_setup, job_teardown),
    };
    return cmocka_run_group_tests_name("memory of a run", tests, NULL, NULL);
}
