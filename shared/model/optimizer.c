#include "shared/model/optimizer.h"

#include <assert.h>
#include <math.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"

static_assert(UNIT_MAX_TENSORS <= ADAMW_GROUPS_MAX, "a unit's tensors may all be groups of their own");

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

// The range's runs of equal decay, as elements of the range.
static void set_groups(struct adamw_args *a, const struct optimizer_config *c, const struct update_range *r) {
    for (int64_t at = r->begin, end; at < r->end; at = end) {
        bool decay = decay_run(r->unit, at, &end);
        if (c->weight_decay == 0 || end > r->end) end = r->end;
        a->weight_decay[a->groups] = decay ? c->weight_decay : 0;
        a->ends[a->groups++] = end - r->begin;
    }
}

static struct adamw_args update_args(const struct optimizer_config *c, const struct update_range *r, float lr,
                                     int64_t t, const struct update_scalars *scalars) {
    assert(t >= 1 && r->begin >= 0 && r->begin <= r->end && r->end <= r->unit->n_pad);
    struct adamw_args a = {
        .master = r->master,
        .m = r->m,
        .v = r->v,
        .weight = r->weight,
        .grad = r->grad,
        .scalars = scalars,
        .n = r->end - r->begin,
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
        a.inv_bc1 = (float)(1 / (1 - exact_pow(c->beta1, (double)t)));
        a.inv_sqrt_bc2 = (float)(1 / sqrt(1 - exact_pow(c->beta2, (double)t)));
    }
    set_groups(&a, c, r);
    return a;
}

void optimizer_launch(struct stream *s, const struct optimizer_config *c, const struct update_range *r,
                      float lr, int64_t t, const struct update_scalars *scalars) {
    struct adamw_args a = update_args(c, r, lr, t, scalars);
    if (a.n > 0) op_adamw(s, &a);
}

int optimizer_apply(const struct optimizer_config *c, const struct update_range *r, float lr, int64_t t,
                    const struct update_scalars *scalars, int threads) {
    struct adamw_args a = update_args(c, r, lr, t, scalars);
    const char *why = "";
    if (a.n > 0 && cpu_ops[OP_ADAMW](threads, &a, &why))
        return fail("%s: update %lld: %s", r->unit->name, (long long)t, why);
    return 0;
}
