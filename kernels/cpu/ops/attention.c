// Causal attention, forward and backward, in blocks of BLOCK queries by BLOCK keys, packed for the product's
// micro-kernel.
#include <assert.h>
#include <stdatomic.h>

#include "kernels/bf16_product.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/micro_kernel.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vec.h"
#include "kernels/exact_math.h"
#include "kernels/operations.h"

#define BLOCK    96  // queries or keys of a block: whole tiles of each micro-kernel
#define TILE_MAX 32  // rows and columns of the largest tile

// A sum over keys or queries omits positions that causality makes zero, in whole groups of GROUP positions. A
// group is a block of the bf16 product, and on the diagonal no tile crosses a group's end. So all micro-kernels add the
// same terms. (Added zeros matter: -0 + 0 is not -0, and 0 times infinity is NaN.)
#define GROUP BF16_BLOCK
_Static_assert(BLOCK % GROUP == 0, "a block holds whole groups");

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// One head's vectors in a (B,T,row) tensor: element d of position t is at start + t*row + d.
struct head_view {
    const void *p;
    int64_t start, row;
};

// The micro-kernel by which attention multiplies, and its panel sizes for the head's size and for a block. Probabilities
// and their gradients are the result of one product and the operand of the next. They are rounded to `inner`:
// bf16 for bf16 products, as in FlashAttention on GPUs, else fp32.
struct attention_product {
    const struct micro_kernel *micro;
    enum dtype inner;
    size_t a_of_size, b_of_size;    // bytes of a panel whose depth is the head's size
    size_t a_of_block, b_of_block;  // bytes of a panel whose depth is a block of positions
};

static struct attention_product attention_product_of(enum dtype t, enum cpu_kernel kernel, int64_t size) {
    const struct micro_kernel *micro = micro_kernel_of(t, kernel);
    assert(BLOCK % micro->rows == 0 && BLOCK % micro->columns == 0);
    return (struct attention_product){.micro = micro,
                                      .inner = t == DT_BF16 ? DT_BF16 : DT_F32,
                                      .a_of_size = panel_bytes(micro, micro->rows, size),
                                      .b_of_size = panel_bytes(micro, micro->columns, size),
                                      .a_of_block = panel_bytes(micro, micro->rows, BLOCK),
                                      .b_of_block = panel_bytes(micro, micro->columns, BLOCK)};
}

static int64_t panels(int64_t n, int64_t width) { return (n + width - 1) / width; }

// Operands that begin at position t0. rows_by_position: positions are the rows (or columns), the head's elements are k.
// rows_by_element: the other way round.
static struct operand rows_by_position(enum dtype t, struct head_view v, int64_t t0) {
    return (struct operand){dtype_at(t, v.p, v.start + t0 * v.row), t, v.row, 1};
}
static struct operand rows_by_element(enum dtype t, struct head_view v, int64_t t0) {
    return (struct operand){dtype_at(t, v.p, v.start + t0 * v.row), t, 1, v.row};
}

// Packs `rows` rows of x in panels; the panels begin `bytes` apart.
static void pack_panels(const struct attention_product *m, bool is_a, struct operand x, int64_t rows,
                        int64_t depth, size_t bytes, char *out) {
    int64_t width = is_a ? m->micro->rows : m->micro->columns;
    const char *from = x.p;
    for (int64_t i = 0; i < rows; i += width, out += bytes) {
        x.p = from + (size_t)(i * x.row_stride) * dtype_size(x.t);
        (is_a ? m->micro->pack_a : m->micro->pack_b)(&x, lesser(width, rows - i), depth, out);
    }
}

// For each block of positions: b panels over the block's positions, whose columns are the head's elements.
static void pack_sizes(const struct attention_product *m, enum dtype t, struct head_view v, int64_t seq,
                       int64_t size, char *out) {
    for (int64_t t0 = 0; t0 < seq;
         t0 += BLOCK, out += (size_t)panels(size, m->micro->columns) * m->b_of_block)
        pack_panels(m, false, rows_by_element(t, v, t0), size, lesser(BLOCK, seq - t0), m->b_of_block, out);
}

