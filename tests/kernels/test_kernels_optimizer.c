// The exact sum, the sum of squares, the step's decision, and each update: to the bit.
#include "tests/kernels/kernel_test.h"

// ---------------------------------------------------------------- exact_sum.h
static void assert_same_sum(const struct exact_sum *a, const struct exact_sum *b) {
    assert_true(exact_sum_value(a) == exact_sum_value(b));
    assert_int_equal(a->nonfinite, b->nonfinite);
}

// Doubles over many powers of two, each a multiple of 2^-298.
static double wide_term(uint64_t i) {
    return ldexp((double)(kt_hash(1, i) >> 11), (int)(kt_hash(2, i) % 400) - 298);
}

static void partitions_give_the_same_sum(void **state) {
    (void)state;
    enum { TERMS = 4000, PARTS = 7 };
    struct exact_sum one = {0};
    for (uint64_t i = 0; i < TERMS; i++) exact_sum_add(&one, wide_term(i));
    for (uint64_t seed = 10; seed < 20; seed++) {
        struct exact_sum part[PARTS] = {{.nonfinite = 0}}, merged = {0};
        for (uint64_t i = TERMS; i-- > 0;) exact_sum_add(&part[kt_hash(seed, i) % PARTS], wide_term(i));
        for (int p = 0; p < PARTS; p++) exact_sum_merge(&merged, &part[(p + (int)seed) % PARTS]);
        assert_memory_equal(&one, &merged, sizeof one);
        assert_same_sum(&one, &merged);
    }
}

// A sum of one number is that number, from the smallest that fits on.
static void one_number_comes_back(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 4000; i++) {
        struct exact_sum s = {0};
        double x = wide_term(i);
        exact_sum_add(&s, x);
        assert_true(exact_sum_value(&s) == x);
    }
    for (int e = -320; e <= 256; e++) {
        struct exact_sum s = {0};
        double x = ldexp(e < -268 ? 1.0 : 0x1.fffffffffffffp0, e);
        exact_sum_add(&s, x);
        assert_true(exact_sum_value(&s) == x);
    }
}

// Equal sums whose digits carry differently have equal values.
static void carries_do_not_matter(void **state) {
    (void)state;
    struct exact_sum a = {0}, b = {0};
    for (int i = 0; i < 1 << 12; i++) exact_sum_add(&a, 4294967295.0);
    exact_sum_add(&b, 4294967295.0 * (1 << 12));
    assert_memory_not_equal(&a, &b, sizeof a);
    assert_true(exact_sum_value(&a) == 4294967295.0 * (1 << 12));
    assert_same_sum(&a, &b);
}

static void extremes_are_exact(void **state) {
    (void)state;
    double largest = 3.40282346638528859811704183484516925e+38, tiny = 0x1p-298;
    struct exact_sum s = {0};
    exact_sum_add(&s, 0.0);
    assert_true(exact_sum_value(&s) == 0.0);
    exact_sum_add(&s, tiny);
    assert_true(exact_sum_value(&s) == tiny);
    exact_sum_add(&s, largest * largest);
    assert_true(exact_sum_value(&s) == largest * largest);
    for (int i = 0; i < 255; i++) exact_sum_add(&s, largest * largest);
    assert_true(exact_sum_value(&s) == 256.0 * largest * largest);
    for (int i = 0; i < EXACT_SUM_LIMBS; i++) assert_true(s.limb[i] >= 0);
    assert_int_equal(s.limb[0], (int64_t)1 << 22);  // the tiny term is still there: 2^-298 = 2^(22-320)
}

// ---------------------------------------------------------------- sum of squares
static struct exact_sum *sum_of(struct exact_sum from) { return kt_copy(DT_U8, sizeof from, &from); }

static void sumsq_matches_ref(void **state) {
    static const int64_t blocks[] = {0, 1, 7, 8, 9, 200, 331};
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            for (int zero = 0; zero < 2; zero++) {
                int64_t n = blocks[i] * SUMSQ_BLOCK;
                void *x = kt_random(kt_dtypes[d], n, i, 3.0f);
                struct exact_sum *sum = sum_of((struct exact_sum){.limb = {1, 2, 3}, .nonfinite = 4});
                struct sumsq_args a = {.out = sum, .x = x, .n = n, .zero_out = zero, .dt = kt_dtypes[d]};
                kt_check(OP_SUMSQ, &a, &(struct kt_out){sum, EXACT_SUM_WORDS, DT_I64, 0, 0}, 1);
                if (zero && n == 0) assert_true(exact_sum_value(sum) == 0.0 && sum->nonfinite == 0);
                KT_FREE(x, sum);
            }
}

