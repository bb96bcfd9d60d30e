// starring bench: what step, kernels, adam and collective print, on the CPU and on the emulated CUDA device;
// no figure is looked at, as it would depend on the machine, but that they are there and finite.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "kernels/backend.h"
#include "shared/core/disk.h"
#include "shared/core/error.h"
#include "shared/device/device_facts.h"
#include "shared/model/spec.h"
#include "tests/job/job.h"

#define SMALL "--rounds 1 --elements 4096 --matmul 64"

static double positive(const cJSON *o, const char *key) {
    double x = job_number(o, key);
    if (x <= 0) fail_msg("%s is %g", key, x);
    return x;
}

static bool emulate(const struct job_place *p, int devices) {
    if (job_emulate(p, devices)) return true;
    skip();
    return false;
}

// ---------------------------------------------------------------- step

static void expect_step(const cJSON *j, bool gpu) {
    static const char *const keys[] = {
        "tokens_per_second", "flops_per_second",        "flops_per_step", "share_of_matmul", "mfu",
        "step_seconds",      "matmul_flops_per_second", "params",         "forward_share",   "backward_share",
        "optimizer_share"};
    static const char *const peak[] = {"peak_flops_per_second", "share_of_peak", "share_of_peak_causal",
                                       "matmul_share_of_peak"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) positive(j, keys[i]);
    for (size_t i = 0; i < sizeof peak / sizeof *peak; i++)
        assert_true(gpu ? cJSON_IsNull(job_item(j, peak[i])) : positive(j, peak[i]) > 0);
    if (!gpu) {
        double roof = job_number(j, "peak_flops_per_second");
        assert_non_null(strstr(job_text(j, "peak"), " threads"));
        assert_true(
            fabs(job_number(j, "matmul_share_of_peak") * roof / job_number(j, "matmul_flops_per_second") -
                 1) < 1e-9);
    }
    // The bench says where a share is one that no machine can reach.
    const cJSON *floor = job_item(j, "floor");
    bool possible =
        positive(floor, "share") <= 1 && positive(floor, "forward_share") <= 1 &&
        positive(floor, "backward_share") <= 1 && positive(floor, "optimizer_share") <= 1 &&
        job_number(j, "share_of_matmul") <= 1 &&
        (gpu || (job_number(j, "share_of_peak") <= 1 && job_number(j, "matmul_share_of_peak") <= 1));
    if (cJSON_IsTrue(job_item(j, "shares_possible")) != possible)
        fail_msg("shares are %spossible: %s", possible ? "" : "im", cJSON_Print(j));
    double step = job_number(j, "step_seconds");
    assert_true(job_number(j, "idle_seconds") < step);
    assert_true(fabs(job_number(j, "tokens_per_second") * step - 2 * 16) < 1e-6);
    assert_true(fabs(job_number(j, "flops_per_second") * step / job_number(j, "flops_per_step") - 1) < 1e-9);
    assert_true(job_number(j, "mfu") == job_number(j, "share_of_matmul"));
    // tiny: 2 blocks of (64 + 2 x 32 + 64) x 64 in attention and 3 x 64 x 176 in the MLP, a head of 256 x 64;
    // 12 x 2 x 16 x 64 for attention. 32 tokens.
    double products = 6 * (2 * (192 * 64 + 3 * 64 * 176) + 256 * 64), attention = 12 * 2 * 16 * 64;
    assert_true(job_number(j, "flops_per_step") == 32 * (products + attention));
    assert_true(job_number(j, "flops_per_step_causal") == 32 * (products + attention / 2));
    assert_true(fabs(job_number(j, "mfu_causal") / job_number(j, "mfu") /
                         (job_number(j, "flops_per_step_causal") / job_number(j, "flops_per_step")) -
                     1) < 1e-9);
    assert_true(cJSON_IsNull(job_item(j, "mfu_datasheet_causal")));
    assert_true(job_number(j, "matmul_size") == 64 && job_number(j, "late_allocations") == 0);
    // Neither a CPU nor the emulation is in a datasheet.
    assert_true(cJSON_IsNull(job_item(j, "mfu_datasheet")) &&
                cJSON_IsNull(job_item(j, "datasheet_flops_per_second")));
    job_text(j, "datasheet");
    job_text(j, "mfu_formula");
    const cJSON *memory = job_item(j, "memory");
    assert_true(positive(memory, "predicted_bytes") == job_number(memory, "ledger_peak_bytes"));
    if (!gpu) {
        assert_true(cJSON_IsNull(job_item(j, "device")));
        return;
    }
    assert_string_equal(job_text(job_item(j, "device"), "name"), "emulated GPU");
    assert_true(job_number(memory, "ledger_bytes") == job_number(memory, "predicted_bytes"));
    assert_true(job_number(memory, "used_bytes") + job_number(memory, "free_bytes") ==
                job_number(memory, "total_bytes"));
    assert_true(job_number(memory, "used_bytes") == job_number(memory, "ledger_bytes") +
                                                        positive(memory, "workspace_bytes") +
                                                        job_number(memory, "other_bytes"));
    assert_true(job_number(memory, "other_bytes") >= 0 && job_number(memory, "other_bytes") < 1 << 20);
}

