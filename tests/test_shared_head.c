// The head on a device with memory of its own: its products run over the vocabulary and the classes reserved
// behind it, and nothing of that shows in losses, gradients, or the reserved rows themselves. The device here
// is the cpu backend that says its memory is not the host's, so every sum is the CPU's.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend_impl.h"
#include "shared/core/error.h"
#include "shared/core/rng.h"
#include "shared/model/model.h"
#include "shared/run/local.h"

#define PRODUCTS_MAX 256

// ---------------------------------------------------------------- the device
static struct backend gpu;  // the cpu's table but for what is below
static struct matmul_args products[PRODUCTS_MAX];
static int product_count;

static int gpu_open(struct device **out, const struct device_options *o) {
    int rc = cpu_backend.open(out, o);
    if (rc == 0) (*out)->backend = &gpu;
    return rc;
}

static void gpu_launch(struct stream *s, enum op op, const void *args, size_t bytes) {
    if (op == OP_MATMUL && product_count < PRODUCTS_MAX) memcpy(&products[product_count++], args, bytes);
    cpu_backend.launch(s, op, args, bytes);
}

static int make_gpu(void **state) {
    (void)state;
    gpu = cpu_backend;
    gpu.host_memory = false;
    gpu.open = gpu_open;
    gpu.launch = gpu_launch;
    return 0;
}

// ---------------------------------------------------------------- a model on it
struct rig {
    struct device *dev;
    struct stream *compute;
    struct model_spec spec;
    struct layout *layout;
    struct topology *topology;
    struct model *model;
    int64_t B, T;
    int32_t *tokens, *targets;
};

static struct model_spec small(enum model_family family, int vocab, bool tied) {
    bool llama = family == FAMILY_LLAMA;
    struct model_spec s = {.family = family,
                           .vocab = vocab,
                           .channels = 24,
                           .layers = 1,
                           .heads = 3,
                           .kv_heads = llama ? 1 : 3,
                           .head_size = 8,
                           .ffn = 40,
                           .max_positions = 16,
                           .qkv_bias = !llama,
                           .tied = tied,
                           .norm_eps = 1e-5f,
                           .rope_theta = 10000.0f,
                           .rope_factor = 1.0f,
                           .init_std = 0.2f,
                           .bos_token = -1,
                           .eos_token = -1};
    snprintf(s.name, sizeof s.name, "small");
    snprintf(s.hf_type, sizeof s.hf_type, llama ? "llama" : "gpt2");
    return s;
}

static struct unit_view view_of(struct rig *r, int u, enum pass pass) {
    struct unit_view v;
    assert_int_equal(topology_acquire(r->topology, u, pass, &v), 0);
    return v;
}

static void rig_open(struct rig *r, const struct backend *b, struct model_spec spec, enum dtype dt) {
    *r = (struct rig){.B = 2, .T = 7, .spec = spec};
    r->layout = model_layout_create(&r->spec, 1);
    assert_int_equal(dev_open(b, &(struct device_options){.threads = 1, .label = "t"}, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    r->topology = local_create(&(struct local_options){
        .layout = r->layout,
        .dtype = dt,
        .dev = r->dev,
        .compute = r->compute,
        .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f}});
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
        assert_int_equal(topology_load_unit(r->topology, u, w), 0);
        free(w);
    }
    size_t n = (size_t)(r->B * r->T);
    r->tokens = xcalloc(n, sizeof *r->tokens);
    r->targets = xcalloc(n, sizeof *r->targets);
    for (size_t i = 0; i < n; i++) {
        r->tokens[i] = (int32_t)rng_below(5, i, 0, (uint64_t)r->spec.vocab);
        r->targets[i] = (int32_t)rng_below(6, i, 0, (uint64_t)r->spec.vocab);
    }
}

static void rig_close(struct rig *r) {
    model_destroy(&r->model);
    topology_destroy(&r->topology);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
    free(r->tokens);
    free(r->targets);
}

// A micro-batch; the loss.
static double gradients(struct rig *r, int micro) {
    int last = r->layout->count - 1;
    topology_begin_micro(r->topology, micro, 2);
    model_set_batch(r->model, r->tokens, r->targets, 1.0f, true);
    for (int u = 0; u <= last; u++) {
        struct unit_view v = view_of(r, u, PASS_FORWARD);
        model_forward(r->model, u, &v, NULL, false);
    }
    for (int u = last; u >= 0; u--) {
        struct unit_view v = view_of(r, u, PASS_BACKWARD), tied = view_of(r, 0, PASS_BACKWARD);
        model_backward(r->model, u, &v, u == last && r->layout->tied ? &tied : NULL);
    }
    return model_loss_sum(r->model);
}

static const struct tensor *head_tensor(const struct rig *r, int *u) {
    *u = r->layout->tied ? 0 : r->layout->count - 1;
    const struct unit *unit = &r->layout->units[*u];
    return r->layout->tied ? &unit->tensors[0] : &unit->tensors[unit->count - 1];
}

// ---------------------------------------------------------------- padded classes

