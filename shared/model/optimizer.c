#include "shared/model/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"

union update_args {
    struct adamw_args adamw;
};
static_assert(sizeof(union update_args) <= OP_ARGS_MAX_BYTES, "a queue's slot holds any row's arguments");
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

// The range's runs of equal decay, as elements of the range; returns how many there are.
static int32_t find_groups(const struct optimizer_config *c, const struct update_range *r, int64_t *ends,
                           float *weight_decay) {
    int32_t groups = 0;
    for (int64_t at = r->begin, end; at < r->end; at = end) {
        bool decay = decay_run(r->unit, at, &end);
        if (c->weight_decay == 0 || end > r->end) end = r->end;
        weight_decay[groups] = decay ? c->weight_decay : 0;
        ends[groups++] = end - r->begin;
    }
    return groups;
}

static void set_adamw(union update_args *args, const struct optimizer_config *c, const struct update_range *r,
                      const struct update_step *step) {
    struct adamw_args *a = &args->adamw;
    *a = (struct adamw_args){
        .master = r->master,
        .m = r->state[0],
        .v = r->state[1],
        .weight = r->weight,
        .grad = r->grad,
        .scalars = step->scalars,
        .n = r->end - r->begin,
        .lr = step->lr,
        .beta1 = c->beta1,
        .beta2 = c->beta2,
        .eps = c->eps,
        .inv_bc1 = 1,
        .inv_sqrt_bc2 = 1,
        .l2_mode = c->l2_mode,
        .dt = r->dtype,
    };
    if (!c->no_bias_correction) {
        a->inv_bc1 = (float)(1 / (1 - exact_pow(c->beta1, (double)step->t)));
        a->inv_sqrt_bc2 = (float)(1 / sqrt(1 - exact_pow(c->beta2, (double)step->t)));
    }
    a->groups = find_groups(c, r, a->ends, a->weight_decay);
}

static void describe_adamw(char *text, size_t size, const struct optimizer_config *c) {
    snprintf(text, size, "lr %g, betas %g %g, eps %g, decay %g", (double)c->lr, (double)c->beta1,
             (double)c->beta2, (double)c->eps, (double)c->weight_decay);
}

// Keys and defaults of DeepSpeed's FusedAdam.
// clang-format off
#define ADAM                                                                                        \
    .textbook = "Adam", .states = 2,                                                                \
    .params = {{"lr", "1e-3"}, {"betas", "[0.9,0.999]"}, {"eps", "1e-8"}, {"weight_decay", "0"},    \
               {"adam_w_mode", "true"}, {"bias_correction", "true"}, {"torch_adam", "false"}},      \
    .op = OP_ADAMW, .set_args = set_adamw, .describe = describe_adamw
// clang-format on

const struct optimizer optimizers[] = {
    {.name = "Adam", ADAM},
    {.name = "AdamW", ADAM, .decoupled = true},
    {.name = NULL},
};

const struct optimizer *optimizer_find(const char *name) {
    const struct optimizer *o = optimizers;
    while (o->name && strcasecmp(o->name, name)) o++;
    return o->name ? o : NULL;
}

const char *optimizer_names(char text[128]) {
    size_t n = 0;
    for (const struct optimizer *o = optimizers; o->name && n < 128; o++)
        n += (size_t)snprintf(text + n, 128 - n, "%s%s", n ? ", " : "", o->name);
    return text;
}

const char *optimizer_default(const struct optimizer *o, const char *key) {
    for (int i = 0; i < OPTIMIZER_PARAMS_MAX && o->params[i].key; i++)
        if (!strcmp(o->params[i].key, key)) return o->params[i].value;
    return NULL;
}

uint64_t optimizer_hash(const struct optimizer_config *c, uint64_t seed) {
    const float settings[] = {
        c->lr, c->beta1, c->beta2, c->eps, c->weight_decay, c->l2_mode, c->no_bias_correction};
    return XXH64(settings, sizeof settings, XXH64(&c->row->op, sizeof c->row->op, seed));
}

// False: the range is empty.
static bool set_args(union update_args *a, const struct optimizer_config *c, const struct update_range *r,
                     const struct update_step *step) {
    assert(step->t >= 1 && r->begin >= 0 && r->begin <= r->end && r->end <= r->unit->n_pad);
    if (r->begin < r->end) c->row->set_args(a, c, r, step);
    return r->begin < r->end;
}

void optimizer_launch(struct stream *s, const struct optimizer_config *c, const struct update_range *r,
                      const struct update_step *step) {
    union update_args a;
    if (set_args(&a, c, r, step)) dev_launch(s, c->row->op, &a, sizeof a);
}

int optimizer_apply(const struct optimizer_config *c, const struct update_range *r,
                    const struct update_step *step, int threads) {
    union update_args a;
    const char *why = "";
    if (set_args(&a, c, r, step) && cpu_ops[c->row->op](threads, &a, &why))
        return fail("%s: update %lld: %s", r->unit->name, (long long)step->t, why);
    return 0;
}

void optimizer_carve(struct arena *a, const struct optimizer *o, int64_t n, float **state) {
    for (int i = 0; i < o->states; i++) state[i] = arena_take(a, MEM_OPTIMIZER, (size_t)n * sizeof(float));
}

size_t optimizer_bytes(const struct optimizer *o, bool own_master) {
    return ((size_t)o->states + own_master) * sizeof(float);
}
