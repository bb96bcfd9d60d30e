// The emulated driver: what CUDA promises, and the faults that it must punish.
#include <cublasLt.h>
#include <pthread.h>

#include "tests/emulation/driver_cases.h"

// ---------------------------------------------------------------- work

static int submit_words(cudaStream_t s, const void *const *words, size_t count) {
    struct kernel *kept = calloc(1, sizeof *kept);
    return emu_submit(s, &(struct emu_work){.name = "a test's kernel",
                                            .run = run_kernel,
                                            .drop = free,
                                            .arg = kept,
                                            .words = words,
                                            .words_bytes = count * sizeof *words});
}

// It must die of the signal and say the text.
static void assert_dies(int signal_number, const char *text, const char *fault) {
    char said[8192];
    int status = run_fault(fault, said, sizeof said);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal_number)
        fail_msg("status %x, not signal %d: %s", status, signal_number, said);
    if (!strstr(said, text)) fail_msg("\"%s\" does not say \"%s\"", said, text);
}

// ---------------------------------------------------------------- memory

static void read_on_the_host(void) {
    char *p = new_memory(N);
    _exit(*(volatile char *)p);
}
static void write_between_kernels(void) {
    char *p = new_memory(N);
    cudaStream_t s = new_stream();
    submit(s, &(struct kernel){.p = p});
    cudaStreamSynchronize(s);
    *(volatile char *)p = 1;
}
static void touch_by_kernel(char *p) {
    cudaStream_t s = new_stream();
    submit(s, &(struct kernel){.p = p});
    cudaStreamSynchronize(s);
}
static void step_beyond(void) { touch_by_kernel(new_memory(N) + 1024); }
static void touch_freed(void) {
    char *p = new_memory(N);
    cudaFree(p);
    touch_by_kernel(p);
}

static const struct {
    const char *name;
    void (*run)(void);
} faults[] = {{"read on the host", read_on_the_host},
              {"write between kernels", write_between_kernels},
              {"step beyond", step_beyond},
              {"touch freed", touch_freed}};

static void faults_are_fatal(void **state) {
    (void)state;
    assert_dies(SIGSEGV, "the host touched device memory at 0x", "read on the host");
    assert_dies(SIGSEGV, "the host touched device memory at 0x", "write between kernels");
    assert_dies(SIGBUS, "which is freed or beyond an allocation", "step beyond");
    assert_dies(SIGBUS, "which is freed or beyond an allocation", "touch freed");
}

