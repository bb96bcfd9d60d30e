// Micro-batches whose counts of tokens differ add up to the gradient of one large batch: each is divided by the tokens of
// the whole, not by its own. Targets below 0 make one ragged, as padding behind a whole document does; and a document that is
// padded gives what it gives in rows of its own length, kept or computed again.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"
#include "tests/model/small_model.h"

#define T      7
#define PARTS  3
#define LAYERS 2
#define UNITS  (LAYERS + 2)

static const int tokens_of_part[PARTS] = {T, 3, 1};
#define TOKENS 11  // their sum

struct rig {
    struct device *dev;
    struct stream *compute;
    struct model_spec spec;
    struct layout *layout;
    struct topology *topology;
    struct model *model;
};

struct way {
    bool gpt;
    int batch;                  // sequences of a micro-batch; PARTS / batch of them make a step
    bool own_mean, own_length;  // of its part; own_length: with a batch of 1
    enum recompute_kind again;
};

static void open_rig(struct rig *r, const struct way *w) {
    bool gpt = w->gpt;
    int batch = w->batch;
    const char *why = NULL;
    *r = (struct rig){.spec = small_model(gpt, LAYERS)};
    r->layout = model_layout_create(&r->spec, 1);
    struct device_options d = {.threads = 2, .label = "t"};
    assert_int_equal(dev_open(backend_find("cpu", &why), &d, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    r->topology = local_create(&(struct local_options){.layout = r->layout,
                                                       .dtype = DT_F32,
                                                       .dev = r->dev,
                                                       .compute = r->compute,
                                                       .optimizer = {optimizers}});
    r->model = model_create(&(struct model_options){.spec = &r->spec,
                                                    .layout = r->layout,
                                                    .dev = r->dev,
                                                    .compute = r->compute,
                                                    .dtype = DT_F32,
                                                    .batch = batch,
                                                    .seq = T,
                                                    .recompute.kind = w->again,
                                                    .micro_batches = PARTS / batch});
    for (int u = 0; u < UNITS; u++) {
        float *values = xcalloc((size_t)r->layout->units[u].n_pad, sizeof *values);
        model_init_unit(r->layout, u, 3, values);
        assert_int_equal(topology_load_unit(r->topology, u, values), 0);
        free(values);
    }
}

static void close_rig(struct rig *r) {
    model_destroy(&r->model);
    topology_destroy(&r->topology);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
}

// divisor: what the loss is a mean over.
static void micro_batch(struct rig *r, int micro, const struct way *w, float divisor) {
    int batch = w->batch;
    int32_t tokens[PARTS * T], targets[PARTS * T];
    struct unit_view v, tied;
    for (int i = 0; i < batch * T; i++) {
        int part = micro * batch + i / T, at = i % T;
        tokens[i] = (int32_t)rng_below(5, (uint64_t)(part * T + at), 0, (uint64_t)r->spec.vocab);
        targets[i] = (int32_t)rng_below(6, (uint64_t)(part * T + at), 0, (uint64_t)r->spec.vocab);
        if (at >= tokens_of_part[part]) targets[i] = -1;
    }
    topology_begin_micro(r->topology, micro, PARTS / batch);
    if (w->own_length) model_set_seq(r->model, tokens_of_part[micro]);
    model_set_batch(r->model, tokens, targets, 1.0f / divisor, micro == 0);
    for (int u = 0; u < UNITS; u++) {
        topology_acquire(r->topology, u, PASS_FORWARD, &v);
        model_forward(r->model, u, &v, NULL, false);
    }
    for (int u = UNITS - 1; u >= 0; u--) {
        topology_acquire(r->topology, u, PASS_BACKWARD, &v);
        topology_acquire(r->topology, 0, PASS_BACKWARD, &tied);
        model_backward(r->model, u, &v, u == UNITS - 1 && r->layout->tied ? &tied : NULL);
    }
    assert_int_equal(stream_sync(r->compute), 0);
}

// All gradients, unit behind unit; the caller frees them. own_mean: a mean of the parts' own means, which is wrong.
static float *gradients(const struct way *w, double *loss, size_t *n) {
    struct rig r;
    open_rig(&r, w);
    for (int k = 0; k < PARTS / w->batch; k++)
        micro_batch(&r, k, w, w->own_mean ? (float)(PARTS * tokens_of_part[k]) : TOKENS);
    *loss = model_loss_sum(r.model) / TOKENS;
    *n = (size_t)r.layout->padded;
    float *all = xcalloc(*n, sizeof *all);
    size_t at = 0;
    for (int u = 0; u < UNITS; u++) {
        struct unit_view v;
        topology_acquire(r.topology, u, PASS_BACKWARD, &v);
        memcpy(all + at, v.grad, (size_t)r.layout->units[u].n_pad * sizeof *all);
        at += (size_t)r.layout->units[u].n_pad;
    }
    close_rig(&r);
    return all;
}

static double distance(const float *a, const float *b, size_t n) {
    double far = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        far += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)a[i], 2);
    }
    assert_true(size > 0);
    return sqrt(far / size);
}

static void test_ragged(void **unused) {
    (void)unused;
    for (int gpt = 0; gpt < 2; gpt++) {
        double loss, parts_loss, own_loss;
        size_t n;
        float *one = gradients(&(struct way){.gpt = gpt, .batch = PARTS}, &loss, &n);
        float *own = gradients(&(struct way){.gpt = gpt, .batch = 1, .own_mean = true}, &own_loss, &n);
        assert_true(distance(one, own, n) > 1e-2);  // the counts do matter here
        for (int way = 0; way < 4; way++) {
            const struct way w = {.gpt = gpt,
                                  .batch = 1,
                                  .own_length = way > 0,
                                  .again = way == 2   ? RECOMPUTE_CHEAP
                                           : way == 3 ? RECOMPUTE_BLOCK
                                                      : RECOMPUTE_NONE};
            float *parts = gradients(&w, &parts_loss, &n);
            assert_true(fabs(loss - parts_loss) < 1e-6 * loss);
            if (!(distance(one, parts, n) < 1e-6))
                fail_msg("gpt %d, way %d: %g", gpt, way, distance(one, parts, n));
            free(parts);
        }
        free(one);
        free(own);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ragged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
