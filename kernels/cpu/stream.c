// Streams and events of the host backends: a bounded ring of slots and a thread that runs them.
//
//     ring   | done .. | running | queued .. | free ..      capacity RING_SLOTS
//                      ^ done     ^           ^ queued      counts of slots since creation
//
// Owner    The caller until stream_destroy; then the device keeps the head (not the ring) until it
//          closes, so that a wait captured earlier can still ask how far the stream got.
// Threads  One enqueuing thread at a time, one worker thread; all fields below `lock` are guarded by it.
// Events   An event is a pair (stream, count of slots queued when it was recorded). It has passed when
//          that stream's `done` has reached the count. A wait copies the pair when it is enqueued, so
//          recording again, or destroying the event, does not touch waits that are already queued.
// Failure  `failed_at` is the number of the first slot that failed. Later slots still count as done
//          (so nothing hangs) but do not run; who waits for a count >= failed_at fails as well.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend_impl.h"
#include "kernels/queue/trace.h"

#define RING_SLOTS 1024
#define NEVER      UINT64_MAX

enum slot_kind { SLOT_OP, SLOT_COPY, SLOT_HOST, SLOT_PHASE, SLOT_WAIT };

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
            int (*fn)(void *arg);
            void *arg;
            char name[TRACE_NAME_BYTES];
        } host;
        struct {
            struct host_stream *on;
            uint64_t count;
        } wait;
        enum phase phase;
    };
};

struct host_stream {
    struct stream head;
    struct host_stream *next;  // the device's list
    char name[TRACE_NAME_BYTES];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;      // the worker sleeps here
    pthread_cond_t progress;  // hosts and other streams sleep here
    int watchers;             // how many sleep on progress
    struct slot *ring;        // (RING_SLOTS); NULL once destroyed
    uint64_t queued, done;
    uint64_t failed_at;  // NEVER while nothing has failed
    bool failed_inside;  // the function under way failed in what it called on its own stream; the worker's
    bool closing;
    enum phase phase;
    struct stream_times times;
    struct trace_list kept;  // device options' trace only
};

struct host_event {
    struct event head;
    pthread_mutex_t lock;
    struct host_stream *on;  // NULL: never recorded
    uint64_t count;
};

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// ---------------------------------------------------------------- progress, as others see it

