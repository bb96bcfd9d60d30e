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
#include "shared/core/numbers.h"
#include "shared/core/train_state.h"
#include "shared/model/optimizer.h"
#include "shared/model/schedule.h"

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
                                 .state = {s->m + begin, s->v + begin},
                                 .weight = (char *)s->weight + skip,
                                 .grad = (char *)s->grad + skip,
                                 .dtype = dt};
}

// operations.h's formula, element by element, with the decay of the element's own tensor.
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
    {&optimizers[0], .lr = 1, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f},
    {&optimizers[0], .lr = 1, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0.3f,
     .l2_mode = true},
    {&optimizers[0], .lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
     .no_bias_correction = true},
    {&optimizers[0], .lr = 1, .beta1 = 0, .beta2 = 0, .eps = 1e-8f},
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
                    assert_int_equal(optimizer_apply(c, &r, &(struct update_step){0.01f, t, &scalars}, 1), 0);
                }
            assert_same(got, want, dt);
        }
        for (int64_t i = 0; i < N; i++)
            if (!tensor_at(&u, i)) assert_true(got->master[i] == 0 && got->m[i] == 0 && got->v[i] == 0);
    }
    free(want);
    free(got);
}

// For every optimizer: the same bits in one range and in pieces, and gaps stay zero.
static void test_every_optimizer_over_ranges(void **unused) {
    (void)unused;
    struct unit u = make_unit();
    struct state *whole = xcalloc(1, sizeof *whole), *pieces = xcalloc(1, sizeof *pieces);
    const struct update_scalars scalars = {.grad_scale = 0.37f};
    for (const struct optimizer *o = optimizers; o->name; o++) {
        struct optimizer_config c = configs[0];
        c.row = o;
        fill(whole, &u, DT_BF16);
        fill(pieces, &u, DT_BF16);
        for (int64_t t = 1; t <= 3; t++) {
            const struct update_step step = {0.01f, t, &scalars};
            struct update_range r = range_of(&u, whole, 0, N, DT_BF16);
            assert_int_equal(optimizer_apply(&c, &r, &step, 1), 0);
            for (int64_t at = 0, end; at < N; at = end) {
                end = at + 700 < N ? at + 700 : N;
                r = range_of(&u, pieces, at, end, DT_BF16);
                assert_int_equal(optimizer_apply(&c, &r, &step, 1), 0);
            }
        }
        assert_same(pieces, whole, DT_BF16);
        for (int64_t i = 0; i < N; i++) {
            const struct tensor *owner = tensor_at(&u, i);
            assert_true(owner || whole->master[i] == 0);
            assert_true(!owner || whole->master[i] != rng_normal(1, (uint64_t)i));
        }
    }
    free(whole);
    free(pieces);
}

// SGD with momentum is a row that configurations choose; without it nothing is held.
static void test_momentum_is_a_state(void **unused) {
    (void)unused;
    struct unit u = make_unit();
    const struct optimizer *sgd = optimizer_find("sgd");
    assert_int_equal(sgd->states, 0);
    assert_int_equal(sgd->moving->states, 1);
    assert_string_equal(sgd->moving->name, sgd->name);
    struct state *s = xcalloc(1, sizeof *s);
    const struct optimizer_config c = {sgd->moving, .momentum = 0.5f, .dampening = 0.25f};
    const struct update_scalars scalars = {.grad_scale = 1};
    fill(s, &u, DT_F32);
    memset(s->m, 0, sizeof s->m);
    float p = s->master[0], g = s->grad[0];
    struct update_range r = range_of(&u, s, 0, N, DT_F32);
    for (int64_t t = 1; t <= 2; t++)
        assert_int_equal(optimizer_apply(&c, &r, &(struct update_step){0.125f, t, &scalars}, 1), 0);
    float second = 0.5f * g + 0.75f * g;  // the first momentum is the gradient itself, undampened
    assert_float_equal(s->master[0], p - 0.125f * g - 0.125f * second, 1e-6);
    free(s);
}

