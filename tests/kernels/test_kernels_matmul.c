// Matrix product: cpu against the reference in every type, orientation and epilogue, over shapes that
// are no multiples of any block, with and without gaps between rows; the same bits from every number of
// threads; gradients.
#include "tests/kernels/kernel_test.h"

struct shape {
    int64_t m, n, k;
};

static void check_product(struct matmul_args g) {
    int64_t a_rows = g.trans_a ? g.k : g.m, b_rows = g.trans_b ? g.n : g.k;
    int64_t lda = matmul_lda(&g), ldb = matmul_ldb(&g), ldc = matmul_ldc(&g);
    void *a = kt_random_rows(g.dt, a_rows, g.trans_a ? g.m : g.k, lda, 1, 1.0f);
    void *b = kt_random_rows(g.dt, b_rows, g.trans_b ? g.k : g.n, ldb, 2, 1.0f);
    void *bias = g.bias ? kt_random(g.dt, g.n, 3, 4.0f) : NULL;
    void *c = g.accumulate ? kt_random_rows(g.dt, g.m, g.n, ldc, 4, 4.0f)
                           : kt_poisoned(g.dt, (g.m - 1) * ldc + g.n);
    void *aux = g.epilogue == EPILOGUE_GELU        ? kt_poisoned(g.dt, g.m * g.n)
                : g.epilogue == EPILOGUE_GELU_GRAD ? kt_random(g.dt, g.m * g.n, 5, 3.0f)
                                                   : NULL;
    void *bias_grad = g.epilogue != EPILOGUE_BIAS_GRAD ? NULL
                      : g.accumulate                   ? kt_random(g.dt, g.m, 6, 4.0f)
                                                       : kt_poisoned(g.dt, g.m);
    g.a = a;
    g.b = b;
    g.bias_grad = bias_grad;
    g.bias = bias;
    g.c = c;
    g.aux = aux;
    // One rounding is half a unit; a sum of k products of size 1/3 adds an error of about sqrt(k) parts, in
    // fp32 six standard deviations of it. GELU's slope is at most 1.13, and it may see the product before or
    // after it is rounded.
    struct kt_out out = {c, (g.m - 1) * ldc + g.n, g.dt, g.dt == DT_F32 ? 24 : 1, sqrt((double)g.k) + 1};
    if (g.dt != DT_F32) out.floor = sqrt((double)g.k) * 0x1p-10 + 0x1p-6;
    const struct kt_out sums = {bias_grad, g.m, g.dt, out.units, out.floor};
    // Rounded before bias or c, which are below 4, the product adds half a unit of its own, and it is at most |c| + 4.
    if (KT_PRODUCTS_ROUNDED && g.dt != DT_F32 && (g.bias || g.accumulate))
        out.units = 2, out.floor = fmax(out.floor, 2);
    struct kt_out outs[] = {out, {aux, g.m * g.n, g.dt, out.units, out.floor}};
    if (g.epilogue != EPILOGUE_NONE) outs[0].units *= 2.5;
    if (g.epilogue == EPILOGUE_GELU) outs[0].floor += 0.25;
    if (g.epilogue == EPILOGUE_GELU_GRAD) outs[1].units = 0;
    if (bias_grad) outs[0] = out, outs[1] = sums;
    kt_check(OP_MATMUL, &g, outs, aux || bias_grad ? 2 : 1);
    kt_assert_gaps(g.dt, c, g.m, g.n, ldc);
    KT_FREE(a, b, bias, c, aux, bias_grad);
}

static void test_against_reference(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 1},     {1, 50, 3},   {13, 7, 1},    {5, 1, 40},
        {37, 65, 129}, {12, 32, 16}, {24, 64, 512}, {50, 33, 1030},
    };
    static const float some = 1;  // stands for "with a bias" until check_product makes one
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int variant = 0; variant < KT_DTYPES * 4 * 3; variant++) {
            int epilogue = variant % 3;
            check_product((struct matmul_args){.m = shapes[s].m,
                                               .n = shapes[s].n,
                                               .k = shapes[s].k,
                                               .trans_a = variant / 3 % 2,
                                               .trans_b = variant / 6 % 2,
                                               .bias = epilogue == 1 ? &some : NULL,
                                               .accumulate = epilogue == 2,
                                               .dt = kt_dtypes[variant / 12]});
        }
}

