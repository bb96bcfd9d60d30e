// Streams: a queue (kernels/queue/queue.h) in front of a cudaStream_t. The queue's thread enqueues the queue's
// slots on the device, in order, without waiting for the device. Only for a host function it waits until the
// device has finished the earlier work, and then runs the function itself. cudaLaunchHostFunc would not work:
// its callbacks of all streams may share one thread, so two functions that wait for each other (ranks as
// threads, two communicators) would hang.
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/host/cuda_impl.h"

// One mark per slot, and some for threads that read an event and hold its mark for a short time.
#define STREAM_MARKS (QUEUE_SLOTS + 16)

// ---------------------------------------------------------------- operations
#define OWN_OPERATION(OP, name, args_t) \
    static int own_##name(struct cuda_ctx *ctx, const void *args) { return cuda_op_##name(ctx, args); }
#define OWN_ENTRY(OP, name, args_t) [OP] = own_##name,
OPERATIONS_BUT_MATMUL(OWN_OPERATION)

static int run_op(struct cuda_stream *s, enum op op, const void *args) {
    static int (*const own[OP_COUNT])(struct cuda_ctx * ctx,
                                      const void *args) = {OPERATIONS_BUT_MATMUL(OWN_ENTRY)};
    s->ctx.why = NULL;
    int rc = op == OP_MATMUL     ? cuda_matmul(s, args)
             : op == OP_ATTN_FWD ? cuda_attention_forward(s, args)
             : op == OP_ATTN_BWD ? cuda_attention_backward(s, args)
                                 : own[op](&s->ctx, args);
    // CUDA may still store an error of an earlier launch. It is read here, so that no later operation is blamed
    // for it.
    cudaError_t e = cudaGetLastError();
    if (rc == 0) return cuda_check(s, e, op_name(op));
    device_fail(s->queue.head.dev, "stream %s: %s failed: %s%s%s%s", s->queue.name, op_name(op),
                s->ctx.why ? s->ctx.why : "?", e ? " (" : "", e ? cudaGetErrorString(e) : "", e ? ")" : "");
    return -1;
}

// ---------------------------------------------------------------- what the queue calls on the device

static int call(struct cuda_stream *s, const struct slot *slot) {
    int rc = slot->kind == SLOT_NATIVE ? slot->call.native(slot->call.arg, s->stream)
                                       : slot->call.fn(slot->call.arg);
    if (rc == 0) return 0;
    device_fail(s->queue.head.dev, "stream %s: %s failed", s->queue.name, slot->call.name);
    return -1;
}

static int begin_wait(struct queue *q, const struct slot *slot) {
    return cuda_clock_begin_wait((struct cuda_stream *)q, slot->tag);
}

static int give_slot(struct queue *q, const struct slot *slot) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    if (slot->kind == SLOT_RECORD)
        return cuda_check(s, cudaEventRecord(slot->at.mark->event, s->stream), "event record");
    if (slot->kind == SLOT_WAIT) {
        if (cuda_check(s, cudaStreamWaitEvent(s->stream, slot->at.mark->event, 0), "wait") != 0) return -1;
        return cuda_clock_end(s);
    }
    if (slot->kind == SLOT_STAMP) return cuda_clock_stamp(s, slot->tag);
    if (cuda_clock_begin(s, slot_name(slot)) != 0) return -1;
    if (slot->kind == SLOT_OP) return run_op(s, slot->op.op, slot->op.args);
    if (slot->kind != SLOT_COPY) return call(s, slot);
    cudaError_t e =
        cudaMemcpyAsync(slot->copy.dst, slot->copy.src, slot->copy.bytes, cudaMemcpyDefault, s->stream);
    return cuda_check(s, e, "copy");
}

static int end_interval(struct queue *q, bool idle) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    if (cuda_clock_end(s) != 0) return -1;
    return idle ? cuda_clock_read(s) : 0;
}

static int drain(struct queue *q, const char *what) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    return cuda_check(s, cudaStreamSynchronize(s->stream), what);
}

static int choose_device(struct cuda_stream *s) {
    return cuda_check(s, cudaSetDevice(cuda_device_of(s)->index), "choosing the device");
}

static int drain_for_host(struct queue *q) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    return choose_device(s) != 0 || drain(q, "the stream's work") != 0 || cuda_clock_read(s) != 0 ? -1 : 0;
}

// Frees the state that belongs to the thread, on that thread, when the device no longer uses it.
static void *stream_thread(void *queue) {
    struct cuda_stream *s = queue;
    choose_device(s);
    queue_run(&s->queue);
    drain(&s->queue, "the end of the stream");
    cuda_attentions_free(s);
    return NULL;
}

static int date(struct queue *q) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    return choose_device(s) != 0 ? -1 : cuda_clock_date(s);
}

static int read_spans(struct queue *q) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    return choose_device(s) != 0 ? -1 : cuda_clock_read(s);
}

static const struct queue_device device_ops = {
    .pause = end_interval,
    .drain = drain,
    .begin_wait = begin_wait,
    .sync = drain_for_host,
    .date = date,
    .read = read_spans,
    .take = cuda_mark_take,
    .hold = cuda_mark_hold,
    .drop = cuda_mark_drop,
    .passed = cuda_mark_passed,
};
static const struct queue_ops queue_ops = {
    .thread = stream_thread, .run = give_slot, .device_ops = &device_ops};

// ---------------------------------------------------------------- creation and the end

// Frees everything that the device holds for a stream whose thread has ended or was never started.
static void release(struct cuda_stream *s) {
    cuda_clock_fini(s);
    cuda_workspaces_free(s);
    if (s->stream) cuda_check(s, cudaStreamDestroy(s->stream), "cudaStreamDestroy");
    cuda_marks_reserve(cuda_device_of(s), -STREAM_MARKS);
}

// Allocates all that a stream needs. Only larger workspaces, for products and attention, are allocated at their
// first run.
static int acquire(struct cuda_stream *s) {
    struct cuda_device *d = cuda_device_of(s);
    if (cuda_marks_reserve(d, STREAM_MARKS) != 0 || choose_device(s) != 0 ||
        cuda_check(s, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "cudaStreamCreate") !=
            0 ||
        cuda_clock_init(s) != 0)
        return -1;
    s->ctx = (struct cuda_ctx){.stream = s->stream,
                               .sm_count = d->sm_count,
                               .shared_bytes = d->shared_bytes,
                               .sm_version = d->sm_version};
    return cuda_workspace(s, CUDA_WORKSPACE_BYTES) ? 0 : -1;
}

struct stream *cuda_stream_create(struct device *d, const char *name) {
    struct cuda_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    queue_init(&s->queue, d, name, &queue_ops);
    bool made = acquire(s) == 0;
    if (made && queue_start(&s->queue) == 0) return &s->queue.head;
    device_fail(d, "stream %s: cannot create %s", s->queue.name,
                made ? "its thread; raise the limit of threads (ulimit -u)" : "it");
    release(s);
    free(s);
    return NULL;
}

void cuda_stream_destroy(struct stream *head) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    queue_stop(&s->queue);
    choose_device(s);
    release(s);
}
