// The graphs given to cuDNN for attention: each shape must be one that cuDNN has a repeatable engine for.
// cuDNN answers that for a device described to it, so no GPU is needed; without cuDNN the test is skipped.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/host/attention_graph.c"
#include "kernels/cuda/host/cudnn_graph.c"

#include <cmocka.h>

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

// What cuDNN asks of a device, with the values of an H200 (deviceVer 900) and an A100 (800).
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engines_for_h200),
        cmocka_unit_test(test_engines_for_a100),
        cmocka_unit_test(test_no_engine_for_nonsense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
