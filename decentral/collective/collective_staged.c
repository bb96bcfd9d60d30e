// Calls on device memory as calls on page-locked host memory; see collective_exchange.h.
#include "decentral/collective/collective_exchange.h"

// How many blocks of count elements a rank's send and recv have; 0: it has none, or it is not used.
struct blocks {
    size_t send, recv;
};

static struct blocks blocks_of(const struct collective_call *c, int rank, int size) {
    bool root = rank == c->root;
    size_t all = (size_t)size;
    switch (c->op) {
        case COLLECTIVE_BROADCAST:
            return root ? (struct blocks){1, 0} : (struct blocks){0, 1};
        case COLLECTIVE_SCATTER:
            return (struct blocks){root ? all : 0, 1};
        case COLLECTIVE_REDUCE:
            return (struct blocks){1, root};
        case COLLECTIVE_ALL_REDUCE:
            return (struct blocks){1, 1};
        case COLLECTIVE_GATHER:
            return (struct blocks){1, root ? all : 0};
        case COLLECTIVE_ALL_GATHER:
            return (struct blocks){1, all};
        case COLLECTIVE_REDUCE_SCATTER:
            return (struct blocks){all, 1};
        case COLLECTIVE_ALL_TO_ALL:
            return (struct blocks){all, all};
        case COLLECTIVE_SEND:
            return (struct blocks){1, 0};
        case COLLECTIVE_RECV:
            return (struct blocks){0, 1};
        case COLLECTIVE_BARRIER:
        case COLLECTIVE_OPS:
            break;
    }
    return (struct blocks){0, 0};
}

// Elements of a block in one chunk. The pieces of an all_reduce stay those of the whole call: every rank
// moves the same bytes as without chunks.
static size_t chunk_of(const struct exchanger *x, const struct collective_call *c) {
    size_t size = (size_t)x->impl.head.size;
    size_t n = x->host_bytes / (2 * size) / DEV_ALIGN * DEV_ALIGN / dtype_size(c->dt);
    if (c->op == COLLECTIVE_ALL_REDUCE && n >= size) n -= n % size;
    return n;
}

// The host copies of what the device had at `done`, and all that was copied before has landed.
static int fetch(struct exchanger *x, struct stream *s, const struct collective_call *c, size_t send_blocks,
                 size_t done, size_t n) {
    size_t e = dtype_size(c->dt);
    for (size_t i = 0; i < send_blocks; i++)
        dev_copy(s, x->host + i * n * e, (const char *)c->send + (i * c->count + done) * e, n * e);
    if (stream_sync(s) == 0) return 0;
    return collective_impl_fail(&x->impl, "%s: copying to the host failed: %s", collective_op_name(c->op),
                                dev_error(stream_device(s)));
}

int exchange_staged(struct exchanger *x, struct stream *s, const struct collective_call *c,
                    int (*run)(struct exchanger *x, const struct collective_call *c)) {
    struct blocks b = blocks_of(c, x->impl.head.rank, x->impl.head.size);
    size_t e = dtype_size(c->dt), most = chunk_of(x, c);
    if (c->op == COLLECTIVE_BARRIER) return run(x, c);
    for (size_t done = 0; done < c->count; done += most) {
        size_t n = c->count - done < most ? c->count - done : most;
        char *received = x->host + b.send * n * e, *rest = received + b.recv * n * e;
        struct collective_call chunk = {c->op, c->dt, c->root, n, x->host, received};
        if (c->op == COLLECTIVE_BROADCAST) chunk.send = chunk.recv = x->host;
        x->staging = x->host + dev_round((size_t)(rest - x->host));
        x->staging_bytes = x->host_bytes - (size_t)(x->staging - x->host);
        if (fetch(x, s, c, b.send, done, n) != 0 || run(x, &chunk) != 0) return -1;
        for (size_t i = 0; i < b.recv; i++)
            dev_copy(s, (char *)c->recv + (i * c->count + done) * e, received + i * n * e, n * e);
    }
    return 0;
}
