// Transfers by threads that call pread and pwrite, each a piece at a time: for kernels that forbid io_uring.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/core/error.h"
#include "shared/offload/disk_lane.h"

#define THREADS_MAX 16

static const struct disk_trouble disk_trouble_none = {SIZE_MAX, 0};

struct lane {
    size_t block_bytes;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    const struct disk_transfer *t;  // NULL: nothing to do
    size_t next;                    // the first byte that no thread has taken
    int busy;                       // threads with a piece
    int failed;
    struct disk_trouble why;
    bool leave;
    int count;
    pthread_t threads[THREADS_MAX];
};

static int move(const struct disk_transfer *t, struct disk_piece p, struct disk_trouble *why) {
    for (;;) {
        off_t at = (off_t)(t->offset + p.at);
        ssize_t n =
            t->write ? pwrite(t->fd, t->buf + p.at, p.bytes, at) : pread(t->fd, t->buf + p.at, p.bytes, at);
        int more = disk_piece_done(&p, t, n < 0 ? -errno : n, why);
        if (more <= 0) return more;
    }
}

static void *work(void *arg) {
    struct lane *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->leave) {
        if (!l->t || l->failed || l->next >= l->t->bytes) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        const struct disk_transfer *t = l->t;
        size_t left = t->bytes - l->next;
        struct disk_piece p = {l->next, left < l->block_bytes ? left : l->block_bytes};
        struct disk_trouble why = disk_trouble_none;
        l->next += p.bytes;
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        int rc = move(t, p, &why);
        pthread_mutex_lock(&l->lock);
        l->busy--;
        if (rc && why.offset < l->why.offset) l->why = why;
        l->failed |= rc != 0;
        if (!l->busy) pthread_cond_signal(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void lane_close(struct disk_lane *lane) {
    struct lane *l = (struct lane *)lane;
    pthread_mutex_lock(&l->lock);
    l->leave = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->count; i++) pthread_join(l->threads[i], NULL);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static struct disk_lane *lane_open(size_t block_bytes, int depth) {
    struct lane *l = xcalloc(1, sizeof *l);
    sigset_t all, before;
    int rc = 0;
    l->block_bytes = block_bytes;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    // Signals belong to the threads that wait for them.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!rc && l->count < depth && l->count < THREADS_MAX)
        if (!(rc = pthread_create(&l->threads[l->count], NULL, work, l))) l->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (l->count) return (struct disk_lane *)l;  // fewer are slower, and do
    lane_close((struct disk_lane *)l);
    errno = rc;
    return NULL;
}

static int lane_run(struct disk_lane *lane, const struct disk_transfer *t, struct disk_trouble *why) {
    struct lane *l = (struct lane *)lane;
    pthread_mutex_lock(&l->lock);
    l->t = t;
    l->next = 0;
    l->failed = 0;
    l->why = disk_trouble_none;
    pthread_cond_broadcast(&l->work);
    while (l->busy || (!l->failed && l->next < t->bytes)) pthread_cond_wait(&l->done, &l->lock);
    l->t = NULL;
    int rc = l->failed ? -1 : 0;
    if (rc) *why = l->why;
    pthread_mutex_unlock(&l->lock);
    return rc;
}

const struct disk_way disk_way_threads = {"pread and pwrite", lane_open, lane_close, lane_run};
