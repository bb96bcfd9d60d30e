#include "shared/model/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "kernels/exact_math.h"
#include "shared/core/error.h"

static_assert(UNIT_MAX_TRAINED <= UPDATE_GROUPS_MAX, "a unit's tensors may all be groups of their own");

// Returns whether weight decay applies to the element at `at`. *end receives the offset up to which this is valid: the start
// of the next tensor with the other answer. A gap belongs to the tensor before it.
static bool decay_run(const struct unit *unit, int64_t at, int64_t *end) {
    int i = 0;
    while (i + 1 < unit->count && unit->tensors[i + 1].offset <= at) i++;
    bool decay = unit->count > 0 && unit->tensors[i].decay;
    *end = unit->n_pad;
    for (int j = i + 1; j < unit->count && *end == unit->n_pad; j++)
        if (unit->tensors[j].decay != decay) *end = unit->tensors[j].offset;
    return decay;
}

// ends[] receives the end of each group of equal weight decay, in elements of the range. Returns their number.
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

float optimizer_beta1(const struct optimizer_config *c, const struct update_step *step) {
    return c->cycle.type == SCHEDULE_NONE ? c->beta1 : schedule_beta1(&c->cycle, step->t - 1);
}

static void describe_adamw(char *text, size_t size, const struct optimizer_config *c) {
    char freezes[40] = "";
    if (c->row->onebit) snprintf(freezes, sizeof freezes, ", freeze_step %lld", (long long)c->freeze_step);
    snprintf(text, size, "lr %g, betas %g %g, eps %g, decay %g%s", (double)c->lr, (double)c->beta1,
             (double)c->beta2, (double)c->eps, (double)c->weight_decay, freezes);
}

static void describe_sgd(char *text, size_t size, const struct optimizer_config *c) {
    snprintf(text, size, "lr %g, %smomentum %g, dampening %g, decay %g", (double)c->lr,
             c->nesterov ? "Nesterov's " : "", (double)c->momentum, (double)c->dampening,
             (double)c->weight_decay);
}

static void describe_lion(char *text, size_t size, const struct optimizer_config *c) {
    snprintf(text, size, "lr %g, betas %g %g, decay %g", (double)c->lr, (double)c->beta1, (double)c->beta2,
             (double)c->weight_decay);
}

static void describe_rmsprop(char *text, size_t size, const struct optimizer_config *c) {
    snprintf(text, size, "lr %g, alpha %g, eps %g, momentum %g, decay %g", (double)c->lr, (double)c->alpha,
             (double)c->eps, (double)c->momentum, (double)c->weight_decay);
}

// Keys and defaults of DeepSpeed's FusedAdam.
// clang-format off
#define ADAM                                                                                        \
    .textbook = "Adam", .states = 2,                                                                \
    .params = {{"lr", "1e-3"}, {"betas", "[0.9,0.999]"}, {"eps", "1e-8"}, {"weight_decay", "0"},    \
               {"adam_w_mode", "true"}, {"bias_correction", "true"}, {"torch_adam", "false"}},      \
    .op = OP_ADAMW, .describe = describe_adamw
// Keys and defaults of torch.optim.SGD, which DeepSpeed uses. Without momentum it has no state.
#define SGD                                                                                         \
    .name = "SGD", .textbook = "SGD",                                                               \
    .params = {{"lr", "1e-3"}, {"momentum", "0"}, {"dampening", "0"}, {"weight_decay", "0"},        \
               {"nesterov", "false"}},                                                              \
    .op = OP_SGD, .describe = describe_sgd
// Keys and defaults of torch.optim.RMSprop, which DeepSpeed uses.
#define RMSPROP                                                                                     \
    .name = "RMSprop", .textbook = "RMSProp",                                                       \
    .params = {{"lr", "1e-2"}, {"alpha", "0.99"}, {"eps", "1e-8"}, {"weight_decay", "0"},           \
               {"momentum", "0"}},                                                                  \
    .op = OP_RMSPROP, .describe = describe_rmsprop
// clang-format on

static const struct optimizer sgd_with_momentum = {SGD, .states = 1};
static const struct optimizer rmsprop_with_momentum = {RMSPROP, .states = 2};