// However the blocks are spread over ranks: the same sum. Its value is the plain sum, to rounding.
static void sumsq_ignores_the_partition(void **state) {
    (void)state;
    enum { BLOCKS = 60 };
    int64_t n = BLOCKS * SUMSQ_BLOCK;
    float *x = kt_random(DT_F32, n, 1, 1.0f);
    for (int64_t i = 0; i < n; i++) x[i] = ldexpf(x[i], (int)(i % 150) - 100);
    struct exact_sum *whole = kt_poisoned(DT_U8, sizeof *whole), *part = kt_poisoned(DT_U8, sizeof *part);
    kt_run(KT_OPS, OP_SUMSQ, 2,
           &(struct sumsq_args){.out = whole, .x = x, .n = n, .zero_out = true, .dt = DT_F32});
    for (int ranks = 2; ranks <= 7; ranks++) {
        struct exact_sum merged = {0};
        for (int r = ranks - 1; r >= 0; r--) {
            int64_t begin = BLOCKS * r / ranks * SUMSQ_BLOCK, end = BLOCKS * (r + 1) / ranks * SUMSQ_BLOCK;
            kt_run(KT_OPS, OP_SUMSQ, 1 + r % 3,
                   &(struct sumsq_args){
                       .out = part, .x = x + begin, .n = end - begin, .zero_out = true, .dt = DT_F32});
            exact_sum_merge(&merged, part);
        }
        assert_memory_equal(whole, &merged, sizeof merged);
    }
    double plain = kt_dot(x, x, n);
    assert_true(fabs(exact_sum_value(whole) - plain) < 1e-12 * plain);
    KT_FREE(x, whole, part);
}

// Blocks from the smallest number to the largest, mixed: their sums begin at every digit of the exact sum.
static void sumsq_of_blocks_of_all_sizes(void **state) {
    (void)state;
    int64_t n = 90 * SUMSQ_BLOCK;
    float *x = kt_random(DT_F32, n, 1, 1.0f);
    for (int64_t i = 0; i < n; i++) x[i] = ldexpf(x[i], (int)(i / SUMSQ_BLOCK * 37 % 276) - 148);
    struct exact_sum *sum = kt_poisoned(DT_U8, sizeof *sum);
    struct sumsq_args a = {.out = sum, .x = x, .n = n, .zero_out = true, .dt = DT_F32};
    kt_check(OP_SUMSQ, &a, &(struct kt_out){sum, EXACT_SUM_WORDS, DT_I64, 0, 0}, 1);
    KT_FREE(x, sum);
}

static void sumsq_counts_what_is_not_finite(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++) {
        enum dtype dt = kt_dtypes[d];
        int64_t n = 20 * SUMSQ_BLOCK;
        void *x = kt_alloc(dt, n);
        for (int64_t i = 0; i < n; i++) dtype_store(dt, x, (size_t)i, 0.5f);
        dtype_store(dt, x, 3, NAN);
        dtype_store(dt, x, 255, INFINITY);
        dtype_store(dt, x, (size_t)n - 1, -INFINITY);
        struct exact_sum *sum = kt_poisoned(DT_U8, sizeof *sum);
        struct sumsq_args a = {.out = sum, .x = x, .n = n, .zero_out = true, .dt = dt};
        kt_run(KT_OPS, OP_SUMSQ, 2, &a);
        assert_int_equal(sum->nonfinite, 3);
        assert_true(exact_sum_value(sum) == 18 * SUMSQ_BLOCK * 0.25);
        kt_check(OP_SUMSQ, &a, &(struct kt_out){sum, EXACT_SUM_WORDS, DT_I64, 0, 0}, 1);
        KT_FREE(x, sum);
    }
}

