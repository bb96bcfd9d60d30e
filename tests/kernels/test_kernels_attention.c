// Causal attention with grouped queries, forward and backward: cpu against the reference in every
// type, head size and group; the same bits from every number of threads; causality; gradients.
#include "tests/kernels/kernel_test.h"

struct shape {
    int64_t batch, seq;
    int32_t heads, kv_heads, size;
};

struct tensors {
    struct shape s;
    enum dtype dt;
    int64_t qkv_count, out_count, lse_count;
    void *qkv, *out, *dout, *dqkv, *scratch;
    float *lse;
    struct attn_fwd_args fwd;
    struct attn_bwd_args bwd;
};

static struct tensors tensors_create(struct shape s, enum dtype dt, float spread) {
    struct tensors t = {.s = s, .dt = dt};
    t.qkv_count = s.batch * s.seq * (s.heads + 2 * s.kv_heads) * s.size;
    t.out_count = s.batch * s.seq * s.heads * s.size;
    t.lse_count = s.batch * s.heads * s.seq;
    t.qkv = kt_random(dt, t.qkv_count, 1, spread);
    t.dout = kt_random(dt, t.out_count, 2, 1.0f);
    t.out = kt_poisoned(dt, t.out_count);
    t.dqkv = kt_poisoned(dt, t.qkv_count);
    t.lse = kt_poisoned(DT_F32, t.lse_count);
    size_t scratch_bytes = attn_scratch_bytes(s.batch, s.seq, s.heads, s.kv_heads, s.size);
    t.scratch = kt_poisoned(DT_U8, (int64_t)scratch_bytes);
    t.fwd = (struct attn_fwd_args){.out = t.out,
                                   .lse = t.lse,
                                   .qkv = t.qkv,
                                   .scratch = t.scratch,
                                   .batch = s.batch,
                                   .seq = s.seq,
                                   .heads = s.heads,
                                   .kv_heads = s.kv_heads,
                                   .head_size = s.size,
                                   .scale = 1.0f / sqrtf((float)s.size),
                                   .dt = dt};
    t.bwd = (struct attn_bwd_args){.dqkv = t.dqkv,
                                   .dout = t.dout,
                                   .qkv = t.qkv,
                                   .out = t.out,
                                   .lse = t.lse,
                                   .scratch = t.scratch,
                                   .batch = s.batch,
                                   .seq = s.seq,
                                   .heads = s.heads,
                                   .kv_heads = s.kv_heads,
                                   .head_size = s.size,
                                   .scale = t.fwd.scale,
                                   .dt = dt};
    return t;
}

static void tensors_free(struct tensors *t) { KT_FREE(t->qkv, t->out, t->dout, t->dqkv, t->scratch, t->lse); }

static void check_both(struct shape s, enum dtype dt, float spread) {
    struct tensors t = tensors_create(s, dt, spread);
    // fp32: rounding of sums of seq terms; 16 bits: one rounding of out, and out's rounding enters
    // the backward through delta.
    double units = dt == DT_F32 ? 32 : 1, bwd_units = dt == DT_F32 ? 64 : 2;
    kt_check(OP_ATTN_FWD, &t.fwd,
             (struct kt_out[]){{t.out, t.out_count, dt, units, 0.25}, {t.lse, t.lse_count, DT_F32, 32, 1.0}},
             2);
    kt_check(OP_ATTN_BWD, &t.bwd, &(struct kt_out){t.dqkv, t.qkv_count, dt, bwd_units, 1.0}, 1);
    tensors_free(&t);
}

static void test_against_reference(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 2},    {2, 3, 2, 1, 6},    {2, 5, 4, 2, 8},    {1, 13, 3, 3, 16},
        {2, 33, 6, 2, 32},  {1, 96, 2, 1, 64},  {1, 97, 2, 2, 64},  {1, 50, 2, 1, 80},
        {1, 70, 2, 1, 128}, {1, 205, 4, 1, 18}, {1, 300, 1, 1, 64},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int d = 0; d < KT_DTYPES; d++) check_both(shapes[i], kt_dtypes[d], 1.0f);
}

// Scores up to about 150 in fp32: the running maximum must carry the exponentials.
static void test_large_scores(void **state) {
    (void)state;
    struct tensors t = tensors_create((struct shape){1, 150, 2, 1, 32}, DT_F32, 8.0f);
    kt_check(
        OP_ATTN_FWD, &t.fwd,
        (struct kt_out[]){{t.out, t.out_count, DT_F32, 2048, 8.0}, {t.lse, t.lse_count, DT_F32, 32, 1.0}}, 2);
    tensors_free(&t);
}

