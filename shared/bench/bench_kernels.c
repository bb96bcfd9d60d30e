// `starring bench kernels` and `bench adam`: compares each operation of a device with the rate that it can reach.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/bench/bench.h"
#include "shared/bench/bench_operations.h"
#include "shared/config/cli.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/device/device_facts.h"
#include "shared/predict/memory_limits.h"

// The share of the copy's rate that our own memory-bound kernels should reach on a GPU.
#define TARGET_SHARE 0.85

#define BENCH_OPTIONS                                                            \
    {"device", NULL, "D", "auto, cpu or cuda (auto: a GPU if there is one)", 0}, \
        {"threads", NULL, "N", "CPU threads (one per core)", 0},                 \
        {"dtype", NULL, "D", "fp32, bf16 or fp16 (bf16)", 0},                    \
        {"rounds", NULL, "N", "timed rounds; medians are printed (7)", 0}, {     \
        "json", NULL, NULL, "print one JSON document instead of the table", 0    \
    }

static const struct cli_option kernels_options[] = {
    BENCH_OPTIONS,
    {"set", CLI_SET, "KEY=VALUE", "cpu.kernel, cuda.attention, cuda.attention_slice, cuda.gelu", 0},
    {"model", NULL, "M", "the sizes of this model's step: preset, Hugging Face config.json or directory", 0},
    {"batch", NULL, "B", "with --model: sequences (1; on a GPU 32)", 0},
    {"seq", NULL, "T", "with --model: tokens a sequence (1024, or as many as the model takes)", 0},
    {"elements", NULL, "N",
     "parameters the optimizer updates (16777216; on a GPU 134217728), other sizes in proportion; with "
     "--model the optimizer's alone (those of a block)",
     0},
    {"matmul", NULL, "N", "side of the large matrix product (2048; on a GPU 8192)", 0}};
static const struct cli_option adam_options[] = {
    BENCH_OPTIONS, {"elements", NULL, "N", "parameters (16777216; on a GPU 134217728)", 0}};

static const struct cli_command kernels_command = {
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
    CLI_OPTIONS(kernels_options),
};
static const struct cli_command adam_command = {
    .name = "bench adam",
    .usage = "[--dtype D] [--threads N] [OPTIONS]",
    .summary =
        "Times AdamW over arrays larger than the caches, in turn with a copy that moves as many bytes.",
    .examples =
        "  starring bench adam --dtype bf16\n"
        "  starring bench adam --dtype fp32 --elements 33554432 --json\n",
    CLI_OPTIONS(adam_options),
};

#define PEAK_TEXT 200

// ---------------------------------------------------------------- results
static const char timing_text[] =
    "launched in a row for 10 ms or more, then one wait; host clock; ms of one launch";

// The target is for our own memory-bound kernels, on tensors that are several times the L2.
static bool has_target(const struct bench_device *d, const struct bench_work *w) {
    return d->gpu && w->work.flops <= 0 && !w->tiny && w->work.bytes > 4.0 * (double)d->facts.l2_bytes;
}

static double rate_of(const struct bench_device *d, const struct bench_work *w) {
    return (w->work.flops > 0 ? w->work.flops : w->work.bytes) / bench_median(w->seconds, d->rounds);
}

static double yard_rate(const struct bench_device *d, const struct bench_work *w) {
    double seconds = bench_median(w->yard_seconds, d->rounds);
    return (w->work.flops > 0 ? d->product.work.flops : d->copy.work.bytes) / seconds;
}

