// `starring bench step`: whole training steps of one rank, beside a large matrix product of the same run.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "kernels/statistics.h"
#include "shared/bench/bench.h"
#include "shared/bench/bench_work.h"
#include "shared/bench/step_figures.h"
#include "shared/command/cli.h"
#include "shared/core/error.h"
#include "shared/device/datasheet.h"
#include "shared/device/device_choice.h"
#include "shared/device/product_choice.h"
#include "shared/hf/presets.h"
#include "shared/memory/memory_need.h"
#include "shared/model/model.h"
#include "shared/report/metrics.h"
#include "shared/train/local.h"
#include "shared/train/train.h"

// The yardstick: a square product this large runs at the library's best rate. Timed between steps, so that
// both see the same machine. On a GPU one takes a millisecond or two, so several run in a row and the host's
// waking up does not count.
#define YARD_HOST    2048
#define YARD_GPU     8192
#define PRODUCTS_GPU 16
#define WARMUP_STEPS 2

static const struct cli_option options[] = {
    {"model", "model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", 0},
    {"batch", "train_micro_batch_size_per_gpu", "B", "sequences per step (4)", 0},
    {"seq", "data.seq_len", "T", "tokens a sequence (256)", 0},
    {"dtype", "dtype", "D", "fp32, bf16 or fp16 (bf16)", 0},
    {"device", "device", "D", "auto, cpu or cuda (auto: a GPU if there is one)", 0},
    {"threads", "threads", "N", "CPU threads (one per core)", 0},
    {"steps", NULL, "N", "timed steps, after two for warming up (5)", 0},
    {"matmul", NULL, "N", "side of the large matrix product (2048; on a GPU 8192)", 0},
    {"set", CLI_SET, "KEY=VALUE", "any configuration key", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench step",
    .usage = "[--model M] [--batch B] [--seq T] [--dtype D] [OPTIONS]",
    .summary =
        "Times whole training steps (forward, backward, clipping, AdamW) of one process and, between them,\n"
        "a large matrix product: the share of its rate that a step reaches "
        "is the figure to compare. On a CPU the peak of its\n"
        "multiply-add is timed as well.",
    .examples =
        "  starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16\n"
        "  starring bench step --model gpt2-124m --batch 32 --seq 1024 --device cuda\n"
        "  starring bench step --model demo --batch 8 --seq 128 --dtype fp32 --json\n",
    CLI_OPTIONS(options),
};

// What is measured between the steps.
struct between {
    struct stream *s;
    struct bench_work product;
    int products;                // of one measurement
    double *product_s, *idle_s;  // one a step
    double *phase_s[PHASES];     // likewise: the compute stream's; of the phases of a step
    double *step_s, *waits;      // likewise: with the updates to their end; waits of the host for the device
    struct cpu_peak *peak;       // of a host; NULL on a GPU
    double *peak_s;              // one a step
    int count, capacity;
    struct stream_times busy;  // the compute stream's so far
    uint64_t waits_before;
};

struct bench {
    const struct topology_table *topologies;
    struct config *config;
    struct model_spec spec;
    struct device *dev;
    struct stream *compute;
    struct layout *layout;
    struct topology *topology;
    struct token_source *data;
    struct arena arena;
    struct between between;
    struct products products;
    struct cpu_peak peak;
    int64_t side;  // of the product
    struct train_result result;
};

static double time_product(const struct between *b) {
    return bench_launches(b->s, &b->product, b->products) / b->products;
}

// The phases of a step; the products between the steps are in none of them.
static const enum phase step_phases[] = {PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER};
#define STEP_PHASES (sizeof step_phases / sizeof *step_phases)

static void on_start(void *ctx, const struct config *c, const struct model_spec *s, int64_t params) {
    struct between *b = ctx;
    (void)c, (void)s, (void)params;
    if (b->peak) bench_peak(b->s, b->peak);
    time_product(b);
    stream_get_times(b->s, &b->busy);
    b->waits_before = dev_host_waits(stream_device(b->s));
}

// The step's updates are still under way when its loss is known: the step is timed to their end, although in
// a run the next one would queue behind them.
static void on_step(void *ctx, const struct step_record *r) {
    struct between *b = ctx;
    struct device *dev = stream_device(b->s);
    if (b->count == b->capacity) return;
    b->waits[b->count] = (double)(dev_host_waits(dev) - b->waits_before);
    double end = now_seconds();
    stream_sync(b->s);
    struct stream_times busy;
    stream_get_times(b->s, &busy);
    b->step_s[b->count] = r->seconds + (now_seconds() - end);
    b->idle_s[b->count] = b->step_s[b->count];
    for (size_t i = 0; i < STEP_PHASES; i++) {
        double s = busy.busy_s[step_phases[i]] - b->busy.busy_s[step_phases[i]];
        b->phase_s[step_phases[i]][b->count] = s;
        b->idle_s[b->count] -= s;
    }
    b->busy = busy;
    if (b->peak) b->peak_s[b->count] = bench_peak(b->s, b->peak);
    b->product_s[b->count++] = time_product(b);
    b->waits_before = dev_host_waits(dev);
}

static int make_product(struct bench *b, int steps) {
    struct between *t = &b->between;
    int64_t n = b->side;
    size_t bytes = (size_t)(n * n) * dtype_size(b->config->dtype);
    *t = (struct between){
        .s = b->compute, .products = dev_host_memory(b->dev) ? 1 : PRODUCTS_GPU, .capacity = steps};
    t->product_s = xcalloc((size_t)steps, sizeof *t->product_s);
    t->idle_s = xcalloc((size_t)steps, sizeof *t->idle_s);
    for (size_t i = 0; i < STEP_PHASES; i++)
        t->phase_s[step_phases[i]] = xcalloc((size_t)steps, sizeof(double));
    t->step_s = xcalloc((size_t)steps, sizeof *t->step_s);
    t->waits = xcalloc((size_t)steps, sizeof *t->waits);
    t->peak_s = xcalloc((size_t)steps, sizeof *t->peak_s);
    if (dev_host_memory(b->dev)) {
        int threads = b->config->threads ? b->config->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
        cpu_peak_init(&b->peak, b->config->cpu_kernel, b->config->dtype, threads);
        t->peak = &b->peak;
    }
    void *x = arena_take(&b->arena, MEM_WORKSPACE, bytes), *y = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    void *z = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    if (b->arena.failed) return -1;
    BENCH_SET(&t->product, matmul, matmul_args, .c = z, .a = x, .b = y, .m = n, .n = n, .k = n,
              .trans_b = true, .dt = b->config->dtype);
    return bench_fill(b->compute, x, b->config->dtype, n * n, 1.0f, 1) ||
                   bench_fill(b->compute, y, b->config->dtype, n * n, 1.0f, 2)
               ? -1
               : 0;
}

static size_t product_bytes(const struct bench *b) {
    size_t side = (size_t)b->side;
    return 3 * dev_round(side * side * dtype_size(b->config->dtype));
}

static struct job job_of(const struct bench *b) {
    return (struct job){.config = b->config, .spec = b->spec, .layout = b->layout, .ranks_here = 1};
}

// Device memory of everything that is timed here.
static size_t predicted_bytes(const struct bench *b) {
    struct job job = job_of(b);
    struct prediction p;
    if (prediction_of_rank(&job, "worker", 0, &p)) return 0;
    return mem_device_bytes(p.memory.predicted_bytes) + product_bytes(b);
}

static int open_device(struct bench *b) {
    device_resolve(b->config);
    if (cpu_kernel_choose(b->config)) return -1;
    const struct backend *found = device_backend(b->config);
    if (!found) return -1;
    if (dev_open(found,
                 &(struct device_options){.threads = b->config->threads,
                                          .label = "bench",
                                          .kernel = b->config->cpu_kernel,
                                          .cuda = b->config->cuda},
                 &b->dev))
        return fail("cannot open the %s device", found->name);
    if (products_give(b->config, b->dev, &b->products)) return -1;
    products_say(&b->products);
    b->compute = stream_create(b->dev, "compute");
    return b->compute ? 0 : fail("cannot create a stream: %s", dev_error(b->dev));
}

static int prepare(struct bench *b, const struct cli_args *a, int steps, int64_t side) {
    char count[24];
    const struct config_override defaults[] = {
        {"topology", "local", "bench step"},        {"model", "gpt2-124m", "bench step"},
        {"data.path", "demo", "bench step"},        {"train_micro_batch_size_per_gpu", "4", "bench step"},
        {"data.seq_len", "256", "bench step"},      {"dtype", "bf16", "bench step"},
        {"eval_batches", "0", "bench step"},        {"steps", count, "bench step"},
        {"gradient_clipping", "1.0", "bench step"},
    };
    snprintf(count, sizeof count, "%d", steps);
    b->config = cli_config(b->topologies, defaults, sizeof defaults / sizeof *defaults, a);
    if (!b->config || model_spec_load(b->config->model, &b->spec) ||
        model_spec_check_seq(&b->spec, b->config->seq))
        return -1;
    if (b->config->row != &topology_local)
        return fail(
            "bench step: --set topology=%s: one process is timed, --topology "
            "local; compare topologies with experiments/compare.py",
            b->config->topology);
    b->layout = model_layout_create(&b->spec, 1);
    if (!b->layout) return -1;
    struct data_options data = {.path = b->config->data,
                                .tokenizer = b->config->tokenizer,
                                .val_fraction = b->config->val_fraction,
                                .vocab = b->spec.vocab};
    if (!b->layout || open_device(b) || !(b->data = data_open(&data))) return -1;
    b->side = side ? side : dev_host_memory(b->dev) ? YARD_HOST : YARD_GPU;
    struct job job = job_of(b);
    if (bench_check_memory(&job, product_bytes(b))) return -1;
    struct local_options local = local_options_of(b->config, b->layout);
    local.dev = b->dev;
    local.compute = b->compute;
    b->topology = local_create(&local);
    arena_init(&b->arena, b->dev);
    return b->topology ? make_product(b, steps) : -1;
}

static void release(struct bench *b) {
    train_result_free(&b->result);
    topology_destroy(&b->topology);
    if (b->dev) arena_release(&b->arena);
    if (b->compute) stream_destroy(&b->compute);
    if (b->dev) dev_close(&b->dev);
    if (b->data) data_close(&b->data);
    layout_destroy(&b->layout);
    config_destroy(&b->config);
    products_free(&b->products);
    free(b->between.product_s);
    free(b->between.idle_s);
    for (size_t i = 0; i < STEP_PHASES; i++) free(b->between.phase_s[step_phases[i]]);
    free(b->between.step_s);
    free(b->between.waits);
    free(b->between.peak_s);
}

static int run(struct bench *b, bool json) {
    struct train_observer observer = {.on_start = on_start, .on_step = on_step, .ctx = &b->between};
    struct train_options o = {.config = b->config,
                              .spec = &b->spec,
                              .data = b->data,
                              .topology = b->topology,
                              .observer = &observer};
    if (train_run(&o, &b->result)) return -1;
    int said = 0;
    device_notes_say(b->dev, &said);
    const struct rank_report *r = &b->result.report;
    int timed = (int)b->result.steps - WARMUP_STEPS;
    double tokens = (double)(b->config->train_batch * b->config->seq);
    struct token_flops a_token = model_flops_per_token(&b->spec, b->config->seq);
    struct token_flops again = recompute_flops_per_token(&b->config->recompute, &b->spec, b->config->seq);
    struct step_figures f = {.model = b->spec.name,
                             .params = b->layout->params,
                             .batch = b->config->train_batch,
                             .seq = b->config->seq,
                             .dtype = b->config->dtype,
                             .step_s = median(b->between.step_s + WARMUP_STEPS, timed),
                             .host_waits = median(b->between.waits + WARMUP_STEPS, timed),
                             .idle_s = median(b->between.idle_s + WARMUP_STEPS, timed),
                             .flops = {a_token.full * tokens, a_token.causal * tokens},
                             .again = {again.full * tokens, again.causal * tokens},
                             .product = b->side,
                             .products = b->between.products,
                             .product_s = median(b->between.product_s + WARMUP_STEPS, timed),
                             .peak = b->between.peak,
                             .peak_s = median(b->between.peak_s + WARMUP_STEPS, timed),
                             .datasheet = "a CPU's peak is not in the table of datasheets",
                             .forward_s = median(b->between.phase_s[PHASE_FORWARD] + WARMUP_STEPS, timed),
                             .backward_s = median(b->between.phase_s[PHASE_BACKWARD] + WARMUP_STEPS, timed),
                             .optimizer_s = median(b->between.phase_s[PHASE_OPTIMIZER] + WARMUP_STEPS, timed),
                             .late_allocations = r->late_allocations,
                             .predicted_bytes = predicted_bytes(b),
                             .peak_bytes = mem_device_bytes(r->peak_bytes),
                             .pinned_bytes = r->peak_bytes[MEM_HOST],
                             .gpu = r->on_gpu,
                             .facts = r->device,
                             .memory = r->device_memory};
    f.algorithms = products_json(b->dev, &b->products);
    struct model_options model = train_model_options(b->config, &b->spec, b->layout);
    f.head = model_head_plan(&model);
    if (f.gpu) f.datasheet_flops = datasheet_flops(f.facts.name, f.dtype, &f.datasheet);
    (json ? step_figures_json : step_figures_table)(&f);
    cJSON_Delete(f.algorithms);
    return 0;
}

int bench_step(const struct topology_table *topologies, int argc, char **argv) {
    struct cli_args args;
    struct bench b = {.topologies = topologies};
    long steps, side;
    enum cli_outcome outcome = cli_parse(&command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !cli_integer(&args, "steps", 1, 100000, 5, &steps) &&
        !cli_integer(&args, "matmul", 1, 65536, 0, &side)) {
        if (prepare(&b, &args, (int)steps + WARMUP_STEPS, side))
            status = b.data ? EXIT_RUN_FAILED : EXIT_USAGE;  // data are opened last of what is named
        else
            status = run(&b, cli_get(&args, "json") != NULL) ? EXIT_RUN_FAILED : 0;
    }
    release(&b);
    cli_args_free(&args);
    return status;
}
