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

// ---------------------------------------------------------------- the rules
bool stall_look(struct stall_looks *s, int64_t now, int64_t cpu, struct stall *out) {
    struct stall_looks last = *s;
    *s = (struct stall_looks){now, cpu};
    int64_t late = now - last.now, got = cpu - last.cpu;
    if (!last.now || late < STALL_LEAST_NS || got > late / 2) return false;
    // It was at work when it was stopped, rather than when it went on.
    *out = (struct stall){last.now + got, now};
    return out->end - out->begin >= STALL_LEAST_NS;
}

bool stall_look_turns(struct stall_turns *s, int64_t now, int64_t waited, uint64_t turns, struct stall *out) {
    struct stall_turns last = *s;
    *s = (struct stall_turns){waited, turns, true};
    int64_t more = waited - last.waited;
    if (!last.known || turns == last.turns || more / (int64_t)(turns - last.turns) < STALL_LEAST_NS)
        return false;
    *out = (struct stall){now - more, now};
    return true;
}

// ---------------------------------------------------------------- of this process
struct kept {
    struct stall list[STALLS];
    const void *owners[STALLS];  // of STALL_PART
    size_t count;
    int64_t total;
};

struct part {
    int fd;  // its schedstat
    const void *owner;
    struct stall_turns turns;
};

struct stall_watch {
    pthread_t thread;
    atomic_bool quit;
    pthread_mutex_t lock;  // guards what follows
    struct stall_looks looks;
    struct part parts[STALL_PARTS];
    int part_count;
    struct kept kept[STALL_KINDS];
};

static int64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t length(struct stall s) { return s.end - s.begin; }

static size_t shortest(const struct stall *list, size_t count) {
    size_t least = 0;
    for (size_t i = 1; i < count; i++)
        if (length(list[i]) < length(list[least])) least = i;
    return least;
}

// The place of a new one: the shortest makes room for a longer one. -1: it is the shortest.
static int64_t place_of(const struct stall *list, size_t *count, size_t room, struct stall one) {
    if (*count < room) return (int64_t)(*count)++;
    size_t least = shortest(list, room);
    return length(one) > length(list[least]) ? (int64_t)least : -1;
}

static void keep(struct kept *k, struct stall one, const void *owner) {
    int64_t at = place_of(k->list, &k->count, STALLS, one);
    k->total += length(one);
    if (at < 0) return;
    k->list[at] = one;
    k->owners[at] = owner;
}

// With the lock held, so that two threads look in the order of their clocks.
static void look(struct stall_watch *w) {
    struct stall one;
    int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), now = clock_ns(CLOCK_MONOTONIC);
    for (int i = 0; i < w->part_count; i++) {
        struct part *p = &w->parts[i];
        char text[96];
        int64_t waited;
        uint64_t turns;
        ssize_t n = pread(p->fd, text, sizeof text - 1, 0);  // fails once the thread has ended
        if (n <= 0) continue;
        text[n] = 0;
        if (sscanf(text, "%*s %" SCNd64 " %" SCNu64, &waited, &turns) != 2) continue;
        if (stall_look_turns(&p->turns, now, waited, turns, &one)) keep(&w->kept[STALL_PART], one, p->owner);
    }
    if (stall_look(&w->looks, now, cpu, &one)) keep(&w->kept[STALL_PROCESS], one, NULL);
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

static struct stall_watch *begin(void) {
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

static void end(struct stall_watch *w) {
    atomic_store(&w->quit, true);
    pthread_join(w->thread, NULL);
    for (int i = 0; i < w->part_count; i++) close(w->parts[i].fd);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

// The process's, and how many have it open. Standing still is the process's, so it has one watch.
static struct {
    pthread_mutex_t lock;
    struct stall_watch *watch;
    int users;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct stall_watch *stall_watch_open(void) {
    pthread_mutex_lock(&own.lock);
    if (!own.watch) own.watch = begin();
    if (own.watch) own.users++;
    struct stall_watch *w = own.watch;
    pthread_mutex_unlock(&own.lock);
    return w;
}

void stall_watch_close(struct stall_watch **watch) {
    if (!*watch) return;
    pthread_mutex_lock(&own.lock);
    if (--own.users == 0) {
        end(own.watch);
        own.watch = NULL;
    }
    pthread_mutex_unlock(&own.lock);
    *watch = NULL;
}

void stall_part(struct stall_watch *w, const void *owner, pid_t tid) {
    char path[64];
    if (!w) return;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", (int)tid);
    pthread_mutex_lock(&w->lock);
    int fd = w->part_count < STALL_PARTS ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) w->parts[w->part_count++] = (struct part){.fd = fd, .owner = owner};
    pthread_mutex_unlock(&w->lock);
}

int64_t stall_total(struct stall_watch *w) {
    if (!w) return 0;
    pthread_mutex_lock(&w->lock);
    look(w);
    int64_t total = w->kept[STALL_PROCESS].total;
    pthread_mutex_unlock(&w->lock);
    return total;
}

static int by_begin(const void *a, const void *b) {
    const struct stall *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

size_t stall_list(struct stall_watch *w, enum stall_kind kind, const void *owner, int64_t since,
                  struct stall *out, size_t room) {
    size_t n = 0;
    if (!w || !room) return 0;
    pthread_mutex_lock(&w->lock);
    look(w);
    const struct kept *k = &w->kept[kind];
    for (size_t i = 0; i < k->count; i++) {
        if (k->list[i].end <= since || (kind == STALL_PART && k->owners[i] != owner)) continue;
        int64_t at = place_of(out, &n, room, k->list[i]);
        if (at >= 0) out[at] = k->list[i];
    }
    pthread_mutex_unlock(&w->lock);
    qsort(out, n, sizeof *out, by_begin);
    return n;
}
