// What the backward computes again has the bits of what was kept, takes the memory that was predicted, and leaves the
// buffers out that recompute.h says.
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

#define B      2
#define T      7
#define LAYERS 5
#define UNITS  (LAYERS + 2)

struct rig {
    struct device *dev;
    struct stream *compute;
    struct model_spec spec;
    struct layout *layout;
    struct topology *topology;
    struct model *model;
    enum dtype dt;
    size_t predicted[MEM_CLASSES];
};

static void open_rig(struct rig *r, const char *backend, bool gpt, enum dtype dt,
                     struct recompute_options again) {
    const char *why = NULL;
    *r = (struct rig){.spec = small_model(gpt, LAYERS), .dt = dt};
    r->layout = model_layout_create(&r->spec, 1);
    assert_int_equal(r->layout->count, UNITS);
    struct device_options d = {.threads = 2, .label = "t"};
    assert_int_equal(dev_open(backend_find(backend, &why), &d, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    r->topology = local_create(&(struct local_options){
        .layout = r->layout, .dtype = dt, .dev = r->dev, .compute = r->compute, .optimizer = {optimizers}});
    struct model_options o = {
        .spec = &r->spec, .layout = r->layout, .dtype = dt, .batch = B, .seq = T, .recompute = again};
    model_predict(&o, r->predicted);
    o.dev = r->dev;
    o.compute = r->compute;
    r->model = model_create(&o);
    assert_non_null(r->model);
    for (int u = 0; u < UNITS; u++) {
        float *w = xcalloc((size_t)r->layout->units[u].n_pad, sizeof *w);
        model_init_unit(r->layout, u, 3, w);
        for (int64_t k = 0; k < r->layout->units[u].n_pad; k++) w[k] += 0.1f * rng_normal(77, (uint64_t)k);
        assert_int_equal(topology_load_unit(r->topology, u, w), 0);
        free(w);
    }
}

static void close_rig(struct rig *r) {
    model_destroy(&r->model);
    topology_destroy(&r->topology);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
}

// The host waits for nothing between the micro-batches: the second forward's inputs take the slots of the first.
static void two_micro_batches(struct rig *r, int32_t tokens[2][B * T]) {
    struct unit_view v, tied;
    for (int micro = 0; micro < 2; micro++) {
        topology_begin_micro(r->topology, micro, 2);
        model_set_batch(r->model, tokens[micro], tokens[1 - micro], 0.25f, micro == 0);
        for (int u = 0; u < UNITS; u++) {
            topology_acquire(r->topology, u, PASS_FORWARD, &v);
            model_forward(r->model, u, &v, NULL, false);
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            topology_acquire(r->topology, u, PASS_BACKWARD, &v);
            topology_acquire(r->topology, 0, PASS_BACKWARD, &tied);
            model_backward(r->model, u, &v, u == UNITS - 1 && r->layout->tied ? &tied : NULL);
        }
    }
}

// All units' gradients, one behind the other; the caller frees them.
static char *gradients(struct rig *r, size_t *bytes) {
    int32_t tokens[2][B * T];
    for (int i = 0; i < 2 * B * T; i++)
        tokens[i / (B * T)][i % (B * T)] = (int32_t)rng_below(5, (uint64_t)i, 0, (uint64_t)r->spec.vocab);
    two_micro_batches(r, tokens);
    assert_int_equal(stream_sync(r->compute), 0);
    char *all = NULL;
    *bytes = 0;
    for (int u = 0; u < UNITS; u++) {
        struct unit_view v;
        size_t n = (size_t)r->layout->units[u].n_pad * dtype_size(r->dt);
        topology_acquire(r->topology, u, PASS_BACKWARD, &v);
        all = realloc(all, *bytes + n);
        memcpy(all + *bytes, v.grad, n);
        *bytes += n;
    }
    return all;
}

static const struct recompute_options ways[] = {
    {.kind = RECOMPUTE_NONE},
    {.kind = RECOMPUTE_CHEAP},
    {.kind = RECOMPUTE_BLOCK},
    {.kind = RECOMPUTE_BLOCK, .blocks = 1},
    {.kind = RECOMPUTE_BLOCK, .blocks = 3},
    {.kind = RECOMPUTE_BLOCK, .blocks = 99},
    {.kind = RECOMPUTE_BLOCK, .inputs_on_host = true},
    {.kind = RECOMPUTE_BLOCK, .inputs_on_host = true, .blocks = 2},
    {.kind = RECOMPUTE_BLOCK, .inputs_on_host = true, .blocks = 4},
};
#define WAYS (sizeof ways / sizeof *ways)

static void check(const char *backend, bool gpt, enum dtype dt) {
    char *plain = NULL;
    for (size_t i = 0; i < WAYS; i++) {
        struct rig r;
        size_t bytes;
        struct mem_usage usage;
        open_rig(&r, backend, gpt, dt, ways[i]);
        char *g = gradients(&r, &bytes);
        if (plain && memcmp(g, plain, bytes) != 0)
            fail_msg("%s, %s, %s: other gradients in way %zu", backend, gpt ? "gpt" : "llama", dtype_name(dt),
                     i);
        dev_usage(r.dev, &usage);
        for (int c = 0; c < MEM_CLASSES; c++)
            assert_int_equal(r.predicted[c] + r.topology->memory.predicted_bytes[c], usage.peak_bytes[c]);
        if (plain)
            free(g);
        else
            plain = g;
        close_rig(&r);
    }
    free(plain);
}

static void same_bits_on_a_cpu(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) check("cpu", i & 1, (enum dtype)(i / 2));
}

static void same_bits_on_the_reference_device(void **state) {
    (void)state;
    check("ref", false, DT_F32);
    check("ref", true, DT_BF16);
}

static size_t rounded(int64_t rows, int64_t columns, size_t element) {
    return dev_round((size_t)(rows * columns) * element);
}

struct sizes {
    size_t x, norm, products,
        act;  // of one block: x; both norms' outputs and statistics; qkv, att, mid, up, lse; act
};

static struct sizes sizes_of(bool gpt, size_t e) {
    struct model_spec s = small_model(gpt, LAYERS);
    int64_t R = B * T;
    return (struct sizes){
        .x = rounded(R, s.channels, e),
        .norm = 2 * (rounded(R, s.channels, e) + (gpt ? 2 : 1) * rounded(R, 1, 4)),
        .products = rounded(R, (s.heads + 2 * s.kv_heads) * s.head_size, e) + rounded(R, s.channels, e) * 2 +
                    rounded(R, model_up_width(&s), e) + rounded(R, s.heads, 4),
        .act = rounded(R, s.ffn, e),
    };
}

static void predict(struct recompute_options again, bool gpt, bool gpu, size_t bytes[MEM_CLASSES]) {
    struct model_spec spec = small_model(gpt, LAYERS);
    struct layout *layout = model_layout_create(&spec, 1);
    model_predict(&(struct model_options){.spec = &spec,
                                          .layout = layout,
                                          .dtype = DT_BF16,
                                          .batch = B,
                                          .seq = T,
                                          .gpu = gpu,
                                          .recompute = again},
                  bytes);
    layout_destroy(&layout);
}

// The savings, from the sizes of the tensors. A GPU keeps GELU's output where it may have been fused.
static void the_bytes_are_those_of_the_buffers(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool gpt = i & 1, gpu = i & 2;
        struct sizes z = sizes_of(gpt, 2);
        size_t plain[MEM_CLASSES], now[MEM_CLASSES], act = gpt && gpu ? 0 : z.act;
        size_t all = z.norm + z.products + z.act;
        predict((struct recompute_options){0}, gpt, gpu, plain);
        predict((struct recompute_options){.kind = RECOMPUTE_CHEAP}, gpt, gpu, now);
        assert_int_equal(plain[MEM_ACTIVATION] - now[MEM_ACTIVATION], (LAYERS - 1) * (z.norm + act));
        predict((struct recompute_options){.kind = RECOMPUTE_CHEAP, .gelu_apart = true}, gpt, gpu, now);
        assert_int_equal(plain[MEM_ACTIVATION] - now[MEM_ACTIVATION], (LAYERS - 1) * (z.norm + z.act));
        predict((struct recompute_options){.kind = RECOMPUTE_BLOCK}, gpt, gpu, now);
        assert_int_equal(plain[MEM_ACTIVATION] - now[MEM_ACTIVATION], (LAYERS - 1) * all);
        predict((struct recompute_options){.kind = RECOMPUTE_BLOCK, .blocks = 3}, gpt, gpu, now);
        assert_int_equal(plain[MEM_ACTIVATION] - now[MEM_ACTIVATION], 2 * all);
        assert_int_equal(plain[MEM_HOST], now[MEM_HOST]);
        predict((struct recompute_options){.kind = RECOMPUTE_BLOCK, .inputs_on_host = true}, gpt, gpu, now);
        assert_int_equal(plain[MEM_ACTIVATION] - now[MEM_ACTIVATION],
                         (LAYERS - 1) * all + (LAYERS - 2) * z.x);
        // One allocation, not rounded input by input.
        assert_int_equal(now[MEM_HOST] - plain[MEM_HOST], rounded((LAYERS - 2) * B * T, 24, 2));
    }
}

static void flops_are_those_of_the_products(void **state) {
    (void)state;
    struct model_spec s = small_model(true, LAYERS);
    // qkv 24 x 72, out 24 x 24, up 24 x 40; q k^T and the weighted sum of v see T positions of 24 channels each.
    double block = 2 * (24 * 72 + 24 * 24 + 24 * 40), attention = 4 * T * 24;
    struct token_flops f = recompute_flops_per_token(&ways[2], &s, T);
    assert_true(f.full == (LAYERS - 1) * (block + attention));
    assert_true(f.causal == (LAYERS - 1) * (block + attention / 2));
    assert_true(recompute_flops_per_token(&ways[4], &s, T).full == 2 * (block + attention));
    assert_true(recompute_flops_per_token(&ways[0], &s, T).full == 0);
    assert_true(recompute_flops_per_token(&ways[1], &s, T).full == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_on_a_cpu),
        cmocka_unit_test(same_bits_on_the_reference_device),
        cmocka_unit_test(the_bytes_are_those_of_the_buffers),
        cmocka_unit_test(flops_are_those_of_the_products),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