// ---------------------------------------------------------------- the decision
static struct update_scalars decide(double sumsq, int64_t nonfinite, float loss_scale, float clip) {
    struct exact_sum *sum = sum_of((struct exact_sum){.nonfinite = nonfinite});
    struct update_scalars *out = kt_poisoned(DT_U8, sizeof *out);
    exact_sum_add(sum, sumsq);
    struct decide_args a = {.scalars = out, .sum = sum, .loss_scale = loss_scale, .clip = clip};
    kt_run(KT_OPS, OP_DECIDE, 1, &a);
    struct update_scalars u = *out;
    KT_FREE(sum, out);
    return u;
}

static void decisions(void **state) {
    (void)state;
    struct update_scalars u = decide(16.0, 0, 1.0f, 0.0f);
    assert_true(!u.skip && u.norm == 4.0 && u.grad_scale == 1.0f);
    u = decide(16.0, 0, 1.0f, 8.0f);  // under the limit
    assert_true(!u.skip && u.norm == 4.0 && u.grad_scale == 1.0f);
    u = decide(16.0, 0, 1.0f, 1.0f);
    assert_true(!u.skip && u.norm == 4.0 && u.grad_scale == (float)(1.0 / (4.0 + 1e-6)));
    u = decide(16.0 * 1024 * 1024, 0, 1024.0f, 1.0f);  // unscaled first
    assert_true(!u.skip && u.norm == 4.0 && u.grad_scale == (float)(1.0 / (4.0 + 1e-6) / 1024.0));
    u = decide(16.0, 1, 1024.0f, 1.0f);
    assert_true(u.skip == 1 && !isfinite(u.norm));
    u = decide(0.0, 0, 2.0f, 1.0f);
    assert_true(!u.skip && u.norm == 0.0 && u.grad_scale == 0.5f);
}

// ---------------------------------------------------------------- every update
#define UPDATE_OP(first, OP, name, states, frozen, variant) OP,
static const enum op updates[] = {UPDATES(UPDATE_OP, )};

struct update_case {
    struct update_args args;
    struct update_scalars *scalars;
    int64_t n;
};

static void update_init(struct update_case *t, enum dtype dt, int64_t n) {
    t->n = n;
    t->scalars = kt_alloc(DT_U8, sizeof *t->scalars);
    *t->scalars = (struct update_scalars){.grad_scale = 0.73f, .norm = 1.0};
    t->args = (struct update_args){.master = kt_random(DT_F32, n, 1, 1.0f),
                                   .m = kt_random(DT_F32, n, 2, 0.1f),
                                   .v = kt_random(DT_F32, n, 3, 0.01f),
                                   .weight = kt_poisoned(dt, n),
                                   .grad = kt_random(dt, n, 4, 1.0f),
                                   .scalars = t->scalars,
                                   .n = n,
                                   .lr = 1e-2f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .ends = {n},
                                   .weight_decay = {0.1f},
                                   .groups = 1,
                                   .momentum = 0.9f,
                                   .rest = 0.8f,
                                   .alpha = 0.9f,
                                   .inv_bc1 = (float)(1.0 / (1.0 - pow(0.9, 3))),
                                   .inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(0.95, 3))),
                                   .dt = dt};
    for (int64_t i = 0; i < n; i++) t->args.v[i] = fabsf(t->args.v[i]);
}

static void update_fini(struct update_case *t) {
    KT_FREE(t->args.master, t->args.m, t->args.v, t->args.weight, (void *)t->args.grad, t->scalars);
}

// Both variants of each row, with and without a second group whose boundary no vector of a GPU keeps to, with and
// without the momentum of sgd and rmsprop, with and without weights.
static void check_update(enum op op, enum dtype dt, int64_t n, int form) {
    struct update_case t;
    update_init(&t, dt, n);
    struct update_args *a = &t.args;
    float *m = a->m, *v = a->v;
    void *weight = a->weight;
    a->l2_mode = a->nesterov = form & 1;
    if (op == OP_SGD && form & 2) a->m = NULL;
    if (op == OP_RMSPROP && form & 2) a->v = NULL;
    for (int64_t i = 0; i < n && op == OP_RMSPROP; i++) m[i] = fabsf(m[i]);  // a mean square
    if (form & 2 && n > 1) {
        a->groups = 2;
        a->ends[0] = n > 4000 ? 1024 : n / 2;
        a->ends[1] = n;
        a->weight_decay[1] = 0.2f;
    }
    const struct kt_out outs[] = {
        {a->master, n, DT_F32, 0, 0}, {weight, n, dt, 0, 0}, {m, n, DT_F32, 0, 0}, {v, n, DT_F32, 0, 0}};
    kt_check(op, a, outs, 4);
    a->weight = NULL;
    kt_check(op, a, outs, 4);
    a->weight = weight;
    a->m = m;
    a->v = v;
    update_fini(&t);
}

