// Events: which record of which stream; see cuda_impl.h.
#include <stdlib.h>

#include "kernels/cuda/host/cuda_impl.h"

struct cuda_event {
    struct event head;
    pthread_mutex_t lock;
    struct cuda_stream *on;  // NULL: never recorded
    uint64_t count;          // of the record's slot
    struct cuda_record *record;
};

// ---------------------------------------------------------------- records

static struct cuda_record *record_create(struct cuda_device *d) {
    struct cuda_record *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->owner = d;
    if (cuda_device_check(d, cudaSetDevice(d->index), "choosing the device") == 0 &&
        cuda_device_check(d, cudaEventCreate(&r->event), "cudaEventCreate") == 0)
        return r;
    free(r);
    return NULL;
}

static void make_idle(struct cuda_device *d, struct cuda_record *r) {
    r->next = d->idle;
    d->idle = r;
}

int cuda_records_reserve(struct cuda_device *d, int count) {
    int rc = 0;
    pthread_mutex_lock(&d->head.lock);
    d->records_wanted += count;
    int missing = d->records_wanted - d->records;
    pthread_mutex_unlock(&d->head.lock);
    for (int i = 0; i < missing && rc == 0; i++) {
        struct cuda_record *r = record_create(d);
        if (!r) rc = -1;
        pthread_mutex_lock(&d->head.lock);
        if (r) make_idle(d, r);
        if (r) d->records++;
        pthread_mutex_unlock(&d->head.lock);
    }
    return rc;
}

struct cuda_record *cuda_record_take(struct cuda_device *d) {
    pthread_mutex_lock(&d->head.lock);
    struct cuda_record *r = d->idle;
    if (r) d->idle = r->next;
    pthread_mutex_unlock(&d->head.lock);
    if (!r) r = record_create(d);
    if (r) r->refs = 1;
    return r;
}

void cuda_record_hold(struct cuda_record *r) {
    struct cuda_device *d = r->owner;
    pthread_mutex_lock(&d->head.lock);
    r->refs++;
    pthread_mutex_unlock(&d->head.lock);
}

void cuda_record_drop(struct cuda_record *r) {
    if (!r) return;
    struct cuda_device *d = r->owner;
    pthread_mutex_lock(&d->head.lock);
    if (--r->refs == 0) make_idle(d, r);
    pthread_mutex_unlock(&d->head.lock);
}

// ---------------------------------------------------------------- events

static struct cuda_device *owner(struct event *e) { return (struct cuda_device *)e->dev; }

struct event *cuda_event_create(struct device *d) {
    struct cuda_event *e = calloc(1, sizeof *e);
    if (!e || cuda_records_reserve((struct cuda_device *)d, 1) != 0) {
        free(e);
        return NULL;
    }
    e->head.dev = d;
    pthread_mutex_init(&e->lock, NULL);
    return &e->head;
}

void cuda_event_destroy(struct event *head) {
    struct cuda_event *e = (struct cuda_event *)head;
    if (e->record) cuda_record_drop(e->record);
    cuda_records_reserve(owner(head), -1);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

// The earlier record lives on in the waits that hold it.
void cuda_event_record(struct event *head, struct stream *on) {
    struct cuda_event *e = (struct cuda_event *)head;
    struct cuda_device *d = (struct cuda_device *)on->dev;
    struct cuda_record *r = cuda_record_take(d);
    if (!r) {
        cuda_stream_fail(on, "an event could not be recorded");
        return;
    }
    cuda_record_hold(r);  // one for the slot, one for the event
    uint64_t count;
    cuda_enqueue_record((struct cuda_stream *)on, r, &count);
    pthread_mutex_lock(&e->lock);
    struct cuda_record *before = e->record;
    e->on = (struct cuda_stream *)on;
    e->count = count;
    e->record = r;
    pthread_mutex_unlock(&e->lock);
    if (before) cuda_record_drop(before);
}

// What an event holds now, with a reference of the caller's own; NULL when it was never recorded.
static struct cuda_record *event_read(struct event *head, struct cuda_stream **on, uint64_t *count) {
    struct cuda_event *e = (struct cuda_event *)head;
    pthread_mutex_lock(&e->lock);
    struct cuda_record *r = e->record;
    *on = e->on;
    *count = e->count;
    if (r) cuda_record_hold(r);
    pthread_mutex_unlock(&e->lock);
    return r;
}

void cuda_wait_event(struct stream *head, struct event *e) {
    struct cuda_stream *s = (struct cuda_stream *)head, *on;
    uint64_t count;
    struct cuda_record *r = event_read(e, &on, &count);
    if (!r) return;
    if (on == s)  // a stream's own past is behind it already
        cuda_record_drop(r);
    else
        cuda_enqueue_wait(s, on, count, r);  // the slot takes the reference
}

void cuda_follow_event(struct stream *head, struct event *e) {
    struct cuda_stream *s = (struct cuda_stream *)head, *on;
    uint64_t count;
    struct cuda_record *r = event_read(e, &on, &count);
    if (r) cuda_record_drop(r);
    if (r && on != s) cuda_enqueue_wait(s, on, count, NULL);
}

int cuda_event_sync(struct event *e) {
    struct cuda_stream *on;
    uint64_t count;
    struct cuda_record *r = event_read(e, &on, &count);
    if (!r) return 0;
    int rc = cuda_await_enqueued(on, count);
    if (rc == 0) rc = cuda_check(on, cudaSetDevice(owner(e)->index), "choosing the device");
    if (rc == 0) rc = cuda_check(on, cudaEventSynchronize(r->event), "the work before an event");
    if (rc == 0 && cuda_enqueued_state(on, count) < 0) rc = -1;
    cuda_record_drop(r);
    return rc;
}

int cuda_event_passed(struct event *e) {
    struct cuda_stream *on;
    uint64_t count;
    struct cuda_record *r = event_read(e, &on, &count);
    if (!r) return 1;
    int state = cuda_enqueued_state(on, count);
    if (state == 1) {
        // The caller may be a thread new to CUDA: its device would be the first one, and get a context.
        cudaError_t q = cudaSetDevice(r->owner->index);
        if (q == cudaSuccess) q = cudaEventQuery(r->event);
        if (q == cudaErrorNotReady) {
            state = 0;
            cudaGetLastError();  // not an error, but kept as one
        } else {
            state = cuda_check(on, q, "the work before an event") == 0 ? 1 : -1;
        }
    }
    cuda_record_drop(r);
    return state;
}

double cuda_event_seconds(struct event *from, struct event *to) {
    struct cuda_stream *on;
    uint64_t count;
    float ms = -1;
    struct cuda_record *a = event_read(from, &on, &count), *b = event_read(to, &on, &count);
    if (!a || !b || cudaEventElapsedTime(&ms, a->event, b->event) != cudaSuccess) {
        cudaGetLastError();
        ms = -1;
    }
    if (a) cuda_record_drop(a);
    if (b) cuda_record_drop(b);
    return ms < 0 ? -1 : (double)ms * 1e-3;
}
