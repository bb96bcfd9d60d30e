#include "ps/worker/staging.h"

#include <stdlib.h>

#include "shared/core/error.h"

struct staging {
    struct staging_options o;
    struct stream *push, *pull;
    // One event is enough, since the push stream's wait is enqueued right after each record.
    struct event *grad_done;
    struct event **copied;  // (units)
    uint64_t *put;          // (units) fills already enqueued; only the communication thread uses it
};

static size_t unit_bytes(const struct staging *s, int u) {
    return (size_t)s->o.layout->units[u].n_pad * dtype_size(s->o.dtype);
}

struct stream *staging_push_stream(const struct staging *s, struct stream *compute) {
    return s ? s->push : compute;
}

struct stream *staging_behind(struct staging *s, struct stream *compute) {
    if (!s) return compute;
    event_record(s->grad_done, compute);
    stream_wait_event(s->push, s->grad_done);
    return s->push;
}

void staging_fetch_grad(struct staging *s, int u, int64_t step) {
    if (!s) return;
    int at = worker_buffer(s->o.buffers, u, step);
    staging_behind(s, s->o.compute);
    dev_copy(s->push, s->o.buffers->wire_grads[at], s->o.buffers->pushes[at], s->o.buffers->push_bytes[u]);
}

int staging_load_weights(struct staging *s, int u) {
    if (!s) return 0;
    dev_copy(s->o.compute, s->o.buffers->weights[u], s->o.buffers->wire_weights[u], unit_bytes(s, u));
    return stream_sync(s->o.compute);
}

void staging_put_weights(struct staging *s, int u, uint64_t fills, struct transfer_ids ids) {
    if (!s || s->put[u] == fills) return;
    s->put[u] = fills;
    dev_copy(s->pull, s->o.buffers->weights[u], s->o.buffers->wire_weights[u], unit_bytes(s, u));
    event_record(s->copied[u], s->pull);
    timeline_stamp(ids.in, s->pull, ids.weights, TIMELINE_DONE);
}

void staging_await_weights(struct staging *s, int u, struct transfer_ids ids) {
    if (s) timeline_wait(ids.in, s->o.compute, s->copied[u], ids.weights);
}

int staging_watch(struct staging *s, struct timeline *tl) { return s ? timeline_watch(tl, s->pull) : 0; }

const char *staging_error(const struct staging *s) { return s ? dev_error(s->o.dev) : ""; }

void staging_destroy(struct staging **at) {
    struct staging *s = *at;
    if (!s) return;
    stream_destroy(&s->push);
    stream_destroy(&s->pull);
    event_destroy(&s->grad_done);
    for (int u = 0; u < s->o.buffers->units; u++) event_destroy(&s->copied[u]);
    free(s->copied);
    free(s->put);
    free(s);
    *at = NULL;
}

struct staging *staging_create(const struct staging_options *o) {
    struct staging *s = xcalloc(1, sizeof *s);
    s->o = *o;
    s->copied = xcalloc((unsigned long)o->buffers->units, sizeof *s->copied);
    s->put = xcalloc((unsigned long)o->buffers->units, sizeof *s->put);
    s->push = stream_create(o->dev, "push");
    s->pull = stream_create(o->dev, "pull");
    s->grad_done = event_create(o->dev);
    for (int u = 0; u < o->buffers->units; u++) s->copied[u] = event_create(o->dev);
    if (!s->push || !s->pull) {
        fail("cannot create the streams to and from the device: %s", dev_error(o->dev));
        staging_destroy(&s);
        return NULL;
    }
    stream_phase(s->push, PHASE_COMM);
    stream_phase(s->pull, PHASE_COMM);
    return s;
}
