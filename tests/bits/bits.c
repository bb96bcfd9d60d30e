// Prints a hash of what every operation of the cpu backend computes, "NAME TYPE HASH" per line, on inputs
// that are the same everywhere: test_bits.py runs it as built for several vector widths and processors.
// Each operation runs on one thread and on three; unlike results end the program with 1.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"

#define BUFFERS 40

// Memory of one case; everything is freed after it.
struct buffers {
    enum dtype dt;
    void *p[BUFFERS];
    size_t bytes[BUFFERS];
    int count;
    uint64_t seed;
};

static void *take(struct buffers *t, size_t bytes) {
    if (t->count == BUFFERS) abort();
    void *p = calloc(1, bytes + 64);
    if (!p) abort();
    t->bytes[t->count] = bytes;
    return t->p[t->count++] = p;
}

static uint64_t next(struct buffers *t) {
    uint64_t z = t->seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// n numbers of type dt in (-size, size); one in 64 is tiny, one in 64 zero.
static void *numbers(struct buffers *t, enum dtype dt, int64_t n, float size) {
    void *p = take(t, (size_t)n * dtype_size(dt));
    for (int64_t i = 0; i < n; i++) {
        uint64_t r = next(t);
        float x = ((float)(r >> 40) * 0x1p-23f - 1.0f) * size;
        dtype_store(dt, p, (size_t)i, (r & 63) == 0 ? x * 0x1p-70f : (r & 63) == 1 ? 0.0f : x);
    }
    return p;
}

static void *mine(struct buffers *t, int64_t n, float size) { return numbers(t, t->dt, n, size); }
static float *floats(struct buffers *t, int64_t n, float size) { return numbers(t, DT_F32, n, size); }

static int32_t *tokens(struct buffers *t, int64_t n, int32_t vocab) {
    int32_t *p = take(t, (size_t)n * sizeof *p);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)(next(t) % (uint64_t)vocab);
    return p;
}

static uint64_t hash(const struct buffers *t) {
    uint64_t h = 14695981039346656037u;  // FNV-1a
    for (int i = 0; i < t->count; i++)
        for (size_t j = 0; j < t->bytes[i]; j++) h = (h ^ ((unsigned char *)t->p[i])[j]) * 1099511628211u;
    return h;
}

// Each runs its operations on fresh buffers; the hash is over all of them, inputs and scratch included.
struct how {
    const op_fn *ops;
    int threads;
};

static void call(const struct how *h, enum op op, const void *args) {
    const char *why = "";
    if (h->ops[op](h->threads, args, &why) == 0) return;
    fprintf(stderr, "%s\n", why);
    exit(1);
}

// Exponents far apart, so that the order of a sum's terms shows after its rounding to 16 bits.
static void *spread(struct buffers *t, int64_t n) {
    void *p = mine(t, n, 1);
    for (int64_t i = 0; i < n; i++)
        dtype_store(t->dt, p, (size_t)i, ldexpf(dtype_load(t->dt, p, (size_t)i), (int)(next(t) % 24) - 12));
    return p;
}

static void products(struct buffers *t, const struct how *h) {
    static const int64_t shapes[][3] = {{1, 1, 1},    {13, 7, 3},   {37, 65, 129},
                                        {25, 33, 64}, {6, 40, 513}, {29, 31, 1030}};
    for (int i = 0; i < 24; i++) {
        const int64_t *s = shapes[i % 6];
        struct matmul_args g = {.m = s[0], .n = s[1], .k = s[2], .dt = t->dt};
        int kept = t->count;
        g.trans_a = i / 6 & 1;
        g.trans_b = i / 12 & 1;
        g.a = spread(t, g.m * g.k);
        g.b = spread(t, g.k * g.n);
        g.accumulate = i % 3 == 1;
        if (i % 3 == 2) g.bias = mine(t, g.n, 1);
        g.c = mine(t, g.m * g.n, 1);
        call(h, OP_MATMUL, &g);
        uint64_t sum = hash(t);
        while (t->count > kept) free(t->p[--t->count]);
        memcpy(take(t, sizeof sum), &sum, sizeof sum);
    }
}

