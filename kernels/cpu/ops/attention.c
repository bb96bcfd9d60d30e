// Causal attention, forward and backward, in blocks of BLOCK queries by BLOCK keys, packed in fp32.
#include <assert.h>
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gemm/gemm_kernel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/spans.h"
#include "kernels/exact_math.h"
#include "kernels/operations.h"

#define BLOCK 96  // queries, keys: a multiple of MR and of NR
_Static_assert(BLOCK % MR == 0 && BLOCK % NR == 0, "a block holds whole panels of both kinds");

// A sum over keys or queries leaves out the blocks that causality makes zero, in steps of ROW_STEP. That is a
// multiple of every MR, so that the terms that are added do not depend on the width of the vectors (zeros
// count: -0 + 0 is not -0, 0 times infinity is NaN).
#define ROW_STEP 12
_Static_assert(ROW_STEP % MR == 0 && BLOCK % ROW_STEP == 0, "a step holds whole panels");
static inline int64_t step_down(int64_t i) { return i / ROW_STEP * ROW_STEP; }

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

// Where one head's vectors lie in a (B,T,row) tensor: element d of time t is start + t*row + d.
struct head_view {
    const void *p;
    int64_t start, row;
};

// Panels of `width` times, element (d, t) at [t/width][d][t%width], for t in [t0, t0 + count).
// Consecutive panels are `panel` floats apart; missing times are zero.
VEC_INLINE void pack_times_a(enum dtype t, struct head_view v, int64_t t0, int64_t count, int64_t size,
                             int64_t panel, float *out) {
    for (int64_t i = 0; i < count; i += MR)
        pack_a(t, v.p, v.start + (t0 + i) * v.row, v.row, 1, lesser(MR, count - i), size,
               out + i / MR * panel);
}

VEC_INLINE void pack_times_b(enum dtype t, struct head_view v, int64_t t0, int64_t count, int64_t size,
                             float *out) {
    for (int64_t i = 0; i < count; i += NR)
        pack_b(t, v.p, v.start + (t0 + i) * v.row, 1, v.row, lesser(NR, count - i), size, out + i * size);
}

// Panels of NR of the head's elements, element (t, d) at [d/NR][t][d%NR]; count times to a panel.
VEC_INLINE void pack_sizes_b(enum dtype t, struct head_view v, int64_t t0, int64_t count, int64_t size,
                             float *out) {
    for (int64_t d = 0; d < size; d += NR)
        pack_b(t, v.p, v.start + t0 * v.row + d, v.row, 1, lesser(NR, size - d), count, out + d * count);
}

