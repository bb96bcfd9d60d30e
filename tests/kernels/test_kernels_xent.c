// Cross-entropy and the loss sum: cpu against ref, gradients, ignored targets, extreme logits.
#include "tests/kernels/kernel_test.h"

// Rows, columns, elements from row to row: aligned to 16 bytes and not; more than a block's shared memory.
static const int64_t shapes[][3] = {{1, 1, 1},           {3, 2, 2},          {5, 257, 257},
                                    {19, 1024, 1024},    {4, 1025, 1025},    {3, 50257, 50257},
                                    {5, 257, 320},       {4, 1025, 1030},    {3, 50257, 50304},
                                    {2, 100003, 100032}, {2, 151937, 151939}};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 0; s < SHAPES; s++)
            for (int want_grad = 0; want_grad < 2; want_grad++) {
                enum dtype dt = kt_dtypes[d];
                int64_t r = shapes[s][0], v = shapes[s][1], stride = shapes[s][2];
                void *logits = kt_random_rows(dt, r, v, stride, 1, 9.0f);
                void *loss = kt_poisoned(DT_F32, r);
                int32_t *targets = kt_tokens(r, 2, v);
                if (r > 2) targets[1] = -1;
                struct xent_args a = {.logits = logits,
                                      .loss = loss,
                                      .targets = targets,
                                      .rows = r,
                                      .vocab = v,
                                      .row_stride = stride > v ? stride : 0,
                                      .grad_scale = 0.25f,
                                      .want_grad = want_grad,
                                      .dt = dt};
                // One of two classes has a probability near 1, and its gradient is the remainder of rounding.
                double floor = v == 2 ? 0.25 : 1e-2 * 0.25;
                const struct kt_out outs[] = {{loss, r, DT_F32, 8, 1.0},
                                              {logits, (r - 1) * stride + v, dt, want_grad ? 16 : 0, floor}};
                kt_check(OP_XENT, &a, outs, 2);
                kt_assert_gaps(dt, logits, r, v, stride);
                KT_FREE(logits, loss, targets);
            }
}

static bool all_bytes_are(const char *p, size_t from, size_t to, char byte) {
    for (size_t i = from; i < to; i++)
        if (p[i] != byte) return false;
    return true;
}

// After the vocabulary there are columns that are no classes. With any contents there, loss and gradient have the
// bits of rows with nothing there; below `padded` a gradient row ends in zeros, beyond it and without a gradient
// nothing is written.
static void padded_case(enum dtype dt, const int64_t *shape, float garbage, bool want_grad) {
    int64_t r = 4, v = shape[0], padded = shape[1], stride = shape[2];
    size_t e = dtype_size(dt), bytes = (size_t)(r * stride) * e;
    char *plain = kt_random_rows(dt, r, stride, stride, 1, 9.0f), *wide = kt_poisoned(dt, r * stride);
    float *loss = kt_poisoned(DT_F32, r), *wide_loss = kt_poisoned(DT_F32, r);
    int32_t *targets = kt_tokens(r, 2, v);
    targets[1] = -1;
    for (int64_t i = 0; i < r; i++) {
        memcpy(wide + (size_t)(i * stride) * e, plain + (size_t)(i * stride) * e, (size_t)v * e);
        for (int64_t j = v; j < padded; j++) dtype_store(dt, wide, (size_t)(i * stride + j), garbage);
    }
    char *before = kt_copy(DT_U8, (int64_t)bytes, wide);
    struct xent_args a = {.logits = plain,
                          .loss = loss,
                          .targets = targets,
                          .rows = r,
                          .vocab = v,
                          .row_stride = stride,
                          .grad_scale = 0.25f,
                          .want_grad = want_grad,
                          .dt = dt};
    struct xent_args w = a;
    w.logits = wide;
    w.loss = wide_loss;
    w.padded = padded;
    kt_run(KT_OPS, OP_XENT, 2, &a);
    kt_run(KT_OPS, OP_XENT, 2, &w);
    assert_memory_equal(loss, wide_loss, (size_t)r * sizeof *loss);
    for (int64_t i = 0; i < r; i++) {
        size_t at = (size_t)(i * stride) * e, end = at + (size_t)stride * e;
        size_t classes = at + (size_t)v * e, zeros = at + (size_t)padded * e;
        assert_memory_equal(wide + at, plain + at, (size_t)v * e);
        if (want_grad)
            assert_true(all_bytes_are(wide, classes, zeros, 0));
        else
            assert_memory_equal(wide + classes, before + classes, zeros - classes);
        assert_true(all_bytes_are(wide, zeros, end, (char)0xff));
    }
    KT_FREE(plain, wide, loss, wide_loss, targets, before);
}

