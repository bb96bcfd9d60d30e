// The matrix product of the cpu backend: blocked, on packed panels (micro_kernel.h); fp32, bf16 or fp16 operands, fp32
// arithmetic, one rounding of the result. Packing converts 16-bit operands; the last store adds bias or c and rounds.
// The bits depend only on type and shape: not on the micro-kernel, the number of threads, the width of the vectors, or earlier
// work.
//
// One thread's region of c is cut so that each packed block stays in a cache:
//
//     rows: superblocks of row_panels_max     columns: blocks of column_panels_max     k: passes of <= depth_max
//     b block  (depth x column_panels_max) packed once per pass            second or third level
//     a block  (row_panels x depth) packed once per column block           second level
//     b panel  (depth x columns) used by all a panels of the block         first or second level
//
// Between passes the sums are kept in `partial`, in fp32, and the next pass adds to them.
#include <assert.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/micro_kernel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/vec.h"

#define TILE_MAX     32   // rows and columns of the largest tile
#define DEPTH_TO_ASK 128  // below this depth a tile ends before a prefetch helps

struct region {
    int64_t m0, m1, n0, n1;
};

// A thread's product.
struct product {
    const struct micro_kernel *micro;
    const struct matmul_args *g;
    struct operand a, b;
    char *a_block, *b_block;
    float *partial;     // (row_panels_max * rows, ldp); NULL if there is one pass
    int64_t ldp;        // column_panels_max * columns
    int64_t k0, depth;  // of this pass
    bool first, last;
};

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t panels(int64_t n, int64_t width) { return (n + width - 1) / width; }

// The operand that begins at element (r, k) of x.
static struct operand part_of(const struct operand *x, int64_t r, int64_t k) {
    struct operand part = *x;
    part.p = (const char *)x->p + (size_t)(r * x->row_stride + k * x->k_stride) * dtype_size(x->t);
    return part;
}

// The destination of finished tiles: copies of g's fields, so that the compiler knows that no store changes
// them.
struct finish {
    char *c;
    const void *bias;
    int64_t ldc;
    bool accumulate;
};

// c(rows, columns) at (i, j) = sums + bias, or sums + c.
VEC_INLINE void finish_tile(enum dtype t, const struct finish f, const float *sums, int64_t lds, int64_t i,
                            int64_t j, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (i + r) * f.ldc + j, x = 0;
        for (; x + VEC <= columns; x += VEC) {
            vecf v = vec_load_f32(sums + r * lds + x);
            if (f.bias) v += vec_load(t, f.bias, j + x);
            if (f.accumulate) v += vec_load(t, f.c, at + x);
            vec_store(t, f.c, at + x, v);
        }
        if (x < columns) {
            vecf v = vec_load_f32(sums + r * lds + x);
            if (f.bias) v += vec_load_part(t, f.bias, j + x, columns - x);
            if (f.accumulate) v += vec_load_part(t, f.c, at + x, columns - x);
            vec_store_part(t, f.c, at + x, columns - x, v);
        }
    }
}

// Prefetches c and the sums of the tile at (i, j), just before its product runs. Its rows are too far apart for
// the hardware's prefetchers.
static void ask_for_tile(const struct product *p, const float *sums, int64_t i, int64_t j, int64_t rows) {
    const struct matmul_args *g = p->g;
    int64_t size = (int64_t)dtype_size(g->dt), columns = p->micro->columns;
    if (p->depth < DEPTH_TO_ASK) return;
    for (int64_t r = 0; r < rows; r++) {
        const char *c = (const char *)g->c + ((i + r) * g->ldc + j) * size;
        for (int64_t at = 0; at < columns && p->partial; at += 16)
            __builtin_prefetch(sums + r * p->ldp + at, 1);
        for (int64_t at = 0; at < columns * size && p->last; at += 64) __builtin_prefetch(c + at, 1);
    }
}

