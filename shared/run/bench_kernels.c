#include "shared/run/bench_kernels.h"

#include <cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/run/bench_work.h"
#include "shared/run/cli.h"

#define BENCH_OPTIONS                                                         \
    {"threads", NULL, "N", "CPU threads (one per core)", 0},                  \
        {"dtype", NULL, "D", "fp32, bf16 or fp16 (bf16)", 0},                 \
        {"rounds", NULL, "N", "timed rounds; medians are printed (7)", 0}, {  \
        "json", NULL, NULL, "print one JSON document instead of the table", 0 \
    }

static const struct cli_option kernels_options[] = {BENCH_OPTIONS};
static const struct cli_option adam_options[] = {BENCH_OPTIONS,
                                                 {"elements", NULL, "N", "parameters (16777216)", 0}};

static const struct cli_command kernels_command = {
    .name = "bench kernels",
    .usage = "[--dtype D] [--threads N] [OPTIONS]",
    .summary =
        "Times every operation of the model and the optimizer at the sizes of a training step, each in turn\n"
        "with a copy of a large array (for what moves bytes) or a large matrix product (for what computes).",
    .examples =
        "  starring bench kernels --dtype bf16\n"
        "  starring bench kernels --dtype fp32 --threads 1 --json\n",
    .options = kernels_options,
    .option_count = sizeof kernels_options / sizeof *kernels_options,
};
static const struct cli_command adam_command = {
    .name = "bench adam",
    .usage = "[--dtype D] [--threads N] [OPTIONS]",
    .summary =
        "Times AdamW over arrays larger than the caches, in turn with a copy that moves as many bytes.",
    .examples =
        "  starring bench adam --dtype bf16\n"
        "  starring bench adam --dtype fp32 --elements 33554432 --json\n",
    .options = adam_options,
    .option_count = sizeof adam_options / sizeof *adam_options,
};

static const char copy_text[] =
    "glibc's memcpy between two large arrays, same threads (it may bypass the caches); bytes read + written";

// ---------------------------------------------------------------- the sizes of a step
enum {
    BATCH = 4,
    SEQ = 1024,
    ROWS = BATCH * SEQ,
    CHANNELS = 768,
    HEADS = 12,
    HEAD_SIZE = 64,
    WIDTH = 2048,  // of SwiGLU
    WIDE = 3072,   // of GELU
    VOCAB = 50257,
    LOGIT_ROWS = 512,
    UNIT = 16 * 1024 * 1024,  // elements the optimizer updates
    WAYS = 4,                 // buffers a reduction sums
    YARD = 2048,              // the large matrix product
    WORKS_MAX = 32,
};

// All buffers hold at least LARGE elements unless a shape is given.
#define LARGE ((int64_t)VOCAB * CHANNELS)

struct kernels {
    struct bench_device d;
    void *x, *y, *z;                  // (LARGE)
    void *qkv, *out;                  // (ROWS, 3*CHANNELS), (ROWS, CHANNELS)
    float *master, *m, *v;            // (UNIT)
    float *mean, *rstd, *lse, *loss;  // (ROWS), (ROWS), (ROWS * HEADS), (ROWS)
    float *cos_sin;                   // (SEQ, HEAD_SIZE/2, 2)
    int32_t *tokens;                  // (ROWS)
    void *scratch;
    struct exact_sum *sum;
    struct update_scalars *scalars;
    double *total;
    const void *inputs[WAYS];
    struct bench_work work[WORKS_MAX];
    int count;
};

static size_t largest(size_t a, size_t b) { return a > b ? a : b; }

