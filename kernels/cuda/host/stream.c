// Streams: a bounded ring of slots and a thread that gives them to the device; see cuda_impl.h.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"

#define RING_SLOTS 1024
// A slot holds one record; who reads an event, from any thread, holds one for a moment.
#define STREAM_RECORDS (RING_SLOTS + 16)

enum slot_kind {
    SLOT_OP,
    SLOT_COPY,
    SLOT_HOST,
    SLOT_SUBMIT,
    SLOT_RAW,
    SLOT_PHASE,
    SLOT_RECORD,
    SLOT_WAIT,
    SLOT_FLUSH
};

struct cuda_slot {
    enum slot_kind kind;
    char name[TRACE_NAME_BYTES];  // host, submit and raw
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
            int (*fn)(void *arg);
            void *arg;
        } host;  // and submit
        struct {
            int (*fn)(void *arg, void *cuda_stream);
            void *arg;
        } raw;
        struct {
            struct cuda_stream *on;
            uint64_t count;
            struct cuda_record *record;
        } at;
        enum phase phase;
    };
};

// ---------------------------------------------------------------- progress, as others see it

int cuda_await_enqueued(struct cuda_stream *s, uint64_t count) {
    assert(!pthread_equal(pthread_self(), s->thread) && "a stream cannot wait for itself");
    pthread_mutex_lock(&s->lock);
    s->watchers++;
    while (s->done < count) pthread_cond_wait(&s->progress, &s->lock);
    s->watchers--;
    int rc = s->failed_at <= count ? -1 : 0;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int cuda_enqueued_state(struct cuda_stream *s, uint64_t count) {
    pthread_mutex_lock(&s->lock);
    int state = s->failed_at <= count ? -1 : s->done >= count;
    pthread_mutex_unlock(&s->lock);
    return state;
}

// Other streams may have been told already to go on after what has failed: all of the device's fail.
void cuda_stream_fail(struct stream *head, const char *text) {
    struct cuda_device *d = (struct cuda_device *)head->dev;
    device_fail(head->dev, "stream %s: %s", ((struct cuda_stream *)head)->name, text);
    pthread_mutex_lock(&head->dev->lock);
    for (struct cuda_stream *s = d->streams; s; s = s->next) {
        pthread_mutex_lock(&s->lock);
        s->failed_at = 0;
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&head->dev->lock);
}

// ---------------------------------------------------------------- the thread

static int run_host(struct cuda_stream *s, const struct cuda_slot *slot) {
    if (cuda_clock_end(s) != 0) return -1;
    if (cuda_check(s, cudaStreamSynchronize(s->stream), slot->name) != 0) return -1;
    int64_t start = cuda_now_ns();
    int rc = slot->host.fn(slot->host.arg);
    cuda_clock_add_host(s, slot->name, start, cuda_now_ns());
    if (rc == 0) return 0;
    device_fail(s->head.dev, "stream %s: %s failed", s->name, slot->name);
    return -1;
}

static int run_wait(struct cuda_stream *s, const struct cuda_slot *slot) {
    if (cuda_clock_end(s) != 0) return -1;
    if (cuda_await_enqueued(slot->at.on, slot->at.count) != 0) {
        device_fail(s->head.dev, "stream %s: waited for an event of stream %s [%s], which has failed",
                    s->name, slot->at.on->name, slot->at.on->head.dev->label);
        return -1;
    }
    if (!slot->at.record) return 0;
    if (cuda_clock_begin(s, true, "wait") != 0) return -1;
    if (cuda_check(s, cudaStreamWaitEvent(s->stream, slot->at.record->event, 0), "wait") != 0) return -1;
    return cuda_clock_end(s);
}

static int run_submit(struct cuda_stream *s, const struct cuda_slot *slot) {
    if (cuda_clock_begin(s, false, slot->name) != 0) return -1;
    int rc = slot->kind == SLOT_RAW ? slot->raw.fn(slot->raw.arg, s->stream) : slot->host.fn(slot->host.arg);
    if (rc == 0) return 0;
    device_fail(s->head.dev, "stream %s: %s failed", s->name, slot->name);
    return -1;
}

// Gives one slot to the device, without the lock; 0 or -1 after keeping the error's text.
static int run_slot(struct cuda_stream *s, const struct cuda_slot *slot) {
    switch (slot->kind) {
        case SLOT_OP:
            if (cuda_clock_begin(s, false, op_name(slot->op.op)) != 0) return -1;
            return cuda_run_op(s, slot->op.op, slot->op.args);
        case SLOT_COPY:
            if (cuda_clock_begin(s, false, "copy") != 0) return -1;
            return cuda_check(s,
                              cudaMemcpyAsync(slot->copy.dst, slot->copy.src, slot->copy.bytes,
                                              cudaMemcpyDefault, s->stream),
                              "copy");
        case SLOT_HOST:
            return run_host(s, slot);
        case SLOT_SUBMIT:
        case SLOT_RAW:
            return run_submit(s, slot);
        case SLOT_PHASE:
            if (slot->phase == s->phase) return 0;
            if (cuda_clock_end(s) != 0) return -1;
            s->phase = slot->phase;
            return 0;
        case SLOT_RECORD:
            return cuda_check(s, cudaEventRecord(slot->at.record->event, s->stream), "event record");
        case SLOT_WAIT:
            return run_wait(s, slot);
        case SLOT_FLUSH:
            return cuda_clock_end(s);
    }
    return 0;
}

// With the lock held, while there is nothing to do. What stands idle is not busy: the open span ends.
static void stand_idle(struct cuda_stream *s) {
    if (s->failed_at == CUDA_NEVER) {
        pthread_mutex_unlock(&s->lock);
        bool failed = cuda_clock_end(s) != 0 || cuda_clock_read(s) != 0;
        pthread_mutex_lock(&s->lock);
        if (failed && s->failed_at == CUDA_NEVER) s->failed_at = s->done;
    }
    while (s->done == s->queued && !s->closing) pthread_cond_wait(&s->work, &s->lock);
}

static void *stream_main(void *arg) {
    struct cuda_stream *s = arg;
    struct cuda_device *d = (struct cuda_device *)s->head.dev;
    cuda_check(s, cudaSetDevice(d->index), "choosing the device");
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->done == s->queued && !s->closing) stand_idle(s);
        if (s->done == s->queued) break;
        struct cuda_slot *slot = &s->ring[s->done % RING_SLOTS];
        bool run = s->failed_at == CUDA_NEVER;
        // The slot stays ours until done moves on: the enqueuer writes to free slots only.
        pthread_mutex_unlock(&s->lock);
        int rc = run ? run_slot(s, slot) : 0;
        if (s->failed_inside) rc = -1;
        if (slot->kind == SLOT_RECORD || slot->kind == SLOT_WAIT) cuda_record_drop(slot->at.record);
        pthread_mutex_lock(&s->lock);
        s->done++;
        if (rc != 0 && s->failed_at == CUDA_NEVER) s->failed_at = s->done;
        if (s->watchers) pthread_cond_broadcast(&s->progress);
    }
    pthread_mutex_unlock(&s->lock);
    // What belongs to the thread ends on it, when the device no longer uses it.
    cuda_check(s, cudaStreamSynchronize(s->stream), "the end of the stream");
    cuda_attentions_free(s);
    return NULL;
}

