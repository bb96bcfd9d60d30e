#include "shared/infer/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_math.h"
#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/topology.h"
#include "shared/hf/hf_dir.h"
#include "shared/model/model.h"

// ---------------------------------------------------------------- the next token
// Part of the key: batches and initial weights, which use the same seed, then get other random numbers.
#define SAMPLE_STREAM 0x73616d706c65ULL

struct candidate {
    float logit;
    int32_t id;
};

int32_t sample_argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i])) return -1;
        if (logits[i] > logits[best]) best = i;
    }
    return isinf(logits[best]) ? -1 : best;
}

static int highest_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

int32_t sample_token(const float *logits, int32_t n, const struct sample_options *o, int64_t position) {
    int32_t best = sample_argmax(logits, n);
    if (best < 0 || o->temperature <= 0 || o->top_k == 1) return best;
    struct candidate *all = xcalloc((size_t)n, sizeof *all);
    double *weight = xcalloc((size_t)n, sizeof *weight), sum = 0;
    for (int32_t i = 0; i < n; i++) all[i] = (struct candidate){logits[i], i};
    int32_t count = n;
    if (o->top_k > 0 && o->top_k < n) {
        qsort(all, (size_t)n, sizeof *all, highest_first);
        count = o->top_k;
    }
    for (int32_t i = 0; i < count; i++)
        sum += weight[i] = exact_exp(((double)all[i].logit - (double)logits[best]) / o->temperature);
    struct philox_out r = philox(o->seed, (uint64_t)position, SAMPLE_STREAM);
    double uniform =
        (double)((((uint64_t)r.v[1] << 32) | r.v[0]) >> 11) * 0x1p-53;  // in [0, 1), 53 random bits
    double left = uniform * sum;
    int32_t chosen = best;
    for (int32_t i = 0; i < count; i++) {
        if (weight[i] <= 0) continue;
        chosen =
            all[i].id;  // if rounding leaves left >= 0 at the end, the last token with a weight is chosen
        left -= weight[i];
        if (left < 0) break;
    }
    free(all);
    free(weight);
    return chosen;
}

// ---------------------------------------------------------------- the generator
struct generator {
    struct generator_options o;
    struct arena arena;       // for the weights: no gradient, no optimizer state, no master
    struct unit_view *units;  // (layout->count)
    struct model *model;
    int32_t *window;  // (o.window), zeros after the tokens
};

static struct model_options model_options_of(const struct generator_options *o) {
    return (struct model_options){.spec = o->spec,
                                  .layout = layout_of_model(o->layout),
                                  .dev = o->dev,
                                  .compute = o->compute,
                                  .dtype = o->dtype,
                                  .batch = 1,
                                  .seq = o->window,
                                  .forward_only = true};
}

// Allocates every unit's weights. units NULL: only counts them.
static void take_weights(struct arena *a, const struct layout *l, enum dtype dt, struct unit_view *units) {
    for (int u = 0; u < l->count; u++) {
        void *p = arena_take(a, MEM_PARAMETER, (size_t)l->units[u].n_pad * dtype_size(dt));
        if (units) units[u] = (struct unit_view){.weights = p};
    }
}

void generator_predict(const struct generator_options *o, size_t bytes[MEM_CLASSES]) {
    struct model_options m = model_options_of(o);
    struct arena a;
    model_predict(&m, bytes);
    arena_init(&a, NULL);
    take_weights(&a, layout_of_model(o->layout), o->dtype, NULL);
    for (int c = 0; c < MEM_CLASSES; c++) bytes[c] += a.bytes[c];
}

