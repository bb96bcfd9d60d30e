// Embeddings: cpu against ref to the bit (the order of the sums is the contract; a device may add up in
// another), frequent tokens, gradients.
#include "tests/kernels/kernel_test.h"

struct shape {
    int64_t batch, seq, channels, vocab, positions;
};
static const struct shape shapes[] = {{1, 1, 1, 1, 1},        {2, 3, 5, 4, 7},      {4, 33, 70, 50, 40},
                                      {3, 64, 260, 1000, 64}, {2, 50, 1025, 3, 51}, {2, 9, 264, 20, 12},
                                      {1, 3, 4104, 3, 3}};
#define SHAPES (sizeof shapes / sizeof *shapes)

static void fwd_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t i = 0; i < SHAPES; i++)
            for (int learned = 0; learned < 2; learned++) {
                enum dtype dt = kt_dtypes[d];
                struct shape s = shapes[i];
                int64_t rows = s.batch * s.seq;
                void *wte = kt_random(dt, s.vocab * s.channels, 1, 1.0f);
                void *wpe = kt_random(dt, s.positions * s.channels, 2, 1.0f);
                int32_t *tokens = kt_tokens(rows, 3, s.vocab);
                void *out = kt_poisoned(dt, rows * s.channels);
                struct embed_fwd_args a = {.out = out,
                                           .tokens = tokens,
                                           .wte = wte,
                                           .wpe = learned ? wpe : NULL,
                                           .batch = s.batch,
                                           .seq = s.seq,
                                           .channels = s.channels,
                                           .dt = dt};
                kt_check(OP_EMBED_FWD, &a, &(struct kt_out){out, rows * s.channels, dt, 0, 0}, 1);
                KT_FREE(wte, wpe, tokens, out);
            }
}

enum tokens { EVEN, BYTES, ONE, LAST };

// EVEN: all equally likely. BYTES: of every 100 positions 18 hold the same token, as spaces in a text do.
// ONE: all hold it. LAST: all hold the vocabulary's last, but for the first position.
static int32_t *tokens_of(enum tokens kind, int64_t rows, int64_t vocab) {
    int32_t *tokens = kt_tokens(rows, 3, vocab);
    for (int64_t i = 0; i < rows; i++) {
        if (kind == ONE || (kind == BYTES && kt_hash(5, (uint64_t)i) % 100 < 18))
            tokens[i] = (int32_t)(vocab / 3);
        if (kind == LAST) tokens[i] = i ? (int32_t)(vocab - 1) : 0;
    }
    return tokens;
}

struct bwd_case {
    struct shape s;
    enum dtype dt;
    enum tokens tokens;
    bool zero;        // dwte starts poisoned and is to be overwritten
    bool accumulate;  // dwpe holds numbers to add to
    bool whole;       // quarters, small enough that every order of additions is exact
};

static void *terms_of(const struct bwd_case *k, int64_t n, uint64_t seed) {
    if (!k->whole) return kt_random(k->dt, n, seed, 1.0f);
    void *p = kt_alloc(k->dt, n);
    for (int64_t i = 0; i < n; i++)
        dtype_store(k->dt, p, (size_t)i, 0.25f * roundf(4.0f * kt_uniform(seed, (uint64_t)i)));
    return p;
}

// The bits of ref: the same order of additions, or one that does not matter. Otherwise within what fp32
// additions round, and one rounding to 16 bits that may go the other way.
static struct kt_out dwte_out(const struct bwd_case *k, void *dwte) {
    bool same = (const op_fn *)KT_OPS == cpu_ops || k->whole, wide = k->dt == DT_F32;
    return (struct kt_out){dwte, k->s.vocab * k->s.channels, k->dt,
                           same   ? 0
                           : wide ? 8
                                  : 1.5,
                           wide ? 8 : 1e-2};
}

static void check_bwd(const struct bwd_case *k) {
    struct shape s = k->s;
    int64_t rows = s.batch * s.seq, nte = s.vocab * s.channels, npe = s.positions * s.channels;
    void *dwte = k->zero ? kt_poisoned(k->dt, nte) : terms_of(k, nte, 1);
    void *dwpe = k->accumulate ? kt_random(k->dt, npe, 2, 1.0f) : kt_poisoned(k->dt, npe);
    void *dout = terms_of(k, rows * s.channels, 4);
    int32_t *tokens = tokens_of(k->tokens, rows, s.vocab);
    size_t scratch_bytes = embed_bwd_scratch_bytes(s.batch, s.seq, s.channels, s.vocab);
    void *scratch = kt_poisoned(DT_U8, (int64_t)scratch_bytes);
    struct embed_bwd_args a = {.dwte = dwte,
                               .dwpe = dwpe,
                               .dout = dout,
                               .tokens = tokens,
                               .scratch = scratch,
                               .batch = s.batch,
                               .seq = s.seq,
                               .channels = s.channels,
                               .vocab = s.vocab,
                               .positions = s.positions,
                               .zero_dwte = k->zero,
                               .accumulate_dwpe = k->accumulate,
                               .dt = k->dt};
    const struct kt_out outs[] = {dwte_out(k, dwte), {dwpe, npe, k->dt, 0, 0}};
    kt_check(OP_EMBED_BWD, &a, outs, 2);
    a.dwpe = NULL;
    kt_check(OP_EMBED_BWD, &a, outs, 1);
    KT_FREE(dwte, dwpe, dout, tokens, scratch);
}

