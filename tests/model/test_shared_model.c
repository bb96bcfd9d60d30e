// The whole model: analytic gradients against finite differences, accumulation, chunked logits,
// repeatability, for the traits of the models there are and for all others.
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
#include "shared/hf/families.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"

struct rig {
    struct device *dev;
    struct stream *compute;
    struct model_spec spec;
    struct layout *layout;
    struct topology *topology;
    struct model *model;
    int64_t B, T;
    int32_t tokens[64], targets[64];
};

static struct model_spec with_traits(struct model_traits traits, bool tied) {
    struct model_spec s = {.name = "small",
                           .traits = traits,
                           .vocab = 29,
                           .channels = 24,
                           .layers = 2,
                           .heads = 3,
                           .kv_heads = traits.positions == POSITIONS_ROTARY ? 1 : 3,
                           .head_size = 8,
                           .ffn = 40,
                           .max_positions = 16,
                           .tied = tied,
                           .norm_eps = 1e-5f,
                           .rope_theta = 10000.0f,
                           .rope_factor = 1.0f,
                           .init_std = 0.2f,
                           .bos_token = -1,
                           .eos_token = -1};
    return s;
}

static struct model_spec small(const char *hf_type, bool tied) {
    return with_traits(hf_family_named(hf_type, NULL)->traits, tied);
}

static void rig_open(struct rig *r, const char *backend, struct model_spec spec, enum dtype dt) {
    const char *why = NULL;
    memset(r, 0, sizeof *r);
    r->B = 2;
    r->T = 7;
    r->spec = spec;
    r->layout = model_layout_create(&r->spec, 1);
    assert_non_null(r->layout);
    assert_int_equal(
        dev_open(backend_find(backend, &why), &(struct device_options){.threads = 1, .label = "t"}, &r->dev),
        0);
    r->compute = stream_create(r->dev, "compute");
    r->topology = local_create(&(struct local_options){
        .layout = r->layout, .dtype = dt, .dev = r->dev, .compute = r->compute, .optimizer = {optimizers}});
    assert_non_null(r->topology);
    r->model = model_create(&(struct model_options){.spec = &r->spec,
                                                    .layout = r->layout,
                                                    .dev = r->dev,
                                                    .compute = r->compute,
                                                    .dtype = dt,
                                                    .batch = r->B,
                                                    .seq = r->T});
    assert_non_null(r->model);
    for (int u = 0; u < r->layout->count; u++) {
        float *w = xcalloc((size_t)r->layout->units[u].n_pad, sizeof *w);
        model_init_unit(r->layout, u, 3, w);
        // Norm weights of one and biases of zero would hide mistakes, so every value is moved a little.
        for (int i = 0; i < r->layout->units[u].count; i++) {
            const struct tensor *t = &r->layout->units[u].tensors[i];
            for (int64_t k = 0; k < t->numel; k++)
                w[t->offset + k] += 0.1f * rng_normal(77, (uint64_t)(t->logical_start + k));
        }
        assert_int_equal(topology_load_unit(r->topology, u, w), 0);
        free(w);
    }
    for (int i = 0; i < r->B * r->T; i++) {
        r->tokens[i] = (int32_t)rng_below(5, (uint64_t)i, 0, (uint64_t)r->spec.vocab);
        r->targets[i] = (int32_t)rng_below(6, (uint64_t)i, 0, (uint64_t)r->spec.vocab);
    }
}

static void rig_close(struct rig *r) {
    model_destroy(&r->model);
    topology_destroy(&r->topology);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
}

static double loss_of(struct rig *r) {
    int last = r->layout->count - 1;
    struct unit_view v[2], tied;
    model_set_batch(r->model, r->tokens, r->targets, 0.0f, true);
    for (int u = 0; u <= last; u++) {
        topology_acquire(r->topology, u, PASS_EVAL, &v[0]);
        topology_acquire(r->topology, 0, PASS_EVAL, &tied);
        model_forward(r->model, u, &v[0], u == last && r->layout->tied ? &tied : NULL, true);
    }
    return model_loss_sum(r->model);
}

