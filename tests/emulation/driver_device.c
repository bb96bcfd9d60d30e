// An emulated CUDA driver and runtime, for running the whole program with --device cuda where there is no
// GPU: tests/job_cuda/ by way of job_emulate(). It is built as libcuda.so.1, which is where the program
// looks for a driver; the backend's sources (kernels/cuda/host/*.c, against CUDA's own headers) and its
// kernels (compiled for the host, see cuda_runtime.h) become libstarring_cuda.so beside it, nccl.c becomes
// libnccl.so.2.
//
//     driver_device.c   devices, errors, memory's functions, copies
//     driver_stream.c   streams, events; one thread a stream
//     driver_memory.c   who may touch which address
//     driver_count.c    how often the host waited
//     driver_seal.c     what may be loaded and allocated when
//     blas.c, nccl.c    cuBLASLt and NCCL
//
// What it punishes, because a GPU would
//     the host touches device memory           the process dies of it, with the address and the stack. Not
//     while a
//                                              kernel or a copy is running: then memory is open
//     a kernel or a copy beyond its memory     likewise, at any time; also in memory that has been freed
//     a missing event                          streams run by themselves: a race, and with delays a likely
//     one pinned memory reused too early           copies from it read it when the stream comes to them;
//     copies from
//                                              pageable memory read it at once, copies to it block
//     a kernel that gets a pointer of the      refused: pageable host memory, memory of a device that its own
//     one wrong memory                             has not been given access to, freed memory memory that is
//     read before it is set     is poisoned with 0xee a stream of another device than the      refused, as
//     are events thread's
// A failure of a kernel sticks to its device: later calls return it.
//
// What it is not: a model of speed or of the hardware's limits, no default stream, no graphs, no page faults
// of managed memory; the unified address space it has.
//
// Environment
//     EMULATED_CUDA_DEVICES     how many devices, 0 to 8; 1
//     EMULATED_CUDA_MEMORY_MIB  memory of each; 4096
//     EMULATED_CUDA_PEERS       0: no device reaches another one's memory; 1
//     EMULATED_CUDA_DELAY_US    the longest delay before an operation; 0: none
//     EMULATED_CUDA_SEED        which operations of which streams are delayed by how much; 1
//     EMULATED_CUDA_COUNTS      a file: each process appends how often its host waited (driver_count.c)
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/emulation/driver_impl.h"

#define VERSION    13000
#define WORD_BYTES sizeof(uintptr_t)

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