// The number of rows that a tile computes, from row i of n on.
static int64_t rows_from(const struct micro_kernel *micro, int64_t i, int64_t n, bool on_diagonal) {
    int64_t end = on_diagonal ? lesser(n, round_up(i + 1, GROUP)) : n;
    return lesser(micro->rows, end - i);
}

// Carves scratch from one allocation, 64-byte aligned. base NULL: only counts the bytes.
static inline void *carve(char *base, size_t *bytes, size_t n) {
    char *p = base ? base + *bytes : NULL;
    *bytes += (n + 63) / 64 * 64;
    return p;
}
static inline float *carve_floats(char *base, size_t *bytes, int64_t n) {
    return carve(base, bytes, (size_t)n * sizeof(float));
}

// y(rows, size) of type t from x (rows, ldx), rounded once.
VEC_INLINE void store_rows(enum dtype t, void *y, int64_t start, int64_t row, const float *x, int64_t ldx,
                           int64_t rows, int64_t size) {
    for (int64_t r = 0; r < rows; r++) {
        int64_t d = 0;
        for (; d + VEC <= size; d += VEC) vec_store(t, y, start + r * row + d, vec_load_f32(x + r * ldx + d));
        if (d < size) vec_store_part(t, y, start + r * row + d, size - d, vec_load_f32(x + r * ldx + d));
    }
}

// One task per head and sequence. A task runs on one thread with that thread's scratch.
struct attention_tasks {
    void (*run)(const struct attention_tasks *t, int64_t i, char *scratch);
    const void *args;
    struct attention_product product;
    int64_t count;
    size_t scratch_bytes;
    atomic_bool failed;
};

static inline void attention_run_range(const void *arg, int64_t begin, int64_t end) {
    struct attention_tasks *t = (struct attention_tasks *)arg;
    const struct micro_kernel *micro = t->product.micro;
    char *scratch = thread_scratch(t->scratch_bytes);
    if (!scratch) t->failed = true;
    if (micro->begin) micro->begin();
    for (int64_t i = begin; i < end && scratch; i++) t->run(t, i, scratch);
    if (micro->end) micro->end();
}

// Returns NULL, or the reason of the failure.
static const char *attention_run(int threads, struct attention_tasks *t) {
    for_ranges_dynamic(threads, t->count, 1, attention_run_range, t);
    return t->failed ? "out of host memory for the blocks of attention" : NULL;
}

// ---------------------------------------------------------------- forward
// Causal attention forward after FlashAttention (Dao et al. 2022, algorithm 1; the online softmax is Milakov &
// Gimelshein 2018), one task per sequence and query head.
//
// Scores are stored transposed, S^T (keys, queries). So the softmax processes VEC queries per vector without
// reductions across lanes. The block already has the layout of the a panels of out = P V.
//
//     for each block of queries:  m = -inf, l = 0, o = 0
//         for each block of keys up to the diagonal:
//             s = k q^T ; m' = max(m, scale s) ; p = exp(scale s - m') ; f = exp(m - m')
//             l = f l + sum p ; o = f o + p^T v ; m = m'
//         out = o / l ; lse = m + log l
//
// Working memory of a thread: carve_fwd_work, carve_bwd_work. The caller's buffer holds the row sums of the backward alone:
size_t attn_scratch_bytes(int64_t batch, int64_t seq, int32_t heads, int32_t kv_heads, int32_t head_size) {
    (void)kv_heads;
    (void)head_size;
    return (size_t)(batch * heads * seq) * sizeof(float);  // sum of dout * out of each row, for the backward
}

struct fwd_work {
    struct attention_product m;
    int64_t padded_size;        // D rounded up to whole panels
    char *keys;                 // all keys as panels of a, depth D
    char *values;               // per block of keys: panels of b, depth the block's keys, columns D
    char *queries;              // a block of queries as panels of b, depth D
    char *panel;                // one panel of a, depth a block of keys
    float *scores;              // (BLOCK keys, BLOCK queries)
    void *p;                    // probabilities, the same shape, of type `inner`
    float *out;                 // (BLOCK, padded_size)
    float *max, *sum, *factor;  // (BLOCK)
};

