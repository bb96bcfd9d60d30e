// The functions of struct device that all backends share. They have no state, so the CUDA object contains a
// copy and need not call back into the program.
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend_impl.h"

void device_init(struct device *d, const struct backend *b, const struct device_options *opt) {
    d->backend = b;
    snprintf(d->label, sizeof d->label, "%s", opt && opt->label ? opt->label : "");
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    d->threads = opt && opt->threads > 0 ? opt->threads : cores > 0 ? (int)cores : 1;
    d->trace = opt && opt->trace;
    d->memory_bytes = opt ? opt->memory_bytes : 0;
    pthread_mutex_init(&d->lock, NULL);
    memset(&d->usage, 0, sizeof d->usage);
    atomic_init(&d->failed, false);
    atomic_init(&d->host_waits, 0);
    atomic_init(&d->host_waiting, 0);
    d->has_host = opt && opt->watch_host;
    d->host = pthread_self();
    d->error[0] = 0;
    d->note_count = 0;
    d->queues = NULL;
    d->live_queues = 0;
}

void device_fini(struct device *d) {
    for (int i = 0; i < d->note_count; i++) free(d->notes[i].text);
    d->note_count = 0;
    pthread_mutex_destroy(&d->lock);
}

void device_wait_note(struct device *d, bool waits) {
    if (d->has_host && pthread_equal(d->host, pthread_self()))
        atomic_fetch_add(&d->host_waiting, waits ? 1 : -1);
}

void device_fail(struct device *d, const char *fmt, ...) {
    pthread_mutex_lock(&d->lock);
    if (!atomic_load_explicit(&d->failed, memory_order_relaxed)) {
        int n = d->label[0] ? snprintf(d->error, sizeof d->error, "[%s] ", d->label) : 0;
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(d->error + n, sizeof d->error - (size_t)n, fmt, ap);
        va_end(ap);
        atomic_store_explicit(&d->failed, true, memory_order_release);
    }
    pthread_mutex_unlock(&d->lock);
}

const char *dev_error(struct device *d) {
    return atomic_load_explicit(&d->failed, memory_order_acquire) ? d->error : "";
}

void device_note(struct device *d, enum dev_note_kind kind, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&d->lock);
    bool known = false;
    for (int i = 0; i < d->note_count; i++) known |= strcmp(d->notes[i].text, text) == 0;
    bool last = d->note_count == DEV_NOTES_MAX - 1;
    char *copy = known || d->note_count == DEV_NOTES_MAX ? NULL
                 : last                                  ? strdup("more remarks are left out")
                                                         : strdup(text);
    if (copy) {
        d->notes[d->note_count].kind = kind;
        d->notes[d->note_count++].text = copy;
    }
    pthread_mutex_unlock(&d->lock);
}

int dev_notes(struct device *d) {
    pthread_mutex_lock(&d->lock);
    int count = d->note_count;
    pthread_mutex_unlock(&d->lock);
    return count;
}

const char *dev_note(struct device *d, int i, enum dev_note_kind *kind) {
    pthread_mutex_lock(&d->lock);
    assert(i >= 0 && i < d->note_count);
    const char *text = d->notes[i].text;
    if (kind) *kind = d->notes[i].kind;
    pthread_mutex_unlock(&d->lock);
    return text;
}
