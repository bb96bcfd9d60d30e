// The section cuda on the emulated device: each choice acts, a summary and a bench name what ran, what falls
// back is said once, and what was demanded and is not there fails. The emulation has no cuDNN.
#include "tests/kernels/kernel_test.h"

#include <cjson/cJSON.h>
#include <stdio.h>

#include "shared/core/error.h"
#include "tests/emulated.h"
#include "tests/job/job.h"

static const char *text(const cJSON *o, const char *key) {
    const cJSON *v = job_item(o, key);
    return cJSON_IsString(v) ? v->valuestring : "null";
}

static int count(const char *all, const char *part) {
    int n = 0;
    for (const char *at = all; (at = strstr(at, part)) != NULL; at++) n++;
    return n;
}

// ---------------------------------------------------------------- the operation

#define M 24
#define N 16
#define K 37

struct product {
    enum dtype dt;
    bool accumulate;
    void *a, *b, *c, *sums, *want_c, *want_sums;  // host
};

static void *to_device(struct stream *s, const void *host, size_t bytes) {
    void *p = dev_alloc(stream_device(s), MEM_WORKSPACE, bytes);
    assert_non_null(p);
    dev_copy(s, p, host, bytes);
    return p;
}

static void run_on_device(struct device *d, const struct product *p) {
    size_t e = dtype_size(p->dt), bytes[] = {K * M * e, K * N * e, M * N * e, M * e};
    const void *host[] = {p->a, p->b, p->c, p->sums};
    void *at[4];
    struct stream *s = stream_create(d, "one");
    for (int i = 0; i < 4; i++) at[i] = to_device(s, host[i], bytes[i]);
    op_matmul(s, &(struct matmul_args){.c = at[2],
                                       .a = at[0],
                                       .b = at[1],
                                       .bias_grad = at[3],
                                       .m = M,
                                       .n = N,
                                       .k = K,
                                       .trans_a = true,
                                       .accumulate = p->accumulate,
                                       .epilogue = EPILOGUE_BIAS_GRAD,
                                       .dt = p->dt});
    dev_copy(s, p->c, at[2], bytes[2]);
    dev_copy(s, p->sums, at[3], bytes[3]);
    if (stream_sync(s)) fail_msg("%s", dev_error(d));
    stream_destroy(&s);
    for (int i = 0; i < 4; i++) dev_free(d, MEM_WORKSPACE, at[i], bytes[i]);
}

// Against the reference, and by what it was carried out.
static void check_bias_grad(enum cuda_bias_grad choice, enum dtype dt, bool accumulate) {
    const char *why = "";
    struct product p = {dt,
                        accumulate,
                        kt_random(dt, K * M, 1, 1),
                        kt_random(dt, K * N, 2, 1),
                        kt_random(dt, M * N, 3, 1),
                        kt_random(dt, M, 4, 1),
                        kt_random(dt, M * N, 3, 1),
                        kt_random(dt, M, 4, 1)};
    struct matmul_args g = {.c = p.want_c,
                            .a = p.a,
                            .b = p.b,
                            .bias_grad = p.want_sums,
                            .m = M,
                            .n = N,
                            .k = K,
                            .trans_a = true,
                            .accumulate = accumulate,
                            .epilogue = EPILOGUE_BIAS_GRAD,
                            .dt = dt};
    struct device *d = NULL;
    struct device_facts facts;
    const struct backend *cuda = backend_find("cuda", &why);
    if (!cuda) fail_msg("%s", why);
    kt_run(ref_ops, OP_MATMUL, 1, &g);
    assert_int_equal(dev_open(cuda, &(struct device_options){.label = "test", .cuda.bias_grad = choice}, &d),
                     0);
    run_on_device(d, &p);
    assert_int_equal(dev_facts(d, &facts), 0);
    bool epilogue = choice == CUDA_BIAS_GRAD_EPILOGUE && !accumulate;
    assert_int_equal(facts.work.bias_grad, epilogue ? DEVICE_BY_LIBRARY : DEVICE_BY_OWN);
    const struct kt_out near_c = {.n = M * N, .dt = dt, .units = 24, .floor = 1},
                        near_sums = {.n = M, .dt = dt, .units = 24, .floor = 1};
    kt_assert_close(&near_c, p.c, p.want_c);
    kt_assert_close(&near_sums, p.sums, p.want_sums);
    dev_close(&d);
    KT_FREE(p.a, p.b, p.c, p.sums, p.want_c, p.want_sums);
}

static void bias_gradients_are_the_references(void **state) {
    (void)state;
    for (int choice = CUDA_BIAS_GRAD_AUTO; choice <= CUDA_BIAS_GRAD_KERNEL; choice++)
        for (int i = 0; i < KT_DTYPES * 2; i++)
            check_bias_grad((enum cuda_bias_grad)choice, kt_dtypes[i / 2], i % 2);
}

// ---------------------------------------------------------------- whole runs

