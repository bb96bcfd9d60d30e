// Blocked matrix product over packed fp32 panels (Goto & van de Geijn 2008), with the conversion of
// 16-bit operands folded into the packing and bias, accumulation and rounding into the last store.
//
// One thread's region of c, cut so that each packed part stays in the cache its reader needs it in:
//
//     rows: superblocks of ROWS_MAX        columns: blocks of COLUMNS_MAX      k: passes of <= DEPTH_MAX
//     b block  (depth x COLUMNS_MAX) packed once a pass            second or third level
//     a block  (ROWS_BLOCK x depth) packed once a column block     second level
//     b panel  (depth x NR) stays while all a panels pass by       first or second level
//
// "Depth" counts steps of the inner product: one element of k, or a pair of them in bf16 (PAIRS).
// Sums of several passes meet in `partial` in fp32, in the order of k.
#include "kernels/cpu/gemm/gemm.h"

#include <assert.h>
#include <stdatomic.h>

#include "kernels/cpu/gemm/gemm_kernel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/team.h"

#define ROWS_MAX     (170 * MR)
#define ROWS_BLOCK   (20 * MR)
#define COLUMNS_MAX  (24 * NR)
#define DEPTH_MAX    512
#define DEPTH_TO_ASK 128

struct region {
    int64_t m0, m1, n0, n1;
};

