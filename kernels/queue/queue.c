#include "kernels/queue/queue.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *slot_name(const struct slot *slot) {
    switch (slot->kind) {
        case SLOT_OP:
            return op_name(slot->op.op);
        case SLOT_COPY:
            return "copy";
        case SLOT_HOST:
        case SLOT_SUBMIT:
        case SLOT_NATIVE:
            return slot->call.name;
        case SLOT_WAIT:
            return "wait";
        case SLOT_PHASE:
        case SLOT_RECORD:
        case SLOT_STAMP:
        case SLOT_FLUSH:
            break;
    }
    return "";
}

// ---------------------------------------------------------------- progress, as other threads see it

int queue_await(struct queue *q, uint64_t count) {
    pthread_mutex_lock(&q->lock);
    // A stopped queue has done everything, and a later queue's thread may have the same pthread_t.
    assert((q->done >= count || !pthread_equal(pthread_self(), q->thread)) &&
           "a stream cannot wait for itself");
    q->watchers++;
    while (q->done < count) pthread_cond_wait(&q->progress, &q->lock);
    q->watchers--;
    int rc = q->failed_at <= count ? -1 : 0;
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int queue_state(struct queue *q, uint64_t count) {
    pthread_mutex_lock(&q->lock);
    int state = q->failed_at <= count ? -1 : q->done >= count;
    pthread_mutex_unlock(&q->lock);
    return state;
}

void queue_fail(struct stream *head, const char *text) {
    device_fail(head->dev, "stream %s: %s", ((struct queue *)head)->name, text);
    pthread_mutex_lock(&head->dev->lock);
    for (struct queue *q = head->dev->queues; q; q = q->next) {
        pthread_mutex_lock(&q->lock);
        q->failed_at = 0;
        pthread_mutex_unlock(&q->lock);
    }
    pthread_mutex_unlock(&head->dev->lock);
}

// ---------------------------------------------------------------- times and trace

// Call it with the lock held.
static void log_span(struct queue *q, const struct span *span) {
    struct spans *log = &q->log;
    bool stamp = span->kind == SPAN_STAMP, busy = span->kind == SPAN_BUSY;
    if (!log->ring || (q->stamps_only && !stamp)) return;
    if (span->kind == SPAN_BLOCKED && span_length(span) < QUEUE_GAP_NS) return;
    if (busy && q->log_busy > log->first) {
        struct span *before = &log->ring[(q->log_busy - 1) % log->room];
        bool near = span->begin >= before->begin && span->begin - before->end <= QUEUE_GAP_NS;
        if (near && before->phase == span->phase) {
            if (span->end > before->end) before->end = span->end;
            return;
        }
    }
    uint64_t lost = log->lost;
    spans_add(log, span);
    if (!stamp && log->lost == lost) q->log_busy = busy ? log->next : 0;
}

// Call it with the lock held.
static void account(struct queue *q, const struct span *span) {
    log_span(q, span);
    if (span->kind == SPAN_STAMP) return;
    (span->kind == SPAN_BLOCKED ? q->times.wait_s : q->times.busy_s)[span->phase] +=
        (double)span_length(span) * 1e-9;
    if (q->head.dev->trace) spans_add(&q->trace, span);
}

void queue_span(struct queue *q, const struct span *span) {
    pthread_mutex_lock(&q->lock);
    account(q, span);
    pthread_mutex_unlock(&q->lock);
}

void stream_get_times(struct stream *head, struct stream_times *out) {
    struct queue *q = (struct queue *)head;
    pthread_mutex_lock(&q->lock);
    *out = q->times;
    pthread_mutex_unlock(&q->lock);
}

const struct spans *dev_spans(struct device *d, int i, const char **stream) {
    pthread_mutex_lock(&d->lock);
    struct queue *q = d->queues;
    while (q && i-- > 0) q = q->next;
    pthread_mutex_unlock(&d->lock);
    if (!q) return NULL;
    *stream = q->name;
    // The copy stays valid without the lock: a list of kind SPANS_FIRST never changes a span that is written.
    pthread_mutex_lock(&q->lock);
    q->trace_copy = q->trace;
    pthread_mutex_unlock(&q->lock);
    return &q->trace_copy;
}

// ---------------------------------------------------------------- the thread

static int interval_end(struct queue *q, bool idle) {
    return q->ops->device_ops ? q->ops->device_ops->pause(q, idle) : 0;
}

static int run_wait(struct queue *q, const struct slot *slot) {
    const struct queue *on = slot->at.on;
    if ((slot->at.mark ? q->ops->device_ops->begin_wait(q, slot) : interval_end(q, false)) != 0) return -1;
    if (queue_await(slot->at.on, slot->at.count) == 0) return slot->at.mark ? q->ops->run(q, slot) : 0;
    device_fail(q->head.dev, "stream %s: waited for an event of stream %s [%s], which has failed", q->name,
                on->name, on->head.dev->label);
    return -1;
}

static void count_work(struct queue *q, const struct slot *slot) {
    struct op_work w = slot->kind == SLOT_OP ? op_work_of(slot->op.op, slot->op.args)
                                             : (struct op_work){.bytes = 2.0 * (double)slot->copy.bytes};
    pthread_mutex_lock(&q->lock);
    q->times.work[q->phase].bytes += w.bytes;
    q->times.work[q->phase].flops += w.flops;
    pthread_mutex_unlock(&q->lock);
}

// Runs one slot without the lock. Returns 0, or -1 after keeping the error's text.
static int run_slot(struct queue *q, const struct slot *slot) {
    switch (slot->kind) {
        case SLOT_HOST:
            if (slot->call.fn(slot->call.arg) == 0) return 0;
            device_fail(q->head.dev, "stream %s: %s failed", q->name, slot->call.name);
            return -1;
        case SLOT_WAIT:
            return run_wait(q, slot);
        case SLOT_FLUSH:
            return interval_end(q, false);
        case SLOT_PHASE:
            if (slot->phase == q->phase) return 0;
            if (interval_end(q, false) != 0) return -1;
            q->phase = slot->phase;
            return 0;
        case SLOT_STAMP:
            return q->ops->device_ops ? q->ops->run(q, slot) : 0;
        case SLOT_OP:
        case SLOT_COPY:
            count_work(q, slot);
            break;
        case SLOT_SUBMIT:
        case SLOT_NATIVE:
        case SLOT_RECORD:
            break;
    }
    return q->ops->run(q, slot);
}

// Returns whether the queue's thread does the slot's work and so times it. A device's work is timed by the backend.
static bool timed_here(const struct queue *q, const struct slot *slot) {
    return slot->kind == SLOT_HOST || (!q->ops->device_ops && slot->kind != SLOT_PHASE);
}

static int run_timed(struct queue *q, const struct slot *slot, struct span *span) {
    const struct queue_device *device_ops = q->ops->device_ops;
    if (device_ops && (interval_end(q, false) != 0 || device_ops->drain(q, slot_name(slot)) != 0)) return -1;
    bool stamp = slot->kind == SLOT_STAMP, wait = slot->kind == SLOT_WAIT;
    // A stamp's time is the end of the slot before it, even if the thread was delayed since.
    *span = (struct span){.begin = stamp && q->last_end_ns ? q->last_end_ns : now_ns(),
                          .name = slot_name(slot),
                          .kind = stamp  ? SPAN_STAMP
                                  : wait ? SPAN_BLOCKED
                                         : SPAN_BUSY,
                          .phase = q->phase};
    if (stamp || wait) span->id = slot->tag;
    int rc = run_slot(q, slot);
    q->last_end_ns = span->end = stamp ? span->begin : now_ns();
    return rc;
}

void queue_point_drop(const struct queue_point *m) {
    if (m->mark) m->on->ops->device_ops->drop(m->mark);
}

static void drop_mark(const struct slot *slot) {
    if (slot->kind == SLOT_RECORD || slot->kind == SLOT_WAIT) queue_point_drop(&slot->at);
}

// Sleeps while nothing is queued; call it with the lock held. An idle stream is not busy.
static void wait_for_work(struct queue *q) {
    if (q->ops->device_ops && q->failed_at == QUEUE_NEVER) {
        pthread_mutex_unlock(&q->lock);
        bool failed = interval_end(q, true) != 0;
        pthread_mutex_lock(&q->lock);
        if (failed && q->failed_at == QUEUE_NEVER) q->failed_at = q->done;
    }
    while (q->done == q->queued && !q->closing) pthread_cond_wait(&q->work, &q->lock);
}

void *queue_run(void *queue) {
    struct queue *q = queue;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        if (q->done == q->queued && !q->closing) wait_for_work(q);
        if (q->done == q->queued) break;
        const struct slot *slot = &q->ring[q->done % QUEUE_SLOTS];
        bool run = q->failed_at == QUEUE_NEVER, timed = run && timed_here(q, slot);
        struct span span = {0};
        // The slot belongs to the thread until done rises: the enqueuer writes only to free slots.
        pthread_mutex_unlock(&q->lock);
        int rc = timed ? run_timed(q, slot, &span) : run ? run_slot(q, slot) : 0;
        if (q->failed_inside) rc = -1;
        drop_mark(slot);
        pthread_mutex_lock(&q->lock);
        if (span.begin) account(q, &span);
        q->done++;
        if (rc != 0 && q->failed_at == QUEUE_NEVER) q->failed_at = q->done;
        if (q->watchers) pthread_cond_broadcast(&q->progress);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

// ---------------------------------------------------------------- start and stop

void queue_init(struct queue *q, struct device *dev, const char *name, const struct queue_ops *ops) {
    q->head.dev = dev;
    q->ops = ops;
    q->failed_at = QUEUE_NEVER;
    snprintf(q->name, sizeof q->name, "%s", name);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    pthread_cond_init(&q->progress, NULL);
    // If there is no memory for spans, all of them count as lost.
    if (dev->trace) spans_open(&q->trace, SPANS_TRACED, SPANS_FIRST);
}

int queue_start(struct queue *q) {
    struct device *d = q->head.dev;
    q->ring = malloc(QUEUE_SLOTS * sizeof *q->ring);
    if (!q->ring || pthread_create(&q->thread, NULL, q->ops->thread, q) != 0) {
        free(q->ring);
        return -1;
    }
    pthread_mutex_lock(&d->lock);
    q->next = d->queues;
    d->queues = q;
    d->live_queues++;
    pthread_mutex_unlock(&d->lock);
    return 0;
}

void queue_stop(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    free(q->ring);
    q->ring = NULL;
    pthread_mutex_lock(&q->head.dev->lock);
    q->head.dev->live_queues--;
    pthread_mutex_unlock(&q->head.dev->lock);
}

void queues_free(struct device *d) {
    assert(d->live_queues == 0 && "destroy the streams before the device");
    for (struct queue *q = d->queues, *next; q; q = next) {
        next = q->next;
        pthread_mutex_destroy(&q->lock);
        pthread_cond_destroy(&q->work);
        pthread_cond_destroy(&q->progress);
        spans_close(&q->trace);
        spans_close(&q->log);
        free(q);
    }
    d->queues = NULL;
}

// ---------------------------------------------------------------- enqueuing

// Returns whether the caller is a function that the queue is running (queue.h, Inside): its calls then act at once.
static bool inside(const struct queue *q) { return pthread_equal(pthread_self(), q->thread); }

// Returns a free slot to fill, with the lock held; blocks while the ring is full.
static struct slot *slot_free(struct queue *q, enum slot_kind kind) {
    pthread_mutex_lock(&q->lock);
    if (q->queued - q->done == QUEUE_SLOTS) {
        q->watchers++;
        device_wait_note(q->head.dev, true);
        while (q->queued - q->done == QUEUE_SLOTS) pthread_cond_wait(&q->progress, &q->lock);
        device_wait_note(q->head.dev, false);
        q->watchers--;
    }
    struct slot *slot = &q->ring[q->queued % QUEUE_SLOTS];
    slot->kind = kind;
    return slot;
}

static uint64_t slot_queue(struct queue *q) {
    bool idle = q->queued++ == q->done;
    uint64_t count = q->queued;
    if (idle) pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    return count;
}

// Returns the slot to fill: a free slot of the ring, or `own` for a call from inside, which slot_end then runs at once.
static struct slot *slot_begin(struct queue *q, enum slot_kind kind, struct slot *own) {
    if (!inside(q)) return slot_free(q, kind);
    own->kind = kind;
    return own;
}

// The number of slots that must be done for all calls of the caller so far. Inside, earlier calls are
// done; whether one failed is known when the function's own slot is done.
static uint64_t count_now(struct queue *q) {
    pthread_mutex_lock(&q->lock);
    uint64_t count = inside(q) ? q->done + q->failed_inside : q->queued;
    pthread_mutex_unlock(&q->lock);
    return count;
}

static uint64_t slot_end(struct queue *q, const struct slot *slot, const struct slot *own) {
    if (slot != own) return slot_queue(q);
    if (!q->failed_inside && run_slot(q, slot) != 0) q->failed_inside = true;
    drop_mark(slot);
    return count_now(q);
}

void queue_launch(struct stream *head, enum op op, const void *args, size_t args_bytes) {
    struct queue *q = (struct queue *)head;
    struct slot own, *slot = slot_begin(q, SLOT_OP, &own);
    assert(args_bytes <= OP_ARGS_MAX_BYTES);
    slot->op.op = op;
    memcpy(slot->op.args, args, args_bytes);
    slot_end(q, slot, &own);
}

void queue_copy(struct stream *head, void *dst, const void *src, size_t bytes) {
    struct queue *q = (struct queue *)head;
    struct slot own, *slot = slot_begin(q, SLOT_COPY, &own);
    slot->copy.dst = dst;
    slot->copy.src = src;
    slot->copy.bytes = bytes;
    slot_end(q, slot, &own);
}

uint64_t queue_record(struct queue *q, struct mark *mark) {
    if (!mark) return count_now(q);
    struct slot own, *slot = slot_begin(q, SLOT_RECORD, &own);
    slot->at = (struct queue_point){.on = q, .mark = mark};
    return slot_end(q, slot, &own);
}

void queue_wait(struct queue *q, const struct queue_point *m, uint64_t tag) {
    struct slot own, *slot = slot_begin(q, SLOT_WAIT, &own);
    slot->at = *m;
    slot->tag = tag;
    slot_end(q, slot, &own);
}

static void enqueue_function(struct stream *head, enum slot_kind kind, const char *name, int (*fn)(void *arg),
                             void *arg) {
    struct queue *q = (struct queue *)head;
    struct slot *slot = slot_free(q, kind);
    slot->call.fn = fn;
    slot->call.arg = arg;
    slot->call.name = name;
    slot_queue(q);
}

void stream_host(struct stream *s, const char *name, int (*fn)(void *arg), void *arg) {
    enqueue_function(s, SLOT_HOST, name, fn, arg);
}

void stream_submit(struct stream *s, const char *name, int (*fn)(void *arg), void *arg) {
    const struct queue *q = (struct queue *)s;
    enqueue_function(s, q->ops->device_ops ? SLOT_SUBMIT : SLOT_HOST, name, fn, arg);
}

void queue_submit_native(struct stream *head, const char *name, int (*fn)(void *arg, void *native_stream),
                         void *arg) {
    struct queue *q = (struct queue *)head;
    struct slot *slot = slot_free(q, SLOT_NATIVE);
    slot->call.native = fn;
    slot->call.arg = arg;
    slot->call.name = name;
    slot_queue(q);
}

void stream_stamp(struct stream *head, uint64_t tag) {
    struct queue *q = (struct queue *)head;
    slot_free(q, SLOT_STAMP)->tag = tag;
    slot_queue(q);
}

void stream_phase(struct stream *head, enum phase phase) {
    assert(phase >= 0 && phase < PHASES);
    struct queue *q = (struct queue *)head;
    slot_free(q, SLOT_PHASE)->phase = phase;
    slot_queue(q);
}

static int sync_queue(struct queue *q) {
    const struct queue_device *device_ops = q->ops->device_ops;
    if (inside(q)) {  // waits for all work of the running function, also the work before a failed call
        if (interval_end(q, false) != 0) q->failed_inside = true;
        if (device_ops && device_ops->drain(q, "the stream's work") != 0) q->failed_inside = true;
        return q->failed_inside ? -1 : 0;
    }
    if (device_ops) slot_free(q, SLOT_FLUSH);
    uint64_t count = device_ops ? slot_queue(q) : count_now(q);
    if (queue_await(q, count) != 0) return -1;
    if (device_ops && device_ops->sync(q) != 0) {
        pthread_mutex_lock(&q->lock);
        if (q->failed_at > count) q->failed_at = count;
        pthread_mutex_unlock(&q->lock);
        return -1;
    }
    // A failure from outside (queue_fail) may have occurred while the device was working.
    return queue_state(q, count) < 0 ? -1 : 0;
}

// A wait of the host is counted, and dev_at_work knows of it.
static void begin_host_wait(struct device *d) {
    atomic_fetch_add(&d->host_waits, 1);
    device_wait_note(d, true);
}

int stream_sync(struct stream *s) {
    begin_host_wait(s->dev);
    int rc = sync_queue((struct queue *)s);
    device_wait_note(s->dev, false);
    return rc;
}

int stream_log(struct stream *head, size_t room, bool stamps_only) {
    struct queue *q = (struct queue *)head;
    const struct queue_device *device_ops = q->ops->device_ops;
    // While the stream is idle, the time is known on the device's clock and the host's.
    if (device_ops && (sync_queue(q) != 0 || device_ops->date(q) != 0)) return -1;
    pthread_mutex_lock(&q->lock);
    int rc = spans_open(&q->log, room, SPANS_FIRST);
    q->stamps_only = stamps_only;
    q->log_busy = 0;
    pthread_mutex_unlock(&q->lock);
    if (rc != 0) device_fail(head->dev, "stream %s: no memory to record %zu spans", q->name, room);
    return rc;
}

size_t stream_take_log(struct stream *head, struct span *out, size_t room, uint64_t *lost) {
    struct queue *q = (struct queue *)head;
    const struct queue_device *device_ops = q->ops->device_ops;
    *lost = 0;
    if (device_ops && device_ops->read(q) != 0) return 0;
    pthread_mutex_lock(&q->lock);
    size_t n = spans_take(&q->log, out, room, lost);
    pthread_mutex_unlock(&q->lock);
    return n;
}

// ---------------------------------------------------------------- whether a device is at work (backend.h)
enum dev_work dev_at_work(struct device *d) {
    bool work = false;
    pthread_mutex_lock(&d->lock);
    for (struct queue *q = d->queues; q && !work; q = q->next) {
        pthread_mutex_lock(&q->lock);
        work = q->done < q->queued && !q->waits && q->ring[q->done % QUEUE_SLOTS].kind != SLOT_WAIT;
        pthread_mutex_unlock(&q->lock);
    }
    bool host = d->has_host && !atomic_load(&d->host_waiting);
    pthread_mutex_unlock(&d->lock);
    return work ? DEV_COMPUTES : host ? DEV_HOST_WORKS : DEV_IDLE;
}

const char *dev_work_text(enum dev_work w) {
    static const char *const texts[] = {"it is idle", "it is computing",
                                        "it reads or writes a file, most likely"};
    return texts[w];
}

void stream_set_waiting(struct stream *s, bool waits) {
    struct queue *q = (struct queue *)s;
    pthread_mutex_lock(&q->lock);
    q->waits = waits;
    pthread_mutex_unlock(&q->lock);
}

// ---------------------------------------------------------------- events
struct queue_event {
    struct event head;
    pthread_mutex_t lock;
    struct queue_point last;
};

struct event *queue_event_create(struct device *d) {
    struct queue_event *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->head.dev = d;
    pthread_mutex_init(&e->lock, NULL);
    return &e->head;
}

void queue_event_destroy(struct event *head) {
    struct queue_event *e = (struct queue_event *)head;
    queue_point_drop(&e->last);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

// Waits that hold the mark of the earlier record keep it.
void event_record(struct event *head, struct stream *on) {
    struct queue_event *e = (struct queue_event *)head;
    struct queue *q = (struct queue *)on;
    const struct queue_device *device_ops = q->ops->device_ops;
    struct queue_point now = {.on = q};
    if (device_ops) {
        now.mark = device_ops->take(q);
        if (!now.mark) return;
        device_ops->hold(now.mark);  // one reference for the slot, one for the event
    }
    now.count = queue_record(q, now.mark);
    pthread_mutex_lock(&e->lock);
    struct queue_point before = e->last;
    e->last = now;
    pthread_mutex_unlock(&e->lock);
    queue_point_drop(&before);
}

struct queue_point queue_event_point(struct event *head) {
    struct queue_event *e = (struct queue_event *)head;
    pthread_mutex_lock(&e->lock);
    struct queue_point m = e->last;
    if (m.mark) m.on->ops->device_ops->hold(m.mark);
    pthread_mutex_unlock(&e->lock);
    return m;
}

// A queue need not wait for its own earlier work.
void stream_wait_tagged(struct stream *s, struct event *e, uint64_t tag) {
    struct queue *q = (struct queue *)s;
    struct queue_point m = queue_event_point(e);
    if (m.on && m.on != q)
        queue_wait(q, &m, tag);
    else
        queue_point_drop(&m);
}

void stream_wait_event(struct stream *s, struct event *e) { stream_wait_tagged(s, e, 0); }

void queue_wait_submission(struct stream *s, struct event *e) {
    struct queue *q = (struct queue *)s;
    struct queue_point m = queue_event_point(e);
    queue_point_drop(&m);
    m.mark = NULL;
    if (m.on && m.on != q) queue_wait(q, &m, 0);
}

static int sync_event(struct event *e) {
    struct queue_point m = queue_event_point(e);
    if (!m.on) return 0;
    int rc = queue_await(m.on, m.count);
    if (rc == 0 && m.mark && m.on->ops->device_ops->passed(m.on, m.mark, true) < 0) rc = -1;
    // A failure from outside may have occurred while the device was working.
    if (rc == 0 && queue_state(m.on, m.count) < 0) rc = -1;
    queue_point_drop(&m);
    return rc;
}

int event_sync(struct event *e) {
    begin_host_wait(e->dev);
    int rc = sync_event(e);
    device_wait_note(e->dev, false);
    return rc;
}

int event_passed(struct event *e) {
    struct queue_point m = queue_event_point(e);
    if (!m.on) return 1;
    int state = queue_state(m.on, m.count);
    if (state == 1 && m.mark) state = m.on->ops->device_ops->passed(m.on, m.mark, false);
    queue_point_drop(&m);
    return state;
}
