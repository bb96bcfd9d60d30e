// The whole model against PyTorch: logits, loss, every gradient and ten AdamW steps, from the data that
// tests/make_vectors.py wrote (fp64, rounded to fp32 where stored). With LoRA the same of the adapters (NAME/lora). STARRING_TEST_DEVICE=cuda runs the same
// on that backend instead of the host's, and is skipped where it is missing.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "shared/core/error.h"
#include "shared/hf/hf_dir.h"
#include "shared/hf/presets.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"
#include "shared/train/frozen.h"
#include "tests/model/expected.h"

#define VECTORS    "tests/data/vectors/"
#define STEPS      10
#define MAX_TOKENS 64
#define MAX_LOGITS 4096

struct rig {
    char dir[64];
    bool lora;
    struct model_spec spec;
    struct layout *layout;  // of what is trained
    const struct layout *whole;
    struct frozen *frozen;
    struct device *dev;
    struct stream *compute;
    struct topology *topology;
    struct model *model;
    int64_t B, T;
    int32_t tokens[MAX_TOKENS], targets[MAX_TOKENS];
    double logits[MAX_LOGITS], losses[STEPS];
};

// Tensor `name` of expected.safetensors as doubles; returns how many.
static int64_t expected(struct st_file *f, const char *name, double *out, int64_t room) {
    const struct st_tensor *t = st_find(f, name);
    assert_non_null(t);
    assert_true(t->numel <= room);
    assert_int_equal(st_to_f64(t, 0, t->numel, out), 0);
    return t->numel;
}

static struct st_file *open_expected(const char *dir) {
    char path[128];
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    struct st_file *f = st_open(path);
    assert_non_null(f);
    return f;
}

// base: the model's directory, whose tokens its adapters read too.
static void read_expected(struct rig *r, const char *base) {
    double ids[MAX_TOKENS];
    struct st_file *f = open_expected(base);
    r->B = st_find(f, "tokens")->shape[0];
    r->T = st_find(f, "tokens")->shape[1];
    int64_t n = expected(f, "tokens", ids, MAX_TOKENS);
    for (int64_t i = 0; i < n; i++) r->tokens[i] = (int32_t)ids[i];
    assert_int_equal(expected(f, "targets", ids, MAX_TOKENS), n);
    for (int64_t i = 0; i < n; i++) r->targets[i] = (int32_t)ids[i];
    st_close(&f);
    f = open_expected(r->dir);
    assert_int_equal(expected(f, "logits", r->logits, MAX_LOGITS), n * r->spec.vocab);
    assert_int_equal(expected(f, "losses", r->losses, STEPS), STEPS);
    st_close(&f);
}

// The adapters of DIR/part, as read_units.
static float *read_adapters(const struct rig *r, const char *part) {
    char path[128];
    struct hf_part p[HF_MAX_PARTS];
    snprintf(path, sizeof path, "%s%s/adapter_model.safetensors", r->dir, part);
    struct st_file *f = st_open(path);
    assert_non_null(f);
    float *all = xcalloc((unsigned long)r->layout->padded, sizeof *all), *at = all;
    int64_t found = 0;
    for (int u = 0; u < r->layout->count; at += r->layout->units[u++].n_pad)
        for (int t = 0; t < r->layout->units[u].count; t++, found++) {
            const struct tensor *ours = &r->layout->units[u].tensors[t];
            assert_int_equal(hf_parts(&r->spec, r->layout, u, t, p), 1);
            snprintf(path, sizeof path, "base_model.model.%s", p->name);
            const struct st_tensor *in = st_find(f, path);
            if (!in) fail_msg("%s: no %s", r->dir, path);
            assert_int_equal(in->shape[0], ours->shape[0]);
            assert_int_equal(in->shape[1], ours->shape[1]);
            assert_int_equal(st_to_f32(in, 0, in->numel, at + ours->offset), 0);
        }
    assert_int_equal(found, st_count(f));
    st_close(&f);
    return all;
}

