// The emulated driver's memory functions, what work may touch, and copies.
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/emulation/driver/driver_impl.h"

#define WORD_BYTES sizeof(uintptr_t)

// ---------------------------------------------------------------- memory

static cudaError_t state_now(int device) {
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(device);
    pthread_mutex_unlock(&driver.lock);
    return e;
}

cudaError_t cudaMalloc(void **p, size_t bytes) {
    cudaError_t e = state_now(driver_current());
    driver_creates("cudaMalloc");
    *p = NULL;
    if (e != cudaSuccess || bytes == 0) return driver_said(e);
    *p = memory_alloc(driver_current(), bytes);
    return driver_said(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

// Waits for all that the device has been given.
cudaError_t cudaFree(void *p) {
    struct memory_place at = memory_look(p);
    if (!p) return driver_said(state_now(driver_current()));
    driver_frees("cudaFree of a busy device,", stream_busy(driver_current()));
    if (at.kind == MEMORY_DEVICE) stream_drain(at.device);
    if (at.kind == MEMORY_DEVICE && memory_free(p) == 0) return driver_said(state_now(at.device));
    driver_note("cudaFree: %p is not the begin of an allocation%s", p,
                at.kind == MEMORY_STRAY ? ", or has been freed" : "");
    return driver_said(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned int flags) {
    (void)flags;  // the address space is one: pinned for one device is pinned for all
    cudaError_t e = state_now(driver_current());
    driver_creates("cudaHostAlloc");
    *p = e == cudaSuccess ? memory_pin(bytes) : NULL;
    return driver_said(e != cudaSuccess || *p ? e : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void *p) {
    if (!p) return cudaSuccess;
    driver_frees("cudaFreeHost of a busy device,", stream_busy(driver_current()));
    for (int d = 0; d < driver.count; d++) stream_drain(d);
    if (memory_unpin(p) == 0) return driver_said(state_now(driver_current()));
    driver_note("cudaFreeHost: %p has not come from cudaHostAlloc", p);
    return driver_said(cudaErrorInvalidValue);
}

// With EMULATED_CUDA_REGISTER=0 as where pages cannot be locked.
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned int flags) {
    (void)flags;  // as cudaHostAlloc
    cudaError_t e = state_now(driver_current());
    driver_creates("cudaHostRegister");
    if (e == cudaSuccess) e = driver.registers ? memory_register(p, bytes) : cudaErrorMemoryAllocation;
    if (e != cudaSuccess && driver.registers)
        driver_note("cudaHostRegister: %p and %zu bytes more: %s", p, bytes, cudaGetErrorString(e));
    return driver_said(e);
}

cudaError_t cudaHostUnregister(void *p) {
    driver_frees("cudaHostUnregister of a busy device,", stream_busy(driver_current()));
    for (int d = 0; d < driver.count; d++) stream_drain(d);
    cudaError_t e = memory_unregister(p);
    if (e == cudaErrorInvalidValue)
        driver_note("cudaHostUnregister: %p was unmapped while it was registered", p);
    if (e == cudaErrorHostMemoryNotRegistered) driver_note("cudaHostUnregister: %p is not registered", p);
    return driver_said(e == cudaSuccess ? state_now(driver_current()) : e);
}

// A GPU would go on using the pages.
__attribute__((destructor)) static void leave(void) {
    bool mapped;
    size_t bytes = memory_registered(&mapped);
    if (bytes)
        driver_note("%zu bytes of host memory are still registered at the end%s", bytes,
                    mapped ? "" : ", and have been unmapped");
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = driver.limit_bytes;
    *free_bytes = driver.limit_bytes - memory_used(driver_current());
    return driver_said(state_now(driver_current()));
}

// ---------------------------------------------------------------- what work may touch

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    int device = driver_current();
    if (peer < 0 || peer >= driver.count || peer == device) return driver_said(cudaErrorInvalidDevice);
    if (flags != 0) return driver_said(cudaErrorInvalidValue);
    if (!driver.peers) return driver_said(cudaErrorPeerAccessUnsupported);
    driver_creates("cudaDeviceEnablePeerAccess");
    pthread_mutex_lock(&driver.lock);
    bool already = driver.device[device].reach >> peer & 1;
    driver.device[device].reach |= 1u << peer;
    pthread_mutex_unlock(&driver.lock);
    return driver_said(already ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess);
}

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
    if (s && !w->waits && emu_device_of(s) != driver_current()) {
        driver_note("%s: the stream is device %d's, the thread's device is %d", w->name, emu_device_of(s),
                    driver_current());
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
    if (bytes == 0) return driver_said(state_now(driver_current()));
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
    if (bytes == 0) return driver_said(state_now(driver_current()));
    if (at.kind == MEMORY_PAGEABLE || !copies(&at, p, bytes, "cudaMemsetAsync"))
        return driver_said(cudaErrorInvalidValue);
    struct transfer *t = malloc(sizeof *t);
    if (!t) return driver_said(cudaErrorMemoryAllocation);
    *t = (struct transfer){.to = p, .value = value, .bytes = bytes};
    struct emu_work w = {.name = "cudaMemsetAsync", .run = run_transfer, .drop = free, .arg = t};
    return driver_said(stream_submit_work(s, &w, false));
}