// OneCycle's betas are those of the update behind t - 1 applied ones.
static void test_cycled_betas(void **unused) {
    (void)unused;
    struct unit u = make_unit();
    struct state *want = xcalloc(1, sizeof *want), *got = xcalloc(1, sizeof *got);
    const struct update_scalars scalars = {.grad_scale = 1};
    for (int lion = 0; lion < 2; lion++) {
        struct optimizer_config cycled = configs[0], fixed = configs[0];
        if (lion) cycled.row = fixed.row = optimizer_find("Lion");
        cycled.cycle = (struct schedule_config){
            .type = SCHEDULE_ONE_CYCLE, .cycle_first = 4, .cycle_second = 4, .min_mom = 0.6, .max_mom = 0.9};
        fixed.beta2 = SCHEDULE_CYCLE_BETA2;
        for (int64_t t = 1; t <= 6; t++) {
            const struct update_step step = {0.01f, t, &scalars};
            static const double moved[] = {0.6, 0.825, 0.75, 0.675, 0.6, 0.675};
            fill(want, &u, DT_F32);
            fill(got, &u, DT_F32);
            fixed.beta1 = (float)moved[t - 1];
            struct update_range r = range_of(&u, got, 0, N, DT_F32);
            assert_int_equal(optimizer_apply(&cycled, &r, &step, 1), 0);
            r = range_of(&u, want, 0, N, DT_F32);
            assert_int_equal(optimizer_apply(&fixed, &r, &step, 1), 0);
            for (int i = 0; i < N; i++) assert_float_equal(got->master[i], want->master[i], 1e-6);
            for (int i = 0; i < N; i++) assert_float_equal(got->m[i], want->m[i], 1e-6);
        }
    }
    free(want);
    free(got);
}

// The carved memory and the counts of the formulas follow from the row's number of states.
static void test_every_optimizer_in_memory(void **unused) {
    (void)unused;
    for (const struct optimizer *o = optimizers; o->name; o++) {
        struct arena a;
        float *state[OPTIMIZER_STATES_MAX];
        arena_init(&a, NULL);
        optimizer_carve(&a, o, 1 << 20, state);
        assert_int_equal(a.bytes[MEM_OPTIMIZER], (size_t)o->states << 22);
        assert_int_equal(optimizer_bytes(o, false), 4 * o->states);
        assert_int_equal(optimizer_bytes(o, true), 4 * o->states + 4);
        arena_release(&a);
    }
}

// Messages to people say what differs in words.
static void test_settings_are_told_apart(void **unused) {
    (void)unused;
    struct optimizer_config same = configs[0], others[] = {same, same, same, same, same, same, same};
    char words[96], other_words[96];
    others[0].lr = 2;
    others[1].beta1 = 0.5f;
    others[2].beta2 = 0.5f;
    others[3].eps = 1;
    others[4].weight_decay = 1;
    others[5].l2_mode = true;
    others[6].no_bias_correction = true;
    same.row->describe(words, sizeof words, &same);
    assert_string_equal(words, "lr 1, betas 0.9 0.999, eps 1e-08, decay 0.1");
    for (size_t i = 0; i < COUNT(others); i++) {
        same.row->describe(other_words, sizeof other_words, &others[i]);
        assert_true(!strcmp(words, other_words) == (i >= 5));
    }
}

static void test_first_step(void **unused) {
    (void)unused;
    // With m = v = 0 and t = 1 both corrections cancel: p - lr (sign(g) + decay p), Kingma & Ba 2015.
    struct unit u = {.name = "one", .count = 2, .n = 129, .n_pad = 256};
    u.tensors[0] = (struct tensor){.name = "w", .numel = 1, .decay = true};
    u.tensors[1] = (struct tensor){.name = "b", .numel = 1, .offset = 128};
    float master[256] = {[0] = 2, [128] = 2}, m[256] = {0}, v[256] = {0}, grad[256] = {[0] = 4, [128] = -4};
    struct update_range r = {.unit = &u, .end = 256, .master = master, .state = {m, v}, .grad = grad};
    const struct optimizer_config *c = &configs[0];
    assert_int_equal(
        optimizer_apply(c, &r, &(struct update_step){0.5f, 1, &(struct update_scalars){.grad_scale = 0.25f}},
                        1),
        0);
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
    assert_int_equal(
        optimizer_apply(&configs[0], &r, &(struct update_step){1, 1, &(struct update_scalars){.skip = 1}}, 1),
        0);
    assert_same(after, before, DT_F16);
    r = range_of(&u, after, 700, 700, DT_F16);
    assert_int_equal(
        optimizer_apply(&configs[0], &r,
                        &(struct update_step){1, 1, &(struct update_scalars){.grad_scale = 1}}, 1),
        0);
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
        optimizer_launch(s, &configs[0], &r, &(struct update_step){0.125f, 7, &scalars});
    }
    assert_int_equal(stream_sync(s), 0);
    assert_same(got, want, DT_BF16);
    free(want);
    dev_free(dev, MEM_OPTIMIZER, got, sizeof *got);
    stream_destroy(&s);
    dev_close(&dev);
}