static int take_buffers(struct kernels *k) {
    struct bench_device *d = &k->d;
    size_t scratch = largest(norm_bwd_scratch_bytes(CHANNELS),
                             largest(embed_bwd_scratch_bytes(BATCH, SEQ, CHANNELS, VOCAB),
                                     attn_scratch_bytes(BATCH, SEQ, HEADS, HEADS, HEAD_SIZE)));
    int32_t *tokens = xcalloc(ROWS, sizeof *tokens);
    for (uint32_t i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)(i * 2654435761u % 7919u % VOCAB);  // some repeat
    k->x = bench_buffer(d, d->dt, LARGE, 1.0f);
    k->y = bench_buffer(d, d->dt, LARGE, 1.0f);
    k->z = bench_buffer(d, d->dt, LARGE, 1.0f);
    k->qkv = bench_buffer(d, d->dt, (int64_t)ROWS * 3 * CHANNELS, 1.0f);
    k->out = bench_buffer(d, d->dt, (int64_t)ROWS * CHANNELS, 1.0f);
    k->master = bench_buffer(d, DT_F32, UNIT, 1.0f);
    k->m = bench_buffer(d, DT_F32, UNIT, 0.1f);
    k->v = bench_buffer(d, DT_F32, UNIT, -0.01f);
    k->mean = bench_buffer(d, DT_F32, ROWS, 0.1f);
    k->rstd = bench_buffer(d, DT_F32, ROWS, -1.0f);
    k->lse = bench_buffer(d, DT_F32, ROWS * HEADS, 1.0f);
    k->loss = bench_buffer(d, DT_F32, ROWS, 1.0f);
    k->cos_sin = bench_buffer(d, DT_F32, SEQ * HEAD_SIZE, 1.0f);
    k->tokens = arena_take(&d->arena, MEM_WORKSPACE, ROWS * sizeof *tokens);
    k->scratch = arena_take(&d->arena, MEM_WORKSPACE, scratch);
    k->sum = arena_take(&d->arena, MEM_WORKSPACE, sizeof *k->sum);
    k->scalars = arena_take(&d->arena, MEM_WORKSPACE, sizeof *k->scalars);
    k->total = arena_take(&d->arena, MEM_WORKSPACE, sizeof *k->total);
    if (!d->arena.failed) dev_copy(d->s, k->tokens, tokens, ROWS * sizeof *tokens);
    int rc = stream_sync(d->s) || d->arena.failed ? -1 : 0;
    free(tokens);
    for (int i = 0; i < WAYS; i++) k->inputs[i] = i % 2 ? k->y : k->x;
    return rc;
}

static struct bench_work *add(struct kernels *k, const char *shape, double bytes, double flops) {
    struct bench_work *w = &k->work[k->count++];
    w->shape = shape;
    w->bytes = bytes;
    w->flops = flops;
    return w;
}

static void add_model(struct kernels *k) {
    enum dtype dt = k->d.dt;
    double e = (double)dtype_size(dt), rc = (double)ROWS * CHANNELS * e, rn = (double)ROWS * WIDE;
    double rf = (double)ROWS * WIDTH * e, lv = (double)LOGIT_ROWS * VOCAB * e;
    BENCH_SET(add(k, "R=4096 N=3072", rn * e, 0), OP_BIAS_GRAD, bias_grad_args, .dbias = k->out, .dy = k->x,
              .rows = ROWS, .n = WIDE, .dt = dt);
    BENCH_SET(add(k, "R=4096 C=768 V=50257", 3 * rc, 0), OP_EMBED_FWD, embed_fwd_args, .out = k->out,
              .tokens = k->tokens, .wte = k->x, .wpe = k->y, .batch = BATCH, .seq = SEQ, .channels = CHANNELS,
              .dt = dt);
    BENCH_SET(add(k, "R=4096 C=768 V=50257 zeroed", rc + (double)LARGE * e, 0), OP_EMBED_BWD, embed_bwd_args,
              .dwte = k->z, .dout = k->x, .tokens = k->tokens, .scratch = k->scratch, .batch = BATCH,
              .seq = SEQ, .channels = CHANNELS, .vocab = VOCAB, .zero_dwte = true, .dt = dt);
    BENCH_SET(add(k, "R=4096 C=768 RMS, residual", 4 * rc, 0), OP_NORM_FWD, norm_fwd_args, .y = k->out,
              .sum = k->z, .rstd = k->rstd, .x = k->x, .residual = k->y, .weight = k->x, .rows = ROWS,
              .channels = CHANNELS, .eps = 1e-5f, .kind = NORM_RMS, .dt = dt);
    BENCH_SET(add(k, "R=4096 C=768 layer, residual", 4 * rc, 0), OP_NORM_FWD, norm_fwd_args, .y = k->out,
              .sum = k->z, .mean = k->mean, .rstd = k->rstd, .x = k->x, .residual = k->y, .weight = k->x,
              .bias = k->y, .rows = ROWS, .channels = CHANNELS, .eps = 1e-5f, .kind = NORM_LAYER, .dt = dt);
    BENCH_SET(add(k, "R=4096 C=768 RMS, residual", 4 * rc, 0), OP_NORM_BWD, norm_bwd_args, .dx = k->out,
              .dweight = k->z, .dy = k->x, .dresidual = k->y, .x = k->qkv, .rstd = k->rstd, .weight = k->x,
              .scratch = k->scratch, .rows = ROWS, .channels = CHANNELS, .kind = NORM_RMS, .dt = dt);
    BENCH_SET(add(k, "B=4 T=1024 H=12 D=64", 4 * rc, 0), OP_ROPE, rope_args, .qkv = k->z,
              .cos_sin = k->cos_sin, .batch = BATCH, .seq = SEQ, .heads = HEADS, .kv_heads = HEADS,
              .head_size = HEAD_SIZE, .dt = dt);
    BENCH_SET(add(k, "n=12582912", 2 * rn * e, 0), OP_GELU_FWD, gelu_args, .y = k->z, .x = k->x,
              .n = ROWS * WIDE, .dt = dt);
    BENCH_SET(add(k, "n=12582912", 3 * rn * e, 0), OP_GELU_BWD, gelu_args, .y = k->z, .x = k->x, .dy = k->y,
              .n = ROWS * WIDE, .dt = dt);
    BENCH_SET(add(k, "R=4096 F=2048", 3 * rf, 0), OP_SWIGLU_FWD, swiglu_args, .y = k->z, .gate_up = k->x,
              .rows = ROWS, .width = WIDTH, .dt = dt);
    BENCH_SET(add(k, "R=4096 F=2048", 5 * rf, 0), OP_SWIGLU_BWD, swiglu_args, .y = k->z, .gate_up = k->x,
              .dy = k->y, .rows = ROWS, .width = WIDTH, .dt = dt);
    BENCH_SET(add(k, "n=12582912", 3 * rn * e, 0), OP_ADD, add_args, .y = k->z, .a = k->x, .b = k->y,
              .n = ROWS * WIDE, .dt = dt);
    BENCH_SET(add(k, "R=512 V=50257, gradient", 2 * lv, 0), OP_XENT, xent_args, .logits = k->z,
              .loss = k->loss, .targets = k->tokens, .rows = LOGIT_ROWS, .vocab = VOCAB, .grad_scale = 1.0f,
              .want_grad = true, .dt = dt);
    BENCH_SET(add(k, "R=4096", ROWS * 4.0, 0), OP_LOSS_SUM, loss_sum_args, .out = k->total, .loss = k->loss,
              .rows = ROWS);
}

