#include "shared/time/stall.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "shared/core/error.h"

// ---------------------------------------------------------------- the rule
bool stall_look(struct stall_looks *s, int64_t now, int64_t cpu, struct stall *out) {
    struct stall_looks last = *s;
    *s = (struct stall_looks){now, cpu};
    int64_t late = now - last.now, got = cpu - last.cpu;
    if (!last.now || late < STALL_LEAST_NS || got > late / 2) return false;
    // It was at work when it was stopped, rather than when it went on.
    *out = (struct stall){last.now + got, now};
    return out->end - out->begin >= STALL_LEAST_NS;
}

// ---------------------------------------------------------------- of this process
struct stall_watch {
    pthread_t thread;
    atomic_bool quit;
    pthread_mutex_t lock;  // guards what follows
    struct stall_looks looks;
    struct stall kept[STALLS];
    uint64_t count;
    int64_t total;
};

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// With the lock held, so that two threads look in the order of their clocks.
static void look(struct stall_watch *w) {
    struct stall one;
    int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), now = clock_ns(CLOCK_MONOTONIC);
    if (!stall_look(&w->looks, now, cpu, &one)) return;
    w->kept[w->count++ % STALLS] = one;
    w->total += one.end - one.begin;
}

static void *watch_main(void *arg) {
    struct stall_watch *w = arg;
    while (!atomic_load(&w->quit)) {
        pthread_mutex_lock(&w->lock);
        look(w);
        pthread_mutex_unlock(&w->lock);
        nanosleep(&(struct timespec){.tv_nsec = STALL_TICK_NS}, NULL);
    }
    return NULL;
}

struct stall_watch *stall_watch_create(void) {
    struct stall_watch *w = xcalloc(1, sizeof *w);
    atomic_init(&w->quit, false);
    pthread_mutex_init(&w->lock, NULL);
    if (pthread_create(&w->thread, NULL, watch_main, w) == 0) return w;
    pthread_mutex_destroy(&w->lock);
    free(w);
    fail(
        "cannot start the thread that notes when this process stands still: raise `ulimit -u`, or lower --threads");
    return NULL;
}

void stall_watch_destroy(struct stall_watch **watch) {
    struct stall_watch *w = *watch;
    if (!w) return;
    atomic_store(&w->quit, true);
    pthread_join(w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    free(w);
    *watch = NULL;
}

int64_t stall_total(struct stall_watch *w) {
    if (!w) return 0;
    pthread_mutex_lock(&w->lock);
    look(w);
    int64_t total = w->total;
    pthread_mutex_unlock(&w->lock);
    return total;
}

static uint64_t oldest(const struct stall_watch *w) { return w->count > STALLS ? w->count - STALLS : 0; }

int64_t stall_within(struct stall_watch *w, int64_t begin, int64_t end) {
    int64_t sum = 0;
    if (!w) return 0;
    pthread_mutex_lock(&w->lock);
    look(w);
    for (uint64_t i = w->count; i > oldest(w) && w->kept[(i - 1) % STALLS].end > begin; i--) {
        const struct stall *s = &w->kept[(i - 1) % STALLS];
        int64_t from = s->begin > begin ? s->begin : begin, to = s->end < end ? s->end : end;
        if (to > from) sum += to - from;
    }
    pthread_mutex_unlock(&w->lock);
    return sum;
}

static int64_t length(struct stall s) { return s.end - s.begin; }

size_t stall_list(struct stall_watch *w, int64_t since, struct stall *out, size_t room) {
    size_t n = 0;
    if (!w || !room) return 0;
    pthread_mutex_lock(&w->lock);
    look(w);
    uint64_t first = w->count;
    while (first > oldest(w) && w->kept[(first - 1) % STALLS].end > since) first--;
    for (uint64_t i = first; i < w->count; i++) {
        if (n == room) {  // the shortest of those so far, and of this one, makes room
            size_t least = 0;
            for (size_t j = 1; j < n; j++)
                if (length(out[j]) < length(out[least])) least = j;
            if (length(w->kept[i % STALLS]) <= length(out[least])) continue;
            for (size_t j = least; j + 1 < n; j++) out[j] = out[j + 1];
            n--;
        }
        out[n++] = w->kept[i % STALLS];
    }
    pthread_mutex_unlock(&w->lock);
    return n;
}
