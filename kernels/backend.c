// Shared by all backends: thin wrappers over its table, the ledger, and names.
#include "kernels/backend_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *mem_class_name(enum mem_class c) {
    static const char *const names[MEM_CLASSES] = {
        [MEM_PARAMETER] = "parameter", [MEM_GRADIENT] = "gradient",     [MEM_MASTER] = "master",
        [MEM_OPTIMIZER] = "optimizer", [MEM_ACTIVATION] = "activation", [MEM_COMM] = "communication",
        [MEM_WORKSPACE] = "workspace", [MEM_SERVER] = "server",         [MEM_CHECKPOINT] = "checkpoint",
        [MEM_HOST] = "pinned",         [MEM_OFFLOAD] = "offload",
    };
    assert(c >= 0 && c < MEM_CLASSES);
    return names[c];
}

int backend_devices(const struct backend *b) { return b->devices(); }

// ---------------------------------------------------------------- device

int dev_open(const struct backend *b, const struct device_options *opt, struct device **out) {
    *out = NULL;
    return b->open(out, opt);
}

void dev_close(struct device **d) {
    if (!*d) return;
    (*d)->backend->close(*d);
    *d = NULL;
}

const struct backend *dev_backend(const struct device *d) { return d->backend; }
const char *dev_label(const struct device *d) { return d->label; }
size_t dev_memory_limit(const struct device *d) { return d->memory_bytes; }
bool dev_host_memory(const struct device *d) { return d->backend->host_memory; }

int dev_reach(struct device *d, struct device *peer) {
    if (d->backend != peer->backend) return d->backend->host_memory && peer->backend->host_memory ? 0 : -1;
    return d->backend->reach(d, peer);
}

int dev_facts(struct device *d, struct device_facts *out) {
    if (!d->backend->facts || d->backend->facts(d, out) != 0) return -1;
    out->note_count = dev_notes(d);
    for (int i = 0; i < out->note_count; i++) out->notes[i] = dev_note(d, i, NULL);
    return 0;
}

// ---------------------------------------------------------------- memory

// Whether the limit of the device's options leaves room. Two concurrent calls may both return true for the same
// room, so a rank allocates from one thread.
static bool within_limit(struct device *d, enum mem_class c, size_t bytes) {
    size_t taken = 0;
    if (!d->memory_bytes || mem_class_is_host(c)) return true;
    pthread_mutex_lock(&d->lock);
    for (int k = 0; k < MEM_CLASSES; k++)
        if (!mem_class_is_host((enum mem_class)k)) taken += d->usage.current_bytes[k];
    pthread_mutex_unlock(&d->lock);
    return taken <= d->memory_bytes && bytes <= d->memory_bytes - taken;
}

void *dev_alloc(struct device *d, enum mem_class c, size_t bytes) {
    assert(c >= 0 && c < MEM_CLASSES);
    if (!bytes || bytes > SIZE_MAX - DEV_ALIGN) return NULL;
    size_t rounded = dev_round(bytes);
    if (!within_limit(d, c, rounded)) return NULL;
    void *p = c == MEM_OFFLOAD ? aligned_alloc(DEV_ALIGN, rounded)
                               : (c == MEM_HOST ? d->backend->host_alloc : d->backend->alloc)(d, rounded);
    // Touched here, by the thread that will use it, so that the first step does not have to.
    if (p && c == MEM_OFFLOAD) memset(p, 0, rounded);
    if (p) dev_count(d, c, bytes);
    return p;
}

void dev_count(struct device *d, enum mem_class c, size_t bytes) {
    pthread_mutex_lock(&d->lock);
    size_t now = d->usage.current_bytes[c] += dev_round(bytes);
    if (now > d->usage.peak_bytes[c]) d->usage.peak_bytes[c] = now;
    d->usage.allocations++;
    pthread_mutex_unlock(&d->lock);
}

void dev_uncount(struct device *d, enum mem_class c, size_t bytes) {
    pthread_mutex_lock(&d->lock);
    assert(d->usage.current_bytes[c] >= dev_round(bytes));
    d->usage.current_bytes[c] -= dev_round(bytes);
    pthread_mutex_unlock(&d->lock);
}