// Sevens in what is reserved behind the head's tensor, in its gradient and in its weights: were the gradient
// of a reserved class anything but zero, that of every row would show it.
static void poison_reserved(struct rig *r, enum dtype dt) {
    int u;
    const struct tensor *t = head_tensor(r, &u);
    struct unit_view v = view_of(r, u, PASS_BACKWARD);
    void *weights = (void *)(uintptr_t)v.weights;
    for (int64_t i = t->offset + t->numel; i < t->offset + t->numel + t->reserved; i++) {
        dtype_store(dt, v.grad, (size_t)i, 7.0f);
        dtype_store(dt, weights, (size_t)i, 7.0f);
    }
}

// Elements of the reserved rows that are still what poison_reserved made them, and those that are zero.
static void count_reserved(struct rig *r, enum dtype dt, int64_t *sevens, int64_t *zeros) {
    int u;
    const struct tensor *t = head_tensor(r, &u);
    struct unit_view v = view_of(r, u, PASS_BACKWARD);
    *sevens = *zeros = 0;
    for (int64_t i = 0; i < t->reserved; i++) {
        float x = dtype_load(dt, v.grad, (size_t)(t->offset + t->numel + i));
        *sevens += x == 7.0f;
        *zeros += x == 0.0f;
    }
}

static void assert_same_gradients(struct rig *a, struct rig *b, enum dtype dt) {
    for (int u = 0; u < a->layout->count; u++) {
        const struct unit *unit = &a->layout->units[u];
        const char *x = view_of(a, u, PASS_BACKWARD).grad, *y = view_of(b, u, PASS_BACKWARD).grad;
        for (int i = 0; i < unit->count; i++) {
            size_t at = (size_t)unit->tensors[i].offset * dtype_size(dt);
            assert_memory_equal(x + at, y + at, (size_t)unit->tensors[i].numel * dtype_size(dt));
        }
    }
}

// How many of the recorded products have a side of n.
static int products_with(int64_t n) {
    int found = 0;
    for (int i = 0; i < product_count; i++)
        found += products[i].m == n || products[i].n == n || products[i].k == n;
    return found;
}

static void check_padded(struct model_spec spec, enum dtype dt) {
    struct rig cpu, device;
    int64_t sevens, zeros, rows = 64 - spec.vocab, reserved;
    int u;
    rig_open(&cpu, &cpu_backend, spec, dt);
    rig_open(&device, &gpu, spec, dt);
    reserved = head_tensor(&cpu, &u)->reserved;
    for (int micro = 0; micro < 2; micro++) {
        if (micro == 0) poison_reserved(&cpu, dt), poison_reserved(&device, dt);
        product_count = 0;
        assert_true(gradients(&cpu, micro) == gradients(&device, micro));
        assert_same_gradients(&cpu, &device, dt);
        assert_int_equal(products_with(64), 3);
        assert_int_equal(products_with(spec.vocab), 0);
        count_reserved(&cpu, dt, &sevens, &zeros);
        assert_int_equal(sevens, reserved);
        count_reserved(&device, dt, &sevens, &zeros);
        assert_int_equal(zeros, rows * spec.channels);
        assert_int_equal(sevens, reserved - rows * spec.channels);
    }
    rig_close(&cpu);
    rig_close(&device);
}

static void padded_classes_change_nothing(void **state) {
    (void)state;
    for (enum dtype dt = DT_F32; dt <= DT_F16; dt++) {
        check_padded(small(FAMILY_LLAMA, 29, true), dt);
        check_padded(small(FAMILY_LLAMA, 37, false), dt);
        check_padded(small(FAMILY_GPT2, 61, true), dt);
    }
}

// Steps of AdamW with weight decay: the reserved weights stay zero, and the norm is the CPU's.
static void reserved_weights_stay_zero(void **state) {
    (void)state;
    struct rig cpu, device;
    struct step_stats a, b;
    int u;
    rig_open(&cpu, &cpu_backend, small(FAMILY_GPT2, 29, true), DT_BF16);
    rig_open(&device, &gpu, small(FAMILY_GPT2, 29, true), DT_BF16);
    for (int64_t step = 0; step < 3; step++) {
        struct step_input in = {.step = step, .updates = step, .lr = 0.1f, .loss_scale = 1, .clip = 0.5f};
        gradients(&cpu, 0);
        gradients(&device, 0);
        assert_int_equal(topology_step(cpu.topology, &in, &a), 0);
        assert_int_equal(topology_step(device.topology, &in, &b), 0);
        assert_true(a.grad_norm == b.grad_norm && !b.skipped);
    }
    const struct tensor *t = head_tensor(&device, &u);
    const void *w = view_of(&device, u, PASS_FORWARD).weights;
    assert_true(t->reserved > 0);
    for (int64_t i = 0; i < t->reserved; i++)
        assert_true(dtype_load(DT_BF16, w, (size_t)(t->offset + t->numel + i)) == 0.0f);
    rig_close(&cpu);
    rig_close(&device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padded_classes_change_nothing),
        cmocka_unit_test(reserved_weights_stay_zero),
    };
    return cmocka_run_group_tests_name("head", tests, make_gpu, NULL);
}
