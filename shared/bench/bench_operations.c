// The operations that `starring bench kernels` times; the memory-bound ones first.
#include "shared/bench/bench_operations.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/hf/presets.h"
#include "shared/model/head_plan.h"
#include "shared/model/layout.h"
#include "shared/model/optimizer.h"

#define RC_SHAPE "R=%lld C=%lld"
#define LL(x)    ((long long)(x))

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// ---------------------------------------------------------------- sizes
#define BOTH_KINDS \
    (BENCH_RMS | BENCH_LAYER | BENCH_SWIGLU | BENCH_GELU | BENCH_ROPE | BENCH_POSITIONS | BENCH_BIASES)

static const struct bench_sizes host_sizes = {.batch = 4,
                                              .seq = 1024,
                                              .rows = 4096,
                                              .channels = 768,
                                              .heads = 12,
                                              .kv_heads = 12,
                                              .head_size = 64,
                                              .width = 2048,
                                              .wide = 3072,
                                              .wide_rows = 4096,
                                              .vocab = 50257,
                                              .logit_rows = 512,
                                              .unit = INT64_C(1) << 24,
                                              .product = 2048,
                                              .features = BOTH_KINDS};
static const struct bench_sizes gpu_sizes = {.batch = 64,
                                             .seq = 1024,
                                             .rows = 65536,
                                             .channels = 2048,
                                             .heads = 16,
                                             .kv_heads = 16,
                                             .head_size = 128,
                                             .width = 2048,
                                             .wide = 8192,
                                             .wide_rows = 16384,
                                             .vocab = 50257,
                                             .logit_rows = 2688,
                                             .unit = INT64_C(1) << 27,
                                             .product = 8192,
                                             .features = BOTH_KINDS};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct bench_sizes bench_sizes_of(bool gpu, int64_t elements, int64_t product) {
    const struct bench_sizes *full = gpu ? &gpu_sizes : &host_sizes;
    struct bench_sizes n = *full;
    if (product) n.product = product;
    n.classes = n.vocab;
    n.copy = n.unit;
    if (!elements) return n;
    n.unit = n.copy = elements;
    n.rows = most(1, full->rows * elements / full->unit);
    n.seq = least(full->seq, n.rows);
    n.batch = n.rows / n.seq;
    n.rows = n.batch * n.seq;
    n.wide_rows = most(1, full->wide_rows * elements / full->unit);
    n.logit_rows = least(n.rows, most(1, full->logit_rows * elements / full->unit));
    n.vocab = n.classes = least(full->vocab, most(64, full->vocab * elements / full->unit));
    return n;
}

// Distance in elements between rows of the logits: rows start at multiples of 64 elements, as in the model.
static int64_t bench_logit_stride(const struct bench_sizes *n) { return model_classes_padded(n->vocab); }

// ---------------------------------------------------------------- sizes of a model
#define SEQ        1024
#define BATCH_HOST 1
#define BATCH_GPU  32
// Least number of elements that the yardstick copies: a small model's block may fit in the L2 of a GPU or CPU.
#define COPY_HOST (INT64_C(1) << 24)
#define COPY_GPU  (INT64_C(1) << 27)

static int set_rows(const struct bench_request *q, const struct model_spec *s, struct bench_sizes *out) {
    int64_t longest = model_longest_seq(s);
    out->batch = q->batch ? q->batch : q->gpu ? BATCH_GPU : BATCH_HOST;
    out->seq = q->seq ? q->seq : longest && longest < SEQ ? longest : SEQ;
    out->rows = out->wide_rows = out->batch * out->seq;
    if (longest && out->seq > longest)
        return fail("--seq %lld: model %s takes sequences of up to %lld tokens", (long long)out->seq, s->name,
                    (long long)longest);
    return 0;
}

static void set_linears(const struct model_spec *s, struct bench_sizes *out) {
    const struct model_traits *t = &s->traits;
    bool gelu = t->mlp == MLP_GELU;
    int64_t attention = (int64_t)s->heads * s->head_size;
    int64_t qkv = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_size;
    out->linear[0] = (struct bench_linear){"qkv", qkv, s->channels, t->qkv_bias, false};
    out->linear[1] = (struct bench_linear){"attention's", s->channels, attention, t->out_bias, false};
    out->linear[2] =
        (struct bench_linear){gelu ? "up" : "gate and up", model_up_width(s), s->channels, t->mlp_bias, gelu};
    out->linear[3] = (struct bench_linear){"down", s->channels, s->ffn, t->mlp_bias, false};
    out->linears = BENCH_LINEARS;
}

