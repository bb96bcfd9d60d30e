#include "decentral/collective/collective_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define CHUNK_BYTES ((size_t)1 << 20)

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

size_t exchange_staging_bytes(int size, size_t max_count, enum dtype dt) {
    return collective_staging_bytes(size, max_count, dt, CHUNK_BYTES);
}

size_t exchange_host_bytes(int size, size_t max_count, enum dtype dt) {
    return 2 * (size_t)size * collective_staging_bytes(2, max_count, dt, CHUNK_BYTES);
}

// ---------------------------------------------------------------- on host memory
static int run_barrier(struct exchanger *x) {
    char out = 1, in[REDUCE_MAX];
    for (int i = 0; i < x->impl.head.size; i++)
        x->transfers[i] = (struct collective_transfer){&out, &in[i], 1, 1};
    x->transfers[x->impl.head.rank] = (struct collective_transfer){0};
    return x->exchange(x, COLLECTIVE_BARRIER);
}

// In place (send == recv) sums in pieces are safe: a rank's pieces are overwritten only by the last step, and
// all its sends have completed by then.
int exchange_run(struct exchanger *x, const struct collective_call *c) {
    int rank = x->impl.head.rank, size = x->impl.head.size;
    if (c->primitive == COLLECTIVE_BARRIER) return run_barrier(x);
    struct collective_plan p = collective_plan_steps(c, rank, size, x->staging, x->staging_bytes);
    struct collective_transfer own = collective_own_copy(&p), none = {0};
    struct collective_team team = collective_team_of(c, size);
    if (own.recv_bytes) memmove(own.recv, own.send, own.recv_bytes);
    for (size_t step = 0; step < p.steps; step++) {
        for (int i = 0; i < size; i++) x->transfers[i] = none;
        for (int i = 0; i < p.size; i++)
            if (i != p.rank) x->transfers[collective_member(team, i)] = collective_step(&p, step, i);
        if (x->exchange(x, c->primitive) != 0) return -1;
        struct reduce_args sum = collective_step_sum(&p, step, x->inputs);
        if (collective_sum(&x->impl, &sum) != 0) return -1;
    }
    return 0;
}

// ---------------------------------------------------------------- on device memory
// Elements of a block in one chunk. The pieces of an all_reduce stay those of the whole call: every rank
// moves the same bytes as without chunks.
static size_t chunk_of(const struct exchanger *x, const struct collective_plan *p) {
    size_t size = (size_t)p->size;
    size_t n = x->host_bytes / (2 * size) / DEV_ALIGN * DEV_ALIGN / dtype_size(p->call->dt);
    if (p->row->result == RESULT_SUMMED_IN_PIECES && n >= size) n -= n % size;
    return n;
}

// Brings n elements of every block to send from the device to the host; what was copied before has landed.
static int fetch(struct exchanger *x, const struct collective_plan *p, size_t done, size_t n) {
    const struct collective_call *c = p->call;
    size_t e = dtype_size(c->dt);
    for (size_t i = 0; i < p->send_blocks; i++)
        dev_copy(c->stream, x->host + i * n * e, (const char *)c->send + (i * p->stride + done) * e, n * e);
    if (stream_sync(c->stream) == 0) return 0;
    return collective_impl_fail(&x->impl, "%s: copying to the host failed: %s", p->row->name,
                                dev_error(stream_device(c->stream)));
}

int exchange_staged(struct exchanger *x, const struct collective_call *c,
                    int (*run)(struct exchanger *x, const struct collective_call *c)) {
    struct collective_plan p = collective_plan_of(c, x->impl.head.rank, x->impl.head.size);
    size_t e = dtype_size(c->dt), most = chunk_of(x, &p);
    if (c->primitive == COLLECTIVE_BARRIER) return run(x, c);
    for (size_t done = 0; done < c->count; done += most) {
        size_t n = c->count - done < most ? c->count - done : most;
        char *received = x->host + p.send_blocks * n * e, *rest = received + p.recv_blocks * n * e;
        struct collective_call chunk = *c;
        chunk.send = x->host;
        chunk.recv = received;
        chunk.count = n;
        chunk.stride = 0;
        x->staging = x->host + dev_round((size_t)(rest - x->host));
        x->staging_bytes = x->host_bytes - (size_t)(x->staging - x->host);
        if (fetch(x, &p, done, n) != 0 || run(x, &chunk) != 0) return -1;
        for (size_t i = 0; i < p.recv_blocks; i++)
            dev_copy(c->stream, (char *)c->recv + (i * p.stride + done) * e, received + i * n * e, n * e);
    }
    return 0;
}
