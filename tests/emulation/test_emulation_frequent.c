// The backward of the embedding where one token is frequent: in emulation, where the order of blocks and
// threads can be changed, and what one thread does alone can be counted.
#include "tests/emulation/gpu/emulation.h"

#define KT_OPS emu_ops
#include "tests/kernels/kernel_test.h"

#define ORDERS   9
#define BATCH    4
#define SEQ      512
#define ROWS     (BATCH * SEQ)
#define VOCAB    256
#define CHANNELS 40

// In `percent` of 100 positions there is one token, in the others any of VOCAB.
static int32_t *tokens_with(int percent) {
    int32_t *tokens = kt_tokens(ROWS, 3, VOCAB);
    for (int64_t i = 0; i < ROWS; i++)
        if ((int)(kt_hash(5, (uint64_t)i) % 100) < percent) tokens[i] = ' ';
    return tokens;
}

struct rig {
    struct embed_bwd_args a;
    void *before;
};

static size_t dwte_bytes(void) { return (size_t)(VOCAB * CHANNELS) * 2; }

static struct rig rig_open(int percent) {
    struct embed_bwd_args a = {
        .dwte = kt_random(DT_BF16, VOCAB * CHANNELS, 1, 1.0f),
        .dout = kt_random(DT_BF16, ROWS * CHANNELS, 2, 1.0f),
        .tokens = tokens_with(percent),
        .scratch = kt_poisoned(DT_U8, (int64_t)embed_bwd_scratch_bytes(BATCH, SEQ, CHANNELS, VOCAB)),
        .batch = BATCH,
        .seq = SEQ,
        .channels = CHANNELS,
        .vocab = VOCAB,
        .dt = DT_BF16};
    return (struct rig){a, kt_copy(DT_BF16, VOCAB * CHANNELS, a.dwte)};
}

static void rig_run(struct rig *r, const op_fn *ops, int order) {
    memcpy(r->a.dwte, r->before, dwte_bytes());
    kt_run(ops, OP_EMBED_BWD, order, &r->a);
}

static void rig_close(struct rig *r) {
    KT_FREE(r->a.dwte, (void *)(uintptr_t)r->a.dout, (void *)(uintptr_t)r->a.tokens, r->a.scratch, r->before);
}

static void the_bits_do_not_depend_on_the_order_of_blocks(void **state) {
    static const int percents[] = {0, 18, 100};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct rig r = rig_open(percents[i]);
        rig_run(&r, KT_OPS, 1);
        void *first = kt_copy(DT_BF16, VOCAB * CHANNELS, r.a.dwte);
        for (int order = 2; order <= ORDERS; order++) {
            rig_run(&r, KT_OPS, order);
            assert_memory_equal(r.a.dwte, first, dwte_bytes());
        }
        KT_FREE(first);
        rig_close(&r);
    }
}

// A thread that adds up all the rows of a frequent token waits for its warp at each of them: 2048 times where
// every position holds it. No thread may wait more often than where the tokens are even, but for what the
// sums of a token's pieces take, which is as much for two pieces as for thirty.
static void no_thread_works_longer_for_a_frequent_token(void **state) {
    static const int percents[] = {0, 18, 50, 100};
    unsigned even = 0;
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct rig r = rig_open(percents[i]);
        emu_longest();
        rig_run(&r, KT_OPS, 1);
        unsigned longest = emu_longest();
        if (i == 0) even = longest;
        assert_in_range(longest, 1, even);
        assert_true(longest < ROWS / 4);
        rig_close(&r);
    }
}

// Pieces grow until their sums fit; what does not fit at all is refused.
static void a_small_workspace_takes_longer_pieces(void **state) {
    (void)state;
    struct rig r = rig_open(18);
    const char *why = "";
    rig_run(&r, ref_ops, 1);
    struct kt_out want = {r.a.dwte, VOCAB * CHANNELS, DT_BF16, 1.5, 0.05};
    void *copy = kt_copy(DT_BF16, VOCAB * CHANNELS, r.a.dwte);
    size_t order_bytes = (ROWS + 2 * 512) * sizeof(int32_t),
           piece_bytes = (2 * CHANNELS + 2) * sizeof(int32_t);
    for (size_t pieces = 1; pieces < 40; pieces += 3) {
        emu_set_workspace(order_bytes + 16 + pieces * piece_bytes);
        for (int order = 1; order <= 2; order++) {
            rig_run(&r, KT_OPS, order);
            kt_assert_close(&want, r.a.dwte, copy);
        }
    }
    emu_set_workspace(order_bytes + piece_bytes);
    assert_int_equal(emu_ops[OP_EMBED_BWD](1, &r.a, &why), -1);
    assert_non_null(strstr(why, "exceed the workspace"));
    emu_set_workspace(0);
    KT_FREE(copy);
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_do_not_depend_on_the_order_of_blocks),
        cmocka_unit_test(no_thread_works_longer_for_a_frequent_token),
        cmocka_unit_test(a_small_workspace_takes_longer_pieces),
    };
    return cmocka_run_group_tests_name("emulation: frequent tokens", tests, NULL, NULL);
}