static int features_of(const struct model_spec *s) {
    const struct model_traits *t = &s->traits;
    bool rotary = t->positions == POSITIONS_ROTARY;
    return (t->norm == NORM_RMS ? BENCH_RMS : BENCH_LAYER) |
           (t->mlp == MLP_SWIGLU ? BENCH_SWIGLU : BENCH_GELU) | (rotary ? BENCH_ROPE : BENCH_POSITIONS) |
           (rotary && t->qkv_bias ? BENCH_ROPE_BIAS : 0) |
           (t->out_bias || t->mlp_bias || (t->qkv_bias && !rotary) ? BENCH_BIASES : 0) |
           (s->tied ? BENCH_TIED : 0);
}

int bench_sizes_of_model(const struct bench_request *q, struct bench_sizes *out) {
    struct model_spec s;
    if (model_spec_load(q->model, &s)) return -1;
    *out = (struct bench_sizes){.channels = s.channels,
                                .heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_size = s.head_size,
                                .vocab = s.vocab,
                                .wide = s.ffn,
                                .product = q->product ? q->product
                                           : q->gpu   ? 8192
                                                      : 2048};
    if (set_rows(q, &s, out)) return -1;
    set_linears(&s, out);
    out->features = features_of(&s);
    if (s.traits.mlp == MLP_SWIGLU) out->width = s.ffn;
    out->classes = q->gpu ? model_classes_padded(s.vocab) : s.vocab;
    out->logit_rows =
        head_plan_of(
            &(struct head_question){
                .rows = out->rows, .vocab = s.vocab, .micro_batches = 1, .gpu = q->gpu, .dtype = q->dtype})
            .rows;
    struct layout *l = model_layout_create(&s, 1);
    if (!l) return -1;
    int64_t large = q->gpu ? COPY_GPU : COPY_HOST, block = l->units[1].n_pad;
    out->unit = q->elements ? q->elements : block;
    out->copy = q->elements ? q->elements : block > large ? block : large;
    layout_destroy(&l);
    return 0;
}

// ---------------------------------------------------------------- buffers
static size_t scratch_bytes(const struct bench_sizes *n) {
    size_t norm = norm_bwd_scratch_bytes(n->channels);
    size_t embed = embed_bwd_scratch_bytes(n->batch, n->seq, n->channels, n->vocab);
    size_t attention =
        attn_scratch_bytes(n->batch, n->seq, (int32_t)n->heads, (int32_t)n->kv_heads, (int32_t)n->head_size);
    return (size_t)most((int64_t)norm, most((int64_t)embed, (int64_t)attention));
}

static int64_t qkv_width(const struct bench_sizes *n) { return (n->heads + 2 * n->kv_heads) * n->head_size; }

static int64_t largest_tensor(const struct bench_sizes *n) {
    const int64_t elements[] = {n->classes * n->channels, n->rows * qkv_width(n),
                                n->rows * 2 * n->width,   n->wide_rows * n->wide,
                                n->wide * n->channels,    n->wide_rows * n->channels,
                                n->seq * n->channels,     n->logit_rows * bench_logit_stride(n),
                                n->product * n->product,  n->unit};
    int64_t large = 0;
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) large = most(large, elements[i]);
    for (int i = 0; i < n->linears; i++) {
        const struct bench_linear *l = &n->linear[i];
        large = most(large, most(n->rows * most(l->out, l->in), l->out * l->in));
    }
    return large;
}

// Random tokens; some repeat.
static int set_tokens(struct bench_table *t) {
    struct bench_device *d = t->d;
    int32_t *tokens = xcalloc((size_t)t->n.rows, sizeof *tokens);
    char *seen = xcalloc((size_t)t->n.vocab, 1);
    for (int64_t i = 0; i < t->n.rows; i++) {
        tokens[i] = (int32_t)rng_below(7, (uint64_t)i, 0, (uint64_t)t->n.vocab);
        t->distinct += !seen[tokens[i]];
        seen[tokens[i]] = 1;
    }
    dev_copy(d->s, t->tokens, tokens, (size_t)t->n.rows * sizeof *tokens);
    int rc = stream_sync(d->s);
    free(seen);
    free(tokens);
    return rc ? fail("filling a buffer: %s", dev_error(d->dev)) : 0;
}

