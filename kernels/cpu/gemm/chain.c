// The micro-kernels whose tile is a grid of vector accumulators. fp32 and fp16 use one chain of fused multiply-adds;
// bf16 uses two, of fp32 (the kernel fma) or of pairs of bf16 (avx512_bf16).
#include "kernels/cpu/gemm/panels.h"

#if VEC == 16 && !defined(__AVX512F__)  // built only by tests: small code compiles faster
#define TILE_UNROLL
#else
#define TILE_UNROLL _Pragma("GCC unroll 12")
#endif
#if defined(__AVX512BF16__) && VEC == 16
#define HAS_PAIRS 1
#else
#define HAS_PAIRS 0
#endif

// ---------------------------------------------------------------- packing

// out[k*width + r] = element (r, k) of x for r < rows; zero for r in [rows, width).
VEC_INLINE void pack_fp32_of(enum dtype t, const struct operand *x, int64_t rows, int64_t depth,
                             const int width, float *out) {
    if (x->row_stride == 1) {
        // A vector may reach past the panel's width and load what follows in memory. The next k's row
        // overwrites the excess.
        int64_t whole = rows < width ? 0 : width % VEC ? depth - 1 : depth;
        for (int64_t k = 0; k < whole; k++)
            for (int r = 0; r < width; r += VEC)
                vec_store_f32(out + k * width + r, vec_load(t, x->p, k * x->k_stride + r));
        for (int64_t k = whole; k < depth; k++)
            for (int r = 0; r < width; r++)
                out[k * width + r] = r < rows ? dtype_load(t, x->p, (size_t)(k * x->k_stride + r)) : 0.0f;
        return;
    }
    for (int c = 0; c < width; c += VEC) {
        const int lanes = width < VEC ? width : VEC;
        int64_t start = c * x->row_stride, here = rows > c ? panel_least(rows - c, lanes) : 0, k = 0;
        for (; k + VEC <= depth; k += VEC) {
            vecf v[VEC];
            _Pragma("GCC unroll 16") for (int r = 0; r < VEC; r++) v[r] =
                r < here ? vec_load(t, x->p, start + r * x->row_stride + k) : (vecf){0};
            vec_transpose(v);
            _Pragma("GCC unroll 16") for (int i = 0; i < VEC; i++)
                vec_store_f32(out + (k + i) * width + c, v[i]);
        }
        for (; k < depth; k++)
            for (int r = 0; r < lanes; r++)
                out[k * width + c + r] =
                    r < here ? dtype_load(t, x->p, (size_t)(start + r * x->row_stride + k)) : 0.0f;
    }
}

VEC_INLINE void pack_fp32(const struct operand *x, int64_t rows, int64_t depth, const int width, float *out) {
    WITH_DTYPE(x->t, pack_fp32_of, x, rows, depth, width, out);
}
static void chain_pack_a(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_fp32(x, rows, depth, MR, panel);
}
static void chain_pack_b(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_fp32(x, rows, depth, NR, panel);
}

// A block of bf16 as fp32: the even values of k, then the odd ones.
VEC_INLINE void place_fma(const vecf pair[PAIRS], int width, int column, void *block) {
    float *out = (float *)block + column;
    for (int j = 0; j < PAIRS; j++) vec_store_f32(out + j * width, (vecf)((vecu)pair[j] << 16));
    for (int j = 0; j < PAIRS; j++)
        vec_store_f32(out + (PAIRS + j) * width, (vecf)((vecu)pair[j] & 0xffff0000u));
}
VEC_INLINE void pack_fma(const struct operand *x, int64_t rows, int64_t depth, const int width, float *out) {
    if (x->row_stride != 1 || rows < width) {
        pack_bf16(x, rows, depth, width, place_fma, (size_t)width * BF16_BLOCK * sizeof *out, out);
        return;
    }
    // The rows are adjacent in memory already. As in pack_fp32_of, a vector may reach past the width, but not
    // past the last k.
    for (int64_t block = 0; block < depth; block += BF16_BLOCK)
        for (int i = 0; i < BF16_BLOCK; i++, out += width) {
            int64_t k = block + i % PAIRS * 2 + i / PAIRS, from = k * x->k_stride;
            for (int r = 0; r < width; r += VEC) {
                vecf v = {0};
                if (k < depth - (width % VEC != 0))
                    v = vec_load(DT_BF16, x->p, from + r);
                else if (k < depth)
                    v = vec_load_part(DT_BF16, x->p, from + r, width - r < VEC ? width - r : VEC);
                vec_store_f32(out + r, v);
            }
        }
}
static void fma_pack_a(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_fma(x, rows, depth, MR, panel);
}
static void fma_pack_b(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_fma(x, rows, depth, NR, panel);
}

