// Causal attention with grouped queries, defined in double: softmax one row at a time.
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/ref/ref.h"

// Index of element d of position t of query head h (q_at), or of its key head (k_at) or value head (v_at), in
// qkv(B,T,(H+2KV)*D).
struct shape {
    int64_t seq, heads, kv_heads, size;
};

static size_t q_at(const struct shape *s, int64_t b, int64_t t, int64_t h, int64_t d) {
    return (size_t)((b * s->seq + t) * (s->heads + 2 * s->kv_heads) * s->size + h * s->size + d);
}
static size_t k_at(const struct shape *s, int64_t b, int64_t t, int64_t h, int64_t d) {
    return q_at(s, b, t, s->heads + h / (s->heads / s->kv_heads), d);
}
static size_t v_at(const struct shape *s, int64_t b, int64_t t, int64_t h, int64_t d) {
    return k_at(s, b, t, h, d) + (size_t)(s->kv_heads * s->size);
}
static size_t out_at(const struct shape *s, int64_t b, int64_t t, int64_t h, int64_t d) {
    return (size_t)(((b * s->seq + t) * s->heads + h) * s->size + d);
}

// p[0..t] = softmax of row t of head h. Returns the row's log-sum-exp.
static double softmax_row(const struct shape *s, enum dtype dt, const void *qkv, double scale, int64_t b,
                          int64_t h, int64_t t, double *p) {
    double max = -INFINITY, sum = 0;
    for (int64_t u = 0; u <= t; u++) {
        double dot = 0;
        for (int64_t d = 0; d < s->size; d++)
            dot +=
                (double)dtype_load(dt, qkv, q_at(s, b, t, h, d)) * dtype_load(dt, qkv, k_at(s, b, u, h, d));
        p[u] = dot * scale;
        if (p[u] > max) max = p[u];
    }
    for (int64_t u = 0; u <= t; u++) sum += p[u] = exp(p[u] - max);
    for (int64_t u = 0; u <= t; u++) p[u] /= sum;
    return max + log(sum);
}

void ref_attn_fwd(const struct attn_fwd_args *a) {
    const struct shape s = {a->seq, a->heads, a->kv_heads, a->head_size};
    assert(a->heads % a->kv_heads == 0);
    double *p = malloc((size_t)s.seq * sizeof *p);
    assert(p && "out of host memory");
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t t = 0; t < s.seq; t++) {
                a->lse[(b * s.heads + h) * s.seq + t] =
                    (float)softmax_row(&s, a->dt, a->qkv, a->scale, b, h, t, p);
                for (int64_t d = 0; d < s.size; d++) {
                    double sum = 0;
                    for (int64_t u = 0; u <= t; u++)
                        sum += p[u] * dtype_load(a->dt, a->qkv, v_at(&s, b, u, h, d));
                    dtype_store(a->dt, a->out, out_at(&s, b, t, h, d), (float)sum);
                }
            }
    free(p);
}

// Adds the contribution of row (b,h,t) to the gradient dqkv, in double. p, dp: (T) scratch.
static void backward_row(const struct attn_bwd_args *a, const struct shape *s, int64_t b, int64_t h,
                         int64_t t, double *p, double *dp, double *dqkv) {
    softmax_row(s, a->dt, a->qkv, a->scale, b, h, t, p);
    double delta = 0;  // sum over u of p dp
    for (int64_t u = 0; u <= t; u++) {
        dp[u] = 0;
        for (int64_t d = 0; d < s->size; d++) {
            double dy = dtype_load(a->dt, a->dout, out_at(s, b, t, h, d));
            dp[u] += dy * dtype_load(a->dt, a->qkv, v_at(s, b, u, h, d));
            dqkv[v_at(s, b, u, h, d)] += p[u] * dy;
        }
        delta += p[u] * dp[u];
    }
    for (int64_t u = 0; u <= t; u++) {
        double ds = p[u] * (dp[u] - delta) * a->scale;
        for (int64_t d = 0; d < s->size; d++) {
            dqkv[q_at(s, b, t, h, d)] += ds * dtype_load(a->dt, a->qkv, k_at(s, b, u, h, d));
            dqkv[k_at(s, b, u, h, d)] += ds * dtype_load(a->dt, a->qkv, q_at(s, b, t, h, d));
        }
    }
}

void ref_attn_bwd(const struct attn_bwd_args *a) {
    const struct shape s = {a->seq, a->heads, a->kv_heads, a->head_size};
    assert(a->heads % a->kv_heads == 0);
    size_t n = (size_t)(a->batch * s.seq * (s.heads + 2 * s.kv_heads) * s.size);
    double *dqkv = calloc(n, sizeof *dqkv), *p = malloc((size_t)s.seq * 2 * sizeof *p);
    assert(dqkv && p && "out of host memory");
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t t = 0; t < s.seq; t++) backward_row(a, &s, b, h, t, p, p + s.seq, dqkv);
    for (size_t i = 0; i < n; i++) dtype_store(a->dt, a->dqkv, i, (float)dqkv[i]);
    free(dqkv);
    free(p);
}
