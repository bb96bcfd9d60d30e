#include "shared/generate/generate.h"

#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/generate/weights.h"
#include "shared/model/model.h"

struct generator {
    struct generator_options o;
    struct weights weights;
    struct model *model;
    int32_t *window;  // (o.window), zeros beyond the tokens
};

static struct model_options model_options_of(const struct generator_options *o) {
    return (struct model_options){.spec = o->spec,
                                  .layout = o->layout,
                                  .dev = o->dev,
                                  .compute = o->compute,
                                  .dtype = o->dtype,
                                  .batch = 1,
                                  .seq = o->window,
                                  .forward_only = true};
}

void generator_predict(const struct generator_options *o, size_t bytes[MEM_CLASSES]) {
    struct model_options m = model_options_of(o);
    size_t weights[MEM_CLASSES];
    model_predict(&m, bytes);
    weights_predict(o->layout, o->dtype, weights);
    for (int c = 0; c < MEM_CLASSES; c++) bytes[c] += weights[c];
}

struct generator *generator_create(const struct generator_options *o, struct hf_reader *weights) {
    struct generator *g = xcalloc(1, sizeof *g);
    struct model_options m = model_options_of(o);
    g->o = *o;
    g->window = xcalloc((size_t)o->window, sizeof *g->window);
    if (weights_load(&g->weights, &(struct weights_options){o->layout, o->dtype, o->dev, o->compute},
                     weights) ||
        !(g->model = model_create(&m)))
        generator_destroy(&g);
    return g;
}

void generator_destroy(struct generator **pg) {
    struct generator *g = *pg;
    if (!g) return;
    model_destroy(&g->model);
    weights_release(&g->weights);
    free(g->window);
    free(g);
    *pg = NULL;
}

// Tokens that the model is given: n of them and padding.
static int64_t padded(const struct generator *g, int64_t n) {
    int64_t up = (n + GENERATE_STEP - 1) / GENERATE_STEP * GENERATE_STEP;
    return up < g->o.window ? up : g->o.window;
}

int generator_logits(struct generator *g, const int32_t *tokens, int64_t n, float *logits) {
    const struct unit_view *units = g->weights.units;
    int last = g->o.layout->count - 1;
    int64_t used = n < g->o.window ? n : g->o.window, seq = padded(g, used);
    memset(g->window, 0, (size_t)g->o.window * sizeof *g->window);
    memcpy(g->window, tokens + (n - used), (size_t)used * sizeof *tokens);
    model_set_tokens(g->model, g->window, seq);
    for (int u = 0; u <= last; u++) model_forward(g->model, u, &units[u], NULL, false);
    if (model_row_logits(g->model, &units[last], g->o.layout->tied ? &units[0] : NULL, used - 1, logits))
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
    int64_t made = 0;
    int rc = 0;
    memcpy(all, o->prompt, (size_t)o->prompt_count * sizeof *all);
    while (made < o->count && rc == 0) {
        int64_t n = o->prompt_count + made;
        if ((rc = generator_logits(g, all, n, logits))) break;
        int32_t token = sample_token(logits, vocab, &o->sample, n);
        if (token < 0) {
            rc = fail("token %lld: the logits hold NaN or infinity: are the weights damaged?", (long long)n);
            break;
        }
        all[n] = out[made++] = token;
        if ((o->on_token && o->on_token(o->ctx, token)) || is_end_token(o, token)) break;
    }
    free(logits);
    free(all);
    return rc ? -1 : made;
}