#define STEP "step --model tiny --batch 2 --seq 16 --steps 2 --matmul 64"

static void a_step_has_its_figures(void **state) {
    cJSON *j = job_json(*state, "bench " STEP " --device cpu --dtype bf16 --json");
    expect_step(j, false);
    cJSON_Delete(j);
    // Several micro-batches, whose gradients are added in fp32.
    j = job_json(*state,
                 "bench " STEP " --device cpu --dtype bf16 --json --set gradient_accumulation_steps=2");
    const cJSON *memory = job_item(j, "memory");
    assert_true(positive(memory, "predicted_bytes") == job_number(memory, "ledger_peak_bytes"));
    cJSON_Delete(j);
    struct job_output o = job_run(*state, "bench " STEP " --device cpu");
    assert_int_equal(o.status, 0);
    const char *speed = strstr(o.out, "tokens/s       "), *full = strstr(o.out, "MFU, full ");
    const char *causal = strstr(o.out, "MFU, causal ");
    assert_true(speed && full && causal && speed < full && full < causal);
    assert_non_null(strstr(full, FLOPS_FULL));
    assert_non_null(strstr(causal, FLOPS_CAUSAL));
    assert_non_null(strstr(o.out, ": equal\n"));
    const char *floor = strstr(o.out, "floor          ");
    assert_true(floor && floor > causal && strstr(floor, "of the step's time; forward "));
    job_output_free(&o);
}

static void a_step_on_a_gpu_has_its_figures(void **state) {
    static const char *const types[] = {"bf16", "fp16", "fp32"};
    if (!emulate(*state, 1)) return;
    for (int i = 0; i < 3; i++) {
        char *words = xasprintf(STEP " --device cuda --dtype %s", types[i]);
        cJSON *j = job_json(*state, "bench %s --json", words);
        expect_step(j, true);
        assert_string_equal(job_text(j, "dtype"), types[i]);
        cJSON_Delete(j);
        free(words);
    }
    struct job_output o = job_run(*state, "bench " STEP " --device cuda");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "emulated GPU"));
    assert_non_null(strstr(o.out, "datasheet      none: "));
    assert_non_null(strstr(o.out, "in use"));
    job_output_free(&o);
}

static void what_does_not_fit_is_said_before_it_is_taken(void **state) {
    if (!emulate(*state, 1)) return;
    setenv("EMULATED_CUDA_MEMORY_MIB", "64", 1);
    struct job_output o =
        job_run(*state, "bench step --model demo --batch 64 --seq 128 --matmul 64 --device cuda");
    assert_int_equal(o.status, 1);
    if (!strstr(o.err, "--batch 64 --seq 128 (smaller ones need less) needs ") ||
        !strstr(o.err, " 56.0 MiB are left (free memory of GPU 0, "))
        fail_msg("not said what does not fit:\n%s", o.err);
    job_output_free(&o);
    o = job_run(*state,
                "bench step --model demo --batch 64 --seq 128 --matmul 64 --device cuda --set "
                "memory.check=off");
    unsetenv("EMULATED_CUDA_MEMORY_MIB");
    if (o.status != 1 || !strstr(o.err, "memory.check is off") || !strstr(o.err, "out of device memory"))
        fail_msg("status %d:\n%s", o.status, o.err);
    job_output_free(&o);
}

