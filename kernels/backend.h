// The device interface: memory, streams, events, copies and every operation of the model, the optimizer and the
// reductions, in one const table. kernels/ref, kernels/cpu and kernels/cuda each fill the table. The model and
// the topologies use devices only through it.
//
// Ownership   A rank opens one device and owns it; streams, events and memory belong to that device
//             and are released before it is closed.
// Threads     All functions may be called from any thread of the rank. Operations of ONE stream are
//             enqueued by one thread at a time.
// Blocking    dev_launch, dev_copy, stream_host, event_record, stream_wait_event only enqueue (they
//             block only while the stream's queue is full). event_sync, stream_sync block the host.
// Order       Operations of one stream run in order; only events order those of two streams.
//             A CPU stream is a real queue with its own thread, so a missing event is a real race.
// Inside      A function that a stream runs (stream_host, stream_submit) may call dev_launch, dev_copy,
//             event_record, stream_wait_event and stream_sync on that same stream. These calls act at the
//             function's position in the queue, before everything that was enqueued after it. If one of them
//             fails, the function's slot fails.
// Errors      Shapes that break the contract are programmer errors (assert). A failure at run time (an error of
//             a library, a host function that returns non-zero) stops the stream's later work. It is permanent:
//             stream_sync returns -1 from then on, and dev_error() returns the text.
#ifndef STARRING_KERNELS_BACKEND_H
#define STARRING_KERNELS_BACKEND_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu_kernel.h"
#include "kernels/cuda_choices.h"
#include "kernels/dtype.h"
#include "kernels/operations.h"
#include "kernels/spans.h"

// ---------------------------------------------------------------- memory classes
// The purpose of a byte of memory. The ledger has one row per class.
enum mem_class {
    MEM_PARAMETER,   // weights the model computes with
    MEM_GRADIENT,    // gradients, full or sharded, and accumulators of them
    MEM_MASTER,      // fp32 copies of the weights
    MEM_OPTIMIZER,   // moments
    MEM_ACTIVATION,  // saved and temporary activations, tokens, losses
    MEM_COMM,        // communication buffers: slots of gathered units, receive buffers
    MEM_WORKSPACE,   // scratch of operations
    MEM_SERVER,      // what a server needs besides the classes above: delay compensation
    MEM_CHECKPOINT,  // a copy of the state until it is on disk; page-locked (MEM_HOST) on GPU ranks
    MEM_HOST,        // page-locked host memory for copies to and from a device with its own memory
    MEM_OFFLOAD,     // host memory that holds what would otherwise be in device memory
    MEM_CLASSES
};
const char *mem_class_name(enum mem_class c);  // "parameter", "gradient", ...
// Whether the class is host memory. Such a class counts in no total of device memory, even if both are one
// memory.
static inline bool mem_class_is_host(enum mem_class c) { return c == MEM_HOST || c == MEM_OFFLOAD; }

struct mem_usage {
    size_t current_bytes[MEM_CLASSES];
    size_t peak_bytes[MEM_CLASSES];
    uint64_t allocations;  // successful calls of dev_alloc, dev_count and dev_host_register
};

// ---------------------------------------------------------------- the table
struct device_facts;
struct device;  // opaque
struct stream;
struct event;

struct device_options {
    int threads;             // CPU: threads an operation may use; 0: one per core
    int index;               // CUDA: which device, below backend_devices()
    const char *label;       // "rank 1": named in errors and traces; copied
    enum cpu_kernel kernel;  // CPU: how bf16 matrices are multiplied
    struct cuda_choices cuda;
    bool trace;       // keep a span of every operation for dev_spans
    bool watch_host;  // dev_at_work also watches the thread that opens the device
    // Limit of all dev_alloc's memory except MEM_HOST and MEM_OFFLOAD; 0: the device's own memory
    size_t memory_bytes;
};

// Phases of a step, by which its time is split. A stream accounts to the phase that stream_phase set last.
enum phase { PHASE_OTHER, PHASE_DATA, PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER, PHASE_COMM, PHASES };
const char *phase_name(enum phase p);  // "other", "data", ..