static struct fwd_work carve_fwd_work(const struct attn_fwd_args *a, const struct attention_product *m,
                                      char *base, size_t *bytes) {
    const struct micro_kernel *micro = m->micro;
    int64_t sizes = panels(a->head_size, micro->columns);
    struct fwd_work w = {.m = *m, .padded_size = sizes * micro->columns};
    *bytes = 0;
    w.keys = carve(base, bytes, (size_t)panels(a->seq, micro->rows) * m->a_of_size);
    w.values = carve(base, bytes, (size_t)(panels(a->seq, BLOCK) * sizes) * m->b_of_block);
    w.queries = carve(base, bytes, (size_t)(BLOCK / micro->columns) * m->b_of_size);
    w.panel = carve(base, bytes, m->a_of_block);
    w.scores = carve_floats(base, bytes, BLOCK * BLOCK);
    w.p = m->inner == DT_F32 ? w.scores : carve(base, bytes, BLOCK * BLOCK * dtype_size(m->inner));
    w.out = carve_floats(base, bytes, BLOCK * w.padded_size);
    w.max = carve_floats(base, bytes, BLOCK);
    w.sum = carve_floats(base, bytes, BLOCK);
    w.factor = carve_floats(base, bytes, BLOCK);
    return w;
}

// scores = keys [j0, j0+keys) times the block's queries; tiles wholly above the diagonal are skipped. ahead =
// position of the first query - j0 >= 0.
static void score_block(const struct fwd_work *w, int64_t size, int64_t j0, int64_t keys, int64_t queries,
                        int64_t ahead) {
    const struct micro_kernel *micro = w->m.micro;
    for (int64_t i = 0; i < queries; i += micro->columns)
        for (int64_t j = 0; j < keys && j <= ahead + i + micro->columns - 1; j += micro->rows)
            micro->tile(w->keys + (size_t)((j0 + j) / micro->rows) * w->m.a_of_size,
                        w->queries + (size_t)(i / micro->columns) * w->m.b_of_size,
                        lesser(micro->rows, keys - j), size, w->scores + j * BLOCK + i, BLOCK, false);
}

// Turns scores into probabilities relative to the running maximum; updates max, sum, factor.
VEC_INLINE void softmax_block_of(enum dtype inner, const struct fwd_work *w, float scale, int64_t keys,
                                 int64_t queries, int64_t ahead) {
    veci lane;
    for (int i = 0; i < VEC; i++) lane[i] = i;
    const vecf minus_inf = vec_set(-INFINITY);
    for (int64_t i = 0; i < queries; i += VEC) {
        int64_t seen = lesser(keys, ahead + i + VEC);  // keys that any of these queries may read
        float *column = w->scores + i;
        vecf old = vec_load_f32(w->max + i), max = old;
        for (int64_t j = 0; j < seen; j++) {
            veci allowed = (lane + (int32_t)(ahead + i)) >= (int32_t)j;
            vecf s = vec_select(allowed, vec_load_f32(column + j * BLOCK) * scale, minus_inf);
            vec_store_f32(column + j * BLOCK, s);
            max = vec_max(s, max);
        }
        vecf sum = {0}, factor = vec_exp(old - max);
        for (int64_t j = 0; j < seen; j++) {
            vecf p = vec_exp(vec_load_f32(column + j * BLOCK) - max);
            vec_store(inner, w->p, j * BLOCK + i, p);
            sum += p;
        }
        for (int64_t j = seen; j < keys; j++) vec_store(inner, w->p, j * BLOCK + i, (vecf){0});
        vec_store_f32(w->max + i, max);
        vec_store_f32(w->factor + i, factor);
        vec_store_f32(w->sum + i, vec_fma(vec_load_f32(w->sum + i), factor, sum));
    }
}