// ---------------------------------------------------------------- tiles
// Tiles are separate functions. A tile that is inlined into the loops shares its registers with the loops'
// constants. GCC then reloads b's vectors for each row: with 16 registers 18 loads for 12 multiply-adds, and
// half the speed.

// One chain of `steps` per element, starting from acc.
VEC_INLINE void chain(const float *a, const float *b, int64_t steps, vecf acc[MR][2]) {
    for (int64_t p = 0; p < steps; p++, a += MR, b += NR) {
        vecf b0 = vec_load_f32(b), b1 = vec_load_f32(b + VEC);
        TILE_UNROLL
        for (int r = 0; r < MR; r++) {
            vecf x = vec_splat(a + r);
            acc[r][0] = vec_fma(x, b0, acc[r][0]);
            acc[r][1] = vec_fma(x, b1, acc[r][1]);
        }
    }
}

VEC_INLINE void load_acc(bool from_memory, const float *c, int64_t ldc, vecf acc[MR][2]) {
    TILE_UNROLL
    for (int r = 0; r < MR; r++) {
        acc[r][0] = from_memory ? vec_load_f32(c + r * ldc) : (vecf){0};
        acc[r][1] = from_memory ? vec_load_f32(c + r * ldc + VEC) : (vecf){0};
    }
}

static void chain_tile(const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c,
                       int64_t ldc, bool accumulate) {
    (void)rows_needed;
    vecf acc[MR][2];
    load_acc(accumulate, c, ldc, acc);
    chain(a, b, depth, acc);
    TILE_UNROLL
    for (int r = 0; r < MR; r++) {
        vec_store_f32(c + r * ldc, acc[r][0]);
        vec_store_f32(c + r * ldc + VEC, acc[r][1]);
    }
}

// The sums of the even chains wait in the first-level cache while the odd chains run. All accumulators work on
// one chain at a time, which needs fewer loads than half of them on each.
VEC_INLINE void two_chains(const float *a, const float *b, int64_t depth, float *c, int64_t ldc,
                           bool accumulate) {
    _Alignas(64) float even[MR * NR];
    for (int64_t k = 0; k < depth; k += BF16_BLOCK, accumulate = true) {
        vecf acc[MR][2];
        load_acc(false, c, ldc, acc);
        chain(a, b, PAIRS, acc);
        a += MR * PAIRS, b += NR * PAIRS;
        TILE_UNROLL
        for (int r = 0; r < MR; r++) {
            vec_store_f32(even + r * NR, acc[r][0]);
            vec_store_f32(even + r * NR + VEC, acc[r][1]);
        }
        load_acc(false, c, ldc, acc);
        chain(a, b, PAIRS, acc);
        a += MR * PAIRS, b += NR * PAIRS;
        TILE_UNROLL
        for (int r = 0; r < MR; r++)
            for (int i = 0; i < 2; i++) {
                float *to = c + r * ldc + i * VEC;
                vecf sum = vec_load_f32(even + r * NR + i * VEC) + acc[r][i];
                vec_store_f32(to, (accumulate ? vec_load_f32(to) : (vecf){0}) + sum);
            }
    }
}

#if defined(__FMA__) || HAS_PAIRS
// Runs `tile` with the processor's modes DAZ (subnormal operands are zero) and FTZ (subnormal results become
// zero).
typedef void tile_fn(const float *a, const float *b, int64_t rows_needed, int64_t depth, float *c,
                     int64_t ldc, bool accumulate);