static cJSON *work_json(const struct bench_device *d, const struct bench_work *w) {
    bool computes = w->work.flops > 0;
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "operation", op_name(w->op));
    cJSON_AddStringToObject(j, "shape", w->shape);
    cJSON_AddNumberToObject(j, "seconds", bench_median(w->seconds, d->rounds));
    cJSON_AddNumberToObject(j, computes ? "flops" : "bytes", computes ? w->work.flops : w->work.bytes);
    cJSON_AddNumberToObject(j, computes ? "flops_per_second" : "bytes_per_second", rate_of(d, w));
    cJSON_AddNumberToObject(j, computes ? "matmul_flops_per_second" : "copy_bytes_per_second",
                            yard_rate(d, w));
    cJSON_AddNumberToObject(j, computes ? "share_of_matmul" : "share_of_copy", bench_share(d, w));
    if (computes && !d->gpu) {
        cJSON_AddNumberToObject(j, "peak_flops_per_second", bench_peak_rate(d, w));
        cJSON_AddNumberToObject(j, "share_of_peak", bench_share_of_peak(d, w));
        cJSON_AddNumberToObject(j, "matmul_share_of_peak", bench_yard_share_of_peak(d, w));
    }
    if (d->gpu) cJSON_AddNumberToObject(j, "launches", w->launches);
    if (has_target(d, w)) cJSON_AddBoolToObject(j, "target_reached", bench_share(d, w) >= TARGET_SHARE);
    return j;
}

static cJSON *header_json(const struct bench_device *d, const char *what) {
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "bench", what);
    cJSON_AddStringToObject(j, "dtype", dtype_name(d->dt));
    cJSON_AddNumberToObject(j, "threads", d->threads);
    cJSON_AddNumberToObject(j, "rounds", d->rounds);
    cJSON_AddStringToObject(j, "copy", bench_copy_text(d));
    if (!d->gpu) {
        char text[PEAK_TEXT];
        cJSON_AddStringToObject(j, "peak", cpu_peak_text(&d->peak, text, sizeof text));
        return j;
    }
    cJSON_AddItemToObject(j, "device", device_facts_json(&d->facts));
    cJSON_AddStringToObject(j, "timing", timing_text);
    cJSON_AddNumberToObject(j, "target_share_of_copy", TARGET_SHARE);
    return j;
}

static void print_row(const struct bench_device *d, const struct bench_work *w, int shape_width) {
    bool computes = w->work.flops > 0;
    printf("%-12s %-*s %10.3f %9.1f %-7s %6.2f of %s", op_name(w->op), shape_width, w->shape,
           bench_median(w->seconds, d->rounds) * 1e3, rate_of(d, w) * 1e-9, computes ? "GFLOP/s" : "GB/s",
           bench_share(d, w), computes ? "matmul" : "copy");
    if (computes && !d->gpu) {
        double share = bench_share_of_peak(d, w);
        printf("  %.2f of peak%s", share,
               share > 1 ? " ~ above 1: the machine changed its speed in between" : "");
    }
    if (has_target(d, w))
        printf("    %.2f %s", TARGET_SHARE, bench_share(d, w) >= TARGET_SHARE ? "reached" : "missed");
    putchar('\n');
}

static void print_machine(const struct bench_device *d) {
    char line[DEVICE_FACTS_LINE];
    if (!d->gpu) {
        printf("\n%s, %d thread%s, medians of %d round%s, each operation just after its yardstick\n",
               dtype_name(d->dt), d->threads, bench_plural(d->threads), d->rounds, bench_plural(d->rounds));
        return;
    }
    printf("\n%s\n%s, medians of %d round%s, each operation just after its yardstick\n%s\n",
           device_facts_line(line, &d->facts), dtype_name(d->dt), d->rounds, bench_plural(d->rounds),
           timing_text);
    cJSON *device = device_facts_json(&d->facts);
    device_work_print(stdout, device);
    cJSON_Delete(device);
}

// Prints the device's notes and reads its facts after the measurements.
static int read_work(struct bench_device *d) {
    int said = 0;
    device_notes_say(d->dev, &said);
    return d->gpu && dev_facts(d->dev, &d->facts) ? fail("cannot ask the device: %s", dev_error(d->dev)) : 0;
}

