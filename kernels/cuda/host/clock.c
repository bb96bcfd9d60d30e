// Times of a stream's phases and its trace, measured by pairs of events that are read later.
//
//     ring   | read .. closed, not yet passed .. | written: open or free .. |
//
// A span covers operations that follow each other without a gap; with a trace each operation has its own span.
// Gaps (nothing queued, waiting for another stream, host functions) are not in spans. A stamp ends a span.
//
// Begin times are computed only if they are needed (a trace, a stream that logs its intervals). The two clocks
// drift, and each event's time is rounded. So times are added up from span to span, within limits. A span does
// not begin before the host gave it to the device, nor end after the host saw that it had passed.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host/cuda_impl.h"

#define ANCHOR_TRIES 8

// ---------------------------------------------------------------- creation and the end

int cuda_clock_init(struct cuda_stream *s) {
    struct cuda_clock *c = &s->clock;
    pthread_mutex_init(&c->lock, NULL);
    // All events are created now, because nothing may be created once collectives run.
    for (int i = 0; i < CUDA_SPANS; i++)
        if (cuda_check(s, cudaEventCreate(&c->ring[i].start), "cudaEventCreate") != 0 ||
            cuda_check(s, cudaEventCreate(&c->ring[i].end), "cudaEventCreate") != 0)
            return -1;
    if (cuda_check(s, cudaEventCreate(&c->anchor), "cudaEventCreate") != 0 ||
        cuda_check(s, cudaEventCreate(&c->spare), "cudaEventCreate") != 0)
        return -1;
    return s->queue.head.dev->trace ? cuda_clock_date(s) : 0;
}

// Destroys the device's objects; the measured spans are kept for the trace.
void cuda_clock_fini(struct cuda_stream *s) {
    struct cuda_clock *c = &s->clock;
    for (int i = 0; i < CUDA_SPANS; i++) {
        if (c->ring[i].start) cuda_check(s, cudaEventDestroy(c->ring[i].start), "cudaEventDestroy");
        if (c->ring[i].end) cuda_check(s, cudaEventDestroy(c->ring[i].end), "cudaEventDestroy");
        c->ring[i].start = c->ring[i].end = NULL;
    }
    if (c->anchor) cuda_check(s, cudaEventDestroy(c->anchor), "cudaEventDestroy");
    if (c->spare) cuda_check(s, cudaEventDestroy(c->spare), "cudaEventDestroy");
    c->anchor = c->spare = NULL;
    pthread_mutex_destroy(&c->lock);
}

// ---------------------------------------------------------------- reading what has passed

// Computes when the next span to be read began, from the event before it: the anchor, or the end of the span
// read last. CUDA returns milliseconds in fp32, and short intervals keep their digits.
static int date_span(struct cuda_stream *s, const struct cuda_span *p, int64_t length_ns, struct span *span) {
    struct cuda_clock *c = &s->clock;
    cudaEvent_t last = c->read > c->anchored ? c->ring[(c->read - 1) % CUDA_SPANS].end : c->anchor;
    float gap_ms = 0;
    if (cuda_check(s, cudaEventElapsedTime(&gap_ms, last, p->start), "a span's start") != 0) return -1;
    double start_ns = c->anchor_ns + (double)gap_ms * 1e6, seen_ns = (double)now_ns();
    if (start_ns < (double)p->given_ns) start_ns = (double)p->given_ns;
    if (start_ns + (double)length_ns > seen_ns) start_ns = seen_ns - (double)length_ns;
    span->begin = (int64_t)start_ns;
    c->anchor_ns = start_ns + (double)length_ns;
    return 0;
}

// With the lock held: reads one closed span that has passed.
static int read_span(struct cuda_stream *s) {
    struct cuda_clock *c = &s->clock;
    const struct cuda_span *p = &c->ring[c->read % CUDA_SPANS];
    struct span span = {
        .name = p->name, .phase = p->phase, .kind = p->wait ? SPAN_BLOCKED : SPAN_BUSY, .id = p->tag};
    float ms = 0;
    if (cuda_check(s, cudaEventElapsedTime(&ms, p->start, p->end), "a span's time") != 0) return -1;
    int64_t length_ns = (int64_t)((double)ms * 1e6);
    if (c->dated && date_span(s, p, length_ns, &span) != 0) return -1;
    span.end = span.begin + length_ns;
    queue_span(&s->queue, &span);
    if (p->stamped) {
        struct span stamp = {.begin = span.end, .end = span.end, .kind = SPAN_STAMP, .id = p->stamp};
        queue_span(&s->queue, &stamp);
    }
    c->read++;
    return 0;
}

// With the lock held. wait: waits for the oldest span, because its slot is needed.
static int read_passed(struct cuda_stream *s, bool wait) {
    struct cuda_clock *c = &s->clock;
    while (c->read < c->written) {
        cudaEvent_t end = c->ring[c->read % CUDA_SPANS].end;
        cudaError_t q = wait ? cudaEventSynchronize(end) : cudaEventQuery(end);
        wait = false;
        if (q == cudaErrorNotReady) {
            cudaGetLastError();  // not an error, but CUDA stores it as one
            return 0;
        }
        if (cuda_check(s, q, "the work of a span") != 0 || read_span(s) != 0) return -1;
    }
    return 0;
}