static void bwd_matches_ref(void **state) {
    (void)state;
    for (int d = 0; d < KT_DTYPES; d++)
        for (size_t i = 0; i < SHAPES; i++)
            for (int mode = 0; mode < 4; mode++)
                check_bwd(&(struct bwd_case){
                    .s = shapes[i], .dt = kt_dtypes[d], .zero = mode & 1, .accumulate = mode & 2});
}

// Sums over a thousand rows: none is lost, none counts twice, and the bits do not depend on how the work is
// spread. The last vocabulary takes three digits of a sort by 9 bits.
static void frequent_tokens_match_ref(void **state) {
    static const struct shape few[] = {
        {2, 700, 24, 40, 700}, {5, 131, 7, 1100, 131}, {1, 64, 8, 1, 64}, {1, 70, 1, 262200, 70}};
    static const struct {
        enum dtype dt;
        bool whole;
    } kinds[] = {{DT_F32, true}, {DT_BF16, true}, {DT_BF16, false}};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int tokens = EVEN; tokens <= LAST; tokens++)
            for (int d = 0; d < (i < 3 ? 3 : 1); d++)
                check_bwd(&(struct bwd_case){.s = few[i],
                                             .dt = kinds[d].dt,
                                             .tokens = (enum tokens)tokens,
                                             .zero = tokens % 2,
                                             .whole = kinds[d].whole});
}

// A token that fills the batch: summed in fp32 and rounded once. In bf16 1 + 1/256 + 1/256 rounds to
// 1 twice when rounded after every addition, to 1 + 1/128 when rounded at the end.
static void duplicates_round_once(void **state) {
    (void)state;
    const uint16_t terms[3] = {f32_to_bf16(1.0f), f32_to_bf16(1.0f / 256), f32_to_bf16(1.0f / 256)};
    const int32_t ones[3] = {1, 1, 1};
    void *dout = kt_copy(DT_BF16, 3, terms), *tokens = kt_copy(DT_U8, sizeof ones, ones);
    uint16_t *dwte = kt_poisoned(DT_BF16, 2);
    assert_int_equal(embed_bwd_scratch_bytes(1, 3, 1, 2), 5 * sizeof(int32_t));
    void *scratch = kt_poisoned(DT_U8, 5 * sizeof(int32_t));
    struct embed_bwd_args a = {.dwte = dwte,
                               .dout = dout,
                               .tokens = tokens,
                               .scratch = scratch,
                               .batch = 1,
                               .seq = 3,
                               .channels = 1,
                               .vocab = 2,
                               .zero_dwte = true,
                               .dt = DT_BF16};
    kt_run(KT_OPS, OP_EMBED_BWD, 2, &a);
    assert_true(bf16_to_f32(dwte[1]) == 1.0f + 1.0f / 128 && dwte[0] == 0);
    a.zero_dwte = false;
    kt_run(KT_OPS, OP_EMBED_BWD, 2, &a);
    assert_true(bf16_to_f32(dwte[1]) == 2.0f + 1.0f / 64 && dwte[0] == 0);
    KT_FREE(dout, tokens, dwte, scratch);
}

struct embed_scalar {
    struct embed_fwd_args args;
    const float *dout;
};

static double run_embed(void *ctx) {
    struct embed_scalar *s = ctx;
    kt_run(ref_ops, OP_EMBED_FWD, 1, &s->args);
    return kt_dot(s->args.out, s->dout, s->args.batch * s->args.seq * s->args.channels);
}

static void gradient(void **state) {
    (void)state;
    int64_t b = 2, t = 5, c = 3, v = 4, p = 6;
    float *wte = kt_random(DT_F32, v * c, 1, 1.0f), *wpe = kt_random(DT_F32, p * c, 2, 1.0f);
    float *dwte = kt_poisoned(DT_F32, v * c), *dwpe = kt_poisoned(DT_F32, p * c);
    float *dout = kt_random(DT_F32, b * t * c, 4, 1.0f), *out = kt_poisoned(DT_F32, b * t * c);
    int32_t *tokens = kt_tokens(b * t, 3, v);
    struct embed_bwd_args bwd = {.dwte = dwte,
                                 .dwpe = dwpe,
                                 .dout = dout,
                                 .tokens = tokens,
                                 .batch = b,
                                 .seq = t,
                                 .channels = c,
                                 .vocab = v,
                                 .positions = p,
                                 .zero_dwte = true,
                                 .dt = DT_F32};
    kt_run(ref_ops, OP_EMBED_BWD, 1, &bwd);
    struct embed_scalar s = {.args = {.out = out,
                                      .tokens = tokens,
                                      .wte = wte,
                                      .wpe = wpe,
                                      .batch = b,
                                      .seq = t,
                                      .channels = c,
                                      .dt = DT_F32},
                             .dout = dout};
    kt_check_gradient(&(struct kt_gradient){run_embed, &s, wte, dwte, v * c, 1e-1, 1e-4});
    kt_check_gradient(&(struct kt_gradient){run_embed, &s, wpe, dwpe, p * c, 1e-1, 1e-4});
    KT_FREE(wte, wpe, dwte, dwpe, dout, out, tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fwd_matches_ref),
        cmocka_unit_test(bwd_matches_ref),
        cmocka_unit_test(frequent_tokens_match_ref),
        cmocka_unit_test(duplicates_round_once),
        cmocka_unit_test(gradient),
    };
    return cmocka_run_group_tests(tests, NULL, KT_TEARDOWN);
}
