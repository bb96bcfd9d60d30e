// Ordered sums, casts, zero fill: to the bit, at any alignment. Computes for a time.
#include "tests/kernels/kernel_test.h"

#define INPUTS 5

static void reduce_matches_ref(void **state) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I64};
    static const int64_t sizes[] = {1, 9, 1024, 1027, 30001};
    (void)state;
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int32_t count = 1; count <= INPUTS; count++) {
                enum dtype dt = types[d];
                int64_t n = sizes[s];
                void *in[INPUTS], *out = kt_poisoned(dt, n);
                for (int k = 0; k < INPUTS; k++) {
                    in[k] =
                        dt == DT_F64 || dt == DT_I64 ? kt_alloc(dt, n) : kt_random(dt, n, (uint64_t)k, 2.0f);
                    for (int64_t i = 0; dt == DT_F64 && i < n; i++)
                        ((double *)in[k])[i] = ldexp((double)kt_uniform((uint64_t)k, (uint64_t)i), k * 20);
                    for (int64_t i = 0; dt == DT_I64 && i < n; i++)
                        ((uint64_t *)in[k])[i] = kt_hash((uint64_t)k, (uint64_t)i);
                }
                struct reduce_args a = {
                    .out = out, .inputs = (const void *const *)in, .count = count, .n = n, .dt = dt};
                for (a.how = REDUCTIONS; a.how-- > 0;)
                    kt_check(OP_REDUCE, &a, &(struct kt_out){out, n, dt, 0, 0}, 1);
                a.how = REDUCTION_SUM;
                kt_run(KT_OPS, OP_REDUCE, 2, &a);
                a.out = in[count / 2];  // exactly one of the inputs
                kt_run(KT_OPS, OP_REDUCE, 2, &a);
                assert_memory_equal(out, in[count / 2], (size_t)n * dtype_size(dt));
                kt_free(in, INPUTS);
                KT_FREE(out);
            }
}

// The order of the inputs is the order of the additions, in fp32, with one rounding at the end.
static void reduce_adds_in_order_and_rounds_once(void **state) {
    (void)state;
    void *a = kt_copy(DT_F32, 1, &(float){1e8f}), *b = kt_copy(DT_F32, 1, &(float){-1e8f});
    void *c = kt_copy(DT_F32, 1, &(float){1.0f}), *minus_zero = kt_copy(DT_F32, 1, &(float){-0.0f});
    void *one = kt_copy(DT_BF16, 1, &(uint16_t){f32_to_bf16(1.0f)});
    void *small = kt_copy(DT_BF16, 1, &(uint16_t){f32_to_bf16(1.0f / 256)});
    float *out = kt_poisoned(DT_F32, 1);
    uint16_t *sum = kt_poisoned(DT_BF16, 1);
    struct reduce_args r = {
        .out = out, .inputs = (const void *const[]){a, b, c}, .count = 3, .n = 1, .dt = DT_F32};
    kt_run(KT_OPS, OP_REDUCE, 1, &r);
    assert_true(*out == 1.0f);
    r.inputs = (const void *const[]){a, c, b};
    kt_run(KT_OPS, OP_REDUCE, 1, &r);
    assert_true(*out == 0.0f);
    r = (struct reduce_args){
        .out = sum, .inputs = (const void *const[]){one, small, small}, .count = 3, .n = 1, .dt = DT_BF16};
    kt_run(KT_OPS, OP_REDUCE, 1, &r);
    assert_true(bf16_to_f32(*sum) == 1.0f + 1.0f / 128);
    r = (struct reduce_args){
        .out = out, .inputs = (const void *const[]){minus_zero}, .count = 1, .n = 1, .dt = DT_F32};
    kt_run(KT_OPS, OP_REDUCE, 1, &r);
    assert_true(signbit(*out));
    KT_FREE(a, b, c, minus_zero, one, small, out, sum);
}