static void softmax_block(const struct fwd_work *w, float scale, int64_t keys, int64_t queries,
                          int64_t ahead) {
    if (w->m.inner == DT_F32)
        softmax_block_of(DT_F32, w, scale, keys, queries, ahead);
    else
        softmax_block_of(DT_BF16, w, scale, keys, queries, ahead);
}

// out = factor * out + p^T values
static void value_block(const struct fwd_work *w, int64_t j0, int64_t keys, int64_t queries, int64_t ahead) {
    const struct micro_kernel *micro = w->m.micro;
    const char *values =
        w->values + (size_t)(j0 / BLOCK * (w->padded_size / micro->columns)) * w->m.b_of_block;
    _Alignas(64) float tile[TILE_MAX * TILE_MAX];
    for (int64_t i = 0, rows; i < queries; i += rows) {
        int64_t seen = lesser(keys, ahead + round_up(i + 1, GROUP));
        struct operand p = {dtype_at(w->m.inner, w->p, i), w->m.inner, 1, BLOCK};
        rows = rows_from(micro, i, queries, ahead == 0);
        micro->pack_a(&p, lesser(micro->rows, queries - i), seen, w->panel);
        for (int64_t d = 0; d < w->padded_size; d += micro->columns) {
            micro->tile(w->panel, values + (size_t)(d / micro->columns) * w->m.b_of_block, rows, seen, tile,
                        micro->columns, false);
            for (int64_t r = 0; r < rows; r++) {
                float *out = w->out + (i + r) * w->padded_size + d;
                vecf f = vec_set(w->factor[i + r]);
                for (int64_t c = 0; c < micro->columns; c += VEC)
                    vec_store_f32(out + c, vec_fma(f, vec_load_f32(out + c),
                                                   vec_load_f32(tile + r * micro->columns + c)));
            }
        }
    }
}

VEC_INLINE void run_head(enum dtype t, const struct attn_fwd_args *a, int64_t b, int64_t h,
                         const struct fwd_work *w) {
    int64_t size = a->head_size, group = a->heads / a->kv_heads, row = (a->heads + 2 * a->kv_heads) * size;
    int64_t base = b * a->seq * row;
    struct head_view q = {a->qkv, base + h * size, row};
    struct head_view k = {a->qkv, base + (a->heads + h / group) * size, row};
    struct head_view v = {a->qkv, base + (a->heads + a->kv_heads + h / group) * size, row};
    pack_panels(&w->m, true, rows_by_position(t, k, 0), a->seq, size, w->m.a_of_size, w->keys);
    pack_sizes(&w->m, t, v, a->seq, size, w->values);
    for (int64_t i0 = 0; i0 < a->seq; i0 += BLOCK) {
        int64_t queries = lesser(BLOCK, a->seq - i0);
        pack_panels(&w->m, false, rows_by_position(t, q, i0), queries, size, w->m.b_of_size, w->queries);
        memset(w->out, 0, (size_t)(BLOCK * w->padded_size) * sizeof(float));
        for (int64_t i = 0; i < BLOCK; i++) {
            w->max[i] = -INFINITY;
            w->sum[i] = 0;
        }
        for (int64_t j0 = 0; j0 <= i0; j0 += BLOCK) {
            int64_t keys = lesser(BLOCK, a->seq - j0), ahead = i0 - j0;
            score_block(w, size, j0, keys, queries, ahead);
            softmax_block(w, a->scale, keys, queries, ahead);
            value_block(w, j0, keys, queries, ahead);
        }
        for (int64_t i = 0; i < queries; i++) {
            vecf inverse = vec_set(1.0f / w->sum[i]);
            for (int64_t d = 0; d < w->padded_size; d += VEC) {
                float *o = w->out + i * w->padded_size + d;
                vec_store_f32(o, vec_load_f32(o) * inverse);
            }
            a->lse[(b * a->heads + h) * a->seq + i0 + i] = w->max[i] + (float)exact_log(w->sum[i]);
        }
        store_rows(t, a->out, ((b * a->seq + i0) * a->heads + h) * size, a->heads * size, w->out,
                   w->padded_size, queries, size);
    }
}

