// The choice between cuDNN's attention and our own kernels, the size of cuDNN's slices, and the messages about
// it, on a cuDNN that refuses in each possible way.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/host/attention.c"
#include "kernels/cuda/host/attention_graph.c"
#include "kernels/cuda/host/cudnn_graph.c"

#include "tests/cuda/cudnn_fake.h"

// ---------------------------------------------------------------- what the device gives
static struct {
    int own_forwards, own_backwards;
    bool no_workspace;
    size_t workspace_bytes;  // the last that was asked for
} notes;

void *cuda_workspace(struct cuda_stream *s, size_t bytes) {
    static char some[16];
    (void)s;
    notes.workspace_bytes = bytes;
    return notes.no_workspace ? NULL : some;
}
int cuda_op_attn_fwd(struct cuda_ctx *ctx, const struct attn_fwd_args *a) {
    (void)ctx, (void)a;
    notes.own_forwards++;
    return 0;
}
int cuda_op_attn_bwd(struct cuda_ctx *ctx, const struct attn_bwd_args *a) {
    (void)ctx, (void)a;
    notes.own_backwards++;
    return 0;
}
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

struct rig {
    struct cuda_device d;
    struct cuda_stream s;
};

static int open_rig(void **state) {
    struct rig *r = calloc(1, sizeof *r);
    memset(&notes, 0, sizeof notes);
    memset(&fake_dnn, 0, sizeof fake_dnn);
    fake_dnn.engines = 3;
    fake_dnn.workspace_bytes = 1000;
    device_init(&r->d.head, NULL, NULL);
    r->d.cudnn = fake_cudnn;
    r->s.queue.head.dev = &r->d.head;
    *state = r;
    return 0;
}
static int close_rig(void **state) {
    struct rig *r = *state;
    cuda_attentions_free(&r->s);
    device_fini(&r->d.head);
    free(r);
    return fake_descriptors == 0 && fake_dnn.handles == 0 ? 0 : -1;
}

// Nothing reads or writes what these point to.
static char memory[16];

static int run_forward(struct rig *r, enum dtype dt) {
    struct attn_fwd_args a = {.out = memory,
                              .lse = (float *)(void *)memory,
                              .qkv = memory,
                              .batch = 8,
                              .seq = 100,
                              .heads = 12,
                              .kv_heads = 4,
                              .head_size = 64,
                              .scale = 1,
                              .dt = dt};
    r->s.ctx.why = NULL;
    return cuda_attention_forward(&r->s, &a);
}
static int run_backward(struct rig *r, enum dtype dt) {
    struct attn_bwd_args a = {.dqkv = memory,
                              .dout = memory,
                              .qkv = memory,
                              .out = memory,
                              .lse = (const float *)(const void *)memory,
                              .batch = 8,
                              .seq = 100,
                              .heads = 12,
                              .kv_heads = 4,
                              .head_size = 64,
                              .scale = 1,
                              .dt = dt};
    r->s.ctx.why = NULL;
    return cuda_attention_backward(&r->s, &a);
}

static void assert_says(const char *text, const char *const *parts) {
    assert_non_null(text);
    for (; *parts; parts++)
        if (!strstr(text, *parts)) fail_msg("\"%s\" is not in: %s", *parts, text);
}
#define SAYS(text, ...) assert_says(text, (const char *const[]){__VA_ARGS__, NULL})

// ---------------------------------------------------------------- the tests

static void cudnn_runs_where_it_has_a_plan(void **state) {
    struct rig *r = *state;
    assert_int_equal(run_forward(r, DT_BF16), 0);
    assert_int_equal(run_backward(r, DT_F16), 0);
    assert_int_equal(run_forward(r, DT_BF16), 0);
    assert_int_equal(fake_dnn.runs, 3);
    assert_int_equal(fake_dnn.plans, 2);
    assert_int_equal(fake_dnn.creates, 1);
    assert_int_equal(notes.own_forwards + notes.own_backwards, 0);
    assert_int_equal(dev_notes(&r->d.head), 0);
    assert_int_equal(atomic_load(&r->d.used.attention_forward), DEVICE_BY_LIBRARY);
    assert_int_equal(atomic_load(&r->d.used.attention_backward), DEVICE_BY_LIBRARY);
}