// Reads every unit and rounds it to the dtype.
static int load_weights(struct generator *g, struct hf_reader *from) {
    const struct layout *l = g->o.layout;
    enum dtype dt = g->o.dtype;
    int64_t largest = layout_largest(l);
    float *values = xcalloc((size_t)largest, sizeof *values);
    void *rounded = dt == DT_F32 ? values : xcalloc((size_t)largest, dtype_size(dt));
    int rc = 0;
    for (int u = 0; u < l->count && rc == 0; u++) {
        int64_t n = l->units[u].n_pad;
        if ((rc = hf_read_unit(from, u, values))) break;
        for (int64_t i = 0; i < n && dt != DT_F32; i++) dtype_store(dt, rounded, (size_t)i, values[i]);
        dev_copy(g->o.compute, (void *)g->units[u].weights, rounded, (size_t)n * dtype_size(dt));
        if (stream_sync(g->o.compute))
            rc = fail("loading unit %s: %s", l->units[u].name, dev_error(g->o.dev));
    }
    if (rounded != values) free(rounded);
    free(values);
    return rc;
}

struct generator *generator_create(const struct generator_options *o, struct hf_reader *weights) {
    struct generator *g = xcalloc(1, sizeof *g);
    struct model_options m = model_options_of(o);
    g->o = *o;
    g->o.layout = m.layout;
    g->window = xcalloc((size_t)o->window, sizeof *g->window);
    g->units = xcalloc((size_t)m.layout->count, sizeof *g->units);
    arena_init(&g->arena, o->dev);
    take_weights(&g->arena, m.layout, o->dtype, g->units);
    if (g->arena.failed || load_weights(g, weights) || !(g->model = model_create(&m))) generator_destroy(&g);
    return g;
}

void generator_destroy(struct generator **pg) {
    struct generator *g = *pg;
    if (!g) return;
    model_destroy(&g->model);
    arena_release(&g->arena);
    free(g->units);
    free(g->window);
    free(g);
    *pg = NULL;
}

// One forward pass over the last tokens for each new token: no keys and values are kept between calls.
int generator_logits(struct generator *g, const int32_t *tokens, int64_t n, float *logits) {
    const struct unit_view *units = g->units;
    int last = g->o.layout->count - 1;
    int64_t window = g->o.window, used = n < window ? n : window;
    int64_t padded = (used + GENERATE_STEP - 1) / GENERATE_STEP * GENERATE_STEP;
    memset(g->window, 0, (size_t)window * sizeof *g->window);
    memcpy(g->window, tokens + (n - used), (size_t)used * sizeof *tokens);
    model_set_tokens(g->model, g->window, padded < window ? padded : window);
    for (int u = 0; u <= last; u++) model_forward(g->model, u, &units[u], NULL, false);
    if (model_row_logits(g->model, &units[last], g->o.spec->tied ? &units[0] : NULL, used - 1, logits))
        return fail("token %lld: %s", (long long)n, dev_error(g->o.dev));
    return 0;
}

bool is_end_token(const struct generate_options *o, int32_t token) {
    for (int i = 0; i < o->end_count; i++)
        if (o->end[i] == token) return true;
    return false;
}

int64_t generate(struct generator *g, const struct generate_options *o, int32_t *out) {
    int32_t vocab = g->o.spec->vocab;
    int32_t *all = xcalloc((size_t)(o->prompt_count + o->count), sizeof *all);
    float *logits = xcalloc((size_t)vocab, sizeof *logits);
    int64_t count = 0;
    int rc = 0;
    memcpy(all, o->prompt, (size_t)o->prompt_count * sizeof *all);
    while (count < o->count && rc == 0) {
        int64_t n = o->prompt_count + count;
        if ((rc = generator_logits(g, all, n, logits))) break;
        int32_t token = sample_token(logits, vocab, &o->sample, n);
        if (token < 0) {
            rc = fail("token %lld: the logits hold NaN or infinity: are the weights damaged?", (long long)n);
            break;
        }
        all[n] = out[count++] = token;
        if ((o->on_token && o->on_token(o->ctx, token)) || is_end_token(o, token)) break;
    }
    free(logits);
    free(all);
    return rc ? -1 : count;
}