// Forward of one query head of one sequence.
static void fwd_task(const struct attention_tasks *t, int64_t i, char *scratch) {
    const struct attn_fwd_args *a = t->args;
    size_t bytes;
    struct fwd_work w = carve_fwd_work(a, &t->product, scratch, &bytes);
    WITH_DTYPE(a->dt, run_head, a, i / a->heads, i % a->heads, &w);
}

const char *cpu_attn_fwd(int threads, enum cpu_kernel kernel, const struct attn_fwd_args *a) {
    assert(a->heads % a->kv_heads == 0 && a->seq < INT32_MAX && a->dt <= DT_F16);
    struct attention_tasks tasks = {
        .run = fwd_task, .args = a, .product = attention_product_of(a->dt, kernel, a->head_size)};
    tasks.count = a->batch * a->heads;
    carve_fwd_work(a, &tasks.product, NULL, &tasks.scratch_bytes);
    return attention_run(threads, &tasks);
}

// ---------------------------------------------------------------- backward
// Causal attention backward after FlashAttention (Dao et al. 2022, algorithm 4), one task per sequence and
// key/value head, so that no other thread adds to its dk and dv. The group's query heads and the blocks of
// queries are processed in order.
//
//     delta_i = sum_d dout_id out_id                               (first, for all rows)
//     for each query head of the group, block of queries i:  dq = 0
//         for each block of keys j up to the diagonal:
//             p = exp(scale q k^T - lse) ; dp = dout v^T ; ds = scale p (dp - delta)
//             dv_j += p^T dout ; dk_j += ds^T q ; dq += ds k
//
// p and ds are stored as (queries, keys), in fp32, and for bf16 products also rounded.
struct bwd_work {
    struct attention_product m;
    int64_t padded_size;      // D rounded up to whole panels
    int64_t padded_seq;       // T rounded up to whole panels of a
    char *keys_t;             // all keys as panels of b, depth D
    char *values_t;           // the same for the values
    char *keys;               // per block of keys: panels of b, depth the block's keys, columns D
    float *dk, *dv;           // (padded_seq, padded_size)
    char *query_a, *dout_a;   // a block of queries as panels of a, depth D
    char *query_b, *dout_b;   // panels of b, depth a block of queries, columns D
    char *panel;              // one panel of a, depth a block of positions
    float *scores, *dscores;  // (BLOCK queries, BLOCK keys)
    void *p, *ds;             // the same, of type `inner`
    float *dq;                // (BLOCK, padded_size)
};

static struct bwd_work carve_bwd_work(const struct attn_bwd_args *a, const struct attention_product *m,
                                      char *base, size_t *bytes) {
    const struct micro_kernel *micro = m->micro;
    int64_t sizes = panels(a->head_size, micro->columns);
    size_t times = (size_t)panels(a->seq, micro->columns) * m->b_of_size,
           inner = BLOCK * BLOCK * dtype_size(m->inner);
    struct bwd_work w = {
        .m = *m, .padded_size = sizes * micro->columns, .padded_seq = round_up(a->seq, micro->rows)};
    *bytes = 0;
    w.keys_t = carve(base, bytes, times);
    w.values_t = carve(base, bytes, times);
    w.keys = carve(base, bytes, (size_t)(panels(a->seq, BLOCK) * sizes) * m->b_of_block);
    w.dk = carve_floats(base, bytes, w.padded_seq * w.padded_size);
    w.dv = carve_floats(base, bytes, w.padded_seq * w.padded_size);
    w.query_a = carve(base, bytes, (size_t)(BLOCK / micro->rows) * m->a_of_size);
    w.dout_a = carve(base, bytes, (size_t)(BLOCK / micro->rows) * m->a_of_size);
    w.query_b = carve(base, bytes, (size_t)sizes * m->b_of_block);
    w.dout_b = carve(base, bytes, (size_t)sizes * m->b_of_block);
    w.panel = carve(base, bytes, m->a_of_block);
    w.scores = carve_floats(base, bytes, BLOCK * BLOCK);
    w.dscores = carve_floats(base, bytes, BLOCK * BLOCK);
    w.p = m->inner == DT_F32 ? w.scores : carve(base, bytes, inner);
    w.ds = m->inner == DT_F32 ? w.dscores : carve(base, bytes, inner);
    w.dq = carve_floats(base, bytes, BLOCK * w.padded_size);
    return w;
}

