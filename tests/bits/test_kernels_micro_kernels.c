// The micro-kernels for bf16 (kernels/cpu/gemm/micro_kernel.h) that this machine has, each against the reference, bit for bit; a NaN
// equals any NaN.
#include <stdio.h>

#include "kernels/bf16_product.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/micro_kernel.h"
#include "tests/kernels/kernel_test.h"

#ifdef STARRING_AMX
#define FIRST_KERNEL CPU_KERNEL_AMX
#else
#define FIRST_KERNEL CPU_KERNEL_FMA
#endif

// Calls check for each micro-kernel that this machine has, its name in kernel_now. One that cpu_kernel_resolve finds wrong fails here.
static const char *kernel_now;
static void each_kernel(void (*check)(enum cpu_kernel kernel)) {
#ifdef TARGET_AMX
    amx_trapped();  // again: cmocka takes SIGILL before each test
#endif
    int found = 0;
    for (int k = FIRST_KERNEL; k < CPU_KERNEL_COUNT; k++) {
        enum cpu_kernel resolved;
        const char *why;
        const struct micro_kernel *row = micro_kernel_of(DT_BF16, (enum cpu_kernel)k);
        if (row->unsupported && row->unsupported()) continue;
        kernel_now = cpu_kernel_name((enum cpu_kernel)k);
        if (cpu_kernel_resolve((enum cpu_kernel)k, &resolved, &why) != 0) fail_msg("%s: %s", kernel_now, why);
        check(resolved);
        found++;
    }
    if (!found) skip();  // AMX that the system does not lend, or the compiler does not know
}

static void assert_same_bits(enum dtype dt, const void *got, const void *want, int64_t n, const char *what) {
    for (int64_t i = 0; i < n; i++) {
        float x = dtype_load(dt, got, (size_t)i), y = dtype_load(dt, want, (size_t)i);
        if (f32_to_bits(x) != f32_to_bits(y) && !(isnan(x) && isnan(y)))
            fail_msg("%s, %s: element %lld is %a, not %a", kernel_now, what, (long long)i, (double)x, (double)y);
    }
}

// ---------------------------------------------------------------- the definition
static float product_of(int64_t k, const float *a, const float *b) {
    float sum = 0;
    for (int64_t at = 0; at < k; at += BF16_BLOCK) {
        float x[BF16_BLOCK] = {0}, y[BF16_BLOCK] = {0};
        for (int i = 0; i < BF16_BLOCK && at + i < k; i++) x[i] = a[at + i], y[i] = b[at + i];
        sum = bf16_block(x, y, sum);
    }
    return sum;
}

static void test_the_order(void **state) {
    (void)state;
    // One chain would give 1, pairs 0: 2^24 swallows a 1 that is added to it.
    const float big[4] = {0x1p24f, 1, -0x1p24f, 1}, one[4] = {1, 1, 1, 1};
    assert_true(product_of(4, big, one) == 2);
    // Blocks of 32: the same numbers 32 apart meet in C alone.
    float far[64 + 4] = {0}, ones[64 + 4];
    for (int i = 0; i < 68; i++) ones[i] = 1;
    far[0] = 0x1p24f, far[32] = 1, far[34] = 1, far[64] = -0x1p24f;
    assert_true(product_of(68, far, ones) == 2);
    far[34] = 0;
    assert_true(product_of(68, far, ones) == 0);
}

static void test_subnormal_numbers(void **state) {
    (void)state;
    const float least = 0x1p-126f;
    assert_true(bf16_fma(0x1p-127f, 1, 0) == 0 && bf16_fma(1, 0x1p-127f, 0) == 0 &&
                bf16_fma(0, 0, 0x1p-127f) == 0);
    assert_true(signbit(bf16_fma(-0x1p-64f, 0x1p-64f, 0)) && bf16_fma(-0x1p-64f, 0x1p-64f, 0) == 0);
    assert_true(bf16_fma(0x1p-63f, 0x1p-63f, 0) == least);
    // Just below the least normal number, what rounds up to it with 24 bits stays.
    assert_true(bf16_fma(-0x1p-63f, 0x1p-88f, least) == least);
    assert_true(bf16_fma(-0x1p-63f, 0x1p-87f, least) == 0);
    assert_true(bf16_fma(-0x1.8p-63f, 0x1p-88f, least) == 0);
    assert_true(bf16_fma(-0x1.fep-63f, 0x1p-89f, least) == least);
}

