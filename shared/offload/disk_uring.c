// Transfers through io_uring: the pieces of one call are submitted together and each completion makes room for the next.
#include <errno.h>
#include <liburing.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "shared/core/error.h"
#include "shared/offload/disk_lane.h"

struct lane {
    struct io_uring ring;
    size_t block_bytes;
    int depth, spare;           // places without a piece on its way
    int broken;                 // errno of a ring that takes no calls any more
    int *places;                // (depth): the first `spare` of them
    struct disk_piece *pieces;  // (depth)
};

static struct disk_lane *lane_open(size_t block_bytes, int depth) {
    struct lane *l = xcalloc(1, sizeof *l);
    int rc = io_uring_queue_init((unsigned)depth, &l->ring, 0);
    if (rc < 0) {
        free(l);
        errno = -rc;
        return NULL;
    }
    l->block_bytes = block_bytes;
    l->depth = l->spare = depth;
    l->places = xcalloc((unsigned long)depth, sizeof *l->places);
    l->pieces = xcalloc((unsigned long)depth, sizeof *l->pieces);
    for (int i = 0; i < depth; i++) l->places[i] = i;
    return (struct disk_lane *)l;
}

static void lane_close(struct disk_lane *lane) {
    struct lane *l = (struct lane *)lane;
    io_uring_queue_exit(&l->ring);
    free(l->places);
    free(l->pieces);
    free(l);
}

static void prepare(struct lane *l, const struct disk_transfer *t, int place) {
    struct disk_piece *p = &l->pieces[place];
    struct io_uring_sqe *e = io_uring_get_sqe(&l->ring);  // there are as many as places
    if (t->write)
        io_uring_prep_write(e, t->fd, t->buf + p->at, (unsigned)p->bytes, t->offset + p->at);
    else
        io_uring_prep_read(e, t->fd, t->buf + p->at, (unsigned)p->bytes, t->offset + p->at);
    io_uring_sqe_set_data64(e, (unsigned long long)place);
}

// Takes what is complete. 0, or -1: *why of the first byte that failed.
static int reap(struct lane *l, const struct disk_transfer *t, bool go_on, struct disk_trouble *why) {
    struct io_uring_cqe *e;
    int rc = 0;
    while (io_uring_peek_cqe(&l->ring, &e) == 0) {
        int place = (int)io_uring_cqe_get_data64(e);
        int more = disk_piece_done(&l->pieces[place], t, e->res, why);
        io_uring_cqe_seen(&l->ring, e);
        if (more < 0) rc = -1;
        if (more > 0 && go_on && !rc)
            prepare(l, t, place);
        else
            l->places[l->spare++] = place;
    }
    return rc;
}

// Until nothing is under way that the kernel has taken: its memory is the caller's, who may free it.
static void drain(struct lane *l, const struct disk_transfer *t, struct disk_trouble *why) {
    while (l->spare + (int)io_uring_sq_ready(&l->ring) < l->depth) {
        reap(l, t, false, why);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static int lane_run(struct disk_lane *lane, const struct disk_transfer *t, struct disk_trouble *why) {
    struct lane *l = (struct lane *)lane;
    size_t next = 0;
    int rc = 0;
    *why = (struct disk_trouble){SIZE_MAX, 0};
    if (l->broken) {
        *why = (struct disk_trouble){t->offset, l->broken};
        return -1;
    }
    while (l->spare < l->depth || (!rc && next < t->bytes)) {
        while (!rc && l->spare && next < t->bytes) {
            size_t left = t->bytes - next;
            int place = l->places[--l->spare];
            l->pieces[place] = (struct disk_piece){next, left < l->block_bytes ? left : l->block_bytes};
            next += l->pieces[place].bytes;
            prepare(l, t, place);
        }
        int sent = io_uring_submit_and_wait(&l->ring, 1);
        // Out of memory for a moment, or interrupted: what is under way still completes.
        if (sent < 0 && sent != -EINTR && sent != -EAGAIN && sent != -EBUSY) {
            drain(l, t, why);
            *why = (struct disk_trouble){t->offset, l->broken = -sent};
            return -1;
        }
        if (reap(l, t, !rc, why)) rc = -1;
    }
    return rc;
}

const struct disk_way disk_way_uring = {"io_uring", lane_open, lane_close, lane_run};