static void attention(struct buffers *t, const struct how *h, int64_t batch, int64_t seq, int32_t size) {
    enum { H = 4, KV = 2 };
    int64_t rows = batch * seq;
    size_t scratch = attn_scratch_bytes(batch, seq, H, KV, size);
    struct attn_fwd_args f = {.batch = batch, .seq = seq, .heads = H, .kv_heads = KV, .head_size = size};
    f.dt = t->dt;
    f.scale = 1.0f / 3;
    f.qkv = mine(t, rows * (H + 2 * KV) * size, 4);
    f.out = mine(t, rows * H * size, 1);
    f.lse = floats(t, batch * H * seq, 1);
    f.scratch = take(t, scratch);
    call(h, OP_ATTN_FWD, &f);
    struct attn_bwd_args b = {.batch = batch, .seq = seq, .heads = H, .kv_heads = KV, .head_size = size};
    b.dt = t->dt;
    b.scale = f.scale;
    b.qkv = f.qkv;
    b.out = f.out;
    b.lse = f.lse;
    b.scratch = f.scratch;
    b.dout = mine(t, rows * H * size, 1);
    b.dqkv = mine(t, rows * (H + 2 * KV) * size, 1);
    call(h, OP_ATTN_BWD, &b);
}
static void attention_short(struct buffers *t, const struct how *h) { attention(t, h, 2, 29, 20); }
static void attention_blocks(struct buffers *t, const struct how *h) { attention(t, h, 1, 203, 33); }
static void attention_even(struct buffers *t, const struct how *h) { attention(t, h, 1, 96, 64); }

static void norms(struct buffers *t, const struct how *h) {
    enum { R = 45, C = 1100 };
    for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++) {
        bool layer = kind == NORM_LAYER;
        void *weight = mine(t, C, 1), *scratch = take(t, norm_bwd_scratch_bytes(C));
        struct norm_fwd_args f = {.rows = R, .channels = C, .eps = 1e-5f, .weight = weight, .dt = t->dt};
        f.kind = (enum norm_kind)kind;
        f.y = mine(t, R * C, 1);
        f.x = mine(t, R * C, 2);
        f.residual = mine(t, R * C, 2);
        f.sum = mine(t, R * C, 1);
        f.rstd = floats(t, R, 1);
        if (layer) f.mean = floats(t, R, 1);
        if (layer) f.bias = weight;
        call(h, OP_NORM_FWD, &f);
        struct norm_bwd_args b = {.dx = f.y, .dy = f.residual, .x = f.sum, .mean = f.mean, .rstd = f.rstd};
        b.dweight = mine(t, C, 1);
        if (layer) b.dbias = mine(t, C, 1);
        b.weight = weight;
        b.scratch = scratch;
        b.rows = R;
        b.channels = C;
        b.kind = f.kind;
        b.accumulate = layer;
        b.dt = t->dt;
        call(h, OP_NORM_BWD, &b);
    }
}

static void elementwise(struct buffers *t, const struct how *h) {
    enum { N = 20000, F = 500, R = 20 };
    void *x = mine(t, N, 6), *y = mine(t, N, 1), *z = mine(t, N, 1);
    call(h, OP_GELU_FWD, &(struct gelu_args){.y = y, .x = x, .n = N, .dt = t->dt});
    call(h, OP_GELU_BWD, &(struct gelu_args){.y = z, .x = x, .dy = y, .n = N, .dt = t->dt});
    call(h, OP_ADD, &(struct add_args){.y = z, .a = z, .b = x, .n = N, .dt = t->dt});
    void *u = mine(t, R * F, 1), *v = mine(t, R * 2 * F, 1), *sum = mine(t, 2 * F, 1);
    call(h, OP_SWIGLU_FWD, &(struct swiglu_args){.y = u, .gate_up = x, .rows = R, .width = F, .dt = t->dt});
    call(h, OP_SWIGLU_BWD,
         &(struct swiglu_args){.y = v, .gate_up = x, .dy = u, .rows = R, .width = F, .dt = t->dt});
    call(h, OP_BIAS_GRAD,
         &(struct bias_grad_args){.dbias = sum, .dy = v, .rows = R, .n = 2 * F, .dt = t->dt});
    struct rope_args r = {.qkv = v, .cos_sin = floats(t, 10 * 40, 1), .batch = 2, .seq = 10, .dt = t->dt};
    r.heads = 15;
    r.kv_heads = 5;
    r.head_size = 40;
    call(h, OP_ROPE, &r);
}

