// GELU, SwiGLU, addition, rotary embedding: cpu against ref, gradients, large inputs.
#include "kernels/cpu/simd_math.h"
#include "tests/kernels/kernel_test.h"

static const int64_t sizes[] = {1, 7, 31, 1024, 1025, 40003};

static void gelu_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            enum dtype dt = kt_dtypes[d];
            int64_t n = sizes[s];
            void *x = kt_random(dt, n, 1, 8.0f), *dy = kt_random(dt, n, 2, 1.0f), *y = kt_poisoned(dt, n);
            struct gelu_args fwd = {.y = y, .x = x, .n = n, .dt = dt};
            kt_check(OP_GELU_FWD, &fwd, &(struct kt_out){y, n, dt, 16, 1e-3}, 1);
            struct gelu_args bwd = {.y = y, .x = x, .dy = dy, .n = n, .dt = dt};
            kt_check(OP_GELU_BWD, &bwd, &(struct kt_out){y, n, dt, 16, 1e-1}, 1);
            KT_FREE(x, dy, y);
        }
    }
}

static void gelu_bwd_may_alias_dy(void **state) {
    (void)state;
    int64_t n = 3001;
    void *x = kt_random(DT_BF16, n, 1, 4.0f), *dy = kt_random(DT_BF16, n, 2, 1.0f),
         *y = kt_poisoned(DT_BF16, n);
    kt_run(KT_OPS, OP_GELU_BWD, 2, &(struct gelu_args){.y = y, .x = x, .dy = dy, .n = n, .dt = DT_BF16});
    kt_run(KT_OPS, OP_GELU_BWD, 2, &(struct gelu_args){.y = dy, .x = x, .dy = dy, .n = n, .dt = DT_BF16});
    assert_memory_equal(y, dy, (size_t)n * 2);
    KT_FREE(x, dy, y);
}

static void swiglu_matches_ref(void **state) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {17, 129}, {2, 2051}, {33, 512}};
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            enum dtype dt = kt_dtypes[d];
            int64_t r = shapes[s][0], f = shapes[s][1];
            void *gu = kt_random(dt, r * 2 * f, 1, 6.0f), *dy = kt_random(dt, r * f, 2, 1.0f);
            void *y = kt_poisoned(dt, r * f), *dgu = kt_poisoned(dt, r * 2 * f);
            struct swiglu_args fwd = {.y = y, .gate_up = gu, .rows = r, .width = f, .dt = dt};
            kt_check(OP_SWIGLU_FWD, &fwd, &(struct kt_out){y, r * f, dt, 16, 1e-2}, 1);
            struct swiglu_args bwd = {.y = dgu, .gate_up = gu, .dy = dy, .rows = r, .width = f, .dt = dt};
            kt_check(OP_SWIGLU_BWD, &bwd, &(struct kt_out){dgu, r * 2 * f, dt, 16, 1e-1}, 1);
            KT_FREE(gu, dy, y, dgu);
        }
    }
}

// The model writes the gradient of gate and up over them.
static void swiglu_bwd_may_write_over_gate_up(void **state) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {17, 129}, {2, 2051}, {33, 512}};
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            enum dtype dt = kt_dtypes[d];
            int64_t r = shapes[s][0], f = shapes[s][1];
            void *dy = kt_random(dt, r * f, 2, 1.0f), *gate_up = kt_random(dt, r * 2 * f, 1, 6.0f);
            void *apart = kt_poisoned(dt, r * 2 * f), *over = kt_copy(dt, r * 2 * f, gate_up);
            struct swiglu_args a = {
                .y = apart, .gate_up = gate_up, .dy = dy, .rows = r, .width = f, .dt = dt};
            kt_run(KT_OPS, OP_SWIGLU_BWD, 1, &a);
            for (int threads = 1; threads <= KT_RUNS; threads++) {
                memcpy(over, gate_up, (size_t)(r * 2 * f) * dtype_size(dt));
                a.y = over;
                a.gate_up = over;
                kt_run(KT_OPS, OP_SWIGLU_BWD, threads, &a);
                assert_memory_equal(over, apart, (size_t)(r * 2 * f) * dtype_size(dt));
            }
            // The reference may be asked the same.
            kt_run(ref_ops, OP_SWIGLU_BWD, 1,
                   &(struct swiglu_args){
                       .y = gate_up, .gate_up = gate_up, .dy = dy, .rows = r, .width = f, .dt = dt});
            kt_assert_close(&(struct kt_out){apart, r * 2 * f, dt, 16, 1e-1}, apart, gate_up);
            KT_FREE(dy, gate_up, apart, over);
        }
    }
}

