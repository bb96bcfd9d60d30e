// `starring bench kernels` and `bench adam`: compares each operation of a device with the rate that it can reach.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/bench/bench.h"
#include "shared/bench/bench_operations.h"
#include "shared/core/error.h"
#include "shared/core/system.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/predict/memory_limits.h"

// The share of the copy's rate that our own memory-bound kernels should reach on a GPU.
#define TARGET_SHARE 0.85

struct kernels {
    struct bench_device d;
    struct bench_table t;
    int64_t elements;            // the value of --elements; 0: the device's default
    struct bench_request model;  // the model of bench kernels
    // The case: an operation. Seconds of one launch, one value per round.
    struct bench_series seconds;
    struct bench_series yard;  // the yardstick, just before
    struct bench_series peak;  // for FLOP on a host: the peak rate, just before
    int launches, yard_launches;
};

#define DEVICE_OPTIONS                                                                       \
    {"device", "D", "auto, cpu or cuda (auto: a GPU if there is one)", BENCH_KEY("device")}, \
        {"threads", "N", "CPU threads (one per core)", BENCH_KEY("threads")}, {              \
        "dtype", "D", "fp32, bf16 or fp16 (bf16)", BENCH_KEY("dtype")                        \
    }
static const struct bench_option kernels_options[] = {
    DEVICE_OPTIONS,
    {"set", "KEY=VALUE", "cpu.kernel, cuda.attention, cuda.attention_slice, cuda.gelu", BENCH_KEY(CLI_SET)},
    {"model", "M", "the sizes of this model's step: preset, Hugging Face config.json or directory",
     BENCH_STRING(kernels, model.model, NULL)},
    {"batch", "B", "with --model: sequences (1; on a GPU 32)",
     BENCH_INTEGER(kernels, model.batch, 1, 1L << 20, 0)},
    {"seq", "T", "with --model: tokens a sequence (1024, or as many as the model takes)",
     BENCH_INTEGER(kernels, model.seq, 1, 1L << 20, 0)},
    {"elements", "N",
     "parameters the optimizer updates (16777216; on a GPU 134217728), other sizes in proportion; with "
     "--model the optimizer's alone (those of a block)",
     BENCH_INTEGER(kernels, elements, SUMSQ_BLOCK, 1L << 32, 0)},
    {"matmul", "N", "side of the large matrix product (2048; on a GPU 8192)",
     BENCH_INTEGER(kernels, model.product, 1, 65536, 0)}};
static const struct bench_option adam_options[] = {
    DEVICE_OPTIONS,
    {"elements", "N", "parameters (16777216; on a GPU 134217728)",
     BENCH_INTEGER(kernels, elements, 1, 1L << 32, 0)}};

// ---------------------------------------------------------------- set up
// Opens the device that the configuration's keys choose. Returns 0, or -1 after logging.
static int open_device(struct bench_device *b, const struct bench_run *r) {
    // The keys that a single operation depends on.
    static const char *const known[] = {
        "device",    "threads", "dtype", "cpu.kernel", "cuda.attention", "cuda.attention_slice",
        "cuda.gelu", NULL};
    const char *who = r->bench->command.name;
    const struct config_override set[] = {
        {"topology", "local", who}, {"data.path", "demo", who}, {"dtype", "bf16", who}};
    if (cli_only_sets(r->args, known,
                      "is not used here; cpu.kernel, cuda.attention, cuda.attention_slice and "
                      "cuda.gelu are"))
        return -1;
    struct config *c = cli_config(r->topologies, set, sizeof set / sizeof *set, r->args);
    if (!c) return -1;
    device_resolve(c);
    const struct backend *backend = device_backend(c);
    b->dt = c->dtype;
    b->threads = c->threads ? c->threads : processors_given();
    struct device_options o = {
        .threads = b->threads, .label = "bench", .cuda = c->cuda, .kernel = c->cpu_kernel};
    config_destroy(&c);
    if (!backend) return -1;
    if (dev_open(backend, &o, &b->dev)) return fail("cannot open the %s device", backend->name);
    b->s = stream_create(b->dev, "bench");
    if (!b->s) return fail("cannot create a stream: %s", dev_error(b->dev));
    arena_init(&b->arena, b->dev);
    b->gpu = !dev_host_memory(b->dev);
    if (!b->gpu) cpu_peak_init(&b->peak, o.kernel, b->dt, b->threads);
    return b->gpu && dev_facts(b->dev, &b->facts) ? fail("cannot ask the device: %s", dev_error(b->dev)) : 0;
}

