// Operations of the CPU on shapes that the input names: each writes what the scalar reference writes, within rounding (the
// optimizer's and sums to the bit), and, under the sanitizers, touches nothing else. Every buffer has exactly its size.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "shared/core/error.h"
#include "tests/fuzz/fuzz.h"

#define BUFFERS_MAX 20

struct buffer {
    void *p[2];  // for the reference, for the CPU
    enum dtype dt;
    int64_t n;
};

struct run {
    struct fuzz_bytes *in;
    struct buffer b[BUFFERS_MAX];
    int count, side;
    int at;  // next buffer to hand out on this side
    uint64_t noise;
    enum dtype dt;
    float slack;  // a sum of so many terms
};

static float noise(struct run *r) {
    r->noise = r->noise * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(int64_t)(r->noise >> 11) * 0x1p-52 - 1.0);
}

// Both sides ask for the same buffers in the same order. below > 0: whole numbers in [0, below).
static void *fill(struct run *r, enum dtype dt, int64_t n, int64_t below) {
    if (r->side == 1) return r->b[r->at++].p[1];
    struct buffer *b = &r->b[r->count++];
    FUZZ_CHECK(r->count <= BUFFERS_MAX, "too many buffers");
    *b = (struct buffer){.dt = dt, .n = n};
    size_t bytes = (size_t)n * (below ? sizeof(int32_t) : dtype_size(dt));
    for (int side = 0; side < 2; side++) b->p[side] = malloc(bytes ? bytes : 1);
    for (int64_t i = 0; i < n; i++) {
        if (below)
            ((int32_t *)b->p[0])[i] = (int32_t)((uint64_t)(noise(r) * 1e6f + 1e6f) % (uint64_t)below);
        else
            dtype_store(dt, b->p[0], (size_t)i, noise(r));
    }
    if (below) b->dt = DT_U8, b->n = 0;  // never written
    if (bytes) memcpy(b->p[1], b->p[0], bytes);
    return b->p[0];
}
static void *some(struct run *r, int64_t n) { return fill(r, r->dt, n, 0); }
static float *floats(struct run *r, int64_t n) { return fill(r, DT_F32, n, 0); }
static void *scratch(struct run *r, size_t bytes) {
    void *p = fill(r, DT_F32, (int64_t)(bytes + 3) / 4, 0);
    if (r->side == 0) r->b[r->count - 1].n = 0;
    return p;
}

struct shape {
    int64_t a, b, c, rows, seq;
    int32_t heads, kv, size;
    uint8_t flags;
};

static struct shape any_shape(struct fuzz_bytes *in) {
    struct shape s = {.a = 1 + (int64_t)fuzz_below(in, 70),
                      .b = 1 + (int64_t)fuzz_below(in, 70),
                      .c = 1 + (int64_t)fuzz_below(in, 70)};
    s.kv = 1 + (int32_t)fuzz_below(in, 3);
    s.heads = s.kv * (1 + (int32_t)fuzz_below(in, 3));
    s.size = 2 * (1 + (int32_t)fuzz_below(in, 20));
    s.flags = fuzz_u8(in);
    s.rows = 1 + (int64_t)fuzz_below(in, 4);
    s.seq = 1 + (int64_t)fuzz_below(in, 40);
    return s;
}

// ---------------------------------------------------------------- one operation
static int matmul(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    struct matmul_args a = {
        .m = s->a, .n = s->b, .k = s->c, .dt = r->dt, .trans_a = s->flags & 1, .trans_b = s->flags & 2};
    a.accumulate = s->flags & 4;
    a.a = some(r, s->a * s->c);
    a.b = some(r, s->b * s->c);
    a.c = some(r, s->a * s->b);
    if (!a.accumulate && s->flags & 8) a.bias = some(r, s->b);
    if (!a.accumulate && s->flags & 16) a.epilogue = EPILOGUE_GELU, a.aux = some(r, s->a * s->b);
    r->slack = (float)s->c;
    return ops[OP_MATMUL](threads, &a, &why);
}

static int norm(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    enum norm_kind kind = s->flags & 1 ? NORM_LAYER : NORM_RMS;
    struct norm_fwd_args f = {.rows = s->a, .channels = s->b, .eps = 1e-5f, .kind = kind, .dt = r->dt};
    f.x = some(r, s->a * s->b);
    f.y = some(r, s->a * s->b);
    f.weight = some(r, s->b);
    f.bias = kind == NORM_LAYER ? some(r, s->b) : NULL;
    f.mean = kind == NORM_LAYER ? floats(r, s->a) : NULL;
    f.rstd = floats(r, s->a);
    r->slack = 4 * (float)s->b;
    if (ops[OP_NORM_FWD](threads, &f, &why)) return -1;
    struct norm_bwd_args b = {.rows = s->a,
                              .channels = s->b,
                              .kind = kind,
                              .dt = r->dt,
                              .x = f.x,
                              .mean = f.mean,
                              .rstd = f.rstd,
                              .weight = f.weight};
    b.dy = f.y;
    b.dx = some(r, s->a * s->b);
    b.dweight = some(r, s->b);
    b.dbias = kind == NORM_LAYER ? some(r, s->b) : NULL;
    b.scratch = scratch(r, norm_bwd_scratch_bytes(s->b));
    // Small variances make large gradients: only the forward's values are compared where they do.
    if (s->b < 8) return 0;
    r->slack = 64 * (float)(s->a + s->b);
    return ops[OP_NORM_BWD](threads, &b, &why);
}