static void add_optimizer(struct kernels *k) {
    enum dtype dt = k->d.dt;
    double n = UNIT, e = (double)dtype_size(dt);
    BENCH_SET(add(k, "n=16777216", n * e, 0), OP_SUMSQ, sumsq_args, .out = k->sum, .x = k->x, .n = UNIT,
              .zero_out = true, .dt = dt);
    BENCH_SET(add(k, "one sum", sizeof(struct exact_sum), 0), OP_DECIDE, decide_args, .scalars = k->scalars,
              .sum = k->sum, .loss_scale = 1.0f, .clip = 1.0f);
    BENCH_SET(add(k, "n=16777216", n * (24 + 2 * e), 0), OP_ADAMW, adamw_args, .master = k->master, .m = k->m,
              .v = k->v, .weight = k->z, .grad = k->x, .scalars = k->scalars, .n = UNIT, .lr = 1e-4f,
              .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .inv_bc1 = 1.1f,
              .inv_sqrt_bc2 = 1.1f, .dt = dt);
    BENCH_SET(add(k, "n=16777216 of 4", n * e * (WAYS + 1), 0), OP_REDUCE, reduce_args, .out = k->z,
              .inputs = k->inputs, .count = WAYS, .n = UNIT, .dt = dt);
    BENCH_SET(add(k, "n=16777216 from fp32", n * (4 + e), 0), OP_CAST, cast_args, .out = k->z,
              .in = k->master, .n = UNIT, .from = DT_F32, .to = dt);
    BENCH_SET(add(k, "32 MiB", n * 2, 0), OP_FILL_ZERO, fill_zero_args, .out = k->z,
              .bytes = (int64_t)UNIT * 2);
}

