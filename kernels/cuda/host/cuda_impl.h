// Inside of the CUDA backend: the objects behind kernels/backend.h's opaque ones.
//
// Streams     A stream is a queue with a thread, as on CPUs, and a cudaStream_t. The thread takes what is
//             queued and enqueues it on the device, in order, without waiting for the device. Only a host
//             function makes it wait: for the device's work before it, then it runs the function itself.
//             cudaLaunchHostFunc would not do: its callbacks of all streams may share one thread, so that two
//             functions that wait for each other (ranks as threads, two communicators) would hang.
// Events      An event names a record: (stream, place in its queue, cudaEvent_t). A wait first waits on the
//             thread until the record has been enqueued on its device stream, then makes the device wait. So
//             the device never waits for what has not been given to it, whatever hardware queues streams
//             share.
// Inside      A function that the stream runs and that calls on its own stream (backend.h, Inside) is on
//             the stream's thread: slots are carried out at once instead of queued.
// Failure     As kernels/cpu/stream.c: `failed_at` is the first slot that failed, later ones do not run, who
//             waits for one of them fails as well. Device errors are sticky in CUDA; each call is checked.
#ifndef STARRING_KERNELS_CUDA_HOST_CUDA_IMPL_H
#define STARRING_KERNELS_CUDA_HOST_CUDA_IMPL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/backend_impl.h"
#include "kernels/cuda/cuda_so.h"
#include "kernels/cuda/host/cudnn_graph.h"
#include "kernels/cuda/kernels.h"
#include "kernels/queue/trace.h"

#define CUDA_NEVER UINT64_MAX

struct cuda_stream;
struct matmul_plan;
struct attention_plan;

// A point in a stream. Free when nobody holds it; then it waits in the device's pool.
struct cuda_record {
    cudaEvent_t event;
    struct cuda_device *owner;  // whose pool it comes from
    int refs;                   // owner's head.lock
    struct cuda_record *next;
};

struct cuda_device {
    struct device head;
    int index, sm_count, sm_version;
    int shared_bytes;    // of a block at most
    cudaStream_t setup;  // zeroes new memory
    cublasLtHandle_t blas;
    pthread_mutex_t matmul_lock;  // guards the list and the descriptors in it
    struct matmul_plan *matmuls;
    struct product_choice *choices;  // (choice_count), of dev_choose_products; read only after it
    int choice_count;
    struct cudnn_api cudnn;
    const char *cudnn_missing;    // NULL: cudnn is loaded
    struct cuda_stream *streams;  // all ever created, newest first; freed by close. head.lock
    int live_streams;
    struct cuda_record *idle;     // head.lock
    int records, records_wanted;  // made in advance, and that could be held at once. head.lock
    _Atomic size_t workspace_bytes;
    struct cuda_choices wanted;
    struct {  // enum device_by of what has run so far
        atomic_uint attention_forward, attention_backward, gelu, bias_grad;
    } did;
    int64_t slice_sequences;  // of the largest slice of cuDNN's backward; head.lock
    size_t slice_workspace_bytes;
};

// An interval on the device between two events, read when both have passed.
struct cuda_span {
    cudaEvent_t start, end;
    enum phase phase;
    bool wait;
    char name[TRACE_NAME_BYTES];
};

// The measured side of a stream; guarded by lock. Spans lie in a ring: [read, written) are closed.
#define CUDA_SPANS 512
struct cuda_clock {
    pthread_mutex_t lock;
    struct cuda_span ring[CUDA_SPANS];
    uint64_t read, written;
    bool open;  // ring[written] has begun
    struct stream_times times;
    cudaEvent_t anchor;  // the last moment known on both clocks, until spans follow it
    double anchor_ns;
    struct trace_list kept;  // device options' trace only
};

struct cuda_slot;

// Scratch outside of the ledger.
struct cuda_workspace {
    struct cuda_workspace *before;
    void *memory;
    size_t bytes;
};

struct cuda_stream {
    struct stream head;
    struct cuda_stream *next;
    char name[TRACE_NAME_BYTES];
    cudaStream_t stream;
    pthread_t thread;
    pthread_mutex_t lock;  // guards the queue's fields
    pthread_cond_t work, progress;
    int watchers;
    struct cuda_slot *ring;
    uint64_t queued, done;  // done: enqueued on the device, not finished there
    uint64_t failed_at;
    bool failed_inside;  // the function under way failed in what it called on its own stream; the thread's
    bool closing;
    enum phase phase;
    struct cuda_clock clock;
    // Of the stream's thread alone:
    struct cuda_ctx ctx;
    struct cuda_workspace *workspaces;  // the one in use first, then those it has outgrown
    cudnnHandle_t dnn;
    struct attention_plan *attentions;
    char why[1024];  // a text of ctx.why that is made
};

