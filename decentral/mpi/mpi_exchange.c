#include "decentral/mpi/mpi_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"

#define WHOLE_BYTES ((size_t)512 << 10)  // one wait costs less than what two would hide
#define SLICE_BYTES ((size_t)128 << 10)  // of a sum between two looks at what is under way

void exchanger_init(struct exchanger *x, const struct collective_options *o) {
    unsigned long size = (unsigned long)x->impl.head.size;
    x->transfers = xcalloc(size, sizeof *x->transfers);
    x->inputs = xcalloc(size, sizeof *x->inputs);
    x->staging = o->staging;
    x->staging_bytes = o->staging_bytes;
}

void exchanger_fini(struct exchanger *x) {
    free(x->transfers);
    free(x->inputs);
}

// ---------------------------------------------------------------- on host memory
static int run_barrier(struct exchanger *x) {
    char out = 1, in[REDUCE_MAX];
    for (int i = 0; i < x->impl.head.size; i++)
        x->transfers[i] = (struct collective_transfer){&out, &in[i], 1, 1};
    x->transfers[x->impl.head.rank] = (struct collective_transfer){0};
    return x->begin(x, COLLECTIVE_BARRIER) == 0 ? x->end(x, COLLECTIVE_BARRIER) : -1;
}

static int begin_step(struct exchanger *x, const struct collective_plan *p, size_t step) {
    struct collective_team team = collective_team_of(p->call, x->impl.head.size);
    for (int i = 0; i < x->impl.head.size; i++) x->transfers[i] = (struct collective_transfer){0};
    for (int i = 0; i < p->size; i++)
        if (i != p->rank) x->transfers[collective_member(team, i)] = collective_step(p, step, i);
    return x->begin(x, p->call->primitive);
}

// under_way: whether an exchange is, meanwhile.
static int sum_step(struct exchanger *x, const struct collective_plan *p, size_t step, bool under_way) {
    struct reduce_args all = collective_step_sum(p, step, x->inputs), part = all;
    size_t e = dtype_size(p->call->dt);
    int64_t most = under_way ? (int64_t)(SLICE_BYTES / e) : all.n;
    for (int64_t done = 0; done < all.n; done += part.n) {
        part.n = all.n - done < most ? all.n - done : most;
        if (collective_sum(&x->impl, &part) != 0) return -1;
        part.out = (char *)part.out + (size_t)part.n * e;
        for (int i = 0; i < p->size; i++) x->inputs[i] = (const char *)x->inputs[i] + (size_t)part.n * e;
        if (under_way) x->push(x);
    }
    return 0;
}

// In place (send == recv) sums in pieces are safe: a rank's pieces are overwritten only by the last step, and
// all its sends have completed by then.
int exchange_run(struct exchanger *x, const struct collective_call *c) {
    if (c->primitive == COLLECTIVE_BARRIER) return run_barrier(x);
    struct collective_staging_room room = {x->staging, x->staging_bytes, WHOLE_BYTES};
    struct collective_plan p = collective_plan_steps(c, x->impl.head.rank, x->impl.head.size, &room);
    struct collective_transfer own = collective_own_copy(&p);
    int rc = 0;
    bool under_way = false;
    if (own.recv_bytes) memmove(own.recv, own.send, own.recv_bytes);
    for (size_t i = 0; i < collective_actions(&p) && rc == 0; i++) {
        struct collective_action a = collective_action(&p, i);
        if (a.what == ACTION_SUM) {
            rc = sum_step(x, &p, a.step, under_way);
            if (rc != 0 && under_way) x->end(x, c->primitive);
        } else {
            rc = a.what == ACTION_BEGIN ? begin_step(x, &p, a.step) : x->end(x, c->primitive);
            under_way = a.what == ACTION_BEGIN && rc == 0;
        }
    }
    return rc;
}
