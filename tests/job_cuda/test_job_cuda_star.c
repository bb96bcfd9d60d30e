// The star with its workers on the emulated GPU: the bits of the ring on the same device, whatever the number
// of servers, GPUs, and the timing of streams, over shared memory and over tcp; predicted memory and bytes to the byte, page-locked twins
// included; death told as on a CPU; and no CUDA in servers and scheduler.
#include <math.h>
#include <setjmp.h>
#include <signal.h>
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
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "tests/job/job.h"

#define STEPS      4
#define SEQ        16     // more rows than a chunk of the head has
#define DELAY_US   "300"  // the longest one
#define DEADLINE_S 120.0  // a hang

struct setting {
    const char *model, *dtype, *clip;
    int workers, accumulation;
    const char *medium;  // NULL: what there is, shared memory
};

struct outcome {
    char *curve;
    char hash[20];
    cJSON *summary;
};

static void emulate(const struct job_place *p, int devices) {
    if (!job_emulate(p, devices)) skip();
}

// seed 0: no delays.
static void shake(int seed) {
    char text[8];
    snprintf(text, sizeof text, "%d", seed);
    setenv("EMULATED_CUDA_SEED", text, 1);
    if (seed)
        setenv("EMULATED_CUDA_DELAY_US", DELAY_US, 1);
    else
        unsetenv("EMULATED_CUDA_DELAY_US");
}

// fp16 starts with a scale that overflows and is halved at each overflow: skips, then updates.
static void options_of(char *to, size_t size, const struct setting *s, const char *topology, int servers) {
    snprintf(
        to, size,
        "train --device cuda --model %s --data data.txt --dtype %s --topology %s --workers %d --set parameter_server.servers=%d "
        "--steps %d --seq %d --batch 1 --lr 0.01 --threads 1 --set gradient_clipping=%s --set "
        "gradient_accumulation_steps=%d --set fp16.initial_scale_power=18 --set fp16.loss_scale_window=2 "
        "--set fp16.hysteresis=1 --set eval_batches=1 --set eval_every=2 --set memory.logits_bytes=9000 "
        "--set "
        "parameter_server.partition_bytes=4096",
        s->model, s->dtype, topology, s->workers, servers, STEPS, SEQ, s->clip, s->accumulation);
    size_t used = strlen(to);
    if (s->medium && topology[0] == 'p') snprintf(to + used, size - used, " --medium %s", s->medium);
}

static struct outcome train(const struct job_place *p, const struct setting *s, const char *topology,
                            int servers) {
    struct outcome o = {0};
    char options[1100];
    options_of(options, sizeof options, s, topology, servers);
    struct job_output out = job_run(p, "%s --no-weights --quiet --out run --force", options);
    if (out.status || strstr(out.err, "emulated CUDA:"))
        fail_msg("%s, N=%d, S=%d, %s: status %d\n%s", topology, s->workers, servers, s->dtype, out.status,
                 out.err);
    job_output_free(&out);
    o.summary = job_summary(p, "run");
    o.curve = job_curve(p, "run");
    // SEQ rows of 320 classes.
    const cJSON *head = cJSON_GetObjectItem(o.summary, "head");
    double rows = strcmp(s->dtype, "fp32") ? 14 : 7;
    assert_true(cJSON_GetObjectItem(head, "chunk_rows")->valuedouble == rows);
    assert_true(cJSON_GetObjectItem(head, "chunks")->valuedouble == ceil(SEQ / rows));
    assert_false(cJSON_IsTrue(cJSON_GetObjectItem(head, "apart")));  // micro-batches are added in fp32
    snprintf(o.hash, sizeof o.hash, "%s", cJSON_GetObjectItem(o.summary, "weights_hash")->valuestring);
    return o;
}

static void outcome_free(struct outcome *o) {
    cJSON_Delete(o->summary);
    free(o->curve);
}

// Every class of every rank as predicted, and every byte.
static void assert_predicted(const cJSON *summary) {
    const cJSON *rank, *class;
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(summary, "memory")) {
        const cJSON *peak = cJSON_GetObjectItem(rank, "peak");
        cJSON_ArrayForEach(class, cJSON_GetObjectItem(rank, "predicted")) if (class->valuedouble !=
                                                                              job_number(peak, class->string))
            fail_msg("%s %.0f, %s: predicted %.0f, measured %.0f",
                     cJSON_GetObjectItem(rank, "role")->valuestring, job_number(rank, "rank"), class->string,
                     class->valuedouble, job_number(peak, class->string));
        assert_true(job_number(rank, "late_allocations") == 0);
    }
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(summary, "wire")) {
        assert_true(job_number(rank, "predicted_sent") == job_number(rank, "sent_per_step"));
        assert_true(job_number(rank, "predicted_received") == job_number(rank, "received_per_step"));
        assert_true(job_number(rank, "sent_per_step") > 0);
    }
}