static void losses(struct buffers *t, const struct how *h) {
    enum { R = 23, V = 2100 };
    struct xent_args x = {.rows = R, .vocab = V, .grad_scale = 1.0f / 7, .want_grad = true, .dt = t->dt};
    x.logits = mine(t, R * V, 12);
    x.loss = floats(t, R, 1);
    x.targets = tokens(t, R, V);
    call(h, OP_XENT, &x);
    double *sum = take(t, sizeof *sum);
    call(h, OP_LOSS_SUM, &(struct loss_sum_args){.out = sum, .loss = x.loss, .rows = R});
}

static void embeddings(struct buffers *t, const struct how *h) {
    enum { B = 3, T = 50, C = 130, V = 60 };
    int32_t *ids = tokens(t, B * T, V);
    void *wte = mine(t, V * C, 1), *wpe = mine(t, T * C, 1), *out = mine(t, B * T * C, 1);
    call(h, OP_EMBED_FWD,
         &(struct embed_fwd_args){.out = out,
                                  .tokens = ids,
                                  .wte = wte,
                                  .wpe = wpe,
                                  .batch = B,
                                  .seq = T,
                                  .channels = C,
                                  .dt = t->dt});
    struct embed_bwd_args b = {.dwte = wte, .dwpe = wpe, .dout = out, .tokens = ids, .batch = B, .seq = T};
    b.scratch = take(t, embed_bwd_scratch_bytes(B, T, C, V));
    b.channels = C;
    b.vocab = V;
    b.positions = T;
    b.dt = t->dt;
    call(h, OP_EMBED_BWD, &b);
}

static void updates(struct buffers *t, const struct how *h) {
    enum { N = 20 * SUMSQ_BLOCK };
    void *grad = mine(t, N, 1), *other = mine(t, N, 1), *weight = mine(t, N, 1);
    const void *inputs[] = {grad, other, weight};
    struct exact_sum *sum = take(t, sizeof *sum);
    struct update_scalars *scalars = take(t, sizeof *scalars);
    call(h, OP_REDUCE, &(struct reduce_args){.out = grad, .inputs = inputs, .count = 3, .n = N, .dt = t->dt});
    call(h, OP_SUMSQ, &(struct sumsq_args){.out = sum, .x = grad, .n = N, .zero_out = true, .dt = t->dt});
    call(h, OP_DECIDE, &(struct decide_args){.scalars = scalars, .sum = sum, .loss_scale = 8, .clip = 1});
    struct update_args a = {.grad = grad, .weight = weight, .scalars = scalars, .n = N, .dt = t->dt};
    a.master = floats(t, N, 1);
    a.m = floats(t, N, 1);
    a.v = floats(t, N, 1);
    a.lr = 1e-3f, a.beta1 = 0.9f, a.beta2 = 0.95f, a.eps = 1e-8f;
    a.ends[0] = N, a.weight_decay[0] = 0.1f, a.groups = 1;
    a.inv_bc1 = 2.5f, a.inv_sqrt_bc2 = 1.7f, a.momentum = 0.9f, a.rest = 0.75f, a.alpha = 0.9f;
#define CALL_UPDATE(first, OP, name, states, frozen, variant)                       \
    for (int form = 0; form < 2; form++) {                                          \
        for (int i = 0; i < N; i++) a.m[i] = fabsf(a.m[i]), a.v[i] = fabsf(a.v[i]); \
        a.l2_mode = a.nesterov = form;                                              \
        call(h, OP, &a);                                                            \
    }
    UPDATES(CALL_UPDATE, )
    a.m = NULL;
    call(h, OP_SGD, &a);
    a.m = a.v, a.v = NULL;
    call(h, OP_RMSPROP, &a);
    call(h, OP_CAST, &(struct cast_args){.out = weight, .in = a.master, .n = N, .to = t->dt});
    call(h, OP_FILL_ZERO, &(struct fill_zero_args){.out = grad, .bytes = N});
    int64_t clock[2] = {0};  // not hashed: what time it is
    call(h, OP_BUSY, &(struct busy_args){.clock = clock, .ns = 1000});
}