const struct optimizer optimizers[] = {
    {.name = "Adam", ADAM},
    {.name = "AdamW", ADAM, .decoupled = true},
    {SGD, .moving = &sgd_with_momentum},
    // Keys and defaults of DeepSpeed's FusedLion.
    {.name = "Lion",
     .textbook = "Lion",
     .states = 1,
     .params = {{"lr", "1e-3"}, {"betas", "[0.9,0.999]"}, {"weight_decay", "0"}},
     .op = OP_LION,
     .describe = describe_lion},
    {RMSPROP, .states = 1, .moving = &rmsprop_with_momentum},
    // Keys and defaults of DeepSpeed's OnebitAdam.
    {.name = "OneBitAdam",
     .textbook = "Adam",
     .states = 2,
     .params = {{"lr", "1e-3"},
                {"betas", "[0.9,0.999]"},
                {"eps", "1e-8"},
                {"weight_decay", "0"},
                {"freeze_step", "100000"}},
     .decoupled = true,
     .onebit = true,
     .op = OP_ADAMW,
     .describe = describe_adamw},
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

// Sets the operation's arguments. Returns the operation, which reads the arguments it needs, or OP_COUNT if the
// range is empty.
static enum op set_args(struct update_args *a, const struct optimizer_config *c, const struct update_range *r,
                        const struct update_step *step) {
    assert(step->t >= 1 && r->begin >= 0 && r->begin <= r->end && r->end <= r->unit->n_pad);
    if (r->begin == r->end) return OP_COUNT;
    *a = (struct update_args){
        .master = r->master,
        .m = c->row->states > 0 ? r->state[0] : NULL,
        .v = c->row->states > 1 ? r->state[1] : NULL,
        .weight = r->weight,
        .grad = r->grad,
        .codes = r->momentum,
        .scalars = step->scalars,
        .n = r->end - r->begin,
        .lr = step->lr,
        .beta1 = optimizer_beta1(c, step),
        .beta2 = c->cycle.type == SCHEDULE_NONE ? c->beta2 : SCHEDULE_CYCLE_BETA2,
        .eps = c->eps,
        .inv_bc1 = 1,
        .inv_sqrt_bc2 = 1,
        .momentum = c->momentum,
        .alpha = c->alpha,
        .rest = step->t == 1 ? 1 : 1 - c->dampening,
        .l2_mode = c->l2_mode,
        .nesterov = c->nesterov,
        .dt = r->dtype,
    };
    a->groups = find_groups(c, r, a->ends, a->weight_decay);
    if (c->freeze_step && step->t > c->freeze_step) return OP_ADAM_FROZEN;
    // DeepSpeed's 1-bit Adam has no bias correction.
    if (!c->row->onebit && !c->no_bias_correction) {
        a->inv_bc1 = (float)(1 / (1 - exact_pow(a->beta1, (double)step->t)));
        a->inv_sqrt_bc2 = (float)(1 / sqrt(1 - exact_pow(a->beta2, (double)step->t)));
    }
    return c->row->op;
}

void optimizer_launch(struct stream *s, const struct optimizer_config *c, const struct update_range *r,
                      const struct update_step *step) {
    struct update_args a;
    enum op op = set_args(&a, c, r, step);
    if (op != OP_COUNT) dev_launch(s, op, &a, sizeof a);
}

int optimizer_apply(const struct optimizer_config *c, const struct update_range *r,
                    const struct update_step *step, int threads) {
    struct update_args a;
    const char *why = "";
    enum op op = set_args(&a, c, r, step);
    if (op != OP_COUNT && cpu_ops[op](threads, &a, &why))
        return fail("%s: update %lld: %s", r->unit->name, (long long)step->t, why);
    return 0;
}

void optimizer_carve(struct arena *a, const struct optimizer *o, int64_t n, float **state) {
    for (int i = 0; i < o->states; i++) state[i] = arena_take(a, MEM_OPTIMIZER, (size_t)n * sizeof(float));
}

size_t optimizer_bytes(const struct optimizer *o, bool own_master) {
    return ((size_t)o->states + own_master) * sizeof(float);
}

void optimizer_add_scaled(struct stream *s, const struct update_scalars *scalars, float *p, float factor,
                          const float *x, int64_t n) {
    dev_launch(s, OP_SGD,
               &(struct update_args){.master = p,
                                     .grad = x,
                                     .scalars = scalars,
                                     .n = n,
                                     .ends = {n},
                                     .groups = 1,
                                     .lr = -factor,
                                     .rest = 1,
                                     .dt = DT_F32},
               sizeof(struct update_args));
}
