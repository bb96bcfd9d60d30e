// The device: finding it, memory, the table of functions and the interface of the shared object.
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"

#define SM_VERSION_MIN 80

// ---------------------------------------------------------------- what is there

static int sm_version_of(int index) {
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess) return 0;
    if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) return 0;
    return 10 * major + minor;
}

// The driver and its libraries start threads, which inherit the signal mask of the calling thread. A signal to
// the process is delivered to any thread that does not block it. A supervisor blocks signals in its own threads
// and waits for them (SIGCHLD, messages of its ranks). If a thread of the driver took one, the process would
// end or the signal would be lost (seen on an H100). So these threads block all signals.
static sigset_t block_signals(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    return before;
}

static cudaError_t count_devices(int *count) {
    sigset_t before = block_signals();
    cudaError_t e = cudaGetDeviceCount(count);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}

static int probe(char *why, size_t why_bytes) {
    int count = 0, driver = 0, runtime = 0, best = 0;
    cudaError_t e = count_devices(&count);
    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
    if (e == cudaErrorInsufficientDriver && driver == 0)
        snprintf(why, why_bytes,
                 "the NVIDIA driver (libcuda.so.1) is missing or not running; install the driver, in a "
                 "container start it with the GPUs (docker run --gpus all), or use --device cpu");
    else if (e == cudaErrorInsufficientDriver)
        snprintf(why, why_bytes,
                 "the NVIDIA driver is too old: it does CUDA %d.%d, this build "
                 "needs %d.%d; update the driver or use --device cpu",
                 driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    else if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0))
        snprintf(why, why_bytes,
                 "the NVIDIA driver sees no GPU; look at nvidia-smi and "
                 "CUDA_VISIBLE_DEVICES, or use --device cpu");
    else if (e != cudaSuccess)
        snprintf(why, why_bytes, "CUDA does not start: %s (%s); look at nvidia-smi, or use --device cpu",
                 cudaGetErrorString(e), cudaGetErrorName(e));
    if (e != cudaSuccess || count == 0) return -1;
    for (int i = 0; i < count; i++) best = sm_version_of(i) > best ? sm_version_of(i) : best;
    if (best >= SM_VERSION_MIN) return 0;
    snprintf(why, why_bytes,
             "the GPU has compute capability %d.%d; 8.0 (A100) or newer is needed, or use --device cpu",
             best / 10, best % 10);
    return -1;
}

static int device_count(void) {
    int count = 0;
    if (count_devices(&count) != cudaSuccess) cudaGetLastError();
    return count > 0 ? count : 1;
}

// ---------------------------------------------------------------- opening and closing

static const struct backend cuda_backend;

static void cuda_close(struct device *head) {
    struct cuda_device *d = (struct cuda_device *)head;
    cudaSetDevice(d->index);
    queues_free(head);
    cuda_marks_free(d);
    cuda_matmuls_free(d);
    if (d->blas) cublasLtDestroy(d->blas);
    if (d->setup) cudaStreamDestroy(d->setup);
    cudnn_api_close(&d->cudnn);
    pthread_mutex_destroy(&d->matmul_lock);
    device_fini(&d->head);
    free(d);
}

static int open_cudnn(struct cuda_device *d) {
    if (d->wanted.attention == CUDA_ATTENTION_OWN) {
        d->cudnn_missing = "not loaded: cuda.attention is own";
        return 0;
    }
    if (cudnn_api_open(&d->cudnn, &d->cudnn_missing) == 0) d->cudnn_missing = NULL;
    if (!d->cudnn_missing || d->wanted.attention != CUDA_ATTENTION_CUDNN) return 0;
    device_fail(&d->head, "cuda.attention is cudnn, but %s; --set cuda.attention=auto takes our own kernels",
                d->cudnn_missing);
    return -1;
}

