// 1-bit Adam's operations: to the bit against the reference, and the code against its definition.
#include "tests/kernels/kernel_test.h"

#define RANKS 3

static const int64_t sizes[] = {0, 1, 7, 8, 41, 130};  // blocks

struct code_case {
    int64_t n, blocks;
    enum dtype dt;
    struct update_scalars *scalars, *own;
    float *error, *m, *v;
    void *grad;
    struct onebit_block *out;
};

static void *blocks_poisoned(int64_t blocks) {
    return kt_poisoned(DT_U8, blocks * (int64_t)sizeof(struct onebit_block));
}

// One element in eleven is masked, and the third block as a whole.
static void case_init(struct code_case *t, enum dtype dt, int64_t blocks) {
    *t = (struct code_case){.n = blocks * ONEBIT_BLOCK, .blocks = blocks, .dt = dt};
    t->scalars = kt_alloc(DT_U8, sizeof *t->scalars);
    t->own = kt_alloc(DT_U8, sizeof *t->own);
    *t->scalars = (struct update_scalars){.grad_scale = 0.5f};
    *t->own = (struct update_scalars){.grad_scale = 0.73f, .skip = 1};  // its skip is nobody's
    t->error = kt_random(DT_F32, t->n, 1, 0.1f);
    t->m = kt_random(DT_F32, t->n, 2, 0.1f);
    t->v = kt_random(DT_F32, t->n, 3, 0.01f);
    t->grad = kt_random(dt, t->n, 4, 1.0f);
    t->out = blocks_poisoned(blocks);
    for (int64_t i = 0; i < t->n; i++)
        t->v[i] = i % 11 == 5 || i / ONEBIT_BLOCK == 2 ? 0.0f : fabsf(t->v[i]) + 1e-6f;
}

static void case_fini(struct code_case *t) {
    KT_FREE(t->scalars, t->own, t->error, t->m, t->v, t->grad, t->out);
}

static struct onebit_encode_args encode_args(const struct code_case *t) {
    return (struct onebit_encode_args){.out = t->out,
                                       .error = t->error,
                                       .m = t->m,
                                       .v = t->v,
                                       .grad = t->grad,
                                       .scalars = t->scalars,
                                       .own = t->own,
                                       .n = t->n,
                                       .beta1 = 0.9f,
                                       .dt = t->dt};
}

static struct kt_out blocks_out(struct onebit_block *p, int64_t blocks) {
    return (struct kt_out){p, blocks * (int64_t)sizeof *p, DT_U8, 0, 0};
}

static float said(const struct onebit_block *b, int64_t i) {
    float s = b[i / ONEBIT_BLOCK].scale;
    return b[i / ONEBIT_BLOCK].sign[i % ONEBIT_BLOCK / 32] >> i % 32 & 1 ? s : -s;
}

static void encode_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct code_case t;
            case_init(&t, kt_dtypes[d], sizes[s]);
            struct onebit_encode_args a = encode_args(&t);
            const struct kt_out outs[] = {blocks_out(t.out, t.blocks), {t.error, t.n, DT_F32, 0, 0}};
            kt_check(OP_ONEBIT_ENCODE, &a, outs, 2);
            kt_check(OP_ONEBIT_ENCODE, &a, outs, 2);  // on the errors that the first has left
            case_fini(&t);
        }
}

// The code and the remaining error add up to the input; the scale is the root of the mean square.
static void nothing_is_lost(void **state) {
    (void)state;
    struct code_case t;
    case_init(&t, DT_F32, 41);
    double *x = malloc((size_t)t.n * sizeof *x);
    for (int64_t i = 0; i < t.n; i++)
        x[i] = t.v[i] == 0
                   ? 0
                   : (double)t.error[i] + 0.9 * (double)t.m[i] + 0.1 * 0.73 * (double)((float *)t.grad)[i];
    struct onebit_encode_args a = encode_args(&t);
    kt_run(KT_OPS, OP_ONEBIT_ENCODE, 2, &a);
    for (int64_t b = 0; b < t.blocks; b++) {
        double sum = 0;
        int counted = 0;
        for (int64_t i = b * ONEBIT_BLOCK; i < (b + 1) * ONEBIT_BLOCK; i++) {
            sum += x[i] * x[i];
            counted += t.v[i] != 0;
        }
        double scale = counted ? sqrt(sum / counted) : 0;
        assert_true(fabs((double)t.out[b].scale - scale) <= 1e-6 * scale);
    }
    for (int64_t i = 0; i < t.n; i++) {
        if (t.v[i] == 0) {
            assert_true(t.error[i] == 0);
            assert_int_equal(t.out[i / ONEBIT_BLOCK].sign[i % ONEBIT_BLOCK / 32] >> i % 32 & 1, 0);
            continue;
        }
        double got = (double)said(t.out, i) + (double)t.error[i];
        assert_true(fabs(got - x[i]) <= 1e-6);
        assert_true(fabs(x[i]) < 1e-6 || (said(t.out, i) > 0) == (x[i] > 0));
    }
    free(x);
    case_fini(&t);
}