// ---------------------------------------------------------------- products
enum kind { NEAR_ONE, ANY, TINY, MIXED, LAST_BITS, NOT_FINITE, KINDS };

// Normal, any, tiny and mixed exponents as in the measurement of AMX; what lands next to the least normal number; and
// infinities and NaN.
static uint16_t bf16_of(enum kind kind, uint64_t seed, uint64_t i) {
    uint64_t r = kt_hash(seed, i);
    uint32_t x = (uint32_t)(r >> 20) & 0xffffff, e = 120 + x % 14;
    if (kind == ANY) e = x % 255;
    if (kind == TINY) e = 58 + x % 10;
    if (kind == MIXED) e = x % 6 + (r & 2 ? 0 : 120);
    if (kind == LAST_BITS)
        return (uint16_t)((r & 1) << 15 | ((x & 8 ? 64u : 39u) + (x & 1)) << 7 | (r >> 8 & 3) << 5);
    if (kind == NOT_FINITE && x % 97 == 0) e = 255;
    return (uint16_t)((r & 1) << 15 | e << 7 | (r >> 8 & (kind == NOT_FINITE && x % 2 ? 0 : 127)));
}

static uint16_t *numbers(enum kind kind, uint64_t seed, int64_t rows, int64_t width, int64_t stride) {
    uint16_t *p = kt_poisoned(DT_BF16, (rows - 1) * stride + width);
    for (int64_t i = 0; i < rows * width; i++)
        p[i / width * stride + i % width] = bf16_of(kind, seed, (uint64_t)i);
    return p;
}

static void check_products(enum cpu_kernel kernel) {
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 1, 31},     {13, 40, 33},
                                        {37, 65, 129}, {12, 32, 64},   {33, 31, 96},
                                        {30, 50, 70},  {17, 34, 1057}, {5, 33, 2080}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int variant = 0; variant < 8 * KINDS; variant++) {
            enum kind kind = (enum kind)(variant / 8);
            struct matmul_args g = {.m = shapes[s][0], .n = shapes[s][1], .k = shapes[s][2], .dt = DT_BF16};
            g.trans_a = variant & 1;
            g.trans_b = variant & 2;
            g.lda = matmul_lda(&g) + (variant & 4 ? 3 : 0);
            g.ldb = matmul_ldb(&g) + (variant & 4 ? 5 : 0);
            g.accumulate = variant % 3 == 1;
            uint16_t *bias = variant % 3 == 2 ? numbers(kind, 4, 1, g.n, g.n) : NULL;
            uint16_t *a = numbers(kind, 1, g.trans_a ? g.k : g.m, g.trans_a ? g.m : g.k, g.lda);
            uint16_t *b = numbers(kind, 2, g.trans_b ? g.n : g.k, g.trans_b ? g.k : g.n, g.ldb);
            uint16_t *want = numbers(kind, 3, 1, g.m * g.n, 0), *got = kt_copy(DT_BF16, g.m * g.n, want);
            g.a = a, g.b = b, g.bias = bias, g.c = want;
            kt_run(ref_ops, OP_MATMUL, 1, &g);
            g.c = got;
            kt_run(cpu_ops_by(kernel), OP_MATMUL, 1 + variant % 3, &g);
            char what[120];
            snprintf(what, sizeof what, "m %lld n %lld k %lld, variant %d", (long long)g.m, (long long)g.n,
                     (long long)g.k, variant);
            assert_same_bits(DT_BF16, got, want, g.m * g.n, what);
            KT_FREE(bias, a, b, want, got);
        }
}
static void test_products(void **state) {
    (void)state;
    each_kernel(check_products);
}

