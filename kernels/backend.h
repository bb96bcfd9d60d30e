// The device interface: memory, streams, events, copies and every operation of the model, the
// optimizer and the reductions, behind one const table. kernels/ref, kernels/cpu and kernels/cuda
// fill it; the model and the topologies see nothing else of a device.
//
// Ownership   A rank opens one device and owns it; streams, events and memory belong to that device
//             and are released before it is closed.
// Threads     All functions may be called from any thread of the rank. Operations of ONE stream are
//             enqueued by one thread at a time.
// Blocking    dev_launch, dev_copy, stream_host, event_record, stream_wait_event only enqueue (they
//             block only while the stream's queue is full). event_sync, stream_sync block the host.
// Order       Operations of one stream run in order; those of two streams are ordered by events alone.
//             A CPU stream is a real queue with its own thread, so a missing event is a real race.
// Inside      A function that a stream runs (stream_host, stream_submit) may call dev_launch, dev_copy,
//             event_record, stream_wait_event and stream_sync on that same stream: they act at that place
//             of the queue, before what was enqueued later. A failure fails the function's slot.
// Errors      Shapes out of contract are programmer errors (assert). A failure while running (a
//             library's refusal, a host function that returned non-zero) stops the stream's later work
//             from running and is sticky: stream_sync returns -1 and dev_error() has the text.
#ifndef STARRING_KERNELS_BACKEND_H
#define STARRING_KERNELS_BACKEND_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/cuda_choices.h"
#include "kernels/device_report.h"
#include "kernels/dtype.h"
#include "kernels/operations.h"
#include "kernels/spans.h"

// ---------------------------------------------------------------- memory classes
// The purpose of a byte of memory; the ledger's rows.
enum mem_class {
    MEM_PARAMETER,   // weights the model computes with
    MEM_GRADIENT,    // gradients, full or sharded, and accumulators of them
    MEM_MASTER,      // fp32 copies of the weights
    MEM_OPTIMIZER,   // moments
    MEM_ACTIVATION,  // saved and passing activations, tokens, losses
    MEM_COMM,        // communication buffers: gather slots' staging, receive buffers
    MEM_WORKSPACE,   // scratch of operations
    MEM_SERVER,      // what a server needs beside the classes above: delay compensation
    MEM_CHECKPOINT,  // state copied aside until it is on disk; of a GPU's ranks that is page-locked: MEM_HOST
    MEM_HOST,        // page-locked host memory that a device with memory of its own is reached through
    MEM_OFFLOAD,     // host memory that holds what would else be in the device's
    MEM_CLASSES
};
const char *mem_class_name(enum mem_class c);  // "parameter", "gradient", ...
// Whether it is memory of the host beside the device's, in no total of the device's, even where both are one.
static inline bool mem_class_beside(enum mem_class c) { return c == MEM_HOST || c == MEM_OFFLOAD; }

struct mem_usage {
    size_t current_bytes[MEM_CLASSES];
    size_t peak_bytes[MEM_CLASSES];
    uint64_t allocations;  // how many times dev_alloc was called
};

// ---------------------------------------------------------------- the table
struct device;  // opaque
struct stream;
struct event;

struct device_options {
    int threads;             // CPU: threads an operation may use; 0: one per core
    int index;               // CUDA: which device, below backend_devices()
    const char *label;       // "rank 1": named in errors and traces; copied
    enum cpu_kernel kernel;  // CPU: the way of bf16 products
    struct cuda_choices cuda;
    bool trace;           // keep a span of every operation for dev_spans
    bool watch_host;      // others see that the opening thread is at work beside the device (dev_at_work)
    size_t memory_bytes;  // dev_alloc refuses what goes beyond, MEM_HOST aside; 0: all that the device has
};

// Phases of a step, for the split of its time. A stream accounts to the phase it was last given.
enum phase { PHASE_OTHER, PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER, PHASE_COMM, PHASES };
const char *phase_name(enum phase p);  // "other", "data", ..