static void onebit(struct buffers *t, const struct how *h) {
    enum { N = 20 * ONEBIT_BLOCK, R = 3 };
    struct update_scalars *scalars = take(t, sizeof *scalars);
    scalars->grad_scale = 0.3f;
    struct onebit_encode_args a = {.scalars = scalars, .own = scalars, .n = N, .beta1 = 0.9f, .dt = t->dt};
    struct onebit_block *all = take(t, R * onebit_bytes(N)), *sum = take(t, onebit_bytes(N));
    a.error = floats(t, N, 1);
    a.m = floats(t, N, 1);
    float *v = floats(t, N, 1);
    for (int i = 0; i < N; i++) v[i] = v[i] < 0 ? -v[i] : v[i];
    a.v = v;
    for (int r = 0; r < R; r++) {
        a.out = all + r * (N / ONEBIT_BLOCK);
        a.grad = mine(t, N, 1);
        call(h, OP_ONEBIT_ENCODE, &a);
    }
    call(h, OP_ONEBIT_SUM,
         &(struct onebit_sum_args){
             .out = sum, .in = all, .error = a.error, .v = v, .scalars = scalars, .n = N, .ranks = R});
    struct update_args f = {.v = v, .scalars = scalars, .n = N, .ends = {N}, .groups = 1, .dt = t->dt};
    f.master = floats(t, N, 1);
    f.m = floats(t, N, 1);
    f.weight = mine(t, N, 1);
    f.grad = a.grad;
    f.weight_decay[0] = 0.1f;
    f.lr = 1e-3f;
    f.beta1 = 0.9f;
    f.eps = 1e-8f;
    call(h, OP_ADAM_FROZEN, &f);
    f.codes = sum;
    call(h, OP_ADAM_FROZEN, &f);
}

static void codes(struct buffers *t, const struct how *h) {
    enum { N = 20 * CODE_BLOCK };
#define BLOCK_FORMAT(id, name, bits, statistic) {CODE_##id, 0},
    static const struct code_format formats[] = {BLOCK_CODES(BLOCK_FORMAT){CODE_TOPK, 0.03}};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        float *error = floats(t, N, 1);
        void *grad = mine(t, N, 1), *code = take(t, code_bytes(&formats[f], N));
        call(h, OP_CODE_ENCODE, &(struct code_encode_args){code, error, grad, N, formats[f], 0.5f, t->dt});
        call(h, OP_CODE_ERROR, &(struct code_error_args){error, grad, N, 0.5f, t->dt});
        call(h, OP_CODE_ADD, &(struct code_add_args){error, code, N, formats[f], CODE_MINUS});
    }
}

static const struct {
    const char *name;
    void (*run)(struct buffers *t, const struct how *h);
} cases[] = {{"matmul", products},
             {"attention-29x20", attention_short},
             {"attention-203x33", attention_blocks},
             {"attention-96x64", attention_even},
             {"norm", norms},
             {"elementwise", elementwise},
             {"cross-entropy", losses},
             {"embedding", embeddings},
             {"update", updates},
             {"1-bit", onebit},
             {"codes", codes}};

static uint64_t run(void (*fn)(struct buffers *, const struct how *), enum dtype dt, const struct how *h) {
    struct buffers t = {.dt = dt, .seed = (uint64_t)dt + 1};
    fn(&t, h);
    uint64_t sum = hash(&t);
    while (t.count) free(t.p[--t.count]);
    return sum;
}

// On one thread and on three, by each way to multiply bf16 that this machine has.
static int print(const char *name, void (*fn)(struct buffers *, const struct how *), enum dtype dt) {
    uint64_t one = run(fn, dt, &(struct how){cpu_ops, 1});
    int unlike = 0;
    printf("%s %s %016llx\n", name, dtype_name(dt), (unsigned long long)one);
    for (int k = CPU_KERNEL_FMA; k < CPU_KERNEL_COUNT; k++) {
        enum cpu_kernel way;
        const char *why;
        if (cpu_kernel_resolve((enum cpu_kernel)k, &way, &why) != 0) continue;
        if (run(fn, dt, &(struct how){cpu_ops_by(way), 3}) == one) continue;
        printf("%s %s depends on the number of threads or the way (%s)\n", name, dtype_name(dt),
               cpu_kernel_name(way));
        unlike = 1;
    }
    return unlike;
}

int main(void) {
    int unlike = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int dt = DT_F32; dt <= DT_F16; dt++)
            unlike |= print(cases[i].name, cases[i].run, (enum dtype)dt);
    return unlike;
}
