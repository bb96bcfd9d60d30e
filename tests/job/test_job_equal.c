// The promise (docs/numerics.md): with N workers fixed, ps:sync with any number of servers and
// zero:0..3 give the same loss curve, norms, skips and final weights, to the last bit; N = 1 equals local.
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
#include "tests/job/job.h"

#define STEPS 6

struct outcome {
    char *curve;
    char hash[20];
    int skipped;
};

struct setting {
    const char *model, *dtype;
    int workers;
};

// fp16 starts with a scale that overflows and is halved at each overflow: skips, then updates. The clip is
// below the norms of the first steps.
static struct outcome train(const struct job_place *p, const struct setting *s, const char *topology,
                            int servers, const char *more) {
    struct outcome o = {0};
    struct job_output out = job_run(
        p,
        "train --model %s --data data.txt --dtype %s --topology %s --workers %d --set parameter_server.servers=%d --steps %d "
        "--seq 32 "
        "--batch 1 --lr 0.01 --threads 1 --set gradient_clipping=0.5 --set fp16.initial_scale_power=20 "
        "--set fp16.loss_scale_window=2 --set fp16.hysteresis=1 --set eval_batches=1 --set "
        "parameter_server.partition_bytes=4096 --no-weights --quiet --out run --force %s",
        s->model, s->dtype, topology, s->workers, servers, STEPS, more);
    if (out.status) fail_msg("%s, N=%d, S=%d, %s:\n%s", topology, s->workers, servers, s->dtype, out.err);
    job_output_free(&out);
    cJSON *summary = job_summary(p, "run");
    o.curve = job_curve(p, "run");
    snprintf(o.hash, sizeof o.hash, "%s", cJSON_GetObjectItem(summary, "weights_hash")->valuestring);
    o.skipped = cJSON_GetObjectItem(summary, "skipped")->valueint;
    cJSON_Delete(summary);
    return o;
}

static void assert_same(const struct outcome *a, const struct outcome *b, const char *topology, int servers) {
    if (strcmp(a->curve, b->curve) != 0)
        fail_msg("%s, %d servers:\n%s-- is not --\n%s", topology, servers, b->curve, a->curve);
    if (strcmp(a->hash, b->hash) != 0)
        fail_msg("%s, %d servers: weights %s, not %s", topology, servers, b->hash, a->hash);
}

static void check(const struct job_place *p, const struct setting *s) {
    struct outcome first = train(p, s, "zero:0", 1, "");
    if (!strcmp(s->dtype, "fp16"))
        assert_true(first.skipped > 0 && first.skipped < STEPS);
    else
        assert_int_equal(first.skipped, 0);
    for (int i = 1; i < 7; i++) {
        static const char *const rings[] = {"zero:0", "zero:1", "zero:2", "zero:3"};
        const char *topology = i < 4 ? rings[i] : "ps:sync";
        int servers = i < 4 ? 1 : i - 3;
        struct outcome o = train(p, s, topology, servers, "");
        assert_same(&first, &o, topology, servers);
        free(o.curve);
    }
    free(first.curve);
}

#ifdef __SANITIZE_THREAD__
#define IS_TSAN true  // ten times slower, and Open MPI is not instrumented
#else
#define IS_TSAN false
#endif

// Each dtype with one of the two models, the other one at the next N: quick, and every pair meets.
static void every_dtype(const struct job_place *p, int workers) {
    static const char *const models[] = {"gpt2.json", "llama.json"}, *const dtypes[] = {"fp32", "bf16",
                                                                                        "fp16"};
    for (int d = 0; d < 3; d++)
        if (!IS_TSAN || d == workers - 2)
            check(p, &(struct setting){models[(d + workers) % 2], dtypes[d], workers});
}

static void two_workers(void **state) { every_dtype(*state, 2); }
static void three_workers(void **state) { every_dtype(*state, 3); }
static void four_workers(void **state) { every_dtype(*state, 4); }

