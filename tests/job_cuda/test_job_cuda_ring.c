// The ring with --device cuda on emulated GPUs: every stage, through every kind of collective, gives the bits
// of the others, whatever the streams' timing; its memory and bytes are those predicted; and what
// cannot be says what to do.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "shared/core/error.h"
#include "tests/job/job.h"

#define STEPS  3
#define DELAYS "300"  // the longest one, in microseconds

struct setting {
    const char *model, *dtype;
    int workers;
};

struct outcome {
    char *curve;
    char hash[20];
    double loss;  // of the last step
    cJSON *summary;
};

static int open_place(void **state) {
    struct job_place *p = xcalloc(1, sizeof *p);
    *state = p;
    if (job_open_place(p)) return -1;
    if (job_emulate(p, 1)) return 0;
    fprintf(stderr, "no emulated CUDA beside the program\n");
    return -1;
}

// Every run has other delays.
static void shake(void) {
    static int seed;
    char text[16];
    snprintf(text, sizeof text, "%d", ++seed);
    setenv("EMULATED_CUDA_SEED", text, 1);
    setenv("EMULATED_CUDA_DELAY_US", DELAYS, 1);
    // Every other run has an NCCL that keeps the order of its communicators by itself.
    if (!getenv("NCCL_MULTI_RANK_GPU_ENABLE"))
        setenv("EMULATED_NCCL_VERSION", seed % 2 ? "22600" : "22500", 1);
}

static void words_of(const struct setting *s, const char *topology, const char *more, char *words,
                     size_t bytes) {
    snprintf(
        words, bytes,
        "train --model %s --data data.txt --dtype %s --topology %s --workers %d --steps %d --seq 16 "
        "--batch 1 --lr 0.01 --threads 1 --set gradient_clipping=0.5 --set fp16.initial_scale_power=19 "
        "--set fp16.loss_scale_window=2 --set fp16.hysteresis=1 --set eval_batches=1 --no-weights --quiet "
        "--out run --force %s",
        s->model, s->dtype, topology, s->workers, STEPS, more);
}

static struct outcome train(const struct job_place *p, const struct setting *s, const char *topology,
                            const char *more) {
    char words[1024];
    struct outcome o = {0};
    shake();
    words_of(s, topology, more, words, sizeof words);
    struct job_output out = job_run(p, "%s", words);
    if (out.status || strstr(out.err, "emulated CUDA:"))
        fail_msg("%s %s, N=%d, %s: status %d\n%s", topology, more, s->workers, s->dtype, out.status, out.err);
    job_output_free(&out);
    o.summary = job_summary(p, "run");
    o.curve = job_curve(p, "run");
    o.loss = cJSON_GetObjectItem(cJSON_GetObjectItem(o.summary, "loss"), "last")->valuedouble;
    snprintf(o.hash, sizeof o.hash, "%s", cJSON_GetObjectItem(o.summary, "weights_hash")->valuestring);
    return o;
}

static void outcome_free(struct outcome *o) {
    free(o->curve);
    cJSON_Delete(o->summary);
}

// Predicted is measured, to the byte, in memory and on the wire; transfers took time, and not more than there
// was.
static void assert_counted(const struct outcome *o, const char *what) {
    const cJSON *rank, *class, *time = cJSON_GetObjectItem(o->summary, "time");
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(o->summary, "memory")) {
        cJSON_ArrayForEach(class, cJSON_GetObjectItem(rank, "predicted")) {
            double peak = job_number(cJSON_GetObjectItem(rank, "peak"), class->string);
            if (peak != class->valuedouble)
                fail_msg("%s: %s: predicted %.0f, measured %.0f bytes", what, class->string,
                         class->valuedouble, peak);
        }
        assert_true(job_number(cJSON_GetObjectItem(rank, "peak"), "pinned") > 0);
        assert_true(job_number(rank, "late_allocations") == 0);
    }
    cJSON_ArrayForEach(rank, cJSON_GetObjectItem(o->summary, "wire")) {
        if (job_number(rank, "predicted_sent") != job_number(rank, "sent_per_step") ||
            job_number(rank, "predicted_received") != job_number(rank, "received_per_step"))
            fail_msg("%s: predicted %.0f, sent %.3f bytes a step", what, job_number(rank, "predicted_sent"),
                     job_number(rank, "sent_per_step"));
        assert_true(job_number(rank, "sent_per_step") > 0);
    }
    double comm = job_number(time, "comm_exposed") + job_number(time, "comm_overlapped");
    if (comm <= 0 || comm > 2 * job_number(time, "total"))
        fail_msg("%s: %.4f s of transfers in %.4f s", what, comm, job_number(time, "total"));
}

