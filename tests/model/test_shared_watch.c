// A value that is not finite is found in its own tensor, wherever it lies there, and in no neighbour.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/model/model.h"
#include "tests/model/small_model.h"

#define LAYERS 2

struct rig {
    struct device *dev;
    struct stream *compute;
    struct model_spec spec;
    struct layout *layout;
    struct model *model;
    enum dtype dt;
    char **grads;  // (units) of zeros
};

static void open_rig(struct rig *r, const char *backend, bool gpt, enum dtype dt) {
    const char *why = NULL;
    *r = (struct rig){.spec = small_model(gpt, LAYERS), .dt = dt};
    r->layout = model_layout_create(&r->spec, 2);
    struct device_options d = {.threads = 2, .label = "t"};
    assert_int_equal(dev_open(backend_find(backend, &why), &d, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    struct model_options o = {
        .spec = &r->spec, .layout = r->layout, .dtype = dt, .batch = 1, .seq = 5, .watch_gradients = true};
    size_t predicted[MEM_CLASSES], without[MEM_CLASSES];
    model_predict(&o, predicted);
    o.watch_gradients = false;
    model_predict(&o, without);
    assert_true(predicted[MEM_WORKSPACE] > without[MEM_WORKSPACE]);
    o.watch_gradients = true;
    o.dev = r->dev;
    o.compute = r->compute;
    r->model = model_create(&o);
    struct mem_usage usage;
    dev_usage(r->dev, &usage);
    assert_int_equal(usage.current_bytes[MEM_WORKSPACE], predicted[MEM_WORKSPACE]);
    r->grads = xcalloc((size_t)r->layout->count, sizeof *r->grads);
    for (int u = 0; u < r->layout->count; u++)
        r->grads[u] = xcalloc((size_t)r->layout->units[u].n_pad, dtype_size(dt));
}

static void close_rig(struct rig *r) {
    for (int u = 0; u < r->layout->count; u++) free(r->grads[u]);
    free(r->grads);
    model_destroy(&r->model);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
}

static void watch_all(struct rig *r, int micro) {
    for (int u = r->layout->count - 1; u >= 0; u--) grad_watch_unit(r->model, u, r->grads[u], micro);
    assert_int_equal(stream_sync(r->compute), 0);
}

static void finds(struct rig *r, int64_t tensor, int64_t elements) {
    struct grad_watched w;
    assert_int_equal(grad_watch_read(r->model, &w), 0);
    assert_int_equal(w.tensor, tensor);
    if (tensor < 0) return;
    assert_int_equal(w.elements, elements);
    assert_string_equal(w.name, grad_watch_name(r->layout, tensor));
}

static void every_tensor(struct rig *r) {
    int64_t place = 0;
    watch_all(r, 0);
    finds(r, -1, 0);
    for (int u = 0; u < r->layout->count; u++) {
        for (int i = 0; i < r->layout->units[u].count; i++, place++) {
            const struct tensor *t = &r->layout->units[u].tensors[i];
            assert_string_equal(grad_watch_name(r->layout, place), t->name);
            for (int end = 0; end < 2; end++) {
                size_t at = (size_t)(t->offset + (end ? t->numel - 1 : 0));
                dtype_store(r->dt, r->grads[u], at, end ? INFINITY : NAN);
                watch_all(r, 0);
                finds(r, place, 1);
                dtype_store(r->dt, r->grads[u], at, 0);
            }
        }
    }
    assert_int_equal(place, layout_tensors(r->layout));
}

static void test_every_tensor(void **unused) {
    (void)unused;
    static const char *const backends[] = {"ref", "cpu"};
    for (int k = 0; k < 8; k++) {
        struct rig r;
        open_rig(&r, backends[k & 1], k & 2, k & 4 ? DT_F16 : DT_BF16);
        every_tensor(&r);
        close_rig(&r);
    }
}

// The values of an earlier micro-batch of the step count; those of an earlier step do not. The first tensor is named.
static void test_micro_batches(void **unused) {
    (void)unused;
    struct rig r;
    open_rig(&r, "cpu", true, DT_F16);
    int last = r.layout->count - 1;
    size_t at = (size_t)r.layout->units[1].tensors[1].offset;
    int64_t place = r.layout->units[0].count + 1;
    dtype_store(DT_F16, r.grads[1], at, NAN);
    dtype_store(DT_F16, r.grads[last], 0, NAN);
    watch_all(&r, 0);
    dtype_store(DT_F16, r.grads[1], at, 0);
    watch_all(&r, 1);
    finds(&r, place, 1);
    watch_all(&r, 0);
    finds(&r, layout_tensors(r.layout) - r.layout->units[last].count, 1);
    close_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tensor),
        cmocka_unit_test(test_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
