// An emulated CUDA driver and runtime, for running the whole program with --device cuda where there is no
// GPU: tests/job_cuda/ by way of job_emulate(). It is built as libcuda.so.1, which is where the program
// looks for a driver; the backend's sources (kernels/cuda/host/*.c, against CUDA's own headers) and its
// kernels (compiled for the host, see tests/emulation/gpu/cuda_runtime.h) become libstarring_cuda.so beside it,
// tests/emulation/nccl becomes libnccl.so.2.
//
//     driver.c          devices, errors
//     driver_access.c   memory's functions, what work may touch, copies
//     driver_stream.c   streams, events; one thread a stream
//     driver_memory.c   who may touch which address
//     driver_count.c    how often the host waited
//     driver_seal.c     what may be loaded and allocated when
//     blas.c            cuBLASLt
//
// It punishes, because a GPU would
//     the host touches device memory      the process dies of it, with the address and the stack. Not while a
//                                         kernel or a copy is running: then memory is open
//     a kernel or a copy beyond its       likewise, at any time; also in memory that has been freed
//     memory
//     a missing event                     streams run by themselves: a race, and with delays a likely one
//     pinned memory reused too early      copies from it read it when the stream comes to them; copies from
//                                         pageable memory read it at once, copies to it block
//     a kernel that gets a pointer of     refused: pageable host memory, memory of a device that its own one
//     the wrong memory                    has not been given access to, freed memory
//     memory that is read before it       poisoned with 0xee
//     is set
//     host memory that is registered      refused, with a note; so is what is unmapped before it is unregistered,
//     twice, or never unregistered        as far as a later call can see it, and a note at the end tells the rest
//     a stream of another device than     refused, as are events
//     the thread's
// A failure of a kernel sticks to its device: later calls return it.
//
// It models neither speed nor the hardware's limits. It has the unified address space, but no default
// stream, no graphs and no page faults of managed memory.
//
// Environment
//     EMULATED_CUDA_DEVICES     how many devices, 0 to 8; 1
//     EMULATED_CUDA_MEMORY_MIB  memory of each; 4096
//     EMULATED_CUDA_PEERS       0: no device reaches another one's memory; 1
//     EMULATED_CUDA_REGISTER    0: no host memory can be registered; 1
//     EMULATED_CUDA_DELAY_US    the longest delay before an operation; 0: none
//     EMULATED_CUDA_SEED        which operations of which streams are delayed by how much; 1
//     EMULATED_CUDA_COUNTS      a file: each process appends how often its host waited (driver_count.c)
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emulation/driver/driver_impl.h"

#define VERSION 13000

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static _Thread_local struct {
    int device;
    cudaError_t last;
} self;

// ---------------------------------------------------------------- the beginning

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void start(void) {
    uint64_t count = number_of("EMULATED_CUDA_DEVICES", 1);
    driver.count = count < DEVICES_MAX ? (int)count : DEVICES_MAX;
    driver.limit_bytes = (size_t)number_of("EMULATED_CUDA_MEMORY_MIB", 4096) << 20;
    driver.peers = number_of("EMULATED_CUDA_PEERS", 1) != 0;
    driver.registers = number_of("EMULATED_CUDA_REGISTER", 1) != 0;
    driver.delay_us = number_of("EMULATED_CUDA_DELAY_US", 0);
    driver.delay_seed = number_of("EMULATED_CUDA_SEED", 1);
    for (int d = 0; d < driver.count; d++) driver.device[d].reach = 1u << d;
    memory_start(driver.count, driver.limit_bytes);
}

// ---------------------------------------------------------------- errors

int driver_current(void) { return self.device; }

cudaError_t driver_said(cudaError_t e) {
    if (e != cudaSuccess) self.last = e;
    return e;
}

cudaError_t driver_state(int device) { return driver.device[device].error; }

void driver_note(const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "emulated CUDA: %s\n", text);
}

void emu_note(const char *text) { driver_note("%s", text); }

void driver_await(void) {
    driver.watchers++;
    pthread_cond_wait(&driver.changed, &driver.lock);
    driver.watchers--;
}

void driver_changed(void) {
    if (driver.watchers) pthread_cond_broadcast(&driver.changed);
}

cudaError_t cudaGetLastError(void) {
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(self.device);
    pthread_mutex_unlock(&driver.lock);
    if (e == cudaSuccess) e = self.last;
    self.last = cudaSuccess;
    return e;
}

static const struct {
    cudaError_t e;
    const char *name, *text;
} errors[] = {
#define ERROR(name, text) \
    { name, #name, text }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorNotReady, "device not ready"),
    ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered,
          "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorPeerAccessUnsupported, "peer access is not supported between these two devices"),
#undef ERROR
};

const char *cudaGetErrorString(cudaError_t e) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].e == e) return errors[i].text;
    return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t e) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].e == e) return errors[i].name;
    return "unrecognized error code";
}

// ---------------------------------------------------------------- devices

static bool there_is(int device) { return device >= 0 && device < driver.count; }

// Here the real driver starts threads that live as long as the process: signals must not find them.
cudaError_t cudaGetDeviceCount(int *count) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    if (!sigismember(&mask, SIGCHLD) || !sigismember(&mask, SIGRTMIN + 1))
        driver_note("cudaGetDeviceCount: the driver's threads would take the program's signals");
    *count = driver.count;
    return driver_said(driver.count ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    if (!there_is(device)) return driver_said(cudaErrorInvalidDevice);
    self.device = device;
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(device);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(e);
}

cudaError_t cudaGetDevice(int *device) {
    *device = self.device;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    if (!there_is(device)) return driver_said(cudaErrorInvalidDevice);
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor:
            *value = DEVICE_SM / 10;
            return cudaSuccess;
        case cudaDevAttrComputeCapabilityMinor:
            *value = DEVICE_SM % 10;
            return cudaSuccess;
        case cudaDevAttrMultiProcessorCount:
            *value = DEVICE_BLOCKS;
            return cudaSuccess;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin:
            *value = 163 << 10;  // what emulation.cc lets a launch have
            return cudaSuccess;
        default:
            driver_note("cudaDeviceGetAttribute: attribute %d is not emulated", (int)attribute);
            return driver_said(cudaErrorInvalidValue);
    }
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    if (!there_is(device)) return driver_said(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated GPU");
    p->totalGlobalMem = driver.limit_bytes;
    p->major = DEVICE_SM / 10;
    p->minor = DEVICE_SM % 10;
    p->multiProcessorCount = DEVICE_BLOCKS;
    p->warpSize = 32;
    p->l2CacheSize = 50 << 20;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device) {
    if (!there_is(device)) return driver_said(cudaErrorInvalidDevice);
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    if (!there_is(device) || !there_is(peer)) return driver_said(cudaErrorInvalidDevice);
    *can = driver.peers && device != peer;
    return cudaSuccess;
}
