// RMSNorm, LayerNorm and the bias gradient: cpu against ref, gradients, accumulation.
#include "tests/kernels/kernel_test.h"

static const int64_t shapes[][2] = {{1, 1},    {3, 7},    {37, 65},  {64, 768}, {5, 1025}, {200, 96},
                                    {2, 4099}, {3, 2504}, {6, 4096}, {5, 8192}, {2, 8200}, {37, 1536}};
#define SHAPES (sizeof shapes / sizeof *shapes)

static const void *null_unless(bool wanted, const void *p) { return wanted ? p : NULL; }

static void check_fwd(enum dtype dt, enum norm_kind kind, int64_t r, int64_t c, bool residual) {
    void *x = kt_random(dt, r * c, 1, 2.0f), *res = kt_random(dt, r * c, 2, 1.0f);
    void *w = kt_random(dt, c, 3, 1.0f), *b = kt_random(dt, c, 4, 1.0f);
    void *y = kt_poisoned(dt, r * c), *sum = kt_poisoned(dt, r * c);
    void *mean = kt_poisoned(DT_F32, r), *rstd = kt_poisoned(DT_F32, r);
    struct norm_fwd_args a = {.y = y,
                              .sum = residual ? sum : NULL,
                              .mean = kind == NORM_LAYER ? mean : NULL,
                              .rstd = rstd,
                              .x = x,
                              .residual = null_unless(residual, res),
                              .weight = w,
                              .bias = null_unless(kind == NORM_LAYER, b),
                              .rows = r,
                              .channels = c,
                              .eps = 1e-5f,
                              .kind = kind,
                              .dt = dt};
    const struct kt_out outs[] = {{y, r * c, dt, 16, 1.0},
                                  {rstd, r, DT_F32, 16, 1e-3},
                                  {sum, r * c, dt, 0, 0},
                                  {mean, r, DT_F32, 8, 1.0}};
    kt_check(OP_NORM_FWD, &a, outs, 4);  // what is not asked for stays poisoned in both
    KT_FREE(x, res, w, b, y, sum, mean, rstd);
}

static void fwd_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 0; s < SHAPES; s++)
            for (int residual = 0; residual < 2; residual++) {
                if (shapes[s][1] > 1)
                    check_fwd(kt_dtypes[d], NORM_LAYER, shapes[s][0], shapes[s][1], residual);
                check_fwd(kt_dtypes[d], NORM_RMS, shapes[s][0], shapes[s][1], residual);
            }
}

// The buffers of one backward, inputs random, outputs as `accumulate` needs them.
struct bwd {
    struct norm_bwd_args args;
    void *x, *dy, *dres, *w, *mean, *rstd;
};

static struct bwd bwd_create(enum dtype dt, enum norm_kind kind, int64_t r, int64_t c, bool accumulate) {
    struct bwd t = {.x = kt_random(dt, r * c, 1, 2.0f),
                    .dy = kt_random(dt, r * c, 2, 1.0f),
                    .dres = kt_random(dt, r * c, 3, 1.0f),
                    .w = kt_random(dt, c, 4, 1.0f),
                    .mean = kt_random(DT_F32, r, 5, 0.1f),
                    .rstd = kt_random(DT_F32, r, 6, 0.2f)};
    for (int64_t i = 0; i < r; i++) ((float *)t.rstd)[i] += 0.8f;
    t.args = (struct norm_bwd_args){.dx = kt_poisoned(dt, r * c),
                                    .dweight = accumulate ? kt_random(dt, c, 7, 1.0f) : kt_poisoned(dt, c),
                                    .dbias = accumulate ? kt_random(dt, c, 8, 1.0f) : kt_poisoned(dt, c),
                                    .dy = t.dy,
                                    .dresidual = t.dres,
                                    .x = t.x,
                                    .mean = kind == NORM_LAYER ? t.mean : NULL,
                                    .rstd = t.rstd,
                                    .weight = t.w,
                                    .scratch = kt_poisoned(DT_U8, (int64_t)norm_bwd_scratch_bytes(c)),
                                    .rows = r,
                                    .channels = c,
                                    .accumulate = accumulate,
                                    .kind = kind,
                                    .dt = dt};
    return t;
}

static void bwd_free(struct bwd *t) {
    KT_FREE(t->x, t->dy, t->dres, t->w, t->mean, t->rstd, t->args.dx, t->args.dweight, t->args.dbias,
            t->args.scratch);
}

static void bwd_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 0; s < SHAPES; s++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                enum norm_kind kind = s % 2 == (size_t)accumulate ? NORM_RMS : NORM_LAYER;
                enum dtype dt = kt_dtypes[d];
                int64_t r = shapes[s][0], c = shapes[s][1];
                struct bwd t = bwd_create(dt, kind, r, c, accumulate);
                void *dbias = t.args.dbias;
                if (kind == NORM_RMS) t.args.dbias = NULL;
                const struct kt_out outs[] = {{t.args.dx, r * c, dt, 16, 2.0},
                                              {t.args.dweight, c, dt, 16, sqrt((double)r)},
                                              {dbias, c, dt, 16, sqrt((double)r)}};
                kt_check(OP_NORM_BWD, &t.args, outs, 3);
                t.args.dbias = dbias;
                bwd_free(&t);
            }
}