static void datasheets_name_the_board(void **state) {
    static const struct {
        const char *name;
        double tflops;  // 0: not known
    } wants[] = {{"NVIDIA A100-SXM4-80GB", 312},
                 {"NVIDIA A100 80GB PCIe", 312},
                 {"NVIDIA H100 80GB HBM3", 989.4},
                 {"NVIDIA H100 PCIe", 756},
                 {"NVIDIA H200", 989.4},
                 {"NVIDIA B200", 2250},
                 {"NVIDIA GeForce RTX 4090", 165.2},
                 {"NVIDIA H200 NVL", 0},
                 {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0},
                 {"NVIDIA A100-SXM4-40GB MIG 2g.10gb", 0},
                 {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
                 {"emulated GPU", 0}};
    const char *source;
    (void)state;
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        double flops = datasheet_flops(wants[i].name, DT_BF16, &source);
        if (fabs(flops - wants[i].tflops * 1e12) > 1) fail_msg("%s: %g", wants[i].name, flops);
        assert_true(strlen(source) > 10);
    }
    assert_true(datasheet_flops("NVIDIA H200", DT_F32, &source) == 0);
}

// ---------------------------------------------------------------- kernels and adam

static void expect_kernels(const cJSON *j, bool gpu) {
    bool seen[OP_COUNT] = {false};
    const cJSON *row;
    cJSON_ArrayForEach(row, job_item(j, "operations")) {
        bool computes = cJSON_HasObjectItem(row, "flops");
        positive(row, "seconds");
        positive(row, computes ? "flops" : "bytes");
        positive(row, computes ? "flops_per_second" : "bytes_per_second");
        positive(row, computes ? "matmul_flops_per_second" : "copy_bytes_per_second");
        positive(row, computes ? "share_of_matmul" : "share_of_copy");
        assert_true(cJSON_HasObjectItem(row, "share_of_peak") == (computes && !gpu));
        if (computes && !gpu) {
            positive(row, "peak_flops_per_second");
            positive(row, "share_of_peak");
            positive(row, "matmul_share_of_peak");
        }
        for (int op = 0; op < OP_COUNT; op++)
            seen[op] |= !strcmp(job_text(row, "operation"), op_name((enum op)op));
    }
    for (int op = 0; op < OP_COUNT; op++)
        if (!seen[op]) fail_msg("bench kernels: no row of %s", op_name((enum op)op));
}

static void every_operation_has_a_row(void **state) {
    cJSON *j =
        job_json(*state, "bench kernels --device cpu --threads 1 --set cpu.kernel=fma " SMALL " --json");
    expect_kernels(j, false);
    const char *peak = job_text(j, "peak");
    assert_true(!strncmp(peak, "fp32 fma ", 9) && strstr(peak, ", 1 thread"));
    assert_false(cJSON_HasObjectItem(j, "device"));
    cJSON_Delete(j);
    j = job_json(*state, "bench adam --device cpu --rounds 1 --elements 1000 --json");
    positive(job_item(j, "adam"), "bytes_per_second");
    assert_true(job_number(job_item(j, "adam"), "bytes") == 28000);
    positive(j, "share_of_copy");
    cJSON_Delete(j);
}

static void every_operation_has_a_row_on_a_gpu(void **state) {
    static const char *const types[] = {"bf16", "fp16", "fp32"};
    if (!emulate(*state, 1)) return;
    for (int i = 0; i < 3; i++) {
        char *words = xasprintf("kernels --device cuda --dtype %s " SMALL, types[i]);
        cJSON *j = job_json(*state, "bench %s --json", words);
        expect_kernels(j, true);
        assert_string_equal(job_text(job_item(j, "device"), "name"), "emulated GPU");
        assert_true(job_number(j, "target_share_of_copy") == 0.85);
        cJSON_Delete(j);
        free(words);
    }
    cJSON *j = job_json(*state, "bench adam --device cuda --rounds 1 --elements 1024 --json");
    positive(j, "share_of_copy");
    assert_true(positive(job_item(j, "adam"), "launches") >= 1);
    cJSON_Delete(j);
    struct job_output o = job_run(*state, "bench kernels --device cuda " SMALL);
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "target"));
    job_output_free(&o);
}