static void take_buffers(struct bench_table *t) {
    struct bench_device *d = t->d;
    const struct bench_sizes *n = &t->n;
    t->large = largest_tensor(n);
    t->x = bench_buffer(d, d->dt, t->large, 1.0f);
    t->y = bench_buffer(d, d->dt, t->large, 1.0f);
    t->z = bench_buffer(d, d->dt, t->large, 1.0f);
    t->qkv =
        bench_buffer(d, d->dt, most(n->rows * most(qkv_width(n), n->channels), n->wide_rows * n->wide), 1.0f);
    t->out = bench_buffer(
        d, d->dt, most(n->rows * most(n->channels, n->heads * n->head_size), most(n->wide, qkv_width(n))),
        1.0f);
    t->master = bench_buffer(d, DT_F32, n->unit, 1.0f);
    t->m = bench_buffer(d, DT_F32, n->unit, 0.1f);
    t->v = bench_buffer(d, DT_F32, n->unit, -0.01f);
    t->mean = bench_buffer(d, DT_F32, n->rows, 0.1f);
    t->rstd = bench_buffer(d, DT_F32, n->rows, -1.0f);
    t->lse = bench_buffer(d, DT_F32, n->rows * n->heads, 1.0f);
    t->loss = bench_buffer(d, DT_F32, n->rows, 1.0f);
    t->cos_sin = bench_buffer(d, DT_F32, n->seq * n->head_size, 1.0f);
    t->inputs[0] = t->x;  // one buffer each: a second read of the same one would come from the caches
    t->inputs[1] = t->y;
    for (int i = 2; i < BENCH_WAYS; i++) t->inputs[i] = bench_buffer(d, d->dt, n->unit, 1.0f);
    t->tokens = arena_take(&d->arena, MEM_WORKSPACE, (size_t)n->rows * sizeof *t->tokens);
    t->scratch = arena_take(&d->arena, MEM_WORKSPACE, scratch_bytes(n));
    t->sum = arena_take(&d->arena, MEM_WORKSPACE, sizeof *t->sum);
    t->scalars = arena_take(&d->arena, MEM_WORKSPACE, sizeof *t->scalars);
    t->total = arena_take(&d->arena, MEM_WORKSPACE, sizeof *t->total);
}

// The yardstick copies one array to another.
static int64_t copy_bytes(const struct bench_sizes *n) { return n->copy * (int64_t)sizeof(float); }

// Runs take_buffers with an arena that only counts.
size_t bench_table_bytes(enum dtype dt, const struct bench_sizes *sizes) {
    struct bench_device counting = {.dt = dt};
    struct bench_table *t = xcalloc(1, sizeof *t);
    arena_init(&counting.arena, NULL);
    t->d = &counting;
    t->n = *sizes;
    take_buffers(t);
    free(t);
    return arena_total(&counting.arena) + 2 * dev_round((size_t)copy_bytes(sizes));
}

struct update_args bench_update(enum dtype dt, int64_t n) {
    return (struct update_args){.n = n,
                                .ends = {n},
                                .weight_decay = {0.1f},
                                .groups = 1,
                                .lr = 1e-4f,
                                .beta1 = 0.9f,
                                .beta2 = 0.95f,
                                .eps = 1e-8f,
                                .inv_bc1 = 1.1f,
                                .inv_sqrt_bc2 = 1.1f,
                                .momentum = 0.9f,
                                .rest = 1.0f,
                                .dt = dt};
}

// Adds a row, still without its operation.
__attribute__((format(printf, 2, 3))) static struct bench_work *bench_add(struct bench_table *t,
                                                                          const char *shape, ...) {
    assert(t->count < BENCH_WORKS_MAX);
    struct bench_work *w = &t->work[t->count++];
    va_list ap;
    va_start(ap, shape);
    vsnprintf(w->shape, sizeof w->shape, shape, ap);
    va_end(ap);
    return w;
}

