// The eleven primitives as exchanges between peers; see the header.
#include "decentral/collective/collective_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define CHUNK_BYTES ((size_t)1 << 20)

// Whose elements of everyone's send each rank sums: [begin(i), end(i)).
struct reduce_plan {
    size_t begin[REDUCE_MAX], end[REDUCE_MAX];
    void *out;  // of this rank's piece
};

void exchanger_init(struct exchanger *x, const struct collective_options *o) {
    unsigned long size = (unsigned long)x->impl.head.size;
    x->transfers = xcalloc(size, sizeof *x->transfers);
    x->inputs = xcalloc(size, sizeof *x->inputs);
    x->staging = o->staging;
    x->staging_bytes = o->staging_bytes;
    x->host = o->host_staging;
    x->host_bytes = o->host_staging_bytes;
}

void exchanger_fini(struct exchanger *x) {
    free(x->transfers);
    free(x->inputs);
}

static size_t chunk_bytes(size_t max_count, enum dtype dt) {
    size_t bytes = dev_round(max_count * dtype_size(dt));
    return bytes < CHUNK_BYTES ? bytes : CHUNK_BYTES;
}

size_t exchange_staging_bytes(int size, size_t max_count, enum dtype dt) {
    return (size_t)(size - 1) * chunk_bytes(max_count, dt);
}

size_t exchange_host_bytes(int size, size_t max_count, enum dtype dt) {
    return 2 * (size_t)size * chunk_bytes(max_count, dt);
}

static void clear_transfers(struct exchanger *x) {
    memset(x->transfers, 0, (size_t)x->impl.head.size * sizeof *x->transfers);
}

static void copy(void *dst, const void *src, size_t bytes) {
    if (dst != src && bytes) memmove(dst, src, bytes);
}

// ---------------------------------------------------------------- reductions in rank order

// Elements of [done, done + slot) that lie in rank i's piece.
static size_t chunk_of(const struct reduce_plan *p, int i, size_t done, size_t slot) {
    size_t piece = p->end[i] - p->begin[i];
    if (piece <= done) return 0;
    return piece - done < slot ? piece - done : slot;
}

// out = the sum of n elements from `done` on of the own piece: peers' from staging, the own in place.
static int sum_chunk(struct exchanger *x, const struct collective_call *c, const struct reduce_plan *p,
                     size_t done, size_t n) {
    int rank = x->impl.head.rank;
    size_t e = dtype_size(c->dt);
    if (n == 0) return 0;
    for (int i = 0; i < x->impl.head.size; i++)
        x->inputs[i] = i == rank ? (const char *)c->send + (p->begin[rank] + done) * e : x->transfers[i].recv;
    return collective_sum(&x->impl, (char *)p->out + done * e, x->inputs, (int64_t)n, c->dt);
}

static int reduce_pieces(struct exchanger *x, const struct collective_call *c, const struct reduce_plan *p) {
    int size = x->impl.head.size, rank = x->impl.head.rank;
    size_t e = dtype_size(c->dt), longest = 0;
    size_t slot = size > 1 ? x->staging_bytes / (size_t)(size - 1) / DEV_ALIGN * DEV_ALIGN / e : c->count;
    for (int i = 0; i < size; i++)
        if (p->end[i] - p->begin[i] > longest) longest = p->end[i] - p->begin[i];
    for (size_t done = 0; done < longest; done += slot) {
        size_t n = chunk_of(p, rank, done, slot);
        clear_transfers(x);
        for (int i = 0, k = 0; i < size; i++) {
            if (i == rank) continue;
            x->transfers[i] = (struct transfer){
                .send = (const char *)c->send + (p->begin[i] + done) * e,
                .send_bytes = chunk_of(p, i, done, slot) * e,
                .recv = x->staging + (size_t)k++ * slot * e,
                .recv_bytes = n * e,
            };
        }
        if (x->exchange(x, c->op) != 0) return -1;
        if (sum_chunk(x, c, p, done, n) != 0) return -1;
    }
    return 0;
}

static int run_reduce(struct exchanger *x, const struct collective_call *c) {
    struct reduce_plan p = {.out = c->recv};
    p.end[c->root] = c->count;
    return reduce_pieces(x, c, &p);
}

static int run_reduce_scatter(struct exchanger *x, const struct collective_call *c) {
    struct reduce_plan p = {.out = c->recv};
    for (int i = 0; i < x->impl.head.size; i++) {
        p.begin[i] = (size_t)i * c->count;
        p.end[i] = p.begin[i] + c->count;
    }
    return reduce_pieces(x, c, &p);
}

