#include "shared/bench/bench_table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/core/rng.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static size_t scratch_bytes(const struct bench_sizes *n) {
    size_t norm = norm_bwd_scratch_bytes(n->channels);
    size_t embed = embed_bwd_scratch_bytes(n->batch, n->seq, n->channels, n->vocab);
    size_t attention =
        attn_scratch_bytes(n->batch, n->seq, (int32_t)n->heads, (int32_t)n->kv_heads, (int32_t)n->head_size);
    return larger(norm, larger(embed, attention));
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

// Random tokens, some repeat.
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
    t->inputs[0] = t->x;  // each its own: a second read of one would come from the caches
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

// The same function as takes them, against an arena that counts.
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

int bench_table_open(struct bench_table *t, struct bench_device *d, const struct bench_sizes *sizes) {
    *t = (struct bench_table){.d = d, .n = *sizes};
    take_buffers(t);
    if (d->arena.failed || *dev_error(d->dev) || set_tokens(t)) return -1;
    return bench_set_copy(d, copy_bytes(sizes));
}

struct bench_work *bench_add(struct bench_table *t, double bytes, double flops, const char *shape, ...) {
    assert(t->count < BENCH_WORKS_MAX);
    struct bench_work *w = &t->work[t->count++];
    va_list ap;
    va_start(ap, shape);
    vsnprintf(w->shape, sizeof w->shape, shape, ap);
    va_end(ap);
    w->bytes = bytes;
    w->flops = flops;
    return w;
}