// Blocks until s has done `count` slots; 0, or -1 when one of them failed.
static int await_progress(struct host_stream *s, uint64_t count) {
    assert(!pthread_equal(pthread_self(), s->thread) && "a stream cannot wait for itself");
    pthread_mutex_lock(&s->lock);
    s->watchers++;
    while (s->done < count) pthread_cond_wait(&s->progress, &s->lock);
    s->watchers--;
    int rc = s->failed_at <= count ? -1 : 0;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

// ---------------------------------------------------------------- the worker

// Called with the lock held. Tracing may allocate; without it nothing here does.
static void keep_span(struct host_stream *s, const char *name, int64_t start_ns, int64_t end_ns) {
    struct trace_span span = {.start_ns = start_ns, .duration_ns = end_ns - start_ns, .phase = s->phase};
    snprintf(span.name, sizeof span.name, "%s", name);
    trace_keep(&s->kept, &span);
}

// Runs one slot without the lock; 0 or -1 after keeping the error's text. *name says what it was.
static int run_slot(struct host_stream *s, struct slot *slot, const char **name) {
    struct host_device *d = (struct host_device *)s->head.dev;
    const char *why = NULL;
    switch (slot->kind) {
        case SLOT_OP:
            *name = op_name(slot->op.op);
            if (d->ops[slot->op.op](d->head.threads, slot->op.args, &why) == 0) return 0;
            device_fail(&d->head, "stream %s: %s failed: %s", s->name, *name, why ? why : "no reason given");
            return -1;
        case SLOT_COPY:
            *name = "copy";
            memcpy(slot->copy.dst, slot->copy.src, slot->copy.bytes);
            return 0;
        case SLOT_HOST:
            *name = slot->host.name;
            if (slot->host.fn(slot->host.arg) == 0) return 0;
            device_fail(&d->head, "stream %s: %s failed", s->name, *name);
            return -1;
        case SLOT_WAIT:
            *name = "wait";
            if (await_progress(slot->wait.on, slot->wait.count) == 0) return 0;
            device_fail(&d->head, "stream %s: waited for an event of stream %s [%s], which has failed",
                        s->name, slot->wait.on->name, slot->wait.on->head.dev->label);
            return -1;
        case SLOT_PHASE:
            break;
    }
    return 0;
}

static void *stream_main(void *arg) {
    struct host_stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->done == s->queued && !s->closing) pthread_cond_wait(&s->work, &s->lock);
        if (s->done == s->queued) break;
        struct slot *slot = &s->ring[s->done % RING_SLOTS];
        if (slot->kind == SLOT_PHASE) {
            s->phase = slot->phase;
        } else if (s->failed_at == NEVER) {
            // The slot stays ours until done moves on: the enqueuer writes to free slots only.
            pthread_mutex_unlock(&s->lock);
            const char *name = "";
            int64_t start = now_ns();
            int rc = run_slot(s, slot, &name);
            if (s->failed_inside) rc = -1;
            int64_t end = now_ns();
            pthread_mutex_lock(&s->lock);
            double *to = slot->kind == SLOT_WAIT ? s->times.wait_s : s->times.busy_s;
            to[s->phase] += (double)(end - start) * 1e-9;
            if (s->head.dev->trace) keep_span(s, name, start, end);
            if (rc != 0) s->failed_at = s->done + 1;
        }
        s->done++;
        if (s->watchers) pthread_cond_broadcast(&s->progress);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

// ---------------------------------------------------------------- creation and the end

struct stream *host_stream_create(struct device *dev, const char *name) {
    struct host_device *d = (struct host_device *)dev;
    struct host_stream *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->ring = malloc(RING_SLOTS * sizeof *s->ring);
    s->head.dev = dev;
    s->failed_at = NEVER;
    snprintf(s->name, sizeof s->name, "%s", name);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->progress, NULL);
    if (!s->ring || pthread_create(&s->thread, NULL, stream_main, s) != 0) {
        device_fail(dev, "stream %s: cannot start its thread; raise the limit of threads (ulimit -u)",
                    s->name);
        free(s->ring);
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

void host_stream_destroy(struct stream *head) {
    struct host_stream *s = (struct host_stream *)head;
    struct host_device *d = (struct host_device *)head->dev;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    free(s->ring);
    s->ring = NULL;
    pthread_mutex_lock(&head->dev->lock);
    d->live_streams--;
    pthread_mutex_unlock(&head->dev->lock);
}

void host_streams_free(struct host_device *d) {
    for (struct host_stream *s = d->streams, *next; s; s = next) {
        next = s->next;
        pthread_mutex_destroy(&s->lock);
        pthread_cond_destroy(&s->work);
        pthread_cond_destroy(&s->progress);
        trace_free(&s->kept);
        free(s);
    }
    d->streams = NULL;
}

// ---------------------------------------------------------------- enqueuing

// A free slot to fill, with the lock held; blocks while the ring is full.
static struct slot *slot_begin(struct host_stream *s, enum slot_kind kind) {
    pthread_mutex_lock(&s->lock);
    if (s->queued - s->done == RING_SLOTS) {
        s->watchers++;
        while (s->queued - s->done == RING_SLOTS) pthread_cond_wait(&s->progress, &s->lock);
        s->watchers--;
    }
    struct slot *slot = &s->ring[s->queued % RING_SLOTS];
    slot->kind = kind;
    return slot;
}

static void slot_end(struct host_stream *s) {
    bool idle = s->queued++ == s->done;
    if (idle) pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
}

// Whether the caller is a function that the stream itself is running: then what it asks for happens now.
static bool inside(const struct host_stream *s) { return pthread_equal(pthread_self(), s->thread); }

static void run_inside(struct host_stream *s, struct slot *slot) {
    const char *name;
    if (!s->failed_inside && run_slot(s, slot, &name) != 0) s->failed_inside = true;
}

void host_launch(struct stream *head, enum op op, const void *args, size_t args_bytes) {
    struct host_stream *s = (struct host_stream *)head;
    assert(args_bytes <= OP_ARGS_MAX_BYTES);
    if (inside(s)) {
        struct slot now = {.kind = SLOT_OP, .op.op = op};
        memcpy(now.op.args, args, args_bytes);
        run_inside(s, &now);
        return;
    }
    struct slot *slot = slot_begin(s, SLOT_OP);
    slot->op.op = op;
    memcpy(slot->op.args, args, args_bytes);
    slot_end(s);
}

void host_copy(struct stream *head, void *dst, const void *src, size_t bytes) {
    struct host_stream *s = (struct host_stream *)head;
    if (inside(s)) {
        run_inside(s, &(struct slot){.kind = SLOT_COPY, .copy = {dst, src, bytes}});
        return;
    }
    struct slot *slot = slot_begin(s, SLOT_COPY);
    slot->copy.dst = dst;
    slot->copy.src = src;
    slot->copy.bytes = bytes;
    slot_end(s);
}

void host_host(struct stream *head, const char *name, int (*fn)(void *arg), void *arg) {
    struct host_stream *s = (struct host_stream *)head;
    struct slot *slot = slot_begin(s, SLOT_HOST);
    slot->host.fn = fn;
    slot->host.arg = arg;
    snprintf(slot->host.name, sizeof slot->host.name, "%s", name);
    slot_end(s);
}

void host_phase(struct stream *head, enum phase phase) {
    struct host_stream *s = (struct host_stream *)head;
    struct slot *slot = slot_begin(s, SLOT_PHASE);
    slot->phase = phase;
    slot_end(s);
}

int host_sync(struct stream *head) {
    struct host_stream *s = (struct host_stream *)head;
    if (inside(s)) return s->failed_inside ? -1 : 0;
    pthread_mutex_lock(&s->lock);
    uint64_t count = s->queued;
    pthread_mutex_unlock(&s->lock);
    return await_progress(s, count);
}

void host_times(struct stream *head, struct stream_times *out) {
    struct host_stream *s = (struct host_stream *)head;
    pthread_mutex_lock(&s->lock);
    *out = s->times;
    pthread_mutex_unlock(&s->lock);
}

// ---------------------------------------------------------------- events

struct event *host_event_create(struct device *d) {
    struct host_event *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->head.dev = d;
    pthread_mutex_init(&e->lock, NULL);
    return &e->head;
}

void host_event_destroy(struct event *head) {
    struct host_event *e = (struct host_event *)head;
    pthread_mutex_destroy(&e->lock);
    free(e);
}

void host_event_record(struct event *head, struct stream *on) {
    struct host_event *e = (struct host_event *)head;
    struct host_stream *s = (struct host_stream *)on;
    pthread_mutex_lock(&s->lock);
    uint64_t count =
        inside(s) ? s->done + s->failed_inside : s->queued;  // inside, all that came before has been done
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&e->lock);
    e->on = s;
    e->count = count;
    pthread_mutex_unlock(&e->lock);
}

// The record an event holds now; NULL when there was none.
static struct host_stream *event_read(struct event *head, uint64_t *count) {
    struct host_event *e = (struct host_event *)head;
    pthread_mutex_lock(&e->lock);
    struct host_stream *on = e->on;
    *count = e->count;
    pthread_mutex_unlock(&e->lock);
    return on;
}

void host_wait_event(struct stream *head, struct event *e) {
    struct host_stream *s = (struct host_stream *)head;
    uint64_t count;
    struct host_stream *on = event_read(e, &count);
    if (!on || on == s) return;  // a stream's own past is behind it already
    if (inside(s)) {
        run_inside(s, &(struct slot){.kind = SLOT_WAIT, .wait = {on, count}});
        return;
    }
    struct slot *slot = slot_begin(s, SLOT_WAIT);
    slot->wait.on = on;
    slot->wait.count = count;
    slot_end(s);
}

int host_event_sync(struct event *e) {
    uint64_t count;
    struct host_stream *on = event_read(e, &count);
    return on ? await_progress(on, count) : 0;
}

int host_event_passed(struct event *e) {
    uint64_t count;
    struct host_stream *on = event_read(e, &count);
    if (!on) return 1;
    pthread_mutex_lock(&on->lock);
    int state = on->failed_at <= count ? -1 : on->done >= count;
    pthread_mutex_unlock(&on->lock);
    return state;
}

// ---------------------------------------------------------------- trace

int host_trace_write(struct device *head, int pid, void *file) {
    struct host_device *d = (struct host_device *)head;
    trace_write_process(file, pid, head->label);
    pthread_mutex_lock(&head->lock);
    int tid = 0;
    for (struct host_stream *s = d->streams; s; s = s->next) {
        pthread_mutex_lock(&s->lock);
        trace_write_thread(file, pid, ++tid, s->name, &s->kept);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&head->lock);
    return ferror((FILE *)file) ? -1 : 0;
}