// ---------------------------------------------------------------- creation and the end

// What the device holds of a stream, whose thread has ended or never began.
static void release(struct cuda_stream *s) {
    cuda_clock_fini(s);
    cuda_workspaces_free(s);
    if (s->stream) cuda_check(s, cudaStreamDestroy(s->stream), "cudaStreamDestroy");
    cuda_records_reserve(cuda_device_of(&s->head), -STREAM_RECORDS);
    free(s->ring);
    s->ring = NULL;
}

// All that a stream will need, but what its products and attention want beyond: that comes with their first
// run.
static int acquire(struct cuda_stream *s) {
    struct cuda_device *d = cuda_device_of(&s->head);
    if (cuda_check(s, cudaSetDevice(d->index), "choosing the device") != 0 ||
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

struct stream *cuda_stream_create(struct device *dev, const char *name) {
    struct cuda_device *d = (struct cuda_device *)dev;
    struct cuda_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->ring = malloc(RING_SLOTS * sizeof *s->ring);
    s->head.dev = dev;
    s->failed_at = CUDA_NEVER;
    snprintf(s->name, sizeof s->name, "%s", name);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->progress, NULL);
    bool made = cuda_records_reserve(d, STREAM_RECORDS) == 0 && s->ring && acquire(s) == 0;
    if (!made || pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        device_fail(dev, "stream %s: cannot create %s", s->name,
                    made ? "its thread; raise the limit of threads (ulimit -u)" : "it");
        release(s);
        free(s);
        return NULL;
    }
    pthread_mutex_lock(&dev->lock);
    s->next = d->streams;
    d->streams = s;
    d->live_streams++;
    pthread_mutex_unlock(&dev->lock);
    return &s->head;
}

void cuda_stream_destroy(struct stream *head) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    struct cuda_device *d = (struct cuda_device *)head->dev;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    cuda_check(s, cudaSetDevice(d->index), "choosing the device");
    release(s);
    pthread_mutex_lock(&head->dev->lock);
    d->live_streams--;
    pthread_mutex_unlock(&head->dev->lock);
}