static void sum_matches_ref(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int ranks = 1; ranks <= RANKS; ranks++) {
            struct code_case t;
            case_init(&t, DT_F32, sizes[s]);
            struct onebit_block *in = blocks_poisoned(ranks * t.blocks);
            struct onebit_encode_args a = encode_args(&t);
            for (int r = 0; r < ranks; r++) {
                a.out = in + r * t.blocks;
                kt_run(KT_OPS, OP_ONEBIT_ENCODE, 1, &a);
            }
            double *x = malloc((size_t)(t.n + 1) * sizeof *x);
            for (int64_t i = 0; i < t.n; i++) {
                x[i] = 0;
                for (int r = 0; r < ranks; r++) x[i] += (double)said(in + r * t.blocks, i) / ranks;
                x[i] = t.v[i] == 0 ? 0 : x[i] + (double)t.error[i];
            }
            struct onebit_sum_args sum = {.out = t.out,
                                          .in = in,
                                          .error = t.error,
                                          .v = t.v,
                                          .scalars = t.scalars,
                                          .n = t.n,
                                          .ranks = ranks};
            const struct kt_out outs[] = {blocks_out(t.out, t.blocks), {t.error, t.n, DT_F32, 0, 0}};
            kt_check(OP_ONEBIT_SUM, &sum, outs, 2);
            for (int64_t i = 0; i < t.n; i++)
                assert_true(t.v[i] == 0 ? t.error[i] == 0
                                        : fabs((double)said(t.out, i) + (double)t.error[i] - x[i]) <= 1e-6);
            free(x);
            KT_FREE(in);
            case_fini(&t);
        }
}

// ---------------------------------------------------------------- the update
struct frozen_case {
    struct code_case code;
    struct update_args a;
    struct kt_out outs[3];
};

static void frozen_init(struct frozen_case *t, enum dtype dt, int64_t blocks, int64_t n) {
    case_init(&t->code, dt, blocks);
    struct onebit_encode_args e = encode_args(&t->code);
    kt_run(KT_OPS, OP_ONEBIT_ENCODE, 1, &e);
    t->a = (struct update_args){.master = kt_random(DT_F32, n, 7, 1.0f),
                                .m = t->code.m,
                                .v = t->code.v,
                                .weight = kt_poisoned(dt, n),
                                .grad = t->code.grad,
                                .scalars = t->code.scalars,
                                .n = n,
                                .ends = {n / 3, n / 2, n},
                                .weight_decay = {0.1f, 0, 0.05f},
                                .groups = 3,
                                .lr = 1e-2f,
                                .beta1 = 0.9f,
                                .eps = 1e-8f,
                                .dt = dt};
    t->outs[0] = (struct kt_out){t->a.master, n, DT_F32, 0, 0};
    t->outs[1] = (struct kt_out){t->a.m, n, DT_F32, 0, 0};
    t->outs[2] = (struct kt_out){t->a.weight, n, dt, 0, 0};
}

static void frozen_fini(struct frozen_case *t) {
    KT_FREE(t->a.master, t->a.weight);
    case_fini(&t->code);
}

