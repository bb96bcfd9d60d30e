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

// ---------------------------------------------------------------- updates of one element; each returns the new
// p
static float adamw(const struct update_args *a, int64_t i, float decay) {
    float p = a->master[i], g = dtype_load(a->dt, a->grad, i) * a->scalars->grad_scale;
    if (a->l2_mode) g = fmaf(decay, p, g);
    float m = a->m[i] = fmaf(a->beta1, a->m[i], (1.0f - a->beta1) * g);
    float v = a->v[i] = fmaf(a->beta2, a->v[i], ((1.0f - a->beta2) * g) * g);
    float denom = sqrtf(v) * a->inv_sqrt_bc2 + a->eps;
    float u = (m * a->inv_bc1) / denom;
    if (!a->l2_mode) u = fmaf(decay, p, u);
    return fmaf(-a->lr, u, p);
}

static float sgd(const struct update_args *a, int64_t i, float decay) {
    float p = a->master[i], g = dtype_load(a->dt, a->grad, i) * a->scalars->grad_scale;
    g = fmaf(decay, p, g);
    if (a->m) {
        float m = a->m[i] = fmaf(a->momentum, a->m[i], a->rest * g);
        g = a->nesterov ? fmaf(a->momentum, m, g) : m;
    }
    return fmaf(-a->lr, g, p);
}

static float lion(const struct update_args *a, int64_t i, float decay) {
    float p = a->master[i], m = a->m[i], g = dtype_load(a->dt, a->grad, i) * a->scalars->grad_scale;
    float c = fmaf(a->beta1, m, (1.0f - a->beta1) * g);
    float u = c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f;
    a->m[i] = fmaf(a->beta2, m, (1.0f - a->beta2) * g);
    return fmaf(-a->lr, fmaf(decay, p, u), p);
}

void ref_update(const struct update_args *a, ref_update_fn *element) {
    assert(a->groups >= 1 && a->groups <= UPDATE_GROUPS_MAX && a->ends[a->groups - 1] == a->n);
    for (int64_t i = 0, group = 0; i < a->n && !a->scalars->skip; i++) {
        while (a->ends[group] <= i) group++;
        float p = a->master[i] = element(a, i, a->weight_decay[group]);
        if (a->weight) dtype_store(a->dt, a->weight, i, p);
    }
}

void ref_adamw(const struct update_args *a) { ref_update(a, adamw); }
void ref_sgd(const struct update_args *a) { ref_update(a, sgd); }
void ref_lion(const struct update_args *a) { ref_update(a, lion); }