static void check(const struct job_place *p, const struct setting *s, const struct outcome *want,
                  const char *topology, const char *more) {
    char what[256];
    struct outcome o = train(p, s, topology, more);
    snprintf(what, sizeof what, "%s %s, N=%d, %s", topology, more, s->workers, s->dtype);
    if (strcmp(o.curve, want->curve) != 0) fail_msg("%s:\n%s-- is not --\n%s", what, o.curve, want->curve);
    if (strcmp(o.hash, want->hash) != 0) fail_msg("%s: weights %s, not %s", what, o.hash, want->hash);
    if (s->workers > 1) assert_counted(&o, what);
    outcome_free(&o);
}

static const char *const rings[] = {"zero:0", "zero:1", "zero:2", "zero:3"};

// ---------------------------------------------------------------- the same bits

// On a GPU as on CPUs, up to the order in which kernels add.
static void assert_near_cpu(const struct job_place *p, const struct setting *s, const struct outcome *gpu,
                            double tolerance) {
    struct outcome cpu = train(p, s, "zero:1", "--device cpu");
    if (!(fabs(gpu->loss - cpu.loss) <= tolerance * cpu.loss))
        fail_msg("%s: loss %.7f on the GPU, %.7f on the CPU", s->dtype, gpu->loss, cpu.loss);
    assert_int_equal(cJSON_GetObjectItem(gpu->summary, "skipped")->valueint,
                     cJSON_GetObjectItem(cpu.summary, "skipped")->valueint);
    outcome_free(&cpu);
}

static void threads_on_one_gpu(void **state) {
    static const struct setting settings[] = {{"gpt2.json", "bf16", 2}, {"llama.json", "fp16", 4}};
    static const double tolerance[] = {0.02, 0.01};
    const struct job_place *p = *state;
    job_emulate(p, 1);
    for (int i = 0; i < 2; i++) {
        const struct setting *s = &settings[i];
        struct outcome first = train(p, s, "zero:0", "--device cuda --collective local");
        assert_counted(&first, "zero:0");
        for (int z = 1; z < 4; z++) check(p, s, &first, rings[z], "--device cuda --collective local");
        assert_near_cpu(p, s, &first, tolerance[i]);
        outcome_free(&first);
    }
}

// LoRA: products over some columns of a buffer, no gradients of what is frozen, and gathers of its own in stage 3.
static void adapters(void **state) {
#define LORA "--set lora.r=4 --set lora.alpha=6 --set lora.targets=all-linear "
    static const struct setting settings[] = {{"gpt2.json", "bf16", 2}, {"llama.json", "fp16", 4}};
    const struct job_place *p = *state;
    for (int i = 0; i < 2; i++) {
        const struct setting *s = &settings[i];
        job_emulate(p, 1);
        struct outcome first = train(p, s, "zero:0", "--device cuda --collective local " LORA);
        struct outcome cpu = train(p, s, "zero:1", "--device cpu " LORA);
        if (!(fabs(first.loss - cpu.loss) <= 0.02 * cpu.loss))
            fail_msg("%s: loss %.7f on the GPU, %.7f on the CPU", s->dtype, first.loss, cpu.loss);
        for (int z = 1; z < 4; z++) check(p, s, &first, rings[z], "--device cuda --collective local " LORA);
        check(p, s, &first, "zero:3",
              "--device cuda --collective local --set activation_checkpointing.recompute=block " LORA);
        job_emulate(p, s->workers);
        check(p, s, &first, "zero:3", "--device cuda --collective nccl " LORA);
        struct outcome star = train(p, s, "ps:sync", "--device cuda " LORA);
        assert_string_equal(star.curve, first.curve);
        assert_string_equal(star.hash, first.hash);
        outcome_free(&star);
        outcome_free(&cpu);
        outcome_free(&first);
    }
#undef LORA
}

