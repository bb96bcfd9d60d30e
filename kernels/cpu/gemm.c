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
#include "kernels/cpu/gemm.h"

#include <assert.h>

#include "kernels/cpu/gemm_kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/strides.h"

#define ROWS_MAX    (170 * MR)
#define ROWS_BLOCK  (20 * MR)
#define COLUMNS_MAX (24 * NR)
#define DEPTH_MAX   512

struct region {
    int64_t m0, m1, n0, n1;
};

struct blocks {
    float *a, *b, *partial;  // partial: (ROWS_MAX, COLUMNS_MAX)
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

// What the compiler is told at compile time: the type and how it is multiplied.
struct kind {
    enum dtype t;
    bool pairs;
};

// One pass over k: [k0, k0 + count), in `depth` steps.
struct pass {
    int64_t k0, count, depth;
    bool first, last;
};

VEC_INLINE int64_t a_panel_floats(int64_t depth) { return MR * depth + A_SLACK; }

// Adds what the tile is still missing and puts VEC (or n < VEC) of its elements where they belong.
VEC_INLINE void finish_vector(const struct matmul_args *g, enum dtype t, const struct pass *p, vecf v,
                              float *partial, int64_t i, int64_t j, int64_t n) {
    int64_t at = i * g->ldc + j;
    if (!p->first) v += vec_load_f32(partial);
    if (!p->last) {
        vec_store_f32(partial, v);
    } else if (n == VEC) {
        if (g->bias) v += vec_load(t, g->bias, j);
        if (g->accumulate) v += vec_load(t, g->c, at);
        vec_store(t, g->c, at, v);
    } else {
        if (g->bias) v += vec_load_part(t, g->bias, j, n);
        if (g->accumulate) v += vec_load_part(t, g->c, at, n);
        vec_store_part(t, g->c, at, n, v);
    }
}

VEC_INLINE void finish_tile(const struct matmul_args *g, enum dtype t, const struct pass *p,
                            const float *tile, float *partial, int64_t i, int64_t j, int64_t rows,
                            int64_t columns) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += VEC)
            finish_vector(g, t, p, vec_load_f32(tile + r * NR + c), partial + r * COLUMNS_MAX + c, i + r,
                          j + c, min64(VEC, columns - c));
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
    }
    _Alignas(64) float tile[MR * NR];
    for (int64_t j = j0; j < j1; j += NR)
        for (int64_t i = i0; i < i1; i += MR) {
            gemm_tile_of(kind.pairs, s->a + (i - i0) / MR * a_panel_floats(p->depth), MR,
                         s->b + (j - j0) * p->depth, p->depth, tile, NR);
            finish_tile(g, kind.t, p, tile, partial + (i - i0) * COLUMNS_MAX + (j - j0), i, j,
                        min64(MR, i1 - i), min64(NR, j1 - j));
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
    }
}

VEC_INLINE void run_region(const struct matmul_args *g, struct kind kind, struct region r,
                           const struct blocks *s) {
    int64_t a_step = kind.pairs ? 2 : 1, passes = (g->k + a_step * DEPTH_MAX - 1) / (a_step * DEPTH_MAX);
    int64_t depth = ((g->k + passes - 1) / passes + a_step - 1) / a_step, count = depth * a_step;
    for (int64_t i0 = r.m0; i0 < r.m1; i0 += ROWS_MAX)
        for (int64_t j0 = r.n0; j0 < r.n1; j0 += COLUMNS_MAX) {
            int64_t i1 = min64(i0 + ROWS_MAX, r.m1), j1 = min64(j0 + COLUMNS_MAX, r.n1);
            for (int64_t k0 = 0; k0 < g->k; k0 += count) {
                struct pass p = {k0, min64(count, g->k - k0), 0, k0 == 0, k0 + count >= g->k};
                p.depth = (p.count + a_step - 1) / a_step;
                pack_columns(g, kind, &p, s->b, j0, j1);
                for (int64_t i = i0; i < i1; i += ROWS_BLOCK)
                    run_rows(g, kind, &p, s, i, min64(i + ROWS_BLOCK, i1), j0, j1,
                             s->partial + (i - i0) * COLUMNS_MAX);
            }
        }
}

typedef void region_fn(const struct matmul_args *g, struct region r, const struct blocks *s);

static void region_f32(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){DT_F32, false}, r, s);
}
static void region_bf16(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){DT_BF16, false}, r, s);
}
static void region_f16(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){DT_F16, false}, r, s);
}
static void region_bf16_pairs(const struct matmul_args *g, struct region r, const struct blocks *s) {
    run_region(g, (struct kind){DT_BF16, true}, r, s);
}

// Carves this thread's scratch and runs one region.
static int run_region_any(const struct matmul_args *g, region_fn *run, struct region r) {
    if (r.m0 >= r.m1 || r.n0 >= r.n1) return 0;
    int64_t depth = min64(g->k, DEPTH_MAX), rows = min64(r.m1 - r.m0, ROWS_MAX), columns = r.n1 - r.n0;
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

static int run_grid(int threads, const struct matmul_args *args, region_fn *run, const char **why) {
    struct matmul_args strided = *args;
    const struct matmul_args *g = &strided;
    strided.lda = matmul_lda(args);
    strided.ldb = matmul_ldb(args);
    strided.ldc = matmul_ldc(args);
    assert(g->m > 0 && g->n > 0 && g->k > 0);
    int failed = 0;
    if ((double)g->m * (double)g->n * (double)g->k < 32768.0) threads = 1;  // less than a team's start costs
    int columns = grid_columns(g, threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(| : failed) if (threads > 1)
    for (int i = 0; i < threads; i++) {
        struct region r;
        parallel_range(g->m, MR, i / columns, threads / columns, &r.m0, &r.m1);
        parallel_range(g->n, NR, i % columns, columns, &r.n0, &r.n1);
        failed |= run_region_any(g, run, r) != 0;
    }
    if (failed) *why = "out of host memory for the blocks of a matrix product";
    return failed ? -1 : 0;
}

int gemm_blocked(int threads, const struct matmul_args *g, const char **why) {
    return run_grid(threads, g,
                    g->dt == DT_F32    ? region_f32
                    : g->dt == DT_BF16 ? region_bf16
                                       : region_f16,
                    why);
}

bool gemm_has_pairs(void) { return GEMM_HAS_PAIRS; }

bool gemm_pairs_are_faster(void) {
    if (!GEMM_HAS_PAIRS) return false;
#if defined(__x86_64__)
    __builtin_cpu_init();
    return !__builtin_cpu_is("intel") || __builtin_cpu_is("cooperlake");
#else
    return false;
#endif
}

int gemm_pairs(int threads, const struct matmul_args *g, const char **why) {
    assert(GEMM_HAS_PAIRS && g->dt == DT_BF16);
    return run_grid(threads, g, region_bf16_pairs, why);
}