cudaError_t cudaGetDeviceCount(int *count) {
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

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    int device = self.device;
    if (!there_is(peer) || peer == device) return driver_said(cudaErrorInvalidDevice);
    if (flags != 0) return driver_said(cudaErrorInvalidValue);
    if (!driver.peers) return driver_said(cudaErrorPeerAccessUnsupported);
    driver_creates("cudaDeviceEnablePeerAccess");
    pthread_mutex_lock(&driver.lock);
    bool already = driver.device[device].reach >> peer & 1;
    driver.device[device].reach |= 1u << peer;
    pthread_mutex_unlock(&driver.lock);
    return driver_said(already ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

// ---------------------------------------------------------------- memory

static cudaError_t state_now(int device) {
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(device);
    pthread_mutex_unlock(&driver.lock);
    return e;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    cudaError_t e = state_now(self.device);
    driver_creates("cudaMalloc");
    *p = NULL;
    if (e != cudaSuccess || bytes == 0) return driver_said(e);
    *p = memory_alloc(self.device, bytes);
    return driver_said(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

// Waits for all that the device has been given.
cudaError_t cudaFree(void *p) {
    struct memory_place at = memory_look(p);
    if (!p) return driver_said(state_now(self.device));
    driver_frees("cudaFree of a busy device,");
    if (at.kind == MEMORY_DEVICE) stream_drain(at.device);
    if (at.kind == MEMORY_DEVICE && memory_free(p) == 0) return driver_said(state_now(at.device));
    driver_note("cudaFree: %p is not the begin of an allocation%s", p,
                at.kind == MEMORY_STRAY ? ", or has been freed" : "");
    return driver_said(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int flags) {
    (void)flags;  // the address space is one: pinned for one device is pinned for all
    cudaError_t e = state_now(self.device);
    driver_creates("cudaHostAlloc");
    *p = e == cudaSuccess ? memory_pin(bytes) : NULL;
    return driver_said(e != cudaSuccess || *p ? e : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p) {
    if (!p) return cudaSuccess;
    driver_frees("cudaFreeHost of a busy device,");
    for (int d = 0; d < driver.count; d++) stream_drain(d);
    if (memory_unpin(p) == 0) return driver_said(state_now(self.device));
    driver_note("cudaFreeHost: %p has not come from cudaHostAlloc", p);
    return driver_said(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = driver.limit_bytes;
    *free_bytes = driver.limit_bytes - memory_used(self.device);
    return driver_said(state_now(self.device));
}

// ---------------------------------------------------------------- what work may touch

static bool reached(int device, int other) {
    pthread_mutex_lock(&driver.lock);
    bool yes = driver.device[device].reach >> other & 1;
    pthread_mutex_unlock(&driver.lock);
    return yes;
}

bool emu_reaches(struct CUstream_st *s, const void *p, size_t bytes, const char *what) {
    int device = emu_device_of(s);
    struct memory_place at = memory_look(p);
    const char *end = (const char *)p + bytes;
    if (at.kind == MEMORY_PAGEABLE)
        driver_note("%s: %p is no memory of a device", what, p);
    else if (at.kind == MEMORY_STRAY || end > at.end)
        driver_note("%s: %p and %zu bytes more are not in an allocation of device %d", what, p, bytes,
                    at.device);
    else if (at.kind == MEMORY_DEVICE && !reached(device, at.device))
        driver_note("%s: %p is memory of device %d, which device %d has no access to", what, p, at.device,
                    device);
    else
        return true;
    return false;
}

// Whether a word looks like an address of the process: of a page that is there, and beyond what two small
// numbers side by side look like and what the address sanitizer keeps for itself.
static bool is_mapped(uintptr_t word) {
    unsigned char resident;
    if (word >> 45 == 0 || word >> 48 != 0) return false;
    return mincore((void *)(word / 4096 * 4096), 1, &resident) == 0;
}

static bool words_reach(struct CUstream_st *s, const struct emu_work *w) {
    for (size_t i = 0; i + WORD_BYTES <= w->words_bytes; i += WORD_BYTES) {
        uintptr_t word;
        memcpy(&word, (const char *)w->words + i, WORD_BYTES);
        const void *p = (const void *)word;
        struct memory_place at = memory_look(p);
        if (at.kind == MEMORY_PAGEABLE && !is_mapped(word)) continue;
        if (!emu_reaches(s, p, 0, w->name)) return false;
    }
    return true;
}

int emu_submit(struct CUstream_st *s, const struct emu_work *w) {
    cudaError_t e = cudaSuccess;
    if (w->words) count_launch();
    if (s && !w->waits && emu_device_of(s) != self.device) {
        driver_note("%s: the stream is device %d's, the thread's device is %d", w->name, emu_device_of(s),
                    self.device);
        e = cudaErrorInvalidResourceHandle;
    } else if (s && w->words && !words_reach(s, w)) {
        e = cudaErrorIllegalAddress;
    }
    if (s) emu_load(emu_device_of(s), w->kernel, w->name);
    if (e == cudaSuccess) return driver_said(stream_submit_work(s, w, false));
    if (w->drop) w->drop(w->arg);
    return driver_said(e);
}

// ---------------------------------------------------------------- copies

struct transfer {
    char *to;
    const char *from;  // NULL: filled with value
    size_t bytes;
    int value;
    char staged[];
};

static int run_transfer(void *arg, const char **why) {
    struct transfer *t = arg;
    (void)why;
    if (t->from)
        memmove(t->to, t->from, t->bytes);
    else
        memset(t->to, t->value, t->bytes);
    return 0;
}

// Whether p and what follows may be copied from or to, wherever it lies. Copies need no access between
// devices: the driver stages them.
static bool copies(const struct memory_place *at, const void *p, size_t bytes, const char *what) {
    if (at->kind == MEMORY_PAGEABLE) return true;
    if (at->kind != MEMORY_STRAY && (const char *)p + bytes <= at->end) return true;
    driver_note("%s: %p and %zu bytes more are not in an allocation", what, p, bytes);
    return false;
}

static bool fits_kind(enum cudaMemcpyKind kind, const struct memory_place *to,
                      const struct memory_place *from) {
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
         from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return kind == cudaMemcpyDefault ||
           ((to->kind == MEMORY_DEVICE) == to_device && (from->kind == MEMORY_DEVICE) == from_device);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s) {
    struct memory_place to_place = memory_look(to), from_place = memory_look(from);
    if (bytes == 0) return driver_said(state_now(self.device));
    if (!copies(&to_place, to, bytes, "cudaMemcpyAsync to") ||
        !copies(&from_place, from, bytes, "cudaMemcpyAsync from"))
        return driver_said(cudaErrorInvalidValue);
    if (!fits_kind(kind, &to_place, &from_place)) {
        driver_note("cudaMemcpyAsync: not the kind of copy that its pointers make it");
        return driver_said(cudaErrorInvalidValue);
    }
    bool staged = from_place.kind == MEMORY_PAGEABLE;
    if (staged) count_pageable();
    if (to_place.kind == MEMORY_PAGEABLE) count_wait();
    struct transfer *t = malloc(sizeof *t + (staged ? bytes : 0));
    if (!t) return driver_said(cudaErrorMemoryAllocation);
    *t = (struct transfer){.to = to, .from = staged ? t->staged : from, .bytes = bytes};
    if (staged) memcpy(t->staged, from, bytes);
    struct emu_work w = {.name = "cudaMemcpyAsync", .run = run_transfer, .drop = free, .arg = t};
    return driver_said(stream_submit_work(s, &w, to_place.kind == MEMORY_PAGEABLE));
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    struct memory_place at = memory_look(p);
    if (bytes == 0) return driver_said(state_now(self.device));
    if (at.kind == MEMORY_PAGEABLE || !copies(&at, p, bytes, "cudaMemsetAsync"))
        return driver_said(cudaErrorInvalidValue);
    struct transfer *t = malloc(sizeof *t);
    if (!t) return driver_said(cudaErrorMemoryAllocation);
    *t = (struct transfer){.to = p, .value = value, .bytes = bytes};
    struct emu_work w = {.name = "cudaMemsetAsync", .run = run_transfer, .drop = free, .arg = t};
    return driver_said(stream_submit_work(s, &w, false));
}