static void threads_on_several_gpus(void **state) {
    struct setting s = {"gpt2.json", "fp32", 4};
    const struct job_place *p = *state;
    job_emulate(p, 1);
    struct outcome first = train(p, &s, "zero:1", "--device cuda --collective local");
    assert_near_cpu(p, &s, &first, 1e-4);
    job_emulate(p, 3);
    for (int z = 0; z < 4; z += 3) check(p, &s, &first, rings[z], "--device cuda --collective local");
    job_emulate(p, 4);
    check(p, &s, &first, "zero:2", "--device cuda --collective local");
    for (int z = 0; z < 4; z++) check(p, &s, &first, rings[z], "--device cuda --collective nccl");
    outcome_free(&first);
}

// Sums within two pairs of ranks and then across them: the same bits over NCCL as among threads, and others than without groups.
static void groups_of_gpus(void **state) {
    static const char groups[] = "--device cuda --reduce-group 2 --collective";
    struct setting s = {"gpt2.json", "bf16", 4};
    const struct job_place *p = *state;
    char more[160];
    job_emulate(p, 4);
    snprintf(more, sizeof more, "%s local", groups);
    struct outcome first = train(p, &s, "zero:1", more),
                   plain = train(p, &s, "zero:1", "--device cuda --collective nccl");
    assert_string_not_equal(first.hash, plain.hash);
    snprintf(more, sizeof more, "%s nccl", groups);
    for (int z = 0; z < 4; z++) check(p, &s, &first, rings[z], more);
    snprintf(more, sizeof more, "%s nccl --set zero_optimization.zero_hpz_partition_size=2", groups);
    check(p, &s, &first, "zero:3", more);
    outcome_free(&first);
    outcome_free(&plain);
}

static void processes(void **state) {
    struct setting s = {"llama.json", "bf16", 2};
    const struct job_place *p = *state;
    job_emulate(p, 1);
    struct outcome first = train(p, &s, "zero:1", "--device cuda");
    for (int z = 0; z < 4; z++)
        check(p, &s, &first, rings[z], "--device cuda --launch processes --collective shm");
    check(p, &s, &first, "zero:2", "--device cuda --launch mpi --collective mpi");
    job_emulate(p, 2);
    check(p, &s, &first, "zero:3", "--device cuda --launch processes --collective shm");
    check(p, &s, &first, "zero:3", "--device cuda --launch mpi --collective mpi");
    outcome_free(&first);
}

static void one_worker_is_local(void **state) {
    struct setting s = {"gpt2.json", "bf16", 1};
    const struct job_place *p = *state;
    job_emulate(p, 1);
    struct outcome local = train(p, &s, "local", "--device cuda");
    check(p, &s, &local, "zero:0", "--device cuda");
    check(p, &s, &local, "zero:3", "--device cuda --collective nccl");
    outcome_free(&local);
}

static void accumulation(void **state) {
    static const char more[] =
        "--device cuda --collective local --set gradient_accumulation_steps=2 "
        "--set memory.logits_bytes=9000";
    struct setting s = {"llama.json", "bf16", 2};
    const struct job_place *p = *state;
    job_emulate(p, 1);
    struct outcome first = train(p, &s, "zero:3", more);
    assert_counted(&first, "zero:3 with micro-batches");
    check(p, &s, &first, "zero:2", more);
    outcome_free(&first);
}