static void columns_behind_the_vocabulary(void **state) {
    (void)state;
    // Vocabulary, columns that products run over, elements from row to row.
    static const int64_t padded[][3] = {
        {1, 64, 64}, {257, 320, 320}, {255, 256, 264}, {1025, 1030, 1100}, {4099, 4160, 4160}};
    static const float garbage[] = {NAN, INFINITY, 6e4f};
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 0; s < sizeof padded / sizeof *padded; s++)
            for (size_t g = 0; g < sizeof garbage / sizeof *garbage; g++) {
                padded_case(kt_dtypes[d], padded[s], garbage[g], true);
                padded_case(kt_dtypes[d], padded[s], garbage[g], false);
            }
}

static void ignored_rows_are_zero(void **state) {
    (void)state;
    float *logits = kt_random(DT_F32, 3 * 7, 1, 1.0f), *loss = kt_poisoned(DT_F32, 3);
    const int32_t rows[3] = {-1, 4, -100};
    int32_t *targets = kt_copy(DT_U8, sizeof rows, rows);
    struct xent_args a = {.logits = logits,
                          .loss = loss,
                          .targets = targets,
                          .rows = 3,
                          .vocab = 7,
                          .grad_scale = 1.0f,
                          .want_grad = true,
                          .dt = DT_F32};
    kt_run(KT_OPS, OP_XENT, 1, &a);
    assert_true(loss[0] == 0.0f && loss[1] > 0.0f && loss[2] == 0.0f);
    for (int i = 0; i < 7; i++)
        assert_true(logits[i] == 0.0f && logits[7 + i] != 0.0f && logits[14 + i] == 0.0f);
    KT_FREE(logits, loss, targets);
}

// Large logits, in a row longer than a block with its maximum late: no overflow, the gradient of a
// row sums to zero; a NaN shows in the loss.
static void extreme_logits(void **state) {
    (void)state;
    int64_t v = 3000;
    float *logits = kt_random(DT_F32, v, 1, 1.0f), *loss = kt_poisoned(DT_F32, 1);
    int32_t *target = kt_copy(DT_U8, sizeof(int32_t), &(int32_t){5});
    for (int64_t i = 0; i < v; i++) logits[i] *= 1e4f;
    logits[2500] = 3e38f;
    logits[7] = -3e38f;
    struct xent_args a = {.logits = logits,
                          .loss = loss,
                          .targets = target,
                          .rows = 1,
                          .vocab = v,
                          .grad_scale = 1.0f,
                          .want_grad = true,
                          .dt = DT_F32};
    kt_run(KT_OPS, OP_XENT, 2, &a);
    assert_true(*loss > 2.9e38f && isfinite(*loss));
    assert_true(logits[2500] == 1.0f && logits[5] == -1.0f && logits[7] == 0.0f);
    logits[3] = NAN;
    kt_run(KT_OPS, OP_XENT, 2, &a);
    assert_true(isnan(*loss));
    KT_FREE(logits, loss, target);
}

// Logits that rise through the row by more than the exponentials of earlier ones can bear: what was computed of those is
// scaled, more than once.
static void rising_logits(void **state) {
    (void)state;
    int64_t r = 3, v = 20011;
    for (int d = 0; d < KT_DTYPES; d++) {
        enum dtype dt = kt_dtypes[d];
        void *logits = kt_random(dt, r * v, 1, 2.0f);
        for (int64_t i = 0; i < r * v; i++)
            dtype_store(dt, logits, (size_t)i, dtype_load(dt, logits, (size_t)i) + (float)(i % v) * 0x1p-8f);
        float *loss = kt_poisoned(DT_F32, r);
        int32_t *targets = kt_tokens(r, 2, v);
        struct xent_args a = {.logits = logits,
                              .loss = loss,
                              .targets = targets,
                              .rows = r,
                              .vocab = v,
                              .grad_scale = 64.0f,
                              .want_grad = true,
                              .dt = dt};
        kt_check(OP_XENT, &a,
                 (const struct kt_out[]){{loss, r, DT_F32, 8, 1.0}, {logits, r * v, dt, 16, 1e-2 * 64}}, 2);
        KT_FREE(logits, loss, targets);
    }
}