// c rows [i0, i1), columns [j0, j1): packs the a block and runs its tiles against packed b.
static void run_rows(const struct product *p, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
                     float *partial) {
    const struct micro_kernel *micro = p->micro;
    const struct matmul_args *g = p->g;
    const struct finish f = {g->c, g->bias, g->ldc, g->accumulate};
    size_t a_panel = panel_bytes(micro, micro->rows, p->depth),
           b_panel = panel_bytes(micro, micro->columns, p->depth);
    _Alignas(64) float tile[TILE_MAX * TILE_MAX];
    for (int64_t i = i0; i < i1; i += micro->rows) {
        struct operand a = part_of(&p->a, i, p->k0);
        micro->pack_a(&a, min64(micro->rows, i1 - i), p->depth,
                      p->a_block + (size_t)((i - i0) / micro->rows) * a_panel);
    }
    for (int64_t j = j0; j < j1; j += micro->columns)
        for (int64_t i = i0; i < i1; i += micro->rows) {
            int64_t rows = min64(micro->rows, i1 - i), lds = partial ? p->ldp : micro->columns;
            float *sums = partial ? partial + (i - i0) * p->ldp + (j - j0) : tile;
            ask_for_tile(p, sums, i, j, rows);
            micro->tile(p->a_block + (size_t)((i - i0) / micro->rows) * a_panel,
                        p->b_block + (size_t)((j - j0) / micro->columns) * b_panel, rows, p->depth, sums, lds,
                        !p->first);
            if (p->last)
                WITH_DTYPE(g->dt, finish_tile, f, sums, lds, i, j, rows, min64(micro->columns, j1 - j));
        }
}

static void run_region(struct product *p, struct region r) {
    const struct micro_kernel *micro = p->micro;
    int64_t k = p->g->k, passes = panels(k, micro->depth_max), count = panels(panels(k, passes), 32) * 32;
    int64_t rows = micro->rows * micro->row_panels_max, a_rows = micro->rows * micro->row_panels;
    for (int64_t i0 = r.m0; i0 < r.m1; i0 += rows)
        for (int64_t j0 = r.n0; j0 < r.n1; j0 += p->ldp) {
            int64_t i1 = min64(i0 + rows, r.m1), j1 = min64(j0 + p->ldp, r.n1);
            for (p->k0 = 0; p->k0 < k; p->k0 += count) {
                p->depth = min64(count, k - p->k0);
                p->first = p->k0 == 0;
                p->last = p->k0 + count >= k;
                for (int64_t j = j0; j < j1; j += micro->columns) {
                    struct operand b = part_of(&p->b, j, p->k0);
                    micro->pack_b(&b, min64(micro->columns, j1 - j), p->depth,
                                  p->b_block + (size_t)((j - j0) / micro->columns) *
                                                   panel_bytes(micro, micro->columns, p->depth));
                }
                for (int64_t i = i0; i < i1; i += a_rows)
                    run_rows(p, i, min64(i + a_rows, i1), j0, j1,
                             p->partial ? p->partial + (i - i0) * p->ldp : NULL);
            }
        }
}

// A grid of regions, one per thread; `columns` is the number of its columns.
struct grid {
    const struct micro_kernel *micro;
    const struct matmul_args *g;
    int regions, columns;
    atomic_bool failed;
};

// Carves the buffers of one region from this thread's scratch, and runs it.
static int run_region_in_scratch(const struct grid *grid, struct region r) {
    const struct micro_kernel *micro = grid->micro;
    const struct matmul_args *g = grid->g;
    if (r.m0 >= r.m1 || r.n0 >= r.n1) return 0;
    int64_t depth = min64(g->k, micro->depth_max), a_panels = panels(r.m1 - r.m0, micro->rows);
    size_t a_bytes = (size_t)min64(a_panels, micro->row_panels) * panel_bytes(micro, micro->rows, depth);
    size_t b_bytes = (size_t)min64(panels(r.n1 - r.n0, micro->columns), micro->column_panels_max) *
                     panel_bytes(micro, micro->columns, depth);
    int64_t ldp = micro->columns * micro->column_panels_max, partial = 0;
    if (g->k > micro->depth_max) partial = min64(a_panels, micro->row_panels_max) * micro->rows * ldp;
    char *memory = thread_scratch(a_bytes + b_bytes + (size_t)partial * sizeof(float));
    if (!memory) return -1;
    struct product p = {.micro = micro,
                        .g = g,
                        .a = {g->a, g->dt, g->trans_a ? 1 : g->lda, g->trans_a ? g->lda : 1},
                        .b = {g->b, g->dt, g->trans_b ? g->ldb : 1, g->trans_b ? 1 : g->ldb},
                        .a_block = memory,
                        .b_block = memory + a_bytes,
                        .partial = partial ? (float *)(memory + a_bytes + b_bytes) : NULL,
                        .ldp = ldp};
    run_region(&p, r);
    return 0;
}