// NCCL's own order of adding: other bits, about the same loss, in every type.
static void native_reductions(void **state) {
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    const struct job_place *p = *state;
    job_emulate(p, 2);
    for (int i = 0; i < 3; i++) {
        struct setting s = {"gpt2.json", dtypes[i], 2};
        struct outcome ordered = train(p, &s, "zero:2", "--device cuda --collective nccl");
        struct outcome native = train(p, &s, "zero:2", "--device cuda --collective nccl --set reduce=native");
        assert_true(fabs(native.loss - ordered.loss) <= 0.02 * ordered.loss);
        assert_counted(&native, "native");
        outcome_free(&ordered);
        outcome_free(&native);
    }
}

// NCCL that lets two ranks share a GPU when told to.
static void nccl_shares_a_gpu_when_asked(void **state) {
    struct setting s = {"gpt2.json", "bf16", 2};
    const struct job_place *p = *state;
    job_emulate(p, 1);
    struct outcome first = train(p, &s, "zero:1", "--device cuda --collective local");
    setenv("EMULATED_NCCL_VERSION", "23000", 1);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    check(p, &s, &first, "zero:3", "--device cuda --collective nccl");
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    unsetenv("EMULATED_NCCL_VERSION");
    outcome_free(&first);
}

// ---------------------------------------------------------------- what is chosen, and predicted

static void assert_config(const struct job_place *p, const char *more, const char *device,
                          const char *collective) {
    struct job_output out = job_run(p, "train --topology zero:1 --workers 2 --print-config %s", more);
    cJSON *c = cJSON_Parse(out.out);
    if (out.status || !c) fail_msg("%s: %s", more, out.err);
    const char *d = cJSON_GetObjectItem(c, "device")->valuestring;
    const char *k = cJSON_GetObjectItem(cJSON_GetObjectItem(c, "ring"), "collective")->valuestring;
    if (strcmp(d, device) != 0 || strcmp(k, collective) != 0)
        fail_msg("%s: %s and %s, not %s and %s", more, d, k, device, collective);
    cJSON_Delete(c);
    job_output_free(&out);
}

static void auto_is_resolved(void **state) {
    const struct job_place *p = *state;
    job_emulate(p, 1);
    assert_config(p, "", "cuda", "local");
    assert_config(p, "--launch mpi", "cuda", "mpi");
    assert_config(p, "--collective nccl", "cuda", "nccl");
    assert_config(p, "--device cpu", "cpu", "shm");
    assert_config(p, "--launch processes", "cuda", "shm");
    assert_config(p, "--device cpu --launch mpi", "cpu", "mpi");
    job_emulate(p, 2);
    assert_config(p, "", "cuda", "nccl");
    assert_config(p, "--launch mpi", "cuda", "nccl");
    assert_config(p, "--workers 3", "cuda", "local");
    assert_config(p, "--workers 1", "cuda", "local");
    job_emulate(p, 0);
    assert_config(p, "", "cpu", "shm");
    assert_config(p, "--device cuda", "cuda", "nccl");  // to predict with: a GPU for each rank
}