static void print_kernels(const struct bench_table *t, const char *model) {
    const struct bench_device *d = t->d;
    const struct bench_work *last = &t->work[t->count - 1];
    int shape_width = 30;
    for (int i = 0; i < t->count; i++)
        if ((int)strlen(t->work[i].shape) > shape_width) shape_width = (int)strlen(t->work[i].shape);
    if (model)
        printf("a step of %s: %lld x %lld tokens, logits in chunks of %lld rows\n\n", model,
               (long long)t->n.batch, (long long)t->n.seq, (long long)t->n.logit_rows);
    printf("%-12s %-*s %10s %9s %-7s %6s", "operation", shape_width, "shape", "ms", "rate", "", "share");
    puts(d->gpu ? "              target" : "");
    for (int i = 0; i < t->count; i++) print_row(d, &t->work[i], shape_width);
    print_machine(d);
    printf("copy    %.1f GB/s: %s\n", yard_rate(d, &t->work[0]) * 1e-9, bench_copy_text(d));
    printf("matmul  %.1f GFLOP/s: %lld x %lld x %lld, same type", yard_rate(d, last) * 1e-9,
           (long long)t->n.product, (long long)t->n.product, (long long)t->n.product);
    if (d->gpu) {
        putchar('\n');
        return;
    }
    char text[PEAK_TEXT];
    printf(", %.2f of peak\npeak    %.1f GFLOP/s: %s\n", bench_yard_share_of_peak(d, last),
           bench_peak_rate(d, last) * 1e-9, cpu_peak_text(&d->peak, text, sizeof text));
}

static int read_sizes(const struct bench_device *d, const struct cli_args *args, struct bench_sizes *out) {
    struct bench_request q = {.model = cli_get(args, "model"), .gpu = d->gpu, .dtype = d->dt};
    long elements, product, batch, seq;
    if (cli_integer(args, "elements", SUMSQ_BLOCK, 1L << 32, 0, &elements) ||
        cli_integer(args, "matmul", 1, 65536, 0, &product) ||
        cli_integer(args, "batch", 1, 1L << 20, 0, &batch) || cli_integer(args, "seq", 1, 1L << 20, 0, &seq))
        return -1;
    if (!q.model && (batch || seq))
        return fail("--batch and --seq are a model's: give --model too, or --elements for other sizes");
    q.elements = elements / SUMSQ_BLOCK * SUMSQ_BLOCK;
    q.product = product;
    q.batch = batch;
    q.seq = seq;
    if (q.model) return bench_sizes_of_model(&q, out);
    *out = bench_sizes_of(d->gpu, q.elements, q.product);
    return 0;
}

// Buffers can exceed the available memory, and on a host no allocation would fail in time.
static int check_room(const struct bench_device *d, const char *bench, double need, const char *advice) {
    struct memory_limit limit = {.free_bytes = (double)d->facts.free_bytes, .name = "free on the GPU"};
    if ((!d->gpu && memory_limit_read("", &limit)) || need <= limit.free_bytes) return 0;
    return fail("bench %s at these sizes takes %.1f GiB of memory, %.1f GiB are left (%s): try %s", bench,
                need / 0x1p30, limit.free_bytes / 0x1p30, limit.name, advice);
}

static int run_kernels(struct bench_device *d, struct bench_table *t, const struct cli_args *args) {
    struct bench_sizes sizes;
    const char *model = cli_get(args, "model");
    if (read_sizes(d, args, &sizes)) return EXIT_USAGE;
    if (check_room(d, "kernels", (double)bench_table_bytes(d->dt, &sizes),
                   sizes.linears ? "a smaller --batch or --seq, or a smaller model" : "smaller --elements"))
        return EXIT_RUN_FAILED;
    if (bench_operations_fill(t, d, &sizes)) return EXIT_RUN_FAILED;
    for (int i = 0; i < t->count; i++)
        if (bench_measure(d, &t->work[i])) return EXIT_RUN_FAILED;
    if (read_work(d)) return EXIT_RUN_FAILED;
    if (!cli_get(args, "json")) {
        print_kernels(t, model);
        return 0;
    }
    cJSON *j = header_json(d, "kernels");
    if (model) {
        cJSON_AddStringToObject(j, "model", model);
        cJSON_AddNumberToObject(j, "batch", (double)sizes.batch);
        cJSON_AddNumberToObject(j, "seq", (double)sizes.seq);
        cJSON_AddNumberToObject(j, "head_chunk_rows", (double)sizes.logit_rows);
    }
    cJSON *rows = cJSON_AddArrayToObject(j, "operations");
    for (int i = 0; i < t->count; i++) cJSON_AddItemToArray(rows, work_json(d, &t->work[i]));
    json_print(stdout, j);
    cJSON_Delete(j);
    return 0;
}

