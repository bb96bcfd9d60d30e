// Inside of the emulated driver. driver.c has the description of the whole.
#ifndef STARRING_TESTS_EMULATION_DRIVER_IMPL_H
#define STARRING_TESTS_EMULATION_DRIVER_IMPL_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "tests/emulation/driver/driver.h"

#define DEVICES_MAX   8
#define EMU_ALIGN     256
#define DEVICE_SM     90
#define DEVICE_BLOCKS 132  // multiprocessors

// ---------------------------------------------------------------- driver_memory.c
enum memory_kind {
    MEMORY_PAGEABLE,  // the host's, or not mapped at all
    MEMORY_PINNED,
    MEMORY_DEVICE,
    MEMORY_STRAY  // a device's address, of no memory: freed, never allocated, a gap
};
struct memory_place {
    enum memory_kind kind;
    int device;
    const char *begin, *end;  // of the allocation; NULL when there is none
};
struct memory_place memory_look(const void *p);
// Reserves the address ranges; catches faults in them.
void memory_start(int devices, size_t limit_bytes);
void *memory_alloc(int device, size_t bytes);  // NULL: beyond the limit
int memory_free(void *p);                      // -1: not the begin of an allocation
void *memory_pin(size_t bytes);
int memory_unpin(void *p);
// [p, p + bytes) counts as pinned until memory_unregister(p). Memory that is not mapped then is refused, and so
// is memory that is already pinned, or was never registered.
cudaError_t memory_register(void *p, size_t bytes);
cudaError_t memory_unregister(void *p);
size_t memory_registered(bool *mapped);  // bytes; whether all of them are still mapped
size_t memory_used(int device);
// The memory that the thread is working with, for the text of a fault: a device's number, or -1, the host.
void memory_set_worker(int device);

// ---------------------------------------------------------------- driver.c
struct device_state {
    cudaError_t error;  // sticky
    unsigned reach;     // bit d: memory of device d is reached by this one's kernels
    struct CUstream_st *streams;
    uint64_t issued;  // operations, numbered on from 1
};
struct driver {
    pthread_mutex_t lock;  // guards what the devices, streams and events hold
    pthread_cond_t changed;
    int watchers;  // threads in pthread_cond_wait(&changed)
    int count;
    size_t limit_bytes;
    bool peers, registers;
    uint64_t delay_us, delay_seed;
    unsigned streams_made;
    struct device_state device[DEVICES_MAX];
};
extern struct driver driver;

int driver_current(void);              // the calling thread's device
cudaError_t driver_said(cudaError_t);  // keeps an error as the thread's last; returns it
// With the lock held: what has failed on the device, or success.
cudaError_t driver_state(int device);
void driver_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// With the lock held: waits for a change.
void driver_await(void);
void driver_changed(void);  // with the lock held

// ---------------------------------------------------------------- driver_count.c
void count_launch(void);    // of a kernel, by this thread
void count_wait(void);      // cudaStreamSynchronize, cudaEventSynchronize, a copy to pageable memory
void count_pageable(void);  // a copy from pageable memory

// ---------------------------------------------------------------- driver_seal.c
// The thread's device is about to do something that it may do only before its communicators.
void driver_creates(const char *what);
// The same of what waits for the device's work, when it is busy and no other rank's.
void driver_frees(const char *what, bool busy);

// ---------------------------------------------------------------- driver_stream.c
// A point in a stream that an event names.
struct mark {
    int refs;  // driver.lock
    bool passed;
    double at_s;
};
struct CUevent_st {
    int device;
    struct mark *mark;  // the latest record; NULL: never recorded
};
// Waits until all that the device has been given so far is done.
void stream_drain(int device);
bool stream_busy(int device);  // whether something of it is not done
// As emu_submit; waits for its end when asked to.
cudaError_t stream_submit_work(struct CUstream_st *s, const struct emu_work *w, bool and_wait);

#endif