// A block of scores: queries [i0, i0+queries) by keys [j0, j0+keys), ahead = i0 - j0 >= 0.
struct tile {
    int64_t i0, queries, j0, keys, ahead;
};

// scores = q k^T, dscores = dout v^T; tiles wholly above the diagonal are skipped.
static void bwd_score_block(const struct bwd_work *w, int64_t size, const struct tile *b) {
    const struct micro_kernel *micro = w->m.micro;
    for (int64_t j = 0; j < b->keys; j += micro->columns)
        for (int64_t i = 0; i < b->queries; i += micro->rows) {
            if (j > b->ahead + i + micro->rows - 1) continue;
            int64_t rows_needed = lesser(micro->rows, b->queries - i);
            size_t of_a = (size_t)(i / micro->rows) * w->m.a_of_size,
                   of_b = (size_t)((b->j0 + j) / micro->columns) * w->m.b_of_size;
            micro->tile(w->query_a + of_a, w->keys_t + of_b, rows_needed, size, w->scores + i * BLOCK + j,
                        BLOCK, false);
            micro->tile(w->dout_a + of_a, w->values_t + of_b, rows_needed, size, w->dscores + i * BLOCK + j,
                        BLOCK, false);
        }
}

// p = probabilities, ds = scale p (dscores - delta); zero above the diagonal.
VEC_INLINE void bwd_softmax_block_of(enum dtype inner, const struct bwd_work *w, float scale,
                                     const struct tile *b, const float *lse, const float *delta) {
    veci lane;
    for (int i = 0; i < VEC; i++) lane[i] = i;
    int64_t padded = round_up(b->keys, VEC);
    for (int64_t i = 0; i < b->queries; i++) {
        vecf row_lse = vec_set(lse[b->i0 + i]), row_delta = vec_set(delta[b->i0 + i]);
        const float *scores = w->scores + i * BLOCK, *dscores = w->dscores + i * BLOCK;
        int64_t seen = lesser(padded, round_up(b->ahead + i + 1, VEC)), j = 0;
        for (; j < seen; j += VEC) {
            veci allowed = (lane + (int32_t)j) <= (int32_t)(b->ahead + i);
            vecf prob = vec_exp(vec_load_f32(scores + j) * scale - row_lse);
            vecf grad = prob * (vec_load_f32(dscores + j) - row_delta) * scale;
            vec_store(inner, w->p, i * BLOCK + j, vec_select(allowed, prob, (vecf){0}));
            vec_store(inner, w->ds, i * BLOCK + j, vec_select(allowed, grad, (vecf){0}));
        }
        for (; j < padded; j += VEC) {
            vec_store(inner, w->p, i * BLOCK + j, (vecf){0});
            vec_store(inner, w->ds, i * BLOCK + j, (vecf){0});
        }
    }
}

static void bwd_softmax_block(const struct bwd_work *w, float scale, const struct tile *b, const float *lse,
                              const float *delta) {
    if (w->m.inner == DT_F32)
        bwd_softmax_block_of(DT_F32, w, scale, b, lse, delta);
    else
        bwd_softmax_block_of(DT_BF16, w, scale, b, lse, delta);
}