static double gradients(struct rig *r, int micro_index, float scale) {
    int last = r->layout->count - 1;
    struct unit_view v, tied;
    topology_begin_micro(r->topology, micro_index, 2);
    model_set_batch(r->model, r->tokens, r->targets, scale, true);
    for (int u = 0; u <= last; u++) {
        topology_acquire(r->topology, u, PASS_FORWARD, &v);
        model_forward(r->model, u, &v, NULL, false);
    }
    for (int u = last; u >= 0; u--) {
        topology_acquire(r->topology, u, PASS_BACKWARD, &v);
        topology_acquire(r->topology, 0, PASS_BACKWARD, &tied);
        model_backward(r->model, u, &v, u == last && r->layout->tied ? &tied : NULL);
    }
    return model_loss_sum(r->model);
}

// Central differences of the summed loss at a few elements of every tensor. fp32 loss of ~50 with
// rounding near 1e-5 and a step of 1e-2 leaves an error near 1e-3 of a typical gradient.
static void check_gradients(const char *backend, struct model_spec spec) {
    struct rig r;
    rig_open(&r, backend, spec, DT_F32);
    double loss = gradients(&r, 0, 1.0f);
    assert_true(fabs(loss - loss_of(&r)) < 1e-3);
    for (int u = 0; u < r.layout->count; u++) {
        struct unit_view v;
        topology_acquire(r.topology, u, PASS_BACKWARD, &v);
        float *w = (float *)(uintptr_t)v.weights;
        const float *g = v.grad;
        for (int i = 0; i < r.layout->units[u].count; i++) {
            const struct tensor *t = &r.layout->units[u].tensors[i];
            for (int k = 0; k < 6; k++) {
                int64_t at = t->offset + (int64_t)rng_below(9, (uint64_t)k, (uint64_t)t->logical_start,
                                                            (uint64_t)t->numel);
                float kept = w[at], h = 1e-2f;
                w[at] = kept + h;
                double up = loss_of(&r);
                w[at] = kept - h;
                double down = loss_of(&r);
                w[at] = kept;
                double expected = (up - down) / (2.0 * (double)h);
                if (fabs(expected - (double)g[at]) > 4e-3 + 1e-2 * fabs(expected))
                    fail_msg("%s[%lld]: finite difference %g, gradient %g", t->name,
                             (long long)(at - t->offset), expected, (double)g[at]);
            }
        }
    }
    rig_close(&r);
}

static void gradients_of_llama(void **state) {
    (void)state;
    check_gradients("cpu", small("llama", false));
    check_gradients("cpu", small("qwen2", true));
}

static void gradients_of_gpt2(void **state) {
    (void)state;
    check_gradients("cpu", small("gpt2", true));
}

// Any combination of traits computes, also those that no row of shared/hf has.
static void gradients_of_any_traits(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        bool biases = i & 8;
        struct model_traits traits = {.norm = i & 1 ? NORM_LAYER : NORM_RMS,
                                      .positions = i & 2 ? POSITIONS_LEARNED : POSITIONS_ROTARY,
                                      .mlp = i & 4 ? MLP_GELU : MLP_SWIGLU,
                                      .qkv_bias = biases,
                                      .out_bias = biases,
                                      .mlp_bias = biases};
        check_gradients("cpu", with_traits(traits, false));
    }
}

static void gradients_on_the_reference_device(void **state) {
    (void)state;
    check_gradients("ref", small("llama", true));
    check_gradients("ref", small("gpt2", true));
}