static void add_products(struct kernels *k) {
    enum dtype dt = k->d.dt;
    // The causal half of scores and values: 2 products of B H T^2 D multiply-adds, halved; backward: 5.
    double causal = (double)BATCH * HEADS * SEQ * SEQ * HEAD_SIZE, mlp = 2.0 * ROWS * WIDE * CHANNELS;
    BENCH_SET(&k->d.product, OP_MATMUL, matmul_args, .c = k->z, .a = k->x, .b = k->y, .m = YARD, .n = YARD,
              .k = YARD, .trans_b = true, .dt = dt);
    k->d.product.flops = 2.0 * YARD * YARD * YARD;
    BENCH_SET(add(k, "4096x3072x768 forward", 0, mlp), OP_MATMUL, matmul_args, .c = k->z, .a = k->x,
              .b = k->y, .bias = k->x, .m = ROWS, .n = WIDE, .k = CHANNELS, .trans_b = true, .dt = dt);
    BENCH_SET(add(k, "3072x768x4096 weight grad", 0, mlp), OP_MATMUL, matmul_args, .c = k->z, .a = k->x,
              .b = k->y, .m = WIDE, .n = CHANNELS, .k = ROWS, .trans_a = true, .accumulate = true, .dt = dt);
    BENCH_SET(add(k, "B=4 T=1024 H=12 D=64 causal", 0, 2 * causal), OP_ATTN_FWD, attn_fwd_args, .out = k->out,
              .lse = k->lse, .qkv = k->qkv, .scratch = k->scratch, .batch = BATCH, .seq = SEQ, .heads = HEADS,
              .kv_heads = HEADS, .head_size = HEAD_SIZE, .scale = 0.125f, .dt = dt);
    BENCH_SET(add(k, "B=4 T=1024 H=12 D=64 causal", 0, 5 * causal), OP_ATTN_BWD, attn_bwd_args, .dqkv = k->z,
              .dout = k->x, .qkv = k->qkv, .out = k->out, .lse = k->lse, .scratch = k->scratch,
              .batch = BATCH, .seq = SEQ, .heads = HEADS, .kv_heads = HEADS, .head_size = HEAD_SIZE,
              .scale = 0.125f, .dt = dt);
}

// ---------------------------------------------------------------- results
static double rate_of(const struct bench_device *d, const struct bench_work *w) {
    return (w->flops > 0 ? w->flops : w->bytes) / bench_median(w->seconds, d->rounds);
}

static double yard_rate(const struct bench_device *d, const struct bench_work *w) {
    double seconds = bench_median(w->yard_seconds, d->rounds);
    return (w->flops > 0 ? d->product.flops : d->copy.bytes) / seconds;
}

static cJSON *work_json(const struct bench_device *d, const struct bench_work *w) {
    bool computes = w->flops > 0;
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "operation", op_name(w->op));
    cJSON_AddStringToObject(j, "shape", w->shape);
    cJSON_AddNumberToObject(j, "seconds", bench_median(w->seconds, d->rounds));
    cJSON_AddNumberToObject(j, computes ? "flops" : "bytes", computes ? w->flops : w->bytes);
    cJSON_AddNumberToObject(j, computes ? "flops_per_second" : "bytes_per_second", rate_of(d, w));
    cJSON_AddNumberToObject(j, computes ? "matmul_flops_per_second" : "copy_bytes_per_second",
                            yard_rate(d, w));
    cJSON_AddNumberToObject(j, computes ? "share_of_matmul" : "share_of_copy", bench_share(d, w));
    return j;
}

static cJSON *header_json(const struct bench_device *d, const char *what) {
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "bench", what);
    cJSON_AddStringToObject(j, "dtype", dtype_name(d->dt));
    cJSON_AddNumberToObject(j, "threads", d->threads);
    cJSON_AddNumberToObject(j, "rounds", d->rounds);
    cJSON_AddStringToObject(j, "copy", copy_text);
    return j;
}

static void print_json(cJSON *j) {
    char *text = cJSON_Print(j);
    puts(text);
    free(text);
    cJSON_Delete(j);
}

static void print_row(const struct bench_device *d, const struct bench_work *w) {
    bool computes = w->flops > 0;
    printf("%-12s %-30s %10.3f %9.1f %-7s %6.2f of %s\n", op_name(w->op), w->shape,
           bench_median(w->seconds, d->rounds) * 1e3, rate_of(d, w) * 1e-9, computes ? "GFLOP/s" : "GB/s",
           bench_share(d, w), computes ? "matmul" : "copy");
}

static void print_kernels(const struct kernels *k) {
    const struct bench_work *last = &k->work[k->count - 1];
    printf("%-12s %-30s %10s %9s %-7s %6s\n", "operation", "shape", "ms", "rate", "", "share");
    for (int i = 0; i < k->count; i++) print_row(&k->d, &k->work[i]);
    printf("\n%s, %d threads, medians of %d rounds, each operation just after its yardstick\n",
           dtype_name(k->d.dt), k->d.threads, k->d.rounds);
    printf("copy    %.1f GB/s: %s\n", yard_rate(&k->d, &k->work[0]) * 1e-9, copy_text);
    printf("matmul  %.1f GFLOP/s: %d x %d x %d, same type\n", yard_rate(&k->d, last) * 1e-9, YARD, YARD,
           YARD);
}

