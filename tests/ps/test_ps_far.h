// A device with memory of its own, for tests without one: the cpu backend's streams over memory that is
// mapped twice. The addresses that dev_alloc gives out lie in a mapping that nobody may touch, so that a host
// that reads or writes device memory dies of it; what runs on a stream goes through the other mapping. Every
// copy and operation is kept waiting for a random while, so that what no event orders comes in any order.
//
// Host memory that others map can be registered; it counts whether it is unregistered while it is mapped.
//
// The operations that it knows are those that the star's worker launches.
#ifndef STARRING_TESTS_PS_TEST_PS_FAR_H
#define STARRING_TESTS_PS_TEST_PS_FAR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/backend_impl.h"
#include "kernels/queue/queue.h"

#define FAR_BYTES    ((size_t)64 << 20)  // of all devices since the program's start: nothing is used twice
#define FAR_DELAY_US 400

static struct {
    pthread_once_t once;
    char *named, *seen;  // two mappings of the same bytes
    _Atomic size_t used;
    _Atomic uint64_t random;
    _Atomic int fail_fetches;  // so many of the next copies to host memory fail
} far_memory = {.once = PTHREAD_ONCE_INIT};

static inline void far_map(void) {
    int fd = memfd_create("device", 0);
    bool good = fd >= 0 && ftruncate(fd, (off_t)FAR_BYTES) == 0;
    far_memory.named = mmap(NULL, FAR_BYTES, PROT_NONE, MAP_SHARED, fd, 0);
    far_memory.seen = mmap(NULL, FAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!good || far_memory.named == MAP_FAILED || far_memory.seen == MAP_FAILED) abort();
    close(fd);
}

// Where what runs on a stream finds p: device memory in its other mapping, host memory where it is.
static inline void *far_seen(const void *p) {
    size_t at = (size_t)((const char *)p - far_memory.named);
    return far_memory.named && at < FAR_BYTES ? far_memory.seen + at : (void *)p;
}

static inline void *far_alloc(struct device *d, size_t bytes) {
    (void)d;
    pthread_once(&far_memory.once, far_map);
    size_t at = atomic_fetch_add(&far_memory.used, bytes);
    if (at + bytes > FAR_BYTES) {
        fprintf(stderr, "the tests' device is full: raise FAR_BYTES\n");
        abort();
    }
    return far_memory.named + at;
}

static inline void far_free(struct device *d, void *p, size_t bytes) {
    (void)d;
    memset(far_seen(p), 0xee, bytes);
}

static inline int far_pause(void *arg) {
    (void)arg;
    uint64_t x = atomic_fetch_add(&far_memory.random, 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    if (x >> 62) usleep((useconds_t)(x >> 33) % FAR_DELAY_US);
    return 0;
}

// ---------------------------------------------------------------- host memory that is registered
#define FAR_PIECES 16

static struct {
    pthread_mutex_t lock;
    struct far_piece {
        void *p;  // NULL: free
        size_t bytes;
    } piece[FAR_PIECES];
    int live, ever, misused;  // pieces; ever; calls that a driver would refuse or not survive
    int refuse;               // so many of the next registrations
} far_pages = {.lock = PTHREAD_MUTEX_INITIALIZER};

static inline struct far_piece *far_piece(const void *p) {
    struct far_piece *at = far_pages.piece;
    while (at < far_pages.piece + FAR_PIECES && at->p != p) at++;
    return at < far_pages.piece + FAR_PIECES ? at : NULL;
}

// Memory that is not mapped cannot be written back.
static inline bool far_is_mapped(void *p, size_t bytes) { return msync(p, bytes, MS_ASYNC) == 0; }

static inline int far_register(struct device *d, void *p, size_t bytes, const char **why) {
    (void)d;
    pthread_mutex_lock(&far_pages.lock);
    bool refused = far_pages.refuse > 0;
    struct far_piece *at = far_piece(p) ? NULL : far_piece(NULL);
    if (refused)
        far_pages.refuse--;
    else if (!at || !far_is_mapped(p, bytes))
        far_pages.misused++;
    else
        *at = (struct far_piece){p, bytes}, far_pages.live++, far_pages.ever++;
    pthread_mutex_unlock(&far_pages.lock);
    *why = "so the test says";
    return refused ? -1 : 0;
}

static inline void far_unregister(struct device *d, void *p) {
    (void)d;
    pthread_mutex_lock(&far_pages.lock);
    struct far_piece *at = far_piece(p);
    if (!at || !far_is_mapped(p, at->bytes)) far_pages.misused++;
    if (at) at->p = NULL, far_pages.live--;
    pthread_mutex_unlock(&far_pages.lock);
}

static inline int far_refuse(void *arg) {
    (void)arg;
    return -1;
}

static inline void far_copy(struct stream *s, void *dst, const void *src, size_t bytes) {
    bool fetch = far_seen(src) != src && far_seen(dst) == dst;
    stream_host(s, "pause", far_pause, NULL);
    if (fetch && atomic_load(&far_memory.fail_fetches) > 0 &&
        atomic_fetch_sub(&far_memory.fail_fetches, 1) > 0)
        stream_host(s, "copy", far_refuse, NULL);
    queue_copy(s, far_seen(dst), far_seen(src), bytes);
}

// The operations that a worker launches, with the device's addresses as the host sees them.
static inline void far_launch(struct stream *s, enum op op, const void *args, size_t args_bytes) {
    union {
        struct sumsq_args sumsq;
        struct code_encode_args encode;
        struct code_error_args error;
        struct code_add_args add;
    } a;
    if (args_bytes > sizeof a) abort();
    memcpy(&a, args, args_bytes);
    if (op == OP_SUMSQ) {
        a.sumsq.out = far_seen(a.sumsq.out);
        a.sumsq.x = far_seen(a.sumsq.x);
    } else if (op == OP_CODE_ENCODE) {
        a.encode.out = far_seen(a.encode.out);
        a.encode.error = far_seen(a.encode.error);
        a.encode.grad = far_seen(a.encode.grad);
    } else if (op == OP_CODE_ERROR) {
        a.error.error = far_seen(a.error.error);
        a.error.grad = far_seen(a.error.grad);
    } else if (op == OP_CODE_ADD) {
        a.add.out = far_seen(a.add.out);
        a.add.code = far_seen(a.add.code);
    } else {
        abort();
    }
    stream_host(s, "pause", far_pause, NULL);
    queue_launch(s, op, &a, args_bytes);
}

// Opens the device; dev_close closes it. 0 or -1.
static inline int far_open(const struct device_options *o, struct device **out) {
    static struct backend far;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!far.name) {
        far = cpu_backend;
        far.name = "far";
        far.host_memory = false;
        far.alloc = far_alloc;
        far.free = far_free;
        far.host_register = far_register;
        far.host_unregister = far_unregister;
        far.copy = far_copy;
        far.launch = far_launch;
    }
    pthread_mutex_unlock(&lock);
    if (dev_open(&cpu_backend, o, out) != 0) return -1;
    (*out)->backend = &far;
    return 0;
}

#endif