static void frozen_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t s = 1; s < sizeof sizes / sizeof *sizes; s++)
            for (int odd = 0; odd < 2; odd++) {
                struct frozen_case t;
                frozen_init(&t, kt_dtypes[d], sizes[s], sizes[s] * ONEBIT_BLOCK - odd * 3);
                if (!odd) {
                    t.a.codes = t.code.out;
                    kt_check(OP_ADAM_FROZEN, &t.a, t.outs, 3);
                    for (int64_t i = 0; i < t.a.n; i++)
                        assert_true(t.a.m[i] == (t.a.v[i] == 0 ? 0 : said(t.code.out, i)));
                }
                t.a.codes = NULL;
                kt_check(OP_ADAM_FROZEN, &t.a, t.outs, 3);
                t.a.weight = NULL;
                kt_check(OP_ADAM_FROZEN, &t.a, t.outs, 2);
                t.a.weight = t.outs[2].p;
                frozen_fini(&t);
            }
}

// With its own gradient and no element masked it is AdamW whose beta2 is 1 and which corrects nothing.
static void frozen_is_adamw_with_its_variance_kept(void **state) {
    (void)state;
    struct frozen_case a, b;
    int64_t n = 8 * ONEBIT_BLOCK;
    frozen_init(&a, DT_BF16, 8, n);
    frozen_init(&b, DT_BF16, 8, n);
    for (int64_t i = 0; i < n; i++) a.code.v[i] = b.code.v[i] = a.code.v[i] + 1e-5f;
    struct update_args w = {.master = b.a.master,
                            .m = b.a.m,
                            .v = b.code.v,
                            .weight = b.a.weight,
                            .grad = b.a.grad,
                            .scalars = b.a.scalars,
                            .n = n,
                            .groups = 3,
                            .lr = b.a.lr,
                            .beta1 = b.a.beta1,
                            .beta2 = 1,
                            .eps = b.a.eps,
                            .inv_bc1 = 1,
                            .inv_sqrt_bc2 = 1,
                            .dt = DT_BF16};
    memcpy(w.ends, b.a.ends, sizeof w.ends);
    memcpy(w.weight_decay, b.a.weight_decay, sizeof w.weight_decay);
    kt_run(KT_OPS, OP_ADAM_FROZEN, 2, &a.a);
    kt_run(KT_OPS, OP_ADAMW, 2, &w);
    assert_memory_equal(a.a.master, b.a.master, (size_t)n * sizeof(float));
    assert_memory_equal(a.a.m, b.a.m, (size_t)n * sizeof(float));
    assert_memory_equal(a.code.v, b.code.v, (size_t)n * sizeof(float));
    assert_memory_equal(a.a.weight, b.a.weight, (size_t)n * 2);
    frozen_fini(&a);
    frozen_fini(&b);
}

static void a_skipped_step_writes_nothing(void **state) {
    (void)state;
    struct frozen_case a, b;
    int64_t n = 8 * ONEBIT_BLOCK;
    frozen_init(&a, DT_F16, 8, n);
    frozen_init(&b, DT_F16, 8, n);
    a.code.scalars->skip = 1;
    struct onebit_encode_args e = encode_args(&a.code);
    kt_run(KT_OPS, OP_ONEBIT_ENCODE, 2, &e);
    kt_run(KT_OPS, OP_ONEBIT_SUM, 2,
           &(struct onebit_sum_args){.out = a.code.out,
                                     .in = b.code.out,
                                     .error = a.code.error,
                                     .v = a.code.v,
                                     .scalars = a.code.scalars,
                                     .n = n,
                                     .ranks = 1});
    kt_run(KT_OPS, OP_ADAM_FROZEN, 2, &a.a);
    assert_memory_equal(a.code.out, b.code.out, onebit_bytes(n));
    assert_memory_equal(a.code.error, b.code.error, (size_t)n * sizeof(float));
    assert_memory_equal(a.a.master, b.a.master, (size_t)n * sizeof(float));
    assert_memory_equal(a.a.m, b.a.m, (size_t)n * sizeof(float));
    assert_memory_equal(a.a.weight, b.a.weight, (size_t)n * 2);
    frozen_fini(&a);
    frozen_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encode_matches_ref),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(sum_matches_ref),
        cmocka_unit_test(frozen_matches_ref),
        cmocka_unit_test(frozen_is_adamw_with_its_variance_kept),
        cmocka_unit_test(a_skipped_step_writes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