void dev_free(struct device *d, enum mem_class c, void *p, size_t bytes) {
    if (!p) return;
    dev_uncount(d, c, bytes);
    if (c == MEM_OFFLOAD)
        free(p);
    else
        (c == MEM_HOST ? d->backend->host_free : d->backend->free)(d, p, dev_round(bytes));
}

int dev_host_register(struct device *d, void *p, size_t bytes, const char **why) {
    if (!d->backend->host_register) return 0;
    if (d->backend->host_register(d, p, bytes, why) != 0) return -1;
    dev_count(d, MEM_HOST, bytes);
    return 0;
}

void dev_host_unregister(struct device *d, void *p, size_t bytes) {
    if (!d->backend->host_register) return;
    d->backend->host_unregister(d, p);
    dev_uncount(d, MEM_HOST, bytes);
}

void dev_usage(struct device *d, struct mem_usage *out) {
    pthread_mutex_lock(&d->lock);
    *out = d->usage;
    pthread_mutex_unlock(&d->lock);
}

// ---------------------------------------------------------------- streams and events

struct stream *stream_create(struct device *d, const char *name) {
    return d->backend->stream_create(d, name);
}

void stream_destroy(struct stream **s) {
    if (!*s) return;
    (*s)->dev->backend->stream_destroy(*s);
    *s = NULL;
}

struct device *stream_device(struct stream *s) {
    return s->dev;
}

void dev_launch(struct stream *s, enum op op, const void *args, size_t args_bytes) {
    assert(op >= 0 && op < OP_COUNT);
    s->dev->backend->launch(s, op, args, args_bytes);
}

void dev_copy(struct stream *s, void *dst, const void *src, size_t bytes) {
    if (bytes) s->dev->backend->copy(s, dst, src, bytes);
}

void stream_host(struct stream *s, const char *name, int (*fn)(void *arg), void *arg) {
    s->dev->backend->host(s, name, fn, arg);
}

void stream_submit(struct stream *s, const char *name, int (*fn)(void *arg), void *arg) {
    s->dev->backend->submit(s, name, fn, arg);
}

void stream_phase(struct stream *s, enum phase phase) {
    assert(phase >= 0 && phase < PHASES);
    s->dev->backend->phase(s, phase);
}

int stream_sync(struct stream *s) {
    atomic_fetch_add(&s->dev->host_waits, 1);
    device_wait_note(s->dev, true);
    int rc = s->dev->backend->sync(s);
    device_wait_note(s->dev, false);
    return rc;
}

int stream_log(struct stream *s, size_t room, bool stamps_only) {
    return s->dev->backend->log(s, room, stamps_only);
}

size_t stream_take_log(struct stream *s, struct span *out, size_t room, uint64_t *lost) {
    return s->dev->backend->take_log(s, out, room, lost);
}

void stream_stamp(struct stream *s, uint64_t tag) { s->dev->backend->stamp(s, tag); }

void stream_get_times(struct stream *s, struct stream_times *out) { s->dev->backend->times(s, out); }

struct event *event_create(struct device *d) {
    return d->backend->event_create(d);
}

void event_destroy(struct event **e) {
    if (!*e) return;
    (*e)->dev->backend->event_destroy(*e);
    *e = NULL;
}

void event_record(struct event *e, struct stream *s) { s->dev->backend->event_record(e, s); }
void stream_wait_event(struct stream *s, struct event *e) { stream_wait_tagged(s, e, 0); }
void stream_wait_tagged(struct stream *s, struct event *e, uint64_t tag) {
    s->dev->backend->wait_event(s, e, tag);
}
int event_passed(struct event *e) { return e->dev->backend->event_passed(e); }
uint64_t dev_host_waits(struct device *d) { return atomic_load(&d->host_waits); }

int event_sync(struct event *e) {
    atomic_fetch_add(&e->dev->host_waits, 1);
    device_wait_note(e->dev, true);
    int rc = e->dev->backend->event_sync(e);
    device_wait_note(e->dev, false);
    return rc;
}

const struct spans *dev_spans(struct device *d, int i, const char **stream) {
    return d->backend->spans(d, i, stream);
}

const char *phase_name(enum phase p) {
    static const char *const names[PHASES] = {"other", "data", "forward", "backward", "optimizer", "comm"};
    return names[p];
}