struct stream_times {
    double busy_s[PHASES];        // seconds in operations
    double wait_s[PHASES];        // seconds blocked in stream_wait_event
    struct op_work work[PHASES];  // of operations and copies; a copy reads and writes its bytes
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
    void *(*host_alloc)(struct device *d, size_t bytes);  // MEM_HOST: the same, in host memory
    void (*host_free)(struct device *d, void *p, size_t bytes);
    int (*host_register)(struct device *d, void *p, size_t bytes, const char **why);  // NULL: not needed
    void (*host_unregister)(struct device *d, void *p);
    int (*reach)(struct device *d, struct device *peer);
    int (*facts)(struct device *d, struct device_facts *out);  // NULL: no facts
    struct stream *(*stream_create)(struct device *d, const char *name);
    void (*stream_destroy)(struct stream *s);
    void (*launch)(struct stream *s, enum op op, const void *args, size_t args_bytes);
    void (*copy)(struct stream *s, void *dst, const void *src, size_t bytes);
    struct event *(*event_create)(struct device *d);
    void (*event_destroy)(struct event *e);
    // All else that streams and events do is the same for all backends: kernels/queue/queue.h.
};

// Returns the backend called name ("cpu", "ref", "cuda"), or NULL with a text in *why.
const struct backend *backend_find(const char *name, const char **why);
// The number of devices that can be opened: at least 1.
int backend_devices(const struct backend *b);

int dev_open(const struct backend *b, const struct device_options *opt, struct device **out);
void dev_close(struct device **d);
const struct backend *dev_backend(const struct device *d);
const char *dev_label(const struct device *d);
size_t dev_memory_limit(const struct device *d);  // of the device's options; 0: none
// Whether the host may access the device's memory. If not, only dev_copy moves bytes.
bool dev_host_memory(const struct device *d);
// Lets operations of d read and write peer's memory directly. Returns 0, also if both are one device. Returns
// -1 if it is not possible: dev_error(d) does not change, and dev_copy between the two works.
int dev_reach(struct device *d, struct device *peer);
const char *dev_error(struct device *d);  // "" while nothing has failed; the device owns it

// Memory: rounded up to 256 bytes, zeroed, counted under its class. Returns NULL if there is no memory.
// MEM_HOST is host memory: the host reads and writes it, and the host need not wait for copies between it and
// the device. MEM_OFFLOAD is ordinary host memory.
#define DEV_ALIGN 256
static inline size_t dev_round(size_t bytes) { return (bytes + DEV_ALIGN - 1) / DEV_ALIGN * DEV_ALIGN; }
void *dev_alloc(struct device *d, enum mem_class c, size_t bytes);
void dev_free(struct device *d, enum mem_class c, void *p, size_t bytes);  // same class and bytes
// Page-locks whole pages of host memory that the caller has mapped, for copies between it and the device, and
// counts them under MEM_HOST. Does nothing if the device's memory is host memory. Returns 0, or -1 with a
// reason in *why: then nothing has changed, and dev_error is not set, because the caller may have another way.
int dev_host_register(struct device *d, void *p, size_t bytes, const char **why);
// Call it with the same p and bytes, before the memory is unmapped and the device closed. Waits for copies
// under way.
void dev_host_unregister(struct device *d, void *p, size_t bytes);
// Counts memory under its class that the caller has allocated elsewhere, for example memory shared with other
// processes. Rounds as dev_alloc does. Checks no limit, because the memory is already allocated. dev_uncount:
// the memory has been freed.
void dev_count(struct device *d, enum mem_class c, size_t bytes);
void dev_uncount(struct device *d, enum mem_class c, size_t bytes);
void dev_usage(struct device *d, struct mem_usage *out);

