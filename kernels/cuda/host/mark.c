// Marks: CUDA events that show how far the device is (kernels/queue/queue.h).
//
// Nothing is created once collectives run. A mark is held by an event (at most one) or by a slot of a queue. So
// each event and each stream reserves its marks when it is created, and returns them when it ends.
#include <stdlib.h>

#include "kernels/cuda/host/cuda_impl.h"

static struct mark *mark_create(struct cuda_device *d) {
    struct mark *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->owner = d;
    if (cuda_device_check(d, cudaSetDevice(d->index), "choosing the device") == 0 &&
        cuda_device_check(d, cudaEventCreate(&m->event), "cudaEventCreate") == 0)
        return m;
    free(m);
    return NULL;
}

static void make_idle(struct cuda_device *d, struct mark *m) {
    m->next = d->idle;
    d->idle = m;
}

int cuda_marks_reserve(struct cuda_device *d, int count) {
    int rc = 0;
    pthread_mutex_lock(&d->head.lock);
    d->marks_wanted += count;
    int missing = d->marks_wanted - d->marks;
    pthread_mutex_unlock(&d->head.lock);
    for (int i = 0; i < missing && rc == 0; i++) {
        struct mark *m = mark_create(d);
        if (!m) rc = -1;
        pthread_mutex_lock(&d->head.lock);
        if (m) make_idle(d, m);
        if (m) d->marks++;
        pthread_mutex_unlock(&d->head.lock);
    }
    return rc;
}

void cuda_marks_free(struct cuda_device *d) {
    for (struct mark *m = d->idle, *next; m; m = next) {
        next = m->next;
        cudaEventDestroy(m->event);
        free(m);
    }
    d->idle = NULL;
}

// ---------------------------------------------------------------- references

struct mark *cuda_mark_take(struct queue *q) {
    struct cuda_device *d = (struct cuda_device *)q->head.dev;
    pthread_mutex_lock(&d->head.lock);
    struct mark *m = d->idle;
    if (m) d->idle = m->next;
    pthread_mutex_unlock(&d->head.lock);
    if (!m) m = mark_create(d);
    if (m)
        m->refs = 1;
    else
        queue_fail(&q->head, "an event could not be recorded");
    return m;
}

void cuda_mark_hold(struct mark *m) {
    pthread_mutex_lock(&m->owner->head.lock);
    m->refs++;
    pthread_mutex_unlock(&m->owner->head.lock);
}

void cuda_mark_drop(struct mark *m) {
    struct cuda_device *d = m->owner;
    pthread_mutex_lock(&d->head.lock);
    if (--m->refs == 0) make_idle(d, m);
    pthread_mutex_unlock(&d->head.lock);
}

// The caller may be a thread without a CUDA device. CUDA would then choose the first device and create a
// context there.
int cuda_mark_passed(struct queue *q, struct mark *m, bool wait) {
    struct cuda_stream *s = (struct cuda_stream *)q;
    if (cuda_check(s, cudaSetDevice(m->owner->index), "choosing the device") != 0) return -1;
    cudaError_t e = wait ? cudaEventSynchronize(m->event) : cudaEventQuery(m->event);
    if (e != cudaErrorNotReady) return cuda_check(s, e, "the work before an event") == 0 ? 1 : -1;
    cudaGetLastError();  // not an error, but CUDA stores it as one
    return 0;
}

// ---------------------------------------------------------------- events

struct event *cuda_event_create(struct device *d) {
    if (cuda_marks_reserve((struct cuda_device *)d, 1) != 0) return NULL;
    struct event *e = queue_event_create(d);
    if (!e) cuda_marks_reserve((struct cuda_device *)d, -1);
    return e;
}

void cuda_event_destroy(struct event *e) {
    struct cuda_device *d = (struct cuda_device *)e->dev;
    queue_event_destroy(e);
    cuda_marks_reserve(d, -1);
}

double cuda_event_seconds(struct event *from, struct event *to) {
    struct queue_point a = queue_event_point(from), b = queue_event_point(to);
    float ms = -1;
    if (!a.mark || !b.mark || cudaEventElapsedTime(&ms, a.mark->event, b.mark->event) != cudaSuccess) {
        cudaGetLastError();
        ms = -1;
    }
    queue_point_drop(&a);
    queue_point_drop(&b);
    return ms < 0 ? -1 : (double)ms * 1e-3;
}
