// The tensors of a model, unit by unit, and their initial values.
#include "shared/model/layout.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/team.h"
#include "kernels/exact_sum.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/system.h"

// Separates the random stream of initial values from other uses of the same seed.
#define INIT_KEY UINT64_C(0x696e69745f773031)

// The most elements of a model with padding: exact as a JSON number, and 512 bytes for each still fit an int64_t.
#define ELEMENTS_MAX ((int64_t)1 << 53)

static struct tensor *add(struct unit *u, const char *name) {
    assert(u->count < UNIT_MAX_TENSORS);
    struct tensor *t = &u->tensors[u->count++];
    char unit_name[sizeof u->name];  // a copy, because the compiler cannot see that the names do not overlap
    memcpy(unit_name, u->name, sizeof unit_name);
    snprintf(t->name, sizeof t->name, "%s.%s", unit_name, name);
    return t;
}

// Adds a weight matrix (rows, columns) = (out, in): weight decay; initial values normal(0, std).
static void add_matrix(struct unit *u, const char *name, int64_t rows, int64_t columns, float std) {
    struct tensor *t = add(u, name);
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->dims = 2;
    t->numel = rows * columns;
    t->decay = true;
    t->init = INIT_NORMAL;
    t->init_std = std;
}

// Reserves space after the unit's last tensor, the one that the head multiplies with. The space is a multiple
// of the global norm's block, so the blocks of later tensors, and the norm's last bit, do not change.
static void reserve_classes(struct unit *u) {
    struct tensor *t = &u->tensors[u->count - 1];
    int64_t n = (model_classes_padded(t->shape[0]) - t->shape[0]) * t->shape[1];
    t->reserved = (n + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK * SUMSQ_BLOCK;
}

// Adds a norm's weight (ones) or a bias (zeros): no weight decay.
static void add_vector(struct unit *u, const char *name, int64_t n, enum init_kind init) {
    struct tensor *t = add(u, name);
    t->shape[0] = n;
    t->shape[1] = 1;
    t->dims = 1;
    t->numel = n;
    t->init = init;
}

// Adds a bias, if the model has it.
static void add_bias(struct unit *u, const char *name, int64_t n, bool has) {
    if (has) add_vector(u, name, n, INIT_ZEROS);
}

static void add_block(struct unit *u, const struct model_spec *s, float residual_std) {
    const struct model_traits *t = &s->traits;
    int64_t c = s->channels, d = s->head_size, qkv = (s->heads + 2 * (int64_t)s->kv_heads) * d;
    bool gated = t->mlp == MLP_SWIGLU;
    add_vector(u, "norm1", c, INIT_ONES);
    add_bias(u, "norm1_b", c, t->norm == NORM_LAYER);
    add_matrix(u, "wqkv", qkv, c, s->init_std);
    add_bias(u, "bqkv", qkv, t->qkv_bias);
    add_matrix(u, "wo", c, s->heads * d, residual_std);
    add_bias(u, "bo", c, t->out_bias);
    add_vector(u, "norm2", c, INIT_ONES);
    add_bias(u, "norm2_b", c, t->norm == NORM_LAYER);
    add_matrix(u, gated ? "w_gate_up" : "w_up", model_up_width(s), c, s->init_std);
    add_bias(u, gated ? "b_gate_up" : "b_up", model_up_width(s), t->mlp_bias);
    add_matrix(u, "w_down", c, s->ffn, residual_std);
    add_bias(u, "b_down", c, t->mlp_bias);
}

// ---------------------------------------------------------------- LoRA
static void add_adapter(struct unit *u, const char *of, int part, char which, int64_t rows, int64_t columns) {
    char name[24];
    snprintf(name, sizeof name, "%s%d_%c", of, part, which);
    add_matrix(u, name, rows, columns, 0);
    struct tensor *t = &u->tensors[u->count - 1];
    t->adapter = which;
    t->part = (int8_t)part;
    t->init = which == 'A' ? INIT_UNIFORM : INIT_ZEROS;
    if (which == 'A') t->init_std = (float)(1.0 / sqrt((double)columns));
}

// Adds the adapters of a block.
static void add_adapters(struct unit *u, const struct model_spec *s) {
    for (int k = 0; k < LORA_LINEARS; k++)
        for (int part = 0; part < LORA_PARTS; part++) {
            if (!(s->lora.mask[k] >> part & 1)) continue;
            struct lora_rows of = lora_rows_of(s, k, part);
            add_adapter(u, lora_tensor(s, k), part, 'A', s->lora.r, of.columns);
            add_adapter(u, lora_tensor(s, k), part, 'B', of.rows, s->lora.r);
        }
}

// Returns a layout of the adapters only, whose member `model` is `all`, the layout of all tensors. In `all` the frozen
// tensors of a block move after its adapters; their logical order does not change.
static struct layout *freeze(struct layout *all, const struct model_spec *s, int world) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = s->layers;
    l->units = xcalloc((unsigned long)(l->count + all->count), sizeof *l->units);
    for (int i = 0; i < l->count; i++) {
        memcpy(l->units[i].name, all->units[1 + i].name, sizeof l->units[i].name);
        add_adapters(&l->units[i], s);
    }
    layout_finish(l, world);
    l->model = all;
    l->frozen = all->params;
    l->rest = xcalloc(1, sizeof *l->rest);
    *l->rest = (struct layout){.count = all->count, .world = world, .tied = all->tied, .padded = all->padded};
    l->rest->units = l->units + l->count;
    for (int u = 0; u < all->count; u++) {
        l->rest->units[u].n_pad = all->units[u].n_pad;
        memcpy(l->rest->units[u].name, all->units[u].name, sizeof all->units[u].name);
    }
    for (int u = 0; u < all->count; u++) {
        int at = layout_trained(l, u);
        struct unit whole = all->units[u];
        whole.trained = 0;
        if (at >= 0) {
            const struct unit *trained = &l->units[at];
            whole = *trained;
            whole.n = trained->n_pad + all->units[u].n;
            whole.n_pad = trained->n_pad + all->units[u].n_pad;
            for (int i = 0; i < whole.count; i++) whole.tensors[i].logical_start += l->frozen;
            for (int i = 0; i < all->units[u].count; i++) {
                assert(whole.count < UNIT_MAX_TENSORS);
                whole.tensors[whole.count] = all->units[u].tensors[i];
                whole.tensors[whole.count++].offset += trained->n_pad;
            }
        }
        all->units[u] = whole;
    }
    all->params += l->params;
    all->padded += l->padded;
    return l;
}

