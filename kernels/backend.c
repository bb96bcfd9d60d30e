// Shared by all backends: thin wrappers over their tables, the ledger, and names.
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

struct event *event_create(struct device *d) {
    return d->backend->event_create(d);
}

void event_destroy(struct event **e) {
    if (!*e) return;
    (*e)->dev->backend->event_destroy(*e);
    *e = NULL;
}

uint64_t dev_host_waits(struct device *d) { return atomic_load(&d->host_waits); }

const char *phase_name(enum phase p) {
    static const char *const names[PHASES] = {"other", "data", "forward", "backward", "optimizer", "comm"};
    return names[p];
}