// Rows that lie apart: by whole vectors, and by odd numbers of elements. The gaps hold NaN.
static void test_leading_dimensions(void **state) {
    (void)state;
    static const struct shape shapes[] = {{1, 1, 1}, {13, 7, 5}, {37, 65, 129}, {50, 40, 1030}, {9, 257, 24}};
    static const int64_t gaps[][3] = {{3, 0, 0}, {0, 5, 0}, {0, 0, 7}, {63, 64, 1}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++)
            for (int variant = 0; variant < KT_DTYPES * 8; variant++) {
                struct matmul_args g = {.m = shapes[s].m, .n = shapes[s].n, .k = shapes[s].k};
                g.trans_a = variant & 1;
                g.trans_b = variant & 2;
                g.accumulate = variant & 4;
                g.dt = kt_dtypes[variant / 8];
                if (gaps[i][0]) g.lda = matmul_lda(&g) + gaps[i][0];
                if (gaps[i][1]) g.ldb = matmul_ldb(&g) + gaps[i][1];
                if (gaps[i][2]) g.ldc = matmul_ldc(&g) + gaps[i][2];
                check_product(g);
            }
}

static void test_gelu_epilogues(void **state) {
    (void)state;
    static const struct shape shapes[] = {{1, 8, 3}, {13, 7, 5}, {37, 64, 129}, {21, 40, 1030}};
    static const float some = 1;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int variant = 0; variant < KT_DTYPES * 3; variant++) {
            struct matmul_args g = {.m = shapes[s].m, .n = shapes[s].n, .k = shapes[s].k, .trans_b = true};
            g.dt = kt_dtypes[variant / 3];
            g.epilogue = variant % 3 == 2 ? EPILOGUE_GELU_GRAD : EPILOGUE_GELU;
            g.bias = variant % 3 == 1 ? &some : NULL;
            check_product(g);
            g.trans_b = false;
            g.ldb = g.n + 8;
            check_product(g);
        }
}

static void test_bias_gradients(void **state) {
    (void)state;
    static const struct shape shapes[] = {{1, 8, 3}, {13, 7, 5}, {64, 24, 129}, {40, 21, 1030}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int variant = 0; variant < KT_DTYPES * 2; variant++)
            check_product((struct matmul_args){.m = shapes[s].m,
                                               .n = shapes[s].n,
                                               .k = shapes[s].k,
                                               .trans_a = true,
                                               .accumulate = variant % 2,
                                               .epilogue = EPILOGUE_BIAS_GRAD,
                                               .dt = kt_dtypes[variant / 2]});
}

// On the host backends a bias gradient has the bits of the product and then the operation.
static void test_bias_gradient_is_the_composition(void **state) {
    (void)state;
    const int64_t m = 72, n = 33, k = 50;
    for (int variant = 0; variant < KT_DTYPES * 4; variant++) {
        enum dtype dt = kt_dtypes[variant / 4];
        const op_fn *ops = variant % 2 ? cpu_ops : ref_ops;
        void *a = kt_random(dt, k * m, 1, 1.0f), *b = kt_random(dt, k * n, 2, 1.0f);
        void *c = kt_random(dt, m * n, 3, 1.0f), *want = kt_random(dt, m * n, 3, 1.0f);
        void *sums = kt_random(dt, m, 4, 1.0f), *want_sums = kt_random(dt, m, 4, 1.0f);
        struct matmul_args g = {.c = want,
                                .a = a,
                                .b = b,
                                .m = m,
                                .n = n,
                                .k = k,
                                .trans_a = true,
                                .accumulate = variant / 2 % 2};
        g.dt = dt;
        struct bias_grad_args own = {want_sums, a, k, m, g.accumulate, dt};
        kt_run(ops, OP_MATMUL, 2, &g);
        kt_run(ops, OP_BIAS_GRAD, 2, &own);
        g.c = c;
        g.bias_grad = sums;
        g.epilogue = EPILOGUE_BIAS_GRAD;
        kt_run(ops, OP_MATMUL, 1, &g);
        assert_memory_equal(c, want, (size_t)(m * n) * dtype_size(dt));
        assert_memory_equal(sums, want_sums, (size_t)m * dtype_size(dt));
        KT_FREE(a, b, c, want, sums, want_sums);
    }
}