// A worker's pinned bytes are those of its weights and gradients (over shm in
// a segment: whole pages behind a head), of two batches (tokens and targets of --seq SEQ --batch 1), of what its host reads
// of a step, and worker 0's of a snapshot's weights. Over shm no frame ever waits for its turn in a server, which holds at
// most its weights on their way into a snapshot.
static void assert_counted(const cJSON *summary, const struct setting *s) {
    double others = (double)(2 * dev_round((size_t)s->accumulation * SEQ * 2 * sizeof(int32_t)) + DEV_ALIGN);
    bool shm = !s->medium || strcmp(s->medium, "tcp") != 0;
    const cJSON *rank;
    assert_predicted(summary);
    assert_string_equal(job_text(summary, "medium"), shm ? "shm" : "tcp");
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(summary, "memory")) {
        const cJSON *peak = cJSON_GetObjectItem(rank, "peak");
        const char *role = cJSON_GetObjectItem(rank, "role")->valuestring;
        bool worker = !strcmp(role, "worker");
        double gradient = job_number(peak, "gradient") / (s->accumulation > 1 ? 3 : 1);  // less the fp32 sums
        double twins = worker ? job_number(peak, "parameter") + gradient : 0;
        if (worker) assert_true(twins > 0 && job_number(peak, "communication") == 0);
        if (worker && shm) twins = 4096 * ceil((4096 + twins) / 4096);
        double room = worker && !job_number(rank, "rank") ? job_number(peak, "parameter") : 0;
        assert_true(job_number(peak, "pinned") == (worker ? twins + others + room : 0));
        if (!worker && shm)
            assert_true(job_number(rank, "transport_peak_bytes") <=
                        job_number(peak, "master") / 4 * (strcmp(s->dtype, "fp32") ? 2 : 4));
    }
}

static void assert_same(const struct job_place *p, const struct setting *s, const struct outcome *first,
                        const char *topology, int servers, const char *when) {
    struct outcome o = train(p, s, topology, servers);
    if (strcmp(o.curve, first->curve) != 0 || strcmp(o.hash, first->hash) != 0)
        fail_msg("%s, %d servers, %s%s:\n%s%s\n-- is not --\n%s%s", topology, servers, s->dtype, when,
                 o.curve, o.hash, first->curve, first->hash);
    if (topology[0] == 'p') assert_counted(o.summary, s);
    outcome_free(&o);
}

static void check(const struct job_place *p, const struct setting *s) {
    emulate(p, 1);
    shake(0);
    struct outcome ring = train(p, s, "zero:1", 1);
    double skipped = job_number(ring.summary, "skipped");
    assert_true(strcmp(s->dtype, "fp16") ? skipped == 0 : skipped > 0 && skipped < STEPS);
    struct setting tcp = *s;
    tcp.medium = "tcp";
    for (int servers = 1; servers <= 2; servers++) assert_same(p, s, &ring, "ps:sync", servers, "");
    assert_same(p, &tcp, &ring, "ps:sync", 3, ", over tcp");
    for (int seed = 1; seed <= 2; seed++) {
        emulate(p, seed);
        shake(seed);
        assert_same(p, s, &ring, "ps:sync", 1 + seed,
                    seed == 1 ? ", with delays" : ", on 2 GPUs, with delays");
    }
    shake(0);
    outcome_free(&ring);
}

static void bf16_is_the_ring(void **state) {
    check(*state, &(struct setting){"gpt2.json", "bf16", "0.5", 2, 1, NULL});
}
static void fp32_is_the_ring(void **state) {
    check(*state, &(struct setting){"llama.json", "fp32", "0", 2, 1, NULL});
}
static void fp16_skips_as_the_ring(void **state) {
    check(*state, &(struct setting){"llama.json", "fp16", "0.5", 2, 1, NULL});
}
static void accumulation_is_the_ring(void **state) {
    check(*state, &(struct setting){"gpt2.json", "bf16", "0.5", 2, 2, NULL});
}