// ---------------------------------------------------------------- the operations
// Adds bytes that op_work_of does not count: the rows of the different tokens are read, and written too where the
// gradient is added to them.
static void add_embedding(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    bool learned = n->features & BENCH_POSITIONS, tied = n->features & BENCH_TIED;
    double chosen = (double)t->distinct * (double)n->channels * (double)dtype_size(dt);
    bool dwpe = n->linears && learned;  // only if a model is given
    struct bench_work *w = bench_add(t, RC_SHAPE " V=%lld", LL(n->rows), LL(n->channels), LL(n->vocab));
    BENCH_SET(w, embed_fwd, embed_fwd_args, .out = t->out, .tokens = t->tokens, .wte = t->x,
              .wpe = learned ? t->y : NULL, .batch = n->batch, .seq = n->seq, .channels = n->channels,
              .dt = dt);
    w->work.bytes += chosen;
    w = bench_add(t, RC_SHAPE " V=%lld%s", LL(n->rows), LL(n->channels), LL(n->vocab), tied ? "" : " zeroed");
    BENCH_SET(w, embed_bwd, embed_bwd_args, .dwte = t->z, .dwpe = dwpe ? t->y : NULL, .dout = t->x,
              .tokens = t->tokens, .scratch = t->scratch, .batch = n->batch, .seq = n->seq,
              .channels = n->channels, .vocab = n->vocab, .positions = dwpe ? n->seq : 0, .zero_dwte = !tied,
              .dt = dt);
    if (tied) w->work.bytes += 2 * chosen;
}

static void add_norm(struct bench_table *t, enum norm_kind kind, bool backward) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    bool layer = kind == NORM_LAYER;
    struct bench_work *w =
        bench_add(t, RC_SHAPE " %s, residual", LL(n->rows), LL(n->channels), layer ? "layer" : "RMS");
    if (backward)
        BENCH_SET(w, norm_bwd, norm_bwd_args, .dx = t->out, .dweight = t->z,
                  .dbias = layer ? (char *)t->z + (size_t)n->channels * dtype_size(dt) : NULL, .dy = t->x,
                  .dresidual = t->y, .x = t->qkv, .mean = layer ? t->mean : NULL, .rstd = t->rstd,
                  .weight = t->x, .scratch = t->scratch, .rows = n->rows, .channels = n->channels,
                  .kind = kind, .dt = dt);
    else
        BENCH_SET(w, norm_fwd, norm_fwd_args, .y = t->out, .sum = t->z, .mean = layer ? t->mean : NULL,
                  .rstd = t->rstd, .x = t->x, .residual = t->y, .weight = t->x, .bias = layer ? t->y : NULL,
                  .rows = n->rows, .channels = n->channels, .eps = 1e-5f, .kind = kind, .dt = dt);
}

static void add_rope(struct bench_table *t, bool bias) {
    const struct bench_sizes *n = &t->n;
    BENCH_SET(bench_add(t, "B=%lld T=%lld H=%lld KV=%lld D=%lld%s", LL(n->batch), LL(n->seq), LL(n->heads),
                        LL(n->kv_heads), LL(n->head_size), bias ? ", bias" : ""),
              rope, rope_args, .qkv = t->z, .cos_sin = t->cos_sin, .batch = n->batch, .seq = n->seq,
              .heads = (int32_t)n->heads, .kv_heads = (int32_t)n->kv_heads,
              .head_size = (int32_t)n->head_size, .inverse = bias, .dbias = bias ? t->out : NULL,
              .dt = t->d->dt);
}

static void add_bias(struct bench_table *t, int64_t rows, int64_t columns) {
    enum dtype dt = t->d->dt;
    BENCH_SET(bench_add(t, "R=%lld N=%lld", LL(rows), LL(columns)), bias_grad, bias_grad_args,
              .dbias = t->out, .dy = t->x, .rows = rows, .n = columns, .dt = dt);
}

// Adds each output width of a layer with a bias once; without a model the wide one.
static void add_biases(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    if (!n->linears) add_bias(t, n->wide_rows, n->wide);
    for (int i = 0; i < n->linears; i++) {
        bool again = false;
        for (int k = 0; k < i; k++) again |= n->linear[k].out == n->linear[i].out;
        if (n->linear[i].bias && !again) add_bias(t, n->rows, n->linear[i].out);
    }
}