struct blocks {
    float *a, *b, *partial;  // partial: (ROWS_MAX, COLUMNS_MAX)
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

// Constants at compile time: the type and how it is multiplied. pairs: a step is two elements of k. swapped:
// a step is one element of k, the second of each pair first, with subnormal numbers as zero.
struct kind {
    enum dtype t;
    bool pairs, swapped;
};

// One pass over k: [k0, k0 + count), in `depth` steps.
struct pass {
    int64_t k0, count, depth;
    bool first, last;
};

VEC_INLINE int64_t a_panel_floats(int64_t depth) { return MR * depth + A_SLACK; }

// A packed panel of `width` and `count` steps: exchanges steps 0 and 1, 2 and 3, ..; an odd last one comes
// after a step of zeros, as vdpbf16ps sees it.
static void swap_pairs(float *panel, int64_t width, int64_t count) {
    if (count % 2) memset(panel + count * width, 0, (size_t)width * sizeof *panel);
    for (int64_t k = 0; k < count; k += 2)
        for (int64_t i = 0; i < width; i++) {
            float *first = panel + k * width + i, kept = *first;
            *first = first[width];
            first[width] = kept;
        }
}

// The processor's modes DAZ (subnormal inputs are zero) and FTZ (subnormal results become zero): on, and back
// to what flush_begin returned.
static unsigned flush_begin(void) {
#if defined(__SSE2__)
    unsigned modes = _mm_getcsr();
    _mm_setcsr(modes | 0x8040u);
    return modes;
#else
    return 0;
#endif
}

static void flush_end(unsigned modes) {
#if defined(__SSE2__)
    _mm_setcsr(modes);
#else
    (void)modes;
#endif
}

// gemm_tile is never inlined, so no arithmetic crosses the change of modes.
static void flushed_tile(const float *a, const float *b, int64_t depth, float *tile) {
    unsigned modes = flush_begin();
    gemm_tile(a, MR, b, depth, tile, NR);
    flush_end(modes);
}

// The destination of finished tiles: a copy of g's and p's fields, so that the compiler knows that no store of a
// result changes them.
struct finish {
    char *c;
    const void *bias;
    int64_t ldc;
    bool accumulate, first, last;
};

VEC_INLINE struct finish finish_of(const struct matmul_args *g, const struct pass *p) {
    return (struct finish){g->c, g->bias, g->ldc, g->accumulate, p->first, p->last};
}

// Adds earlier passes, the bias and the accumulated value to VEC (or n < VEC) elements of a tile and stores
// them.
VEC_INLINE void finish_vector(const struct finish f, enum dtype t, vecf v, float *partial, int64_t i,
                              int64_t j, int64_t n) {
    int64_t at = i * f.ldc + j;
    if (!f.first) v += vec_load_f32(partial);
    if (!f.last) {
        vec_store_f32(partial, v);
    } else if (n == VEC) {
        if (f.bias) v += vec_load(t, f.bias, j);
        if (f.accumulate) v += vec_load(t, f.c, at);
        vec_store(t, f.c, at, v);
    } else {
        if (f.bias) v += vec_load_part(t, f.bias, j, n);
        if (f.accumulate) v += vec_load_part(t, f.c, at, n);
        vec_store_part(t, f.c, at, n, v);
    }
}

VEC_INLINE void finish_tile(const struct finish f, enum dtype t, const float *tile, float *partial, int64_t i,
                            int64_t j, int64_t rows, int64_t columns) {
    if (columns == NR) {
        for (int64_t r = 0; r < rows; r++)
            for (int c = 0; c < NR; c += VEC)
                finish_vector(f, t, vec_load_f32(tile + r * NR + c), partial + r * COLUMNS_MAX + c, i + r,
                              j + c, VEC);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += VEC)
            finish_vector(f, t, vec_load_f32(tile + r * NR + c), partial + r * COLUMNS_MAX + c, i + r, j + c,
                          min64(VEC, columns - c));
}

// Prefetches what finish_tile will read and write while the tile is still being computed: its rows lie so far
// apart that the hardware's prefetchers do not follow. A tile of few steps is finished before a prefetch
// could help.
VEC_INLINE void ask_for_tile(const struct finish f, enum dtype t, const float *partial, int64_t depth,
                             int64_t i, int64_t j, int64_t rows) {
    size_t size = dtype_size(t), line = 64;
    if (depth < DEPTH_TO_ASK) return;
    for (int64_t r = 0; r < rows; r++) {
        const char *c = f.c + (size_t)((i + r) * f.ldc + j) * size;
        for (size_t at = 0; at < NR * sizeof *partial && !(f.first && f.last); at += line)
            __builtin_prefetch((const char *)(partial + r * COLUMNS_MAX) + at, 1);
        for (size_t at = 0; at < NR * size && f.last; at += line) __builtin_prefetch(c + at, 1);
    }
}

// c rows [i0, i1), columns [j0, j1) against packed b: packs the a block and runs its tiles.
VEC_INLINE void run_rows(const struct matmul_args *g, struct kind kind, const struct pass *p,
                         const struct blocks *s, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
                         float *partial) {
    int64_t row_stride = g->trans_a ? 1 : g->lda, k_stride = g->trans_a ? g->lda : 1;
    for (int64_t i = i0; i < i1; i += MR) {
        int64_t start = i * row_stride + p->k0 * k_stride, rows = min64(MR, i1 - i);
        float *panel = s->a + (i - i0) / MR * a_panel_floats(p->depth);
        if (kind.pairs)
            pack_pairs_a((const uint16_t *)g->a + start, row_stride, k_stride, rows, p->count, panel);
        else
            pack_a(kind.t, g->a, start, row_stride, k_stride, rows, p->count, panel);
        if (kind.swapped) swap_pairs(panel, MR, p->count);
    }
    const struct finish f = finish_of(g, p);
    _Alignas(64) float tile[MR * NR];
    for (int64_t j = j0; j < j1; j += NR)
        for (int64_t i = i0; i < i1; i += MR) {
            const float *a = s->a + (i - i0) / MR * a_panel_floats(p->depth), *b = s->b + (j - j0) * p->depth;
            float *sums = partial + (i - i0) * COLUMNS_MAX + (j - j0);
            ask_for_tile(f, kind.t, sums, p->depth, i, j, min64(MR, i1 - i));
            if (kind.swapped)
                flushed_tile(a, b, p->depth, tile);
            else
                (kind.pairs ? gemm_tile_pairs : gemm_tile)(a, MR, b, p->depth, tile, NR);
            finish_tile(f, kind.t, tile, sums, i, j, min64(MR, i1 - i), min64(NR, j1 - j));
        }
}

VEC_INLINE void pack_columns(const struct matmul_args *g, struct kind kind, const struct pass *p, float *b,
                             int64_t j0, int64_t j1) {
    int64_t k_stride = g->trans_b ? 1 : g->ldb, column_stride = g->trans_b ? g->ldb : 1;
    for (int64_t j = j0; j < j1; j += NR) {
        int64_t start = p->k0 * k_stride + j * column_stride, columns = min64(NR, j1 - j);
        float *panel = b + (j - j0) * p->depth;
        if (kind.pairs)
            pack_pairs_b((const uint16_t *)g->b + start, k_stride, column_stride, columns, p->count, panel);
        else
            pack_b(kind.t, g->b, start, k_stride, column_stride, columns, p->count, panel);
        if (kind.swapped) swap_pairs(panel, NR, p->count);
    }
}

VEC_INLINE void run_region(const struct matmul_args *g, struct kind kind, struct region r,
                           const struct blocks *s) {
    // Both ways of pairs cut k alike; a step of the swapped way is one element all the same.
    int64_t a_step = kind.pairs || kind.swapped ? 2 : 1, step = kind.swapped ? 1 : a_step;
    int64_t passes = (g->k + a_step * DEPTH_MAX - 1) / (a_step * DEPTH_MAX);
    int64_t count = ((g->k + passes - 1) / passes + a_step - 1) / a_step * a_step;
    for (int64_t i0 = r.m0; i0 < r.m1; i0 += ROWS_MAX)
        for (int64_t j0 = r.n0; j0 < r.n1; j0 += COLUMNS_MAX) {
            int64_t i1 = min64(i0 + ROWS_MAX, r.m1), j1 = min64(j0 + COLUMNS_MAX, r.n1);
            for (int64_t k0 = 0; k0 < g->k; k0 += count) {
                struct pass p = {k0, min64(count, g->k - k0), 0, k0 == 0, k0 + count >= g->k};
                p.depth = (p.count + a_step - 1) / a_step * (a_step / step);
                pack_columns(g, kind, &p, s->b, j0, j1);
                for (int64_t i = i0; i < i1; i += ROWS_BLOCK)
                    run_rows(g, kind, &p, s, i, min64(i + ROWS_BLOCK, i1), j0, j1,
                             s->partial + (i - i0) * COLUMNS_MAX);
            }
        }
}

typedef void region_fn(const struct matmul_args *g, struct region r, const struct blocks *s);

static void region_f32(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){.t = DT_F32}, r, s);
}
static void region_bf16(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){.t = DT_BF16}, r, s);
}
static void region_f16(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){.t = DT_F16}, r, s);
}
static void region_bf16_pairs(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){.t = DT_BF16, .pairs = true}, r, s);
}
static void region_bf16_swapped(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){.t = DT_BF16, .swapped = true}, r, s);
}

