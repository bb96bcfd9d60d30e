// The two implementations of a lane. io_uring receives the pieces of a call together. Threads, for kernels that
// forbid io_uring, move one piece each at a time.
#include "shared/offload/disk_lane.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "shared/core/error.h"

// ---------------------------------------------------------------- pieces
// A piece in flight.
struct disk_piece {
    size_t at, bytes;  // offset in the transfer, and bytes still to be moved
};

static const struct disk_failure no_failure = {SIZE_MAX, 0};

// Applies the result of a system call (a count, or -errno) to a piece. Returns 1 if more of the piece remains, 0 if
// it is done, or -1 if it failed; *why keeps the failure with the lowest offset.
static int piece_done(struct disk_piece *p, const struct disk_transfer *t, long answer,
                      struct disk_failure *why) {
    if (answer == -EINTR || answer == -EAGAIN) return 1;
    if (answer > 0) {
        p->at += (size_t)answer;
        p->bytes -= (size_t)answer;
        if (!p->bytes) return 0;
        // O_DIRECT moves whole blocks, so a count that ends within a block has reached the end of the file.
        if (!t->direct || (size_t)answer % DISK_ALIGN == 0) return 1;
        answer = 0;
    }
    // Keeps the failure at the lowest offset. A write that moves nothing without an error counts as EIO, because a
    // retry might never end.
    if (t->offset + p->at < why->offset)
        *why = (struct disk_failure){t->offset + p->at, answer ? (int)-answer : t->write ? EIO : 0};
    return -1;
}

// ---------------------------------------------------------------- io_uring
// Several pieces are in flight, each in a slot. A completion frees its slot for the next piece.
struct uring {
    struct io_uring ring;
    size_t block_bytes;
    int depth, spare;           // the number of slots, and of free ones
    int broken;                 // errno, if the ring accepts no more calls; else 0
    int *free_slots;            // (depth) the first `spare` entries are the free slots
    struct disk_piece *pieces;  // (depth)
};

static struct disk_lane *uring_open(size_t block_bytes, int depth) {
    struct uring *l = xcalloc(1, sizeof *l);
    int rc = io_uring_queue_init((unsigned)depth, &l->ring, 0);
    if (rc < 0) {
        free(l);
        errno = -rc;
        return NULL;
    }
    l->block_bytes = block_bytes;
    l->depth = l->spare = depth;
    l->free_slots = xcalloc((unsigned long)depth, sizeof *l->free_slots);
    l->pieces = xcalloc((unsigned long)depth, sizeof *l->pieces);
    for (int i = 0; i < depth; i++) l->free_slots[i] = i;
    return (struct disk_lane *)l;
}

static void uring_close(struct disk_lane *lane) {
    struct uring *l = (struct uring *)lane;
    io_uring_queue_exit(&l->ring);
    free(l->free_slots);
    free(l->pieces);
    free(l);
}

static void uring_prepare(struct uring *l, const struct disk_transfer *t, int slot) {
    struct disk_piece *p = &l->pieces[slot];
    struct io_uring_sqe *e = io_uring_get_sqe(&l->ring);  // there are as many as slots
    if (t->write)
        io_uring_prep_write(e, t->fd, t->buf + p->at, (unsigned)p->bytes, t->offset + p->at);
    else
        io_uring_prep_read(e, t->fd, t->buf + p->at, (unsigned)p->bytes, t->offset + p->at);
    io_uring_sqe_set_data64(e, (unsigned long long)slot);
}

// Handles the completed pieces. Returns 0, or -1 with *why of the first byte that failed.
static int uring_reap(struct uring *l, const struct disk_transfer *t, bool resume, struct disk_failure *why) {
    struct io_uring_cqe *e;
    int rc = 0;
    while (io_uring_peek_cqe(&l->ring, &e) == 0) {
        int slot = (int)io_uring_cqe_get_data64(e);
        int more = piece_done(&l->pieces[slot], t, e->res, why);
        io_uring_cqe_seen(&l->ring, e);
        if (more < 0) rc = -1;
        if (more > 0 && resume && !rc)
            uring_prepare(l, t, slot);
        else
            l->free_slots[l->spare++] = slot;
    }
    return rc;
}