// The trained tensors of DIR/part as fp32 units in our layout; one buffer of layout->padded elements.
static float *read_units(const struct rig *r, const char *part) {
    char path[128];
    if (r->lora) return read_adapters(r, part);
    snprintf(path, sizeof path, "%s%s", r->dir, part);
    struct hf_reader *h = hf_open(path, &r->spec, r->layout);
    assert_non_null(h);
    float *all = xcalloc((unsigned long)r->layout->padded, sizeof *all), *at = all;
    for (int u = 0; u < r->layout->count; at += r->layout->units[u++].n_pad)
        assert_int_equal(hf_read_unit(h, u, at), 0);
    hf_close(&h);
    return all;
}

static void load_frozen(struct rig *r, const char *base, enum dtype dt) {
    bool failed;
    r->frozen = frozen_create(r->dev, r->layout, dt, &failed);
    assert_false(failed);
    struct hf_reader *h = hf_open(base, &r->spec, r->layout);
    assert_non_null(h);
    for (int u = 0; u < r->whole->count; u++) {
        float *values = xcalloc((unsigned long)r->whole->units[u].n_pad, sizeof *values);
        assert_int_equal(hf_read_unit(h, u, values), 0);
        assert_int_equal(frozen_load(r->frozen, r->compute, u, values + r->whole->units[u].trained), 0);
        free(values);
    }
    hf_close(&h);
}

static const struct backend *backend_or_skip(const char *name) {
    const char *why = "";
    const struct backend *b = backend_find(name, &why);
    if (b) return b;
    printf("device: skipped: %s\n", why);
    skip();
    return NULL;
}