static void add_pointwise(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    int64_t flat = n->wide_rows * n->wide;
    if (n->features & BENCH_BIASES) add_biases(t);
    if (n->features & BENCH_GELU) {
        BENCH_SET(bench_add(t, "n=%lld", LL(flat)), gelu_fwd, gelu_args, .y = t->z, .x = t->x, .n = flat,
                  .dt = dt);
        BENCH_SET(bench_add(t, "n=%lld", LL(flat)), gelu_bwd, gelu_args, .y = t->z, .x = t->x, .dy = t->y,
                  .n = flat, .dt = dt);
    }
    if (n->features & BENCH_SWIGLU) {
        BENCH_SET(bench_add(t, "R=%lld F=%lld", LL(n->rows), LL(n->width)), swiglu_fwd, swiglu_args,
                  .y = t->z, .gate_up = t->x, .rows = n->rows, .width = n->width, .dt = dt);
        BENCH_SET(bench_add(t, "R=%lld F=%lld", LL(n->rows), LL(n->width)), swiglu_bwd, swiglu_args,
                  .y = t->z, .gate_up = t->x, .dy = t->y, .rows = n->rows, .width = n->width, .dt = dt);
    }
    BENCH_SET(bench_add(t, "n=%lld", LL(flat)), add, add_args, .y = t->z, .a = t->x, .b = t->y, .n = flat,
              .dt = dt);
}

static void add_loss(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    BENCH_SET(bench_add(t, "R=%lld V=%lld, gradient", LL(n->logit_rows), LL(n->vocab)), xent, xent_args,
              .logits = t->z, .loss = t->loss, .targets = t->tokens, .rows = n->logit_rows, .vocab = n->vocab,
              .row_stride = bench_logit_stride(n), .padded = n->classes, .grad_scale = 1.0f,
              .want_grad = true, .dt = dt);
    struct bench_work *w = bench_add(t, "R=%lld", LL(n->rows));
    w->tiny = true;
    BENCH_SET(w, loss_sum, loss_sum_args, .out = t->total, .loss = t->loss, .rows = n->rows);
}

// Adds each optimizer's update once.
static void add_updates(struct bench_table *t) {
    int64_t n = t->n.unit;
    bool added[OP_COUNT] = {false};
    for (const struct optimizer *o = optimizers; o->name; o++) {
        const struct optimizer *row = o->moving ? o->moving : o;
        if (added[row->op]) continue;
        added[row->op] = true;
        struct bench_work *w = bench_add(t, "n=%lld%s", LL(n), o->moving ? ", momentum" : "");
        struct update_args a = bench_update(t->d->dt, n);
        a.master = t->master;
        a.m = t->m;
        a.v = t->v;
        a.weight = t->z;
        a.grad = t->x;
        a.scalars = t->scalars;
        bench_work_set(w, row->op, &a, sizeof a);
    }
}

// The contents of the codes do not affect the time, so the buffers hold arbitrary bits.
static void add_onebit(struct bench_table *t) {
    int64_t unit = t->n.unit;
    BENCH_SET(bench_add(t, "n=%lld", LL(unit)), onebit_encode, onebit_encode_args, .out = t->z,
              .error = t->master, .m = t->m, .v = t->v, .grad = t->x, .scalars = t->scalars,
              .own = t->scalars, .n = unit, .beta1 = 0.9f, .dt = t->d->dt);
    BENCH_SET(bench_add(t, "n=%lld of %d", LL(unit), BENCH_WAYS), onebit_sum, onebit_sum_args, .out = t->z,
              .in = t->y, .error = t->master, .v = t->v, .scalars = t->scalars, .n = unit,
              .ranks = BENCH_WAYS);
    BENCH_SET(bench_add(t, "n=%lld", LL(unit)), adam_frozen, update_args, .master = t->master, .m = t->m,
              .v = t->v, .weight = t->z, .codes = t->y, .scalars = t->scalars, .n = unit, .ends = {unit},
              .weight_decay = {0.1f}, .groups = 1, .lr = 1e-4f, .beta1 = 0.9f, .eps = 1e-8f, .dt = t->d->dt);
}