int cuda_clock_read(struct cuda_stream *s) {
    pthread_mutex_lock(&s->clock.lock);
    int rc = read_passed(s, false);
    pthread_mutex_unlock(&s->clock.lock);
    return rc;
}

// ---------------------------------------------------------------- spans

// With the lock held.
static int close_span(struct cuda_stream *s) {
    struct cuda_clock *c = &s->clock;
    if (!c->open) return 0;
    if (cuda_check(s, cudaEventRecord(c->ring[c->written % CUDA_SPANS].end, s->stream), "event record") != 0)
        return -1;
    c->open = false;
    c->written++;
    return 0;
}

// With the lock held. Continues the span closed last if the device has not finished it, because then there is
// no gap. Otherwise a thread whose queue is often empty, but far ahead of the device, would fill the ring with
// short spans and then wait for the device.
static bool reopen_span(struct cuda_stream *s, bool wait) {
    struct cuda_clock *c = &s->clock;
    if (s->queue.head.dev->trace || wait || c->written == c->read) return false;
    const struct cuda_span *p = &c->ring[(c->written - 1) % CUDA_SPANS];
    if (p->wait || p->stamped || p->phase != s->queue.phase || cudaEventQuery(p->end) != cudaErrorNotReady)
        return false;
    cudaGetLastError();  // not an error, but CUDA stores it as one
    c->written--;
    c->open = true;
    return true;
}

// With the lock held. The slot before the oldest unread span is kept, because the next begin time is computed
// from its end.
static int open_span(struct cuda_stream *s, bool wait, const char *name, uint64_t tag) {
    struct cuda_clock *c = &s->clock;
    if (reopen_span(s, wait)) return 0;
    bool full = c->written - c->read >= CUDA_SPANS - 1;
    if (read_passed(s, full) != 0) return -1;
    struct cuda_span *p = &c->ring[c->written % CUDA_SPANS];
    p->given_ns = now_ns();
    if (cuda_check(s, cudaEventRecord(p->start, s->stream), "event record") != 0) return -1;
    p->phase = s->queue.phase;
    p->wait = wait;
    p->tag = tag;
    p->stamped = false;
    p->name = name;
    c->open = true;
    return 0;
}

int cuda_clock_begin(struct cuda_stream *s, const char *name) {
    int rc = 0;
    pthread_mutex_lock(&s->clock.lock);
    if (s->queue.head.dev->trace) rc = close_span(s);
    if (rc == 0 && !s->clock.open) rc = open_span(s, false, name, 0);
    pthread_mutex_unlock(&s->clock.lock);
    return rc;
}

int cuda_clock_begin_wait(struct cuda_stream *s, uint64_t tag) {
    pthread_mutex_lock(&s->clock.lock);
    int rc = close_span(s);
    if (rc == 0) rc = open_span(s, true, "wait", tag);
    pthread_mutex_unlock(&s->clock.lock);
    return rc;
}

// Stamps the end of what has run so far. If nothing has run since the last span, stamps an empty span.
int cuda_clock_stamp(struct cuda_stream *s, uint64_t tag) {
    struct cuda_clock *c = &s->clock;
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    if (c->dated && !c->open) rc = open_span(s, false, "", 0);
    if (rc == 0 && c->dated) {
        c->ring[c->written % CUDA_SPANS].stamped = true;
        c->ring[c->written % CUDA_SPANS].stamp = tag;
        rc = close_span(s);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

// Sets the anchor. With the lock held, on an idle stream: an event passes between two readings of the host's
// clock. The closest of several pairs is used, because the thread may be preempted between the readings.
static int set_anchor(struct cuda_stream *s) {
    struct cuda_clock *c = &s->clock;
    int64_t closest = INT64_MAX;
    for (int i = 0; i < ANCHOR_TRIES; i++) {
        int64_t before = now_ns();
        if (cuda_check(s, cudaEventRecord(c->spare, s->stream), "event record") != 0 ||
            cuda_check(s, cudaEventSynchronize(c->spare), "the first event") != 0)
            return -1;
        int64_t took = now_ns() - before;
        if (took >= closest) continue;
        cudaEvent_t better = c->spare;
        c->spare = c->anchor;
        c->anchor = better;
        c->anchor_ns = (double)before + (double)took / 2;
        closest = took;
    }
    return 0;
}

int cuda_clock_date(struct cuda_stream *s) {
    struct cuda_clock *c = &s->clock;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    if (!c->dated) {
        rc = read_passed(s, false);
        if (rc == 0) rc = set_anchor(s);
        c->anchored = c->read;
        c->dated = rc == 0;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int cuda_clock_end(struct cuda_stream *s) {
    pthread_mutex_lock(&s->clock.lock);
    int rc = close_span(s);
    pthread_mutex_unlock(&s->clock.lock);
    return rc;
}
