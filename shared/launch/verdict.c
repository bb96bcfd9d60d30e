#include "shared/launch/verdict.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/core/error.h"

struct item {
    struct item *next;
    char bytes[];
};

struct verdicts {
    pthread_mutex_t mutex;       // guards the lists
    struct item *deaths, *said;  // first in, first out
    int fd;
    _Atomic bool over;
    _Atomic int64_t step;
};

static void put(struct verdicts *v, struct item **at, const void *bytes, size_t size) {
    struct item *i = xcalloc(1, sizeof *i + size);
    memcpy(i->bytes, bytes, size);
    pthread_mutex_lock(&v->mutex);
    while (*at) at = &(*at)->next;
    *at = i;
    pthread_mutex_unlock(&v->mutex);
}

static bool take(struct verdicts *v, struct item **at, void *out, size_t size) {
    pthread_mutex_lock(&v->mutex);
    struct item *i = *at;
    if (i) *at = i->next;
    pthread_mutex_unlock(&v->mutex);
    if (!i) return false;
    memcpy(out, i->bytes, size);
    free(i);
    return true;
}

static void wake(const struct verdicts *v) {
    ssize_t written = write(v->fd, &(uint64_t){1}, sizeof(uint64_t));
    (void)written;  // fails where it is readable already
}

struct verdicts *verdicts_open(void) {
    struct verdicts *v = xcalloc(1, sizeof *v);
    *v = (struct verdicts){.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .step = -1};
    pthread_mutex_init(&v->mutex, NULL);
    if (v->fd >= 0) return v;
    fail("eventfd: %s", strerror(errno));
    verdicts_close(&v);
    return NULL;
}

void verdicts_close(struct verdicts **pv) {
    struct verdicts *v = *pv;
    if (!v) return;
    while (verdicts_death(v, &(struct death){0})) continue;
    while (verdicts_hear(v, &(struct verdict){0})) continue;
    if (v->fd >= 0) close(v->fd);
    pthread_mutex_destroy(&v->mutex);
    free(v);
    *pv = NULL;
}

void verdicts_tell(struct verdicts *v, const struct death *d) {
    put(v, &v->deaths, d, sizeof *d);
    wake(v);
}

void verdicts_over(struct verdicts *v, bool over) {
    if (atomic_exchange(&v->over, over) != over) wake(v);
}

bool verdicts_death(struct verdicts *v, struct death *out) {
    ssize_t got = read(v->fd, &(uint64_t){0}, sizeof(uint64_t));
    (void)got;
    return take(v, &v->deaths, out, sizeof *out);
}

bool verdicts_hear(struct verdicts *v, struct verdict *out) { return take(v, &v->said, out, sizeof *out); }
void verdicts_say(struct verdicts *v, const struct verdict *said) { put(v, &v->said, said, sizeof *said); }
int verdicts_fd(const struct verdicts *v) { return v->fd; }
bool verdicts_are_over(const struct verdicts *v) { return atomic_load(&v->over); }
void verdicts_set_step(struct verdicts *v, int64_t step) { atomic_store(&v->step, step); }
int64_t verdicts_step(const struct verdicts *v) { return atomic_load(&v->step); }