void cuda_streams_free(struct cuda_device *d) {
    for (struct cuda_stream *s = d->streams, *next; s; s = next) {
        next = s->next;
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->progress);
        cuda_clock_free(s);
        free(s);
    }
    d->streams = NULL;
}

// ---------------------------------------------------------------- enqueuing

// Whether the caller is a function that the stream itself is running: then what it asks for happens now.
static bool inside(const struct cuda_stream *s) { return pthread_equal(pthread_self(), s->thread); }

static void run_inside(struct cuda_stream *s, const struct cuda_slot *slot) {
    if (!s->failed_inside && run_slot(s, slot) != 0) s->failed_inside = true;
}

// A free slot to fill, with the lock held; blocks while the ring is full.
static struct cuda_slot *slot_begin(struct cuda_stream *s, enum slot_kind kind) {
    pthread_mutex_lock(&s->lock);
    if (s->queued - s->done == RING_SLOTS) {
        s->watchers++;
        while (s->queued - s->done == RING_SLOTS) pthread_cond_wait(&s->progress, &s->lock);
        s->watchers--;
    }
    struct cuda_slot *slot = &s->ring[s->queued % RING_SLOTS];
    slot->kind = kind;
    return slot;
}

static uint64_t slot_end(struct cuda_stream *s) {
    bool idle = s->queued++ == s->done;
    uint64_t count = s->queued;
    if (idle) pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return count;
}

void cuda_launch(struct stream *head, enum op op, const void *args, size_t args_bytes) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    assert(args_bytes <= OP_ARGS_MAX_BYTES);
    if (inside(s)) {
        struct cuda_slot now = {.kind = SLOT_OP, .op.op = op};
        memcpy(now.op.args, args, args_bytes);
        run_inside(s, &now);
        return;
    }
    struct cuda_slot *slot = slot_begin(s, SLOT_OP);
    slot->op.op = op;
    memcpy(slot->op.args, args, args_bytes);
    slot_end(s);
}

void cuda_copy(struct stream *head, void *dst, const void *src, size_t bytes) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    if (inside(s)) {
        run_inside(s, &(struct cuda_slot){.kind = SLOT_COPY, .copy = {dst, src, bytes}});
        return;
    }
    struct cuda_slot *slot = slot_begin(s, SLOT_COPY);
    slot->copy.dst = dst;
    slot->copy.src = src;
    slot->copy.bytes = bytes;
    slot_end(s);
}