// out(rows, D) += x y, over `depth` positions, for the first `rows` of x's `all` rows. y: b panels over a
// block.
static void add_product(const struct bwd_work *w, const struct operand *x, int64_t all, int64_t rows,
                        int64_t depth, const char *y, float *out) {
    const struct micro_kernel *micro = w->m.micro;
    micro->pack_a(x, lesser(micro->rows, all), depth, w->panel);
    for (int64_t d = 0; d < w->padded_size; d += micro->columns, y += w->m.b_of_block) {
        _Alignas(64) float tile[TILE_MAX * TILE_MAX];
        micro->tile(w->panel, y, rows, depth, tile, micro->columns, false);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < micro->columns; c += VEC) {
                float *to = out + r * w->padded_size + d + c;
                vec_store_f32(to, vec_load_f32(to) + vec_load_f32(tile + r * micro->columns + c));
            }
    }
}

// out(keys, D) += x^T y for x (queries, keys): dv from p and dout, dk from ds and q.
static void key_gradient(const struct bwd_work *w, const struct tile *b, const void *x, const char *y,
                         float *out) {
    const struct micro_kernel *micro = w->m.micro;
    enum dtype t = w->m.inner;
    for (int64_t j = 0, rows; j < b->keys; j += rows) {
        int64_t first = b->ahead ? 0 : j / GROUP * GROUP;  // earlier queries see none of these keys
        struct operand columns = {dtype_at(t, x, first * BLOCK + j), t, 1, BLOCK};
        rows = rows_from(micro, j, b->keys, b->ahead == 0);
        add_product(w, &columns, b->keys - j, rows, b->queries - first,
                    y + (size_t)first * (size_t)(micro->columns * micro->bytes),
                    out + (b->j0 + j) * w->padded_size);
    }
}

// dq += ds k
static void query_gradient(const struct bwd_work *w, const struct tile *b) {
    const struct micro_kernel *micro = w->m.micro;
    const char *keys =
        w->keys + (size_t)(b->j0 / BLOCK * (w->padded_size / micro->columns)) * w->m.b_of_block;
    for (int64_t i = 0, rows; i < b->queries; i += rows) {
        int64_t seen = lesser(b->keys, b->ahead + round_up(i + 1, GROUP));
        struct operand ds = {dtype_at(w->m.inner, w->ds, i * BLOCK), w->m.inner, BLOCK, 1};
        rows = rows_from(micro, i, b->queries, b->ahead == 0);
        add_product(w, &ds, b->queries - i, rows, seen, keys, w->dq + i * w->padded_size);
    }
}

VEC_INLINE void run_query_head(enum dtype t, const struct attn_bwd_args *a, int64_t b, int64_t h,
                               const struct bwd_work *w) {
    int64_t size = a->head_size, row = (a->heads + 2 * a->kv_heads) * size;
    struct head_view q = {a->qkv, b * a->seq * row + h * size, row};
    struct head_view dout = {a->dout, (b * a->seq * a->heads + h) * size, a->heads * size};
    const float *lse = a->lse + (b * a->heads + h) * a->seq;
    const float *delta = (const float *)a->scratch + (b * a->heads + h) * a->seq;
    for (int64_t i0 = 0; i0 < a->seq; i0 += BLOCK) {
        int64_t queries = lesser(BLOCK, a->seq - i0);
        pack_panels(&w->m, true, rows_by_position(t, q, i0), queries, size, w->m.a_of_size, w->query_a);
        pack_panels(&w->m, true, rows_by_position(t, dout, i0), queries, size, w->m.a_of_size, w->dout_a);
        pack_panels(&w->m, false, rows_by_element(t, q, i0), size, queries, w->m.b_of_block, w->query_b);
        pack_panels(&w->m, false, rows_by_element(t, dout, i0), size, queries, w->m.b_of_block, w->dout_b);
        memset(w->dq, 0, (size_t)(BLOCK * w->padded_size) * sizeof(float));
        for (int64_t j0 = 0; j0 <= i0; j0 += BLOCK) {
            struct tile s = {i0, queries, j0, lesser(BLOCK, a->seq - j0), i0 - j0};
            bwd_score_block(w, size, &s);
            bwd_softmax_block(w, a->scale, &s, lse, delta);
            key_gradient(w, &s, w->p, w->dout_b, w->dv);
            key_gradient(w, &s, w->ds, w->query_b, w->dk);
            query_gradient(w, &s);
        }
        store_rows(t, a->dqkv, q.start + i0 * row, row, w->dq, w->padded_size, queries, size);
    }
}