static int read_sizes(struct kernels *k, struct bench_sizes *out) {
    struct bench_request *q = &k->model;
    if (!q->model && (q->batch || q->seq))
        return fail("--batch and --seq are a model's: give --model too, or --elements for other sizes");
    q->gpu = k->d.gpu;
    q->dtype = k->d.dt;
    q->elements = k->elements / SUMSQ_BLOCK * SUMSQ_BLOCK;
    if (q->model) return bench_sizes_of_model(q, out);
    *out = bench_sizes_of(q->gpu, q->elements, q->product);
    return 0;
}

// Buffers can exceed the available memory, and on a host no allocation would fail in time.
static int check_memory(const struct bench_device *d, double need_bytes, const char *what,
                        const char *advice) {
    struct memory_limit free = {.free_bytes = (double)d->facts.free_bytes, .name = "free on the GPU"};
    return bench_check_memory(d->gpu ? &free : NULL, need_bytes, what, advice);
}

static void put_header(struct bench_run *r) {
    const struct bench_device *d = &((struct kernels *)r->state)->d;
    char text[200];
    BENCH_PUT(r->document, TEXT("dtype", dtype_name(d->dt)), NUMBER("threads", d->threads),
              TEXT("copy", bench_copy_text(d)));
    if (!d->gpu) {
        cJSON_AddStringToObject(r->document, "peak", cpu_peak_text(&d->peak, text, sizeof text));
        return;
    }
    cJSON_AddStringToObject(
        r->document, "timing",
        "launched in a row for 10 ms or more, then one wait; host clock; ms of one launch");
    json_put(r->document, "target_share_of_copy", TARGET_SHARE);
}

static int set_up_kernels(struct bench_run *r) {
    struct kernels *k = r->state;
    struct bench_sizes n;
    if (open_device(&k->d, r) || read_sizes(k, &n)) return EXIT_USAGE;
    if (check_memory(
            &k->d, (double)bench_table_bytes(k->d.dt, &n), "bench kernels at these sizes takes",
            n.linears ? "try a smaller --batch or --seq, or a smaller model" : "try smaller --elements") ||
        bench_operations_fill(&k->t, &k->d, &n))
        return EXIT_RUN_FAILED;
    put_header(r);
    json_put(r->document, "#matmul_size", (double)n.product);
    if (!k->model.model) return 0;
    BENCH_PUT(r->document, TEXT("model", k->model.model), NUMBER("batch", n.batch), NUMBER("seq", n.seq),
              NUMBER("head_chunk_rows", n.logit_rows));
    return 0;
}

// Sets up AdamW over n elements, and a copy of as many bytes.
static int set_adam(struct bench_device *d, struct bench_work *w, int64_t n) {
    struct update_scalars *scalars = arena_take(&d->arena, MEM_WORKSPACE, sizeof *scalars);
    struct exact_sum *sum = arena_take(&d->arena, MEM_WORKSPACE, sizeof *sum);
    void *master = bench_buffer(d, DT_F32, n, 1.0f), *m = bench_buffer(d, DT_F32, n, 0.1f);
    void *v = bench_buffer(d, DT_F32, n, -0.01f), *weight = bench_buffer(d, d->dt, n, 1.0f);
    void *grad = bench_buffer(d, d->dt, n, 1.0f);
    snprintf(w->shape, sizeof w->shape, "whole arrays");
    if (d->arena.failed) return -1;
    op_decide(d->s, &(struct decide_args){.scalars = scalars, .sum = sum, .loss_scale = 1.0f});
    struct update_args a = bench_update(d->dt, n);
    a.master = master;
    a.m = m;
    a.v = v;
    a.weight = weight;
    a.grad = grad;
    a.scalars = scalars;
    bench_set_adamw(w, &a);
    return bench_set_copy(d, (int64_t)(w->work.bytes / 2)) || stream_sync(d->s) ? -1 : 0;
}

static int set_up_adam(struct bench_run *r) {
    struct kernels *k = r->state;
    if (open_device(&k->d, r)) return EXIT_USAGE;
    int64_t n = k->elements ? k->elements : k->d.gpu ? 1L << 27 : 1L << 24;
    // Masters, moments, gradients and weights; then the copy's arrays, with as many bytes as are read and written.
    double of_one = 12 + 2 * (double)dtype_size(k->d.dt);
    if (check_memory(&k->d, (double)n * (of_one + 12 + of_one), "bench adam at these sizes takes",
                     "try smaller --elements") ||
        set_adam(&k->d, &k->t.work[0], n))
        return EXIT_RUN_FAILED;
    k->t.count = 1;
    put_header(r);
    BENCH_PUT(r->document, NUMBER("elements", n),
              NUMBER("#element_bytes", k->t.work[0].work.bytes / (double)n));
    return 0;
}

// ---------------------------------------------------------------- one operation
static bool computes(const struct bench_work *w) { return w->work.flops > 0; }

