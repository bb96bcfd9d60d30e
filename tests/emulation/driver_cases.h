// Shared by the tests of the emulated driver: streams, memory, a stand-in for a kernel, and faults that run in a
// process of their own.
#ifndef STARRING_TESTS_EMULATION_DRIVER_CASES_H
#define STARRING_TESTS_EMULATION_DRIVER_CASES_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>
#include <semaphore.h>

#include "tests/emulation/driver/driver.h"

#define N        1000  // bytes: no multiple of what memory is aligned to
#define ok(call) assert_int_equal((call), cudaSuccess)

static inline cudaStream_t new_stream(void) {
    cudaStream_t s;
    ok(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline char *new_memory(size_t bytes) {
    void *p;
    ok(cudaMalloc(&p, bytes));
    return p;
}

static inline char *new_pinned(size_t bytes) {
    void *p;
    ok(cudaHostAlloc(&p, bytes, cudaHostAllocPortable));
    return p;
}

// Reads device memory, through a stream of its own.
static inline unsigned char device_byte(const void *p) {
    unsigned char byte;
    cudaStream_t s = new_stream();
    ok(cudaMemcpyAsync(&byte, p, 1, cudaMemcpyDefault, s));
    ok(cudaStreamDestroy(s));
    return byte;
}

// ---------------------------------------------------------------- work

// A stand-in for a kernel: holds its stream until it is let go, then sets a byte.
struct kernel {
    sem_t *gate;
    volatile char *p;
    char value;
    int result;
};

static inline int run_kernel(void *arg, const char **why) {
    struct kernel *k = arg;
    if (k->gate) sem_wait(k->gate);
    if (k->p) *k->p = k->value;
    *why = "as it was asked to";
    return k->result;
}

static inline int submit(cudaStream_t s, const struct kernel *k) {
    struct kernel *kept = malloc(sizeof *kept);
    *kept = *k;
    return emu_submit(
        s, &(struct emu_work){.name = "a test's kernel", .run = run_kernel, .drop = free, .arg = kept});
}

// Runs a fault in a process of its own, without cmocka's handlers. Its output goes to said; returns the status of
// wait.
static inline int run_fault(const char *fault, char *said, size_t room) {
    int pipe_ends[2], status;
    size_t length = 0;
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_ends[1], 2);
        execl("/proc/self/exe", "a fault", fault, (char *)NULL);
        _exit(0);
    }
    close(pipe_ends[1]);
    for (ssize_t n; (n = read(pipe_ends[0], said + length, room - 1 - length)) > 0;) length += (size_t)n;
    said[length] = 0;
    close(pipe_ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

// Notes of refused calls are expected here: they are not shown.
static inline int quiet_begin(void) {
    int kept = dup(2);
    if (!freopen("/dev/null", "w", stderr)) abort();
    return kept;
}

static inline void quiet_end(int kept) {
    fflush(stderr);
    dup2(kept, 2);
    close(kept);
}

#endif