// ---------------------------------------------------------------- AdamW only
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

static void print_adam(const struct bench_device *d, const struct bench_work *w, long n) {
    char line[DEVICE_FACTS_LINE];
    printf(
        "adamw   %.1f GB/s: %ld elements, %s gradients and weights, "
        "%.0f bytes each read and written, %.2f ms\n",
        rate_of(d, w) * 1e-9, n, dtype_name(d->dt), w->work.bytes / (double)n,
        bench_median(w->seconds, d->rounds) * 1e3);
    printf("copy    %.1f GB/s: %s\n", yard_rate(d, w) * 1e-9, bench_copy_text(d));
    if (d->gpu)
        printf("share   %.2f of the copy, median of %d round%s taken in turn; target %.2f\ndevice  %s\n%s\n",
               bench_share(d, w), d->rounds, bench_plural(d->rounds), TARGET_SHARE,
               device_facts_line(line, &d->facts), timing_text);
    else
        printf("share   %.2f of the copy, %d thread%s, median of %d round%s taken in turn\n",
               bench_share(d, w), d->threads, bench_plural(d->threads), d->rounds, bench_plural(d->rounds));
}

static int run_adam(struct bench_device *d, struct bench_table *t, const struct cli_args *args) {
    struct bench_work *w = &t->work[0];
    long n;
    if (cli_integer(args, "elements", 1, 1L << 32, d->gpu ? 1L << 27 : 1L << 24, &n)) return EXIT_USAGE;
    // Masters, moments, gradients and weights; then the copy's arrays, with as many bytes as are read and written.
    double of_one = 12 + 2 * (double)dtype_size(d->dt);
    if (check_room(d, "adam", (double)n * (of_one + 12 + of_one), "smaller --elements"))
        return EXIT_RUN_FAILED;
    if (set_adam(d, w, n) || bench_measure(d, w)) return EXIT_RUN_FAILED;
    if (!cli_get(args, "json")) {
        print_adam(d, w, n);
        return 0;
    }
    cJSON *j = header_json(d, "adam"), *row = work_json(d, w);
    cJSON_AddNumberToObject(j, "elements", (double)n);
    cJSON_AddItemToObject(j, "adam", row);
    cJSON_AddNumberToObject(j, "share_of_copy", bench_share(d, w));
    json_print(stdout, j);
    cJSON_Delete(j);
    return 0;
}

// ---------------------------------------------------------------- the commands
static int run(const struct cli_args *a,
               int (*measure)(struct bench_device *, struct bench_table *, const struct cli_args *)) {
    struct bench_device d = {0};
    struct bench_table *t = xcalloc(1, sizeof *t);
    int status = bench_open(&d, a) ? EXIT_USAGE : measure(&d, t, a);
    bench_close(&d);
    free(t);
    return status;
}

static int kernels(const struct topology_table *t, const struct cli_args *a) {
    (void)t;
    return run(a, run_kernels);
}
static int adam(const struct topology_table *t, const struct cli_args *a) {
    (void)t;
    return run(a, run_adam);
}

const struct bench_program bench_kernels = {"each operation beside a copy or a matrix product",
                                            &kernels_command, kernels};
const struct bench_program bench_adam = {"the optimizer beside a copy of the same bytes", &adam_command,
                                         adam};