// ---------------------------------------------------------------- collective

// Rows of all ten primitives, nothing wrong.
static void expect_collective(const cJSON *j, const char *collective, int ranks, const char *type) {
    static const char *const names[] = {"broadcast", "scatter",    "reduce",         "all_reduce",
                                        "gather",    "all_gather", "reduce_scatter", "all_to_all",
                                        "send_recv", "barrier"};
    const cJSON *rows = job_item(j, "rows"), *row;
    bool seen[10] = {false};
    assert_string_equal(job_text(j, "collective"), collective);
    assert_true(job_number(j, "ranks") == ranks && job_number(j, "wrong") == 0);
    cJSON_ArrayForEach(row, rows) {
        static const char *const places[] = {"out_of_place", "in_place"};
        bool barrier = !strcmp(job_text(row, "operation"), "barrier");
        for (int i = 0; i < 10; i++) seen[i] |= !strcmp(job_text(row, "operation"), names[i]);
        assert_string_equal(job_text(row, "type"), barrier ? "none" : type);
        job_text(row, "redop");
        job_number(row, "root");
        assert_true(job_number(row, "size") >= job_number(row, "count"));
        for (int p = 0; p < 2; p++) {
            const cJSON *f = job_item(row, places[p]);
            if (cJSON_IsNull(f)) continue;
            positive(f, "seconds");
            assert_true(job_number(f, "wrong") == 0);
            if (!barrier)
                assert_true(fabs(positive(f, "algorithm_bytes_per_second") * job_number(f, "seconds") /
                                     job_number(row, "size") -
                                 1) < 1e-9);
            if (ranks > 1 && !barrier) positive(f, "bus_bytes_per_second");
        }
    }
    for (int i = 0; i < 10; i++)
        if (!seen[i] && (ranks > 1 || strcmp(names[i], "send_recv") != 0)) fail_msg("no row of %s", names[i]);
}

#define FEW "--iterations 2 --warmup 1 --min-bytes 1K --max-bytes 16K"

// Each row says what the engine did, as it did it.
static void expect_by(const cJSON *j, const char *operation, const char *by) {
    const cJSON *row;
    cJSON_ArrayForEach(
        row, cJSON_GetObjectItem(j, "rows")) if (!strcmp(cJSON_GetObjectItem(row, "operation")->valuestring,
                                                         operation))
        assert_string_equal(cJSON_GetObjectItem(row, "by")->valuestring, by);
}

static void collectives_of_threads_are_right(void **state) {
    cJSON *j = job_json(*state, "bench collective --device cpu --ranks 3 --dtype bf16 " FEW " --json");
    expect_collective(j, "local", 3, "bf16");
    expect_by(j, "reduce_scatter", "memory");
    cJSON_Delete(j);
    struct job_output o = job_run(*state, "bench collective --device cpu --op barrier,all_gather " FEW);
    assert_int_equal(o.status, 0);
    const char *head = strstr(o.out, "# operation");
    assert_non_null(head);
    static const char *const columns[] = {"size", "count", "type",  "redop", "root",
                                          "time", "algbw", "busbw", "#wrong"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        head = strstr(head, columns[i]);  // in this order
        if (!head) fail_msg("no column %s in\n%s", columns[i], o.out);
    }
    assert_non_null(strstr(o.out, "all_gather"));
    assert_null(strstr(o.out, "all_reduce"));
    job_output_free(&o);
}