// Without clipping and fp16 a server updates each key as soon as its last gradient is in.
static void keys_commit_on_arrival(void **state) {
    struct setting s = {"llama.json", "bf16", 2};
    struct outcome ring = train(*state, &s, "zero:1", 1, "--set gradient_clipping=0");
    struct outcome star = train(*state, &s, "ps:sync", 2, "--set gradient_clipping=0");
    struct outcome clipped = train(*state, &s, "zero:1", 1, "");
    assert_same(&ring, &star, "ps:sync without clipping", 2);
    assert_string_not_equal(ring.hash, clipped.hash);
    free(ring.curve);
    free(star.curve);
    free(clipped.curve);
}

static void everybody_is_local(const struct job_place *p, const struct setting *s, const char *more) {
    struct outcome local = train(p, s, "local", 1, more);
    static const char *const all[] = {"zero:0", "zero:1", "zero:2", "zero:3", "ps:sync"};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct outcome o = train(p, s, all[i], 2, more);
        assert_same(&local, &o, all[i], 2);
        free(o.curve);
    }
    free(local.curve);
}

static void one_worker_is_local(void **state) {
    everybody_is_local(*state, &(struct setting){"gpt2.json", "bf16", 1}, "");
    everybody_is_local(*state, &(struct setting){"llama.json", "fp16", 1}, "--set lora.r=4 ");
}

// Several micro-batches add to one buffer in every topology: gpt2's tied embedding has two uses in each of them, and with so few
// bytes for logits the head of llama adds several chunks.
static void one_worker_adds_up_as_local(void **state) {
#define TWICE "--set gradient_accumulation_steps=2 --set memory.logits_bytes=8K "
    everybody_is_local(*state, &(struct setting){"gpt2.json", "fp32", 1}, TWICE);
    if (IS_TSAN) return;
    everybody_is_local(*state, &(struct setting){"llama.json", "fp32", 1}, TWICE);
    everybody_is_local(*state, &(struct setting){"gpt2.json", "bf16", 1},
                       TWICE "--set data_types.grad_accum_dtype=bf16");
    everybody_is_local(*state, &(struct setting){"llama.json", "fp16", 1}, TWICE);
#undef TWICE
}

// 1-bit Adam is DeepSpeed's Adam, which corrects no bias, until freeze_step; behind it a run of its own, in which
// nobody but one worker equals the run in one process: two have something to tell each other.
static void onebit_warms_up_as_adam(void **state) {
#define ONEBIT "--set optimizer.type=OneBitAdam --set optimizer.params.freeze_step="
    const struct setting two = {"llama.json", "fp16", 2}, one = {"llama.json", "bf16", 1};
    struct outcome adam = train(*state, &two, "zero:0", 1, "--set optimizer.params.bias_correction=false");
    struct outcome warm = train(*state, &two, "zero:0", 1, ONEBIT "6"),
                   cold = train(*state, &two, "zero:0", 1, ONEBIT "1");
    assert_same(&adam, &warm, "zero:0, OneBitAdam", 1);
    assert_string_not_equal(warm.hash, cold.hash);
    struct outcome local = train(*state, &one, "local", 1, ONEBIT "2"),
                   ring = train(*state, &one, "zero:0", 1, ONEBIT "2");
    struct outcome turn =
        train(*state, &two, "zero:0", 1, ONEBIT "1 --set zero_optimization.overlap_comm=false");
    assert_same(&local, &ring, "zero:0, one worker", 1);
    assert_same(&cold, &turn, "zero:0 without overlap", 1);
    struct outcome *all[] = {&adam, &warm, &cold, &local, &ring, &turn};
    for (int i = 0; i < 6; i++) free(all[i]->curve);
#undef ONEBIT
}

static void assert_medium(const struct job_place *p, const char *launch, const char *medium) {
    cJSON *s = job_summary(p, "run");
    assert_string_equal(job_text(s, "launch"), launch);
    assert_string_equal(job_text(s, "medium"), medium);
    cJSON_Delete(s);
}

