// The graphs given to cuDNN for attention. Their results: interpreted on the host, against the reference.
// That cuDNN has a repeatable engine for each shape: cuDNN answers that for a device described to it, so no
// GPU is needed; where cuDNN is not installed these cases are skipped.
#include <stdio.h>

#include "kernels/cuda/host/attention_graph.c"
#include "kernels/cuda/host/cudnn_graph.c"

#include "tests/cuda/cudnn_fake.h"
#include "tests/kernels/kernel_test.h"

// A library by its name, or from the toolkit's folders; once it is loaded its name finds it. cuDNN wants a
// driver to be there even where it only plans: the toolkit's stub of it will do.
static bool load_library(const char *name, const char *in_toolkit) {
    const char *home = getenv("CUDA_HOME");
    char path[1024];
    if (dlopen(name, RTLD_NOW | RTLD_LOCAL)) return true;
    snprintf(path, sizeof path, "%s/lib64/%s", home && *home ? home : "/usr/local/cuda", in_toolkit);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL;
}

static int open_cudnn(struct cudnn_api *api) {
    const char *why = NULL;
    if (!load_library("libcuda.so.1", "stubs/libcuda.so") || !load_library("libcudnn.so.9", "libcudnn.so.9"))
        return -1;
    // cuDNN loads and unloads NVRTC for every plan, which loses memory each time. Kept, it loses none.
    load_library("libnvrtc.so", "libnvrtc.so");
    return cudnn_api_open(api, &why);
}

// The attributes that cuDNN reads of a device, with the values of an H200 (deviceVer 900) and an A100 (800).
static cudnnBackendDescriptor_t describe_device(const struct cudnn_api *api, int version, int processors,
                                                int shared_bytes) {
    char text[2048];
    int n = snprintf(
        text, sizeof text,
        "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"deviceVer\":%d,"
        "\"multiProcessorCount\":%d,\"driverVer\":13000,\"deviceName\":\"GPU\",\"regsPerBlock\":65536,"
        "\"smClockRateKHz\":1410000,\"memClockRateKHz\":1593000,\"l2CacheSize\":41943040,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,"
        "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"
        "\"supportCoopLaunch\":1,\"totalGlobalMem\":42949672960,\"cudaDeviceId\":0}",
        version, processors, shared_bytes);
    cudnnBackendDescriptor_t d = NULL;
    if (api->create_descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d) != CUDNN_STATUS_SUCCESS) return NULL;
    if (api->set(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, text) !=
            CUDNN_STATUS_SUCCESS ||
        api->finalize(d) != CUDNN_STATUS_SUCCESS) {
        api->destroy_descriptor(d);
        return NULL;
    }
    return d;
}

static void check_shapes(int version, int processors, int shared_bytes) {
    static const int shapes[][5] = {// B, T, H, KV, D
                                    {32, 1024, 12, 12, 64}, {16, 1024, 25, 25, 64}, {8, 1024, 12, 2, 128},
                                    {8, 2048, 14, 2, 64},   {2, 100, 4, 2, 64},     {1, 64, 4, 4, 32}};
    struct cudnn_api api;
    if (open_cudnn(&api) != 0) skip();
    cudnnBackendDescriptor_t device =
        api.version() >= 90800 ? describe_device(&api, version, processors, shared_bytes) : NULL;
    if (!device) {  // a version that describes devices otherwise
        cudnn_api_close(&api);
        skip();
    }
    for (int dt = DT_BF16; dt <= DT_F16; dt++)
        for (int backward = 0; backward < 2; backward++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                const int *x = shapes[i];
                struct attention_shape s = {x[0], x[1], x[2], x[3], x[4], (enum dtype)dt, backward};
                struct cudnn_graph g;
                graph_init(&g, &api);
                attention_graph(&g, &s);
                if (g.status != CUDNN_STATUS_SUCCESS) fail_msg("shape %zu: %s", i, g.failed_at);
                if (graph_engines(&g, device) < 1)
                    fail_msg("no engine for B %d T %d H %d KV %d D %d %s, sm %d", x[0], x[1], x[2], x[3],
                             x[4], backward ? "backward" : "forward", version);
                graph_fini(&g);
            }
    api.destroy_descriptor(device);
    cudnn_api_close(&api);
}

static void test_engines_for_h200(void **state) {
    (void)state;
    check_shapes(900, 132, 232448);
}

static void test_engines_for_a100(void **state) {
    (void)state;
    check_shapes(800, 108, 166912);
}

// The check above must be able to fail.
static void test_no_engine_for_nonsense(void **state) {
    (void)state;
    struct cudnn_api api;
    if (open_cudnn(&api) != 0) skip();
    cudnnBackendDescriptor_t device = api.version() >= 90800 ? describe_device(&api, 900, 132, 232448) : NULL;
    if (!device) {
        cudnn_api_close(&api);
        skip();
    }
    struct attention_shape s = {2, 64, 4, 4, 7, DT_BF16, true};  // rows of 14 bytes
    struct cudnn_graph g;
    graph_init(&g, &api);
    attention_graph(&g, &s);
    assert_int_equal(graph_engines(&g, device), 0);
    graph_fini(&g);
    api.destroy_descriptor(device);
    cudnn_api_close(&api);
}

// ---------------------------------------------------------------- what the graphs compute

// Memory that a tensor of the graph is bound to.
struct bound {
    int64_t uid;
    enum dtype dt;
    void *memory;
    bool written;
};

