// The queue of a stream, the same for all backends: a bounded ring of slots, and a thread that runs them in
// order.
//
//     ring   | done .. | running | queued .. | free ..      capacity QUEUE_SLOTS
//                      ^ done                ^ queued       counts of slots since creation
//
// Backend  A backend's stream begins with a struct queue; its queue_ops define how the thread runs a slot. On a
//          host the thread does the work itself. On a GPU a device executes what the thread submits. A slot is
//          then done when it is submitted to the device. A mark in the device's own queue shows when the device
//          has passed that point. queue.c also has the functions of backend.h on streams and events.
// Owner    The caller until queue_stop. Then the device keeps the queue (not the ring) until it closes, so that waits that
//          were enqueued earlier can still read the queue's progress.
// Threads  One enqueuing thread at a time, one thread of the queue.
// Points   A point is (queue, count of slots queued by then, mark). It has passed when that queue's `done` has
//          reached the count and the device has passed the mark. A wait for a mark is submitted to a device only after
//          the mark itself is submitted to its device. So no device waits for work that is not submitted, whichever
//          streams share a hardware queue.
// Inside   A function that the queue runs may make calls on its own stream (backend.h, Inside). It is on the queue's thread,
//          so its calls run at once instead of being queued.
// Failure  `failed_at` is the number of the first slot that failed. Later slots still count as done (so
//          nothing hangs) but do not run; a wait for a count >= failed_at fails as well.
#ifndef STARRING_KERNELS_QUEUE_QUEUE_H
#define STARRING_KERNELS_QUEUE_QUEUE_H

#include "kernels/backend_impl.h"

#define QUEUE_SLOTS      1024
#define QUEUE_NAME_BYTES 32
// A shorter gap between two operations is the queue's own work, and a shorter wait does not count.
#define QUEUE_GAP_NS 2000
#define QUEUE_NEVER  UINT64_MAX  // failed_at while nothing has failed

struct queue;
struct mark;  // a point in the device's own queue; the backend's

struct queue_point {
    struct queue *on;  // NULL: an event that was never recorded
    uint64_t count;
    struct mark *mark;  // holds a reference; NULL: only `count` decides
};

enum slot_kind {
    SLOT_OP,
    SLOT_COPY,
    SLOT_HOST,    // a function, when the device has finished the slots before it
    SLOT_SUBMIT,  // a function, without waiting for the device
    SLOT_NATIVE,  // as SLOT_SUBMIT, called with the device library's own stream (cudaStream_t)
    SLOT_PHASE,
    SLOT_RECORD,
    SLOT_WAIT,
    SLOT_STAMP,
    SLOT_FLUSH  // no work; ends the interval that is being measured
};

struct slot {
    enum slot_kind kind;
    union {
        struct {
            enum op op;
            _Alignas(16) unsigned char args[OP_ARGS_MAX_BYTES];
        } op;
        struct {
            void *dst;
            const void *src;
            size_t bytes;
        } copy;
        struct {
            union {
                int (*fn)(void *arg);
                int (*native)(void *arg, void *native_stream);
            };
            void *arg;
            const char *name;
        } call;
        struct {
            struct queue_point at;  // record and wait
            uint64_t tag;           // wait and stamp
        };
        enum phase phase;
    };
};
const char *slot_name(const struct slot *slot);  // "matmul", "copy", ...; "" for slots that take no time

// A device that executes what the queue's thread submits. All functions return 0, or -1 after device_fail, except as
// noted.
struct queue_device {
    // On the queue's thread. pause: no further work follows at once, so the interval that is being measured ends;
    // idle: the queue is empty. drain: blocks until the device has finished; what: named in the error.
    int (*pause)(struct queue *q, bool idle);
    int (*drain)(struct queue *q, const char *what);
    // begin_wait: an interval of waiting begins, which ends when the slot's mark is submitted to the device.
    // Also: a thread that blocks until another device's work is submitted may leave this device idle.
    int (*begin_wait)(struct queue *q, const struct slot *slot);
    // On any thread. sync: drain for the host. date: from here on the begin times of spans are computed, too; the queue is
    // idle. read: adds the spans that the device has finished to the log.
    int (*sync)(struct queue *q);
    int (*date)(struct queue *q);
    int (*read)(struct queue *q);
    struct mark *(*take)(struct queue *q);  // returns one reference; NULL after queue_fail
    void (*hold)(struct mark *m);
    void (*drop)(struct mark *m);
    int (*passed)(struct queue *q, struct mark *m, bool wait);  // 1; 0: not yet, unless wait; -1
};