// A forward and a backward each by our own kernels, with a note each, once, that says shape and reason.
static void expect_own(struct rig *r, const char *why, const char *more) {
    enum dev_note_kind kind;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(run_forward(r, DT_BF16), 0);
        assert_int_equal(run_backward(r, DT_BF16), 0);
    }
    assert_int_equal(notes.own_forwards, 2);
    assert_int_equal(notes.own_backwards, 2);
    assert_int_equal(fake_dnn.runs, 0);
    assert_int_equal(dev_notes(&r->d.head), 2);
    SAYS(dev_note(&r->d.head, 0, &kind), "attention's forward of B 8, T 100, H 12, KV 4, D 64 in bf16", why,
         more, "our own kernels run instead");
    assert_int_equal(kind, DEV_NOTE_WARNING);
    SAYS(dev_note(&r->d.head, 1, &kind), "attention's backward of B 8,", why, more);
    assert_int_equal(atomic_load(&r->d.used.attention_forward), DEVICE_BY_OWN);
    assert_int_equal(atomic_load(&r->d.used.attention_backward), DEVICE_BY_OWN);
    assert_int_equal(r->d.slice_sequences, 0);
}

static void a_missing_library_is_said(void **state) {
    struct rig *r = *state;
    r->d.cudnn_missing = "libcudnn.so.9 is not there";
    expect_own(r, "libcudnn.so.9 is not there", "gives no plan");
    assert_int_equal(fake_dnn.creates, 0);
}

static void a_handle_that_fails_is_said(void **state) {
    struct rig *r = *state;
    fake_dnn.create = CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED;
    fake_dnn.said = "Unable to load\nlibcudnn_ops.so.9";
    expect_own(r,
               "cudnnCreate fails: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED: Unable to load libcudnn_ops.so.9",
               "libcudnn_*.so.9");
}

static void a_stream_that_is_refused_is_said(void **state) {
    struct rig *r = *state;
    fake_dnn.set_stream = CUDNN_STATUS_NOT_INITIALIZED;
    expect_own(r, "cudnnSetStream fails: CUDNN_STATUS_NOT_INITIALIZED", "gives no plan");
}

static void refuse(cudnnBackendDescriptorType_t type, cudnnStatus_t status, const char *said) {
    fake_dnn.refused_type = type;
    fake_dnn.refusal = status;
    fake_dnn.said = said;
}

static void a_refused_shape_is_said(void **state) {
    struct rig *r = *state;
    refuse(CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_STATUS_NOT_SUPPORTED, "strides of 3");
    expect_own(r, "it fails at a tensor: CUDNN_STATUS_NOT_SUPPORTED: strides of 3", "gives no plan");
}

static void a_refused_graph_is_said(void **state) {
    struct rig *r = *state;
    refuse(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_STATUS_NOT_SUPPORTED, "no such pattern");
    expect_own(r, "it fails at the graph: CUDNN_STATUS_NOT_SUPPORTED: no such pattern", "gives no plan");
}

static void heuristics_without_an_engine_are_said(void **state) {
    struct rig *r = *state;
    fake_dnn.engines = 0;
    expect_own(r, "its heuristics name no engine", "gives no plan");
}

static void heuristics_that_fail_are_said(void **state) {
    struct rig *r = *state;
    refuse(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_STATUS_NOT_SUPPORTED, "head size");
    expect_own(r, "its heuristics name no engine: CUDNN_STATUS_NOT_SUPPORTED: head size", "gives no plan");
}

static void engines_that_differ_are_said(void **state) {
    struct rig *r = *state;
    fake_dnn.differing = 7;
    expect_own(r, "none of its 6 engines repeats its results bit for bit", "gives no plan");
}

// NVRTC cannot be loaded: the plan is what fails.
static void engines_that_refuse_are_said(void **state) {
    struct rig *r = *state;
    fake_dnn.differing = 2;
    refuse(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING,
           "libnvrtc.so.13 not found");
    expect_own(r,
               "of its 6 engines 2 do not repeat their results bit for bit and 4 refuse, the first with "
               "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING: libnvrtc.so.13 not found",
               "libnvrtc, with its builtins,");
}

// cuDNN is not to be expected there: no note, but what ran is known.
static void fp32_is_our_own_without_a_word(void **state) {
    struct rig *r = *state;
    assert_int_equal(run_forward(r, DT_F32), 0);
    assert_int_equal(run_backward(r, DT_F32), 0);
    assert_int_equal(fake_dnn.creates, 0);
    assert_int_equal(dev_notes(&r->d.head), 0);
    assert_int_equal(atomic_load(&r->d.used.attention_forward), DEVICE_BY_OWN);
}

static void own_never_opens_a_handle(void **state) {
    struct rig *r = *state;
    r->d.wanted.attention = CUDA_ATTENTION_OWN;
    assert_int_equal(run_forward(r, DT_BF16), 0);
    assert_int_equal(run_backward(r, DT_BF16), 0);
    assert_int_equal(fake_dnn.creates, 0);
    assert_int_equal(fake_descriptors, 0);
    assert_int_equal(notes.own_forwards + notes.own_backwards, 2);
    assert_int_equal(dev_notes(&r->d.head), 0);
}

