// The codes of gradients: to the bit against the reference, and what they say against their definition.
#include "tests/kernels/kernel_test.h"

static const int64_t sizes[] = {0, 1, 7, 9, 41};  // blocks
#define BLOCK_FORMAT(id, name, bits, statistic) {CODE_##id, 0},
static const struct code_format formats[] = {
    BLOCK_CODES(BLOCK_FORMAT){CODE_TOPK, 0.01}, {CODE_TOPK, 0.37}, {CODE_TOPK, 1}};
#define FORMATS ((int)(sizeof formats / sizeof *formats))

struct code_case {
    struct code_format format;
    int64_t n, bytes;
    enum dtype dt;
    float *error;
    void *grad;
    char *out;
};

// Many equal magnitudes, a block of zeros, one of subnormal numbers.
static void case_init(struct code_case *t, const struct code_format *f, enum dtype dt, int64_t blocks) {
    *t = (struct code_case){.format = *f, .n = blocks * CODE_BLOCK, .dt = dt};
    t->bytes = (int64_t)code_bytes(f, t->n);
    t->error = kt_random(DT_F32, t->n, 1, 0.25f);
    t->grad = kt_random(dt, t->n, 2, 1.0f);
    t->out = kt_poisoned(DT_U8, t->bytes);
    for (int64_t i = 0; i < t->n; i++) {
        bool zero = i / CODE_BLOCK == 2, small = i / CODE_BLOCK == 3, alike = i % 3 == 0;
        if (alike) dtype_store(dt, t->grad, (size_t)i, i % 2 ? 0.75f : -0.75f);
        if (zero || small) dtype_store(dt, t->grad, (size_t)i, 0);
        if (alike || zero) t->error[i] = 0;
        if (small) t->error[i] = (float)(i % 100) * 0x1p-149f;
    }
}

static void case_fini(struct code_case *t) { KT_FREE(t->error, t->grad, t->out); }

static struct code_encode_args encode_args(const struct code_case *t) {
    return (struct code_encode_args){.out = t->out,
                                     .error = t->error,
                                     .grad = t->grad,
                                     .n = t->n,
                                     .format = t->format,
                                     .factor = 0.5f,
                                     .dt = t->dt};
}

static void each(void (*run)(struct code_case *t)) {
    for (int f = 0; f < FORMATS; f++)
        for (int d = 0; d < KT_DTYPES; d++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                struct code_case t;
                case_init(&t, &formats[f], kt_dtypes[d], sizes[s]);
                run(&t);
                case_fini(&t);
            }
}

static void matches(struct code_case *t) {
    struct code_encode_args e = encode_args(t);
    struct code_error_args kept = {
        .error = t->error, .grad = t->grad, .n = t->n, .factor = 0.5f, .dt = t->dt};
    struct code_add_args add = {.out = t->error, .code = t->out, .n = t->n, .format = t->format};
    const struct kt_out code = {t->out, t->bytes, DT_U8, 0, 0}, error = {t->error, t->n, DT_F32, 0, 0};
    kt_check(OP_CODE_ENCODE, &e, &code, 1);
    kt_check(OP_CODE_ERROR, &kept, &error, 1);
    for (int use = CODE_MINUS; use >= CODE_SET; use--) {
        add.use = (enum code_use)use;
        kt_check(OP_CODE_ADD, &add, &error, 1);
    }
}

static void all_match_ref(void **state) {
    (void)state;
    each(matches);
}

// By the definitions of codec.h, in double.
static double most_left(const struct code_format *f, const float *x, int64_t i, int64_t n) {
    double most = 0, sum = 0;
    int64_t begin = i - i % CODE_BLOCK, before = 0;
    for (int64_t k = begin; k < begin + CODE_BLOCK; k++) {
        most = fmax(most, fabs((double)x[k]));
        sum += (double)x[k] * (double)x[k];
    }
    if (f->kind == CODE_INT8) return most / 254 * 1.0001 + 0x1p-142;  // its scale may round to 0
    if (f->kind == CODE_ONEBIT)
        return fabs(fabs((double)x[i]) - sqrt(sum / CODE_BLOCK)) + 1e-6 * most + 0x1p-148;
    for (int64_t k = 0; k < n; k++)
        before += fabsf(x[k]) > fabsf(x[i]) || (fabsf(x[k]) == fabsf(x[i]) && k < i);
    return before < code_kept(f->share, n) ? 0 : fabs((double)x[i]);
}

static void says(struct code_case *t) {
    struct code_encode_args e = encode_args(t);
    float *x = kt_alloc(DT_F32, t->n), *said = kt_poisoned(DT_F32, t->n);
    struct code_add_args add = {.out = said, .code = t->out, .n = t->n, .format = t->format, .use = CODE_SET};
    for (int64_t i = 0; i < t->n; i++) x[i] = fmaf(t->error[i], 0.5f, dtype_load(t->dt, t->grad, (size_t)i));
    kt_run(KT_OPS, OP_CODE_ENCODE, 2, &e);
    kt_run(KT_OPS, OP_CODE_ADD, 2, &add);
    assert_null(codec_of(t->format.kind)->fault(&t->format, t->out, (size_t)t->bytes, t->n));
    for (int64_t i = 0; i < t->n; i++) {
        double left = fabs((double)x[i] - (double)said[i]);
        if (!(left <= most_left(&t->format, x, i, t->n)))
            fail_msg("%s of %lld elements: element %lld is %.9g and said to be %.9g",
                     codec_of(t->format.kind)->name, (long long)t->n, (long long)i, (double)x[i],
                     (double)said[i]);
    }
    KT_FREE(x, said);
}