struct stream *stream_create(struct device *d, const char *name);
void stream_destroy(struct stream **s);  // runs what is queued, then joins
struct device *stream_device(struct stream *s);
// Host -> device, device -> host, device -> device; bytes.
void dev_copy(struct stream *s, void *dst, const void *src, size_t bytes);
// Runs fn(arg) in stream order on a thread of the stream; fn may block. If fn returns non-zero, the stream
// fails. name must outlive the device.
void stream_host(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
// The same without waiting for the device, which may still run what was enqueued earlier. fn orders its own
// work by the calls it makes on the stream (see Inside above).
void stream_submit(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
void stream_phase(struct stream *s, enum phase phase);              // enqueued
int stream_sync(struct stream *s);                                  // 0, or -1 when the stream has failed
void stream_get_times(struct stream *s, struct stream_times *out);  // since creation; after a sync
// From now on the stream records spans (SPAN_BUSY, SPAN_BLOCKED with the tag of stream_wait_tagged, SPAN_STAMP;
// with stamps_only: SPAN_STAMP only). It keeps at most room spans until stream_take_log is called. A gap of at
// most 2 us between busy spans is ignored. Blocks until the stream is idle. Call it on the enqueuing thread.
// Returns 0, or -1 (dev_error).
int stream_log(struct stream *s, size_t room, bool stamps_only);
// Moves at most room spans to out, in the order in which they were recorded. That is usually the order of time, because a
// device reports a span when it has finished it. *lost receives how many spans were dropped since the last call because
// there was no room. Any thread; never blocks.
size_t stream_take_log(struct stream *s, struct span *out, size_t room, uint64_t *lost);
void stream_stamp(struct stream *s, uint64_t tag);  // enqueued: records when the stream reaches it
struct event *event_create(struct device *d);
void event_destroy(struct event **e);
// An event that was never recorded counts as passed. Recording again replaces the earlier record; a
// wait enqueued before the new record waits for the earlier one.
void event_record(struct event *e, struct stream *s);
void stream_wait_event(struct stream *s, struct event *e);
void stream_wait_tagged(struct stream *s, struct event *e, uint64_t tag);  // the same, recorded with a tag
int event_sync(struct event *e);  // 0, or -1 when the recording stream has failed
// Without blocking: 1 if event_sync would return at once, 0 if not yet, -1 if the recording stream has failed.
int event_passed(struct event *e);
// How often host threads have waited for the device: the number of calls of stream_sync and event_sync.
uint64_t dev_host_waits(struct device *d);
// With the option trace: returns the spans of all operations of the device's i-th stream (the newest stream is
// 0), and *stream receives its name. Destroyed streams count too. Returns NULL if i is too large. The result is
// a snapshot, valid until the next call for that stream.
const struct spans *dev_spans(struct device *d, int i, const char **stream);

// ---------------------------------------------------------------- whether a rank is working
// The state of a rank as a watcher sees it: working, or stuck.
enum dev_work {
    DEV_IDLE,
    // Some stream has work that it can do now. On a GPU: work not yet given to the device, or work that a host
    // function waits for. A stream that waits for another stream or for other ranks has none.
    DEV_COMPUTES,
    // No stream has work, and the thread that opened the device does not wait for it. Most likely that thread reads or
    // writes a file, which may take any time.
    DEV_HOST_WORKS
};
enum dev_work dev_at_work(struct device *d);  // any thread
const char *dev_work_text(enum dev_work w);   // printed: "it is computing"
// The function that the stream runs calls this when it begins and ends to wait for other ranks. On the stream's
// thread.
void stream_set_waiting(struct stream *s, bool waits);

// ---------------------------------------------------------------- a device's report
// Printed remarks on how the device works, each text once. A warning means that something runs in another way
// than expected (a fallback); other remarks are facts. A remark does not contain the device's label, so equal
// remarks of several ranks have equal texts.
enum dev_note_kind { DEV_NOTE_FACT, DEV_NOTE_WARNING };
#define DEV_NOTES_MAX 64          // the last remark then says that there were more
int dev_notes(struct device *d);  // the number of remarks so far
// The i-th remark, i < dev_notes. The device owns it until it closes. kind may be NULL.
const char *dev_note(struct device *d, int i, enum dev_note_kind *kind);

// Which code has computed an operation so far: bits, both if it depended on the shape; 0: the operation has not run.
enum device_by {
    DEVICE_BY_LIBRARY = 1,  // cuDNN, or an epilogue of cuBLASLt
    DEVICE_BY_OWN = 2       // a kernel of our own
};

// How a device's operations have been computed so far.
struct device_work {
    unsigned attention_forward, attention_backward, gelu, bias_grad;  // enum device_by
    // cuDNN's backward of attention: sequences per execution and its workspace, for the shape with the largest
    // workspace. 0: it has not run.
    int64_t slice_sequences;
    size_t slice_workspace_bytes;
};

// Used bytes beyond the ledger and workspace_bytes are the CUDA context (kernels, stacks) and memory of
// libraries.
struct device_facts {
    char name[256];
    char bus_id[32];  // PCI address: which GPU of the machine it is
    int index;
    int sm_version;  // 90: compute capability 9.0
    int multiprocessors;
    int driver_version, runtime_version;  // 13000: 13.0
    size_t l2_bytes;
    size_t memory_bytes, used_bytes, free_bytes;  // as cudaMemGetInfo: used by all programs
    size_t workspace_bytes;                // ours, outside the ledger: scratch of libraries and kernels
    size_t cublas_version, cudnn_version;  // dnn 0: no cuDNN; our own attention is used
    const char *cudnn_missing;             // why there is no cuDNN; NULL if there is
    struct device_work work;
    int note_count;  // number of notes
    const char *notes[DEV_NOTES_MAX];
};

// Includes the device's remarks so far; the device owns their texts. Returns 0, or -1 if the device has no
// facts (host backends) or has failed.
int dev_facts(struct device *d, struct device_facts *out);

#endif