// Ranges of every kind, and each is one launch: a GPU's small tensors would pay one each.
static void test_one_launch_a_range(void **unused) {
    (void)unused;
    const char *why = NULL;
    struct unit u = make_unit();
    struct device *dev = NULL;
    const struct device_options o = {.threads = 1, .label = "test", .trace = true};
    assert_int_equal(dev_open(backend_find("cpu", &why), &o, &dev), 0);
    struct stream *s = stream_create(dev, "compute");
    struct state *state = xcalloc(1, sizeof *state);
    const struct update_scalars scalars = {.grad_scale = 1};
    static const int64_t ranges[][2] = {{0, N}, {0, 450}, {450, 451}, {451, 1700}, {1700, N}, {N, N}};
    fill(state, &u, DT_BF16);
    for (size_t i = 0; i < COUNT(ranges); i++) {
        struct update_range r = range_of(&u, state, ranges[i][0], ranges[i][1], DT_BF16);
        optimizer_launch(s, &configs[0], &r, &(struct update_step){0.125f, 7, &scalars});
    }
    assert_int_equal(stream_sync(s), 0);
    const char *name;
    const struct spans *traced = dev_spans(dev, 0, &name);
    size_t launches = 0;
    for (size_t i = 0; i < spans_count(traced); i++) launches += !strcmp(spans_at(traced, i)->name, "adamw");
    assert_int_equal(launches, COUNT(ranges) - 1);  // the empty range has none
    free(state);
    stream_destroy(&s);
    dev_close(&dev);
}

// The schedules and the dynamic scaler are held to DeepSpeed's by test_shared_deepspeed.c.
static void test_no_schedule(void **unused) {
    (void)unused;
    const struct schedule_config none = {.type = SCHEDULE_NONE};
    for (int64_t updates = 0; updates < 3; updates++) assert_true(schedule_lr(&none, 0.5f, updates) == 0.5f);
}

static void test_static_scale(void **unused) {
    (void)unused;
    static const struct scaler_config fixed = {true, 128, 16, 1, 1, false, 1},
                                      off = {false, 128, 16, 1, 2, false, 1};
    struct scaler s;
    for (int i = 0; i < 2; i++) {
        scaler_init(&s, i ? &off : &fixed);
        for (const char *x = "x..xx"; *x; x++) {
            assert_int_equal(scaler_update(&s, i ? &off : &fixed, *x == 'x'), 0);
            assert_true(s.scale == (i ? 1 : 128));
        }
    }
}

// At the minimum an overflow ends the run: the message names the step, and the state stays as it was.
static void test_minimum_scale(void **unused) {
    (void)unused;
    static const struct scaler_config c = {true, 0, 2, 1000, 1, false, 2};
    struct scaler s;
    scaler_init(&s, &c);
    assert_int_equal(scaler_update(&s, &c, true), 0);
    assert_int_equal(scaler_update(&s, &c, false), 0);
    const struct scaler before = s;
    error_quiet(1);
    assert_int_equal(scaler_update(&s, &c, true), -1);
    error_quiet(0);
    assert_true(s.scale == 2 && s.iter == before.iter && s.last_overflow == before.last_overflow);
    assert_non_null(strstr(error_last(), "step 3: "));
    assert_non_null(strstr(error_last(), "minimum 2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_every_optimizer_over_ranges),
        cmocka_unit_test(test_momentum_is_a_state),
        cmocka_unit_test(test_cycled_betas),
        cmocka_unit_test(test_every_optimizer_in_memory),
        cmocka_unit_test(test_settings_are_told_apart),
        cmocka_unit_test(test_first_step),
        cmocka_unit_test(test_skip_and_empty),
        cmocka_unit_test(test_launch),
        cmocka_unit_test(test_one_launch_a_range),
        cmocka_unit_test(test_no_schedule),
        cmocka_unit_test(test_static_scale),
        cmocka_unit_test(test_minimum_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