// Scratch is carved from one piece, 64-byte aligned; base NULL only measures.
static inline float *carve(float *base, int64_t *floats, int64_t n) {
    float *p = base ? base + *floats : NULL;
    *floats += round_up(n, 16);
    return p;
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

// Heads of sequences, each a task of one thread with that thread's scratch.
struct attention_tasks {
    void (*run)(const void *args, int64_t i, float *scratch);
    const void *args;
    int64_t count, scratch_floats;
    atomic_bool failed;
};

static inline void attention_run_span(const void *arg, int64_t begin, int64_t end) {
    struct attention_tasks *t = (struct attention_tasks *)arg;
    float *scratch = thread_scratch((size_t)t->scratch_floats * sizeof *scratch);
    if (!scratch) t->failed = true;
    for (int64_t i = begin; i < end && scratch; i++) t->run(t->args, i, scratch);
}

// NULL, or why not.
static const char *attention_run(int threads, struct attention_tasks *t) {
    for_spans_dynamic(threads, t->count, 1, attention_run_span, t);
    return t->failed ? "out of host memory for the blocks of attention" : NULL;
}

// ---------------------------------------------------------------- forward
// Causal attention forward after FlashAttention (Dao et al. 2022, algorithm 1; the online softmax is
// Milakov & Gimelshein 2018), one (sequence, query head) a task.
//
// Scores are kept transposed, S^T (keys, queries): the softmax runs down a column for VEC queries at
// once without reductions across lanes, and the block already has the form of the a panels of out = P V.
//
//     for each block of queries:  m = -inf, l = 0, o = 0
//         for each block of keys up to the diagonal:
//             s = k q^T ; m' = max(m, scale s) ; p = exp(scale s - m') ; f = exp(m - m')
//             l = f l + sum p ; o = f o + p^T v ; m = m'
//         out = o / l ; lse = m + log l
size_t attn_scratch_bytes(int64_t batch, int64_t seq, int32_t heads, int32_t kv_heads, int32_t head_size) {
    (void)kv_heads;
    (void)head_size;
    return (size_t)(batch * heads * seq) * sizeof(float);  // sum of dout * out of each row, for the backward
}

struct fwd_work {
    int64_t a_panel;            // floats of a packed panel of MR keys
    int64_t padded_size;        // D rounded up to NR
    float *keys;                // a panels of all keys
    float *values;              // by block of keys: (padded_size/NR, count, NR)
    float *queries;             // b panels of a block of queries
    float *scores;              // (BLOCK keys, BLOCK queries)
    float *out;                 // (BLOCK, padded_size)
    float *max, *sum, *factor;  // (BLOCK)
};

static struct fwd_work carve_fwd_work(const struct attn_fwd_args *a, float *base, int64_t *floats) {
    struct fwd_work w = {.a_panel = round_up(MR * a->head_size + A_SLACK, 16),
                         .padded_size = round_up(a->head_size, NR)};
    *floats = 0;
    w.keys = carve(base, floats, (a->seq + MR - 1) / MR * w.a_panel);
    w.values = carve(base, floats, a->seq * w.padded_size);
    w.queries = carve(base, floats, BLOCK * a->head_size);
    w.scores = carve(base, floats, BLOCK * BLOCK);
    w.out = carve(base, floats, BLOCK * w.padded_size);
    w.max = carve(base, floats, BLOCK);
    w.sum = carve(base, floats, BLOCK);
    w.factor = carve(base, floats, BLOCK);
    return w;
}

// scores = keys of [j0, j0+keys) times the block's queries; tiles wholly above the diagonal are skipped.
// ahead = first query's time - j0 >= 0.
static void score_block(const struct fwd_work *w, int64_t size, int64_t j0, int64_t keys, int64_t queries,
                        int64_t ahead) {
    for (int64_t i = 0; i < queries; i += NR)
        for (int64_t j = 0; j < keys && j <= ahead + i + NR - 1; j += MR)
            gemm_tile(w->keys + (j0 + j) / MR * w->a_panel, MR, w->queries + i * size, size,
                      w->scores + j * BLOCK + i, BLOCK);
}

// scores -> probabilities relative to the running maximum; updates max, sum, factor.
static void softmax_block(const struct fwd_work *w, float scale, int64_t keys, int64_t queries,
                          int64_t ahead) {
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
            vec_store_f32(column + j * BLOCK, p);
            sum += p;
        }
        for (int64_t j = seen; j < keys; j++) vec_store_f32(column + j * BLOCK, (vecf){0});
        vec_store_f32(w->max + i, max);
        vec_store_f32(w->factor + i, factor);
        vec_store_f32(w->sum + i, vec_fma(vec_load_f32(w->sum + i), factor, sum));
    }
}