// Shapes that cross every level of blocking of every micro-kernel.
static void check_large(enum cpu_kernel kernel) {
    static const int64_t shapes[][3] = {{2100, 5, 40}, {20, 800, 40}, {300, 40, 1100}};
    for (int s = 0; s < 3; s++) {
        struct matmul_args g = {.m = shapes[s][0], .n = shapes[s][1], .k = shapes[s][2], .dt = DT_BF16};
        g.trans_a = s == 2;
        g.trans_b = s == 1;
        uint16_t *a = kt_random(DT_BF16, g.m * g.k, 1, 1.0f), *b = kt_random(DT_BF16, g.n * g.k, 2, 1.0f);
        uint16_t *want = kt_poisoned(DT_BF16, g.m * g.n), *got = kt_poisoned(DT_BF16, g.m * g.n);
        g.a = a, g.b = b, g.c = want;
        kt_run(cpu_ops, OP_MATMUL, 2,
               &g);  // fma's, which check_products compared with the reference in passes of its own
        g.c = got;
        kt_run(cpu_ops_by(kernel), OP_MATMUL, 1, &g);
        assert_same_bits(DT_BF16, got, want, g.m * g.n, "a large product");
        KT_FREE(a, b, want, got);
    }
}
static void test_large(void **state) {
    (void)state;
    each_kernel(check_large);
}

// ---------------------------------------------------------------- attention: whichever micro, the same bits
static void check_attention(enum cpu_kernel kernel) {
    static const int64_t shapes[][2] = {{1, 8}, {29, 20}, {96, 64}, {203, 33}};  // times, size of a head
    enum { B = 2, H = 4, KV = 2 };
    for (int s = 0; s < 4; s++) {
        int64_t seq = shapes[s][0], size = shapes[s][1], row = (H + 2 * KV) * size, heads = H * size;
        void *qkv = kt_random(DT_BF16, B * seq * row, 1, 3.0f),
             *dout = kt_random(DT_BF16, B * seq * heads, 2, 1.0f);
        void *scratch = kt_alloc(DT_U8, (int64_t)attn_scratch_bytes(B, seq, H, KV, (int32_t)size));
        void *out[2], *lse[2], *dqkv[2];
        for (int i = 0; i < 2; i++) {
            const op_fn *ops = i ? cpu_ops_by(kernel) : cpu_ops;
            out[i] = kt_poisoned(DT_BF16, B * seq * heads);
            lse[i] = kt_poisoned(DT_F32, B * H * seq);
            dqkv[i] = kt_poisoned(DT_BF16, B * seq * row);
            struct attn_fwd_args f = {
                .out = out[i], .lse = lse[i], .qkv = qkv, .scratch = scratch, .batch = B};
            f.seq = seq, f.heads = H, f.kv_heads = KV, f.head_size = (int32_t)size, f.scale = 0.3f,
            f.dt = DT_BF16;
            kt_run(ops, OP_ATTN_FWD, 1 + i, &f);
            struct attn_bwd_args b = {
                .dqkv = dqkv[i], .dout = dout, .qkv = qkv, .out = out[i], .lse = lse[i]};
            b.scratch = scratch, b.batch = B, b.seq = seq, b.heads = H, b.kv_heads = KV;
            b.head_size = (int32_t)size, b.scale = 0.3f, b.dt = DT_BF16;
            kt_run(ops, OP_ATTN_BWD, 1 + i, &b);
        }
        assert_same_bits(DT_BF16, out[1], out[0], B * seq * heads, "attention forward");
        assert_same_bits(DT_F32, lse[1], lse[0], B * H * seq, "attention's sums");
        assert_same_bits(DT_BF16, dqkv[1], dqkv[0], B * seq * row, "attention backward");
        for (int i = 0; i < 2; i++) KT_FREE(out[i], lse[i], dqkv[i]);
        KT_FREE(qkv, dout, scratch);
    }
}
static void test_attention(void **state) {
    (void)state;
    each_kernel(check_attention);
}

