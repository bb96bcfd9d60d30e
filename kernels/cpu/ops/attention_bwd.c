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
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops/attention.h"

struct work {
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

static struct work carve_work(const struct attn_bwd_args *a, float *base, int64_t *floats) {
    struct work w = {.a_panel = round_up(MR * a->head_size + A_SLACK, 16),
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
struct span {
    int64_t i0, queries, j0, keys, ahead;
};

// p = unscaled scores, ds = dp; tiles wholly above the diagonal are skipped.
static void score_block(const struct work *w, int64_t size, const struct span *b) {
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
static void softmax_block(const struct work *w, float scale, const struct span *b, const float *lse,
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
static void key_gradient(const struct work *w, const struct span *b, const float *x, const float *y,
                         float *out) {
    _Alignas(64) float tile[MR * NR];
    for (int64_t d = 0; d < w->padded_size; d += NR)
        for (int64_t j = 0; j < b->keys; j += MR) {
            // Earlier queries see none of these keys.
            int64_t first = greater(0, step_down(j) - b->ahead);
            if (first >= b->queries) continue;
            gemm_tile(x + first * BLOCK + j, BLOCK, y + d * b->queries + first * NR, b->queries - first, tile,
                      NR);
            add_tile(tile, out + (b->j0 + j) * w->padded_size + d, w->padded_size);
        }
}

// dq += ds k
static void query_gradient(const struct work *w, const struct span *b) {
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

VEC_INLINE void run_query_head(const struct attn_bwd_args *a, enum dtype t, int64_t b, int64_t h,
                               const struct work *w) {
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
            struct span s = {i0, queries, j0, lesser(BLOCK, a->seq - j0), i0 - j0};
            score_block(w, size, &s);
            softmax_block(w, a->scale, &s, lse, delta);
            key_gradient(w, &s, w->p, w->dout_b, w->dv);
            key_gradient(w, &s, w->ds, w->query_b, w->dk);
            query_gradient(w, &s);
        }
        store_rows(t, a->dqkv, q.start + i0 * row, row, w->dq, w->padded_size, queries, size);
    }
}

VEC_INLINE void run_kv_head(const struct attn_bwd_args *a, enum dtype t, int64_t b, int64_t kv,
                            const struct work *w) {
    int64_t size = a->head_size, group = a->heads / a->kv_heads, row = (a->heads + 2 * a->kv_heads) * size;
    struct head_view k = {a->qkv, b * a->seq * row + (a->heads + kv) * size, row};
    struct head_view v = {a->qkv, k.start + a->kv_heads * size, row};
    pack_times_b(t, k, 0, a->seq, size, w->keys_t);
    pack_times_b(t, v, 0, a->seq, size, w->values_t);
    for (int64_t j0 = 0; j0 < a->seq; j0 += BLOCK)
        pack_sizes_b(t, k, j0, lesser(BLOCK, a->seq - j0), size, w->keys + j0 * w->padded_size);
    memset(w->dk, 0, (size_t)(w->padded_seq * w->padded_size) * sizeof(float));
    memset(w->dv, 0, (size_t)(w->padded_seq * w->padded_size) * sizeof(float));
    for (int64_t h = kv * group; h < (kv + 1) * group; h++) run_query_head(a, t, b, h, w);
    store_rows(t, a->dqkv, k.start, row, w->dk, w->padded_size, a->seq, size);
    store_rows(t, a->dqkv, v.start, row, w->dv, w->padded_size, a->seq, size);
}

// delta of row r of (B,T,H): scratch is (B,H,T).
VEC_INLINE void run_delta(const struct attn_bwd_args *a, enum dtype t, int64_t bt) {
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

// Functions per type, so that the compiler knows the conversions.
struct run {
    void (*delta)(const struct attn_bwd_args *a, int64_t bt);
    void (*kv_head)(const struct attn_bwd_args *a, int64_t b, int64_t kv, const struct work *w);
};
#define RUN_OF(name, T)                                                                                      \
    static void delta_##name(const struct attn_bwd_args *a, int64_t bt) { run_delta(a, T, bt); }             \
    static void kv_head_##name(const struct attn_bwd_args *a, int64_t b, int64_t kv, const struct work *w) { \
        run_kv_head(a, T, b, kv, w);                                                                         \
    }
RUN_OF(f32, DT_F32)
RUN_OF(bf16, DT_BF16)
RUN_OF(f16, DT_F16)

static const struct run runs[] = {[DT_F32] = {delta_f32, kv_head_f32},
                                  [DT_BF16] = {delta_bf16, kv_head_bf16},
                                  [DT_F16] = {delta_f16, kv_head_f16}};

static void run_deltas(const void *args, int64_t begin, int64_t end) {
    const struct attn_bwd_args *a = args;
    for (int64_t i = begin; i < end; i++) runs[a->dt].delta(a, i);
}

// One key/value head of one sequence.
static void run_task(const void *args, int64_t i, float *scratch) {
    const struct attn_bwd_args *a = args;
    int64_t floats;
    struct work w = carve_work(a, scratch, &floats);
    runs[a->dt].kv_head(a, i / a->kv_heads, i % a->kv_heads, &w);
}

int cpu_op_attn_bwd(int threads, const void *args, const char **why) {
    const struct attn_bwd_args *a = args;
    assert(a->heads % a->kv_heads == 0 && a->seq < INT32_MAX && a->dt <= DT_F16);
    struct attention_tasks tasks = {.run = run_task, .args = a, .count = a->batch * a->kv_heads};
    carve_work(a, NULL, &tasks.scratch_floats);
    for_spans(threads, a->batch * a->seq, row_grain(a->heads * a->head_size), run_deltas, a);
    return attention_run(threads, &tasks, why);
}