static int run_kernels(struct kernels *k, bool json) {
    if (take_buffers(k) || bench_set_copy(&k->d, (int64_t)UNIT * 4)) return -1;
    add_model(k);
    add_optimizer(k);
    add_products(k);
    for (int i = 0; i < k->count; i++)
        if (bench_measure(&k->d, &k->work[i])) return -1;
    if (!json) {
        print_kernels(k);
        return 0;
    }
    cJSON *j = header_json(&k->d, "kernels"), *rows = cJSON_AddArrayToObject(j, "operations");
    for (int i = 0; i < k->count; i++) cJSON_AddItemToArray(rows, work_json(&k->d, &k->work[i]));
    print_json(j);
    return 0;
}

int bench_kernels(int argc, char **argv) {
    struct cli_args args;
    struct kernels *k = xcalloc(1, sizeof *k);
    enum cli_outcome outcome = cli_parse(&kernels_command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !bench_open(&k->d, &args))
        status = run_kernels(k, cli_get(&args, "json") != NULL) ? EXIT_RUN_FAILED : 0;
    bench_close(&k->d);
    cli_args_free(&args);
    free(k);
    return status;
}

// ---------------------------------------------------------------- AdamW alone
// Reads gradient, master, m and v; writes master, m, v and the weight.
static int set_adam(struct bench_device *d, struct bench_work *w, int64_t n) {
    struct update_scalars *scalars = arena_take(&d->arena, MEM_WORKSPACE, sizeof *scalars);
    struct exact_sum *sum = arena_take(&d->arena, MEM_WORKSPACE, sizeof *sum);
    void *master = bench_buffer(d, DT_F32, n, 1.0f), *m = bench_buffer(d, DT_F32, n, 0.1f);
    void *v = bench_buffer(d, DT_F32, n, -0.01f), *weight = bench_buffer(d, d->dt, n, 1.0f);
    void *grad = bench_buffer(d, d->dt, n, 1.0f);
    w->shape = "whole arrays";
    w->bytes = (double)n * (24.0 + 2.0 * (double)dtype_size(d->dt));
    if (d->arena.failed || bench_set_copy(d, (int64_t)(w->bytes / 2))) return -1;
    op_decide(d->s, &(struct decide_args){.scalars = scalars, .sum = sum, .loss_scale = 1.0f});
    BENCH_SET(w, OP_ADAMW, adamw_args, .master = master, .m = m, .v = v, .weight = weight, .grad = grad,
              .scalars = scalars, .n = n, .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
              .weight_decay = 0.1f, .inv_bc1 = 1.1f, .inv_sqrt_bc2 = 1.1f, .dt = d->dt);
    return stream_sync(d->s);
}

static int run_adam(struct bench_device *d, struct bench_work *w, const struct cli_args *args) {
    long n;
    if (cli_integer(args, "elements", 1, 1L << 32, UNIT, &n)) return EXIT_USAGE;
    if (set_adam(d, w, n) || bench_measure(d, w)) return EXIT_RUN_FAILED;
    if (cli_get(args, "json")) {
        cJSON *j = header_json(d, "adam"), *row = work_json(d, w);
        cJSON_AddNumberToObject(j, "elements", (double)n);
        cJSON_AddItemToObject(j, "adam", row);
        cJSON_AddNumberToObject(j, "share_of_copy", bench_share(d, w));
        print_json(j);
        return 0;
    }
    printf(
        "adamw   %.1f GB/s: %ld elements, %s gradients and weights, %.0f bytes each read and written, %.2f "
        "ms\n",
        rate_of(d, w) * 1e-9, n, dtype_name(d->dt), w->bytes / (double)n,
        bench_median(w->seconds, d->rounds) * 1e3);
    printf("copy    %.1f GB/s: %s\n", yard_rate(d, w) * 1e-9, copy_text);
    printf("share   %.2f of the copy, %d threads, median of %d rounds taken in turn\n", bench_share(d, w),
           d->threads, d->rounds);
    return 0;
}

int bench_adam(int argc, char **argv) {
    struct cli_args args;
    struct bench_device d = {0};
    struct bench_work *w = xcalloc(1, sizeof *w);
    enum cli_outcome outcome = cli_parse(&adam_command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !bench_open(&d, &args)) status = run_adam(&d, w, &args);
    bench_close(&d);
    cli_args_free(&args);
    free(w);
    return status;
}
