#include "shared/model/optimizer.h"

#include <assert.h>
#include <math.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"

// What one call's runs share: everything but the pointers and the decay.
struct update {
    const struct optimizer_config *config;
    const struct update_range *range;
    struct adamw_args base;
};

static struct update update_begin(const struct optimizer_config *c, const struct update_range *r, float lr,
                                  int64_t t, const struct update_scalars *scalars) {
    assert(t >= 1 && r->begin >= 0 && r->begin <= r->end && r->end <= r->unit->n_pad);
    struct update u = {.config = c, .range = r};
    u.base = (struct adamw_args){
        .scalars = scalars,
        .lr = lr,
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .inv_bc1 = 1,
        .inv_sqrt_bc2 = 1,
        .l2_mode = c->l2_mode,
        .dt = r->dtype,
    };
    if (!c->no_bias_correction) {
        u.base.inv_bc1 = (float)(1 / (1 - exact_pow(c->beta1, (double)t)));
        u.base.inv_sqrt_bc2 = (float)(1 / sqrt(1 - exact_pow(c->beta2, (double)t)));
    }
    return u;
}

// Does the element at `at` decay? *end = where the answer may change: the start of the next tensor of
// the other group. A gap has the answer of the tensor before it.
static bool decay_run(const struct unit *unit, int64_t at, int64_t *end) {
    int i = 0;
    while (i + 1 < unit->count && unit->tensors[i + 1].offset <= at) i++;
    bool decay = unit->count > 0 && unit->tensors[i].decay;
    *end = unit->n_pad;
    for (int j = i + 1; j < unit->count && *end == unit->n_pad; j++)
        if (unit->tensors[j].decay != decay) *end = unit->tensors[j].offset;
    return decay;
}

// The next run of the range from *at on; moves *at behind it. false: the range is done.
static bool update_next(const struct update *u, int64_t *at, struct adamw_args *a) {
    const struct update_range *r = u->range;
    if (*at >= r->end) return false;
    int64_t end;
    bool decay = decay_run(r->unit, *at, &end);
    if (u->config->weight_decay == 0 || end > r->end) end = r->end;
    int64_t skip = *at - r->begin;
    *a = u->base;
    a->weight_decay = decay ? u->config->weight_decay : 0;
    a->master = r->master + skip;
    a->m = r->m + skip;
    a->v = r->v + skip;
    a->weight = r->weight ? (char *)r->weight + (size_t)skip * dtype_size(r->dtype) : NULL;
    a->grad = (const char *)r->grad + (size_t)skip * dtype_size(r->dtype);
    a->n = end - *at;
    *at = end;
    return true;
}

void optimizer_launch(struct stream *s, const struct optimizer_config *c, const struct update_range *r,
                      float lr, int64_t t, const struct update_scalars *scalars) {
    struct update u = update_begin(c, r, lr, t, scalars);
    struct adamw_args a;
    for (int64_t at = r->begin; update_next(&u, &at, &a);) op_adamw(s, &a);
}

int optimizer_apply(const struct optimizer_config *c, const struct update_range *r, float lr, int64_t t,
                    const struct update_scalars *scalars, int threads) {
    struct update u = update_begin(c, r, lr, t, scalars);
    struct adamw_args a;
    for (int64_t at = r->begin; update_next(&u, &at, &a);) {
        const char *why = "";
        if (cpu_ops[OP_ADAMW](threads, &a, &why))
            return fail("%s: update %lld: %s", r->unit->name, (long long)t, why);
    }
    return 0;
}