static void bwd_may_alias_and_omit_the_residual(void **state) {
    (void)state;
    int64_t r = 37, c = 130;
    struct bwd t = bwd_create(DT_BF16, NORM_RMS, r, c, false);
    kt_run(KT_OPS, OP_NORM_BWD, 2, &t.args);
    struct norm_bwd_args aliased = t.args;
    aliased.dx = t.dres;
    kt_run(KT_OPS, OP_NORM_BWD, 2, &aliased);
    assert_memory_equal(t.args.dx, t.dres, (size_t)(r * c) * 2);
    void *zeros = kt_random(DT_BF16, r * c, 1, 0.0f), *plain = kt_poisoned(DT_BF16, r * c);
    aliased.dx = plain;
    aliased.dresidual = NULL;
    kt_run(KT_OPS, OP_NORM_BWD, 2, &aliased);
    t.args.dresidual = zeros;
    kt_run(KT_OPS, OP_NORM_BWD, 2, &t.args);
    assert_memory_equal(t.args.dx, plain, (size_t)(r * c) * 2);
    KT_FREE(zeros, plain);
    bwd_free(&t);
}

// Without the gradients of a frozen norm dx stays what it is.
static void bwd_of_a_frozen_norm(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++) {
            int64_t r = 37, c = 130;
            struct bwd t = bwd_create(kt_dtypes[d], (enum norm_kind)kind, r, c, false);
            void *dx = kt_poisoned(kt_dtypes[d], r * c);
            struct norm_bwd_args frozen = t.args;
            if (kind == NORM_RMS) t.args.dbias = NULL;
            kt_run(KT_OPS, OP_NORM_BWD, 2, &t.args);
            t.args.dbias = frozen.dbias;
            frozen.dx = dx;
            frozen.dweight = frozen.dbias = NULL;
            kt_check(OP_NORM_BWD, &frozen, &(struct kt_out){dx, r * c, kt_dtypes[d], 16, 2.0}, 1);
            assert_memory_equal(t.args.dx, dx, (size_t)(r * c) * dtype_size(kt_dtypes[d]));
            KT_FREE(dx);
            bwd_free(&t);
        }
}

// ---------------------------------------------------------------- gradients
struct norm_scalar {
    struct norm_fwd_args args;
    const float *dy;
};

static double run_norm(void *ctx) {
    struct norm_scalar *s = ctx;
    kt_run(ref_ops, OP_NORM_FWD, 1, &s->args);
    return kt_dot(s->args.y, s->dy, s->args.rows * s->args.channels);
}

static void gradient(enum norm_kind kind) {
    int64_t r = 3, c = 17;
    struct bwd t = bwd_create(DT_F32, kind, r, c, false);
    float *b = kt_random(DT_F32, c, 9, 1.0f), *y = kt_poisoned(DT_F32, r * c);
    struct norm_fwd_args fwd = {.y = y,
                                .mean = kind == NORM_LAYER ? t.mean : NULL,
                                .rstd = t.rstd,
                                .x = t.x,
                                .weight = t.w,
                                .bias = kind == NORM_LAYER ? b : NULL,
                                .rows = r,
                                .channels = c,
                                .eps = 1e-5f,
                                .kind = kind,
                                .dt = DT_F32};
    kt_run(ref_ops, OP_NORM_FWD, 1, &fwd);
    t.args.dresidual = NULL;
    kt_run(ref_ops, OP_NORM_BWD, 1, &t.args);
    struct norm_scalar s = {.args = fwd, .dy = t.dy};
    kt_check_gradient(&(struct kt_gradient){run_norm, &s, t.x, t.args.dx, r * c, 1e-2, 1e-3});
    kt_check_gradient(&(struct kt_gradient){run_norm, &s, t.w, t.args.dweight, c, 1e-2, 1e-3});
    if (kind == NORM_LAYER)
        kt_check_gradient(&(struct kt_gradient){run_norm, &s, b, t.args.dbias, c, 1e-2, 1e-3});
    KT_FREE(b, y);
    bwd_free(&t);
}

static void rms_gradient(void **state) {
    (void)state;
    gradient(NORM_RMS);
}

static void layer_gradient(void **state) {
    (void)state;
    gradient(NORM_LAYER);
}

// ---------------------------------------------------------------- bias gradient
static void check_bias_grad(enum dtype dt, int64_t r, int64_t c, bool accumulate) {
    void *dy = kt_random(dt, r * c, 1, 1.0f);
    void *dbias = accumulate ? kt_random(dt, c, 2, 1.0f) : kt_poisoned(dt, c);
    struct bias_grad_args a = {
        .dbias = dbias, .dy = dy, .rows = r, .n = c, .accumulate = accumulate, .dt = dt};
    kt_check(OP_BIAS_GRAD, &a, &(struct kt_out){dbias, c, dt, 8, sqrt((double)r)}, 1);
    KT_FREE(dy, dbias);
}

static void bias_grad_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 0; s < SHAPES; s++)
            for (int accumulate = 0; accumulate < 2; accumulate++)
                check_bias_grad(kt_dtypes[d], shapes[s][0], shapes[s][1], accumulate);
    check_bias_grad(DT_BF16, 28700, 8, true);  // long runs of rows: the unrolled loop and what it leaves
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fwd_matches_ref),       cmocka_unit_test(bwd_matches_ref),
        cmocka_unit_test(bwd_of_a_frozen_norm),  cmocka_unit_test(bwd_may_alias_and_omit_the_residual),
        cmocka_unit_test(rms_gradient),          cmocka_unit_test(layer_gradient),
        cmocka_unit_test(bias_grad_matches_ref),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