static void memory_is_counted_and_poisoned(void **state) {
    (void)state;
    size_t before, after, total;
    void *p;
    ok(cudaMemGetInfo(&before, &total));
    assert_int_equal(total, (size_t)4096 << 20);
    char *q = new_memory(N);
    assert_int_equal((uintptr_t)q % 256, 0);
    ok(cudaMemGetInfo(&after, &total));
    assert_int_equal(before - after, 1024);
    assert_int_equal(device_byte(q), 0xee);
    assert_int_equal(device_byte(q + N - 1), 0xee);
    assert_int_equal(cudaMalloc(&p, total), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    ok(cudaFree(q));
    int kept = quiet_begin();
    assert_int_equal(cudaFree(q), cudaErrorInvalidValue);
    quiet_end(kept);
    ok(cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
}

// ---------------------------------------------------------------- copies

static void pinned_memory_is_read_when_the_stream_comes_to_it(void **state) {
    (void)state;
    sem_t gate;
    sem_init(&gate, 0, 0);
    cudaStream_t s = new_stream();
    char *pinned = new_pinned(2), pageable = 1, *device = new_memory(2);
    pinned[0] = 1;
    assert_int_equal(submit(s, &(struct kernel){.gate = &gate}), 0);
    ok(cudaMemcpyAsync(device, pinned, 1, cudaMemcpyDefault, s));
    ok(cudaMemcpyAsync(device + 1, &pageable, 1, cudaMemcpyDefault, s));
    pinned[0] = 2;
    pageable = 2;
    sem_post(&gate);
    ok(cudaStreamSynchronize(s));
    assert_int_equal(device_byte(device), 2);
    assert_int_equal(device_byte(device + 1), 1);
    // To pinned memory: not before the stream comes to it. To pageable memory device_byte() has shown the
    // wait.
    assert_int_equal(submit(s, &(struct kernel){.gate = &gate}), 0);
    ok(cudaMemcpyAsync(pinned, device + 1, 1, cudaMemcpyDefault, s));
    assert_int_equal(pinned[0], 2);
    sem_post(&gate);
    ok(cudaStreamSynchronize(s));
    assert_int_equal(pinned[0], 1);
    ok(cudaFreeHost(pinned));
    ok(cudaFree(device));
    ok(cudaStreamDestroy(s));
}

static void copies_stay_within_their_memory(void **state) {
    (void)state;
    cudaStream_t s = new_stream();
    char *p = new_memory(N), *freed = new_memory(N), host[N + 1] = "";
    ok(cudaFree(freed));
    int kept = quiet_begin();
    assert_int_equal(cudaMemcpyAsync(p, host, N + 1, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(host, p + 1, N, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(freed, host, 1, cudaMemcpyDefault, s), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(host, p, 1, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(p, 0, N + 1, s), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(host, 0, 1, s), cudaErrorInvalidValue);
    quiet_end(kept);
    ok(cudaMemcpyAsync(p, host, N, cudaMemcpyHostToDevice, s));
    ok(cudaMemsetAsync(p, 7, N, s));
    ok(cudaStreamSynchronize(s));
    assert_int_equal(device_byte(p + N - 1), 7);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    ok(cudaFree(p));
    ok(cudaStreamDestroy(s));
}

// ---------------------------------------------------------------- order

static void events_order_streams_and_nothing_else_does(void **state) {
    (void)state;
    sem_t first_gate, second_gate;
    cudaEvent_t e, never;
    float ms = -1;
    sem_init(&first_gate, 0, 0);
    sem_init(&second_gate, 0, 0);
    cudaStream_t a = new_stream(), b = new_stream();
    char *p = new_memory(3);
    ok(cudaMemsetAsync(p, 0, 3, a));
    ok(cudaStreamSynchronize(a));
    ok(cudaEventCreate(&e));
    ok(cudaEventCreate(&never));
    ok(cudaStreamWaitEvent(b, never, 0));
    ok(cudaEventQuery(never));
    // A wait is for the record there was when it was called, not for a later one.
    submit(a, &(struct kernel){.gate = &first_gate, .p = p, .value = 1});
    ok(cudaEventRecord(e, a));
    ok(cudaStreamWaitEvent(b, e, 0));
    submit(a, &(struct kernel){.gate = &second_gate});
    ok(cudaEventRecord(e, a));
    ok(cudaMemcpyAsync(p + 1, p, 1, cudaMemcpyDefault, b));
    cudaStream_t c = new_stream();
    ok(cudaMemcpyAsync(p + 2, p, 1, cudaMemcpyDefault, c));
    ok(cudaStreamSynchronize(c));
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_int_equal(cudaEventElapsedTime(&ms, e, e), cudaErrorNotReady);
    assert_int_equal(cudaEventElapsedTime(&ms, never, e), cudaErrorInvalidResourceHandle);
    sem_post(&first_gate);
    ok(cudaStreamSynchronize(b));
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    sem_post(&second_gate);
    ok(cudaEventSynchronize(e));
    ok(cudaEventElapsedTime(&ms, e, e));
    assert_true(ms == 0.0f);
    assert_int_equal(device_byte(p + 1), 1);  // after the kernel that the event was recorded after
    assert_int_equal(device_byte(p + 2), 0);  // before it: nobody waited
    cudaGetLastError();
    ok(cudaEventDestroy(e));
    ok(cudaEventDestroy(never));
    ok(cudaStreamDestroy(a));
    ok(cudaStreamDestroy(b));
    ok(cudaStreamDestroy(c));
    ok(cudaFree(p));
}

static void *let_go_later(void *gate) {
    usleep(20000);
    sem_post(gate);
    return NULL;
}

// Both a free and a destruction while work is under way: the free waits, the destruction lets the work end.
static void frees_wait_and_streams_end_their_work(void **state) {
    (void)state;
    sem_t gate;
    pthread_t thread;
    char *p = new_memory(1), *host = new_pinned(1);
    cudaStream_t s = new_stream();
    sem_init(&gate, 0, 0);
    *host = 0;
    submit(s, &(struct kernel){.gate = &gate, .p = p, .value = 5});
    ok(cudaMemcpyAsync(host, p, 1, cudaMemcpyDefault, s));
    ok(cudaStreamDestroy(s));
    assert_int_equal(*host, 0);
    assert_int_equal(pthread_create(&thread, NULL, let_go_later, &gate), 0);
    ok(cudaFree(p));
    assert_int_equal(*host, 5);
    pthread_join(thread, NULL);
    ok(cudaFreeHost(host));
}

// ---------------------------------------------------------------- what kernels are given

static void kernels_get_pointers_that_their_device_reaches(void **state) {
    (void)state;
    int can = 0;
    char *near = new_memory(N), *pinned = new_pinned(N), on_the_stack[64], *freed = new_memory(N);
    cudaStream_t s = new_stream();
    ok(cudaFree(freed));
    ok(cudaSetDevice(1));
    char *far = new_memory(N);
    ok(cudaSetDevice(0));
    const void *good[] = {near, near + N, pinned, NULL, (void *)12345678, (void *)0x3f8000003f800000};
    assert_int_equal(submit_words(s, good, sizeof good / sizeof *good), 0);
    ok(cudaStreamSynchronize(s));
    int kept = quiet_begin();
    assert_int_equal(submit_words(s, (const void *[]){near, on_the_stack}, 2), cudaErrorIllegalAddress);
    assert_int_equal(submit_words(s, (const void *[]){freed}, 1), cudaErrorIllegalAddress);
    assert_int_equal(submit_words(s, (const void *[]){far}, 1), cudaErrorIllegalAddress);
    quiet_end(kept);
    ok(cudaMemcpyAsync(near, far, N, cudaMemcpyDefault, s));  // the driver copies without access as well
    ok(cudaDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    ok(cudaDeviceEnablePeerAccess(1, 0));
    assert_int_equal(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    assert_int_equal(submit_words(s, (const void *[]){far}, 1), 0);
    ok(cudaStreamSynchronize(s));
    ok(cudaFree(far));
    ok(cudaFree(near));
    ok(cudaFreeHost(pinned));
    ok(cudaStreamDestroy(s));
    cudaGetLastError();
}

static void work_is_for_the_device_of_the_thread(void **state) {
    (void)state;
    cudaEvent_t e;
    cudaStream_t s = new_stream();
    ok(cudaSetDevice(1));
    ok(cudaEventCreate(&e));
    int kept = quiet_begin();
    assert_int_equal(submit(s, &(struct kernel){0}), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaEventRecord(e, s), cudaErrorInvalidResourceHandle);
    quiet_end(kept);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    ok(cudaSetDevice(0));
    assert_int_equal(submit(s, &(struct kernel){0}), 0);
    ok(cudaStreamSynchronize(s));
    ok(cudaStreamDestroy(s));
    ok(cudaEventDestroy(e));
    cudaGetLastError();
}

static void cublas_refuses_what_the_library_would(void **state) {
    (void)state;
    cublasLtHandle_t h;
    cublasLtMatmulDesc_t how;
    cublasLtMatrixLayout_t square, thin;
    cublasLtMatmulPreference_t q;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    int64_t aux_ld = 12;
    uint32_t epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    float one = 1, zero = 0;
    cudaStream_t s = new_stream();
    char *p = new_memory(4 * 4 * sizeof(float)), host[4 * 4 * sizeof(float)];
    assert_int_equal(cublasLtCreate(&h), 0);
    assert_int_equal(cublasLtMatmulDescCreate(&how, CUBLAS_COMPUTE_32F, CUDA_R_32F), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&square, CUDA_R_32F, 4, 4, 4), 0);
    assert_int_equal(cublasLtMatrixLayoutCreate(&thin, CUDA_R_32F, 4, 3, 4), 0);
    assert_int_equal(cublasLtMatmulPreferenceCreate(&q), 0);
    int kept = quiet_begin();
#define HEURISTIC(a) cublasLtMatmulAlgoGetHeuristic(h, how, a, square, square, square, q, 1, &found, &count)
#define PRODUCT(a, d) \
    cublasLtMatmul(h, how, &one, a, square, p, square, &zero, d, square, d, square, &found.algo, NULL, 0, s)
    assert_int_not_equal(HEURISTIC(thin), 0);
    assert_int_equal(HEURISTIC(square), 0);
    assert_int_equal(count, 1);
    assert_int_equal(PRODUCT(p, p), 0);
    assert_int_not_equal(PRODUCT(host, p), 0);   // of the host
    assert_int_not_equal(PRODUCT(p, p + 4), 0);  // less aligned than promised, and one element too far
    assert_int_equal(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, 4), 0);
    assert_int_equal(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld, 8),
                     0);
    assert_int_equal(cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p, 8),
                     0);
    assert_int_not_equal(HEURISTIC(square), 0);  // rows of aux that are no multiple of 8
    quiet_end(kept);
    ok(cudaStreamSynchronize(s));
    cublasLtMatmulPreferenceDestroy(q);
    cublasLtMatrixLayoutDestroy(square);
    cublasLtMatrixLayoutDestroy(thin);
    cublasLtMatmulDescDestroy(how);
    cublasLtDestroy(h);
    ok(cudaStreamDestroy(s));
    ok(cudaFree(p));
}

// ---------------------------------------------------------------- failure; the device stays broken: the last
// test

static void failures_stick(void **state) {
    (void)state;
    void *p;
    cudaStream_t s = new_stream();
    char *q = new_memory(1);
    ok(cudaMemsetAsync(q, 1, 1, s));
    int kept = quiet_begin();
    submit(s, &(struct kernel){.result = cudaErrorLaunchFailure});
    submit(s, &(struct kernel){.p = q, .value = 2});
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorLaunchFailure);
    quiet_end(kept);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaMalloc(&p, 1), cudaErrorLaunchFailure);
    assert_int_equal(submit(s, &(struct kernel){0}), cudaErrorLaunchFailure);
    assert_int_equal(cudaStreamDestroy(s), cudaErrorLaunchFailure);
    ok(cudaSetDevice(1));
    ok(cudaMalloc(&p, 1));
    ok(cudaFree(p));
    assert_int_equal(device_byte(q), 1);  // what came after the failure has not run
}

// The driver reads its environment when the program is loaded.
static void with_devices(char **argv, const char *count) {
    if (getenv("EMULATED_CUDA_DEVICES") && strcmp(getenv("EMULATED_CUDA_DEVICES"), count) == 0) return;
    setenv("EMULATED_CUDA_DEVICES", count, 1);
    execv("/proc/self/exe", argv);
    abort();
}

// An action before the device has communicators is right, and late as long as it has some.
static void what_comes_late_is_told(void **state) {
    (void)state;
    static const char kernels[8];
    unsigned before = emu_late();
    void *p, *q;
    cudaEvent_t e;
    cudaStream_t s;
    assert_int_equal(cudaMalloc(&p, 100), cudaSuccess);
    emu_load(-1, &kernels[0], "a test's kernel");
    assert_int_equal(emu_late(), before);
    int device;
    assert_int_equal(cudaGetDevice(&device), cudaSuccess);
    emu_device_seal(device, 1, false);
    emu_load(device, &kernels[0], "a test's kernel");  // it is there
    assert_int_equal(emu_late(), before);
    emu_load(device, &kernels[4], "another kernel");
    assert_int_equal(emu_late(), before + 1);
    assert_int_equal(cudaMalloc(&q, 100), cudaSuccess);
    assert_int_equal(cudaEventCreate(&e), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaFree(p), cudaSuccess);  // nothing to wait for
    assert_int_equal(emu_late(), before + 4);
    emu_device_seal(device, -1, false);
    assert_int_equal(cudaFree(q), cudaSuccess);
    assert_int_equal(cudaEventDestroy(e), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(s), cudaSuccess);
    assert_int_equal(emu_late(), before + 4);
}

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof faults / sizeof *faults; i++)
        if (strcmp(argv[1], faults[i].name) == 0) faults[i].run();
    if (argc > 1) return 0;
    with_devices(argv, "2");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_comes_late_is_told),
        cmocka_unit_test(faults_are_fatal),
        cmocka_unit_test(memory_is_counted_and_poisoned),
        cmocka_unit_test(pinned_memory_is_read_when_the_stream_comes_to_it),
        cmocka_unit_test(copies_stay_within_their_memory),
        cmocka_unit_test(events_order_streams_and_nothing_else_does),
        cmocka_unit_test(frees_wait_and_streams_end_their_work),
        cmocka_unit_test(kernels_get_pointers_that_their_device_reaches),
        cmocka_unit_test(work_is_for_the_device_of_the_thread),
        cmocka_unit_test(cublas_refuses_what_the_library_would),
        cmocka_unit_test(failures_stick),
    };
    return cmocka_run_group_tests_name("emulation: driver", tests, NULL, NULL);
}