// Any finite input: the limits, no NaN from infinity minus or times anything.
static void large_inputs_are_finite(void **state) {
    (void)state;
    const float values[] = {0.0f,   -0.0f, 20.0f,  -20.0f, 100.0f, -100.0f, 1e10f,
                            -1e10f, 1e20f, -1e20f, 3e38f,  -3e38f, 1e-40f};
    int64_t n = sizeof values / sizeof *values;
    float *x = kt_copy(DT_F32, n, values), *ones = kt_alloc(DT_F32, 32), *y = kt_poisoned(DT_F32, 32);
    float *gate_up = kt_poisoned(DT_F32, 64), *dgate_up = kt_poisoned(DT_F32, 64);
    for (int i = 0; i < 32; i++) ones[i] = 1.0f;
    kt_run(KT_OPS, OP_GELU_FWD, 1, &(struct gelu_args){.y = y, .x = x, .n = n, .dt = DT_F32});
    for (int64_t i = 0; i < n; i++) assert_true(x[i] >= 20.0f ? y[i] == x[i] : fabsf(y[i]) < 1e-30f);
    kt_run(KT_OPS, OP_GELU_BWD, 1, &(struct gelu_args){.y = y, .x = x, .dy = ones, .n = n, .dt = DT_F32});
    for (int64_t i = 0; i < n; i++)
        assert_true(x[i] >= 20.0f ? y[i] == 1.0f : x[i] <= -20.0f ? fabsf(y[i]) < 1e-30f : y[i] == 0.5f);
    memcpy(gate_up, x, (size_t)n * sizeof *x);
    memcpy(gate_up + n, ones, (size_t)n * sizeof *x);
    struct swiglu_args s = {.y = y, .gate_up = gate_up, .dy = ones, .rows = 1, .width = n, .dt = DT_F32};
    kt_run(KT_OPS, OP_SWIGLU_FWD, 1, &s);
    for (int64_t i = 0; i < n; i++)
        assert_true(x[i] >= 20.0f ? y[i] <= x[i] && y[i] > 19.9f : fabsf(y[i]) < 1e-7f);
    s.y = dgate_up;
    kt_run(KT_OPS, OP_SWIGLU_BWD, 1, &s);
    for (int64_t i = 0; i < 2 * n; i++) assert_true(isfinite(dgate_up[i]));
    KT_FREE(x, ones, y, gate_up, dgate_up);
}

// 2^t and 1/d, lane for lane: within a unit for fp32, 2^-17 of the value for what is rounded to 16 bits.
static void powers_and_inverses_are_accurate(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        const double most = kt_dtypes[d] == DT_F32 ? 0x1p-23 : 0x1p-17;
        for (int i = 0; i < 400000; i += GROUP * VEC) {
            float t[GROUP * VEC], y[GROUP * VEC], inverse[GROUP * VEC];
            vecf v[GROUP], w[GROUP];
            for (int k = 0; k < GROUP * VEC; k++) t[k] = -126.0f + 253.0f * (float)(i + k) / 400100.0f;
            memcpy(v, t, sizeof v);
            vec_exp2(kt_dtypes[d], v, 0.0f, w);
            memcpy(y, w, sizeof w);
            vec_exp2(kt_dtypes[d], v, 1.0f, v);
            vec_inverse(kt_dtypes[d], v, w);
            memcpy(inverse, w, sizeof w);
            for (int k = 0; k < GROUP * VEC; k++) {
                double want = exp2((double)t[k]);
                assert_true(fabs((double)y[k] - want) <= most * want);
                if (t[k] < 120) assert_true(fabs((double)inverse[k] * (1 + want) - 1) <= 2 * most);
            }
        }
        vecf v[GROUP], y[GROUP], s[GROUP];
        EACH v[k] = vec_set(k == 0 ? NAN : k == 1 ? 0.0f : k == 2 ? INFINITY : -INFINITY);
        vec_exp2(kt_dtypes[d], v, 0.0f, y);
        vec_sigmoid2(kt_dtypes[d], v, s);
        assert_true(isnan(y[0][0]) && y[1][0] == 1.0f);
        assert_true(isnan(s[0][0]) && fabsf(s[1][0] - 0.5f) < 1e-5f && s[2][0] == 0.0f &&
                    fabsf(s[3][0] - 1.0f) < 1e-5f);
    }
}