static void run_graph(const struct attention_shape *s, const struct bound *all, size_t count) {
    struct cudnn_graph g;
    int bound = 0, named = 0;
    graph_init(&g, &fake_cudnn);
    attention_graph(&g, s);
    assert_int_equal(g.status, CUDNN_STATUS_SUCCESS);
    for (size_t k = 0; k < count; k++) {
        struct fake_descriptor *t = fake_tensor(&g, all[k].uid);
        if (!t) continue;
        assert_false(*fake_get(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL));
        bound++;
        if (!all[k].written) fake_load(t, all[k].dt, all[k].memory);
    }
    for (int i = 0; i < g.owned_count; i++) {
        const struct fake_descriptor *d = g.owned[i];
        named += d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR && !*fake_get(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    }
    assert_int_equal(bound, named);  // nothing is left unbound, nothing is bound twice
    fake_run(&g);
    for (size_t k = 0; k < count; k++) {
        struct fake_descriptor *t = fake_tensor(&g, all[k].uid);
        if (t && all[k].written) fake_store(t, all[k].dt, all[k].memory);
    }
    graph_fini(&g);
    assert_int_equal(fake_descriptors, 0);
}

static char *offset(void *p, enum dtype dt, int64_t elements) {
    return (char *)p + (size_t)elements * dtype_size(dt);
}

static void check_numbers(const struct attention_shape *s) {
    int64_t rows = s->batch * s->seq, d = s->head_size, q = s->heads * d, kv = s->kv_heads * d,
            n = q + 2 * kv;
    enum dtype dt = s->dt;
    float scale = 1 / sqrtf((float)d), masked = -INFINITY, one = 1;
    float *lse = kt_poisoned(DT_F32, rows * s->heads), *want_lse = kt_poisoned(DT_F32, rows * s->heads),
          *dot = kt_poisoned(DT_F32, rows * s->heads);
    void *qkv = kt_random(dt, rows * n, 1, 1), *dout = kt_random(dt, rows * q, 2, 1),
         *out = kt_poisoned(dt, rows * q), *want_out = kt_poisoned(dt, rows * q),
         *dqkv = kt_poisoned(dt, rows * n), *want_dqkv = kt_poisoned(dt, rows * n),
         *scratch = kt_poisoned(
             DT_U8, (int64_t)attn_scratch_bytes(s->batch, s->seq, s->heads, s->kv_heads, s->head_size));
    struct attn_fwd_args f = {want_out, want_lse,    qkv,          scratch, s->batch, s->seq,
                              s->heads, s->kv_heads, s->head_size, scale,   dt};
    struct attn_bwd_args b = {want_dqkv, dout,     qkv,         want_out,     want_lse, scratch, s->batch,
                              s->seq,    s->heads, s->kv_heads, s->head_size, scale,    dt};
    const struct kt_out near = {.n = rows * q, .dt = dt, .units = 4, .floor = 1},
                        near_lse = {.n = rows * s->heads, .dt = DT_F32, .units = 64, .floor = 1},
                        near_grad = {.n = rows * n, .dt = dt, .units = 4, .floor = 1};
    kt_run(ref_ops, OP_ATTN_FWD, 1, &f);
    kt_run(ref_ops, OP_ATTN_BWD, 1, &b);
    // The order of attention.c's pointers; the backward reads what the forward wrote.
    const struct bound all[] = {{ATTENTION_Q, dt, qkv, false},
                                {ATTENTION_K, dt, offset(qkv, dt, q), false},
                                {ATTENTION_V, dt, offset(qkv, dt, q + kv), false},
                                {ATTENTION_OUT, dt, out, !s->backward},
                                {ATTENTION_LSE, DT_F32, lse, !s->backward},
                                {ATTENTION_SCALE, DT_F32, &scale, false},
                                {ATTENTION_MASKED, DT_F32, &masked, false},
                                {ATTENTION_DOUT, dt, dout, false},
                                {ATTENTION_DQ, dt, dqkv, true},
                                {ATTENTION_DK, dt, offset(dqkv, dt, q), true},
                                {ATTENTION_DV, dt, offset(dqkv, dt, q + kv), true},
                                {ATTENTION_DOT, DT_F32, dot, true},
                                {ATTENTION_ONE, DT_F32, &one, false}};
    if (s->backward) {
        memcpy(out, want_out, (size_t)(rows * q) * dtype_size(dt));
        memcpy(lse, want_lse, (size_t)(rows * s->heads) * sizeof *lse);
    }
    run_graph(s, all, sizeof all / sizeof *all);
    kt_assert_close(&near, out, want_out);
    kt_assert_close(&near_lse, lse, want_lse);
    if (s->backward) kt_assert_close(&near_grad, dqkv, want_dqkv);
    KT_FREE(lse, want_lse, dot, qkv, dout, out, want_out, dqkv, want_dqkv, scratch);
}

static void test_graphs_compute_attention(void **state) {
    static const int shapes[][5] = {// B, T, H, KV, D
                                    {2, 5, 4, 4, 8},
                                    {1, 9, 6, 2, 4},
                                    {2, 3, 2, 1, 16},
                                    {1, 1, 1, 1, 8}};
    (void)state;
    for (int dt = DT_BF16; dt <= DT_F16; dt++)
        for (int backward = 0; backward < 2; backward++)
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                const int *x = shapes[i];
                check_numbers(
                    &(struct attention_shape){x[0], x[1], x[2], x[3], x[4], (enum dtype)dt, backward});
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_compute_attention),
        cmocka_unit_test(test_engines_for_h200),
        cmocka_unit_test(test_engines_for_a100),
        cmocka_unit_test(test_no_engine_for_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
