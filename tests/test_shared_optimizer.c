// The update over ranges of a unit, the learning rate schedules and the loss scaler.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
// clang-format on

#include "shared/core/error.h"
#include "shared/core/rng.h"
#include "shared/model/optimizer.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define N        4096  // of the unit below, pads included

// Matrices decay, vectors do not; gaps after `w` and `norm`, a pad at the end:
//   | w 300 | gap 84 | norm 7 | gap 121 | bias 128 | up 1000 | gap 24 | down 130 | pad |
//   0                384      391       512        640       1640     1664       1794
static struct unit make_unit(void) {
    static const struct tensor tensors[] = {
        {.name = "w", .numel = 300, .offset = 0, .decay = true},
        {.name = "norm", .numel = 7, .offset = 384},
        {.name = "bias", .numel = 128, .offset = 512},
        {.name = "up", .numel = 1000, .offset = 640, .decay = true},
        {.name = "down", .numel = 130, .offset = 1664, .decay = true},
    };
    struct unit u = {.name = "block.0", .count = COUNT(tensors), .n = 1794, .n_pad = N};
    memcpy(u.tensors, tensors, sizeof tensors);
    return u;
}

static const struct tensor *tensor_at(const struct unit *u, int64_t i) {
    for (int t = 0; t < u->count; t++)
        if (i >= u->tensors[t].offset && i < u->tensors[t].offset + u->tensors[t].numel)
            return &u->tensors[t];
    return NULL;  // a gap or the pad
}

struct state {
    float master[N], m[N], v[N];
    float weight[N], grad[N];  // room for the widest type
};

static void fill(struct state *s, const struct unit *u, enum dtype dt) {
    memset(s, 0, sizeof *s);
    for (int64_t i = 0; i < N; i++) {
        if (!tensor_at(u, i)) continue;
        s->master[i] = rng_normal(1, (uint64_t)i);
        s->m[i] = 0.1f * rng_normal(2, (uint64_t)i);
        s->v[i] = 0.01f * fabsf(rng_normal(3, (uint64_t)i));
        dtype_store(dt, s->grad, (size_t)i, rng_normal(4, (uint64_t)i));
        dtype_store(dt, s->weight, (size_t)i, s->master[i]);
    }
}

static struct update_range range_of(const struct unit *u, struct state *s, int64_t begin, int64_t end,
                                    enum dtype dt) {
    size_t skip = (size_t)begin * dtype_size(dt);
    return (struct update_range){.unit = u,
                                 .begin = begin,
                                 .end = end,
                                 .master = s->master + begin,
                                 .m = s->m + begin,
                                 .v = s->v + begin,
                                 .weight = (char *)s->weight + skip,
                                 .grad = (char *)s->grad + skip,
                                 .dtype = dt};
}

// backend.h's formula, element by element, with the decay of the element's own tensor.
static void expect(struct state *s, const struct unit *u, const struct optimizer_config *c, float lr,
                   int64_t t, float grad_scale, enum dtype dt) {
    float bc1 = c->no_bias_correction ? 1 : (float)(1 / (1 - pow(c->beta1, (double)t)));
    float bc2 = c->no_bias_correction ? 1 : (float)(1 / sqrt(1 - pow(c->beta2, (double)t)));
    for (int64_t i = 0; i < N; i++) {
        const struct tensor *owner = tensor_at(u, i);
        float decay = owner && owner->decay ? c->weight_decay : 0, p = s->master[i];
        float g = dtype_load(dt, s->grad, (size_t)i) * grad_scale;
        if (c->l2_mode) g = fmaf(decay, p, g);
        s->m[i] = fmaf(c->beta1, s->m[i], (1 - c->beta1) * g);
        s->v[i] = fmaf(c->beta2, s->v[i], ((1 - c->beta2) * g) * g);
        float step = (s->m[i] * bc1) / (sqrtf(s->v[i]) * bc2 + c->eps);
        if (!c->l2_mode) step = fmaf(decay, p, step);
        s->master[i] = fmaf(-lr, step, p);
        dtype_store(dt, s->weight, (size_t)i, s->master[i]);
    }
}