// Carves this thread's scratch and runs one region.
static int run_region_any(const struct matmul_args *g, region_fn *run, struct region r) {
    if (r.m0 >= r.m1 || r.n0 >= r.n1) return 0;
    int64_t depth = min64(g->k + 1, run == region_bf16_swapped ? 2 * DEPTH_MAX : DEPTH_MAX),
            rows = min64(r.m1 - r.m0, ROWS_MAX), columns = r.n1 - r.n0;
    int64_t a_floats = (min64(rows, ROWS_BLOCK) + MR - 1) / MR * a_panel_floats(depth);
    int64_t b_floats = min64((columns + NR - 1) / NR * NR, COLUMNS_MAX) * depth;
    int64_t partial_floats = g->k > DEPTH_MAX ? rows * COLUMNS_MAX + VEC : 0;
    a_floats = (a_floats + 63) / 64 * 64;
    b_floats = (b_floats + 63) / 64 * 64;
    float *p = thread_scratch((size_t)(a_floats + b_floats + partial_floats) * sizeof(float));
    if (!p) return -1;
    run(g, r, &(struct blocks){p, p + a_floats, p + a_floats + b_floats});
    return 0;
}

// Columns of a grid of `threads` regions that packs the fewest elements: each region packs its own
// rows of a and columns of b.
static int grid_columns(const struct matmul_args *g, int threads) {
    int best = 1;
    double best_cost = 0;
    for (int columns = 1; columns <= threads; columns++) {
        if (threads % columns) continue;
        double rows_each = (double)((g->m + MR - 1) / MR + threads / columns - 1) / (threads / columns) * MR;
        double columns_each = (double)((g->n + NR - 1) / NR + columns - 1) / columns * NR;
        double cost = rows_each * columns_each * 0.02 + rows_each + columns_each;
        if (columns == 1 || cost < best_cost) {
            best = columns;
            best_cost = cost;
        }
    }
    return best;
}

struct grid {
    const struct matmul_args *g;
    region_fn *run;
    int regions, columns;
    atomic_bool failed;
};