// One row per code: a worker's encoding of its gradient, and a server's decoding.
static void add_codes(struct bench_table *t) {
    int64_t unit = t->n.unit;
    for (enum code_kind kind = CODE_NONE + 1; kind < CODE_KINDS; kind++) {
        const struct code_format format = {kind, .share = 0.01};
        const char *name = codec_of(kind)->name;
        BENCH_SET(bench_add(t, "n=%lld, %s", LL(unit), name), code_encode, code_encode_args, .out = t->z,
                  .error = t->master, .grad = t->x, .n = unit, .format = format, .factor = 1, .dt = t->d->dt);
        BENCH_SET(bench_add(t, "n=%lld, %s", LL(unit), name), code_add, code_add_args, .out = t->master,
                  .code = t->z, .n = unit, .format = format, .use = CODE_PLUS);
    }
    BENCH_SET(bench_add(t, "n=%lld", LL(unit)), code_error, code_error_args, .error = t->master, .grad = t->x,
              .n = unit, .factor = 1, .dt = t->d->dt);
}

static void add_optimizer(struct bench_table *t) {
    int64_t unit = t->n.unit;
    enum dtype dt = t->d->dt;
    BENCH_SET(bench_add(t, "n=%lld", LL(unit)), sumsq, sumsq_args, .out = t->sum, .x = t->x, .n = unit,
              .zero_out = true, .dt = dt);
    struct bench_work *w = bench_add(t, "one sum");
    w->tiny = true;
    BENCH_SET(w, decide, decide_args, .scalars = t->scalars, .sum = t->sum, .loss_scale = 1.0f, .clip = 1.0f);
    add_updates(t);
    add_onebit(t);
    add_codes(t);
    BENCH_SET(bench_add(t, "n=%lld of %d", LL(unit), BENCH_WAYS), reduce, reduce_args, .out = t->z,
              .inputs = t->inputs, .count = BENCH_WAYS, .n = unit, .dt = dt);
    BENCH_SET(bench_add(t, "n=%lld from fp32", LL(unit)), cast, cast_args, .out = t->z, .in = t->master,
              .n = unit, .from = DT_F32, .to = dt);
    BENCH_SET(bench_add(t, "%lld bytes", LL(unit) * 2), fill_zero, fill_zero_args, .out = t->z,
              .bytes = unit * 2);
    w = bench_add(t, "a mark");
    w->tiny = true;
    BENCH_SET(w, busy, busy_args, .clock = (int64_t *)t->scratch);
}

// ---------------------------------------------------------------- compute-bound
// The matrix products of an MLP's up projection.
static void add_mlp(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    long long m = LL(n->wide_rows), w = LL(n->wide), c = LL(n->channels);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld forward", m, w, c), matmul, matmul_args, .c = t->z, .a = t->x,
              .b = t->y, .bias = t->out, .m = m, .n = w, .k = c, .trans_b = true, .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld weight grad", w, c, m), matmul, matmul_args, .c = t->z, .a = t->x,
              .b = t->y, .m = w, .n = c, .k = m, .trans_a = true, .accumulate = true, .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld, GELU", m, w, c), matmul, matmul_args, .c = t->z, .a = t->x,
              .b = t->y, .bias = t->out, .aux = t->qkv, .m = m, .n = w, .k = c, .trans_b = true,
              .epilogue = EPILOGUE_GELU, .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld, GELU gradient", m, w, c), matmul, matmul_args, .c = t->z,
              .a = t->x, .b = t->y, .aux = t->qkv, .m = m, .n = w, .k = c, .epilogue = EPILOGUE_GELU_GRAD,
              .dt = dt);
}

// A layer's three products. GELU is part of the product that computes its argument; its gradient is part of the
// following layer's input gradient.
static void add_linear(struct bench_table *t, const struct bench_linear *l, bool after_gelu) {
    enum dtype dt = t->d->dt;
    int64_t r = t->n.rows;
    BENCH_SET(
        bench_add(t, "%lldx%lldx%lld %s%s", LL(r), LL(l->out), LL(l->in), l->name, l->gelu ? ", GELU" : ""),
        matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .bias = l->bias ? t->out : NULL,
        .aux = l->gelu ? t->qkv : NULL, .m = r, .n = l->out, .k = l->in, .trans_b = true,
        .epilogue = l->gelu ? EPILOGUE_GELU : EPILOGUE_NONE, .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld %s, input grad%s", LL(r), LL(l->in), LL(l->out), l->name,
                        after_gelu ? ", GELU" : ""),
              matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .aux = after_gelu ? t->qkv : NULL, .m = r,
              .n = l->in, .k = l->out, .epilogue = after_gelu ? EPILOGUE_GELU_GRAD : EPILOGUE_NONE, .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld %s, weight grad", LL(l->out), LL(l->in), LL(r), l->name), matmul,
              matmul_args, .c = t->z, .a = t->x, .b = t->y, .m = l->out, .n = l->in, .k = r, .trans_a = true,
              .dt = dt);
}