static uint32_t same_nan(float x) { return isnan(x) ? 0x7fc00000u : f32_to_bits(x); }

// Vectors' 16-bit stores, one at a time and two, against one number at a time, over all signs, exponents and ends of the
// range.
static void vectors_are_the_scalars_bits(void **state) {
    (void)state;
    const uint32_t step = 9973;
    for (uint64_t at = 0; at < 0x100000000u; at += (uint64_t)step * GROUP * VEC) {
        float x[GROUP * VEC];
        uint16_t h[VEC], two[2 * VEC];
        vecf v[GROUP];
        for (int i = 0; i < GROUP * VEC; i++) x[i] = bits_to_f32((uint32_t)at + (uint32_t)i * step);
        memcpy(v, x, sizeof v);
        for (int t = 0; t < 2; t++) {
            enum dtype dt = t ? DT_F16 : DT_BF16;
            vec_store(dt, h, 0, v[0]);
            vec_store2(dt, two, 0, v[0], v[1]);
            for (int i = 0; i < 2 * VEC; i++) {
                uint16_t want;
                dtype_store(dt, &want, 0, x[i]);
                assert_int_equal(two[i], want);
                if (i >= VEC) continue;
                assert_int_equal(h[i], want);
                assert_int_equal(same_nan(vec_load(dt, h, 0)[i]), same_nan(dtype_load(dt, h, (size_t)i)));
            }
        }
    }
}

static void add_matches_ref_to_the_bit(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            enum dtype dt = kt_dtypes[d];
            int64_t n = sizes[s];
            void *a = kt_random(dt, n, 1, 3.0f), *b = kt_random(dt, n, 2, 1.0f), *y = kt_poisoned(dt, n);
            kt_check(OP_ADD, &(struct add_args){.y = y, .a = a, .b = b, .n = n, .dt = dt},
                     &(struct kt_out){y, n, dt, 0, 0}, 1);
            kt_run(KT_OPS, OP_ADD, 2, &(struct add_args){.y = b, .a = a, .b = b, .n = n, .dt = dt});
            assert_memory_equal(y, b, (size_t)n * dtype_size(dt));
            KT_FREE(a, b, y);
        }
    }
}

static float *rope_table(int64_t seq, int64_t half) {
    float *t = kt_alloc(DT_F32, seq * half * 2);
    for (int64_t i = 0; i < seq * half; i++) {
        double angle = (double)(i / half) * pow(10000.0, -(double)(i % half) / (double)half);
        t[2 * i] = (float)cos(angle);
        t[2 * i + 1] = (float)sin(angle);
    }
    return t;
}

static void rope_matches_ref(void **state) {
    static const int32_t shapes[][5] = {
        {1, 1, 1, 1, 2}, {2, 5, 4, 2, 6}, {3, 33, 2, 2, 64}, {1, 9, 6, 1, 18}, {1, 2, 1, 1, 4100}};
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            enum dtype dt = kt_dtypes[d];
            int64_t b = shapes[s][0], t = shapes[s][1], size = shapes[s][4];
            int64_t n = b * t * (shapes[s][2] + 2 * shapes[s][3]) * size;
            void *qkv = kt_random(dt, n, 1, 1.0f);
            float *table = rope_table(t, size / 2);
            for (int inverse = 0; inverse < 2; inverse++) {
                struct rope_args a = {.qkv = qkv,
                                      .cos_sin = table,
                                      .batch = b,
                                      .seq = t,
                                      .heads = shapes[s][2],
                                      .kv_heads = shapes[s][3],
                                      .head_size = (int32_t)size,
                                      .inverse = inverse,
                                      .dt = dt};
                kt_check(OP_ROPE, &a, &(struct kt_out){qkv, n, dt, 2, 1.0}, 1);
            }
            KT_FREE(qkv, table);
        }
    }
}