static const struct optimizer_config configs[] = {
    {.lr = 1, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f},
    {.lr = 1, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0.3f, .l2_mode = true},
    {.lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .no_bias_correction = true},
    {.lr = 1, .beta1 = 0, .beta2 = 0, .eps = 1e-8f},
};
static const enum dtype dtypes[] = {DT_F32, DT_BF16, DT_F16};

static void assert_same(const struct state *got, const struct state *want, enum dtype dt) {
    assert_memory_equal(got->master, want->master, sizeof got->master);
    assert_memory_equal(got->m, want->m, sizeof got->m);
    assert_memory_equal(got->v, want->v, sizeof got->v);
    assert_memory_equal(got->weight, want->weight, N * dtype_size(dt));
}

// The same bits whatever the ranges are, and those of the formula.
static void test_ranges(void **unused) {
    (void)unused;
    struct unit u = make_unit();
    struct state *want = xcalloc(1, sizeof *want), *got = xcalloc(1, sizeof *got);
    const struct update_scalars scalars = {.grad_scale = 0.37f};
    for (size_t k = 0; k < COUNT(configs) * COUNT(dtypes); k++) {
        const struct optimizer_config *c = &configs[k / COUNT(dtypes)];
        enum dtype dt = dtypes[k % COUNT(dtypes)];
        fill(want, &u, dt);
        for (int64_t t = 1; t <= 3; t++) expect(want, &u, c, 0.01f, t, scalars.grad_scale, dt);
        // Round 0: one range. Later: cuts at random places, gaps and pads included.
        for (uint64_t round = 0; round < 6; round++) {
            fill(got, &u, dt);
            for (int64_t t = 1; t <= 3; t++)
                for (int64_t at = 0, end; at < N; at = end) {
                    end = round ? at + 1 + (int64_t)rng_below(round, (uint64_t)at, (uint64_t)t, 900) : N;
                    if (end > N) end = N;
                    struct update_range r = range_of(&u, got, at, end, dt);
                    assert_int_equal(optimizer_apply(c, &r, 0.01f, t, &scalars, 1), 0);
                }
            assert_same(got, want, dt);
        }
        for (int64_t i = 0; i < N; i++)
            if (!tensor_at(&u, i)) assert_true(got->master[i] == 0 && got->m[i] == 0 && got->v[i] == 0);
    }
    free(want);
    free(got);
}

static void test_first_step(void **unused) {
    (void)unused;
    // With m = v = 0 and t = 1 both corrections cancel: p - lr (sign(g) + decay p), Kingma & Ba 2015.
    struct unit u = {.name = "one", .count = 2, .n = 129, .n_pad = 256};
    u.tensors[0] = (struct tensor){.name = "w", .numel = 1, .decay = true};
    u.tensors[1] = (struct tensor){.name = "b", .numel = 1, .offset = 128};
    float master[256] = {[0] = 2, [128] = 2}, m[256] = {0}, v[256] = {0}, grad[256] = {[0] = 4, [128] = -4};
    struct update_range r = {.unit = &u, .end = 256, .master = master, .m = m, .v = v, .grad = grad};
    const struct optimizer_config *c = &configs[0];
    assert_int_equal(optimizer_apply(c, &r, 0.5f, 1, &(struct update_scalars){.grad_scale = 0.25f}, 1), 0);
    assert_float_equal(master[0], 2 - 0.5 * (1 + 0.1 * 2), 1e-5);
    assert_float_equal(master[128], 2 + 0.5, 1e-5);
    assert_float_equal(m[0], 0.1, 1e-6);
    assert_float_equal(v[128], 0.001, 1e-7);
    assert_true(master[1] == 0 && master[255] == 0);
}