// If this fails, the caller gets no device to read an error from, so the text is printed to stderr.
static int open_on_device(struct cuda_device *d) {
    int count = 0;
    const char *why = "";
    if (cuda_device_check(d, cudaGetDeviceCount(&count), "counting the devices") != 0) return -1;
    if (d->index < 0 || d->index >= count) {
        device_fail(&d->head, "there is no device %d: %d are there, from 0", d->index, count);
        return -1;
    }
    d->sm_version = sm_version_of(d->index);
    if (d->sm_version < SM_VERSION_MIN) {
        device_fail(&d->head, "device %d has compute capability %d.%d; 8.0 (A100) or newer is needed",
                    d->index, d->sm_version / 10, d->sm_version % 10);
        return -1;
    }
    if (cuda_device_check(d, cudaSetDevice(d->index), "choosing the device") != 0 ||
        cuda_device_check(d, cudaDeviceGetAttribute(&d->sm_count, cudaDevAttrMultiProcessorCount, d->index),
                          "asking the device") != 0 ||
        cuda_device_check(
            d, cudaDeviceGetAttribute(&d->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, d->index),
            "asking the device") != 0 ||
        cuda_device_check(d, cudaStreamCreateWithFlags(&d->setup, cudaStreamNonBlocking),
                          "creating a stream") != 0)
        return -1;
    cublasStatus_t e = cublasLtCreate(&d->blas);
    if (e != CUBLAS_STATUS_SUCCESS) {
        device_fail(&d->head, "cuBLASLt does not start: %s", cublasLtGetStatusString(e));
        return -1;
    }
    if (cuda_kernels_load(&why) != 0) {
        device_fail(&d->head, "the kernels cannot be loaded: %s", why);
        return -1;
    }
    return open_cudnn(d);
}

static int cuda_open(struct device **out, const struct device_options *opt) {
    struct cuda_device *d = calloc(1, sizeof *d);
    if (!d) return -1;
    device_init(&d->head, &cuda_backend, opt);
    d->index = opt ? opt->index : 0;
    if (opt) d->wanted = opt->cuda;
    pthread_mutex_init(&d->matmul_lock, NULL);
    atomic_init(&d->workspace_bytes, 0);
    atomic_init(&d->used.attention_forward, 0);
    atomic_init(&d->used.attention_backward, 0);
    atomic_init(&d->used.gelu, 0);
    atomic_init(&d->used.bias_grad, 0);
    sigset_t before = block_signals();
    int rc = open_on_device(d);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        fprintf(stderr, "starring: cuda: %s\n", dev_error(&d->head));
        cuda_close(&d->head);
        return -1;
    }
    *out = &d->head;
    return 0;
}

// ---------------------------------------------------------------- memory

// CUDA calls act on the calling thread's device. Returns 0, or -1 after device_fail.
static int choose(struct cuda_device *d) {
    return cuda_device_check(d, cudaSetDevice(d->index), "choosing the device");
}

static void *cuda_alloc(struct device *head, size_t bytes) {
    struct cuda_device *d = (struct cuda_device *)head;
    void *p = NULL;
    if (choose(d) != 0) return NULL;
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();  // the caller reports what there was no memory for
        return NULL;
    }
    if (cuda_device_check(d, e, "cudaMalloc") != 0) return NULL;
    assert((uintptr_t)p % DEV_ALIGN == 0);
    if (cuda_device_check(d, cudaMemsetAsync(p, 0, bytes, d->setup), "zeroing new memory") != 0 ||
        cuda_device_check(d, cudaStreamSynchronize(d->setup), "zeroing new memory") != 0) {
        cudaFree(p);
        return NULL;
    }
    return p;
}

static void cuda_free(struct device *head, void *p, size_t bytes) {
    struct cuda_device *d = (struct cuda_device *)head;
    (void)bytes;
    if (choose(d) == 0) cuda_device_check(d, cudaFree(p), "cudaFree");
}

// Portable: page-locked for every device, not only for the current one.
static void *cuda_host_alloc(struct device *head, size_t bytes) {
    struct cuda_device *d = (struct cuda_device *)head;
    void *p = NULL;
    if (choose(d) != 0) return NULL;
    cudaError_t e = cudaHostAlloc(&p, bytes, cudaHostAllocPortable);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return NULL;
    }
    if (cuda_device_check(d, e, "cudaHostAlloc") != 0) return NULL;
    memset(p, 0, bytes);
    return p;
}

static void cuda_host_free(struct device *head, void *p, size_t bytes) {
    struct cuda_device *d = (struct cuda_device *)head;
    (void)bytes;
    if (choose(d) == 0) cuda_device_check(d, cudaFreeHost(p), "cudaFreeHost");
}

