// Shared by backend.c and the backends: the first members of the opaque objects. A backend embeds struct
// device, struct stream and struct event as the FIRST member of its own structs. Only kernels/ includes this
// file.
#ifndef STARRING_KERNELS_BACKEND_IMPL_H
#define STARRING_KERNELS_BACKEND_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/backend.h"

struct queue;  // kernels/queue/queue.h

struct device {
    const struct backend *backend;
    char label[64];
    int threads;  // that an operation may use; >= 1
    bool trace;
    size_t memory_bytes;     // limit of dev_alloc; 0: none
    pthread_mutex_t lock;    // guards usage, notes and the writing of error
    struct mem_usage usage;  // counted by dev_alloc and dev_free
    atomic_uint_fast64_t host_waits;
    atomic_bool failed;  // error is complete and no longer changes
    char error[1280];
    struct {  // guarded by lock; texts do not move until device_fini
        enum dev_note_kind kind;
        char *text;
    } notes[DEV_NOTES_MAX];
    int note_count;
    struct queue *queues;  // every stream ever created, newest first; close frees them; guarded by lock
    int live_queues;       // queues that are not stopped; guarded by lock
    pthread_t host;        // the thread that opened the device, if has_host
    bool has_host;
    atomic_int host_waiting;  // depth of its waits for the device
};

struct stream {
    struct device *dev;
};

struct event {
    struct device *dev;
};

// Fills and empties struct device; a backend's open and close call them.
void device_init(struct device *d, const struct backend *b, const struct device_options *opt);
void device_fini(struct device *d);
// The calling thread begins, or ends, to wait for the device.
void device_wait_note(struct device *d, bool waits);
// Stores the text "[label] text" of the first error; later errors are dropped.
void device_fail(struct device *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

// Stores a remark for dev_note, unless the device already has the same text. Any thread.
void device_note(struct device *d, enum dev_note_kind kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// cpu and ref share one host implementation (kernels/cpu/device.c), with two tables of operations.
extern const struct backend cpu_backend, ref_backend;

#endif