// name: "llama", or "llama/lora" for the adapters of that model.
static void rig_open(struct rig *r, const char *backend, const char *name, enum dtype dt) {
    const struct backend *b = backend_or_skip(backend);
    char base[64];
    memset(r, 0, sizeof *r);
    r->lora = strchr(name, '/') != NULL;
    snprintf(r->dir, sizeof r->dir, VECTORS "%s", name);
    snprintf(base, sizeof base, VECTORS "%.*s", (int)strcspn(name, "/"), name);
    assert_int_equal(model_spec_load(r->dir, &r->spec), 0);
    r->layout = model_layout_create(&r->spec, 1);
    r->whole = layout_of_model(r->layout);
    read_expected(r, base);
    assert_int_equal(dev_open(b, &(struct device_options){.threads = 1, .label = "test"}, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    r->topology = local_create(
        &(struct local_options){.layout = r->layout,
                                .dtype = dt,
                                .dev = r->dev,
                                .compute = r->compute,
                                .optimizer = {optimizers, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f,
                                              .eps = 1e-8f, .weight_decay = 0.1f}});
    assert_non_null(r->topology);
    r->model = model_create(&(struct model_options){.spec = &r->spec,
                                                    .layout = r->layout,
                                                    .dev = r->dev,
                                                    .compute = r->compute,
                                                    .dtype = dt,
                                                    .batch = r->B,
                                                    .seq = r->T});
    assert_non_null(r->model);
    float *first = read_units(r, ""), *at = first;
    for (int u = 0; u < r->layout->count; at += r->layout->units[u++].n_pad)
        assert_int_equal(topology_load_unit(r->topology, u, at), 0);
    free(first);
    if (r->lora) load_frozen(r, base, dt);
}

static void rig_close(struct rig *r) {
    frozen_destroy(&r->frozen);
    model_destroy(&r->model);
    topology_destroy(&r->topology);
    stream_destroy(&r->compute);
    dev_close(&r->dev);
    layout_destroy(&r->layout);
}

// A copy of n fp32 of device memory; the caller frees.
static float *from_device(const struct rig *r, const void *device, int64_t n) {
    float *host = xcalloc((unsigned long)n, sizeof *host);
    dev_copy(r->compute, host, device, (size_t)n * sizeof *host);
    assert_int_equal(stream_sync(r->compute), 0);
    return host;
}

// As the training loop does.
static void acquire(struct rig *r, int u, enum pass pass, struct unit_view *v) {
    int trained = layout_trained(r->layout, u);
    *v = (struct unit_view){.weights = frozen_unit(r->frozen, u)};
    if (trained < 0) return;
    assert_int_equal(topology_acquire(r->topology, trained, pass, v), 0);
    v->frozen = frozen_unit(r->frozen, u);
}

static void release(struct rig *r, int u, enum pass pass) {
    int trained = layout_trained(r->layout, u);
    if (trained >= 0) assert_int_equal(topology_release(r->topology, trained, pass), 0);
}

static void forward(struct rig *r, enum pass pass) {
    int last = r->whole->count - 1;
    for (int u = 0; u <= last; u++) {
        struct unit_view v, tied;
        bool both = u == last && r->spec.tied && pass == PASS_EVAL;
        acquire(r, u, pass, &v);
        if (both) acquire(r, 0, pass, &tied);
        model_forward(r->model, u, &v, both ? &tied : NULL, pass == PASS_EVAL);
        if (both) release(r, 0, pass);
        release(r, u, pass);
    }
}

// Forward and backward of the mean loss over the batch; returns the loss.
static double forward_backward(struct rig *r) {
    int last = r->whole->count - 1;
    int64_t n = r->B * r->T;
    assert_int_equal(topology_begin_micro(r->topology, 0, 1), 0);
    model_set_batch(r->model, r->tokens, r->targets, 1.0f / (float)n, true);
    forward(r, PASS_FORWARD);
    for (int u = last; u >= (r->lora ? 1 : 0); u--) {
        struct unit_view v, tied;
        bool both = u == last && r->spec.tied;
        acquire(r, u, PASS_BACKWARD, &v);
        if (both) acquire(r, 0, PASS_BACKWARD, &tied);
        model_backward(r->model, u, &v, both ? &tied : NULL);
        int trained = layout_trained(r->layout, u);
        if (trained >= 0) assert_int_equal(topology_grad_ready(r->topology, trained), 0);
    }
    assert_int_equal(stream_sync(r->compute), 0);
    return model_loss_sum(r->model) / (double)n;
}

// Every tensor of unit u: |got - want| <= relative * (largest |want| of the tensor) + absolute.
static void compare_unit(const struct rig *r, int u, const float *got, const float *want, double relative,
                         double absolute) {
    for (int i = 0; i < r->layout->units[u].count; i++) {
        const struct tensor *t = &r->layout->units[u].tensors[i];
        double largest = 0.0;
        for (int64_t k = t->offset; k < t->offset + t->numel; k++)
            if (fabs((double)want[k]) > largest) largest = fabs((double)want[k]);
        for (int64_t k = t->offset; k < t->offset + t->numel; k++)
            if (!(fabs((double)got[k] - (double)want[k]) <= relative * largest + absolute))
                fail_msg("%s %s[%lld]: %.9g, PyTorch has %.9g", r->dir, t->name, (long long)(k - t->offset),
                         (double)got[k], (double)want[k]);
    }
}

// Adam divides a gradient by its own size. Softmax does not see a bias on k (without rotary embeddings), so
// its true gradient is zero, and rounding alone decides which way it moves, by up to lr a step. Everything
// else agrees closely.
static void compare_after(const struct rig *r, int u, const float *got, const float *want) {
    for (int i = 0; i < r->layout->units[u].count; i++) {
        const struct tensor *t = &r->layout->units[u].tensors[i];
        bool has_k_bias = r->spec.traits.positions == POSITIONS_LEARNED && strstr(t->name, ".bqkv");
        for (int64_t k = 0; k < t->numel; k++) {
            bool k_bias = has_k_bias && k >= r->spec.channels && k < 2 * r->spec.channels;
            double is = (double)got[t->offset + k], wanted = (double)want[t->offset + k];
            if (!(fabs(is - wanted) <= (k_bias ? 2.1e-3 * STEPS : 1e-5)))
                fail_msg("%s %s[%lld]: %.9g after %d steps, PyTorch has %.9g", r->dir, t->name, (long long)k,
                         is, STEPS, wanted);
        }
    }
}

static void check_logits(struct rig *r, double tolerance) {
    int last = r->whole->count - 1;
    int64_t n = r->B * r->T;
    struct unit_view head, tied;
    model_set_batch(r->model, r->tokens, r->targets, 0.0f, true);
    forward(r, PASS_EVAL);
    assert_int_equal(stream_sync(r->compute), 0);
    double loss = model_loss_sum(r->model) / (double)n;
    if (!(fabs(loss - r->losses[0]) <= tolerance))
        fail_msg("%s: loss %.9g, PyTorch has %.9g", r->dir, loss, r->losses[0]);
    float *logits = xcalloc((unsigned long)(n * r->spec.vocab), sizeof *logits);
    acquire(r, last, PASS_EVAL, &head);
    acquire(r, 0, PASS_EVAL, &tied);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(
            model_row_logits(r->model, &head, r->spec.tied ? &tied : NULL, i, logits + i * r->spec.vocab), 0);
    for (int64_t i = 0; i < n * r->spec.vocab; i++)
        if (!(fabs((double)logits[i] - r->logits[i]) <= tolerance))
            fail_msg("%s: logit %lld is %.9g, PyTorch has %.9g", r->dir, (long long)i, (double)logits[i],
                     r->logits[i]);
    free(logits);
    release(r, 0, PASS_EVAL);
    release(r, last, PASS_EVAL);
}

static void step(struct rig *r, int64_t t) {
    struct step_stats stats;
    const struct step_input in = {.step = t,
                                  .updates = t,
                                  .lr = 1e-3f,
                                  .loss_scale = 1.0f,
                                  .loss_sum = model_loss_on_device(r->model),
                                  .loss_tokens = (double)(r->B * r->T)};
    assert_int_equal(topology_step(r->topology, &in, &stats), 0);
    assert_false(stats.skipped);
}

// fp32 rounds to 6e-8; a few hundred operations in a row keep results within 1e-5 of fp64.
static void check_fp32(const char *backend, const char *name) {
    struct rig r;
    rig_open(&r, backend, name, DT_F32);
    check_logits(&r, 2e-5);
    float *gradients = read_units(&r, "/gradients"), *after = read_units(&r, "/after");
    for (int64_t t = 0; t < STEPS; t++) {
        double loss = forward_backward(&r);
        if (!(fabs(loss - r.losses[t]) <= 1e-4))
            fail_msg("%s: step %lld: loss %.9g, PyTorch has %.9g", r.dir, (long long)t + 1, loss,
                     r.losses[t]);
        float *want = gradients;
        for (int u = 0; t == 0 && u < r.layout->count; want += r.layout->units[u++].n_pad) {
            struct unit_view v;
            assert_int_equal(topology_acquire(r.topology, u, PASS_BACKWARD, &v), 0);
            float *grad = from_device(&r, v.grad, r.layout->units[u].n_pad);
            compare_unit(&r, u, grad, want, 1e-5, 1e-7);
            free(grad);
        }
        step(&r, t);
    }
    float *want = after;
    for (int u = 0; u < r.layout->count; want += r.layout->units[u++].n_pad) {
        struct unit_view v;
        assert_int_equal(topology_acquire(r.topology, u, PASS_EVAL, &v), 0);
        float *weights = from_device(&r, v.weights, r.layout->units[u].n_pad);
        compare_after(&r, u, weights, want);
        free(weights);
        assert_int_equal(topology_release(r.topology, u, PASS_EVAL), 0);
    }
    free(gradients);
    free(after);
    rig_close(&r);
}

// 16-bit training follows the fp64 loss curve to the precision of its storage.
static void check_16_bit(const char *backend, const char *name, enum dtype dt, double tolerance) {
    struct rig r;
    rig_open(&r, backend, name, dt);
    for (int64_t t = 0; t < STEPS; t++) {
        double loss = forward_backward(&r);
        if (!(fabs(loss - r.losses[t]) <= tolerance))
            fail_msg("%s %s: step %lld: loss %.9g, PyTorch has %.9g", r.dir, dtype_name(dt), (long long)t + 1,
                     loss, r.losses[t]);
        step(&r, t);
    }
    rig_close(&r);
}

static void llama_cpu(void **state) { (void)state, check_fp32("cpu", "llama"); }
static void qwen_cpu(void **state) { (void)state, check_fp32("cpu", "qwen"); }
static void mistral_cpu(void **state) { (void)state, check_fp32("cpu", "mistral"); }
static void gpt2_cpu(void **state) { (void)state, check_fp32("cpu", "gpt2"); }
static void llama_ref(void **state) { (void)state, check_fp32("ref", "llama"); }
static void qwen_ref(void **state) { (void)state, check_fp32("ref", "qwen"); }
static void mistral_ref(void **state) { (void)state, check_fp32("ref", "mistral"); }
static void gpt2_ref(void **state) { (void)state, check_fp32("ref", "gpt2"); }

static const char *const loras[] = {"llama/lora", "qwen/lora", "mistral/lora", "gpt2/lora"};
static void check_loras(const char *backend) {
    for (int i = 0; i < 4; i++) check_fp32(backend, loras[i]);
}
static void lora_cpu(void **state) { (void)state, check_loras("cpu"); }
static void lora_ref(void **state) { (void)state, check_loras("ref"); }

static void check_16_bits(const char *backend) {
    static const char *const names[] = {"llama", "qwen", "mistral", "gpt2"};
    for (int i = 0; i < 4; i++) {
        check_16_bit(backend, loras[i], DT_BF16, 0.05);
        check_16_bit(backend, loras[i], DT_F16, 0.01);
        check_16_bit(backend, names[i], DT_BF16, 0.05);
        check_16_bit(backend, names[i], DT_F16, 0.01);
    }
}
static void sixteen_bits(void **state) { (void)state, check_16_bits("cpu"); }

// The backend of STARRING_TEST_DEVICE; NULL: none was named.
static const char *device_named(void) {
    const char *name = getenv("STARRING_TEST_DEVICE");
    return name && *name ? name : NULL;
}
static void llama_device(void **state) { (void)state, check_fp32(device_named(), "llama"); }
static void qwen_device(void **state) { (void)state, check_fp32(device_named(), "qwen"); }
static void mistral_device(void **state) { (void)state, check_fp32(device_named(), "mistral"); }
static void gpt2_device(void **state) { (void)state, check_fp32(device_named(), "gpt2"); }
static void lora_device(void **state) { (void)state, check_loras(device_named()); }
static void sixteen_bits_device(void **state) { (void)state, check_16_bits(device_named()); }

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_ref),   cmocka_unit_test(qwen_ref),    cmocka_unit_test(gpt2_ref),
        cmocka_unit_test(llama_cpu),   cmocka_unit_test(qwen_cpu),    cmocka_unit_test(gpt2_cpu),
        cmocka_unit_test(mistral_ref), cmocka_unit_test(mistral_cpu), cmocka_unit_test(sixteen_bits),
        cmocka_unit_test(lora_ref),    cmocka_unit_test(lora_cpu),
    };
    const struct CMUnitTest device_tests[] = {
        cmocka_unit_test(llama_device),        cmocka_unit_test(qwen_device),
        cmocka_unit_test(mistral_device),      cmocka_unit_test(gpt2_device),
        cmocka_unit_test(sixteen_bits_device), cmocka_unit_test(lora_device),
    };
    return device_named() ? cmocka_run_group_tests(device_tests, NULL, NULL)
                          : cmocka_run_group_tests(tests, NULL, NULL);
}