// --dry-run needs no GPU and predicts what a run on one takes.
static void dry_run_needs_no_gpu(void **state) {
    static const char *const kinds[] = {"local", "nccl", "mpi --launch mpi", "shm --launch processes"};
    struct setting s = {"llama.json", "bf16", 2};
    const struct job_place *p = *state;
    for (int k = 0; k < 4; k++) {
        char more[128], words[1024];
        snprintf(more, sizeof more, "--device cuda --collective %s", kinds[k]);
        job_emulate(p, 2);
        struct outcome o = train(p, &s, "zero:3", more);
        job_emulate(p, 0);
        words_of(&s, "zero:3", more, words, sizeof words);
        struct job_output out = job_run(p, "%s --dry-run --json", words);
        if (out.status) fail_msg("%s: %s", more, out.err);
        cJSON *dry = cJSON_Parse(out.out);
        for (int r = 0; r < 2; r++) {
            const cJSON *a = cJSON_GetArrayItem(cJSON_GetObjectItem(dry, "memory"), r);
            const cJSON *b = cJSON_GetArrayItem(cJSON_GetObjectItem(o.summary, "memory"), r);
            assert_true(
                cJSON_Compare(cJSON_GetObjectItem(a, "predicted"), cJSON_GetObjectItem(b, "peak"), 1));
        }
        cJSON_Delete(dry);
        job_output_free(&out);
        outcome_free(&o);
    }
}

// ---------------------------------------------------------------- errors

static void refused(const struct job_place *p, int status, const char *why, const char *more) {
    struct setting s = {"gpt2.json", "bf16", 2};
    char words[1024];
    words_of(&s, "zero:1", more, words, sizeof words);
    struct job_output out = job_run(p, "%s", words);
    if (out.status != status || !strstr(out.err, why))
        fail_msg("%s: status %d, not %d with \"%s\":\n%s", more, out.status, status, why, out.err);
    job_output_free(&out);
}

static void impossible_collectives(void **state) {
    const struct job_place *p = *state;
    job_emulate(p, 2);
    refused(p, 2, "NCCL moves the memory of GPUs", "--device cpu --collective nccl");
    refused(p, 2, "use --collective local", "--device cuda --collective mpi --launch threads");
    refused(p, 2, "or --launch mpi", "--device cuda --collective mpi");
    refused(p, 2, "use --collective mpi", "--device cuda --collective local --launch mpi");
    refused(p, 2, "expected one of \"auto\", \"local\", \"shm\", \"mpi\", \"tcp\", \"nccl\"",
            "--collective ucx");
    job_emulate(p, 1);
    refused(p, 1, "share one GPU", "--device cuda --collective nccl");
    job_emulate(p, 0);
    refused(p, 2, "--device cuda: ", "--device cuda --collective local");
    job_emulate(p, 2);
    setenv("EMULATED_CUDA_PEERS", "0", 1);
    refused(p, 1, "use --collective nccl", "--device cuda --collective local");
    unsetenv("EMULATED_CUDA_PEERS");
}

// Where NCCL cannot be loaded it is refused by name, and "auto" does without.
static void nccl_is_missing(void **state) {
    const struct job_place *p = *state;
    job_emulate(p, 2);
    char *found = xstrdup(getenv("LD_LIBRARY_PATH")), *path = xasprintf("%s/broken:%s", p->dir, found);
    char *folder = xasprintf("%s/broken", p->dir), *file = xasprintf("%s/libnccl.so.2", folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fclose(f);
    setenv("LD_LIBRARY_PATH", path, 1);
    refused(p, 2, "--collective nccl: NCCL was not found", "--device cuda --collective nccl");
    assert_config(p, "", "cuda", "local");
    setenv("LD_LIBRARY_PATH", found, 1);
    free(found);
    free(path);
    free(folder);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_on_one_gpu),
        cmocka_unit_test(adapters),
        cmocka_unit_test(threads_on_several_gpus),
        cmocka_unit_test(groups_of_gpus),
        cmocka_unit_test(processes),
        cmocka_unit_test(one_worker_is_local),
        cmocka_unit_test(accumulation),
        cmocka_unit_test(native_reductions),
        cmocka_unit_test(auto_is_resolved),
        cmocka_unit_test(nccl_shares_a_gpu_when_asked),
        cmocka_unit_test(dry_run_needs_no_gpu),
        cmocka_unit_test(impossible_collectives),
        cmocka_unit_test(nccl_is_missing),
    };
    return cmocka_run_group_tests_name("ring on GPUs", tests, open_place, job_teardown);
}