static int attention(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    int64_t tokens = s->rows * s->seq, width = (s->heads + 2 * s->kv) * (int64_t)s->size,
            out = s->heads * (int64_t)s->size;
    size_t bytes = attn_scratch_bytes(s->rows, s->seq, s->heads, s->kv, s->size);
    struct attn_fwd_args f = {.batch = s->rows,
                              .seq = s->seq,
                              .heads = s->heads,
                              .kv_heads = s->kv,
                              .head_size = s->size,
                              .scale = 0.2f,
                              .dt = r->dt};
    f.qkv = some(r, tokens * width);
    f.out = some(r, tokens * out);
    f.lse = floats(r, s->rows * s->heads * s->seq);
    f.scratch = scratch(r, bytes);
    r->slack = 64 * (float)(s->seq + s->size);
    if (ops[OP_ATTN_FWD](threads, &f, &why)) return -1;
    struct attn_bwd_args b = {.batch = s->rows,
                              .seq = s->seq,
                              .heads = s->heads,
                              .kv_heads = s->kv,
                              .head_size = s->size,
                              .scale = 0.2f,
                              .dt = r->dt};
    b.qkv = f.qkv, b.out = f.out, b.lse = f.lse;
    b.dout = some(r, tokens * out);
    b.dqkv = some(r, tokens * width);
    b.scratch = scratch(r, bytes);
    return ops[OP_ATTN_BWD](threads, &b, &why);
}

static int rope(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    int64_t width = (s->heads + 2 * s->kv) * (int64_t)s->size;
    struct rope_args a = {.batch = s->rows,
                          .seq = s->seq,
                          .heads = s->heads,
                          .kv_heads = s->kv,
                          .head_size = s->size,
                          .inverse = s->flags & 1,
                          .dt = r->dt};
    a.qkv = some(r, s->rows * s->seq * width);
    a.cos_sin = floats(r, s->seq * s->size);
    a.dbias = s->flags & 2 ? some(r, width) : NULL;
    r->slack = (float)(s->rows * s->seq);
    return ops[OP_ROPE](threads, &a, &why);
}

static int pointwise(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    int64_t n = s->a * s->b;
    struct gelu_args g = {.n = n, .dt = r->dt};
    g.y = some(r, n), g.x = some(r, n), g.dy = some(r, n);
    struct swiglu_args w = {.rows = s->a, .width = s->b, .dt = r->dt};
    w.y = some(r, s->flags & 1 ? 2 * n : n), w.gate_up = some(r, 2 * n), w.dy = some(r, n);
    struct add_args d = {.n = n, .dt = r->dt};
    d.y = some(r, n), d.a = g.x, d.b = g.dy;
    struct bias_grad_args b = {.rows = s->a, .n = s->b, .dt = r->dt, .accumulate = s->flags & 2};
    b.dbias = some(r, s->b), b.dy = g.dy;
    r->slack = (float)(s->a + 16);
    return ops[s->flags & 1 ? OP_GELU_BWD : OP_GELU_FWD](threads, &g, &why) ||
           ops[s->flags & 1 ? OP_SWIGLU_BWD : OP_SWIGLU_FWD](threads, &w, &why) ||
           ops[OP_ADD](threads, &d, &why) || ops[OP_BIAS_GRAD](threads, &b, &why);
}

static int head(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    int64_t vocab = s->a, stride = s->a + (s->flags >> 4), tokens = s->rows * s->seq;
    struct xent_args x = {.rows = tokens,
                          .vocab = vocab,
                          .row_stride = stride,
                          .padded = s->flags & 1 ? stride : 0,
                          .grad_scale = 0.5f,
                          .want_grad = s->flags & 2,
                          .dt = r->dt};
    x.logits = some(r, tokens * stride);
    x.loss = floats(r, tokens);
    x.targets = fill(r, DT_F32, tokens, vocab);
    struct embed_fwd_args f = {
        .batch = s->rows, .seq = s->seq, .channels = s->c, .dt = r->dt, .tokens = x.targets};
    f.out = some(r, tokens * s->c);
    f.wte = some(r, vocab * s->c);
    f.wpe = s->flags & 4 ? some(r, s->seq * s->c) : NULL;
    struct embed_bwd_args b = {.batch = s->rows,
                               .seq = s->seq,
                               .channels = s->c,
                               .vocab = vocab,
                               .positions = s->seq,
                               .zero_dwte = s->flags & 8,
                               .dt = r->dt,
                               .tokens = x.targets};
    b.dwte = some(r, vocab * s->c);
    b.dwpe = s->flags & 4 ? some(r, s->seq * s->c) : NULL;
    b.dout = some(r, tokens * s->c);
    b.scratch = scratch(r, embed_bwd_scratch_bytes(s->rows, s->seq, s->c, vocab));
    r->slack = (float)(tokens + vocab);
    return ops[OP_XENT](threads, &x, &why) || ops[OP_EMBED_FWD](threads, &f, &why) ||
           ops[OP_EMBED_BWD](threads, &b, &why);
}