// Scores of about -140, in a sequence that does not fill its last block: exp(-lse) overflows, and must
// not reach a gradient by way of the queries that are not there.
static void test_negative_scores(void **state) {
    (void)state;
    const struct shape s = {1, 70, 1, 1, 32};
    struct tensors t = tensors_create(s, DT_F32, 1.0f);
    float *qkv = t.qkv;
    for (int64_t i = 0; i < t.qkv_count; i++)
        if (i % 96 < 64) qkv[i] = i % 96 < 32 ? 5.0f : -5.0f;
    kt_run(KT_OPS, OP_ATTN_FWD, 1, &t.fwd);
    kt_check(OP_ATTN_BWD, &t.bwd, &(struct kt_out){t.dqkv, t.qkv_count, DT_F32, 1024, 1.0}, 1);
    tensors_free(&t);
}

// Changing the keys, values and queries of the last time changes no earlier row.
static void test_causal(void **state) {
    (void)state;
    const struct shape s = {1, 110, 2, 1, 16};
    struct tensors t = tensors_create(s, DT_F32, 1.0f);
    kt_run(KT_OPS, OP_ATTN_FWD, 2, &t.fwd);
    int64_t row = s.heads * s.size, wide = (s.heads + 2 * s.kv_heads) * s.size;
    float *before = kt_alloc(DT_F32, t.out_count), *qkv = t.qkv;
    memcpy(before, t.out, (size_t)t.out_count * sizeof(float));
    for (int64_t i = 0; i < wide; i++) qkv[(s.seq - 1) * wide + i] += 100.0f;
    kt_run(KT_OPS, OP_ATTN_FWD, 2, &t.fwd);
    assert_memory_equal(before, t.out, (size_t)((s.seq - 1) * row) * sizeof(float));
    assert_memory_not_equal(before + (s.seq - 1) * row, (float *)t.out + (s.seq - 1) * row,
                            (size_t)row * sizeof(float));
    KT_FREE(before);
    tensors_free(&t);
}

// A NaN in a query must reach the outputs that read it: the step is skipped because of it.
static void test_nan_shows(void **state) {
    (void)state;
    struct tensors t = tensors_create((struct shape){1, 20, 2, 1, 16}, DT_F16, 1.0f);
    dtype_store(DT_F16, t.qkv, 3, NAN);  // query of time 0, head 0
    kt_run(KT_OPS, OP_ATTN_FWD, 1, &t.fwd);
    for (size_t i = 0; i < 16; i++) assert_true(isnan(dtype_load(DT_F16, t.out, i)));
    kt_run(KT_OPS, OP_ATTN_BWD, 1, &t.bwd);
    assert_true(isnan(dtype_load(DT_F16, t.dqkv, 0)));
    tensors_free(&t);
}

static double reference_loss(void *ctx) {
    struct tensors *t = ctx;
    kt_run(ref_ops, OP_ATTN_FWD, 1, &t->fwd);
    return kt_dot(t->out, t->dout, t->out_count);
}

// The gradient of ops against differences of the reference's forward.
static void check_gradient(const op_fn *ops, struct shape s) {
    struct tensors t = tensors_create(s, DT_F32, 1.0f);
    kt_run(ops, OP_ATTN_FWD, 1, &t.fwd);
    kt_run(ops, OP_ATTN_BWD, 1, &t.bwd);
    kt_check_gradient(&(struct kt_gradient){reference_loss, &t, t.qkv, t.dqkv, t.qkv_count, 1e-2, 5e-4});
    tensors_free(&t);
}

static void test_gradient(void **state) {
    (void)state;
    check_gradient(ref_ops, (struct shape){2, 4, 4, 2, 4});
    check_gradient(KT_OPS, (struct shape){2, 4, 4, 2, 4});
    check_gradient(KT_OPS, (struct shape){1, 35, 2, 1, 10});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_reference), cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_negative_scores),   cmocka_unit_test(test_causal),
        cmocka_unit_test(test_nan_shows),         cmocka_unit_test(test_gradient),
    };
    return cmocka_run_group_tests_name("kernels: attention", tests, NULL, KT_TEARDOWN);
}
