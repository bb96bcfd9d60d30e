// The part that a backend's implementation shares with backend.c: the heads of its opaque objects. A backend
// embeds struct device, struct stream and struct event as the FIRST member of its own structs.
// Only kernels/ includes this file.
#ifndef STARRING_KERNELS_BACKEND_IMPL_H
#define STARRING_KERNELS_BACKEND_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/backend.h"

struct queue;  // kernels/queue/queue.h

struct device {
    const struct backend *backend;
    char label[64];
    int threads;  // an operation may use; >= 1
    bool trace;
    size_t memory_bytes;     // 0: no limit of our own
    pthread_mutex_t lock;    // guards usage, notes and the writing of error
    struct mem_usage usage;  // counted by dev_alloc and dev_free
    atomic_uint_fast64_t host_waits;
    atomic_bool failed;  // error is complete and will not change any more
    char error[1280];
    struct {  // guarded by lock; texts stay where they are until device_fini
        enum dev_note_kind kind;
        char *text;
    } notes[DEV_NOTES_MAX];
    int note_count;
    struct queue *queues;  // of every stream ever created, newest first; freed by close. lock
    int live_queues;       // not stopped. lock
    pthread_t host;        // the thread that has opened it, where has_host
    bool has_host;
    atomic_int host_rests;  // waits of it for the device, one inside the other
};

struct stream {
    struct device *dev;
};

struct event {
    struct device *dev;
};

// Fills and empties the head; called by a backend's open and close.
void device_init(struct device *d, const struct backend *b, const struct device_options *opt);
void device_fini(struct device *d);
// The calling thread begins, or ends, to wait for the device.
void device_awaited(struct device *d, bool waits);
// Keeps the first error's text, "[label] text".
void device_fail(struct device *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Keeps a remark for dev_note unless the device has one of the same text. Any thread.
void device_note(struct device *d, enum dev_note_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// cpu and ref: one host implementation (kernels/cpu/device.c) with two tables of operations.
extern const struct backend cpu_backend, ref_backend;

#endif