static void enqueue_function(struct stream *head, enum slot_kind kind, const char *name, int (*fn)(void *arg),
                             void *arg) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    struct cuda_slot *slot = slot_begin(s, kind);
    slot->host.fn = fn;
    slot->host.arg = arg;
    snprintf(slot->name, sizeof slot->name, "%s", name);
    slot_end(s);
}

void cuda_host(struct stream *head, const char *name, int (*fn)(void *arg), void *arg) {
    enqueue_function(head, SLOT_HOST, name, fn, arg);
}

void cuda_submit(struct stream *head, const char *name, int (*fn)(void *arg), void *arg) {
    enqueue_function(head, SLOT_SUBMIT, name, fn, arg);
}

void cuda_submit_raw(struct stream *head, const char *name, int (*fn)(void *arg, void *cuda_stream),
                     void *arg) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    struct cuda_slot *slot = slot_begin(s, SLOT_RAW);
    slot->raw.fn = fn;
    slot->raw.arg = arg;
    snprintf(slot->name, sizeof slot->name, "%s", name);
    slot_end(s);
}

void cuda_phase(struct stream *head, enum phase phase) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    slot_begin(s, SLOT_PHASE)->phase = phase;
    slot_end(s);
}

void cuda_enqueue_record(struct cuda_stream *s, struct cuda_record *r, uint64_t *count) {
    if (inside(s)) {
        run_inside(s, &(struct cuda_slot){.kind = SLOT_RECORD, .at.record = r});
        cuda_record_drop(r);
        // Enqueued already; what has failed is known when the function's own slot is done.
        pthread_mutex_lock(&s->lock);
        *count = s->done + s->failed_inside;
        pthread_mutex_unlock(&s->lock);
        return;
    }
    slot_begin(s, SLOT_RECORD)->at.record = r;
    *count = slot_end(s);
}

void cuda_enqueue_wait(struct cuda_stream *s, struct cuda_stream *on, uint64_t count, struct cuda_record *r) {
    if (inside(s)) {
        run_inside(s, &(struct cuda_slot){.kind = SLOT_WAIT, .at = {on, count, r}});
        cuda_record_drop(r);
        return;
    }
    struct cuda_slot *slot = slot_begin(s, SLOT_WAIT);
    slot->at.on = on;
    slot->at.count = count;
    slot->at.record = r;
    slot_end(s);
}

// What the function under way has enqueued has been through the device; also what it had before it failed.
static int sync_inside(struct cuda_stream *s) {
    if (cuda_clock_end(s) != 0) s->failed_inside = true;
    if (cuda_check(s, cudaStreamSynchronize(s->stream), "the stream's work") != 0) s->failed_inside = true;
    return s->failed_inside ? -1 : 0;
}

int cuda_sync(struct stream *head) {
    struct cuda_stream *s = (struct cuda_stream *)head;
    if (inside(s)) return sync_inside(s);
    slot_begin(s, SLOT_FLUSH);
    uint64_t count = slot_end(s);
    if (cuda_await_enqueued(s, count) != 0) return -1;
    if (cuda_check(s, cudaSetDevice(((struct cuda_device *)head->dev)->index), "choosing the device") != 0 ||
        cuda_check(s, cudaStreamSynchronize(s->stream), "the stream's work") != 0 ||
        cuda_clock_read(s) != 0) {
        pthread_mutex_lock(&s->lock);
        if (s->failed_at > count) s->failed_at = count;
        pthread_mutex_unlock(&s->lock);
        return -1;
    }
    // A failure from outside (cuda_stream_fail) may have come while the device was still at work.
    return cuda_enqueued_state(s, count) < 0 ? -1 : 0;
}
