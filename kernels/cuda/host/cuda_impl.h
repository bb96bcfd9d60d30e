// The CUDA backend's internal objects, behind the opaque ones of kernels/backend.h. A stream is a queue with a
// thread, as on CPUs, and a cudaStream_t that the thread feeds. CUDA keeps device errors, so each call is
// checked.
#ifndef STARRING_KERNELS_CUDA_HOST_CUDA_IMPL_H
#define STARRING_KERNELS_CUDA_HOST_CUDA_IMPL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/host/cudnn_graph.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda_so.h"
#include "kernels/queue/queue.h"

struct matmul_plan;
struct attention_plan;

// A position in a device's queue. A mark without references is in its device's pool of free marks.
struct mark {
    cudaEvent_t event;
    struct cuda_device *owner;  // the device whose pool it belongs to
    int refs;                   // guarded by owner's head.lock
    struct mark *next;
};

struct cuda_device {
    struct device head;
    int index, sm_count, sm_version;
    int shared_bytes;    // limit per block
    cudaStream_t setup;  // zeroes new memory
    cublasLtHandle_t blas;
    pthread_mutex_t matmul_lock;  // guards the list and the descriptors in it
    struct matmul_plan *matmuls;
    struct cudnn_api cudnn;
    const char *cudnn_missing;  // NULL: cuDNN is loaded
    struct mark *idle;          // pool of free marks; guarded by head.lock
    int marks, marks_wanted;    // marks created, and marks that can be held at once; guarded by head.lock
    _Atomic size_t workspace_bytes;
    struct cuda_choices wanted;
    struct {  // enum device_by of what has run so far
        atomic_uint attention_forward, attention_backward, gelu, bias_grad;
    } used;
    int64_t slice_sequences;  // of the largest slice of cuDNN's backward; guarded by head.lock
    size_t slice_workspace_bytes;
};

// An interval on the device between two events, read when both have passed.
struct cuda_span {
    cudaEvent_t start, end;
    int64_t given_ns;  // when start was given to the device
    enum phase phase;
    bool wait, stamped;  // wait: the stream waited. stamped: its end is recorded as SPAN_STAMP `stamp`, too
    uint64_t tag, stamp;
    const char *name;
};

// The time measurement of a stream; guarded by lock. Spans are in a ring: [read, written) are closed.
#define CUDA_SPANS 512
struct cuda_clock {
    pthread_mutex_t lock;
    struct cuda_span ring[CUDA_SPANS];
    uint64_t read, written;
    bool open;   // ring[written] has begun
    bool dated;  // begin times are known on the host's clock, for a trace or a log
    // An event whose time is known on both clocks; the next spans' times are computed from it
    cudaEvent_t anchor;
    cudaEvent_t spare;  // the next anchor
    uint64_t anchored;  // the number of the first span after the anchor
    double anchor_ns;
};

// Scratch outside the ledger.
struct cuda_workspace {
    struct cuda_workspace *before;
    void *memory;
    size_t bytes;
};

struct cuda_stream {
    struct queue queue;
    cudaStream_t stream;
    struct cuda_clock clock;
    // Used only by the stream's thread:
    struct cuda_ctx ctx;
    struct cuda_workspace *workspaces;  // the one in use first, then outgrown smaller ones
    cudnnHandle_t dnn;
    struct attention_plan *attentions;
    char why[1024];  // for a text of ctx.why that is not constant
};

static inline struct cuda_device *cuda_device_of(const struct cuda_stream *s) {
    return (struct cuda_device *)s->queue.head.dev;
}
static inline const struct cuda_choices *cuda_choices_of(const struct cuda_stream *s) {
    return &cuda_device_of(s)->wanted;
}

// workspace.c. The checks return 0, or -1 after device_fail.
int cuda_check(struct cuda_stream *s, cudaError_t e, const char *what);
int cuda_device_check(struct cuda_device *d, cudaError_t e, const char *what);

// Returns at least bytes of scratch for the stream's next operation, or NULL after device_fail. On the stream's
// thread.
void *cuda_workspace(struct cuda_stream *s, size_t bytes);
void cuda_workspaces_free(struct cuda_stream *s);

// mark.c: the marks of kernels/queue/queue.h, and events, which reserve theirs. cuda_marks_reserve: `count`
// more (or fewer) marks can be held at once; creates the missing ones. Returns 0, or -1 after device_fail.
int cuda_marks_reserve(struct cuda_device *d, int count);
void cuda_marks_free(struct cuda_device *d);
struct mark *cuda_mark_take(struct queue *q);
void cuda_mark_hold(struct mark *m);
void cuda_mark_drop(struct mark *m);
int cuda_mark_passed(struct queue *q, struct mark *m, bool wait);
struct event *cuda_event_create(struct device *d);
void cuda_event_destroy(struct event *e);
double cuda_event_seconds(struct event *from, struct event *to);

// clock.c: all return 0, or -1 after device_fail.
int cuda_clock_init(struct cuda_stream *s);
void cuda_clock_fini(struct cuda_stream *s);
int cuda_clock_begin(struct cuda_stream *s, const char *name);
int cuda_clock_begin_wait(struct cuda_stream *s, uint64_t tag);
int cuda_clock_stamp(struct cuda_stream *s, uint64_t tag);
int cuda_clock_date(struct cuda_stream *s);  // from here on spans have begin times; the stream is idle
int cuda_clock_end(struct cuda_stream *s);
int cuda_clock_read(struct cuda_stream *s);  // reads the spans that have passed

// matmul.c, attention.c: -1 with ctx.why set.
int cuda_matmul(struct cuda_stream *s, const struct matmul_args *a);
void cuda_matmuls_free(struct cuda_device *d);
int cuda_attention_forward(struct cuda_stream *s, const struct attn_fwd_args *a);
int cuda_attention_backward(struct cuda_stream *s, const struct attn_bwd_args *a);
void cuda_attentions_free(struct cuda_stream *s);

// stream.c
struct stream *cuda_stream_create(struct device *d, const char *name);
void cuda_stream_destroy(struct stream *s);

#endif