// Exact: the same bits on every backend.
static int update(struct run *r, const struct shape *s, const op_fn *ops, int threads) {
    const char *why = "";
    int64_t n = SUMSQ_BLOCK * (1 + s->a % 4);
    const void *inputs[4];
    struct reduce_args e = {
        .n = n - s->b, .count = 1 + (int32_t)(s->flags & 3), .dt = r->dt, .inputs = inputs};
    e.out = some(r, n);
    for (int i = 0; i < e.count; i++) inputs[i] = some(r, n);
    struct update_scalars scalars = {.grad_scale = 0.7f};
    struct update_args a = {.n = n - s->c,
                            .groups = 1,
                            .ends = {n - s->c},
                            .weight_decay = {0.1f},
                            .lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.99f,
                            .eps = 1e-8f,
                            .inv_bc1 = 2,
                            .inv_sqrt_bc2 = 3,
                            .momentum = 0.9f,
                            .rest = 0.8f,
                            .alpha = 0.9f,
                            .l2_mode = s->flags & 4,
                            .nesterov = s->flags & 8,
                            .dt = r->dt,
                            .scalars = &scalars};
    a.master = floats(r, n), a.m = floats(r, n), a.v = floats(r, n), a.weight = some(r, n);
    for (int64_t i = 0; i < n; i++) a.m[i] = fabsf(a.m[i]), a.v[i] = fabsf(a.v[i]);
    a.grad = inputs[0];
    struct update_args sgd = a;
    if (s->flags & 16) sgd.m = NULL;
    struct exact_sum *sum = (struct exact_sum *)fill(r, DT_I64, EXACT_SUM_WORDS, 0);
    struct sumsq_args q = {.out = sum, .x = inputs[0], .n = n, .zero_out = true, .dt = r->dt};
    r->slack = 0;
    int rc = ops[OP_REDUCE](threads, &e, &why) || ops[OP_SUMSQ](threads, &q, &why);
    // Before each, m is what an update left: of rmsprop a mean square, so it is taken by magnitude.
#define RUN_UPDATE(first, OP, name, states, frozen, variant) \
    for (int64_t i = 0; i < n; i++) a.m[i] = fabsf(a.m[i]);  \
    rc = rc || ops[OP](threads, OP == OP_SGD ? &sgd : &a, &why);
    UPDATES(RUN_UPDATE, )
    return rc;
}

// ---------------------------------------------------------------- both, compared
static void compare(const struct run *r) {
    float unit = r->dt == DT_F32 ? 1e-6f : r->dt == DT_BF16 ? 1.0f / 64 : 1.0f / 512;
    for (int i = 0; i < r->count; i++) {
        const struct buffer *b = &r->b[i];
        if (r->slack == 0 || b->dt == DT_I64) {
            FUZZ_CHECK(memcmp(b->p[0], b->p[1], (size_t)b->n * dtype_size(b->dt)) == 0,
                       "buffer %d has other bits", i);
            continue;
        }
        for (int64_t j = 0; j < b->n; j++) {
            float x = dtype_load(b->dt, b->p[0], (size_t)j), y = dtype_load(b->dt, b->p[1], (size_t)j);
            float most = unit * (r->slack + 4) * (1 + fabsf(x));
            FUZZ_CHECK(fabsf(x - y) <= most || (isnan(x) && isnan(y)),
                       "buffer %d, element %lld: %g, the reference has %g", i, (long long)j, (double)y,
                       (double)x);
        }
    }
}

FUZZ_TARGET(kernels) {
    static int (*const all[])(struct run *, const struct shape *, const op_fn *, int) = {
        matmul, norm, attention, rope, pointwise, head, update};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    struct fuzz_bytes in = {data, size};
    struct run r = {.in = &in, .noise = 1};
    int which = (int)fuzz_below(&in, 7);
    r.dt = types[fuzz_below(&in, 3)];
    int threads = 1 + (int)fuzz_below(&in, 3);
    const struct shape s = any_shape(&in);
    FUZZ_CHECK(all[which](&r, &s, ref_ops, 1) == 0, "the reference refuses");
    r.side = 1;
    FUZZ_CHECK(all[which](&r, &s, cpu_ops, threads) == 0, "the CPU refuses");
    compare(&r);
    for (int i = 0; i < r.count; i++) {
        free(r.b[i].p[0]);
        free(r.b[i].p[1]);
    }
}