struct layout *model_layout_create(const struct model_spec *s, int world) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = s->layers + 2;
    l->units = xcalloc((unsigned long)l->count, sizeof *l->units);
    l->tied = s->tied;
    // Radford et al. 2019, section 2.3: residual projections are scaled by 1/sqrt(residual layers).
    float residual_std = (float)((double)s->init_std / sqrt(2.0 * s->layers));

    struct unit *u = &l->units[0];
    snprintf(u->name, sizeof u->name, "embedding");
    add_matrix(u, "wte", s->vocab, s->channels, s->init_std);
    if (s->tied) reserve_classes(u);
    if (s->traits.positions == POSITIONS_LEARNED)
        add_matrix(u, "wpe", s->max_positions, s->channels, s->init_std);
    for (int i = 0; i < s->layers; i++) {
        u = &l->units[1 + i];
        snprintf(u->name, sizeof u->name, "block.%d", i);
        add_block(u, s, residual_std);
    }
    u = &l->units[l->count - 1];
    snprintf(u->name, sizeof u->name, "head");
    add_vector(u, "norm", s->channels, INIT_ONES);
    add_bias(u, "norm_b", s->channels, s->traits.norm == NORM_LAYER);
    if (!s->tied) {
        add_matrix(u, "lm_head", s->vocab, s->channels, s->init_std);
        reserve_classes(u);
    }

    layout_finish(l, world);
    if (s->lora.r) l = freeze(l, s, world);
    if (layout_of_model(l)->padded > ELEMENTS_MAX) {
        fail(
            "model %s: has more than 2^53 parameters (9e15), which is more than can be counted: make it smaller",
            s->name);
        layout_destroy(&l);
    }
    return l;
}

struct normal {
    const struct tensor *t;
    uint64_t key;
    float *out;
};

static void init_normal(void *arg, int index, int count) {
    const struct normal *n = arg;
    uint64_t first = (uint64_t)n->t->logical_start;
    float std = n->t->init_std;
    int64_t begin, end;
    parallel_range(n->t->numel, 1, index, count, &begin, &end);
    for (int64_t i = begin; i < end; i++) n->out[i] = std * rng_normal(n->key, first + (uint64_t)i);
}

static void init_tensor(const struct tensor *t, uint64_t seed, float *to) {
    long threads = t->numel > 65536 ? processors_given() : 1;
    if (t->init == INIT_ONES)
        for (int64_t k = 0; k < t->numel; k++) to[k] = 1.0f;
    else if (t->init == INIT_UNIFORM)
        for (int64_t k = 0; k < t->numel; k++)
            to[k] = t->init_std * rng_uniform(seed ^ INIT_KEY, (uint64_t)(t->logical_start + k));
    else if (t->init == INIT_NORMAL)
        team_run((int)threads, init_normal, &(struct normal){t, seed ^ INIT_KEY, to});
    else
        memset(to, 0, (size_t)t->numel * sizeof *to);
}

void model_init_unit(const struct layout *l, int u, uint64_t seed, float *out) {
    const struct unit *unit = &layout_of_model(l)->units[u];
    memset(out, 0, (size_t)unit->n_pad * sizeof *out);
    for (int i = 0; i < unit->count; i++) init_tensor(&unit->tensors[i], seed, out + unit->tensors[i].offset);
}

void model_init_adapters(const struct layout *l, int u, uint64_t seed, float *out) {
    const struct unit *unit = &layout_of_model(l)->units[u];
    for (int i = 0; i < unit->count; i++)
        if (unit->tensors[i].adapter) init_tensor(&unit->tensors[i], seed, out + unit->tensors[i].offset);
}