static void test_skip_and_empty(void **unused) {
    (void)unused;
    struct unit u = make_unit();
    struct state *before = xcalloc(1, sizeof *before), *after = xcalloc(1, sizeof *after);
    fill(before, &u, DT_F16);
    fill(after, &u, DT_F16);
    struct update_range r = range_of(&u, after, 0, N, DT_F16);
    assert_int_equal(optimizer_apply(&configs[0], &r, 1, 1, &(struct update_scalars){.skip = 1}, 1), 0);
    assert_same(after, before, DT_F16);
    r = range_of(&u, after, 700, 700, DT_F16);
    assert_int_equal(optimizer_apply(&configs[0], &r, 1, 1, &(struct update_scalars){.grad_scale = 1}, 1), 0);
    assert_same(after, before, DT_F16);
    free(before);
    free(after);
}

static void test_launch(void **unused) {
    (void)unused;
    const char *why = NULL;
    struct unit u = make_unit();
    struct device *dev = NULL;
    const struct backend *cpu = backend_find("cpu", &why);
    assert_non_null(cpu);
    assert_int_equal(dev_open(cpu, &(struct device_options){.threads = 1, .label = "test"}, &dev), 0);
    struct stream *s = stream_create(dev, "compute");
    struct state *want = xcalloc(1, sizeof *want), *got = dev_alloc(dev, MEM_OPTIMIZER, sizeof *got);
    const struct update_scalars scalars = {.grad_scale = 2};
    fill(want, &u, DT_BF16);
    fill(got, &u, DT_BF16);
    expect(want, &u, &configs[0], 0.125f, 7, 2, DT_BF16);
    for (int64_t at = 0; at < N; at += N / 4) {
        struct update_range r = range_of(&u, got, at, at + N / 4, DT_BF16);
        optimizer_launch(s, &configs[0], &r, 0.125f, 7, &scalars);
    }
    assert_int_equal(stream_sync(s), 0);
    assert_same(got, want, DT_BF16);
    free(want);
    dev_free(dev, MEM_OPTIMIZER, got, sizeof *got);
    stream_destroy(&s);
    dev_close(&dev);
}

// ---------------------------------------------------------------- schedules
#define POINTS 11
static const int64_t updates[POINTS] = {0, 1, 2, 5, 10, 11, 12, 20, 30, 31, 40};