// ---------------------------------------------------------------- what a Xeon with AMX computed
// 20,000 products C + A B of 16 rows, 16 columns and 32 values of k with the numbers of the measurement, hashed (FNV-1a, NaN as
// one number). The measurement found AMX's 5,120,000 elements equal to the definition's; MEASURED is their hash.
#define MEASURED 0x879c148c0feba63cu
static uint64_t measured_state;
static uint64_t measured_next(void) {
    measured_state ^= measured_state << 13, measured_state ^= measured_state >> 7;
    return measured_state ^= measured_state << 17;
}
static uint16_t measured_number(int mode, const int from[2]) {
    uint64_t r = measured_next(), x = r >> 20;
    uint64_t e = mode == 0   ? 120 + x % 14
                 : mode == 1 ? x % 255
                 : mode == 2 ? (uint64_t)from[0] + x % (uint64_t)from[1]
                             : x % 6 + (r & 1 ? 0 : 120);
    return (uint16_t)((r & 1) << 15 | e << 7 | (r >> 8 & 127));
}

static void check_measured(enum cpu_kernel kernel) {
    enum { EDGE = 16, K = BF16_BLOCK, TILE = 32 };
    const struct micro_kernel *micro = micro_kernel_of(DT_BF16, kernel);
    char *a_panel = kt_alloc(DT_U8, (int64_t)panel_bytes(micro, micro->rows, K));
    char *b_panel = kt_alloc(DT_U8, (int64_t)panel_bytes(micro, micro->columns, K));
    uint64_t hash = 14695981039346656037u;
    measured_state = 88172645463325252u;
    if (micro->begin) micro->begin();
    for (int round = 0; round < 20000; round++) {
        uint16_t a[EDGE * K], b[EDGE * K];
        float c[EDGE * EDGE], sums[EDGE * EDGE];
        for (int i = 0; i < EDGE; i++)
            for (int k = 0; k < K; k++) {
                // In turn, an element of a (row, k) and one of b (pair of k; columns, both of the pair).
                a[i * K + k] = measured_number(round % 4, (const int[]){60, 10});
                b[i * K + k] = measured_number(round % 4, (const int[]){55, 14});
            }
        for (int i = 0; i < EDGE * EDGE; i++) {
            float f = (float)((int)((uint32_t)measured_next() % 20001) - 10000) * 1e-3f;
            c[i] = round % 4 == 2 ? f * 1e-38f : f;
        }
        uint16_t columns[EDGE * K];  // (column, k)
        for (int j = 0; j < EDGE; j++)
            for (int k = 0; k < K; k++) columns[j * K + k] = b[k / 2 * K + 2 * j + k % 2];
        for (int j = 0; j < EDGE; j += micro->columns)
            for (int i = 0; i < EDGE; i += micro->rows) {
                int rows = EDGE - i < micro->rows ? EDGE - i : micro->rows,
                    width = EDGE - j < micro->columns ? EDGE - j : micro->columns;
                float tile[TILE * TILE] = {0};
                micro->pack_a(&(struct operand){a + i * K, DT_BF16, K, 1}, rows, K, a_panel);
                micro->pack_b(&(struct operand){columns + j * K, DT_BF16, K, 1}, width, K, b_panel);
                for (int r = 0; r < rows; r++)
                    memcpy(tile + r * micro->columns, c + (i + r) * EDGE + j, (size_t)width * sizeof *c);
                micro->tile(a_panel, b_panel, rows, K, tile, micro->columns, true);
                for (int r = 0; r < rows; r++)
                    memcpy(sums + (i + r) * EDGE + j, tile + r * micro->columns, (size_t)width * sizeof *c);
            }
        for (int i = 0; i < EDGE * EDGE; i++) {
            uint32_t bits = isnan(sums[i]) ? 0x7fc00000u : f32_to_bits(sums[i]);
            for (int byte = 0; byte < 4; byte++) hash = (hash ^ (bits >> 8 * byte & 255)) * 1099511628211u;
        }
    }
    if (micro->end) micro->end();
    KT_FREE(a_panel, b_panel);
    if (hash != MEASURED) fail_msg("%s: hash %016llx", kernel_now, (unsigned long long)hash);
}
static void test_measured(void **state) {
    (void)state;
#ifdef STARRING_AMX
    skip();  // a minute of emulation, which computes the definition anyway
#endif
    each_kernel(check_measured);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_order), cmocka_unit_test(test_subnormal_numbers),
        cmocka_unit_test(test_products),  cmocka_unit_test(test_large),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_measured),
    };
    return cmocka_run_group_tests_name("the micro-kernels for bf16", tests, NULL, NULL);
}