static void each_update_matches_ref(void **state) {
    static const int64_t sizes[] = {1, 15, 1024, 1031, 30011, 4096};
    (void)state;
    for (size_t k = 0; k < sizeof updates / sizeof *updates * KT_DTYPES * 4; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            check_update(updates[k / (KT_DTYPES * 4)], kt_dtypes[k / 4 % KT_DTYPES], sizes[s], (int)(k % 4));
}

// One launch over groups is a launch for each of them, to the bit; their ends may lie anywhere, as those of
// shards do.
static void adamw_takes_groups(void **state) {
    static const struct {
        int64_t n, step;  // of ends: 4 and its multiples take the wide path of GPUs
        int groups;
    } cases[] = {
        {1031, 4, 3}, {1031, 1, 5}, {30011, 128, UPDATE_GROUPS_MAX}, {30011, 333, 24}, {700, 700, 1}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases * 2 * KT_DTYPES; k++) {
        size_t c = k / (2 * KT_DTYPES);
        enum dtype dt = kt_dtypes[k % KT_DTYPES];
        struct update_case one, many;
        update_init(&one, dt, cases[c].n);
        update_init(&many, dt, cases[c].n);
        one.args.l2_mode = many.args.l2_mode = k / KT_DTYPES % 2;
        one.args.groups = cases[c].groups;
        struct update_args part = many.args;
        for (int64_t g = 0, at = 0, end; g < cases[c].groups; g++, at = end) {
            end = g + 1 < cases[c].groups ? cases[c].step * (g + 1) : cases[c].n;
            one.args.ends[g] = end;
            one.args.weight_decay[g] = 0.05f * (float)(g % 3);
            part.n = part.ends[0] = end - at;
            part.weight_decay[0] = one.args.weight_decay[g];
            part.master = many.args.master + at;
            part.m = many.args.m + at;
            part.v = many.args.v + at;
            part.weight = (char *)many.args.weight + (size_t)at * dtype_size(dt);
            part.grad = (const char *)many.args.grad + (size_t)at * dtype_size(dt);
            kt_run(KT_OPS, OP_ADAMW, 1 + (int)g % 3, &part);
        }
        kt_run(KT_OPS, OP_ADAMW, 2, &one.args);
        assert_memory_equal(one.args.master, many.args.master, (size_t)one.n * 4);
        assert_memory_equal(one.args.m, many.args.m, (size_t)one.n * 4);
        assert_memory_equal(one.args.v, many.args.v, (size_t)one.n * 4);
        assert_memory_equal(one.args.weight, many.args.weight, (size_t)one.n * dtype_size(dt));
        const struct kt_out outs[] = {{one.args.master, one.n, DT_F32, 0, 0},
                                      {one.args.m, one.n, DT_F32, 0, 0},
                                      {one.args.v, one.n, DT_F32, 0, 0},
                                      {one.args.weight, one.n, dt, 0, 0}};
        kt_check(OP_ADAMW, &one.args, outs, 4);
        update_fini(&one);
        update_fini(&many);
    }
}

// Written from the paper (algorithm 2), in double, over ten steps: the same trajectory to rounding.
static void adamw_follows_the_paper(void **state) {
    (void)state;
    int64_t n = 50;
    for (int l2 = 0; l2 < 2; l2++) {
        struct update_case t;
        update_init(&t, DT_F32, n);
        t.args.l2_mode = l2;
        t.scalars->grad_scale = 1.0f;
        double p[50], m[50] = {0}, v[50] = {0};
        for (int64_t i = 0; i < n; i++) {
            p[i] = (double)t.args.master[i];
            t.args.m[i] = t.args.v[i] = 0.0f;
        }
        for (int step = 1; step <= 10; step++) {
            float *grad = (void *)t.args.grad;
            for (int64_t i = 0; i < n; i++) {
                grad[i] = kt_uniform((uint64_t)step, (uint64_t)i);
                double g = (double)grad[i] + (l2 ? 0.1 * p[i] : 0.0);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                double u = m[i] / (1 - pow(0.9, step)) / (sqrt(v[i] / (1 - pow(0.95, step))) + 1e-8);
                p[i] -= 0.01 * (u + (l2 ? 0.0 : 0.1 * p[i]));
            }
            t.args.inv_bc1 = (float)(1.0 / (1.0 - pow(0.9, step)));
            t.args.inv_sqrt_bc2 = (float)(1.0 / sqrt(1.0 - pow(0.95, step)));
            kt_run(KT_OPS, OP_ADAMW, 2, &t.args);
        }
        for (int64_t i = 0; i < n; i++) {
            assert_true(fabs((double)t.args.master[i] - p[i]) < 5e-6);
            assert_true(((float *)t.args.weight)[i] == t.args.master[i]);
        }
        update_fini(&t);
    }
}

static void adamw_in_fp32_may_update_the_weight_in_place(void **state) {
    (void)state;
    struct update_case a, b;
    update_init(&a, DT_F32, 3001);
    update_init(&b, DT_F32, 3001);
    void *own = b.args.weight;
    b.args.weight = b.args.master;
    kt_run(KT_OPS, OP_ADAMW, 2, &a.args);
    kt_run(KT_OPS, OP_ADAMW, 2, &b.args);
    assert_memory_equal(a.args.master, b.args.master, 3001 * sizeof(float));
    assert_memory_equal(a.args.weight, b.args.master, 3001 * sizeof(float));
    b.args.weight = own;
    update_fini(&a);
    update_fini(&b);
}

static void a_skipped_step_writes_nothing(void **state) {
    (void)state;
    struct update_case a, b;
    update_init(&a, DT_BF16, 1000);
    update_init(&b, DT_BF16, 1000);
    *a.scalars = decide(1.0, 1, 1.0f, 1.0f);
    ((uint16_t *)a.args.grad)[5] = f32_to_bf16(NAN);
    for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) kt_run(KT_OPS, updates[i], 2, &a.args);
    assert_memory_equal(a.args.master, b.args.master, 4000);
    assert_memory_equal(a.args.m, b.args.m, 4000);
    assert_memory_equal(a.args.v, b.args.v, 4000);
    assert_memory_equal(a.args.weight, b.args.weight, 2000);
    update_fini(&a);
    update_fini(&b);
}

