// Streams and events of the emulated driver. A stream is a queue with a thread that carries it out in order;
// those of two streams run whenever they like, later still with EMULATED_CUDA_DELAY_US.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/emulation/driver/driver_impl.h"

enum operation_kind { OPERATION_WORK, OPERATION_RECORD, OPERATION_WAIT };

struct operation {
    struct operation *next;
    enum operation_kind kind;
    uint64_t number;  // of the device's
    struct emu_work work;
    struct mark *mark;
};

struct CUstream_st {
    struct CUstream_st *next;  // of the device's
    int device;
    unsigned serial;  // which stream of the process
    pthread_t thread;
    pthread_cond_t work;
    struct operation *first, **last;  // first: under way, or the next one
    bool closing;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// With the lock held.
static void mark_drop(struct mark *m) {
    if (m && --m->refs == 0) free(m);
}

// ---------------------------------------------------------------- delays

static uint64_t mixed(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// A third of the streams is slow, a third a little, a third not at all: so that some fall far behind others.
static void delay(const struct CUstream_st *s, uint64_t number) {
    static const unsigned divisors[] = {1, 8, 0};
    if (!driver.delay_us) return;
    unsigned divisor = divisors[mixed(driver.delay_seed * 1000003 + s->serial) % 3];
    if (!divisor) return;
    uint64_t us =
        mixed(driver.delay_seed + s->serial * 7919 + number * 104729) % (driver.delay_us / divisor + 1);
    nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)},
              NULL);
}

// ---------------------------------------------------------------- the thread

static void run_work(const struct CUstream_st *s, struct operation *o, bool *inside) {
    const char *why = "";
    if (o->work.waits == *inside) {
        if (*inside)
            emu_memory_close();
        else
            emu_memory_open();
        *inside = !*inside;
    }
    int e = o->work.run(o->work.arg, &why);
    if (e == 0) return;
    driver_note("device %d: %s: %s", s->device, o->work.name, why);
    pthread_mutex_lock(&driver.lock);
    if (driver.device[s->device].error == cudaSuccess) driver.device[s->device].error = (cudaError_t)e;
    pthread_mutex_unlock(&driver.lock);
}

// Without the lock. Work that was enqueued after a failure does not run, but it ends.
static void run_operation(const struct CUstream_st *s, struct operation *o, bool *inside) {
    pthread_mutex_lock(&driver.lock);
    bool run = driver.device[s->device].error == cudaSuccess;
    pthread_mutex_unlock(&driver.lock);
    if (driver.delay_us && *inside) emu_memory_close();
    if (driver.delay_us) *inside = false;
    if (run) delay(s, o->number);
    if (o->kind != OPERATION_WORK) return;
    if (run) run_work(s, o, inside);
    if (o->work.drop) o->work.drop(o->work.arg);
}

// With the lock held.
static void end_operation(struct CUstream_st *s) {
    struct operation *o = s->first;
    if (o->kind == OPERATION_RECORD) {
        o->mark->passed = true;
        o->mark->at_s = now_s();
    }
    mark_drop(o->mark);
    s->first = o->next;
    if (!s->first) s->last = &s->first;
    free(o);
    driver_changed();
}

static void unlink_stream(struct CUstream_st *s) {
    struct CUstream_st **at = &driver.device[s->device].streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
}

// With the lock held, let go meanwhile.
static void close_memory(bool *inside) {
    if (!*inside) return;
    pthread_mutex_unlock(&driver.lock);
    emu_memory_close();
    *inside = false;
    pthread_mutex_lock(&driver.lock);
}

// Memory stays open from one operation to the next. Before the stream waits, and before anybody hears that it
// has done all, it is closed.
static void *stream_main(void *arg) {
    struct CUstream_st *s = arg;
    bool inside = false;
    memory_set_worker(s->device);
    pthread_mutex_lock(&driver.lock);
    while (s->first || !s->closing) {
        struct operation *o = s->first;
        if (!o) {
            pthread_cond_wait(&s->work, &driver.lock);
            continue;
        }
        if (o->kind == OPERATION_WAIT && !o->mark->passed) close_memory(&inside);
        while (o->kind == OPERATION_WAIT && !o->mark->passed) driver_await();
        pthread_mutex_unlock(&driver.lock);
        run_operation(s, o, &inside);
        pthread_mutex_lock(&driver.lock);
        if (!o->next) close_memory(&inside);
        end_operation(s);
    }
    unlink_stream(s);
    driver_changed();
    pthread_mutex_unlock(&driver.lock);
    if (inside) emu_memory_close();
    pthread_cond_destroy(&s->work);
    free(s);
    return NULL;
}

// ---------------------------------------------------------------- life

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags) {
    if (flags != cudaStreamNonBlocking) {
        driver_note("streams that wait for the default stream are not emulated: cudaStreamNonBlocking");
        return driver_said(cudaErrorInvalidValue);
    }
    struct CUstream_st *s = calloc(1, sizeof *s);
    driver_creates("cudaStreamCreate");
    if (!s) return driver_said(cudaErrorMemoryAllocation);
    s->device = driver_current();
    s->last = &s->first;
    pthread_cond_init(&s->work, NULL);
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(s->device);
    s->serial = driver.streams_made++;
    if (e == cudaSuccess && pthread_create(&s->thread, NULL, stream_main, s) != 0)
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        s->next = driver.device[s->device].streams;
        driver.device[s->device].streams = s;
        pthread_detach(s->thread);
    } else {
        free(s);
    }
    pthread_mutex_unlock(&driver.lock);
    *out = e == cudaSuccess ? s : NULL;
    return driver_said(e);
}