static void what_is_said_is_near(void **state) {
    (void)state;
    each(says);
}

// A number that is not finite shows in the sum.
static void overflow_shows(void **state) {
    (void)state;
    for (int f = 0; f < FORMATS; f++)
        for (int bad = 0; bad < 2; bad++) {
            struct code_case t;
            bool seen = false;
            case_init(&t, &formats[f], DT_BF16, 7);
            dtype_store(DT_BF16, t.grad, 700, bad ? NAN : -INFINITY);
            struct code_encode_args e = encode_args(&t);
            struct code_add_args add = {.out = t.error, .code = t.out, .n = t.n, .format = t.format};
            kt_run(KT_OPS, OP_CODE_ENCODE, 2, &e);
            if (!bad) kt_check(OP_CODE_ENCODE, &e, &(struct kt_out){t.out, t.bytes, DT_U8, 0, 0}, 1);
            kt_run(KT_OPS, OP_CODE_ADD, 2, &add);
            for (int64_t i = 0; i < t.n; i++) seen = seen || !isfinite(t.error[i]);
            assert_true(seen);
            case_fini(&t);
        }
}

// Codes from elsewhere: cut short, elements out of order, outside, twice. Nothing is read or written outside.
static void hostile_codes(void **state) {
    (void)state;
    struct code_case t;
    const struct code_format f = {CODE_TOPK, 0.01};
    case_init(&t, &f, DT_F32, 9);
    struct code_encode_args e = encode_args(&t);
    const struct codec *row = codec_of(CODE_TOPK);
    kt_run(KT_OPS, OP_CODE_ENCODE, 1, &e);
    assert_int_equal(t.bytes, 8 * 24);  // 23.04 of 2304 elements
    assert_null(row->fault(&f, t.out, (size_t)t.bytes, t.n));
    for (int64_t less = 1; less <= t.bytes; less++)
        assert_non_null(row->fault(&f, t.out, (size_t)(t.bytes - less), t.n));
    assert_non_null(row->fault(&f, t.out, (size_t)t.bytes + 8, t.n));
    const uint32_t others[] = {(uint32_t)t.n, UINT32_MAX, 0x80000000u};
    uint32_t *index = (void *)t.out, last = index[23];
    for (int i = 0; i < 3; i++) {
        index[23] = others[i];
        assert_non_null(row->fault(&f, t.out, (size_t)t.bytes, t.n));
        for (int use = CODE_SET; use <= CODE_MINUS; use++)
            kt_check(OP_CODE_ADD,
                     &(struct code_add_args){
                         .out = t.error, .code = t.out, .n = t.n, .format = f, .use = (enum code_use)use},
                     &(struct kt_out){t.error, t.n, DT_F32, 0, 0}, 1);
    }
    index[23] = index[22];
    assert_non_null(row->fault(&f, t.out, (size_t)t.bytes, t.n));
    index[23] = last;
    index[0] = index[1];
    assert_non_null(row->fault(&f, t.out, (size_t)t.bytes, t.n));
    const struct code_format blocks[] = {BLOCK_CODES(BLOCK_FORMAT)};
    for (int i = 0; i < 2; i++) {
        size_t bytes = code_bytes(&blocks[i], t.n);
        assert_int_equal(bytes, 9 * (i ? 260 : 36));
        assert_null(codec_of(blocks[i].kind)->fault(&blocks[i], t.out, bytes, t.n));
        assert_non_null(codec_of(blocks[i].kind)->fault(&blocks[i], t.out, bytes - 1, t.n));
    }
    case_fini(&t);
}

// More rows of a thread block than there are parts for them on a device; many equal magnitudes across parts.
static void topk_of_many_rows(void **state) {
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        struct code_case t;
        if (formats[f].kind != CODE_TOPK) continue;
        case_init(&t, &formats[f], DT_BF16, 1100);
        struct code_encode_args e = encode_args(&t);
        kt_check(OP_CODE_ENCODE, &e, &(struct kt_out){t.out, t.bytes, DT_U8, 0, 0}, 1);
        case_fini(&t);
    }
}

static void kept_share(void **state) {
    (void)state;
    assert_int_equal(code_kept(0.01, 0), 0);
    assert_int_equal(code_kept(1e-9, 256), 1);
    assert_int_equal(code_kept(0.01, 256), 3);
    assert_int_equal(code_kept(0.5, 256), 128);
    assert_int_equal(code_kept(1, 256), 256);
    assert_null(codec_of(CODE_NONE));
    assert_int_equal(code_bytes(&(struct code_format){CODE_NONE, 0.01}, 256), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_match_ref),  cmocka_unit_test(what_is_said_is_near),
        cmocka_unit_test(overflow_shows), cmocka_unit_test(hostile_codes),
        cmocka_unit_test(kept_share),     cmocka_unit_test(topk_of_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