static void collectives_over_tcp_are_right(void **state) {
    struct job_output o = job_run(*state, "bench collective --engine tcp --ranks 3 " FEW " --json");
    cJSON *j = cJSON_Parse(o.out);
    if (o.status || !j) fail_msg("status %d\n%s", o.status, o.err);
    expect_collective(j, "tcp", 3, "fp32");
    expect_by(j, "all_gather", "exchange");
    expect_by(j, "all_reduce", "exchange");
    cJSON_Delete(j);
    job_output_free(&o);
    o = job_run(*state, "bench collective --engine tcp --reduce native");
    assert_int_equal(o.status, 2);
    assert_non_null(strstr(o.err, "--reduce native: over tcp ranks sum themselves"));
    job_output_free(&o);
    o = job_run(*state, "bench collective --engine gloo");
    assert_int_equal(o.status, 2);
    assert_non_null(strstr(o.err, "--engine gloo was removed: use --engine tcp"));
    job_output_free(&o);
}

static void what_cannot_be_benched_is_said(void **state) {
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"--op all_redue", "did you mean all_reduce"},          {"--op reduce --dtype uint8", "int64"},
        {"--dtype fp8", "expected one of fp32, bf16"},          {"--min-bytes 4X", "--min-bytes 4X"},
        {"--min-bytes 8K --max-bytes 4K", "below --min-bytes"}, {"--engine mpi --device cpu", "mpirun -n N"},
        {"--engine nccl --device cpu", "--device cuda"},        {"--ranks 0", "--ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_output o = job_run(*state, "bench collective %s", cases[i].words);
        if (o.status != 2 || !strstr(o.err, cases[i].says))
            fail_msg("bench collective %s: status %d\n%s", cases[i].words, o.status, o.err);
        job_output_free(&o);
    }
    struct job_output o = job_run(*state, "bench step --model gpt2-124m --seq 2048 --device cpu");
    if (o.status != 2 || !strstr(o.err, "--seq 2048: gpt2-124m has 1024 learned positions"))
        fail_msg("bench step: status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

// Under mpirun the ranks are its processes, and rank 0 alone prints.
static cJSON *bench_mpi(const struct job_place *p, int ranks, const char *words) {
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI keeps what it has allocated
    char *line = xasprintf(
        "cd %s && mpirun -n %d --oversubscribe --bind-to none '%s' bench collective %s --json > out.json",
        p->dir, ranks, p->program, words);
    int status = system(line);
    unsetenv("ASAN_OPTIONS");
    if (!WIFEXITED(status) || WEXITSTATUS(status)) fail_msg("%s: status %d", line, WEXITSTATUS(status));
    char *out = run_file_read(p->dir, "out.json", false);
    cJSON *j = cJSON_Parse(out);
    assert_non_null(j);
    free(out);
    free(line);
    return j;
}

static void collectives_of_processes_are_right(void **state) {
    cJSON *j = bench_mpi(*state, 2, "--device cpu " FEW);
    expect_collective(j, "mpi", 2, "fp32");
    assert_string_equal(job_text(j, "ranks_are"), "processes");
    expect_by(j, "all_reduce", "exchange");
    cJSON_Delete(j);
}

static void collectives_on_gpus_are_right(void **state) {
    static const struct {
        int devices, ranks;
        const char *words, *collective;
    } cases[] = {
        {1, 3, "--ranks 3 --dtype bf16", "local"},  // one GPU for all
        {3, 3, "--ranks 3 --dtype bf16", "nccl"},   // one each: auto
        {3, 3, "--ranks 3 --dtype bf16 --reduce native", "nccl"},
        {1, 1, "--ranks 1 --dtype bf16 --engine nccl", "nccl"},
        {2, 2, "--ranks 2 --dtype bf16 --engine threads", "local"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!emulate(*state, cases[i].devices)) return;
        char *words = xasprintf("collective --device cuda %s " FEW, cases[i].words);
        cJSON *j = job_json(*state, "bench %s --json", words);
        expect_collective(j, cases[i].collective, cases[i].ranks, "bf16");
        if (strstr(cases[i].words, "native")) expect_by(j, "all_reduce", "library");
        assert_string_equal(job_text(job_item(j, "device"), "name"), "emulated GPU");
        cJSON_Delete(j);
        free(words);
    }
    emulate(*state, 1);
    cJSON *j = bench_mpi(*state, 2, "--device cuda --dtype bf16 " FEW);  // staged through the host
    expect_collective(j, "mpi", 2, "bf16");
    cJSON_Delete(j);
}

// ---------------------------------------------------------------- memory of runs

// Ranks that share a GPU are added up, and nothing else takes memory in the emulation: what is in use is
// theirs, if all of them have looked while all still held what they took.
static void memory_of_gpus_is_accounted_for(void **state) {
    for (int devices = 1; devices < 3; devices++) {
        if (!emulate(*state, devices)) return;
        struct job_output o =
            job_run(*state,
                    "train --topology zero:2 --workers 2 --collective local --model tiny --data "
                    "data.txt --steps 2 --batch 1 --seq 16 --device cuda --out gpus --quiet");
        if (o.status) fail_msg("status %d\n%s", o.status, o.err);
        job_output_free(&o);
        cJSON *s = job_summary(*state, "gpus");
        assert_int_equal(cJSON_GetArraySize(job_item(s, "devices")), devices);
        const cJSON *d, *r;
        cJSON_ArrayForEach(d, job_item(s, "devices")) {
            double used = 0;
            cJSON_ArrayForEach(r, job_item(s, "memory")) {
                const cJSON *own = job_item(r, "device");
                if (!strcmp(job_text(own, "bus_id"), job_text(d, "bus_id")))
                    used += positive(own, "ledger_bytes") + positive(own, "workspace_bytes");
            }
            assert_int_equal(cJSON_GetArraySize(job_item(d, "ranks")), 2 / devices);
            assert_true(job_number(d, "ledger_bytes") + job_number(d, "workspace_bytes") == used);
            double other = job_number(d, "other_bytes");
            if (other < 0 || other >= 1 << 20) fail_msg("%.0f bytes in use are not accounted for", other);
        }
        cJSON_Delete(s);
        job_remove(*state, "gpus");
    }
}

// Host memory that a ring on a GPU keeps for its scalars is a class of its own, in no total.
static void a_dry_run_keeps_pinned_memory_apart(void **state) {
    if (!emulate(*state, 1)) return;
    struct job_output o =
        job_run(*state, "train --topology zero:2 --workers 2 --model tiny --device cuda --dry-run --json");
    assert_int_equal(o.status, 0);
    cJSON *j = cJSON_Parse(o.out);
    assert_non_null(j);
    const cJSON *rank = cJSON_GetArrayItem(job_item(j, "memory"), 1), *class;
    double sum = 0;
    cJSON_ArrayForEach(class, job_item(rank, "predicted")) sum += class->valuedouble;
    assert_true(positive(rank, "pinned_bytes") == job_number(job_item(rank, "predicted"), "pinned"));
    assert_true(positive(rank, "predicted_bytes") == sum - job_number(rank, "pinned_bytes"));
    cJSON_Delete(j);
    job_output_free(&o);
}

static int open_place(void **state) {
    static struct job_place place;
    *state = &place;
    return job_open_place(&place);
}

static int close_place(void **state) {
    job_close_place(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_has_its_figures),
        cmocka_unit_test(a_step_on_a_gpu_has_its_figures),
        cmocka_unit_test(what_does_not_fit_is_said_before_it_is_taken),
        cmocka_unit_test(datasheets_name_the_board),
        cmocka_unit_test(every_operation_has_a_row),
        cmocka_unit_test(every_operation_has_a_row_on_a_gpu),
        cmocka_unit_test(collectives_of_threads_are_right),
        cmocka_unit_test(collectives_of_processes_are_right),
        cmocka_unit_test(collectives_over_tcp_are_right),
        cmocka_unit_test(what_cannot_be_benched_is_said),
        cmocka_unit_test(collectives_on_gpus_are_right),
        cmocka_unit_test(memory_of_gpus_is_accounted_for),
        cmocka_unit_test(a_dry_run_keeps_pinned_memory_apart),
    };
    return cmocka_run_group_tests_name("bench", tests, open_place, close_place);
}