// Rotation is orthogonal: inverse undoes it, and so is its gradient; v is untouched.
static void rope_inverse_undoes(void **state) {
    (void)state;
    int64_t n = 2 * 7 * (4 + 2 * 2) * 10;
    float *qkv = kt_random(DT_F32, n, 3, 1.0f), *first = kt_random(DT_F32, n, 3, 1.0f),
          *table = rope_table(7, 5);
    struct rope_args a = {.qkv = qkv,
                          .cos_sin = table,
                          .batch = 2,
                          .seq = 7,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_size = 10,
                          .dt = DT_F32};
    kt_run(KT_OPS, OP_ROPE, 2, &a);
    for (int64_t row = 0; row < 14; row++)
        assert_memory_equal(qkv + row * 80 + 60, first + row * 80 + 60, 80);
    assert_true(fabsf(qkv[80] - first[80]) > 1e-3f);
    a.inverse = true;
    kt_run(KT_OPS, OP_ROPE, 2, &a);
    for (int64_t i = 0; i < n; i++) assert_true(fabsf(qkv[i] - first[i]) < 1e-6f);
    KT_FREE(qkv, first, table);
}

// Backward with the gradient of qkv's bias: qkv's bits are those without it; the sums are those of what was
// written, on the host to the bit.
static void rope_sums_what_it_writes(void **state) {
    static const int32_t shapes[][5] = {{1, 1, 1, 1, 2},    {2, 5, 4, 2, 6},  {3, 33, 2, 2, 64},
                                        {2, 300, 6, 1, 16}, {1, 9, 3, 1, 82}, {3, 3000, 1, 1, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes * KT_DTYPES * 2; i++) {
        const int32_t *s = shapes[i / KT_DTYPES / 2];
        enum dtype dt = kt_dtypes[i / 2 % KT_DTYPES];
        int64_t rows = s[0] * s[1], width = (s[2] + 2 * s[3]) * s[4];
        void *qkv = kt_random(dt, rows * width, 1, 1.0f), *want = kt_copy(dt, rows * width, qkv);
        void *first = kt_copy(dt, rows * width, qkv), *old = kt_random(dt, width, 2, 1.0f);
        void *dbias = kt_poisoned(dt, width), *sums = kt_alloc(dt, width), *once = kt_alloc(dt, width);
        float *table = rope_table(s[1], s[4] / 2);
        struct rope_args a = {.qkv = want,
                              .cos_sin = table,
                              .batch = s[0],
                              .seq = s[1],
                              .heads = s[2],
                              .kv_heads = s[3],
                              .head_size = s[4],
                              .inverse = true,
                              .accumulate = i % 2,
                              .dt = dt};
        kt_run(KT_OPS, OP_ROPE, 1, &a);
        memcpy(sums, old, (size_t)width * dtype_size(dt));
        kt_run((const op_fn *)KT_OPS == cpu_ops ? cpu_ops : ref_ops, OP_BIAS_GRAD, 1,
               &(struct bias_grad_args){
                   .dbias = sums, .dy = want, .rows = rows, .n = width, .accumulate = i % 2, .dt = dt});
        a.qkv = qkv;
        a.dbias = dbias;
        for (int threads = 1; threads <= KT_RUNS; threads++) {
            memcpy(qkv, first, (size_t)(rows * width) * dtype_size(dt));
            if (a.accumulate) memcpy(dbias, old, (size_t)width * dtype_size(dt));
            kt_run(KT_OPS, OP_ROPE, threads, &a);
            assert_memory_equal(qkv, want, (size_t)(rows * width) * dtype_size(dt));
            // Partial sums are as large as the root of the rows, whatever the final result is.
            struct kt_out out = {dbias, width, dt, dt == DT_F32 ? 16 : 1.5,
                                 dt == DT_F32 ? fmax(4, sqrt((double)rows)) : 1e-1};
            kt_assert_close(&out, dbias, sums);
            if ((const op_fn *)KT_OPS == cpu_ops) assert_memory_equal(dbias, sums, kt_out_bytes(&out));
            if (threads == 1) memcpy(once, dbias, kt_out_bytes(&out));
            assert_memory_equal(dbias, once, kt_out_bytes(&out));
        }
        KT_FREE(qkv, want, first, old, dbias, sums, once, table);
    }
}

// ---------------------------------------------------------------- gradients
struct scalar {
    enum op op;
    void *args;
    float *y;         // (n) what op writes
    const float *dy;  // (n)
    int64_t n;
};

static double run_scalar(void *ctx) {
    struct scalar *s = ctx;
    kt_run(ref_ops, s->op, 1, s->args);
    return kt_dot(s->y, s->dy, s->n);
}

static void gelu_gradient(void **state) {
    (void)state;
    int64_t n = 65;
    float *x = kt_random(DT_F32, n, 1, 4.0f), *dy = kt_random(DT_F32, n, 2, 1.0f),
          *y = kt_poisoned(DT_F32, n);
    float *dx = kt_poisoned(DT_F32, n);
    struct gelu_args fwd = {.y = y, .x = x, .n = n, .dt = DT_F32};
    kt_run(ref_ops, OP_GELU_BWD, 1, &(struct gelu_args){.y = dx, .x = x, .dy = dy, .n = n, .dt = DT_F32});
    struct scalar s = {.op = OP_GELU_FWD, .args = &fwd, .y = y, .dy = dy, .n = n};
    kt_check_gradient(&(struct kt_gradient){run_scalar, &s, x, dx, n, 1e-2, 2e-4});
    KT_FREE(x, dy, y, dx);
}

static void swiglu_gradient(void **state) {
    (void)state;
    int64_t r = 3, f = 11;
    float *x = kt_random(DT_F32, r * 2 * f, 1, 3.0f), *dy = kt_random(DT_F32, r * f, 2, 1.0f);
    float *y = kt_poisoned(DT_F32, r * f), *dx = kt_poisoned(DT_F32, r * 2 * f);
    struct swiglu_args fwd = {.y = y, .gate_up = x, .rows = r, .width = f, .dt = DT_F32};
    struct swiglu_args bwd = {.y = dx, .gate_up = x, .dy = dy, .rows = r, .width = f, .dt = DT_F32};
    kt_run(ref_ops, OP_SWIGLU_BWD, 1, &bwd);
    struct scalar s = {.op = OP_SWIGLU_FWD, .args = &fwd, .y = y, .dy = dy, .n = r * f};
    kt_check_gradient(&(struct kt_gradient){run_scalar, &s, x, dx, r * 2 * f, 1e-2, 2e-4});
    KT_FREE(x, dy, y, dx);
}

// rope works in place: the scalar rotates a copy.
struct rope_scalar {
    struct rope_args args;
    const float *qkv, *dy;
    int64_t n;
};

static double run_rope(void *ctx) {
    struct rope_scalar *s = ctx;
    memcpy(s->args.qkv, s->qkv, (size_t)s->n * sizeof(float));
    kt_run(ref_ops, OP_ROPE, 1, &s->args);
    return kt_dot(s->args.qkv, s->dy, s->n);
}

static void rope_gradient(void **state) {
    (void)state;
    int64_t n = 2 * 3 * (2 + 2) * 6;
    float *x = kt_random(DT_F32, n, 1, 1.0f), *dx = kt_random(DT_F32, n, 2, 1.0f),
          *dy = kt_random(DT_F32, n, 2, 1.0f);
    float *table = rope_table(3, 3);
    struct rope_args a = {.qkv = dx,
                          .cos_sin = table,
                          .batch = 2,
                          .seq = 3,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_size = 6,
                          .inverse = true,
                          .dt = DT_F32};
    kt_run(ref_ops, OP_ROPE, 1, &a);
    a.inverse = false;
    a.qkv = kt_poisoned(DT_F32, n);
    struct rope_scalar s = {.args = a, .qkv = x, .dy = dy, .n = n};
    kt_check_gradient(&(struct kt_gradient){run_rope, &s, x, dx, n, 1e-2, 2e-4});
    KT_FREE(x, dx, dy, table, a.qkv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_matches_ref),
        cmocka_unit_test(gelu_bwd_may_alias_dy),
        cmocka_unit_test(swiglu_matches_ref),
        cmocka_unit_test(swiglu_bwd_may_write_over_gate_up),
        cmocka_unit_test(large_inputs_are_finite),
        cmocka_unit_test(powers_and_inverses_are_accurate),
        cmocka_unit_test(vectors_are_the_scalars_bits),
        cmocka_unit_test(add_matches_ref_to_the_bit),
        cmocka_unit_test(rope_matches_ref),
        cmocka_unit_test(rope_inverse_undoes),
        cmocka_unit_test(rope_sums_what_it_writes),
        cmocka_unit_test(gelu_gradient),
        cmocka_unit_test(swiglu_gradient),
        cmocka_unit_test(rope_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