static const struct bench_work *yard_of(const struct kernels *k, const struct bench_work *w) {
    return computes(w) ? &k->d.product : &k->d.copy;
}

static int begin(struct bench_run *r) {
    struct kernels *k = r->state;
    if (r->at == k->t.count) return BENCH_END;
    const struct bench_work *w = &k->t.work[r->at];
    k->yard_launches = bench_launch_count(&k->d, yard_of(k, w));
    k->launches = bench_launch_count(&k->d, w);
    if (computes(w) && !k->d.gpu) bench_peak(k->d.s, &k->d.peak);
    return 0;
}

static int time_round(struct bench_run *r) {
    struct kernels *k = r->state;
    struct bench_device *d = &k->d;
    const struct bench_work *w = &k->t.work[r->at];
    if (computes(w) && !d->gpu) bench_measured(r, &k->peak, bench_peak(d->s, &d->peak));
    bench_measured(r, &k->yard, bench_launches(d->s, yard_of(k, w), k->yard_launches) / k->yard_launches);
    bench_measured(r, &k->seconds, bench_launches(d->s, w, k->launches) / k->launches);
    return 0;
}

static cJSON *put_operation(struct bench_run *r, const char *key) {
    struct kernels *k = r->state;
    const struct bench_work *w = &k->t.work[r->at], *yard = yard_of(k, w);
    bool flops = computes(w);
    double amount = flops ? w->work.flops : w->work.bytes,
           of_yard = flops ? yard->work.flops : yard->work.bytes;
    double seconds = bench_series_median(&k->seconds), yard_rate = of_yard / bench_series_median(&k->yard);
    double share = amount / of_yard * bench_series_ratio(&k->yard, &k->seconds);
    cJSON *j = bench_row(r, key);
    BENCH_PUT(j, TEXT("operation", op_name(w->op)), TEXT("shape", w->shape), NUMBER("seconds", seconds),
              NUMBER(flops ? "flops" : "bytes", amount),
              NUMBER(flops ? "flops_per_second" : "bytes_per_second", amount / seconds),
              NUMBER(flops ? "matmul_flops_per_second" : "copy_bytes_per_second", yard_rate),
              NUMBER(flops ? "share_of_matmul" : "share_of_copy", share));
    cJSON_DeleteItemFromObject(r->document, flops ? "#matmul_rate" : "#copy_rate");
    json_put(r->document, flops ? "#matmul_rate" : "#copy_rate", yard_rate);
    if (flops && !k->d.gpu) {
        double peak = k->d.peak.flops, of_peak = amount / peak * bench_series_ratio(&k->peak, &k->seconds);
        BENCH_PUT(j, NUMBER("peak_flops_per_second", peak / bench_series_median(&k->peak)),
                  NUMBER("share_of_peak", of_peak),
                  NUMBER("matmul_share_of_peak", of_yard / peak * bench_series_ratio(&k->peak, &k->yard)));
        if (of_peak > 1)
            cJSON_AddStringToObject(j, "#note", "of peak above 1: the machine changed its speed in between");
    }
    if (k->d.gpu) json_put(j, "launches", k->launches);
    // The target is for our own memory-bound kernels, on tensors that are several times the L2.
    if (k->d.gpu && !flops && !w->tiny && amount > 4.0 * (double)k->d.facts.l2_bytes)
        cJSON_AddBoolToObject(j, "target_reached", share >= TARGET_SHARE);
    return j;
}

// Reads the device's facts after the measurements: they say which kernels ran.
static int read_facts(struct bench_run *r) {
    struct kernels *k = r->state;
    int reported = 0;
    device_notes_print(k->d.dev, &reported);
    if (!k->d.gpu) return 0;
    if (dev_facts(k->d.dev, &k->d.facts))
        return fail("cannot ask the device: %s", dev_error(k->d.dev)), EXIT_RUN_FAILED;
    bench_put_device(r->document, &k->d.facts);
    return 0;
}

static int end_operation(const struct bench_run *r) {
    struct kernels *k = r->state;
    if (!stream_sync(k->d.s)) return 0;
    fail("%s: %s", op_name(k->t.work[r->at].op), dev_error(k->d.dev));
    return EXIT_RUN_FAILED;
}

static int rows_kernels(struct bench_run *r) {
    const struct kernels *k = r->state;
    const cJSON *row = put_operation(r, NULL);
    if (r->at == k->t.count - 1) {  // the last row is a product
        BENCH_PUT(r->document, NUMBER("#peak_rate", json_number(row, "peak_flops_per_second")),
                  NUMBER("#matmul_share_of_peak", json_number(row, "matmul_share_of_peak")));
    }
    return end_operation(r);
}