static void run_part(void *arg, int index, int count) {
    struct grid *grid = arg;
    for (int i = index; i < grid->regions; i += count) {
        struct region r;
        parallel_range(grid->g->m, MR, i / grid->columns, grid->regions / grid->columns, &r.m0, &r.m1);
        parallel_range(grid->g->n, NR, i % grid->columns, grid->columns, &r.n0, &r.n1);
        if (run_region_any(grid->g, grid->run, r)) atomic_store(&grid->failed, true);
    }
}

static int run_grid(int threads, const struct matmul_args *args, region_fn *run, const char **why) {
    struct matmul_args strided = *args;
    const struct matmul_args *g = &strided;
    strided.lda = matmul_lda(args);
    strided.ldb = matmul_ldb(args);
    strided.ldc = matmul_ldc(args);
    assert(g->m > 0 && g->n > 0 && g->k > 0);
    if ((double)g->m * (double)g->n * (double)g->k < 32768.0) threads = 1;  // less than a team's start costs
    struct grid grid = {.g = g, .run = run, .regions = threads, .columns = grid_columns(g, threads)};
    team_run(threads, run_part, &grid);
    if (atomic_load(&grid.failed)) *why = "out of host memory for the blocks of a matrix product";
    return atomic_load(&grid.failed) ? -1 : 0;
}

int gemm_blocked(int threads, const struct matmul_args *g, const char **why) {
    return run_grid(threads, g,
                    g->dt == DT_F32    ? region_f32
                    : g->dt == DT_BF16 ? region_bf16
                                       : region_f16,
                    why);
}

bool gemm_has_pairs(void) {
#if defined(__x86_64__) && GEMM_HAS_PAIRS
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

bool gemm_can_pairs(void) {
#if defined(__FMA__)
    return true;
#else
    return false;
#endif
}

bool gemm_pairs_are_faster(void) {
#if defined(__x86_64__)
    return gemm_has_pairs() && (!__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake"));
#else
    return false;
#endif
}

int gemm_pairs(int threads, enum pairs_way way, const struct matmul_args *g, const char **why) {
    assert(g->dt == DT_BF16 && (way == PAIRS_BY_FMA ? gemm_can_pairs() : gemm_has_pairs()));
    return run_grid(threads, g, way == PAIRS_BY_FMA ? region_bf16_swapped : region_bf16_pairs, why);
}

// One step of pairs in VEC lanes. Functions of their own, as gemm_tile.
static __attribute__((noipa)) void step_by_instruction(const float *x, const float *y, float *sum) {
    vec_store_f32(sum, gemm_step(GEMM_HAS_PAIRS, vec_load_f32(x), vec_load_f32(y), vec_load_f32(sum)));
}
static __attribute__((noipa)) void step_by_fma(const float *x, const float *y, float *sum) {
    vecu a = (vecu)vec_load_f32(x), b = (vecu)vec_load_f32(y);
    vecf s = vec_fma((vecf)(a & 0xffff0000u), (vecf)(b & 0xffff0000u), vec_load_f32(sum));
    vec_store_f32(sum, vec_fma((vecf)(a << 16), (vecf)(b << 16), s));
}

// Bits of numbers below 2, subnormal ones among them, or of fp32's near 1.
static uint32_t probe_bits(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    uint32_t bits = (uint32_t)(*state >> 32), choice = (uint32_t)(*state >> 30) & 3;
    return choice == 0 ? (bits & 0x80ff80ffu) | 0x3f003f00u : bits & 0xbfffbfffu;
}

bool gemm_pairs_agree(void) {
    uint64_t state = 1;
    if (!gemm_has_pairs() || !gemm_can_pairs()) return false;
    for (int round = 0; round < 512; round++) {
        float x[VEC], y[VEC], sum[2][VEC];
        for (int i = 0; i < VEC; i++) {
            uint32_t start = probe_bits(&state);
            x[i] = bits_to_f32(probe_bits(&state));
            y[i] = bits_to_f32(probe_bits(&state));
            sum[0][i] = sum[1][i] = round % 4 ? bits_to_f32(start) : 0.0f;
        }
        step_by_instruction(x, y, sum[0]);
        unsigned modes = flush_begin();
        step_by_fma(x, y, sum[1]);
        flush_end(modes);
        if (memcmp(sum[0], sum[1], sizeof sum[0]) != 0) return false;
    }
    return true;
}
