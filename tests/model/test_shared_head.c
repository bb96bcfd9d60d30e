// The head:
// - how its logits are cut into chunks, and how exact the gradient then is: many small shares of one sign are
//   compared with their sum in double;
// - on a device with its own memory its products run over the vocabulary and the classes reserved behind it;
//   losses, gradients and the reserved rows themselves must not change by that.
// The device is the cpu backend, which here says that its memory is not the host's; so every sum is the
// CPU's.
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
#include "shared/core/numbers.h"
#include "shared/hf/families.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"

#define PRODUCTS_MAX 256

// ---------------------------------------------------------------- the device
static struct backend gpu;  // the cpu's table but for what is below
static struct matmul_args products[PRODUCTS_MAX];
static int product_count;
// Where set: the sum, in double, of what the products add to the gradient of the head's tensor, (classes, C).
static double *exact;
static int64_t exact_classes;
static int exact_chunks;

static int gpu_open(struct device **out, const struct device_options *o) {
    int rc = cpu_backend.open(out, o);
    if (rc == 0) (*out)->backend = &gpu;
    return rc;
}

static void add_exactly(const struct matmul_args *g) {
    for (int64_t r = 0; r < g->k; r++)
        for (int64_t v = 0; v < g->m; v++) {
            double share = dtype_load(g->dt, g->a, (size_t)(r * g->lda + v));
            for (int64_t c = 0; c < g->n; c++)
                exact[v * g->n + c] += share * (double)dtype_load(g->dt, g->b, (size_t)(r * g->n + c));
        }
    exact_chunks++;
}

