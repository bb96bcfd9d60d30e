#include "shared/train/warm_up.h"

#include <stdlib.h>

#include "shared/core/error.h"

// Zeros on the device, as long as the largest unit: all units' weights, and their gradients.
struct zeros {
    const struct model_options *o;
    size_t bytes, tied_bytes;
    void *weights, *grad, *tied_weights, *tied_grad;
};

static size_t unit_bytes(const struct model_options *o, int u) {
    return (size_t)o->layout->units[u].n_pad * dtype_size(o->dtype);
}

static void *take(const struct zeros *z, size_t bytes) {
    return dev_backend(z->o->dev)->alloc(z->o->dev, bytes);
}

static void give(const struct zeros *z, void *p, size_t bytes) {
    if (p) dev_backend(z->o->dev)->free(z->o->dev, p, bytes);
}

static int take_all(struct zeros *z) {
    for (int u = 0; u < z->o->layout->count; u++)
        if (unit_bytes(z->o, u) > z->bytes) z->bytes = unit_bytes(z->o, u);
    z->weights = take(z, z->bytes);
    z->grad = take(z, z->bytes);
    if (z->o->layout->tied) {
        z->tied_bytes = unit_bytes(z->o, 0);
        z->tied_weights = take(z, z->tied_bytes);
        z->tied_grad = take(z, z->tied_bytes);
    }
    if (z->weights && z->grad && (!z->o->layout->tied || (z->tied_weights && z->tied_grad))) return 0;
    return fail("out of device memory: no %zu MiB for a first pass of the model",
                (z->bytes + z->tied_bytes) >> 19);
}

static void give_all(const struct zeros *z) {
    give(z, z->weights, z->bytes);
    give(z, z->grad, z->bytes);
    give(z, z->tied_weights, z->tied_bytes);
    give(z, z->tied_grad, z->tied_bytes);
}

static void forward(const struct zeros *z, struct model *m, bool want_loss) {
    struct unit_view view = {.weights = z->weights}, tied = {.weights = z->tied_weights};
    int last = z->o->layout->count - 1;
    for (int u = 0; u <= last; u++)
        model_forward(m, u, &view, u == last && z->o->layout->tied && want_loss ? &tied : NULL, want_loss);
}

static void backward(const struct zeros *z, struct model *m, bool accumulate) {
    struct unit_view view = {z->weights, z->grad, accumulate},
                     tied = {z->tied_weights, z->tied_grad, accumulate};
    int last = z->o->layout->count - 1;
    for (int u = last; u >= 0; u--)
        model_backward(m, u, &view, u == last && z->o->layout->tied ? &tied : NULL);
}

// Tokens of all kinds: one alone would take as long as a batch of it.
static int run(const struct zeros *z, struct model *m, bool accumulates) {
    int64_t rows = z->o->batch * z->o->seq;
    int32_t *tokens = xcalloc((size_t)rows, sizeof *tokens);
    for (int64_t i = 0; i < rows; i++) tokens[i] = (int32_t)(i % z->o->spec->vocab);
    for (int k = 0; k <= (accumulates ? 1 : 0); k++) {
        model_set_batch(m, tokens, tokens, 1.0f / (float)rows, k == 0);
        forward(z, m, false);
        backward(z, m, k > 0);
    }
    model_set_batch(m, tokens, tokens, 0.0f, true);
    forward(z, m, true);
    int rc = stream_sync(z->o->compute);
    free(tokens);
    return rc == 0 ? 0 : fail("a first pass of the model: %s", dev_error(z->o->dev));
}

int warm_up(struct model *m, const struct model_options *o, bool accumulates) {
    struct zeros z = {.o = o};
    if (dev_host_memory(o->dev)) return 0;
    int rc = take_all(&z);
    if (rc == 0) rc = run(&z, m, accumulates);
    give_all(&z);
    return rc;
}