// ---------------------------------------------------------------- SGD and Lion
// torch.optim.SGD's documented algorithm, in double: (momentum, dampening, Nesterov's).
static void sgd_follows_torch(void **state) {
    static const double cases[][3] = {{0, 0, 0}, {0.9, 0, 0}, {0.9, 0.3, 0}, {0.9, 0, 1}};
    enum { N = 50 };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        double momentum = cases[k][0], dampening = cases[k][1], p[N], buffer[N];
        struct update_case t;
        update_init(&t, DT_F32, N);
        t.scalars->grad_scale = 1;
        t.args.momentum = (float)momentum;
        t.args.nesterov = cases[k][2] > 0;
        for (int i = 0; i < N; i++) p[i] = (double)t.args.master[i], t.args.m[i] = 0;
        float *m = t.args.m;
        if (momentum == 0) t.args.m = NULL;
        for (int step = 1; step <= 10; step++) {
            float *grad = (void *)t.args.grad;
            for (int i = 0; i < N; i++) {
                grad[i] = kt_uniform((uint64_t)step, (uint64_t)i);
                double g = (double)grad[i] + 0.1 * p[i];
                if (momentum != 0) {
                    buffer[i] = step == 1 ? g : momentum * buffer[i] + (1 - dampening) * g;
                    g = t.args.nesterov ? g + momentum * buffer[i] : buffer[i];
                }
                p[i] -= 0.01 * g;
            }
            t.args.rest = step == 1 ? 1 : (float)(1 - dampening);
            kt_run(KT_OPS, OP_SGD, 2, &t.args);
        }
        for (int i = 0; i < N; i++) assert_true(fabs((double)t.args.master[i] - p[i]) < 5e-6);
        t.args.m = m;
        update_fini(&t);
    }
}