// Two equal micro-batches give exactly twice the gradient in fp32: x + x is exact.
static void micro_batches_add(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r, "cpu", small("qwen2", true), DT_F32);
    gradients(&r, 0, 0.5f);
    float *once[8];
    for (int u = 0; u < r.layout->count; u++) {
        struct unit_view v;
        topology_acquire(r.topology, u, PASS_BACKWARD, &v);
        once[u] = xcalloc((size_t)r.layout->units[u].n_pad, sizeof(float));
        memcpy(once[u], v.grad, (size_t)r.layout->units[u].n_pad * sizeof(float));
    }
    gradients(&r, 1, 0.5f);
    for (int u = 0; u < r.layout->count; u++) {
        struct unit_view v;
        topology_acquire(r.topology, u, PASS_BACKWARD, &v);
        const float *g = v.grad;
        for (int64_t i = 0; i < r.layout->units[u].n_pad; i++)
            assert_true(fabsf(g[i] - 2.0f * once[u][i]) <= 1e-5f * (1e-3f + fabsf(g[i])));
        free(once[u]);
    }
    rig_close(&r);
}

// 16-bit runs follow the fp32 run to within their precision, and repeat bit for bit.
static void sixteen_bits_follow_fp32(void **state) {
    (void)state;
    const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    double loss[3];
    for (int i = 0; i < 3; i++) {
        struct rig r;
        rig_open(&r, "cpu", small("qwen2", false), types[i]);
        loss[i] = gradients(&r, 0, 1.0f);
        assert_true(loss[i] == gradients(&r, 0, 1.0f));
        rig_close(&r);
    }
    assert_true(fabs(loss[1] / loss[0] - 1.0) < 2e-2);
    assert_true(fabs(loss[2] / loss[0] - 1.0) < 3e-3);
}

static void predicts_its_memory(void **state) {
    (void)state;
    struct rig r;
    rig_open(&r, "cpu", small("gpt2", true), DT_BF16);
    size_t model[MEM_CLASSES];
    struct mem_usage usage;
    model_predict(
        &(struct model_options){
            .spec = &r.spec, .layout = r.layout, .dtype = DT_BF16, .batch = r.B, .seq = r.T},
        model);
    gradients(&r, 0, 1.0f);
    dev_usage(r.dev, &usage);
    for (int c = 0; c < MEM_CLASSES; c++)
        assert_int_equal(model[c] + r.topology->memory.predicted_bytes[c], usage.peak_bytes[c]);
    rig_close(&r);
}

// Activations of a model whose MLP is 256 wider, per row and layer: LLaMA keeps gate, up and their product,
// and writes the gradient of gate and up over them; beside the layers stands the gradient of the product.
// GPT-2 keeps up and its GELU, and has the gradient of up once.
static void the_gradient_of_gate_and_up_takes_no_memory(void **state) {
    static const struct {
        const char *hf_type;
        size_t each, once;
    } wants[] = {{"qwen2", 3, 1}, {"gpt2", 2, 1}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t bytes[2][MEM_CLASSES], rows = 2 * 8;
        for (int wide = 0; wide < 2; wide++) {
            struct model_spec spec = small(wants[i].hf_type, true);
            spec.ffn += wide * 256;
            struct layout *layout = model_layout_create(&spec, 1);
            model_predict(
                &(struct model_options){
                    .spec = &spec, .layout = layout, .dtype = DT_BF16, .batch = 2, .seq = 8},
                bytes[wide]);
            layout_destroy(&layout);
        }
        assert_int_equal(bytes[1][MEM_ACTIVATION] - bytes[0][MEM_ACTIVATION],
                         rows * 256 * 2 * (2 * wants[i].each + wants[i].once));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_llama),
        cmocka_unit_test(gradients_of_gpt2),
        cmocka_unit_test(gradients_of_any_traits),
        cmocka_unit_test(gradients_on_the_reference_device),
        cmocka_unit_test(micro_batches_add),
        cmocka_unit_test(sixteen_bits_follow_fp32),
        cmocka_unit_test(predicts_its_memory),
        cmocka_unit_test(the_gradient_of_gate_and_up_takes_no_memory),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