// A row that is cut into slices on a GPU: all of it -infinity but three logits, or infinite somewhere;
// targets at the ends of slices.
static void slices_of_nothing(void **state) {
    enum { V = 151936 };
    static const int32_t targets[] = {0, V / 4 - 1, V / 4, V / 2 + 5, V - 1, -1};
    (void)state;
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        uint16_t *logits = kt_alloc(DT_BF16, V);
        float *loss = kt_poisoned(DT_F32, 1);
        int32_t *target = kt_copy(DT_U8, sizeof(int32_t), &targets[t]);
        for (int threads = 1; threads <= KT_RUNS; threads++) {
            for (int i = 0; i < V; i++) logits[i] = f32_to_bf16(-INFINITY);
            logits[7] = logits[V / 2 + 5] = f32_to_bf16(2.0f);
            if (targets[t] >= 0) logits[targets[t]] = f32_to_bf16(2.0f);
            float share = targets[t] == V / 2 + 5 ? 0.5f : 1.0f / 3;
            struct xent_args a = {.logits = logits,
                                  .loss = loss,
                                  .targets = target,
                                  .rows = 1,
                                  .vocab = V,
                                  .grad_scale = 1.0f,
                                  .want_grad = true,
                                  .dt = DT_BF16};
            kt_run(KT_OPS, OP_XENT, threads, &a);
            assert_true(targets[t] < 0 ? *loss == 0.0f : fabsf(*loss + logf(share)) < 1e-6f);
            for (int i = 0; i < V; i++) {
                float want = i == 7 || i == V / 2 + 5 || i == targets[t] ? share : 0.0f;
                want = targets[t] < 0 ? 0.0f : want - (float)(i == targets[t]);
                assert_true(fabsf(bf16_to_f32(logits[i]) - want) <= 0x1p-9f);
            }
            logits[V - 3] = f32_to_bf16(INFINITY);
            kt_run(KT_OPS, OP_XENT, threads, &a);
            assert_true(targets[t] < 0 ? *loss == 0.0f : isnan(*loss));
        }
        KT_FREE(logits, loss, target);
    }
}

struct xent_scalar {
    struct xent_args args;
    int64_t rows;
};

static double run_xent(void *ctx) {
    struct xent_scalar *s = ctx;
    double sum;
    kt_run(ref_ops, OP_XENT, 1, &s->args);
    kt_run(ref_ops, OP_LOSS_SUM, 1,
           &(struct loss_sum_args){.out = &sum, .loss = s->args.loss, .rows = s->rows});
    return sum;
}

static void gradient(void **state) {
    (void)state;
    int64_t r = 4, v = 13;
    float *logits = kt_random(DT_F32, r * v, 1, 2.0f), *grad = kt_random(DT_F32, r * v, 1, 2.0f);
    float *loss = kt_poisoned(DT_F32, r);
    int32_t *targets = kt_tokens(r, 2, v);
    targets[2] = -1;
    struct xent_args a = {.logits = grad,
                          .loss = loss,
                          .targets = targets,
                          .rows = r,
                          .vocab = v,
                          .grad_scale = 1.0f,
                          .want_grad = true,
                          .dt = DT_F32};
    kt_run(ref_ops, OP_XENT, 1, &a);
    a.logits = logits;
    a.want_grad = false;
    struct xent_scalar s = {.args = a, .rows = r};
    kt_check_gradient(&(struct kt_gradient){run_xent, &s, logits, grad, r * v, 1e-2, 2e-4});
    KT_FREE(logits, grad, loss, targets);
}

// Host backends add in row order: their bits are ref's, and those of earlier programs. A device has an order
// of its own, which depends on the number of rows alone: the same bits whatever runs first.
static void loss_sum_has_one_order(void **state) {
    static const int64_t sizes[] = {0, 1, 2, 31, 33, 1023, 1024, 1025, 8191, 8192, 8193, 20011};
    (void)state;
    const op_fn *ops = KT_OPS;
    double *out = kt_copy(DT_F64, 1, &(double){0.0});
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            double before = 1e6 / 3.0, magnitude = accumulate ? before : 0.0, first = 0.0, in_order;
            long double want = accumulate ? (long double)before : 0.0L;
            float *loss = kt_random(DT_F32, sizes[s], 3, 9.0f);
            struct loss_sum_args a = {.out = out, .loss = loss, .rows = sizes[s], .accumulate = accumulate};
            for (int64_t r = 0; r < sizes[s]; r++) {
                want += (long double)loss[r];
                magnitude += fabs((double)loss[r]);
            }
            *out = before;
            kt_run(ref_ops, OP_LOSS_SUM, 1, &a);
            in_order = *out;
            for (int order = 1; order <= KT_RUNS + 2; order++) {
                *out = before;
                kt_run(ops, OP_LOSS_SUM, order, &a);
                if (order == 1) first = *out;
                assert_memory_equal(out, &first, sizeof first);
            }
            // n roundings of sums that are no larger than the magnitude.
            long double bound = (long double)(sizes[s] + 1) * 0x1p-53L * (long double)magnitude;
            assert_true(fabsl((long double)first - want) <= bound);
            if (ops == (const op_fn *)cpu_ops) assert_memory_equal(&first, &in_order, sizeof first);
            KT_FREE(loss);
        }
    KT_FREE(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_ref),
        cmocka_unit_test(columns_behind_the_vocabulary),
        cmocka_unit_test(ignored_rows_are_zero),
        cmocka_unit_test(extreme_logits),
        cmocka_unit_test(rising_logits),
        cmocka_unit_test(slices_of_nothing),
        cmocka_unit_test(gradient),
        cmocka_unit_test(loss_sum_has_one_order),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