// Each reduction of a few numbers, by hand: the first of equal ones, NaN, wrapping integers.
static void reductions_are_what_they_are_called(void **state) {
    static const float values[] = {-0.0f, 3.0f, 0.0f, -2.5f};
    static const float floats[REDUCTIONS] = {0.5f, -2.5f, 3.0f, 0.0f, 1.0f};
    static const int64_t whole[] = {INT64_MAX, -3, 2, 0};
    static const int64_t wholes[REDUCTIONS] = {(int64_t)((uint64_t)INT64_MAX - 1), -3, INT64_MAX, 0, 1};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64};
    (void)state;
    float *none = kt_copy(DT_F32, 1, &(float){-0.0f}), *nan = kt_copy(DT_F32, 1, &(float){NAN}),
          *out = kt_poisoned(DT_F32, 1);
    for (size_t d = 0; d < 4; d++) {
        void *in[4], *to = kt_poisoned(types[d], 1);
        for (int k = 0; k < 4; k++) {
            in[k] = kt_alloc(types[d], 1);
            if (types[d] == DT_F64)
                *(double *)in[k] = (double)values[k];
            else
                dtype_store(types[d], in[k], 0, values[k]);
        }
        for (enum reduction how = 0; how < REDUCTIONS; how++) {
            struct reduce_args a = {to, (const void *const *)in, 4, 1, types[d], how};
            kt_run(KT_OPS, OP_REDUCE, 1, &a);
            float got = types[d] == DT_F64 ? (float)*(double *)to : dtype_load(types[d], to, 0);
            assert_true(got == floats[how]);
        }
        kt_free(in, 4);
        KT_FREE(to);
    }
    int64_t *in[4], *sum = kt_poisoned(DT_I64, 1);
    for (int k = 0; k < 4; k++) in[k] = kt_copy(DT_I64, 1, &whole[k]);
    for (enum reduction how = 0; how < REDUCTIONS; how++) {
        struct reduce_args a = {sum, (const void *const *)in, 4, 1, DT_I64, how};
        kt_run(KT_OPS, OP_REDUCE, 1, &a);
        assert_true(*sum == wholes[how]);
    }
    // A NaN wins wherever it stands; of zeros the first stays; zeros alone are no logical or, one input neither.
    float *zero = kt_copy(DT_F32, 1, &(float){0.0f}), *two = kt_copy(DT_F32, 1, &(float){2.0f});
    const float *const orders[2][3] = {{nan, two, zero}, {two, zero, nan}};
    for (int i = 0; i < 2; i++)
        for (enum reduction how = REDUCTION_MIN; how <= REDUCTION_LOR; how++) {
            struct reduce_args a = {out, (const void *const *)orders[i], 3, 1, DT_F32, how};
            kt_run(KT_OPS, OP_REDUCE, 1, &a);
            assert_true(how == REDUCTION_LOR ? *out == 1.0f : isnan(*out));
        }
    for (enum reduction how = REDUCTION_MIN; how <= REDUCTION_MAX; how++) {
        struct reduce_args a = {out, (const void *const[]){none, zero}, 2, 1, DT_F32, how};
        kt_run(KT_OPS, OP_REDUCE, 1, &a);
        assert_true(signbit(*out));
    }
    struct reduce_args lor = {out, (const void *const[]){none, zero}, 2, 1, DT_F32, REDUCTION_LOR};
    kt_run(KT_OPS, OP_REDUCE, 1, &lor);
    assert_true(*out == 0.0f && !signbit(*out));
    lor = (struct reduce_args){out, (const void *const[]){two}, 1, 1, DT_F32, REDUCTION_LOR};
    kt_run(KT_OPS, OP_REDUCE, 1, &lor);
    assert_true(*out == 1.0f);
    for (int k = 0; k < 4; k++) KT_FREE(in[k]);
    KT_FREE(none, nan, out, sum, zero, two);
}

static void reduce_takes_the_most_inputs(void **state) {
    (void)state;
    int64_t n = 43;
    void *in[REDUCE_GPU_MAX], *out = kt_poisoned(DT_BF16, n);
    for (int k = 0; k < REDUCE_GPU_MAX; k++) in[k] = kt_random(DT_BF16, n, (uint64_t)k, 2.0f);
    struct reduce_args a = {
        .out = out, .inputs = (const void *const *)in, .count = REDUCE_GPU_MAX, .n = n, .dt = DT_BF16};
    kt_check(OP_REDUCE, &a, &(struct kt_out){out, n, DT_BF16, 0, 0}, 1);
    kt_free(in, REDUCE_GPU_MAX);
    KT_FREE(out);
}