static inline struct cuda_device *cuda_device_of(struct stream *s) { return (struct cuda_device *)s->dev; }
static inline const struct cuda_choices *cuda_choices_of(const struct cuda_stream *s) {
    return &((const struct cuda_device *)s->head.dev)->wanted;
}

// device.c
int cuda_check(struct cuda_stream *s, cudaError_t e, const char *what);  // 0, or -1 after device_fail
int cuda_device_check(struct cuda_device *d, cudaError_t e, const char *what);
extern const struct backend cuda_backend;
// At least bytes of scratch for the stream's next operation; NULL after device_fail. The thread of the
// stream.
void *cuda_workspace(struct cuda_stream *s, size_t bytes);
void cuda_workspaces_free(struct cuda_stream *s);

// stream.c
struct stream *cuda_stream_create(struct device *d, const char *name);
void cuda_stream_destroy(struct stream *s);
void cuda_streams_free(struct cuda_device *d);
void cuda_launch(struct stream *s, enum op op, const void *args, size_t args_bytes);
void cuda_copy(struct stream *s, void *dst, const void *src, size_t bytes);
void cuda_host(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
void cuda_submit(struct stream *s, const char *name, int (*fn)(void *arg), void *arg);
void cuda_submit_raw(struct stream *s, const char *name, int (*fn)(void *arg, void *cuda_stream), void *arg);
void cuda_phase(struct stream *s, enum phase phase);
int cuda_sync(struct stream *s);
void cuda_stream_fail(struct stream *s, const char *text);
// event.c and stream.c: the record slots.
void cuda_enqueue_record(struct cuda_stream *s, struct cuda_record *r, uint64_t *count);
// Takes the reference to r. r NULL: only the stream's thread waits, until the record has been enqueued.
void cuda_enqueue_wait(struct cuda_stream *s, struct cuda_stream *on, uint64_t count, struct cuda_record *r);
int cuda_await_enqueued(struct cuda_stream *s, uint64_t count);  // blocks; -1 when one of them failed
int cuda_enqueued_state(struct cuda_stream *s, uint64_t count);  // 1, 0 not yet, -1 failed
// event.c
// Nothing is created once collectives run: a record is held by an event (one at most) or by a slot of a
// stream, so each event and each stream has its records made when it is created, and gives the claim back
// when it ends. 0, or -1 after device_fail.
int cuda_records_reserve(struct cuda_device *d, int count);
struct cuda_record *cuda_record_take(struct cuda_device *d);  // one reference; NULL after device_fail
void cuda_record_hold(struct cuda_record *r);
void cuda_record_drop(struct cuda_record *r);
struct event *cuda_event_create(struct device *d);
void cuda_event_destroy(struct event *e);
void cuda_event_record(struct event *e, struct stream *s);
void cuda_wait_event(struct stream *s, struct event *e);
void cuda_follow_event(struct stream *s, struct event *e);
int cuda_event_sync(struct event *e);
int cuda_event_passed(struct event *e);
double cuda_event_seconds(struct event *from, struct event *to);

// clock.c: all return 0, or -1 after device_fail.
int cuda_clock_init(struct cuda_stream *s);
void cuda_clock_fini(struct cuda_stream *s);
void cuda_clock_free(struct cuda_stream *s);
int cuda_clock_begin(struct cuda_stream *s, bool wait, const char *name);
int cuda_clock_end(struct cuda_stream *s);
int cuda_clock_read(struct cuda_stream *s);  // what the device is through with
void cuda_clock_add_host(struct cuda_stream *s, const char *name, int64_t start_ns, int64_t end_ns);
int64_t cuda_now_ns(void);
void cuda_times(struct stream *s, struct stream_times *out);
int cuda_trace_write(struct device *d, int pid, void *file);

// operations.c: runs one operation on the stream's thread. 0, or -1 after device_fail.
int cuda_run_op(struct cuda_stream *s, enum op op, const void *args);
// matmul.c, attention.c: -1 with ctx.why set.
int cuda_matmul(struct cuda_stream *s, const struct matmul_args *a);
// matmul_plan.c
void cuda_matmuls_free(struct cuda_device *d);
int cuda_products(struct device *d, struct product_use *out, int room);
int cuda_choose_products(struct device *d, const struct product_choice *choices, int count);
// tune.c
int cuda_tune_product(struct stream *s, const struct product_key *key, int rounds,
                      struct product_timing *out);
int cuda_attention_forward(struct cuda_stream *s, const struct attn_fwd_args *a);
int cuda_attention_backward(struct cuda_stream *s, const struct attn_bwd_args *a);
void cuda_attentions_free(struct cuda_stream *s);

#endif