struct queue_ops {
    void *(*thread)(void *queue);  // queue_run, or a wrapper with the backend's own setup and cleanup
    // Runs a slot of the backend's kinds: SLOT_OP, SLOT_COPY, and with a device SLOT_SUBMIT,
    // SLOT_NATIVE, SLOT_RECORD, SLOT_STAMP and the device's share of SLOT_WAIT. Returns 0, or -1 after device_fail.
    int (*run)(struct queue *q, const struct slot *slot);
    const struct queue_device *device_ops;  // NULL: the thread does the work itself
};

struct queue {
    struct stream head;
    const struct queue_ops *ops;
    struct queue *next;  // the device's list
    char name[QUEUE_NAME_BYTES];
    pthread_t thread;
    pthread_mutex_t lock;     // guards the fields down to log_busy
    pthread_cond_t work;      // the queue's thread sleeps here
    pthread_cond_t progress;  // hosts and other queues sleep here
    int watchers;             // threads that sleep on progress
    struct slot *ring;        // (QUEUE_SLOTS); NULL once stopped
    uint64_t queued, done, failed_at;
    bool closing;
    bool waits;  // the running function waits for other ranks
    struct stream_times times;
    struct spans trace;       // a span of every operation, if the device's options ask for it
    struct spans trace_copy;  // copy of trace at the last call of dev_spans, without later spans
    struct spans log;         // since the last stream_take_log; adjacent spans of one phase are merged
    bool stamps_only;         // log records only stamps
    uint64_t log_busy;        // 1 + the number of log's last busy span, if only stamps came after it; else 0
    // Used only by the queue's thread:
    enum phase phase;
    int64_t last_end_ns;  // of the last timed slot
    bool failed_inside;   // a call of the running function on its own stream failed
};

// ---------------------------------------------------------------- for backends
// q is zeroed. queue_start starts the thread; -1: it cannot (no text is kept), and the caller frees q.
void queue_init(struct queue *q, struct device *dev, const char *name, const struct queue_ops *ops);
int queue_start(struct queue *q);
void *queue_run(void *queue);        // runs slots until queue_stop
void queue_stop(struct queue *q);    // runs what is queued, then joins
void queues_free(struct device *d);  // when the device closes, after every queue was stopped
// Adds a span to its phase's time, and records it if the device traces or the stream logs.
void queue_span(struct queue *q, const struct span *span);
// await blocks until `count` slots are done; -1 if one of them failed. state: 1 done, 0 not yet, -1 failed.
int queue_await(struct queue *q, uint64_t count);
int queue_state(struct queue *q, uint64_t count);
void queue_point_drop(const struct queue_point *m);  // releases its reference
// Queue a SLOT_RECORD or a SLOT_WAIT, and take ownership of the mark's reference. queue_record returns the count of the
// point; without a mark it queues nothing.
uint64_t queue_record(struct queue *q, struct mark *mark);
void queue_wait(struct queue *q, const struct queue_point *until, uint64_t tag);

// ---------------------------------------------------------------- for the backends' tables (backend.h)
void queue_launch(struct stream *s, enum op op, const void *args, size_t args_bytes);
void queue_copy(struct stream *s, void *dst, const void *src, size_t bytes);
void queue_submit_native(struct stream *s, const char *name, int (*fn)(void *arg, void *native_stream),
                         void *arg);
// Fails every queue of the stream's device from outside: others may already have been allowed to run work that follows
// the failed work.
void queue_fail(struct stream *s, const char *text);

// ---------------------------------------------------------------- events
// An event names the point of a queue at which it was recorded last. A wait copies
// the point when it is enqueued, so waits that are already queued do not change when the event is recorded
// again or destroyed. Ownership and threads: see kernels/backend.h.
struct event *queue_event_create(struct device *d);
void queue_event_destroy(struct event *e);
// Only the queue's thread waits, until the earlier work of e's queue is submitted to its device.
void queue_wait_submission(struct stream *s, struct event *e);
// The point that an event names now, with a reference that the caller drops.
struct queue_point queue_event_point(struct event *e);

#endif
