// A toy training of ranks that have weights of their own, for the tests of gossip and of local steps: the gradient, a rank's step
// through a topology, and the same step as plain loops.
#ifndef STARRING_TESTS_DECENTRAL_OWN_CASES_H
#define STARRING_TESTS_DECENTRAL_OWN_CASES_H

#include <unistd.h>

#include "kernels/exact_sum.h"
#include "shared/config/config.h"
#include "tests/decentral/zero_reference.h"

#define UNITS ZERO_CASE_UNITS

// A rank's gradient depends on the weights that it is computed on: a mixing at another moment gives other bits.
static inline float gradient(float weight, int rank, int step, int u, int64_t i) {
    uint64_t r = zero_case_bits((uint64_t)(step + 50), (uint64_t)(rank * 100 + u), (uint64_t)i);
    return 0.25f * weight + (float)((int)(r % 2001) - 1000) / 1000.0f;
}

static inline void write_gradient(const struct unit *unit, int u, enum dtype dt, const void *weights,
                                  int rank, int step, void *grad) {
    for (int t = 0; t < unit->count; t++)
        for (int64_t k = 0, i = unit->tensors[t].offset; k < unit->tensors[t].numel; k++, i++)
            dtype_store(dt, grad, i, gradient(dtype_load(dt, weights, i), rank, step, u, i));
}

// One step of a rank alone: its masters and moments become those behind it.
static inline void own_update(const struct config *c, const struct layout *l, int rank, int step, float **own,
                              float *(*state)[2]) {
    void *grads[UNITS], *weights[UNITS];
    struct exact_sum sum = {0};
    for (int u = 0; u < UNITS; u++) {
        int64_t n = l->units[u].n_pad;
        grads[u] = calloc((size_t)n, sizeof(float));
        weights[u] = calloc((size_t)n, sizeof(float));
        for (int64_t i = 0; i < n; i++) dtype_store(c->dtype, weights[u], i, own[u][i]);
        write_gradient(&l->units[u], u, c->dtype, weights[u], rank, step, grads[u]);
        const char *why;
        assert_int_equal(
            ref_ops[OP_SUMSQ](1, &(struct sumsq_args){&sum, grads[u], n, u == 0, c->dtype}, &why), 0);
    }
    struct update_scalars s = update_decide(&sum, 1.0f / (float)c->workers, c->clip);
    struct update_step at = {.lr = 0.01f, .t = step + 1, .scalars = &s};
    for (int u = 0; u < UNITS; u++) {
        struct update_range r = {.unit = &l->units[u],
                                 .end = l->units[u].n_pad,
                                 .master = own[u],
                                 .state = {state[u][0], state[u][1]},
                                 .weight = c->dtype == DT_F32 ? own[u] : weights[u],
                                 .grad = grads[u],
                                 .dtype = c->dtype};
        assert_int_equal(optimizer_apply(&c->optimizer, &r, &at, 1), 0);
        free(grads[u]);
        free(weights[u]);
    }
}

struct write_job {
    const struct unit *unit;
    int u, rank, step;
    enum dtype dt;
    const void *weights;
    void *grad;
};
static inline int write_on_stream(void *arg) {
    struct write_job *j = arg;
    if (zero_case_bits(3, (uint64_t)j->rank, (uint64_t)j->step) % 3 == 0) usleep(300);
    write_gradient(j->unit, j->u, j->dt, j->weights, j->rank, j->step, j->grad);
    return 0;
}

static inline int own_step(struct topology *t, const struct config *c, struct step_input *in,
                           struct step_stats *out) {
    struct write_job jobs[UNITS];
    if (topology_plan(t, in->step) != 1 || topology_begin_micro(t, 0, 1)) return -1;
    for (int u = UNITS - 1; u >= 0; u--) {
        struct unit_view v;
        if (topology_acquire(t, u, PASS_BACKWARD, &v)) return -1;
        jobs[u] =
            (struct write_job){&t->layout->units[u], u, t->rank, (int)in->step, c->dtype, v.weights, v.grad};
        stream_host(t->compute, "toy", write_on_stream, &jobs[u]);
        if (topology_grad_ready(t, u)) return -1;
    }
    int rc = topology_step(t, in, out);
    return stream_sync(t->compute) ? -1 : rc;
}

#endif
