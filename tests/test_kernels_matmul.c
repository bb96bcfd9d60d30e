// Matrix product: cpu against the reference in every type, orientation and epilogue, over shapes that
// are no multiples of any block; the same bits from every number of threads; gradients.
#include "kernels/cpu/gemm.h"
#include "tests/kernel_test.h"

struct shape {
    int64_t m, n, k;
};

static void check_product(struct matmul_args g) {
    void *a = kt_random(g.dt, g.m * g.k, 1, 1.0f), *b = kt_random(g.dt, g.n * g.k, 2, 1.0f);
    void *bias = g.bias ? kt_random(g.dt, g.n, 3, 4.0f) : NULL;
    void *c = g.accumulate ? kt_random(g.dt, g.m * g.n, 4, 4.0f) : kt_poisoned(g.dt, g.m * g.n);
    g.a = a;
    g.b = b;
    g.bias = bias;
    g.c = c;
    // One rounding is half a unit; a sum of k products of size 1/3 adds an error of about sqrt(k) parts.
    struct kt_out out = {c, g.m * g.n, g.dt, g.dt == DT_F32 ? 8 : 1, sqrt((double)g.k) + 1};
    if (g.dt != DT_F32) out.floor = sqrt((double)g.k) * 0x1p-10 + 0x1p-6;
    kt_check(OP_MATMUL, &g, &out, 1);
    KT_FREE(a, b, bias, c);
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

// bf16 by conversion and by pairs, whichever of them op_matmul takes on this machine.
static void test_both_kinds_of_bf16(void **state) {
    (void)state;
    static const struct shape shapes[] = {{1, 1, 1},     {5, 1, 2},      {13, 40, 3},
                                          {37, 65, 129}, {30, 50, 2055}, {50, 33, 64}};
    if (!gemm_has_pairs()) skip();
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int variant = 0; variant < 8; variant++) {
            struct matmul_args g = {.m = shapes[s].m, .n = shapes[s].n, .k = shapes[s].k, .dt = DT_BF16};
            g.trans_a = variant & 1;
            g.trans_b = variant & 2;
            g.accumulate = variant & 4;
            int64_t count = g.m * g.n;
            void *a = kt_random(DT_BF16, g.m * g.k, 1, 1.0f), *b = kt_random(DT_BF16, g.n * g.k, 2, 1.0f);
            void *c[4];  // by the reference, by conversion, by pairs on 1 and on 3 threads
            for (int i = 0; i < 4; i++) {
                c[i] = g.accumulate ? kt_random(DT_BF16, count, 3, 1.0f) : kt_poisoned(DT_BF16, count);
                const char *why = "";
                g.a = a;
                g.b = b;
                g.c = c[i];
                assert_int_equal(i == 0   ? ref_ops[OP_MATMUL](1, &g, &why)
                                 : i == 1 ? gemm_blocked(2, &g, &why)
                                          : gemm_pairs(2 * i - 3, &g, &why),
                                 0);
            }
            struct kt_out out = {c[0], count, DT_BF16, 1, sqrt((double)g.k) * 0x1p-10 + 0x1p-6};
            kt_assert_close(&out, c[1], c[0]);
            kt_assert_close(&out, c[2], c[0]);
            assert_memory_equal(c[2], c[3], (size_t)count * 2);
            KT_FREE(a, b, c[0], c[1], c[2], c[3]);
        }
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
        kt_run(cpu_ops, OP_MATMUL, 2, &g);
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

// loss = sum of c * dc, c = op(a) op(b) + bias
struct product {
    struct matmul_args g;
    const float *dc;
    const op_fn *ops;
};

static double product_loss(void *ctx) {
    struct product *p = ctx;
    kt_run(p->ops, OP_MATMUL, 1, &p->g);
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
    struct product p = {{.c = y, .a = x, .b = w, .m = rows, .n = out, .k = in, .trans_b = true}, dy, ops};
    kt_check_gradient(&(struct kt_gradient){product_loss, &p, x, dx, rows * in, 0.25, 2e-4});
    kt_check_gradient(&(struct kt_gradient){product_loss, &p, w, dw, out * in, 0.25, 2e-4});
    KT_FREE(x, w, dy, y, dx, dw);
}

static void test_gradient(void **state) {
    (void)state;
    check_gradient(ref_ops, 5, 9, 7);
    check_gradient(cpu_ops, 17, 19, 35);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference),  cmocka_unit_test(test_large_blocks),
        cmocka_unit_test(test_both_kinds_of_bf16), cmocka_unit_test(test_exact_integers),
        cmocka_unit_test(test_nonfinite),          cmocka_unit_test(test_gradient),
    };
    return cmocka_run_group_tests_name("kernels: matmul", tests, NULL, NULL);
}
