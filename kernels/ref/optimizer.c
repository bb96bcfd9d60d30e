// The optimizer's operations, with the bits that every backend must give.
#include <assert.h>
#include <math.h>

#include "kernels/ref/ref.h"

void ref_sumsq(const struct sumsq_args *a) {
    assert(a->n % SUMSQ_BLOCK == 0);
    if (a->zero_out) *a->out = (struct exact_sum){.nonfinite = 0};
    for (int64_t block = 0; block < a->n; block += SUMSQ_BLOCK) {
        double total = 0.0;
        int64_t bad = 0;
        for (int64_t i = block; i < block + SUMSQ_BLOCK; i++) {
            double x = dtype_load(a->dt, a->x, i);
            bad += !isfinite(x);
            total += x * x;
        }
        a->out->nonfinite += bad;
        if (!bad) exact_sum_add(a->out, total);
    }
}

void ref_decide(const struct decide_args *a) { *a->scalars = update_decide(a->sum, a->loss_scale, a->clip); }

// ---------------------------------------------------------------- updates
#define REF_UPDATE(first, OP, name, states_of, frozen, variant)                                     \
    void ref_##name(const struct update_args *a) {                                                  \
        const int states = states_of;                                                               \
        assert(a->groups >= 1 && a->groups <= UPDATE_GROUPS_MAX && a->ends[a->groups - 1] == a->n); \
        assert(!a->codes || a->n % ONEBIT_BLOCK == 0);                                              \
        for (int64_t i = 0, group = 0; i < a->n && !a->scalars->skip; i++) {                        \
            while (a->ends[group] <= i) group++;                                                    \
            struct update_element e = {.p = a->master[i], .decay = a->weight_decay[group]};         \
            e.g = a->codes ? onebit_value(&a->codes[i / ONEBIT_BLOCK], i % ONEBIT_BLOCK)            \
                           : dtype_load(a->dt, a->grad, (size_t)i) * a->scalars->grad_scale;        \
            if (states > 0) e.m = a->m[i];                                                          \
            if (states > 1) e.v = a->v[i];                                                          \
            update_##name(a, &e, states, variant);                                                  \
            if (states > frozen) a->m[i] = e.m;                                                     \
            if (states > 1 + frozen) a->v[i] = e.v;                                                 \
            a->master[i] = e.p;                                                                     \
            if (a->weight) dtype_store(a->dt, a->weight, i, e.p);                                   \
        }                                                                                           \
    }
UPDATES(REF_UPDATE, )