// On the host backends a GELU epilogue has the bits of the product and then the operation.
static void check_composition(const op_fn *ops, enum dtype dt, bool backward) {
    const int64_t m = 33, n = 72, k = 50;
    void *a = kt_random(dt, m * k, 1, 1.0f), *b = kt_random(dt, n * k, 2, 1.0f);
    void *bias = backward ? NULL : kt_random(dt, n, 3, 1.0f), *c = kt_poisoned(dt, m * n);
    void *aux = backward ? kt_random(dt, m * n, 4, 3.0f) : kt_poisoned(dt, m * n);
    void *p = kt_poisoned(dt, m * n), *want = kt_poisoned(dt, m * n);
    struct matmul_args g = {
        .c = p, .a = a, .b = b, .bias = bias, .m = m, .n = n, .k = k, .trans_b = true, .dt = dt};
    kt_run(ops, OP_MATMUL, 2, &g);
    struct gelu_args gelu = {.y = want, .x = backward ? aux : p, .dy = p, .n = m * n, .dt = dt};
    kt_run(ops, backward ? OP_GELU_BWD : OP_GELU_FWD, 1, &gelu);
    g.c = c;
    g.aux = aux;
    g.epilogue = backward ? EPILOGUE_GELU_GRAD : EPILOGUE_GELU;
    kt_run(ops, OP_MATMUL, 1, &g);
    assert_memory_equal(c, want, (size_t)(m * n) * dtype_size(dt));
    if (!backward) assert_memory_equal(aux, p, (size_t)(m * n) * dtype_size(dt));
    KT_FREE(a, b, bias, c, aux, p, want);
}

static void test_gelu_is_the_composition(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (int backward = 0; backward < 2; backward++) {
            check_composition(cpu_ops, kt_dtypes[d], backward);
            check_composition(ref_ops, kt_dtypes[d], backward);
        }
}

// The contract that every backend asserts.
static void test_what_is_no_product(void **state) {
    (void)state;
    float x[64];
    const struct matmul_args good = {.c = x, .a = x, .b = x, .m = 4, .n = 3, .k = 2};
    struct matmul_args g = good;
    assert_true(matmul_valid(&g));
    g.lda = 1;
    assert_false(matmul_valid(&g));
    g.lda = 2;
    assert_true(matmul_valid(&g));
    g.trans_a = true;
    assert_false(matmul_valid(&g));
    g = good;
    g.ldb = 2;
    assert_false(matmul_valid(&g));
    g.trans_b = true;
    assert_true(matmul_valid(&g));
    g = good;
    g.ldc = 2;
    assert_false(matmul_valid(&g));
    g = good;
    g.bias = x;
    assert_true(matmul_valid(&g));
    g.accumulate = true;
    assert_false(matmul_valid(&g));
    g = good;
    g.epilogue = EPILOGUE_GELU;
    assert_false(matmul_valid(&g));
    g.aux = x;
    assert_true(matmul_valid(&g));
    g.ldc = 4;
    assert_false(matmul_valid(&g));
    g.ldc = 0;
    g.epilogue = EPILOGUE_GELU_GRAD;
    assert_true(matmul_valid(&g));
    g.bias = x;
    assert_false(matmul_valid(&g));
    g.epilogue = EPILOGUE_NONE;
    assert_false(matmul_valid(&g));
    g = good;
    g.epilogue = EPILOGUE_BIAS_GRAD;
    g.trans_a = true;
    assert_false(matmul_valid(&g));
    g.bias_grad = x;
    assert_true(matmul_valid(&g));
    g.accumulate = true;
    assert_true(matmul_valid(&g));
    g.accumulate = false;
    g.lda = 5;
    assert_false(matmul_valid(&g));
    g.lda = 0;
    g.bias = x;
    assert_false(matmul_valid(&g));
    g.bias = NULL;
    g.trans_a = false;
    assert_false(matmul_valid(&g));
    g = good;
    g.bias_grad = x;
    assert_false(matmul_valid(&g));
    g = good;
    g.k = 0;
    assert_false(matmul_valid(&g));
}

// Shapes that cross every level of blocking: rows (240, 2040), columns (768) and passes over k (512).
static void test_large_blocks(void **state) {
    (void)state;
    check_product((struct matmul_args){.m = 250, .n = 800, .k = 40, .trans_b = true, .dt = DT_BF16});
    check_product((struct matmul_args){.m = 2050, .n = 5, .k = 520, .accumulate = true, .dt = DT_F32});
    check_product((struct matmul_args){.m = 2051, .n = 40, .k = 521, .trans_a = true, .dt = DT_F16});
    check_product((struct matmul_args){.m = 7, .n = 2000, .k = 530, .trans_a = true, .dt = DT_F32});
    check_product(
        (struct matmul_args){.m = 300, .n = 790, .k = 90, .trans_a = true, .trans_b = true, .dt = DT_BF16});
}