// The number of columns for which a grid of `threads` regions packs the fewest elements. Each region packs its
// own rows of a and columns of b.
static int grid_columns(const struct micro_kernel *micro, const struct matmul_args *g, int threads) {
    int best = 1;
    double best_cost = 0;
    for (int columns = 1; columns <= threads; columns++) {
        if (threads % columns) continue;
        double rows_each = (double)panels(panels(g->m, micro->rows), threads / columns) * micro->rows;
        double columns_each = (double)panels(panels(g->n, micro->columns), columns) * micro->columns;
        double cost = rows_each * columns_each * 0.02 + rows_each + columns_each;
        if (columns == 1 || cost < best_cost) {
            best = columns;
            best_cost = cost;
        }
    }
    return best;
}

static void run_part(void *arg, int index, int count) {
    struct grid *grid = arg;
    if (grid->micro->begin) grid->micro->begin();
    for (int i = index; i < grid->regions; i += count) {
        struct region r;
        parallel_range(grid->g->m, grid->micro->rows, i / grid->columns, grid->regions / grid->columns, &r.m0,
                       &r.m1);
        parallel_range(grid->g->n, grid->micro->columns, i % grid->columns, grid->columns, &r.n0, &r.n1);
        if (run_region_in_scratch(grid, r)) atomic_store(&grid->failed, true);
    }
    if (grid->micro->end) grid->micro->end();
}

// As op_matmul without epilogues. Returns 0, or -1 with *why if the host has no memory for the packed blocks.
static int gemm(int threads, const struct micro_kernel *micro, const struct matmul_args *args,
                const char **why) {
    struct matmul_args g = *args;
    g.lda = matmul_lda(args);
    g.ldb = matmul_ldb(args);
    g.ldc = matmul_ldc(args);
    assert(g.m > 0 && g.n > 0 && g.k > 0);
    if ((double)g.m * (double)g.n * (double)g.k < 32768.0) threads = 1;  // cheaper than starting a team
    struct grid grid = {
        .micro = micro, .g = &g, .regions = threads, .columns = grid_columns(micro, &g, threads)};
    team_run(threads, run_part, &grid);
    if (atomic_load(&grid.failed)) *why = "out of host memory for the blocks of a matrix product";
    return atomic_load(&grid.failed) ? -1 : 0;
}

// An epilogue is a separate pass over what the product has just written or read.
const char *cpu_matmul(int threads, enum cpu_kernel kernel, const struct matmul_args *g) {
    const char *why = NULL;
    struct matmul_args p = *g;
    assert(g->dt == DT_F32 || g->dt == DT_BF16 || g->dt == DT_F16);
    assert(matmul_valid(g));
    struct gelu_args gelu = matmul_gelu(g);
    struct bias_grad_args bias = matmul_bias_grad(g);
    if (g->epilogue == EPILOGUE_GELU) p.c = g->aux;
    if (gemm(threads, micro_kernel_of(g->dt, kernel), &p, &why) != 0) return why;
    if (g->epilogue == EPILOGUE_GELU) return cpu_gelu_fwd(threads, &gelu);
    if (g->epilogue == EPILOGUE_GELU_GRAD) return cpu_gelu_bwd(threads, &gelu);
    if (g->epilogue == EPILOGUE_BIAS_GRAD) return cpu_bias_grad(threads, &bias);
    return NULL;
}