// Two units at a time, through slots on the device and their twins: what stage 3 does, with and without a server beside each
// worker.
static void units_are_stage_3(void **state) {
    static const char *const stars[] = {"ps:sync --resident units",
                                        "ps:sync --resident units --servers-on workers"};
    static const char *const media[] = {"shm", "tcp"};
    struct setting s = {"gpt2.json", "bf16", "0.5", 2, 2, NULL};
    emulate(*state, 1);
    shake(0);
    struct outcome ring = train(*state, &s, "zero:3", 1);
    for (int i = 0; i < 4; i++) {
        s.medium = media[i / 2];
        emulate(*state, 1 + i % 2);
        shake(i);
        struct outcome o = train(*state, &s, stars[i % 2], 2);
        if (strcmp(o.curve, ring.curve) != 0 || strcmp(o.hash, ring.hash) != 0)
            fail_msg("%s over %s:\n%s%s\n-- is not --\n%s%s", stars[i % 2], s.medium, o.curve, o.hash,
                     ring.curve, ring.hash);
        assert_predicted(o.summary);
        outcome_free(&o);
    }
    shake(0);
    outcome_free(&ring);
}

// One worker is never stale: both stars are the oracle, with and without a norm to wait for.
static void one_worker_is_local(void **state) {
    static const char *const clips[] = {"0.5", "0"};
    for (int i = 0; i < 2; i++) {
        struct setting s = {"gpt2.json", "bf16", clips[i], 1, 1, NULL};
        emulate(*state, 1);
        shake(0);
        struct outcome local = train(*state, &s, "local", 1);
        shake(1);
        assert_same(*state, &s, &local, "ps:sync", 2, "");
        s.medium = i ? "tcp" : "shm";
        assert_same(*state, &s, &local, "ps:async", 2, "");
        shake(0);
        outcome_free(&local);
    }
}

static void asynchronous(void **state) {
    struct setting s = {"llama.json", "bf16", "0.5", 3, 1, NULL};
    emulate(*state, 2);
    for (int seed = 0; seed < 2; seed++) {
        shake(seed);
        s.medium = seed ? NULL : "tcp";
        struct outcome o = train(*state, &s, "ps:async", 2);
        // Of the weights behind all twelve updates, in whatever order: about 4, and 5.5 where nothing was learnt. A single batch's
        // loss says less, and worker 0 may have one or none.
        double held_out = job_number(o.summary, "val_loss");
        if (!(held_out < 5)) fail_msg("held-out loss %g behind twelve updates", held_out);
        assert_counted(o.summary, &s);
        outcome_free(&o);
    }
    shake(0);
}

// Predicting needs no device, and says what a run on one measures.
static void predict(const struct job_place *p, const char *medium) {
    struct setting s = {"gpt2.json", "bf16", "0.5", 2, 1, medium};
    char options[1100];
    emulate(p, 1);
    struct outcome o = train(p, &s, "ps:sync", 2);
    emulate(p, 0);
    options_of(options, sizeof options, &s, "ps:sync", 2);
    struct job_output out = job_run(p, "%s --dry-run --json", options);
    assert_int_equal(out.status, 0);
    cJSON *dry = cJSON_Parse(out.out);
    const cJSON *a = cJSON_GetObjectItem(dry, "memory"), *b = cJSON_GetObjectItem(o.summary, "memory");
    assert_int_equal(cJSON_GetArraySize(a), 4);
    assert_counted(o.summary, &s);
    for (int i = 0; i < 4; i++)
        assert_true(cJSON_Compare(cJSON_GetObjectItem(cJSON_GetArrayItem(a, i), "predicted"),
                                  cJSON_GetObjectItem(cJSON_GetArrayItem(b, i), "predicted"), 1));
    cJSON_Delete(dry);
    job_output_free(&out);
    outcome_free(&o);
    out = job_run(p, "%s --out run --force", options);
    if (out.status != EXIT_USAGE || !strstr(out.err, "--device cuda"))
        fail_msg("%d: %s", out.status, out.err);
    job_output_free(&out);
}

static void dry_run_without_a_device(void **state) {
    predict(*state, "shm");
    predict(*state, "tcp");
}

