#include "shared/run/bench_step.h"

#include <cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/model/model.h"
#include "shared/run/cli.h"
#include "shared/run/local.h"
#include "shared/run/train.h"

// The yardstick: a square product this large runs at the library's best rate, and takes a fraction of a
// second. Timed between steps, so that both see the same machine.
#define YARD         2048
#define WARMUP_STEPS 2

static const struct cli_option options[] = {
    {"model", "model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", 0},
    {"batch", "train_micro_batch_size_per_gpu", "B", "sequences a step (4)", 0},
    {"seq", "data.seq_len", "T", "tokens a sequence (256)", 0},
    {"dtype", "dtype", "D", "fp32, bf16 or fp16 (bf16)", 0},
    {"device", "device", "D", "auto, cpu or cuda", 0},
    {"threads", "threads", "N", "CPU threads (one per core)", 0},
    {"steps", NULL, "N", "timed steps, after two for warming up (5)", 0},
    {"set", CLI_SET, "KEY=VALUE", "any configuration key", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench step",
    .usage = "[--model M] [--batch B] [--seq T] [--dtype D] [OPTIONS]",
    .summary =
        "Times whole training steps (forward, backward, clipping, AdamW) of one process and, between them,\n"
        "a large matrix product: the share of its rate that a step reaches is the figure to compare.",
    .examples =
        "  starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16\n"
        "  starring bench step --model demo --batch 8 --seq 128 --dtype fp32 --json\n",
    .options = options,
    .option_count = sizeof options / sizeof *options,
};

struct yard {
    struct stream *s;
    void *a, *b, *c;
    enum dtype dt;
    double *seconds;  // one a step
    int count, capacity;
};

struct bench {
    struct config *config;
    struct model_spec spec;
    struct device *dev;
    struct stream *compute;
    struct layout *layout;
    struct topology *topology;
    struct token_source *data;
    struct arena arena;
    struct yard yard;
    struct train_result result;
};

static double time_product(struct yard *y) {
    stream_sync(y->s);
    double start = now_seconds();
    op_matmul(
        y->s,
        &(struct matmul_args){
            .c = y->c, .a = y->a, .b = y->b, .m = YARD, .n = YARD, .k = YARD, .trans_b = true, .dt = y->dt});
    stream_sync(y->s);
    return now_seconds() - start;
}

static void on_start(void *ctx, const struct config *c, const struct model_spec *s, int64_t params) {
    (void)c, (void)s, (void)params;
    time_product(ctx);
}

static void on_step(void *ctx, const struct step_record *r) {
    struct yard *y = ctx;
    (void)r;
    if (y->count < y->capacity) y->seconds[y->count++] = time_product(y);
}

static void on_eval(void *ctx, int64_t step, double val_loss, double entropy) {
    (void)ctx, (void)step, (void)val_loss, (void)entropy;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

// Fixed contents: products of zeros or denormals would be timed faster than real ones.
static int make_yard(struct bench *b, int steps) {
    struct yard *y = &b->yard;
    size_t n = (size_t)YARD * YARD, bytes = n * dtype_size(b->config->dtype);
    *y = (struct yard){.s = b->compute, .dt = b->config->dtype, .capacity = steps};
    y->seconds = xcalloc((size_t)steps, sizeof *y->seconds);
    y->a = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    y->b = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    y->c = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    if (b->arena.failed) return -1;
    void *host = xcalloc(1, bytes);
    for (size_t i = 0; i < n; i++)
        dtype_store(y->dt, host, i, (float)((int)(i * 2654435761u % 1024) - 512) / 512.0f);
    dev_copy(b->compute, y->a, host, bytes);
    dev_copy(b->compute, y->b, host, bytes);
    int rc = stream_sync(b->compute);
    free(host);
    return rc;
}

static int prepare(struct bench *b, const struct cli_args *a, int steps) {
    char count[24];
    const char *why = NULL;
    const struct config_override defaults[] = {
        {"topology", "local", "bench step"},        {"model", "gpt2-124m", "bench step"},
        {"data.path", "demo", "bench step"},        {"train_micro_batch_size_per_gpu", "4", "bench step"},
        {"data.seq_len", "256", "bench step"},      {"dtype", "bf16", "bench step"},
        {"eval_batches", "0", "bench step"},        {"steps", count, "bench step"},
        {"gradient_clipping", "1.0", "bench step"},
    };
    size_t d = sizeof defaults / sizeof *defaults;
    struct config_override *all = xcalloc(d + a->override_count, sizeof *all);
    snprintf(count, sizeof count, "%d", steps);
    memcpy(all, defaults, sizeof defaults);
    if (a->override_count) memcpy(all + d, a->overrides, a->override_count * sizeof *all);
    b->config = config_load(NULL, all, d + a->override_count);
    free(all);
    if (!b->config || model_spec_load(b->config->model, &b->spec)) return -1;
    if (b->config->kind != TOPOLOGY_LOCAL)
        return fail(
            "bench step: --set topology=%s: one process is timed, --topology local; compare topologies with "
            "experiments/compare.py",
            b->config->topology);
    const struct backend *backend = backend_find(b->config->device == DEVICE_CUDA ? "cuda" : "cpu", &why);
    if (!backend) return fail("--device: %s", why);
    b->layout = model_layout_create(&b->spec, 1);
    struct data_options data = {.path = b->config->data,
                                .tokenizer = b->config->tokenizer,
                                .val_fraction = b->config->val_fraction,
                                .vocab = b->spec.vocab};
    if (!b->layout || !(b->data = data_open(&data))) return -1;
    if (dev_open(backend, &(struct device_options){.threads = b->config->threads, .label = "bench"}, &b->dev))
        return fail("cannot open the device");
    b->compute = stream_create(b->dev, "compute");
    b->topology = local_create(&(struct local_options){.layout = b->layout,
                                                       .dtype = b->config->dtype,
                                                       .dev = b->dev,
                                                       .compute = b->compute,
                                                       .optimizer = b->config->optimizer});
    arena_init(&b->arena, b->dev);
    return b->topology ? make_yard(b, steps) : -1;
}

static void release(struct bench *b) {
    topology_destroy(&b->topology);
    if (b->dev) arena_release(&b->arena);
    if (b->compute) stream_destroy(&b->compute);
    if (b->dev) dev_close(&b->dev);
    if (b->data) data_close(&b->data);
    layout_destroy(&b->layout);
    config_destroy(&b->config);
    free(b->yard.seconds);
    train_result_free(&b->result);
}

static void print_json(const struct bench *b, double step_s, double flops, double rate, double yard_rate) {
    const struct time_split *t = &b->result.report.time;
    double all = t->forward + t->backward + t->optimizer;
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "model", b->spec.name);
    cJSON_AddNumberToObject(j, "params", (double)b->layout->params);
    cJSON_AddNumberToObject(j, "batch", (double)b->config->micro_batch);
    cJSON_AddNumberToObject(j, "seq", (double)b->config->seq);
    cJSON_AddStringToObject(j, "dtype", config_dtype_name(b->config->dtype));
    cJSON_AddNumberToObject(j, "step_seconds", step_s);
    cJSON_AddNumberToObject(j, "tokens_per_second",
                            (double)(b->config->micro_batch * b->config->seq) / step_s);
    cJSON_AddNumberToObject(j, "flops_per_step", flops);
    cJSON_AddNumberToObject(j, "flops_per_second", rate);
    cJSON_AddNumberToObject(j, "matmul_flops_per_second", yard_rate);
    cJSON_AddNumberToObject(j, "share_of_matmul", rate / yard_rate);
    cJSON_AddNumberToObject(j, "mfu", rate / yard_rate);
    cJSON_AddStringToObject(j, "mfu_formula",
                            "flops_per_step / step_seconds / matmul_flops_per_second (measured in this run)");
    cJSON_AddNumberToObject(j, "forward_share", t->forward / all);
    cJSON_AddNumberToObject(j, "backward_share", t->backward / all);
    cJSON_AddNumberToObject(j, "optimizer_share", t->optimizer / all);
    cJSON_AddNumberToObject(j, "late_allocations", (double)b->result.report.late_allocations);
    char *text = cJSON_Print(j);
    puts(text);
    free(text);
    cJSON_Delete(j);
}

static void print_table(const struct bench *b, double step_s, double flops, double rate, double yard_rate) {
    const struct time_split *t = &b->result.report.time;
    double all = t->forward + t->backward + t->optimizer;
    printf("model          %s, %lld parameters\n", b->spec.name, (long long)b->layout->params);
    printf("step           B=%lld T=%lld %s: %.4f s (median), %.1f GFLOP\n",
           (long long)b->config->micro_batch, (long long)b->config->seq, config_dtype_name(b->config->dtype),
           step_s, flops * 1e-9);
    printf("tokens/s       %.1f\n", (double)(b->config->micro_batch * b->config->seq) / step_s);
    printf("rate           %.1f GFLOP/s\n", rate * 1e-9);
    printf("matmul         %.1f GFLOP/s (%d x %d x %d, same type, between the steps, median)\n",
           yard_rate * 1e-9, YARD, YARD, YARD);
    printf("share (MFU)    %.3f = flops of a step / step seconds / matmul rate\n", rate / yard_rate);
    printf("time           forward %.1f%%  backward %.1f%%  optimizer %.1f%%\n", 100 * t->forward / all,
           100 * t->backward / all, 100 * t->optimizer / all);
    printf("allocations    %llu after the first step\n",
           (unsigned long long)b->result.report.late_allocations);
    printf(
        "flops a step   tokens * (6 * matrix parameters + 12 * L * T * H * D): forward and backward, "
        "attention in\n"
        "               full, no recomputation counted\n");
}

static int run(struct bench *b, bool json) {
    struct train_observer observer = {on_start, on_step, on_eval, &b->yard};
    struct train_options o = {.config = b->config,
                              .spec = &b->spec,
                              .data = b->data,
                              .topology = b->topology,
                              .observer = &observer};
    if (train_run(&o, &b->result)) return -1;
    int timed = (int)b->result.steps - WARMUP_STEPS;
    double step_s = median(b->result.step_seconds + WARMUP_STEPS, timed);
    double yard_s = median(b->yard.seconds + WARMUP_STEPS, timed);
    double flops =
        model_flops_per_token(&b->spec, b->config->seq) * (double)(b->config->micro_batch * b->config->seq);
    double rate = flops / step_s, yard_rate = 2.0 * YARD * YARD * YARD / yard_s;
    (json ? print_json : print_table)(b, step_s, flops, rate, yard_rate);
    return 0;
}

int bench_step(int argc, char **argv) {
    struct cli_args args;
    struct bench b = {0};
    long steps;
    enum cli_outcome outcome = cli_parse(&command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !cli_integer(&args, "steps", 1, 100000, 5, &steps)) {
        if (prepare(&b, &args, (int)steps + WARMUP_STEPS))
            status = b.data ? EXIT_RUN_FAILED : EXIT_USAGE;  // data are opened last of what is named
        else
            status = run(&b, cli_get(&args, "json") != NULL) ? EXIT_RUN_FAILED : 0;
    }
    release(&b);
    cli_args_free(&args);
    return status;
}
