#include "shared/time/stall.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/time/gate.h"

// ---------------------------------------------------------------- the rules
bool stall_read(struct stall_reading *s, int64_t now, int64_t cpu, struct span *out) {
    struct stall_reading last = *s;
    *s = (struct stall_reading){now, cpu};
    int64_t late = now - last.now, got = cpu - last.cpu;
    if (!last.now || late < STALL_LEAST_NS || got > late / 2) return false;
    // The process is assumed to have used its processor time before the stall.
    *out = (struct span){.begin = last.now + got, .end = now};
    return span_length(out) >= STALL_LEAST_NS;
}

bool stall_read_thread(struct stall_thread_reading *s, int64_t now, int64_t waited, uint64_t runs,
                       struct span *out) {
    struct stall_thread_reading last = *s;
    *s = (struct stall_thread_reading){waited, runs, true};
    int64_t more = waited - last.waited;
    if (!last.known || runs == last.runs || more / (int64_t)(runs - last.runs) < STALL_LEAST_NS) return false;
    *out = (struct span){.begin = now - more, .end = now};
    return true;
}

// ---------------------------------------------------------------- of this process
struct kept {
    struct spans longest;  // id: the owner's address (STALL_THREAD)
    int64_t total;         // ns of all stalls of this kind
};

struct watched_thread {
    int fd;  // of its file schedstat
    const void *owner;
    struct stall_thread_reading runs;
};

struct stall_watch {
    pthread_t thread;
    atomic_bool quit;
    pthread_mutex_t lock;  // guards the fields below
    struct stall_reading process;
    int64_t gate_ns;  // gate_held_ns at the last reading
    struct watched_thread threads[STALL_THREADS];
    int thread_count;
    struct kept kept[STALL_KINDS];
};

static void keep(struct kept *k, struct span one, const void *owner) {
    one.id = (uintptr_t)owner;
    k->total += span_length(&one);
    spans_add(&k->longest, &one);
}

// Called with the lock held, so that threads read their clocks in order.
static void read_clocks(struct stall_watch *w) {
    struct span one;
    int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), now = now_ns(), gate_ns = gate_held_ns();
    if (gate_ns != w->gate_ns) w->process = (struct stall_reading){0};  // a wait at the gate is no stall
    w->gate_ns = gate_ns;
    for (int i = 0; i < w->thread_count; i++) {
        struct watched_thread *p = &w->threads[i];
        char text[96];
        int64_t waited;
        uint64_t runs;
        ssize_t n = pread(p->fd, text, sizeof text - 1, 0);  // fails once the thread has ended
        if (n <= 0) continue;
        text[n] = 0;
        if (sscanf(text, "%*s %" SCNd64 " %" SCNu64, &waited, &runs) != 2) continue;
        if (stall_read_thread(&p->runs, now, waited, runs, &one)) keep(&w->kept[STALL_THREAD], one, p->owner);
    }
    if (stall_read(&w->process, now, cpu, &one)) keep(&w->kept[STALL_PROCESS], one, NULL);
}

static void *watch_main(void *arg) {
    struct stall_watch *w = arg;
    while (!atomic_load(&w->quit)) {
        pthread_mutex_lock(&w->lock);
        read_clocks(w);
        pthread_mutex_unlock(&w->lock);
        nanosleep(&(struct timespec){.tv_nsec = STALL_TICK_NS}, NULL);
        if (!atomic_load(&w->quit)) gate_sleep();
    }
    return NULL;
}

static void watch_destroy(struct stall_watch *w) {
    for (int i = 0; i < w->thread_count; i++) close(w->threads[i].fd);
    for (int k = 0; k < STALL_KINDS; k++) spans_close(&w->kept[k].longest);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static struct stall_watch *watch_create(void) {
    struct stall_watch *w = xcalloc(1, sizeof *w);
    bool memory = true;
    atomic_init(&w->quit, false);
    pthread_mutex_init(&w->lock, NULL);
    for (int k = 0; k < STALL_KINDS; k++)
        memory = memory && spans_open(&w->kept[k].longest, STALLS, SPANS_LONGEST) == 0;
    if (memory && pthread_create(&w->thread, NULL, watch_main, w) == 0) return w;
    watch_destroy(w);
    fail(
        "cannot start the thread that records when this process is stalled: raise `ulimit -u`, or lower --threads");
    return NULL;
}

// The process's watch, and the number of its users. A stall concerns the whole process, so there is one watch.
static struct {
    pthread_mutex_t lock;
    struct stall_watch *watch;
    int users;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct stall_watch *stall_watch_open(void) {
    pthread_mutex_lock(&own.lock);
    if (!own.watch) own.watch = watch_create();
    if (own.watch) own.users++;
    struct stall_watch *w = own.watch;
    pthread_mutex_unlock(&own.lock);
    return w;
}

void stall_watch_close(struct stall_watch **watch) {
    if (!*watch) return;
    pthread_mutex_lock(&own.lock);
    if (--own.users == 0) {
        atomic_store(&own.watch->quit, true);
        pthread_join(own.watch->thread, NULL);
        watch_destroy(own.watch);
        own.watch = NULL;
    }
    pthread_mutex_unlock(&own.lock);
    *watch = NULL;
}

void stall_watch_thread(struct stall_watch *w, const void *owner, pid_t tid) {
    char path[64];
    if (!w) return;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)tid);
    pthread_mutex_lock(&w->lock);
    int fd = w->thread_count < STALL_THREADS ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) w->threads[w->thread_count++] = (struct watched_thread){.fd = fd, .owner = owner};
    pthread_mutex_unlock(&w->lock);
}

int64_t stall_total(struct stall_watch *w) {
    if (!w) return 0;
    pthread_mutex_lock(&w->lock);
    read_clocks(w);
    int64_t total = w->kept[STALL_PROCESS].total;
    pthread_mutex_unlock(&w->lock);
    return total;
}

size_t stall_list(struct stall_watch *w, enum stall_kind kind, const void *owner, int64_t since,
                  struct span *out, size_t room) {
    struct spans found = {.ring = out, .room = room, .kept = SPANS_LONGEST};
    if (!w || !room) return 0;
    pthread_mutex_lock(&w->lock);
    read_clocks(w);
    const struct spans *all = &w->kept[kind].longest;
    for (size_t i = 0; i < spans_count(all); i++) {
        const struct span *one = spans_at(all, i);
        if (one->end > since && (kind != STALL_THREAD || one->id == (uintptr_t)owner)) spans_add(&found, one);
    }
    pthread_mutex_unlock(&w->lock);
    spans_sort(&found);
    return spans_count(&found);
}