// Memory that the driver does not page-lock: payloads go over tcp, with a remark and the same bits, or the run ends
// where shared memory was demanded.
static void unlockable_memory(void **state) {
    struct setting s = {"gpt2.json", "bf16", "0.5", 2, 1, NULL}, tcp = s;
    char options[1100];
    tcp.medium = "tcp";
    emulate(*state, 1);
    struct outcome over_tcp = train(*state, &tcp, "ps:sync", 2);
    setenv("EMULATED_CUDA_REGISTER", "0", 1);
    options_of(options, sizeof options, &s, "ps:sync", 2);
    struct job_output out = job_run(*state, "%s --no-weights --quiet --out run --force", options);
    const char *said = strstr(out.err, "payloads go over tcp: ");
    if (out.status || strstr(out.err, "emulated CUDA:") || !said ||
        !strstr(said, "bytes of shared memory cannot be page-locked for the GPU: out of memory"))
        fail_msg("status %d\n%s", out.status, out.err);
    job_output_free(&out);
    cJSON *summary = job_summary(*state, "run");
    assert_counted(summary, &tcp);
    assert_string_equal(job_text(summary, "weights_hash"), over_tcp.hash);
    cJSON_Delete(summary);
    outcome_free(&over_tcp);
    s.medium = "shm";
    options_of(options, sizeof options, &s, "ps:sync", 2);
    out = job_run(*state, "%s --no-weights --quiet --out run --force", options);
    if (out.status != 1 || strstr(out.err, "emulated CUDA:") || !strstr(out.err, "--medium shm: the ") ||
        !strstr(out.err, "cannot be page-locked: out of memory. Give --medium auto"))
        fail_msg("status %d\n%s", out.status, out.err);
    job_output_free(&out);
    s.medium = "tcp";
    options_of(options, sizeof options, &s, "ps:sync --servers-on workers", 2);
    out = job_run(*state, "%s --no-weights --quiet --out run --force", options);
    if (out.status != 1 || strstr(out.err, "emulated CUDA:") ||
        !strstr(out.err, "--servers-on workers: the ") ||
        !strstr(out.err, "cannot be page-locked: out of memory. Use --servers-on hosts"))
        fail_msg("status %d\n%s", out.status, out.err);
    job_output_free(&out);
    unsetenv("EMULATED_CUDA_REGISTER");
}

// ---------------------------------------------------------------- who has CUDA, and death
static pid_t start(const struct job_place *p, const char *topology) {
    job_remove(p, "run");
    pid_t pid =
        job_start(p,
                  "train --device cuda --model %s/gpt2.json --data data.txt --topology %s --workers 2 "
                  "--servers 2 --steps 1000000 --seq 16 --batch 1 --threads 1 --out %s/run --set "
                  "parameter_server.deadline_ms=8000",
                  p->dir, topology, p->dir);
    double until = now_seconds() + 60;
    while (job_lines(p, "run") < 3) {
        if (now_seconds() > until) {
            struct job_output o = job_wait(p, pid, 0);
            fail_msg("no step within 60 s:\n%s%s", o.out, o.err);
        }
        usleep(10000);
    }
    return pid;
}

static bool has_cuda(pid_t pid) {
    char dir[32];
    snprintf(dir, sizeof dir, "/proc/%d", (int)pid);
    char *maps = run_file_read(dir, "maps", false);
    assert_non_null(maps);
    bool has = strstr(maps, "libcuda.so.1") || strstr(maps, "libstarring_cuda.so");
    free(maps);
    return has;
}

static void kill_one(const struct job_place *p, const char *topology, const char *word, const char *says) {
    pid_t pids[4];
    emulate(p, 2);
    pid_t job = start(p, topology);
    assert_int_equal(job_processes(p, "starring worker", pids, 4), 2);
    assert_true(has_cuda(pids[0]) && has_cuda(pids[1]));
    assert_int_equal(job_processes(p, "starring server", pids, 4), 2);
    assert_false(has_cuda(pids[0]) || has_cuda(pids[1]));
    assert_true(job_processes(p, word, pids, 4) > 0);
    kill(pids[0], SIGKILL);
    struct job_output o = job_wait(p, job, DEADLINE_S);
    if (o.status != 1 || !strstr(o.err, says) || !strstr(o.err, "signal 9") || strstr(o.err, "signal 11") ||
        strstr(o.err, "emulated CUDA:"))
        fail_msg("%s: status %d\n%s", word, o.status, o.err);
    job_output_free(&o);
    double until = now_seconds() + 60;
    while (job_processes(p, "", pids, 4) && now_seconds() < until) usleep(10000);
    assert_int_equal(job_processes(p, "", pids, 4), 0);
}

static void killed_worker(void **state) {
    kill_one(*state, "ps:sync", "--rank 1 --threads", "worker 1 (pid");
}
static void killed_server(void **state) { kill_one(*state, "ps:sync", "starring server -c", "server "); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_is_the_ring),
        cmocka_unit_test(fp32_is_the_ring),
        cmocka_unit_test(fp16_skips_as_the_ring),
        cmocka_unit_test(units_are_stage_3),
        cmocka_unit_test(accumulation_is_the_ring),
        cmocka_unit_test(one_worker_is_local),
        cmocka_unit_test(asynchronous),
        cmocka_unit_test(dry_run_without_a_device),
        cmocka_unit_test(unlockable_memory),
        cmocka_unit_test(killed_worker),
        cmocka_unit_test(killed_server),
    };
    return cmocka_run_group_tests_name("cuda star", tests, job_setup, job_teardown);
}