static void demanded_cudnn_fails_with_the_reason(void **state) {
    struct rig *r = *state;
    r->d.wanted.attention = CUDA_ATTENTION_CUDNN;
    assert_int_equal(run_forward(r, DT_F32), -1);
    SAYS(r->s.ctx.why, "cuda.attention is cudnn", "in fp32:", "--dtype bf16");
    fake_dnn.differing = 7;
    assert_int_equal(run_backward(r, DT_BF16), -1);
    SAYS(r->s.ctx.why, "cuda.attention is cudnn",
         "attention's backward of B 8, T 100, H 12, KV 4, D 64 in bf16", "none of its 6 engines",
         "--set cuda.attention=auto");
    assert_int_equal(run_backward(r, DT_BF16), -1);  // it does not become our own the second time
    fake_dnn.differing = 0;
    assert_int_equal(run_backward(r, DT_BF16), 0);
    assert_int_equal(notes.own_forwards + notes.own_backwards, 0);
    assert_int_equal(dev_notes(&r->d.head), 0);
}

static void a_plan_that_does_not_run_is_an_error(void **state) {
    struct rig *r = *state;
    fake_dnn.execute = CUDNN_STATUS_EXECUTION_FAILED;
    fake_dnn.said = "launch failed";
    assert_int_equal(run_forward(r, DT_BF16), -1);
    SAYS(r->s.ctx.why, "could not run its plan", "CUDNN_STATUS_EXECUTION_FAILED: launch failed");
    notes.no_workspace = true;
    assert_int_equal(run_forward(r, DT_BF16), -1);
    SAYS(r->s.ctx.why, "workspace");
}

// 12 heads of 128 x 128 scores (100 padded) in 16 bits: 393,216 bytes a sequence, 8 sequences.
static void expect_slices(struct rig *r, int64_t bytes, int64_t sequences) {
    int before = fake_dnn.runs;
    size_t dots = dev_round((size_t)(sequences * 12 * 100) * sizeof(float));
    r->d.wanted.attention_slice_bytes = bytes;
    r->d.slice_workspace_bytes = 0;
    assert_int_equal(run_backward(r, DT_BF16), 0);
    assert_int_equal(fake_dnn.runs - before, 8 / sequences);
    assert_int_equal(r->d.slice_sequences, sequences);
    assert_int_equal(r->d.slice_workspace_bytes, dots + dev_round(1000));
    assert_int_equal(notes.workspace_bytes, r->d.slice_workspace_bytes);
    cuda_attentions_free(&r->s);
}

static void slices_are_as_large_as_was_chosen(void **state) {
    struct rig *r = *state;
    expect_slices(r, CUDA_SLICE_AUTO, 8);
    expect_slices(r, 8 * 393216, 8);
    expect_slices(r, 8 * 393216 - 1, 4);  // 7 sequences would fit and do not divide the batch
    expect_slices(r, 2 * 393216, 2);
    expect_slices(r, 1, 1);
    expect_slices(r, CUDA_SLICE_WHOLE, 8);
}

// What auto cuts, whole does not: 32 sequences of 25 heads and 1,024 tokens are 1.6 GB of scores.
static void whole_batches_are_not_cut(void **state) {
    struct attention_shape s = {32, 1024, 25, 25, 64, DT_BF16, true};
    (void)state;
    assert_int_equal(slice_of(&s, CUDA_SLICE_AUTO), 16);
    assert_int_equal(slice_of(&s, CUDA_SLICE_WHOLE), 32);
    s.backward = false;
    assert_int_equal(slice_of(&s, 1), 32);
}

#define RIGGED(test) cmocka_unit_test_setup_teardown(test, open_rig, close_rig)

int main(void) {
    const struct CMUnitTest tests[] = {
        RIGGED(cudnn_runs_where_it_has_a_plan),
        RIGGED(a_missing_library_is_said),
        RIGGED(a_handle_that_fails_is_said),
        RIGGED(a_stream_that_is_refused_is_said),
        RIGGED(a_refused_shape_is_said),
        RIGGED(a_refused_graph_is_said),
        RIGGED(heuristics_without_an_engine_are_said),
        RIGGED(heuristics_that_fail_are_said),
        RIGGED(engines_that_differ_are_said),
        RIGGED(engines_that_refuse_are_said),
        RIGGED(fp32_is_our_own_without_a_word),
        RIGGED(own_never_opens_a_handle),
        RIGGED(demanded_cudnn_fails_with_the_reason),
        RIGGED(a_plan_that_does_not_run_is_an_error),
        RIGGED(slices_are_as_large_as_was_chosen),
        cmocka_unit_test(whole_batches_are_not_cut),
    };
    return cmocka_run_group_tests_name("kernels: who computes attention on a GPU", tests, NULL, NULL);
}