static void flushed(tile_fn *tile, const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c,
                    int64_t ldc, bool accumulate) {
    unsigned modes = _mm_getcsr();
    _mm_setcsr(modes | 0x8040u);
    tile(a, b, rows_needed, depth, c, ldc, accumulate);
    _mm_setcsr(modes);
}
// Never inlined, so that no arithmetic moves across the change of modes.
static __attribute__((noinline)) void two_chains_fma(const float *a, const float *b, int64_t rows_needed,
                                                     int64_t depth, float *c, int64_t ldc, bool accumulate) {
    (void)rows_needed;
    two_chains(a, b, depth, c, ldc, accumulate);
}
static void fma_tile(const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c, int64_t ldc,
                     bool accumulate) {
    flushed(two_chains_fma, a, b, rows_needed, depth, c, ldc, accumulate);
}
#else
// Without fma instructions or without the modes: element by element, as the definition.
static void fma_tile(const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c, int64_t ldc,
                     bool accumulate) {
    const float *x = a, *y = b;
    for (int64_t k = 0; k < depth;
         k += BF16_BLOCK, accumulate = true, x += MR * BF16_BLOCK, y += NR * BF16_BLOCK)
        for (int r = 0; r < rows_needed; r++)
            for (int i = 0; i < NR; i++) {
                float row[BF16_BLOCK], column[BF16_BLOCK];
                for (int j = 0; j < BF16_BLOCK; j++) {
                    int at = j % 2 * PAIRS + j / 2;
                    row[j] = x[at * MR + r], column[j] = y[at * NR + i];
                }
                float *to = c + r * ldc + i;
                *to = bf16_block(row, column, accumulate ? *to : 0);
            }
}
#endif

#define SHAPE                                                                                      \
    .instruction = "fp32 fma", .rows = MR, .columns = NR, .row_panels = 20, .row_panels_max = 170, \
    .column_panels_max = 24

const struct micro_kernel chain_kernel = {SHAPE,
                                          .k_grain = 1,
                                          .bytes = sizeof(float),
                                          .depth_max = 512,
                                          .pack_a = chain_pack_a,
                                          .pack_b = chain_pack_b,
                                          .tile = chain_tile};
const struct micro_kernel bf16_fma_kernel = {SHAPE,
                                             .k_grain = BF16_BLOCK,
                                             .bytes = sizeof(float),
                                             .depth_max = 512,
                                             .pack_a = fma_pack_a,
                                             .pack_b = fma_pack_b,
                                             .tile = fma_tile};

// ---------------------------------------------------------------- pairs
#define NO_PAIRS "this processor, or what the program was built for (ARCH=), has no AVX512_BF16"
#if HAS_PAIRS
// Pairs (high: k, low: k + 2) of the even values of k, then of the odd ones.
VEC_INLINE void place_pairs(const vecf pair[PAIRS], int width, int column, void *block) {
    float *out = (float *)block + column;
    for (int j = 0; j < PAIRS; j += 2)
        vec_store_f32(out + j / 2 * width, (vecf)(((vecu)pair[j] << 16) | ((vecu)pair[j + 1] & 0xffffu)));
    for (int j = 0; j < PAIRS; j += 2)
        vec_store_f32(out + (PAIRS + j) / 2 * width,
                      (vecf)(((vecu)pair[j] & 0xffff0000u) | ((vecu)pair[j + 1] >> 16)));
}
// Rows of a panel. The tile computes AT_ONCE of them together, which is 8 vectors. Three accumulators per
// vector (even chain, odd chain, c) fit the registers, so no sum waits in memory. That is a fifth faster here
// than two_chains, because a chain has only 8 steps.
#define PAIR_ROWS 16
#define AT_ONCE   4
static void pairs_pack_a(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_bf16(x, rows, depth, PAIR_ROWS, place_pairs, PAIR_ROWS * PAIRS * sizeof(float), panel);
}
static void pairs_pack_b(const struct operand *x, int64_t rows, int64_t depth, void *panel) {
    pack_bf16(x, rows, depth, NR, place_pairs, NR * PAIRS * sizeof(float), panel);
}

