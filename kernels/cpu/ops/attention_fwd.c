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
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/ops/attention.h"
#include "kernels/exact_math.h"

size_t attn_scratch_bytes(int64_t batch, int64_t seq, int32_t heads, int32_t kv_heads, int32_t head_size) {
    (void)kv_heads;
    (void)head_size;
    return (size_t)(batch * heads * seq) * sizeof(float);  // sum of dout * out of each row, for the backward
}

struct work {
    int64_t a_panel;            // floats of a packed panel of MR keys
    int64_t padded_size;        // D rounded up to NR
    float *keys;                // a panels of all keys
    float *values;              // by block of keys: (padded_size/NR, count, NR)
    float *queries;             // b panels of a block of queries
    float *scores;              // (BLOCK keys, BLOCK queries)
    float *out;                 // (BLOCK, padded_size)
    float *max, *sum, *factor;  // (BLOCK)
};

static struct work carve_work(const struct attn_fwd_args *a, float *base, int64_t *floats) {
    struct work w = {.a_panel = round_up(MR * a->head_size + A_SLACK, 16),
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
static void score_block(const struct work *w, int64_t size, int64_t j0, int64_t keys, int64_t queries,
                        int64_t ahead) {
    for (int64_t i = 0; i < queries; i += NR)
        for (int64_t j = 0; j < keys && j <= ahead + i + NR - 1; j += MR)
            gemm_tile(w->keys + (j0 + j) / MR * w->a_panel, MR, w->queries + i * size, size,
                      w->scores + j * BLOCK + i, BLOCK);
}

// scores -> probabilities relative to the running maximum; updates max, sum, factor.
static void softmax_block(const struct work *w, float scale, int64_t keys, int64_t queries, int64_t ahead) {
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
static void value_block(const struct work *w, int64_t j0, int64_t keys, int64_t queries, int64_t ahead) {
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

VEC_INLINE void run_head(const struct attn_fwd_args *a, enum dtype t, int64_t b, int64_t h,
                         const struct work *w) {
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

// A function per type, so that the compiler knows the conversions.
static void run_f32(const struct attn_fwd_args *a, int64_t b, int64_t h, const struct work *w) {
    run_head(a, DT_F32, b, h, w);
}
static void run_bf16(const struct attn_fwd_args *a, int64_t b, int64_t h, const struct work *w) {
    run_head(a, DT_BF16, b, h, w);
}
static void run_f16(const struct attn_fwd_args *a, int64_t b, int64_t h, const struct work *w) {
    run_head(a, DT_F16, b, h, w);
}

// One head of one sequence.
static void run_task(const void *args, int64_t i, float *scratch) {
    static void (*const runs[])(const struct attn_fwd_args *, int64_t, int64_t, const struct work *) = {
        [DT_F32] = run_f32, [DT_BF16] = run_bf16, [DT_F16] = run_f16};
    const struct attn_fwd_args *a = args;
    int64_t floats;
    struct work w = carve_work(a, scratch, &floats);
    runs[a->dt](a, i / a->heads, i % a->heads, &w);
}

int cpu_op_attn_fwd(int threads, const void *args, const char **why) {
    const struct attn_fwd_args *a = args;
    assert(a->heads % a->kv_heads == 0 && a->seq < INT32_MAX && a->dt <= DT_F16);
    struct attention_tasks tasks = {.run = run_task, .args = a, .count = a->batch * a->heads};
    carve_work(a, NULL, &tasks.scratch_floats);
    return attention_run(threads, &tasks, why);
}