static int rows_adam(struct bench_run *r) {
    json_put(r->document, "share_of_copy", json_number(put_operation(r, "adam"), "share_of_copy"));
    return end_operation(r);
}

static void tear_down(struct bench_run *r) {
    struct kernels *k = r->state;
    if (!k->d.dev) return;
    if (k->d.s) stream_destroy(&k->d.s);
    arena_release(&k->d.arena);
    dev_close(&k->d.dev);
}

// ---------------------------------------------------------------- the rows
const struct bench bench_kernels = {
    .about = "each operation compared with a copy or a matrix product",
    .command =
        {
            .name = "bench kernels",
            .usage = "[--model M] [--batch B] [--seq T] [--dtype D] [--threads N] [OPTIONS]",
            .summary =
                "Times every operation of the model and the optimizer at the sizes of a training step, each in turn\n"
                "with a copy of a large array (for what moves bytes) or a large matrix product (for what computes);\n"
                "on a CPU also with the peak of its multiply-add. With --model the operations are those of that model,\n"
                "at its widths, heads and vocabulary, and the logits come in the chunks that a run of it cuts; without,\n"
                "sizes that show both kinds of models.",
            .examples =
                "  starring bench kernels --dtype bf16\n"
                "  starring bench kernels --model gpt2-124m --batch 2 --seq 512\n"
                "  starring bench kernels --model qwen2.5-1.5b --batch 32 --seq 1024 --device cuda --json\n"
                "  starring bench kernels --dtype fp32 --threads 1 --json\n",
        },
    BENCH_OPTIONS(kernels_options),
    .state_bytes = sizeof(struct kernels),
    .rounds = 7,
    .set_up = set_up_kernels,
    .begin = begin,
    .round = time_round,
    .rows = rows_kernels,
    .finish = read_facts,
    .tear_down = tear_down,
    .list = "operations",
    .rows_last = true,
    .head = BENCH_LINES(
        {NULL, "a step of {model}: {batch} x {seq} tokens, logits in chunks of {head_chunk_rows} rows"}),
    .columns = BENCH_COLUMNS(
        {"operation", NULL, "<{operation}"}, {"shape", NULL, "<{shape}"}, {"time", "ms", "{seconds:.3m}"},
        {"rate", "GB/s", "{bytes_per_second:.1G}"}, {"share", "of copy", "{share_of_copy:.2}"},
        {"rate", "GFLOP/s", "{flops_per_second:.1G}"}, {"share", "of matmul", "{share_of_matmul:.2}"},
        {"share", "of peak", "{share_of_peak:.2}"},
        {"target", "of copy", "{target_share_of_copy:.2} {target_reached?reached:missed}"}),
    .below = BENCH_LINES({NULL, "{#note}"}),
    .foot = BENCH_LINES(
        {"",
         "{dtype}, {threads} thread{threads:s} of the host, medians of {rounds} round{rounds:s}, each operation just after its yardstick"},
        {"timing", "{timing}"}, {"device", "{#device}"}, {"", "{#device_work}"},
        {"copy", "{#copy_rate:.1G} GB/s: {copy}"},
        {"matmul", "{#matmul_rate:.1G} GFLOP/s: {#matmul_size} x {#matmul_size} x {#matmul_size}, same type"},
        {"peak", "{#peak_rate:.1G} GFLOP/s, {#matmul_share_of_peak:.2} of it the matmul: {peak}"}),
};

const struct bench bench_adam = {
    .about = "the optimizer compared with a copy of the same bytes",
    .command =
        {
            .name = "bench adam",
            .usage = "[--dtype D] [--threads N] [OPTIONS]",
            .summary =
                "Times AdamW over arrays larger than the caches, in turn with a copy that moves as many bytes.",
            .examples = "  starring bench adam --dtype bf16\n"
                        "  starring bench adam --dtype fp32 --elements 33554432 --json\n",
        },
    BENCH_OPTIONS(adam_options),
    .state_bytes = sizeof(struct kernels),
    .rounds = 7,
    .set_up = set_up_adam,
    .begin = begin,
    .round = time_round,
    .rows = rows_adam,
    .finish = read_facts,
    .tear_down = tear_down,
    .foot = BENCH_LINES(
        {"adamw",
         "{adam.bytes_per_second:.1G} GB/s: {elements} elements, {dtype} gradients and weights, {#element_bytes} bytes each read and written, {adam.seconds:.2m} ms"},
        {"copy", "{adam.copy_bytes_per_second:.1G} GB/s: {copy}"},
        {"share",
         "{share_of_copy:.2} of the copy, {threads} thread{threads:s} of the host, median of {rounds} round{rounds:s} taken in turn"},
        {"target", "{target_share_of_copy:.2}"}, {"device", "{#device}"}, {"timing", "{timing}"}),
};