// Pieces are summed where they belong, then gathered. In place (send == recv) that is safe: a rank's pieces
// are overwritten only by the gathering, and all its sends have completed by then.
static int run_all_reduce(struct exchanger *x, const struct collective_call *c) {
    int size = x->impl.head.size, rank = x->impl.head.rank;
    size_t e = dtype_size(c->dt);
    struct reduce_plan p = {0};
    for (int i = 0; i < size; i++) {
        p.begin[i] = collective_piece_begin(c->count, size, i);
        p.end[i] = collective_piece_begin(c->count, size, i + 1);
    }
    char *recv = c->recv;
    p.out = recv + p.begin[rank] * e;
    if (reduce_pieces(x, c, &p) != 0) return -1;
    clear_transfers(x);
    for (int i = 0; i < size; i++) {
        if (i == rank) continue;
        x->transfers[i] = (struct transfer){
            .send = p.out,
            .send_bytes = (p.end[rank] - p.begin[rank]) * e,
            .recv = recv + p.begin[i] * e,
            .recv_bytes = (p.end[i] - p.begin[i]) * e,
        };
    }
    return x->exchange(x, c->op);
}

// ---------------------------------------------------------------- plain moves

// transfers[i] for the ops between one root and all others. spread: the root's side is (size*count).
static void plan_rooted(struct exchanger *x, const struct collective_call *c, bool to_root, bool spread) {
    int size = x->impl.head.size, rank = x->impl.head.rank;
    size_t bytes = c->count * dtype_size(c->dt);
    const char *send = c->send;
    char *recv = c->recv;
    if (rank != c->root) {
        x->transfers[c->root] = to_root ? (struct transfer){.send = send, .send_bytes = bytes}
                                        : (struct transfer){.recv = recv, .recv_bytes = bytes};
        return;
    }
    for (int i = 0; i < size; i++) {
        size_t at = spread ? (size_t)i * bytes : 0;
        if (i == rank) {
            copy(to_root ? recv + at : recv, to_root ? send : send + at, bytes);
            continue;
        }
        x->transfers[i] = to_root ? (struct transfer){.recv = recv + at, .recv_bytes = bytes}
                                  : (struct transfer){.send = send + at, .send_bytes = bytes};
    }
}

// Every rank with every rank. spread: a different piece of send for each.
static void plan_all(struct exchanger *x, const struct collective_call *c, bool spread) {
    int size = x->impl.head.size, rank = x->impl.head.rank;
    size_t bytes = c->count * dtype_size(c->dt);
    for (int i = 0; i < size; i++) {
        const char *send = (const char *)c->send + (spread ? (size_t)i * bytes : 0);
        char *recv = (char *)c->recv + (size_t)i * bytes;
        if (i == rank)
            copy(recv, send, bytes);
        else
            x->transfers[i] =
                (struct transfer){.send = send, .recv = recv, .send_bytes = bytes, .recv_bytes = bytes};
    }
}

static int run_barrier(struct exchanger *x) {
    char out = 1, in[REDUCE_MAX];
    for (int i = 0; i < x->impl.head.size; i++)
        if (i != x->impl.head.rank)
            x->transfers[i] =
                (struct transfer){.send = &out, .recv = &in[i], .send_bytes = 1, .recv_bytes = 1};
    return x->exchange(x, COLLECTIVE_BARRIER);
}

int exchange_run(struct exchanger *x, const struct collective_call *c) {
    size_t bytes = c->count * dtype_size(c->dt);
    clear_transfers(x);
    switch (c->op) {
        case COLLECTIVE_REDUCE:
            return run_reduce(x, c);
        case COLLECTIVE_ALL_REDUCE:
            return run_all_reduce(x, c);
        case COLLECTIVE_REDUCE_SCATTER:
            return run_reduce_scatter(x, c);
        case COLLECTIVE_BROADCAST:
            plan_rooted(x, c, false, false);
            break;
        case COLLECTIVE_SCATTER:
            plan_rooted(x, c, false, true);
            break;
        case COLLECTIVE_GATHER:
            plan_rooted(x, c, true, true);
            break;
        case COLLECTIVE_ALL_GATHER:
            plan_all(x, c, false);
            break;
        case COLLECTIVE_ALL_TO_ALL:
            plan_all(x, c, true);
            break;
        case COLLECTIVE_SEND:
            x->transfers[c->root] = (struct transfer){.send = c->send, .send_bytes = bytes};
            break;
        case COLLECTIVE_RECV:
            x->transfers[c->root] = (struct transfer){.recv = c->recv, .recv_bytes = bytes};
            break;
        case COLLECTIVE_BARRIER:
            return run_barrier(x);
        case COLLECTIVE_OPS:
            return 0;
    }
    return x->exchange(x, c->op);
}