// Small integers: every partial sum is exact in fp32, so the product must be, up to its one rounding.
static void test_exact_integers(void **state) {
    (void)state;
    const int64_t m = 40, n = 70, k = 33;
    for (int d = 0; d < KT_DTYPES; d++) {
        enum dtype dt = kt_dtypes[d];
        void *a = kt_alloc(dt, m * k), *b = kt_alloc(dt, k * n), *c = kt_poisoned(dt, m * n);
        for (int64_t i = 0; i < m * k; i++)
            dtype_store(dt, a, (size_t)i, (float)(kt_hash(1, (uint64_t)i) % 31));
        for (int64_t i = 0; i < k * n; i++)
            dtype_store(dt, b, (size_t)i, (float)(kt_hash(2, (uint64_t)i) % 29));
        struct matmul_args g = {.c = c, .a = a, .b = b, .m = m, .n = n, .k = k, .dt = dt};
        kt_check(OP_MATMUL, &g, &(struct kt_out){c, m * n, dt, 0, 0}, 1);
        KT_FREE(a, b, c);
    }
}

// An infinity or NaN must come out as one where it belongs and nowhere else.
static void test_nonfinite(void **state) {
    (void)state;
    const int64_t m = 30, n = 45, k = 20;
    for (int d = 0; d < KT_DTYPES; d++) {
        enum dtype dt = kt_dtypes[d];
        void *a = kt_random(dt, m * k, 1, 1.0f), *b = kt_random(dt, k * n, 2, 1.0f),
             *c = kt_poisoned(dt, m * n);
        dtype_store(dt, a, 7 * k + 3, INFINITY);
        dtype_store(dt, b, 5 * n + 11, NAN);
        struct matmul_args g = {.c = c, .a = a, .b = b, .m = m, .n = n, .k = k, .dt = dt};
        kt_run(KT_OPS, OP_MATMUL, 2, &g);
        for (int64_t i = 0; i < m * n; i++) {
            float x = dtype_load(dt, c, (size_t)i);
            if (i % n == 11)
                assert_true(isnan(x));
            else if (i / n == 7)
                assert_true(isinf(x));
            else
                assert_true(isfinite(x));
        }
        KT_FREE(a, b, c);
    }
}

// loss = sum of c * dc, c = op(a) op(b) + bias, by the reference
struct product {
    struct matmul_args g;
    const float *dc;
};

static double product_loss(void *ctx) {
    struct product *p = ctx;
    kt_run(ref_ops, OP_MATMUL, 1, &p->g);
    return kt_dot(p->g.c, p->dc, p->g.m * p->g.n);
}

// The backward of y = x w^T is two products: dx = dy w, dw = dy^T x; their bits are the model's.
static void check_gradient(const op_fn *ops, int64_t rows, int64_t in, int64_t out) {
    float *x = kt_random(DT_F32, rows * in, 1, 1.0f), *w = kt_random(DT_F32, out * in, 2, 1.0f);
    float *dy = kt_random(DT_F32, rows * out, 3, 1.0f), *y = kt_poisoned(DT_F32, rows * out);
    float *dx = kt_poisoned(DT_F32, rows * in), *dw = kt_poisoned(DT_F32, out * in);
    kt_run(ops, OP_MATMUL, 1, &(struct matmul_args){.c = dx, .a = dy, .b = w, .m = rows, .n = in, .k = out});
    kt_run(ops, OP_MATMUL, 1,
           &(struct matmul_args){.c = dw, .a = dy, .b = x, .m = out, .n = in, .k = rows, .trans_a = true});
    struct product p = {{.c = y, .a = x, .b = w, .m = rows, .n = out, .k = in, .trans_b = true}, dy};
    kt_check_gradient(&(struct kt_gradient){product_loss, &p, x, dx, rows * in, 0.25, 2e-4});
    kt_check_gradient(&(struct kt_gradient){product_loss, &p, w, dw, out * in, 0.25, 2e-4});
    KT_FREE(x, w, dy, y, dx, dw);
}

static void test_gradient(void **state) {
    (void)state;
    check_gradient(ref_ops, 5, 9, 7);
    check_gradient(KT_OPS, 17, 19, 35);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),  cmocka_unit_test(test_leading_dimensions),
        cmocka_unit_test(test_gelu_epilogues),     cmocka_unit_test(test_gelu_is_the_composition),
        cmocka_unit_test(test_bias_gradients),     cmocka_unit_test(test_bias_gradient_is_the_composition),
        cmocka_unit_test(test_what_is_no_product), cmocka_unit_test(test_large_blocks),
        cmocka_unit_test(test_exact_integers),     cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_gradient),
    };
    return cmocka_run_group_tests_name("kernels: matmul", tests, NULL, KT_TEARDOWN);
}