VEC_INLINE void add_pairs(vecf *sum, vecf x, vecf y) {
    *sum = (vecf)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)x, (__m512bh)y);
}

VEC_INLINE void pair_rows(const float *a, const float *b, int64_t depth, float *c, int64_t ldc,
                          bool accumulate) {
    vecf sum[AT_ONCE][2];
    TILE_UNROLL
    for (int r = 0; r < AT_ONCE; r++)
        for (int i = 0; i < 2; i++) sum[r][i] = accumulate ? vec_load_f32(c + r * ldc + i * VEC) : (vecf){0};
    for (int64_t k = 0; k < depth; k += BF16_BLOCK) {
        vecf chains[2][AT_ONCE][2] = {{{{0}}}};
        for (int step = 0; step < PAIRS / 2; step++, a += PAIR_ROWS, b += NR) {
            TILE_UNROLL
            for (int odd = 0; odd < 2; odd++) {
                const float *x = a + odd * PAIRS / 2 * PAIR_ROWS, *y = b + odd * PAIRS / 2 * NR;
                vecf y0 = vec_load_f32(y), y1 = vec_load_f32(y + VEC);
                TILE_UNROLL
                for (int r = 0; r < AT_ONCE; r++) {
                    vecf row = vec_splat(x + r);
                    add_pairs(&chains[odd][r][0], row, y0);
                    add_pairs(&chains[odd][r][1], row, y1);
                }
            }
        }
        a += PAIRS / 2 * PAIR_ROWS, b += PAIRS / 2 * NR;
        TILE_UNROLL
        for (int r = 0; r < AT_ONCE; r++)
            for (int i = 0; i < 2; i++) sum[r][i] += chains[0][r][i] + chains[1][r][i];
    }
    TILE_UNROLL
    for (int r = 0; r < AT_ONCE; r++)
        for (int i = 0; i < 2; i++) vec_store_f32(c + r * ldc + i * VEC, sum[r][i]);
}

static __attribute__((noinline)) void two_chains_pairs(const float *a, const float *b, int64_t rows_needed,
                                                       int64_t depth, float *c, int64_t ldc,
                                                       bool accumulate) {
    for (int64_t r = 0; r < rows_needed; r += AT_ONCE)
        pair_rows(a + r, b, depth, c + r * ldc, ldc, accumulate);
}
static void pairs_tile(const void *a, const void *b, int64_t rows_needed, int64_t depth, float *c,
                       int64_t ldc, bool accumulate) {
    flushed(two_chains_pairs, a, b, rows_needed, depth, c, ldc, accumulate);
}

static const char *pairs_unsupported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") ? NULL : NO_PAIRS;
}
// vdpbf16ps is twice as fast as fma on AMD since Zen 4 and on Cooper Lake. It is half as fast on Intel since
// Sapphire Rapids (measured), whose cores have AMX for bf16.
static bool pairs_preferred(void) { return !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake"); }

const struct micro_kernel bf16_avx512_bf16_kernel = {.instruction = "vdpbf16ps, pairs of bf16",
                                                     .unsupported = pairs_unsupported,
                                                     .preferred = pairs_preferred,
                                                     .rows = PAIR_ROWS,
                                                     .columns = NR,
                                                     .row_panels = 16,
                                                     .row_panels_max = 120,
                                                     .column_panels_max = 24,
                                                     .k_grain = BF16_BLOCK,
                                                     .bytes = sizeof(uint16_t),
                                                     .depth_max = 1024,
                                                     .pack_a = pairs_pack_a,
                                                     .pack_b = pairs_pack_b,
                                                     .tile = pairs_tile};
#else
static const char *pairs_unsupported(void) { return NO_PAIRS; }
const struct micro_kernel bf16_avx512_bf16_kernel = {.unsupported = pairs_unsupported};
#endif