static struct job_output run(const struct job_place *p, const char *name, const char *words) {
    return job_run(p,
                   "train --model gpt2.json --data data.txt --dtype bf16 --device cuda --steps 2 --seq 16 "
                   "--batch 1 --threads 1 --no-weights --quiet --set eval_batches=0 --set memory.check=off "
                   "--out %s --force %s",
                   name, words);
}

// The run's only device in its summary; the caller deletes *summary.
static const cJSON *device_of(const struct job_place *p, const char *name, cJSON **summary) {
    *summary = job_summary(p, name);
    const cJSON *all = cJSON_GetObjectItem(*summary, "devices");
    assert_int_equal(cJSON_GetArraySize(all), 1);
    return cJSON_GetArrayItem(all, 0);
}

static void succeed(struct job_output *o) {
    if (o->status) fail_msg("status %d\n%s", o->status, o->err);
    job_output_free(o);
}

// Two ranks, one voice.
static void a_fallback_is_said_once(void **state) {
    cJSON *summary;
    struct job_output o = run(*state, "said", "--topology zero:1 --workers 2");
    if (o.status) fail_msg("status %d\n%s", o.status, o.err);
    if (count(o.err, "attention's forward of B 1, T 16,") != 1 ||
        count(o.err, "attention's backward of B 1, T 16,") != 1 || count(o.err, "cuDNN gives no plan") != 2 ||
        count(o.err, "our own kernels run instead") != 2)
        fail_msg("%s", o.err);
    job_output_free(&o);
    const cJSON *d = device_of(*state, "said", &summary);
    assert_string_equal(text(d, "attention_forward"), "own");
    assert_string_equal(text(d, "attention_backward"), "own");
    assert_string_equal(text(d, "attention_slice_sequences"), "null");
    assert_string_equal(text(d, "gelu"), "fused");
    assert_string_equal(text(d, "bias_grad"), "kernel");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(d, "notes")), 2);
    cJSON_Delete(summary);
}

static void choices_act(void **state) {
    cJSON *summary;
    struct job_output o =
        run(*state, "chosen", "--set cuda.attention=own --set cuda.gelu=apart --set cuda.bias_grad=epilogue");
    if (o.status || strstr(o.err, "cuDNN")) fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    const cJSON *d = device_of(*state, "chosen", &summary);
    assert_string_equal(text(d, "attention_forward"), "own");
    assert_string_equal(text(d, "gelu"), "apart");
    assert_string_equal(text(d, "bias_grad"), "epilogue");
    assert_non_null(strstr(text(d, "cudnn_missing"), "cuda.attention is own"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(d, "notes")), 0);
    cJSON_Delete(summary);
}

// A library without epilogues: the same bits as when nothing was asked of it, and a note for each.
static void lacking_epilogues_are_said(void **state) {
    cJSON *summary;
    struct job_output o = run(*state, "apart", "--set cuda.attention=own --set cuda.gelu=apart");
    succeed(&o);
    setenv("EMULATED_CUBLAS_LACKS", "bias gelu bgrad", 1);
    o = run(*state, "lacks", "--set cuda.attention=own --set cuda.gelu=fused --set cuda.bias_grad=epilogue");
    unsetenv("EMULATED_CUBLAS_LACKS");
    if (o.status) fail_msg("status %d\n%s", o.status, o.err);
    static const char *const parts[] = {
        "with GELU in its epilogue (CUBLAS_STATUS_NOT_SUPPORTED)", "with GELU's gradient in its epilogue",
        "with the bias in its epilogue", "with the bias gradient in its epilogue"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(o.err, parts[i])) fail_msg("no \"%s\":\n%s", parts[i], o.err);
    job_output_free(&o);
    const cJSON *d = device_of(*state, "lacks", &summary);
    assert_string_equal(text(d, "gelu"), "apart");
    assert_string_equal(text(d, "bias_grad"), "kernel");
    char *a = job_curve(*state, "apart"), *b = job_curve(*state, "lacks");
    assert_string_equal(a, b);
    free(a);
    free(b);
    cJSON_Delete(summary);
}

static void accumulation_is_our_own_kernels(void **state) {
    cJSON *summary;
    struct job_output o = run(
        *state, "sums",
        "--set cuda.bias_grad=epilogue --set gradient_accumulation_steps=2 --set data_types.grad_accum_dtype=bf16");
    if (o.status || count(o.err, "epilogue overwrites") != 1) fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
    assert_string_equal(text(device_of(*state, "sums", &summary), "bias_grad"), "epilogue and kernel");
    cJSON_Delete(summary);
}