VEC_INLINE void run_kv_head(enum dtype t, const struct attn_bwd_args *a, int64_t b, int64_t kv,
                            const struct bwd_work *w) {
    int64_t size = a->head_size, group = a->heads / a->kv_heads, row = (a->heads + 2 * a->kv_heads) * size;
    struct head_view k = {a->qkv, b * a->seq * row + (a->heads + kv) * size, row};
    struct head_view v = {a->qkv, k.start + a->kv_heads * size, row};
    pack_panels(&w->m, false, rows_by_position(t, k, 0), a->seq, size, w->m.b_of_size, w->keys_t);
    pack_panels(&w->m, false, rows_by_position(t, v, 0), a->seq, size, w->m.b_of_size, w->values_t);
    pack_sizes(&w->m, t, k, a->seq, size, w->keys);
    memset(w->dk, 0, (size_t)(w->padded_seq * w->padded_size) * sizeof(float));
    memset(w->dv, 0, (size_t)(w->padded_seq * w->padded_size) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) run_query_head(t, a, b, h, w);
    store_rows(t, a->dqkv, k.start, row, w->dk, w->padded_size, a->seq, size);
    store_rows(t, a->dqkv, v.start, row, w->dv, w->padded_size, a->seq, size);
}

// delta of row r of (B,T,H); scratch is (B,H,T).
VEC_INLINE void run_delta(enum dtype t, const struct attn_bwd_args *a, int64_t bt) {
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t start = (bt * a->heads + h) * a->head_size, size = a->head_size, d = 0;
        vecf sum[SUM_WIDTH / VEC] = {{0}};  // element d goes to lane d mod SUM_WIDTH
        for (; d + SUM_WIDTH <= size; d += SUM_WIDTH)
            for (int i = 0; i < SUM_WIDTH / VEC; i++)
                sum[i] = vec_fma(vec_load(t, a->dout, start + d + i * VEC),
                                 vec_load(t, a->out, start + d + i * VEC), sum[i]);
        for (int i = 0; d < size; i++, d += VEC)
            sum[i] = vec_fma(vec_load_part(t, a->dout, start + d, lesser(VEC, size - d)),
                             vec_load_part(t, a->out, start + d, lesser(VEC, size - d)), sum[i]);
        ((float *)a->scratch)[(bt / a->seq * a->heads + h) * a->seq + bt % a->seq] = vec_sum(sum);
    }
}

static void run_deltas(const void *args, int64_t begin, int64_t end) {
    const struct attn_bwd_args *a = args;
    for (int64_t i = begin; i < end; i++) WITH_DTYPE(a->dt, run_delta, a, i);
}

// Backward of one key/value head of one sequence.
static void bwd_task(const struct attention_tasks *t, int64_t i, char *scratch) {
    const struct attn_bwd_args *a = t->args;
    size_t bytes;
    struct bwd_work w = carve_bwd_work(a, &t->product, scratch, &bytes);
    WITH_DTYPE(a->dt, run_kv_head, a, i / a->kv_heads, i % a->kv_heads, &w);
}

const char *cpu_attn_bwd(int threads, enum cpu_kernel kernel, const struct attn_bwd_args *a) {
    assert(a->heads % a->kv_heads == 0 && a->seq < INT32_MAX && a->dt <= DT_F16);
    struct attention_tasks tasks = {
        .run = bwd_task, .args = a, .product = attention_product_of(a->dt, kernel, a->head_size)};
    tasks.count = a->batch * a->kv_heads;
    carve_bwd_work(a, &tasks.product, NULL, &tasks.scratch_bytes);
    for_ranges(threads, a->batch * a->seq, row_grain(a->heads * a->head_size), run_deltas, a);
    return attention_run(threads, &tasks);
}