struct stream_times {
    double busy_s[PHASES];        // seconds in operations
    double wait_s[PHASES];        // seconds blocked in stream_wait_event
    struct op_work work[PHASES];  // of the operations and copies, a copy's bytes read and written
};

struct backend {
    const char *name;  // "cpu", "ref", "cuda"
    // Device memory is host memory: the host may read and write it while no operation uses it.
    bool host_memory;
    int (*devices)(void);
    int (*open)(struct device **out, const struct device_options *opt);
    void (*close)(struct device *d);
    void *(*alloc)(struct device *d, size_t bytes);  // 256-byte aligned, zeroed; NULL when out of memory
    void (*free)(struct device *d, void *p, size_t bytes);
    void *(*host_alloc)(struct device *d, size_t bytes);  // MEM_HOST: likewise, in host memory
    void (*host_free)(struct device *d, void *p, size_t bytes);
    int (*host_register)(struct device *d, void *p, size_t bytes, const char **why);  // NULL: nothing to do
    void (*host_unregister)(struct device *d, void *p);
    int (*reach)(struct device *d, struct device *peer);
    int (*facts)(struct device *d, struct device_facts *out);  // NULL: nothing to tell
    struct stream *(*stream_create)(struct device *d, const char *name);
    void (*stream_destroy)(struct stream *s);
    void (*launch)(struct stream *s, enum op op, const void *args, size_t args_bytes);
    void (*copy)(struct stream *s, void *dst, const void *src, size_t bytes);
    void (*host)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
    void (*submit)(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
    void (*phase)(struct stream *s, enum phase phase);
    int (*sync)(struct stream *s);
    void (*times)(struct stream *s, struct stream_times *out);
    int (*log)(struct stream *s, size_t room, bool stamps_only);
    size_t (*take_log)(struct stream *s, struct span *out, size_t room, uint64_t *lost);
    void (*stamp)(struct stream *s, uint64_t tag);
    struct event *(*event_create)(struct device *d);
    void (*event_destroy)(struct event *e);
    void (*event_record)(struct event *e, struct stream *s);
    void (*wait_event)(struct stream *s, struct event *e, uint64_t tag);
    int (*event_sync)(struct event *e);
    int (*event_passed)(struct event *e);
    const struct spans *(*spans)(struct device *d, int i, const char **stream);
};

// The backend called name ("cpu", "ref"), or NULL and a text in *why.
const struct backend *backend_find(const char *name, const char **why);
// How many devices there are to open: at least 1.
int backend_devices(const struct backend *b);

int dev_open(const struct backend *b, const struct device_options *opt, struct device **out);
void dev_close(struct device **d);
const struct backend *dev_backend(const struct device *d);
const char *dev_label(const struct device *d);
size_t dev_memory_limit(const struct device *d);  // of its options: 0: none
// Whether the host may touch the device's memory; if not, bytes go through dev_copy alone.
bool dev_host_memory(const struct device *d);
// Lets operations of d read and write peer's memory directly. 0, also when they are one device; -1 with
// dev_error(d) untouched when the two cannot (dev_copy between them still works).
int dev_reach(struct device *d, struct device *peer);
const char *dev_error(struct device *d);  // "" while nothing has failed; owned by the device

// Memory: rounded up to 256 bytes, zeroed, counted under its class. NULL: out of memory. MEM_HOST is host
// memory: the host reads and writes it, and copies between it and the device need not wait for the host. MEM_OFFLOAD is
// ordinary host memory.
#define DEV_ALIGN 256
static inline size_t dev_round(size_t bytes) { return (bytes + DEV_ALIGN - 1) / DEV_ALIGN * DEV_ALIGN; }
void *dev_alloc(struct device *d, enum mem_class c, size_t bytes);
void dev_free(struct device *d, enum mem_class c, void *p, size_t bytes);  // same class and bytes
// Page-locks host memory that the caller has mapped, whole pages of it, for copies between it and the device, and counts
// it under MEM_HOST. Where the device's memory is host memory there is nothing to do and nothing to count. 0, or -1 with
// a reason in *why: nothing has changed then, dev_error neither, for the caller may have another way.
int dev_host_register(struct device *d, void *p, size_t bytes, const char **why);
// Before it is unmapped and before the device is closed: waits for copies of it that are under way. Same p and bytes.
void dev_host_unregister(struct device *d, void *p, size_t bytes);
// Counts memory that the caller has got elsewhere, shared with other processes, under its class, rounded likewise, beyond
// the limit of the device's options too, for it is there already;
// dev_uncount: it has been given back.
void dev_count(struct device *d, enum mem_class c, size_t bytes);
void dev_uncount(struct device *d, enum mem_class c, size_t bytes);
void dev_usage(struct device *d, struct mem_usage *out);

struct stream *stream_create(struct device *d, const char *name);
void stream_destroy(struct stream **s);  // runs what is queued, then joins
struct device *stream_device(struct stream *s);
// Host -> device, device -> host, device -> device; bytes.
void dev_copy(struct stream *s, void *dst, const void *src, size_t bytes);
// Runs fn(arg) in stream order on a thread of the stream; it may block. Non-zero fails the stream. name outlives the device.
void stream_host(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
// The same without waiting for the device: what was enqueued before may still be running there. fn orders
// its own work by what it calls on the stream (see Inside above).
void stream_submit(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
void stream_phase(struct stream *s, enum phase phase);              // enqueued
int stream_sync(struct stream *s);                                  // 0, or -1 when the stream has failed
void stream_get_times(struct stream *s, struct stream_times *out);  // since creation; after a sync
// From now on the stream records spans of what it does (SPAN_BUSY, SPAN_BLOCKED with the tag of stream_wait_tagged,
// SPAN_STAMP), up to room of them between two looks; stamps_only: nothing but stamps. A gap of 2 us or less is none.
// 0, or -1 (dev_error). Blocks until the stream is idle. The thread that enqueues.
int stream_log(struct stream *s, size_t room, bool stamps_only);
// Moves up to room spans out, in the order in which they became known; a device tells of what it is through
// with, as a rule in order of time. *lost: how many found no room since the last look. Any thread; never blocks.
size_t stream_take_log(struct stream *s, struct span *out, size_t room, uint64_t *lost);
void stream_stamp(struct stream *s, uint64_t tag);  // enqueued: notes when the stream comes here
struct event *event_create(struct device *d);
void event_destroy(struct event **e);
// An event that was never recorded counts as passed. Recording again replaces the earlier record; a
// wait enqueued before the new record waits for the earlier one.
void event_record(struct event *e, struct stream *s);
void stream_wait_event(struct stream *s, struct event *e);
void stream_wait_tagged(struct stream *s, struct event *e, uint64_t tag);  // the same, noted with a tag
int event_sync(struct event *e);  // 0, or -1 when the recording stream has failed
// Without blocking: 1 when event_sync would return at once, 0 not yet, -1 when the recording stream has
// failed.
int event_passed(struct event *e);
// How often a host thread has waited on the device's streams and events: calls of stream_sync and event_sync.
uint64_t dev_host_waits(struct device *d);
// With the option trace: a span of every operation of the device's i-th stream, the newest stream first, and the stream's
// name; also of streams that have been destroyed. NULL: there are no more. As of this call, until the next for that stream.
const struct spans *dev_spans(struct device *d, int i, const char **stream);

// ---------------------------------------------------------------- work, as others see it
// How others see that a rank is at work, not stuck.
enum dev_work {
    DEV_RESTS,
    DEV_COMPUTES,  // some stream has something that it can do and has not done (of a GPU: that it has not been
    // given, or that the host waits for); one that waits for another, or for other ranks, has not
    DEV_HOST_WORKS  // none has, and the host is beside the device: in a file, most likely, which may take any time
};
enum dev_work dev_at_work(struct device *d);  // any thread
const char *dev_work_says(enum dev_work w);   // for people: "it is computing"
// The function that the stream runs begins, or ends, to wait for other ranks. On the stream's thread.
void stream_waits(struct stream *s, bool waits);

#endif