// One curve and one hash whatever the ranks talk through.
static void every_medium(void **state) {
    static const struct {
        const char *topology, *more, *launch, *medium;
    } runs[] = {
        {"ps:sync", "--medium tcp", "processes", "tcp"},
        {"zero:0", "--launch auto --medium shm", "processes", "shm"},
        {"zero:1", "--medium tcp", "processes", "tcp"},
        {"zero:2", "--medium shm", "processes", "shm"},
        {"zero:3", "--launch mpi --medium tcp", "mpirun", "tcp"},
        {"zero:3", "--launch mpi --medium shm", "mpirun", "shm"},
        {"zero:3", "--launch mpi", "mpirun", "shm"},
        {"zero:3", "", "processes", "shm"},
    };
    if (IS_TSAN) skip();
    struct setting s = {"llama.json", "bf16", 2};
    struct outcome threads = train(*state, &s, "zero:3", 1, "--launch threads");
    assert_medium(*state, "threads", "threads");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct outcome o = train(*state, &s, runs[i].topology, 1, runs[i].more);
        assert_same(&threads, &o, runs[i].more, 1);
        assert_medium(*state, runs[i].launch, runs[i].medium);
        free(o.curve);
    }
    free(threads.curve);
}

static void scheduler_address(const struct job_place *p, pid_t pid, char address[64]) {
    double until = now_seconds() + 60;
    for (*address = 0; !*address && now_seconds() < until; usleep(5000)) {
        char *text = job_printed(p, pid, "stderr");
        char *at = strstr(text, "listening on "), *end = at ? strchr(at, '\n') : NULL;
        if (end) snprintf(address, 64, "%.*s", (int)(end - at - 13), at + 13);
        free(text);
    }
    assert_true(*address);
}

// Scheduler, servers and workers started one by one, as on many machines.
static void roles_one_by_one(void **state) {
    const struct job_place *p = *state;
    struct setting s = {"gpt2.json", "bf16", 2};
    struct outcome ring = train(p, &s, "zero:0", 1, "");
    char address[64], options[512];
    pid_t pids[5];
    snprintf(options, sizeof options,
             "--model gpt2.json --data data.txt --dtype bf16 --topology ps:sync --workers 2 --servers 2 "
             "--steps %d "
             "--seq 32 --batch 1 --lr 0.01 --threads 1 --set gradient_clipping=0.5 --set eval_batches=1 "
             "--out star",
             STEPS);
    pids[0] = job_start(p, "scheduler --bind tcp://127.0.0.1:* %s", options);
    scheduler_address(p, pids[0], address);
    for (int i = 1; i < 5; i++)
        pids[i] = job_start(p, "%s --rank %d --scheduler %s %s", i < 3 ? "worker" : "server", (i - 1) % 2,
                            address, options);
    for (int i = 0; i < 5; i++) {
        struct job_output o = job_wait(p, pids[i], 60);
        if (o.status) fail_msg("process %d: status %d\n%s", i, o.status, o.err);
        job_output_free(&o);
    }
    struct job_output o = job_run(p, "summary star");
    assert_int_equal(o.status, 0);
    job_output_free(&o);
    cJSON *summary = job_summary(p, "star");
    assert_null(cJSON_GetObjectItem(summary, "missing_reports"));
    assert_string_equal(cJSON_GetObjectItem(summary, "weights_hash")->valuestring, ring.hash);
    char *curve = job_curve(p, "star");
    assert_string_equal(curve, ring.curve);
    free(curve);
    free(ring.curve);
    cJSON_Delete(summary);
}

// A comparison that could not fail would prove nothing.
static void another_seed_differs(void **state) {
    struct setting s = {"gpt2.json", "fp32", 2};
    struct outcome a = train(*state, &s, "zero:1", 1, ""), b = train(*state, &s, "zero:1", 1, "--seed 2");
    assert_string_not_equal(a.curve, b.curve);
    assert_string_not_equal(a.hash, b.hash);
    free(a.curve);
    free(b.curve);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_workers),
        cmocka_unit_test(three_workers),
        cmocka_unit_test(four_workers),
        cmocka_unit_test(one_worker_is_local),
        cmocka_unit_test(one_worker_adds_up_as_local),
        cmocka_unit_test(every_medium),
        cmocka_unit_test(roles_one_by_one),
        cmocka_unit_test(another_seed_differs),
        cmocka_unit_test(keys_commit_on_arrival),
        cmocka_unit_test(onebit_warms_up_as_adam),
    };
    return cmocka_run_group_tests_name("equal", tests, job_setup, job_teardown);
}