// The values come from a transcription of lr_schedules.py into Python, base lr 0.5.
static void test_schedules(void **unused) {
    (void)unused;
    static const struct {
        struct schedule_config c;
        double want[POINTS];
    } cases[] = {
        {{.type = SCHEDULE_NONE}, {0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
        {{SCHEDULE_WARMUP, 1e-5, 1e-3, 10, 0, WARMUP_LOG, 0, 0},
         {1e-5, 1e-5, 0.000308019696, 0.000701980304, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001}},
        {{SCHEDULE_WARMUP, 0, 1e-3, 10, 0, WARMUP_LINEAR, 0, 0},
         {0, 0, 0.0001, 0.0004, 0.0009, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001}},
        {{SCHEDULE_WARMUP, 0, 1, 0, 0, WARMUP_LOG, 0, 0}, {0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
        {{SCHEDULE_WARMUP_DECAY, 1e-4, 1e-2, 10, 30, WARMUP_LOG, 0, 0},
         {0.0001, 0.0001, 0.00308019696, 0.00701980304, 0.01, 0.01, 0.009505, 0.005545, 0.000595, 0.0001,
          0.0001}},
        {{SCHEDULE_WARMUP_DECAY, 0, 1, 10, 5, WARMUP_LINEAR, 0, 0}, {0, 0, 0.1, 0.4, 0.9, 0, 0, 0, 0, 0, 0}},
        {{SCHEDULE_WARMUP_COSINE, 0, 0, 10, 30, WARMUP_LOG, 0.1, 0.05},
         {0, 0.05, 0.185463498, 0.364536502, 0.5, 0.497075981, 0.488375923, 0.2625, 0.025, 0.0279240191,
          0.2625}},
        {{SCHEDULE_WARMUP_COSINE, 0, 0, 4, 12, WARMUP_LINEAR, 0, 1e-4},
         {0, 0, 0.125, 0.480971786, 0.0732659824, 0.0190782139, 5e-5, 0.5, 0.0732659824, 0.154363709,
          0.250025}},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int k = 0; k < POINTS; k++) {
            double got = schedule_lr(&cases[i].c, 0.5f, updates[k]), want = cases[i].want[k];
            if (fabs(got - want) > 2e-7 * want + 1e-12)
                fail_msg("case %zu, %lld updates: %.9g, expected %.9g", i, (long long)updates[k], got, want);
        }
    // No room for the decay: finite all the same.
    const struct schedule_config c = {SCHEDULE_WARMUP_COSINE, 0, 0, 10, 10, WARMUP_LOG, 0, 0};
    assert_true(isfinite(schedule_lr(&c, 0.5f, 11)));
}

// ---------------------------------------------------------------- loss scaler
struct scaler_case {
    struct scaler_config c;
    const char *steps;  // x: overflow
    const char *want;   // "scale/hysteresis" after each
};

// The traces come from a transcription of loss_scaler.py into Python.
static void test_scaler_traces(void **unused) {
    (void)unused;
    static const struct scaler_case cases[] = {
        {{true, 0, 16, 4, 2, false, 1},
         "xx..x...x.....xxxx....x",
         "65536/1 32768/1 32768/1 32768/1 16384/1 16384/1 16384/1 16384/1 8192/1 8192/1 8192/1 8192/1 "
         "16384/2 "
         "16384/2 16384/1 8192/1 4096/1 2048/1 2048/1 2048/1 2048/1 4096/2 4096/1 "},
        {{true, 0, 16, 4, 2, true, 1},
         "x.x.xx..xxx....x",
         "65536/1 65536/2 65536/1 65536/2 65536/1 32768/1 32768/2 32768/2 32768/1 16384/1 8192/1 8192/2 "
         "8192/2 "
         "8192/2 16384/2 16384/1 "},
        {{true, 0, 3, 3, 1, false, 2},
         "xx...x......xxx",
         "4/1 2/1 2/1 2/1 4/1 2/1 2/1 2/1 4/1 4/1 4/1 8/1 4/1 2/1 end"},
        {{true, 0, 10, 2, 3, false, 1},
         "xx.x..xxx..xx...",
         "1024/2 1024/1 1024/1 512/1 512/1 1024/3 1024/2 1024/1 512/1 512/1 1024/3 1024/2 1024/1 1024/1 "
         "2048/3 "
         "2048/3 "},
        {{true, 128, 16, 1, 1, false, 1}, "x..x", "128/1 128/1 128/1 128/1 "},
        {{false, 128, 16, 1, 2, false, 1}, "x..x", "1/2 1/2 1/2 1/2 "},
    };
    error_quiet(1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct scaler s;
        char got[1024] = "", *p = got;
        scaler_init(&s, &cases[i].c);
        for (const char *x = cases[i].steps; *x; x++) {
            struct scaler before = s;
            if (scaler_update(&s, &cases[i].c, *x == 'x')) {
                p += sprintf(p, "end");
                assert_true(s.scale == before.scale && s.iter == before.iter);
                assert_non_null(strstr(error_last(), "minimum 2"));
                assert_non_null(strstr(error_last(), "step 15"));
                break;
            }
            p += sprintf(p, "%g/%d ", s.scale, s.hysteresis_left);
        }
        assert_string_equal(got, cases[i].want);
    }
    error_quiet(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),         cmocka_unit_test(test_first_step),
        cmocka_unit_test(test_skip_and_empty), cmocka_unit_test(test_launch),
        cmocka_unit_test(test_schedules),      cmocka_unit_test(test_scaler_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
