// Matrix products and attention.
#include "shared/bench/bench_products.h"

#include <math.h>

#define LL(x) ((long long)(x))

static void add_yardstick(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    double side = (double)n->product;
    BENCH_SET(&t->d->product, matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .m = n->product,
              .n = n->product, .k = n->product, .trans_b = true, .dt = t->d->dt);
    t->d->product.flops = 2.0 * side * side * side;
}

// The products of an MLP's up projection.
static void add_mlp(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    double mlp = 2.0 * (double)n->wide_rows * (double)n->wide * (double)n->channels;
    long long m = LL(n->wide_rows), w = LL(n->wide), c = LL(n->channels);
    BENCH_SET(bench_add(t, 0, mlp, "%lldx%lldx%lld forward", m, w, c), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .bias = t->out, .m = m, .n = w, .k = c, .trans_b = true, .dt = dt);
    BENCH_SET(bench_add(t, 0, mlp, "%lldx%lldx%lld weight grad", w, c, m), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .m = w, .n = c, .k = m, .trans_a = true, .accumulate = true, .dt = dt);
    BENCH_SET(bench_add(t, 0, mlp, "%lldx%lldx%lld, GELU", m, w, c), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .bias = t->out, .aux = t->qkv, .m = m, .n = w, .k = c, .trans_b = true,
              .epilogue = EPILOGUE_GELU, .dt = dt);
    BENCH_SET(bench_add(t, 0, mlp, "%lldx%lldx%lld, GELU gradient", m, w, c), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .aux = t->qkv, .m = m, .n = w, .k = c, .epilogue = EPILOGUE_GELU_GRAD,
              .dt = dt);
}

// A layer's three products; GELU is part of the one that makes its argument, its gradient of the one behind
// it.
static void add_linear(struct bench_table *t, const struct bench_linear *l, bool behind_gelu) {
    enum dtype dt = t->d->dt;
    int64_t r = t->n.rows;
    double flops = 2.0 * (double)r * (double)l->out * (double)l->in;
    BENCH_SET(bench_add(t, 0, flops, "%lldx%lldx%lld %s%s", LL(r), LL(l->out), LL(l->in), l->name,
                        l->gelu ? ", GELU" : ""),
              matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .bias = l->bias ? t->out : NULL,
              .aux = l->gelu ? t->qkv : NULL, .m = r, .n = l->out, .k = l->in, .trans_b = true,
              .epilogue = l->gelu ? EPILOGUE_GELU : EPILOGUE_NONE, .dt = dt);
    BENCH_SET(bench_add(t, 0, flops, "%lldx%lldx%lld %s, input grad%s", LL(r), LL(l->in), LL(l->out), l->name,
                        behind_gelu ? ", GELU" : ""),
              matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .aux = behind_gelu ? t->qkv : NULL,
              .m = r, .n = l->in, .k = l->out, .epilogue = behind_gelu ? EPILOGUE_GELU_GRAD : EPILOGUE_NONE,
              .dt = dt);
    BENCH_SET(bench_add(t, 0, flops, "%lldx%lldx%lld %s, weight grad", LL(l->out), LL(l->in), LL(r), l->name),
              matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .m = l->out, .n = l->in, .k = r,
              .trans_a = true, .dt = dt);
}

// The head's three products: logits, and the gradients of what goes in and of the weights. The vocabulary is
// no multiple of what matrix units like; the rows' stride is.
static void add_head(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    long long r = LL(n->logit_rows), v = LL(n->classes), c = LL(n->channels);
    double flops = 2.0 * (double)r * (double)v * (double)c;
    BENCH_SET(bench_add(t, 0, flops, "%lldx%lldx%lld logits", r, v, c), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .m = r, .n = v, .k = c, .ldc = bench_logit_stride(n), .trans_b = true,
              .dt = dt);
    BENCH_SET(bench_add(t, 0, flops, "%lldx%lldx%lld logits' grad", r, c, v), matmul, matmul_args,
              .c = t->out, .a = t->x, .b = t->y, .m = r, .n = c, .k = v, .lda = bench_logit_stride(n),
              .dt = dt);
    BENCH_SET(bench_add(t, 0, flops, "%lldx%lldx%lld head's grad", v, c, r), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .m = v, .n = c, .k = r, .lda = bench_logit_stride(n), .trans_a = true,
              .accumulate = true, .dt = dt);
}

void bench_add_products(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    add_yardstick(t);
    if (!n->linears) add_mlp(t);
    for (int i = 0; i < n->linears; i++) add_linear(t, &n->linear[i], i > 0 && n->linear[i - 1].gelu);
    add_head(t);
}

void bench_add_attention(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    // The causal half of scores and values: 2 products of B H T^2 D multiply-adds, halved; backward: 5.
    double causal = (double)n->rows * (double)n->heads * (double)n->seq * (double)n->head_size;
    float scale = 1.0f / sqrtf((float)n->head_size);
    BENCH_SET(bench_add(t, 0, 2 * causal, "B=%lld T=%lld H=%lld D=%lld causal", LL(n->batch), LL(n->seq),
                        LL(n->heads), LL(n->head_size)),
              attn_fwd, attn_fwd_args, .out = t->out, .lse = t->lse, .qkv = t->qkv, .scratch = t->scratch,
              .batch = n->batch, .seq = n->seq, .heads = (int32_t)n->heads, .kv_heads = (int32_t)n->kv_heads,
              .head_size = (int32_t)n->head_size, .scale = scale, .dt = t->d->dt);
    BENCH_SET(bench_add(t, 0, 5 * causal, "B=%lld T=%lld H=%lld D=%lld causal", LL(n->batch), LL(n->seq),
                        LL(n->heads), LL(n->head_size)),
              attn_bwd, attn_bwd_args, .dqkv = t->z, .dout = t->x, .qkv = t->qkv, .out = t->out,
              .lse = t->lse, .scratch = t->scratch, .batch = n->batch, .seq = n->seq,
              .heads = (int32_t)n->heads, .kv_heads = (int32_t)n->kv_heads,
              .head_size = (int32_t)n->head_size, .scale = scale, .dt = t->d->dt);
}