static void demanded_cudnn_fails(void **state) {
    struct job_output o = run(*state, "demanded", "--set cuda.attention=cudnn");
    if (o.status != 1 || !strstr(o.err, "cuda.attention is cudnn, but libcudnn.so.9") ||
        !strstr(o.err, "--set cuda.attention=auto"))
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

static void a_cpu_ignores_the_section_and_says_so(void **state) {
    struct job_output o = job_run(*state,
                                  "train --model gpt2.json --data data.txt --device cpu --steps 1 --seq 16 "
                                  "--batch 1 --threads 1 --no-weights --quiet --set eval_batches=0 --out cpu "
                                  "--force --set cuda.gelu=fused");
    if (o.status || count(o.err, "cuda.gelu fused: this run computes on device cpu") != 1)
        fail_msg("status %d\n%s", o.status, o.err);
    job_output_free(&o);
}

static void benches_name_what_ran(void **state) {
    static const char *const benches[] = {"step --model tiny --batch 1 --seq 16 --steps 1 --matmul 16",
                                          "kernels --rounds 1 --elements 4096 --matmul 64"};
    for (size_t i = 0; i < 2; i++) {
        struct job_output o =
            job_run(*state, "bench %s --device cuda --json --set cuda.attention=auto", benches[i]);
        cJSON *j = o.status ? NULL : cJSON_Parse(o.out);
        if (!j || !strstr(o.err, "cuDNN gives no plan")) fail_msg("status %d\n%s", o.status, o.err);
        const cJSON *d = cJSON_GetObjectItem(j, "device");
        assert_string_equal(text(d, "attention_forward"), "own");
        assert_string_equal(text(d, "attention_backward"), "own");
        assert_true(cJSON_GetArraySize(cJSON_GetObjectItem(d, "notes")) >= 2);
        cJSON_Delete(j);
        job_output_free(&o);
        o = job_run(*state, "bench %s --device cuda --set cuda.attention=own", benches[i]);
        if (o.status || strstr(o.err, "gives no plan") ||
            !strstr(o.out, "attention forward own, backward own; GELU"))
            fail_msg("status %d\n%s%s", o.status, o.out, o.err);
        job_output_free(&o);
    }
    static const char *const unused[] = {"steps=3", "cuda.bias_grad=epilogue"};
    for (size_t i = 0; i < 2; i++) {
        struct job_output o = job_run(*state, "bench kernels --device cuda --set %s", unused[i]);
        if (o.status != 2 || !strstr(o.err, "is not used here")) fail_msg("status %d\n%s", o.status, o.err);
        job_output_free(&o);
    }
}

// For the GPU: a dry run's second limit, next to the machine's.
static int64_t allowed_bytes(const struct job_place *p, const char *words) {
    struct job_output o = job_run(p,
                                  "train --model gpt2.json --device cuda --batch 4 --seq 16 --dry-run --json "
                                  "%s",
                                  words);
    if (o.status) fail_msg("status %d\n%s", o.status, o.err);
    cJSON *doc = cJSON_Parse(o.out),
          *limits = cJSON_GetObjectItem(cJSON_GetObjectItem(doc, "here"), "limits");
    assert_int_equal(cJSON_GetArraySize(limits), 2);
    double bytes = cJSON_GetObjectItem(cJSON_GetArrayItem(limits, 1), "allowed_bytes")->valuedouble;
    cJSON_Delete(doc);
    job_output_free(&o);
    return (int64_t)bytes;
}

// cuDNN's score matrices, (B,H,128,128) in 16 bits for T 16, cut as the configuration says.
static void a_dry_run_allows_for_the_slices(void **state) {
    static const struct {
        const char *words;
        int64_t bytes;
    } cases[] = {
        {"--dtype fp32", 0},
        {"--dtype bf16", 4 * 163840},
        {"--dtype fp16 --set cuda.attention_slice=whole", 4 * 163840},
        {"--dtype bf16 --set cuda.attention_slice=400000", 400000},
        {"--dtype bf16 --set cuda.attention_slice=1", 163840},
        {"--dtype bf16 --set cuda.attention_slice=whole --set cuda.attention=own", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (allowed_bytes(*state, cases[i].words) != (96 << 20) + cases[i].bytes)
            fail_msg("%s: %lld", cases[i].words, (long long)allowed_bytes(*state, cases[i].words));
}

static int open_emulated(void **state) {
    int rc = job_setup(state);
    return rc == 0 && !job_emulate(*state, 1) ? -1 : rc;
}

int main(int argc, char **argv) {
    (void)argc;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bias_gradients_are_the_references),
        cmocka_unit_test(a_fallback_is_said_once),
        cmocka_unit_test(choices_act),
        cmocka_unit_test(lacking_epilogues_are_said),
        cmocka_unit_test(accumulation_is_our_own_kernels),
        cmocka_unit_test(demanded_cudnn_fails),
        cmocka_unit_test(a_cpu_ignores_the_section_and_says_so),
        cmocka_unit_test(benches_name_what_ran),
        cmocka_unit_test(a_dry_run_allows_for_the_slices),
    };
    if (emulated_begin(argv, "1", "0") != 0) {
        fprintf(stderr, "tests/emulated/ has not been built\n");
        return 1;
    }
    return cmocka_run_group_tests_name("cuda: choices", tests, open_emulated, job_teardown);
}