// The head's three products: logits, and the gradients of the input and of the weights. The vocabulary is not a
// multiple that matrix units need; the rows' stride is.
static void add_head(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    enum dtype dt = t->d->dt;
    long long r = LL(n->logit_rows), v = LL(n->classes), c = LL(n->channels);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld logits", r, v, c), matmul, matmul_args, .c = t->z, .a = t->x,
              .b = t->y, .m = r, .n = v, .k = c, .ldc = bench_logit_stride(n), .trans_b = true, .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld logits' grad", r, c, v), matmul, matmul_args, .c = t->out,
              .a = t->x, .b = t->y, .m = r, .n = c, .k = v, .lda = bench_logit_stride(n), .dt = dt);
    BENCH_SET(bench_add(t, "%lldx%lldx%lld head's grad", v, c, r), matmul, matmul_args, .c = t->z, .a = t->x,
              .b = t->y, .m = v, .n = c, .k = r, .lda = bench_logit_stride(n), .trans_a = true,
              .accumulate = true, .dt = dt);
}

static void add_attention(struct bench_table *t) {
    const struct bench_sizes *n = &t->n;
    float scale = 1.0f / sqrtf((float)n->head_size);
    BENCH_SET(bench_add(t, "B=%lld T=%lld H=%lld D=%lld causal", LL(n->batch), LL(n->seq), LL(n->heads),
                        LL(n->head_size)),
              attn_fwd, attn_fwd_args, .out = t->out, .lse = t->lse, .qkv = t->qkv, .scratch = t->scratch,
              .batch = n->batch, .seq = n->seq, .heads = (int32_t)n->heads, .kv_heads = (int32_t)n->kv_heads,
              .head_size = (int32_t)n->head_size, .scale = scale, .dt = t->d->dt);
    BENCH_SET(bench_add(t, "B=%lld T=%lld H=%lld D=%lld causal", LL(n->batch), LL(n->seq), LL(n->heads),
                        LL(n->head_size)),
              attn_bwd, attn_bwd_args, .dqkv = t->z, .dout = t->x, .qkv = t->qkv, .out = t->out,
              .lse = t->lse, .scratch = t->scratch, .batch = n->batch, .seq = n->seq,
              .heads = (int32_t)n->heads, .kv_heads = (int32_t)n->kv_heads,
              .head_size = (int32_t)n->head_size, .scale = scale, .dt = t->d->dt);
}

int bench_operations_fill(struct bench_table *t, struct bench_device *d, const struct bench_sizes *sizes) {
    *t = (struct bench_table){.d = d, .n = *sizes};
    take_buffers(t);
    if (d->arena.failed || *dev_error(d->dev) || set_tokens(t) || bench_set_copy(d, copy_bytes(sizes)))
        return -1;
    add_embedding(t);
    bool rms = sizes->features & BENCH_RMS;
    if (rms) add_norm(t, NORM_RMS, false);
    if (sizes->features & BENCH_LAYER) add_norm(t, NORM_LAYER, false);
    add_norm(t, rms ? NORM_RMS : NORM_LAYER, true);
    if (sizes->features & BENCH_ROPE) add_rope(t, false);
    if (sizes->features & BENCH_ROPE_BIAS) add_rope(t, true);
    add_pointwise(t);
    add_loss(t);
    add_optimizer(t);
    add_attention(t);
    BENCH_SET(&d->product, matmul, matmul_args, .c = t->z, .a = t->x, .b = t->y, .m = sizes->product,
              .n = sizes->product, .k = sizes->product, .trans_b = true, .dt = d->dt);
    if (!sizes->linears) add_mlp(t);
    for (int i = 0; i < sizes->linears; i++)
        add_linear(t, &sizes->linear[i], i > 0 && sizes->linear[i - 1].gelu);
    add_head(t);
    return 0;
}