static void gpu_launch(struct stream *s, enum op op, const void *args, size_t bytes) {
    const struct matmul_args *g = args;
    if (op == OP_MATMUL && product_count < PRODUCTS_MAX) memcpy(&products[product_count++], args, bytes);
    cpu_backend.launch(s, op, args, bytes);
    if (op != OP_MATMUL || !exact || !g->trans_a || g->m != exact_classes) return;
    assert_int_equal(stream_sync(s), 0);
    add_exactly(g);
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
struct sizes {
    int64_t B, T, micro_batches, logits_bytes;
};
static const struct sizes few = {2, 7, 2, 0};

struct rig {
    struct device *dev;
    struct stream *compute;
    struct model_spec spec;
    struct layout *layout;
    struct topology *topology;
    struct model *model;
    struct sizes n;
    int32_t *tokens, *targets;
};

static struct model_spec small(const char *hf_type, int vocab, bool tied) {
    struct model_traits traits = hf_family_named(hf_type, NULL)->traits;
    struct model_spec s = {.name = "small",
                           .traits = traits,
                           .vocab = vocab,
                           .channels = 24,
                           .layers = 1,
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

static struct unit_view view_of(struct rig *r, int u, enum pass pass) {
    struct unit_view v;
    assert_int_equal(topology_acquire(r->topology, u, pass, &v), 0);
    return v;
}

static void rig_open(struct rig *r, const struct backend *b, struct model_spec spec, enum dtype dt,
                     const struct sizes *n) {
    *r = (struct rig){.n = *n, .spec = spec};
    r->layout = model_layout_create(&r->spec, 1);
    assert_int_equal(dev_open(b, &(struct device_options){.threads = 1, .label = "t"}, &r->dev), 0);
    r->compute = stream_create(r->dev, "compute");
    r->topology = local_create(&(struct local_options){
        .layout = r->layout,
        .dtype = dt,
        .dev = r->dev,
        .compute = r->compute,
        .optimizer = {optimizers, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f}});
    r->model = model_create(&(struct model_options){.spec = &r->spec,
                                                    .layout = r->layout,
                                                    .dev = r->dev,
                                                    .compute = r->compute,
                                                    .dtype = dt,
                                                    .batch = n->B,
                                                    .seq = n->T,
                                                    .micro_batches = n->micro_batches,
                                                    .logits_bytes = n->logits_bytes});
    assert_non_null(r->model);
    for (int u = 0; u < r->layout->count; u++) {
        float *w = xcalloc((size_t)r->layout->units[u].n_pad, sizeof *w);
        model_init_unit(r->layout, u, 3, w);
        assert_int_equal(topology_load_unit(r->topology, u, w), 0);
        free(w);
    }
    size_t rows = (size_t)(n->B * n->T);
    r->tokens = xcalloc(rows, sizeof *r->tokens);
    r->targets = xcalloc(rows, sizeof *r->targets);
    for (size_t i = 0; i < rows; i++) {
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
    topology_begin_micro(r->topology, micro, (int)r->n.micro_batches);
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

// Fills the rows reserved behind the head's tensor with sevens, in gradient and weights: if the gradient of a
// reserved class is not zero, every row's gradient becomes wrong.
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
    rig_open(&cpu, &cpu_backend, spec, dt, &few);
    rig_open(&device, &gpu, spec, dt, &few);
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
        check_padded(small("llama", 29, true), dt);
        check_padded(small("llama", 37, false), dt);
        check_padded(small("gpt2", 61, true), dt);
    }
}

// Steps of AdamW with weight decay: the reserved weights stay zero, and the norm is the CPU's.
static void reserved_weights_stay_zero(void **state) {
    (void)state;
    struct rig cpu, device;
    struct step_stats a, b;
    int u;
    rig_open(&cpu, &cpu_backend, small("gpt2", 29, true), DT_BF16, &few);
    rig_open(&device, &gpu, small("gpt2", 29, true), DT_BF16, &few);
    for (int64_t step = 0; step < 3; step++) {
        struct step_input in = {.step = step, .updates = step, .lr = 0.1f, .loss_scale = 1, .clip = 0.5f};
        gradients(&cpu, 0);
        gradients(&device, 0);
        in.loss_tokens = 1;
        in.loss_sum = model_loss_on_device(cpu.model);
        assert_int_equal(topology_step(cpu.topology, &in, &a), 0);
        in.loss_sum = model_loss_on_device(device.model);
        assert_int_equal(topology_step(device.topology, &in, &b), 0);
        assert_true(a.grad_norm == b.grad_norm && !b.skipped);
    }
    const struct tensor *t = head_tensor(&device, &u);
    const void *w = view_of(&device, u, PASS_FORWARD).weights;
    assert_int_equal(stream_sync(device.compute), 0);  // updates go on behind the step
    assert_true(t->reserved > 0);
    for (int64_t i = 0; i < t->reserved; i++)
        assert_true(dtype_load(DT_BF16, w, (size_t)(t->offset + t->numel + i)) == 0.0f);
    rig_close(&cpu);
    rig_close(&device);
}

// ---------------------------------------------------------------- chunks

struct plan_row {
    struct head_question q;
    struct head_plan plan;
};

static void chunks_of_known_models(void **state) {
    (void)state;
    static const int64_t mib = 1 << 20;
    static const struct plan_row rows[] = {
        // rows, vocab, micro-batches, bytes, gpu, dtype         rows, chunks, separate
        {{32768, 151936, 1, 0, true, DT_BF16}, {5120, 7, false}},
        {{32768, 151936, 16, 0, true, DT_BF16}, {5120, 7, true}},
        {{32768, 50257, 1, 0, true, DT_BF16}, {14336, 3, false}},
        {{32768, 50257, 1, 0, true, DT_F32}, {7168, 5, false}},
        {{32768, 151936, 8, 128 * mib, true, DT_BF16}, {2048, 16, true}},
        {{32768, 151936, 8, 128 * mib, true, DT_F32}, {220, 149, false}},
        {{32768, 151936, 1, 1024 * mib, true, DT_BF16}, {3072, 11, false}},
        {{262144, 151936, 1, 0, true, DT_BF16}, {16384, 16, false}},
        {{4096, 50257, 4, 0, true, DT_BF16}, {4096, 1, false}},
        // As many rows as fit 128 MiB, until that makes too many chunks.
        {{1024, 50257, 1, 0, false, DT_BF16}, {1024, 1, false}},
        {{4096, 50257, 1, 0, false, DT_BF16}, {1335, 4, false}},
        {{4096, 151936, 2, 0, false, DT_BF16}, {441, 10, true}},
        {{8192, 151936, 1, 0, false, DT_BF16}, {512, 16, false}},
        {{8192, 151936, 4, 0, false, DT_F32}, {220, 38, false}},
        {{4096, 300000000, 1, 0, false, DT_F32}, {64, 64, false}},
        {{32, 257, 2, 1000, false, DT_F16}, {2, 16, true}},
        {{32, 257, 2, 1, false, DT_F32}, {1, 32, false}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct head_plan p = head_plan_of(&rows[i].q), w = rows[i].plan;
        if (p.rows != w.rows || p.chunks != w.chunks || p.separate != w.separate)
            fail_msg("row %zu: %lld rows, %lld chunks, separate %d", i, (long long)p.rows,
                     (long long)p.chunks, p.separate);
    }
}

// Whatever the sizes: on a GPU a chunk that is not the whole batch has 1.25 GiB and a multiple of 1024 rows;
// 16 bits are rounded at most 16 times; chunks cover the rows.
static void chunks_of_any_size(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 20000; i++) {
        struct head_question q = {.rows = 1 + (int64_t)rng_below(1, i, 0, i % 2 ? 300000 : 5000),
                                  .vocab = 1 + (int64_t)rng_below(1, i, 1, i % 3 ? 200000 : 400),
                                  .micro_batches = 1 + (int64_t)rng_below(1, i, 2, 3),
                                  .logits_bytes = i % 5 ? 0 : 1 + (int64_t)rng_below(1, i, 3, 1 << 30),
                                  .gpu = i % 7 < 4,
                                  .dtype = (enum dtype)(i % 3)};
        struct head_plan p = head_plan_of(&q);
        int64_t element = (int64_t)dtype_size(q.dtype), bytes = p.rows * ((q.vocab + 63) / 64 * 64) * element;
        assert_true(p.rows >= 1 && p.rows * p.chunks >= q.rows && p.rows * (p.chunks - 1) < q.rows);
        assert_true(q.dtype == DT_F32 || p.chunks <= 16);
        assert_int_equal(p.separate, q.dtype != DT_F32 && p.chunks > 1 && q.micro_batches > 1);
        if (q.gpu && p.rows < q.rows && p.rows >= 1024) assert_int_equal(p.rows % 1024, 0);
        if (q.gpu && p.rows < q.rows && !q.logits_bytes) assert_true(bytes >= (int64_t)5 << 28);
    }
}

// The largest relative error of the gradient of any class but the target's, after n->micro_batches. All rows
// are the same token and all weights of the head are zero, so that each row adds the same to such a class.
static double error_of_equal_shares(const struct sizes *n, int *chunks) {
    struct rig r;
    int u;
    double worst = 0;
    rig_open(&r, &gpu, small("llama", 64, false), DT_BF16, n);
    const struct tensor *t = head_tensor(&r, &u);
    float *w = xcalloc((size_t)r.layout->units[u].n_pad, sizeof *w);
    for (int64_t i = 0; i < r.spec.channels; i++) w[i] = 1 + 0.03f * (float)i;
    assert_int_equal(topology_load_unit(r.topology, u, w), 0);
    free(w);
    for (int64_t i = 0; i < n->B * n->T; i++) r.tokens[i] = 3, r.targets[i] = 0;
    exact = xcalloc((size_t)t->numel, sizeof *exact);
    exact_classes = r.spec.vocab;
    exact_chunks = 0;
    for (int micro = 0; micro < n->micro_batches; micro++) gradients(&r, micro);
    const void *grad = view_of(&r, u, PASS_BACKWARD).grad;
    for (int64_t i = r.spec.channels; i < t->numel; i++) {
        double got = dtype_load(DT_BF16, grad, (size_t)(t->offset + i));
        assert_true(exact[i] != 0);
        worst = fmax(worst, fabs(got / exact[i] - 1));
    }
    free(exact);
    exact = NULL;
    *chunks = exact_chunks;
    rig_close(&r);
    return worst;
}

// head_plan.h's bound for n additions of one sign, (n/2) 2^-8, and one rounding for each product.
static double bound_of(double additions) { return (additions / 2 + 1) * 0x1p-8; }

// Bytes for 64 rows, 75 chunks of this micro-batch: the sum would be off by 0.1 and more.
static void many_small_shares_add_up(void **state) {
    (void)state;
    int chunks;
    double error = error_of_equal_shares(&(struct sizes){300, 16, 1, 64 * 64 * 2}, &chunks);
    if (error > bound_of(16)) fail_msg("%d chunks: off by %.3f", chunks, error);
    assert_int_equal(chunks, 16);
}

// 16 micro-batches of 16 chunks: no worse than the 16 additions that every gradient has, and those of the
// chunks. Added one by one, shares would be lost from the 256th on.
static void micro_batches_of_many_shares_add_up(void **state) {
    (void)state;
    int chunks;
    double error = error_of_equal_shares(&(struct sizes){100, 16, 16, 1}, &chunks);
    if (error > bound_of(16) + bound_of(16)) fail_msg("%d chunks: off by %.3f", chunks, error);
    assert_int_equal(chunks, 16 * 16);
}

// Two micro-batches in chunks, then in one piece: the same gradient of the head's tensor, up to its rounding.
static void chunks_follow_the_whole(void **state) {
    (void)state;
    static const struct sizes whole = {6, 16, 2, 0}, cut = {6, 16, 2, 7 * 2 * 199};
    for (int tied = 0; tied < 2; tied++) {
        struct model_spec spec = small(tied ? "gpt2" : "llama", 199, tied);
        struct rig a, b;
        int u;
        rig_open(&a, &cpu_backend, spec, DT_BF16, &whole);
        rig_open(&b, &gpu, spec, DT_BF16, &cut);
        for (int micro = 0; micro < 2; micro++) assert_true(gradients(&a, micro) == gradients(&b, micro));
        struct stream_times times;
        stream_get_times(b.compute, &times);  // of one phase: timestamps would separate a chunk's products
        assert_true(times.busy_s[PHASE_OTHER] > 0);
        for (int phase = 0; phase < PHASES; phase++)
            assert_true(phase == PHASE_OTHER || times.busy_s[phase] == 0);
        const struct tensor *t = head_tensor(&a, &u);
        const void *x = view_of(&a, u, PASS_BACKWARD).grad, *y = view_of(&b, u, PASS_BACKWARD).grad;
        double largest = 0, worst = 0;
        for (int64_t i = 0; i < t->numel; i++) {
            double of_whole = dtype_load(DT_BF16, x, (size_t)(t->offset + i));
            worst = fmax(worst, fabs(of_whole - dtype_load(DT_BF16, y, (size_t)(t->offset + i))));
            largest = fmax(largest, fabs(of_whole));
        }
        if (!(worst <= 0.02 * largest)) fail_msg("%g apart, the largest is %g", worst, largest);
        rig_close(&a);
        rig_close(&b);
    }
}

// A chunked head's memory is predicted to the byte, for either kind of device, with its buffer apart.
static void predicts_chunks(void **state) {
    (void)state;
    for (int device = 0; device < 2; device++) {
        struct sizes n = {40, 16, 2, 64 * 1000};
        struct rig r;
        struct mem_usage usage;
        size_t model[MEM_CLASSES];
        struct model_spec spec = small("gpt2", 1999, true);
        rig_open(&r, device ? &gpu : &cpu_backend, spec, DT_BF16, &n);
        struct model_options o = {.spec = &r.spec,
                                  .layout = r.layout,
                                  .dtype = DT_BF16,
                                  .batch = n.B,
                                  .seq = n.T,
                                  .micro_batches = n.micro_batches,
                                  .logits_bytes = n.logits_bytes,
                                  .gpu = device};
        struct head_plan p = model_head_plan(&o);
        assert_true(p.chunks == 16 && p.separate);
        model_predict(&o, model);
        gradients(&r, 0);
        gradients(&r, 1);
        dev_usage(r.dev, &usage);
        for (int c = 0; c < MEM_CLASSES; c++)
            assert_int_equal(model[c] + r.topology->memory.predicted_bytes[c], usage.peak_bytes[c]);
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_of_known_models),
        cmocka_unit_test(chunks_of_any_size),
        cmocka_unit_test(many_small_shares_add_up),
        cmocka_unit_test(micro_batches_of_many_shares_add_up),
        cmocka_unit_test(chunks_follow_the_whole),
        cmocka_unit_test(predicts_chunks),
        cmocka_unit_test(padded_classes_change_nothing),
        cmocka_unit_test(reserved_weights_stay_zero),
    };
    return cmocka_run_group_tests_name("head", tests, make_gpu, NULL);
}