// torch.optim.RMSprop's documented algorithm with centered=False, in double, without and with momentum. A
// value of 0 stays 0.
static void rmsprop_follows_torch(void **state) {
    enum { N = 50 };
    (void)state;
    for (int moving = 0; moving < 2; moving++) {
        double p[N], square[N] = {0}, buffer[N] = {0};
        struct update_case t;
        update_init(&t, DT_F32, N);
        t.scalars->grad_scale = 1;
        float *v = t.args.v;
        t.args.master[7] = 0;
        for (int i = 0; i < N; i++) p[i] = (double)t.args.master[i], t.args.m[i] = v[i] = 0;
        if (!moving) t.args.v = NULL;
        for (int step = 1; step <= 10; step++) {
            float *grad = (void *)t.args.grad;
            for (int i = 0; i < N; i++) {
                grad[i] = i == 7 ? 0 : kt_uniform((uint64_t)step, (uint64_t)i);
                double g = (double)grad[i] + 0.1 * p[i];
                square[i] = 0.9 * square[i] + 0.1 * g * g;
                double u = g / (sqrt(square[i]) + 1e-8);
                buffer[i] = 0.9 * buffer[i] + u;
                p[i] -= 0.01 * (moving ? buffer[i] : u);
            }
            kt_run(KT_OPS, OP_RMSPROP, 2, &t.args);
        }
        for (int i = 0; i < N; i++) assert_true(fabs((double)t.args.master[i] - p[i]) < 2e-5);
        assert_true(t.args.master[7] == 0);
        t.args.v = v;
        update_fini(&t);
    }
}

// Algorithm 2 of Chen et al., in double; the signs of its updates are far from 0 here. A value of 0 stays 0.
static void lion_follows_the_paper(void **state) {
    enum { N = 50 };
    (void)state;
    double p[N], m[N] = {0};
    struct update_case t;
    update_init(&t, DT_F32, N);
    t.scalars->grad_scale = 1;
    t.args.beta2 = 0.99f;
    for (int i = 0; i < N; i++) t.args.m[i] = 0;
    t.args.master[7] = 0;
    for (int i = 0; i < N; i++) p[i] = (double)t.args.master[i];
    for (int step = 1; step <= 10; step++) {
        float *grad = (void *)t.args.grad;
        for (int i = 0; i < N; i++) {
            grad[i] = i == 7 ? 0 : kt_uniform((uint64_t)step, (uint64_t)i);
            double c = 0.9 * m[i] + 0.1 * (double)grad[i];
            p[i] -= 0.01 * ((c > 0) - (c < 0) + 0.1 * p[i]);
            m[i] = 0.99 * m[i] + 0.01 * (double)grad[i];
        }
        kt_run(KT_OPS, OP_LION, 2, &t.args);
    }
    for (int i = 0; i < N; i++) {
        assert_true(fabs((double)t.args.master[i] - p[i]) < 5e-6);
        assert_true(fabs((double)t.args.m[i] - m[i]) < 1e-6);
    }
    assert_true(t.args.master[7] == 0);
    update_fini(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(partitions_give_the_same_sum),
        cmocka_unit_test(one_number_comes_back),
        cmocka_unit_test(carries_do_not_matter),
        cmocka_unit_test(extremes_are_exact),
        cmocka_unit_test(sumsq_matches_ref),
        cmocka_unit_test(sumsq_ignores_the_partition),
        cmocka_unit_test(sumsq_of_blocks_of_all_sizes),
        cmocka_unit_test(sumsq_counts_what_is_not_finite),
        cmocka_unit_test(decisions),
        cmocka_unit_test(each_update_matches_ref),
        cmocka_unit_test(adamw_takes_groups),
        cmocka_unit_test(adamw_follows_the_paper),
        cmocka_unit_test(adamw_in_fp32_may_update_the_weight_in_place),
        cmocka_unit_test(a_skipped_step_writes_nothing),
        cmocka_unit_test(sgd_follows_torch),
        cmocka_unit_test(lion_follows_the_paper),
        cmocka_unit_test(rmsprop_follows_torch),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