// As many as a ring on CPUs may have ranks.
static void reduce_on_cpus_takes_more(void **state) {
    (void)state;
    enum { N = 43 };
    static uint16_t in[REDUCE_MAX][N], out[2][N];
    static const void *inputs[REDUCE_MAX];
    const char *why = "";
    const op_fn *tested = KT_OPS;
    if (tested != cpu_ops) skip();  // a device's operations are asked for fewer
    for (int k = 0; k < REDUCE_MAX; k++) {
        inputs[k] = in[k];
        for (int i = 0; i < N; i++) in[k][i] = f32_to_bf16((float)((k * 7 + i * 3) % 29) - 14.0f);
    }
    for (int i = 0; i < 2; i++) {
        struct reduce_args a = {.out = out[i], .inputs = inputs, .count = REDUCE_MAX, .n = N, .dt = DT_BF16};
        assert_int_equal((i ? ref_ops : cpu_ops)[OP_REDUCE](2, &a, &why), 0);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
}

// A received frame starts anywhere: odd addresses are read as they are.
static void reduce_reads_unaligned_inputs(void **state) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I64};
    (void)state;
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        int64_t n = 1037;
        size_t bytes = (size_t)n * dtype_size(types[d]);
        unsigned char *a = kt_alloc(types[d], n), *b = kt_alloc(DT_U8, (int64_t)bytes + 1);
        unsigned char *want = kt_poisoned(types[d], n), *got = kt_poisoned(types[d], n);
        for (size_t i = 0; i < bytes; i++) a[i] = (unsigned char)(kt_hash(1, i) & 0x3b);
        memcpy(b + 1, a, bytes);
        struct reduce_args r = {
            .out = want, .inputs = (const void *const[]){a, a}, .count = 2, .n = n, .dt = types[d]};
        kt_run(KT_OPS, OP_REDUCE, 2, &r);
        r.out = got;
        r.inputs = (const void *const[]){b + 1, b + 1};
        kt_run(KT_OPS, OP_REDUCE, 2, &r);
        assert_memory_equal(want, got, bytes);
        KT_FREE(a, b, want, got);
    }
}

// Every 16-bit pattern, and fp32 patterns of all kinds, through every pair of types.
static void cast_matches_ref(void **state) {
    (void)state;
    for (int f = 0; f < KT_DTYPES; f++)
        for (int t = 0; t < KT_DTYPES; t++) {
            enum dtype from = kt_dtypes[f], to = kt_dtypes[t];
            int64_t n = 65536;
            unsigned char *in = kt_alloc(from, n), *out = kt_poisoned(to, n);
            for (int64_t i = 0; i < n; i++) {
                uint32_t bits = from == DT_F32 ? (uint32_t)kt_hash(7, (uint64_t)i) : (uint32_t)i;
                if (from == DT_F32 && i % 3 == 0)
                    bits = (bits & 0x9fffffffu) | 0x20000000u;  // near fp16's range
                memcpy(in + (size_t)i * dtype_size(from), &bits, dtype_size(from));
            }
            struct cast_args a = {.out = out, .in = in, .n = n, .from = from, .to = to};
            kt_check(OP_CAST, &a, &(struct kt_out){out, n, to, 0, 0}, 1);
            for (int64_t i = 0; i < n; i++) {
                float x = dtype_load(from, in, (size_t)i), y = dtype_load(to, out, (size_t)i);
                assert_int_equal(isnan(x), isnan(y));
                if (from == to && !isnan(x)) assert_true(x == y);
            }
            KT_FREE(in, out);
        }
}

// A factor, before the one rounding; in place too, whatever the alignment.
static void cast_scales(void **state) {
    (void)state;
    for (int f = 0; f < KT_DTYPES; f++)
        for (int t = 0; t < KT_DTYPES; t++) {
            enum dtype from = kt_dtypes[f], to = kt_dtypes[t];
            int64_t n = 1021;
            unsigned char *in = kt_random(from, n, 3, 2.0f), *out = kt_poisoned(to, n);
            struct cast_args a = {.out = out, .in = in, .n = n, .from = from, .to = to, .factor = 0.3f};
            kt_check(OP_CAST, &a, &(struct kt_out){out, n, to, 0, 0}, 1);
            for (int64_t i = 0; i < n; i++) {
                float exact = dtype_load(from, in, (size_t)i) * 0.3f, rounded;
                dtype_store(to, &rounded, 0, exact);
                assert_true(dtype_load(to, out, (size_t)i) == dtype_load(to, &rounded, 0));
            }
            if (from == to) {
                a.out = in;
                kt_run(KT_OPS, OP_CAST, 2, &a);
                assert_memory_equal(in, out, (size_t)n * dtype_size(to));
            }
            KT_FREE(in, out);
        }
}