// Waits until the kernel has no piece in flight: the caller may free the memory after the call.
static void uring_drain(struct uring *l, const struct disk_transfer *t, struct disk_failure *why) {
    while (l->spare + (int)io_uring_sq_ready(&l->ring) < l->depth) {
        uring_reap(l, t, false, why);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static int uring_run(struct disk_lane *lane, const struct disk_transfer *t, struct disk_failure *why) {
    struct uring *l = (struct uring *)lane;
    size_t next = 0;
    int rc = 0;
    *why = no_failure;
    if (l->broken) {
        *why = (struct disk_failure){t->offset, l->broken};
        return -1;
    }
    while (l->spare < l->depth || (!rc && next < t->bytes)) {
        while (!rc && l->spare && next < t->bytes) {
            size_t left = t->bytes - next;
            int slot = l->free_slots[--l->spare];
            l->pieces[slot] = (struct disk_piece){next, left < l->block_bytes ? left : l->block_bytes};
            next += l->pieces[slot].bytes;
            uring_prepare(l, t, slot);
        }
        int sent = io_uring_submit_and_wait(&l->ring, 1);
        // The kernel is temporarily out of memory, or the call was interrupted: pieces in flight still complete.
        if (sent < 0 && sent != -EINTR && sent != -EAGAIN && sent != -EBUSY) {
            uring_drain(l, t, why);
            *why = (struct disk_failure){t->offset, l->broken = -sent};
            return -1;
        }
        if (uring_reap(l, t, !rc, why)) rc = -1;
    }
    return rc;
}

const struct disk_method disk_method_uring = {"io_uring", uring_open, uring_close, uring_run};

// ---------------------------------------------------------------- threads
#define THREADS_MAX 16

struct movers {
    size_t block_bytes;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    const struct disk_transfer *t;  // NULL: nothing to do
    size_t next;                    // the first byte that no thread has taken
    int busy;                       // how many threads are moving a piece
    int failed;
    struct disk_failure why;
    bool leave;
    int count;
    pthread_t threads[THREADS_MAX];
};

static void *work(void *arg) {
    struct movers *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->leave) {
        if (!l->t || l->failed || l->next >= l->t->bytes) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        const struct disk_transfer *t = l->t;
        size_t left = t->bytes - l->next;
        struct disk_piece p = {l->next, left < l->block_bytes ? left : l->block_bytes};
        struct disk_failure why = no_failure;
        int more = 1;
        l->next += p.bytes;
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        while (more > 0) {
            off_t at = (off_t)(t->offset + p.at);
            char *buf = t->buf + p.at;
            ssize_t n = t->write ? pwrite(t->fd, buf, p.bytes, at) : pread(t->fd, buf, p.bytes, at);
            more = piece_done(&p, t, n < 0 ? -errno : n, &why);
        }
        pthread_mutex_lock(&l->lock);
        l->busy--;
        if (more && why.offset < l->why.offset) l->why = why;
        l->failed |= more != 0;
        if (!l->busy) pthread_cond_signal(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static void threads_close(struct disk_lane *lane) {
    struct movers *l = (struct movers *)lane;
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

static struct disk_lane *threads_open(size_t block_bytes, int depth) {
    struct movers *l = xcalloc(1, sizeof *l);
    sigset_t all, before;
    int rc = 0;
    l->block_bytes = block_bytes;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    // The new threads block all signals: other threads handle them.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!rc && l->count < depth && l->count < THREADS_MAX)
        if (!(rc = pthread_create(&l->threads[l->count], NULL, work, l))) l->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (l->count) return (struct disk_lane *)l;  // fewer threads are slower, but suffice
    threads_close((struct disk_lane *)l);
    errno = rc;
    return NULL;
}

static int threads_run(struct disk_lane *lane, const struct disk_transfer *t, struct disk_failure *why) {
    struct movers *l = (struct movers *)lane;
    pthread_mutex_lock(&l->lock);
    l->t = t;
    l->next = 0;
    l->failed = 0;
    l->why = no_failure;
    pthread_cond_broadcast(&l->work);
    while (l->busy || (!l->failed && l->next < t->bytes)) pthread_cond_wait(&l->done, &l->lock);
    l->t = NULL;
    int rc = l->failed ? -1 : 0;
    if (rc) *why = l->why;
    pthread_mutex_unlock(&l->lock);
    return rc;
}

const struct disk_method disk_method_threads = {"pread and pwrite", threads_open, threads_close, threads_run};
