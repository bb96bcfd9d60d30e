// A CUDA runtime for tests of the CUDA backend's host side: device memory is host memory, a stream carries
// out what it is given at once, unless it is held. Checks what a real device would punish with a hang or with
// garbage.
//
// struct fake is what the tests turn; it stands for the state of a driver.
#ifndef STARRING_TESTS_CUDA_CUDA_FAKE_H
#define STARRING_TESTS_CUDA_CUDA_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/host/cuda_impl.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool held;                // device work does not finish ..
    double held_since_s;      // .. that was given later than this
    cudaError_t count_error;  // of cudaGetDeviceCount
    int count, driver_version, sm_major;
    bool peers;                   // devices reach each other's memory
    atomic_int next_copy_error;   // cudaError_t
    size_t malloc_limit_bytes;    // 0: none
    atomic_int waits_on_nothing;  // cudaStreamWaitEvent on an event that no stream was given
    atomic_int live_events, live_streams, live_buffers;
    void *registered;  // host memory, one piece at a time
    bool no_register;
    atomic_int device_syncs;  // cudaStreamSynchronize
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .changed = PTHREAD_COND_INITIALIZER,
          .count = 1,
          .driver_version = 13000,
          .sm_major = 9};

struct CUevent_st {
    bool recorded;  // fake.lock
    double at_s;
};
struct CUstream_st {
    int nothing;
};

static double fake_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fake_hold(bool held) {
    pthread_mutex_lock(&fake.lock);
    fake.held = held;
    fake.held_since_s = fake_seconds();
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

static void fake_await_release(void) {
    pthread_mutex_lock(&fake.lock);
    while (fake.held) pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
}

// ---------------------------------------------------------------- the runtime
cudaError_t cudaSetDevice(int device) { return device < fake.count ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceCount(int *count) {
    *count = fake.count;
    return fake.count_error;
}
cudaError_t cudaDriverGetVersion(int *v) {
    *v = fake.driver_version;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v) {
    *v = 13000;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
    (void)device;
    *value = attr == cudaDevAttrComputeCapabilityMajor   ? fake.sm_major
             : attr == cudaDevAttrComputeCapabilityMinor ? 0
                                                         : 132;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int device) {
    snprintf(id, (size_t)len, "0000:0%d:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    (void)device;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "a fake");
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = 1000;
    *total = 2000;
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorIllegalAddress ? "illegal address" : "an error";
}
const char *cudaGetErrorName(cudaError_t e) { return e == cudaSuccess ? "cudaSuccess" : "cudaErrorFake"; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }

cudaError_t cudaMalloc(void **p, size_t bytes) {
    if (fake.malloc_limit_bytes && bytes > fake.malloc_limit_bytes) return cudaErrorMemoryAllocation;
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!*p) return cudaErrorMemoryAllocation;
    memset(*p, 0xee, bytes);
    atomic_fetch_add(&fake.live_buffers, 1);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int flags) {
    return flags == cudaHostAllocPortable ? cudaMalloc(p, bytes) : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = device != peer && fake.peers;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    (void)flags;
    return peer < fake.count ? cudaSuccess : cudaErrorInvalidDevice;
}
cudaError_t cudaFree(void *p) {
    free(p);
    atomic_fetch_sub(&fake.live_buffers, 1);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int flags) {
    if (fake.no_register) return cudaErrorMemoryAllocation;
    if (fake.registered || !bytes || flags != cudaHostRegisterPortable) return cudaErrorInvalidValue;
    fake.registered = p;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p) {
    if (!p || fake.registered != p) return cudaErrorInvalidValue;
    fake.registered = NULL;
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    (void)s;
    memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    (void)kind;
    (void)s;
    cudaError_t e = (cudaError_t)atomic_exchange(&fake.next_copy_error, cudaSuccess);
    if (e == cudaSuccess) memmove(dst, src, bytes);
    return e;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags) {
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *s = malloc(sizeof **s);
    atomic_fetch_add(&fake.live_streams, 1);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    free(s);
    atomic_fetch_sub(&fake.live_streams, 1);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    (void)s;
    atomic_fetch_add(&fake.device_syncs, 1);
    fake_await_release();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags) {
    (void)s;
    (void)flags;
    pthread_mutex_lock(&fake.lock);
    if (!e->recorded) atomic_fetch_add(&fake.waits_on_nothing, 1);
    pthread_mutex_unlock(&fake.lock);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) {
    *e = calloc(1, sizeof **e);
    atomic_fetch_add(&fake.live_events, 1);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    free(e);
    atomic_fetch_sub(&fake.live_events, 1);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    (void)s;
    pthread_mutex_lock(&fake.lock);
    e->recorded = true;
    e->at_s = fake_seconds();
    pthread_mutex_unlock(&fake.lock);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
    pthread_mutex_lock(&fake.lock);
    bool held = fake.held && e->at_s >= fake.held_since_s;
    pthread_mutex_unlock(&fake.lock);
    return held ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    (void)e;
    fake_await_release();
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    pthread_mutex_lock(&fake.lock);
    cudaError_t e = a->recorded && b->recorded ? cudaSuccess : cudaErrorInvalidResourceHandle;
    *ms = (float)((b->at_s - a->at_s) * 1e3);
    pthread_mutex_unlock(&fake.lock);
    return e;
}

// ---------------------------------------------------------------- the libraries and our kernels
cublasStatus_t cublasLtCreate(cublasLtHandle_t *h) {
    *h = NULL;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
    (void)h;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasLtGetStatusString(cublasStatus_t e) { return e ? "a status" : "success"; }
size_t cublasLtGetVersion(void) { return 130000; }
int cudnn_api_open(struct cudnn_api *api, const char **why) {
    memset(api, 0, sizeof *api);
    *why = "libcudnn.so.9 was not found";
    return -1;
}
void cudnn_api_close(struct cudnn_api *api) { api->library = NULL; }
void cuda_matmuls_free(struct cuda_device *d) { d->matmuls = NULL; }
void cuda_attentions_free(struct cuda_stream *s) { s->attentions = NULL; }
int cuda_matmul(struct cuda_stream *s, const struct matmul_args *a) {
    return cpu_ops[OP_MATMUL](1, a, &s->ctx.why);
}
int cuda_attention_forward(struct cuda_stream *s, const struct attn_fwd_args *a) {
    return cpu_ops[OP_ATTN_FWD](1, a, &s->ctx.why);
}
int cuda_attention_backward(struct cuda_stream *s, const struct attn_bwd_args *a) {
    return cpu_ops[OP_ATTN_BWD](1, a, &s->ctx.why);
}

int cuda_kernels_load(const char **why) {
    (void)why;
    return 0;
}

// Each also checks that it has been given its workspace.
#define FAKE_OPERATION(OP, name, args_t)                                                             \
    int cuda_op_##name(struct cuda_ctx *ctx, const struct args_t *args) {                            \
        if (ctx->workspace_bytes < CUDA_WORKSPACE_BYTES || !ctx->workspace || !ctx->stream) abort(); \
        return cpu_ops[OP](1, args, &ctx->why);                                                      \
    }
OPERATIONS_BUT_MATMUL(FAKE_OPERATION)

#endif