// Does not wait: the thread ends what is queued, then itself.
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(s->device);
    s->closing = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(e);
}

int emu_device_of(struct CUstream_st *s) { return s->device; }

// ---------------------------------------------------------------- enqueuing

// With the lock held. Takes the work and a reference to the mark. Returns its number.
static uint64_t enqueue(struct CUstream_st *s, struct operation *filled) {
    struct operation *o = malloc(sizeof *o);
    if (!o) abort();
    *o = *filled;
    o->number = ++driver.device[s->device].issued;
    *s->last = o;
    s->last = &o->next;
    pthread_cond_signal(&s->work);
    return o->number;
}

// With the lock held: s has done what it was given up to this number.
static void await_stream(struct CUstream_st *s, uint64_t number) {
    while (s->first && s->first->number <= number) driver_await();
}

cudaError_t stream_submit_work(struct CUstream_st *s, const struct emu_work *w, bool and_wait) {
    if (!s) {
        driver_note("%s: the default stream is not emulated", w->name);
        if (w->drop) w->drop(w->arg);
        return cudaErrorInvalidResourceHandle;
    }
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(s->device);
    if (e == cudaSuccess) {
        uint64_t number = enqueue(s, &(struct operation){.kind = OPERATION_WORK, .work = *w});
        if (and_wait) await_stream(s, number);
        if (and_wait) e = driver_state(s->device);
    } else if (w->drop) {
        w->drop(w->arg);
    }
    pthread_mutex_unlock(&driver.lock);
    return e;
}

void stream_drain(int device) {
    pthread_mutex_lock(&driver.lock);
    uint64_t number = driver.device[device].issued;
    struct CUstream_st *s = driver.device[device].streams;
    while (s) {
        if (s->first && s->first->number <= number) {
            driver_await();
            s = driver.device[device].streams;  // the list may have changed
        } else {
            s = s->next;
        }
    }
    pthread_mutex_unlock(&driver.lock);
}

bool stream_busy(int device) {
    bool busy = false;
    pthread_mutex_lock(&driver.lock);
    for (struct CUstream_st *s = driver.device[device].streams; s && !busy; s = s->next)
        busy = s->first != NULL;
    pthread_mutex_unlock(&driver.lock);
    return busy;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    count_wait();
    pthread_mutex_lock(&driver.lock);
    await_stream(s, driver.device[s->device].issued);
    cudaError_t e = driver_state(s->device);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(e);
}

// ---------------------------------------------------------------- events

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    struct CUevent_st *e = calloc(1, sizeof *e);
    driver_creates("cudaEventCreate");
    if (!e) return driver_said(cudaErrorMemoryAllocation);
    e->device = driver_current();
    *out = e;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e) {
    pthread_mutex_lock(&driver.lock);
    mark_drop(e->mark);
    cudaError_t state = driver_state(e->device);
    pthread_mutex_unlock(&driver.lock);
    free(e);
    return driver_said(state);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    if (e->device != s->device) {
        driver_note("cudaEventRecord: an event of device %d in a stream of device %d", e->device, s->device);
        return driver_said(cudaErrorInvalidResourceHandle);
    }
    struct mark *m = calloc(1, sizeof *m);
    if (!m) return driver_said(cudaErrorMemoryAllocation);
    m->refs = 2;
    pthread_mutex_lock(&driver.lock);
    mark_drop(e->mark);
    e->mark = m;
    enqueue(s, &(struct operation){.kind = OPERATION_RECORD, .mark = m});
    cudaError_t state = driver_state(s->device);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(state);
}

// For the latest record there is now; none: passes.
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&driver.lock);
    if (e->mark) {
        e->mark->refs++;
        enqueue(s, &(struct operation){.kind = OPERATION_WAIT, .mark = e->mark});
    }
    cudaError_t state = driver_state(s->device);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(state);
}

cudaError_t cudaEventQuery(cudaEvent_t e) {
    pthread_mutex_lock(&driver.lock);
    cudaError_t state = driver_state(e->device);
    if (state == cudaSuccess && e->mark && !e->mark->passed) state = cudaErrorNotReady;
    pthread_mutex_unlock(&driver.lock);
    return driver_said(state);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    count_wait();
    pthread_mutex_lock(&driver.lock);
    struct mark *m = e->mark;
    if (m) m->refs++;
    while (m && !m->passed) driver_await();
    mark_drop(m);
    cudaError_t state = driver_state(e->device);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(state);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    pthread_mutex_lock(&driver.lock);
    cudaError_t e = driver_state(to->device);
    if (e == cudaSuccess && (!from->mark || !to->mark || from->device != to->device))
        e = cudaErrorInvalidResourceHandle;
    else if (e == cudaSuccess && (!from->mark->passed || !to->mark->passed))
        e = cudaErrorNotReady;
    if (e == cudaSuccess) *ms = (float)((to->mark->at_s - from->mark->at_s) * 1e3);
    pthread_mutex_unlock(&driver.lock);
    return driver_said(e);
}