// Ties go to even, overflow to infinity, small numbers to subnormals or zero.
static void cast_rounds_to_nearest_even(void **state) {
    static const struct {
        float x, bf16, f16;
    } rows[] = {{1.0f + 1.0f / 256, 1.0f, 1.0f + 1.0f / 256},
                {1.0f + 3.0f / 256, 1.0f + 1.0f / 64, 1.0f + 3.0f / 256},
                {1.0f + 1.0f / 2048, 1.0f, 1.0f},
                {1.0f + 3.0f / 2048, 1.0f, 1.0f + 1.0f / 512},
                {65519.0f, 65536.0f, 65504.0f},
                {65520.0f, 65536.0f, INFINITY},
                {3.4e38f, INFINITY, INFINITY},
                {0x1p-24f, 0x1p-24f, 0x1p-24f},
                {0x1p-25f, 0x1p-25f, 0.0f},
                {0x1.8p-25f, 0x1.8p-25f, 0x1p-24f}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float *in = kt_alloc(DT_F32, 16);
        uint16_t *b = kt_poisoned(DT_BF16, 16), *h = kt_poisoned(DT_F16, 16);
        for (int j = 0; j < 16; j++) in[j] = j % 2 ? -rows[i].x : rows[i].x;
        kt_run(KT_OPS, OP_CAST, 1,
               &(struct cast_args){.out = b, .in = in, .n = 16, .from = DT_F32, .to = DT_BF16});
        kt_run(KT_OPS, OP_CAST, 1,
               &(struct cast_args){.out = h, .in = in, .n = 16, .from = DT_F32, .to = DT_F16});
        for (int j = 0; j < 16; j++) {
            assert_true(bf16_to_f32(b[j]) == (j % 2 ? -rows[i].bf16 : rows[i].bf16));
            assert_true(f16_to_f32(h[j]) == (j % 2 ? -rows[i].f16 : rows[i].f16));
        }
        KT_FREE(in, b, h);
    }
}

static void fill_zero_fills_what_it_was_given(void **state) {
    static const int64_t sizes[] = {0, 1, 255, 32768, 100003};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        unsigned char *p = kt_poisoned(DT_U8, n + 1);
        kt_check(OP_FILL_ZERO, &(struct fill_zero_args){.out = p, .bytes = n},
                 &(struct kt_out){p, n + 1, DT_U8, 0, 0}, 1);
        for (int64_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
        assert_int_equal(p[n], 0xff);
        KT_FREE(p);
    }
}

// ---------------------------------------------------------------- busy
// It takes the time that it was asked to take, on its own clock, and changes nothing else. How long that is is
// bounded from below alone: a loaded machine may take any time longer.
struct clock_words {
    unsigned char before[64];
    int64_t clock[2];
    unsigned char behind[64];
};

static struct clock_words *words_new(void) {
    struct clock_words *w = kt_poisoned(DT_U8, sizeof *w);
    w->clock[0] = w->clock[1] = 0;
    return w;
}

static void check_guards(const struct clock_words *w) {
    for (size_t i = 0; i < sizeof w->before; i++) {
        assert_int_equal(w->before[i], 0xff);
        assert_int_equal(w->behind[i], 0xff);
    }
}

static void busy(const op_fn *ops, int threads, struct clock_words *w, int64_t ns, double factor) {
    kt_run(ops, OP_BUSY, threads, &(struct busy_args){.clock = w->clock, .ns = ns, .factor = factor});
    check_guards(w);
}

// The same for the reference and the operation under test.
static void takes_the_time_asked_for(const op_fn *ops, int threads) {
    enum { MS = 1000000 };
    struct clock_words *w = words_new();
    busy(ops, threads, w, 0, 0);  // marks
    int64_t first = w->clock[0];
    assert_true(first > 0);
    busy(ops, threads, w, 3 * MS, 0);
    int64_t second = w->clock[0];
    assert_true(second - first >= 3 * MS);
    assert_true(second >= w->clock[1]);
    // Four times what has passed since the mark, at least the 2 ms before: w was marked at `second`.
    w->clock[0] -= 2 * MS;
    int64_t mark = w->clock[0];
    busy(ops, threads, w, 0, 4.0);
    assert_true(w->clock[0] - mark >= 5 * 2 * MS);
    // Without a mark a factor is of nothing: otherwise this would take as long as the machine is up.
    w->clock[0] = 0;
    busy(ops, threads, w, MS, 1e6);
    assert_true(w->clock[0] >= w->clock[1]);
    KT_FREE(w);
}

static void busy_takes_the_time_asked_for(void **state) {
    (void)state;
    takes_the_time_asked_for(ref_ops, 1);
    for (int threads = 1; threads <= 3; threads++) takes_the_time_asked_for(KT_OPS, threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reduce_matches_ref),
        cmocka_unit_test(reduce_adds_in_order_and_rounds_once),
        cmocka_unit_test(reductions_are_what_they_are_called),
        cmocka_unit_test(reduce_takes_the_most_inputs),
        cmocka_unit_test(reduce_on_cpus_takes_more),
        cmocka_unit_test(reduce_reads_unaligned_inputs),
        cmocka_unit_test(cast_matches_ref),
        cmocka_unit_test(cast_scales),
        cmocka_unit_test(cast_rounds_to_nearest_even),
        cmocka_unit_test(fill_zero_fills_what_it_was_given),
        cmocka_unit_test(busy_takes_the_time_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