// out = factor * out + p^T values
static void value_block(const struct fwd_work *w, int64_t j0, int64_t keys, int64_t queries, int64_t ahead) {
    _Alignas(64) float tile[MR * NR];
    for (int64_t d = 0; d < w->padded_size; d += NR) {
        const float *values = w->values + j0 * w->padded_size + d * keys;
        for (int64_t i = 0; i < queries; i += MR) {
            int64_t seen = lesser(keys, ahead + step_down(i) + ROW_STEP);
            gemm_tile(w->scores + i, BLOCK, values, seen, tile, NR);
            for (int64_t r = 0; r < MR; r++) {
                float *out = w->out + (i + r) * w->padded_size + d;
                vecf f = vec_set(w->factor[i + r]);
                for (int c = 0; c < NR; c += VEC)
                    vec_store_f32(out + c,
                                  vec_fma(f, vec_load_f32(out + c), vec_load_f32(tile + r * NR + c)));
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
    pack_times_a(t, k, 0, a->seq, size, w->a_panel, w->keys);
    for (int64_t j0 = 0; j0 < a->seq; j0 += BLOCK)
        pack_sizes_b(t, v, j0, lesser(BLOCK, a->seq - j0), size, w->values + j0 * w->padded_size);
    for (int64_t i0 = 0; i0 < a->seq; i0 += BLOCK) {
        int64_t queries = lesser(BLOCK, a->seq - i0);
        pack_times_b(t, q, i0, queries, size, w->queries);
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

// One head of one sequence.
static void fwd_task(const void *args, int64_t i, float *scratch) {
    const struct attn_fwd_args *a = args;
    int64_t floats;
    struct fwd_work w = carve_fwd_work(a, scratch, &floats);
    WITH_DTYPE(a->dt, run_head, a, i / a->heads, i % a->heads, &w);
}

const char *cpu_attn_fwd(int threads, const struct attn_fwd_args *a) {
    assert(a->heads % a->kv_heads == 0 && a->seq < INT32_MAX && a->dt <= DT_F16);
    struct attention_tasks tasks = {.run = fwd_task, .args = a, .count = a->batch * a->heads};
    carve_fwd_work(a, NULL, &tasks.scratch_floats);
    return attention_run(threads, &tasks);
}

// ---------------------------------------------------------------- backward
// Causal attention backward after FlashAttention (Dao et al. 2022, algorithm 4), one (sequence,
// key/value head) a task, so that nobody else adds to its dk and dv; queries heads of the group and
// blocks of queries are visited in order.
//
//     delta_i = sum_d dout_id out_id                               (before, all rows)
//     for each query head of the group, block of queries i:  dq = 0
//         for each block of keys j up to the diagonal:
//             p = exp(scale q k^T - lse) ; dp = dout v^T ; ds = scale p (dp - delta)
//             dv_j += p^T dout ; dk_j += ds^T q ; dq += ds k
//
// p and ds are kept as (queries, keys), the form of the a panels of dv and dk; ds is transposed once per
// block for dq.
struct bwd_work {
    int64_t a_panel;          // floats of a packed a panel over D
    int64_t ds_panel;         // floats of a packed a panel over a block of keys
    int64_t padded_size;      // D rounded up to NR
    int64_t padded_seq;       // T rounded up to MR
    float *keys_t;            // b panels over D: (T/NR, D, NR)
    float *values_t;          // the same of the values
    float *keys;              // by block of keys: (padded_size/NR, count, NR)
    float *dk, *dv;           // (padded_seq, padded_size)
    float *query_a, *dout_a;  // a panels over D of a block of queries
    float *query_b, *dout_b;  // (padded_size/NR, count, NR)
    float *p, *ds;            // (BLOCK queries, BLOCK keys)
    float *ds_t;              // a panels of ds over keys
    float *dq;                // (BLOCK, padded_size)
};

static struct bwd_work carve_bwd_work(const struct attn_bwd_args *a, float *base, int64_t *floats) {
    struct bwd_work w = {.a_panel = round_up(MR * a->head_size + A_SLACK, 16),
                         .ds_panel = round_up(MR * BLOCK + A_SLACK, 16),
                         .padded_size = round_up(a->head_size, NR),
                         .padded_seq = round_up(a->seq, MR)};
    *floats = 0;
    w.keys_t = carve(base, floats, round_up(a->seq, NR) * a->head_size);
    w.values_t = carve(base, floats, round_up(a->seq, NR) * a->head_size);
    w.keys = carve(base, floats, a->seq * w.padded_size);
    w.dk = carve(base, floats, w.padded_seq * w.padded_size);
    w.dv = carve(base, floats, w.padded_seq * w.padded_size);
    w.query_a = carve(base, floats, BLOCK / MR * w.a_panel);
    w.dout_a = carve(base, floats, BLOCK / MR * w.a_panel);
    w.query_b = carve(base, floats, BLOCK * w.padded_size);
    w.dout_b = carve(base, floats, BLOCK * w.padded_size);
    w.p = carve(base, floats, BLOCK * BLOCK);
    w.ds = carve(base, floats, BLOCK * BLOCK);
    w.ds_t = carve(base, floats, BLOCK / MR * w.ds_panel);
    w.dq = carve(base, floats, BLOCK * w.padded_size);
    return w;
}

// A block of scores: queries [i0, i0+queries) by keys [j0, j0+keys), ahead = i0 - j0 >= 0.
struct tile {
    int64_t i0, queries, j0, keys, ahead;
};

// p = unscaled scores, ds = dp; tiles wholly above the diagonal are skipped.
static void bwd_score_block(const struct bwd_work *w, int64_t size, const struct tile *b) {
    for (int64_t j = 0; j < b->keys; j += NR)
        for (int64_t i = 0; i < b->queries; i += MR) {
            if (j > b->ahead + i + MR - 1) continue;
            gemm_tile(w->query_a + i / MR * w->a_panel, MR, w->keys_t + (b->j0 + j) * size, size,
                      w->p + i * BLOCK + j, BLOCK);
            gemm_tile(w->dout_a + i / MR * w->a_panel, MR, w->values_t + (b->j0 + j) * size, size,
                      w->ds + i * BLOCK + j, BLOCK);
        }
}

// p -> probabilities, ds = scale p (ds - delta); zero above the diagonal and beyond the last query.
static void bwd_softmax_block(const struct bwd_work *w, float scale, const struct tile *b, const float *lse,
                              const float *delta) {
    veci lane;
    for (int i = 0; i < VEC; i++) lane[i] = i;
    int64_t padded = round_up(b->keys, VEC);
    for (int64_t i = 0; i < b->queries; i++) {
        vecf row_lse = vec_set(lse[b->i0 + i]), row_delta = vec_set(delta[b->i0 + i]);
        float *p = w->p + i * BLOCK, *ds = w->ds + i * BLOCK;
        int64_t seen = lesser(padded, round_up(b->ahead + i + 1, VEC)), j = 0;
        for (; j < seen; j += VEC) {
            veci allowed = (lane + (int32_t)j) <= (int32_t)(b->ahead + i);
            vecf prob = vec_exp(vec_load_f32(p + j) * scale - row_lse);
            vecf grad = prob * (vec_load_f32(ds + j) - row_delta) * scale;
            vec_store_f32(p + j, vec_select(allowed, prob, (vecf){0}));
            vec_store_f32(ds + j, vec_select(allowed, grad, (vecf){0}));
        }
        for (; j < padded; j += VEC) {
            vec_store_f32(p + j, (vecf){0});
            vec_store_f32(ds + j, (vecf){0});
        }
    }
}

// out(MR,NR) += tile
static void add_tile(const float *tile, float *out, int64_t ldo) {
    for (int64_t r = 0; r < MR; r++)
        for (int c = 0; c < NR; c += VEC)
            vec_store_f32(out + r * ldo + c,
                          vec_load_f32(out + r * ldo + c) + vec_load_f32(tile + r * NR + c));
}

// out(keys, D) += x^T y for keys panels of x (queries, keys): dv from p and dout, dk from ds and q.
static void key_gradient(const struct bwd_work *w, const struct tile *b, const float *x, const float *y,
                         float *out) {
    _Alignas(64) float tile[MR * NR];
    for (int64_t d = 0; d < w->padded_size; d += NR)
        for (int64_t j = 0; j < b->keys; j += MR) {
            // Earlier queries see none of these keys.
            int64_t first = step_down(j) > b->ahead ? step_down(j) - b->ahead : 0;
            if (first >= b->queries) continue;
            gemm_tile(x + first * BLOCK + j, BLOCK, y + d * b->queries + first * NR, b->queries - first, tile,
                      NR);
            add_tile(tile, out + (b->j0 + j) * w->padded_size + d, w->padded_size);
        }
}

// dq += ds k
static void query_gradient(const struct bwd_work *w, const struct tile *b) {
    _Alignas(64) float tile[MR * NR];
    for (int64_t i = 0; i < b->queries; i += MR) {
        int64_t seen = lesser(b->keys, b->ahead + step_down(i) + ROW_STEP);
        float *panel = w->ds_t + i / MR * w->ds_panel;
        pack_across(DT_F32, w->ds, i * BLOCK, BLOCK, lesser(MR, b->queries - i), seen, MR, panel);
        for (int64_t d = 0; d < w->padded_size; d += NR) {
            gemm_tile(panel, MR, w->keys + b->j0 * w->padded_size + d * b->keys, seen, tile, NR);
            add_tile(tile, w->dq + i * w->padded_size + d, w->padded_size);
        }
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
        pack_times_a(t, q, i0, queries, size, w->a_panel, w->query_a);
        pack_times_a(t, dout, i0, queries, size, w->a_panel, w->dout_a);
        pack_sizes_b(t, q, i0, queries, size, w->query_b);
        pack_sizes_b(t, dout, i0, queries, size, w->dout_b);
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
    pack_times_b(t, k, 0, a->seq, size, w->keys_t);
    pack_times_b(t, v, 0, a->seq, size, w->values_t);
    for (int64_t j0 = 0; j0 < a->seq; j0 += BLOCK)
        pack_sizes_b(t, k, j0, lesser(BLOCK, a->seq - j0), size, w->keys + j0 * w->padded_size);
    memset(w->dk, 0, (size_t)(w->padded_seq * w->padded_size) * sizeof(float));
    memset(w->dv, 0, (size_t)(w->padded_seq * w->padded_size) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) run_query_head(t, a, b, h, w);
    store_rows(t, a->dqkv, k.start, row, w->dk, w->padded_size, a->seq, size);
    store_rows(t, a->dqkv, v.start, row, w->dv, w->padded_size, a->seq, size);
}

// delta of row r of (B,T,H): scratch is (B,H,T).
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

// One key/value head of one sequence.
static void bwd_task(const void *args, int64_t i, float *scratch) {
    const struct attn_bwd_args *a = args;
    int64_t floats;
    struct bwd_work w = carve_bwd_work(a, scratch, &floats);
    WITH_DTYPE(a->dt, run_kv_head, a, i / a->kv_heads, i % a->kv_heads, &w);
}

const char *cpu_attn_bwd(int threads, const struct attn_bwd_args *a) {
    assert(a->heads % a->kv_heads == 0 && a->seq < INT32_MAX && a->dt <= DT_F16);
    struct attention_tasks tasks = {.run = bwd_task, .args = a, .count = a->batch * a->kv_heads};
    carve_bwd_work(a, NULL, &tasks.scratch_floats);
    for_spans(threads, a->batch * a->seq, row_grain(a->heads * a->head_size), run_deltas, a);
    return attention_run(threads, &tasks);
}