// Portable, as above. A refusal is not stored as an error, because the caller may have another way.
static int cuda_host_register(struct device *head, void *p, size_t bytes, const char **why) {
    struct cuda_device *d = (struct cuda_device *)head;
    cudaError_t e = cudaSetDevice(d->index);
    if (e == cudaSuccess) e = cudaHostRegister(p, bytes, cudaHostRegisterPortable);
    if (e == cudaSuccess) return 0;
    cudaGetLastError();
    *why = cudaGetErrorString(e);
    return -1;
}

static void cuda_host_unregister(struct device *head, void *p) {
    struct cuda_device *d = (struct cuda_device *)head;
    if (choose(d) == 0) cuda_device_check(d, cudaHostUnregister(p), "cudaHostUnregister");
}

// Peer access is kept until the process ends, because other ranks' devices may use it.
static int reach(struct device *head, struct device *peer_head) {
    struct cuda_device *d = (struct cuda_device *)head, *peer = (struct cuda_device *)peer_head;
    int can = 0;
    if (d->index == peer->index) return 0;
    cudaError_t e = cudaSetDevice(d->index);
    if (e == cudaSuccess) e = cudaDeviceCanAccessPeer(&can, d->index, peer->index);
    if (e == cudaSuccess && can) e = cudaDeviceEnablePeerAccess(peer->index, 0);
    cudaGetLastError();
    return can && (e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled) ? 0 : -1;
}

// ---------------------------------------------------------------- the tables

static int facts(struct device *head, struct device_facts *out) {
    struct cuda_device *d = (struct cuda_device *)head;
    struct cudaDeviceProp p;
    memset(out, 0, sizeof *out);
    if (choose(d) != 0 ||
        cuda_device_check(d, cudaMemGetInfo(&out->free_bytes, &out->memory_bytes), "cudaMemGetInfo") != 0 ||
        cuda_device_check(d, cudaGetDeviceProperties(&p, d->index), "asking the device") != 0 ||
        cuda_device_check(d, cudaDeviceGetPCIBusId(out->bus_id, sizeof out->bus_id, d->index),
                          "asking the device") != 0 ||
        cuda_device_check(d, cudaDriverGetVersion(&out->driver_version), "asking the driver") != 0 ||
        cuda_device_check(d, cudaRuntimeGetVersion(&out->runtime_version), "asking the runtime") != 0)
        return -1;
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->index = d->index;
    out->used_bytes = out->memory_bytes - out->free_bytes;
    out->workspace_bytes = atomic_load(&d->workspace_bytes);
    out->sm_version = d->sm_version;
    out->multiprocessors = d->sm_count;
    out->l2_bytes = (size_t)p.l2CacheSize;
    out->cublas_version = cublasLtGetVersion();
    out->cudnn_version = d->cudnn_missing ? 0 : d->cudnn.version();
    out->cudnn_missing = d->cudnn_missing;
    out->work = (struct device_work){.attention_forward = atomic_load(&d->used.attention_forward),
                                     .attention_backward = atomic_load(&d->used.attention_backward),
                                     .gelu = atomic_load(&d->used.gelu),
                                     .bias_grad = atomic_load(&d->used.bias_grad)};
    pthread_mutex_lock(&d->head.lock);
    out->work.slice_sequences = d->slice_sequences;
    out->work.slice_workspace_bytes = d->slice_workspace_bytes;
    pthread_mutex_unlock(&d->head.lock);
    return 0;
}

static int device_index(struct device *d) { return ((struct cuda_device *)d)->index; }

static const struct backend cuda_backend = {
    .name = "cuda",
    .devices = device_count,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .reach = reach,
    .facts = facts,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .launch = queue_launch,
    .copy = queue_copy,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
};

extern const struct cuda_so starring_cuda_so;
__attribute__((visibility("default"))) const struct cuda_so starring_cuda_so = {
    .abi = CUDA_SO_ABI,
    .device_bytes = sizeof(struct device),
    .backend = &cuda_backend,
    .probe = probe,
    .submit = queue_submit_native,
    .wait_for_submission = queue_wait_submission,
    .fail = queue_fail,
    .event_seconds = cuda_event_seconds,
    .device_index = device_index,
};
