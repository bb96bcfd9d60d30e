// `starring bench step`: whole training steps of one rank, beside a large matrix product of the same run.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/statistics.h"
#include "shared/bench/bench.h"
#include "shared/bench/bench_work.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/processors.h"
#include "shared/core/text.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/device/product_choice.h"
#include "shared/memory/memory_need.h"
#include "shared/model/head_plan.h"
#include "shared/model/model.h"
#include "shared/report/metrics.h"
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

// The figures that are measured between the steps.
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
    struct bench_rank rank;
    struct arena arena;
    struct between between;
    struct products products;
    struct cpu_peak peak;
    int64_t side;  // of the product
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

static size_t product_bytes(const struct bench *b) {
    size_t side = (size_t)b->side;
    return 3 * dev_round(side * side * dtype_size(b->rank.config->dtype));
}

static int prepare(struct bench *b, const struct topology_table *topologies, const struct cli_args *a,
                   int steps, int64_t side) {
    char count[24];
    const struct config_override own[] = {{"steps", count, "bench step"},
                                          {"gradient_clipping", "1.0", "bench step"}};
    struct between *t = &b->between;
    // 1. The options, and whatever they name.
    snprintf(count, sizeof count, "%d", steps);
    if (bench_rank_load(
            &b->rank, "bench step", topologies, own, 2, a,
            "one process is timed, --topology local; compare topologies with experiments/compare.py"))
        return -1;
    struct config *c = b->rank.config;
    device_resolve(c);
    const struct backend *found = device_backend(c);
    if (!found || bench_rank_open(&b->rank, found)) return -1;
    struct device *dev = b->rank.dev;
    if (products_give(c, dev, &b->products)) {
        b->rank.ready = false;  // the user's file
        return -1;
    }
    products_say(&b->products);
    // 2. The rank, and a product of the same run beside it.
    bool host = dev_host_memory(dev);
    int64_t n = b->side = side ? side : host ? YARD_HOST : YARD_GPU;
    size_t bytes = (size_t)(n * n) * dtype_size(c->dtype), each = (size_t)steps;
    if (bench_rank_join(&b->rank, product_bytes(b))) return -1;
    *t = (struct between){.s = b->rank.compute, .products = host ? 1 : PRODUCTS_GPU, .capacity = steps};
    double **const lists[] = {&t->product_s, &t->idle_s, &t->step_s, &t->waits, &t->peak_s};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) *lists[i] = xcalloc(each, sizeof(double));
    for (size_t i = 0; i < STEP_PHASES; i++) t->phase_s[step_phases[i]] = xcalloc(each, sizeof(double));
    if (host) {
        int threads = c->threads ? c->threads : processors_given();
        cpu_peak_init(&b->peak, c->cpu_kernel, c->dtype, threads);
        t->peak = &b->peak;
    }
    arena_init(&b->arena, dev);
    void *x = arena_take(&b->arena, MEM_WORKSPACE, bytes), *y = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    void *z = arena_take(&b->arena, MEM_WORKSPACE, bytes);
    if (b->arena.failed) return -1;
    BENCH_SET(&t->product, matmul, matmul_args, .c = z, .a = x, .b = y, .m = n, .n = n, .k = n,
              .trans_b = true, .dt = c->dtype);
    return bench_fill(t->s, x, c->dtype, n * n, 1.0f, 1) || bench_fill(t->s, y, c->dtype, n * n, 1.0f, 2) ? -1
                                                                                                          : 0;
}

static void release(struct bench *b) {
    struct between *t = &b->between;
    if (t->s) arena_release(&b->arena);
    bench_rank_close(&b->rank);
    products_free(&b->products);
    double *const lists[] = {t->product_s, t->idle_s, t->step_s, t->waits, t->peak_s};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    for (size_t i = 0; i < STEP_PHASES; i++) free(t->phase_s[step_phases[i]]);
}

// ---------------------------------------------------------------- figures
// Device memory of everything that is timed here.
static size_t predicted_bytes(const struct bench *b) {
    struct job job = bench_rank_job(&b->rank);
    struct prediction p;
    if (prediction_of_rank(&job, "worker", 0, &p)) return 0;
    return mem_device_bytes(p.memory.predicted_bytes) + product_bytes(b);
}

static void put_memory(cJSON *o, const struct bench *b) {
    const struct rank_report *r = &b->rank.result.report;
    const struct device_memory *m = &r->device_memory;
    double used = (double)m->used_bytes, ledger = (double)m->ledger_bytes,
           workspace = (double)m->workspace_bytes;
    json_put(o, "predicted_bytes", (double)predicted_bytes(b));
    json_put(o, "ledger_peak_bytes", (double)mem_device_bytes(r->peak_bytes));
    json_put(o, "pinned_peak_bytes", (double)r->peak_bytes[MEM_HOST]);
    if (!r->on_gpu) return;
    json_put(o, "ledger_bytes", ledger);
    json_put(o, "workspace_bytes", workspace);
    json_put(o, "used_bytes", used);
    json_put(o, "free_bytes", (double)m->free_bytes);
    json_put(o, "total_bytes", (double)m->total_bytes);
    json_put(o, "other_bytes", device_memory_other(used, ledger, workspace));
    cJSON_AddStringToObject(o, "other", DEVICE_MEMORY_OTHER);
}

static double of_steps(const struct bench *b, double *values) {
    return median(values + WARMUP_STEPS, (int)b->rank.result.steps - WARMUP_STEPS);
}

// A step's flops per second over those of what was timed just before and just behind it, the median over the steps: a machine that
// changes its speed changes it for both. yard_s[i]: seconds of yard_flops behind step i.
static double share_of(const struct bench *b, double flops, double yard_flops, const double *yard_s) {
    int count = (int)b->rank.result.steps;
    double *share = xcalloc((unsigned long)count, sizeof *share);
    for (int i = WARMUP_STEPS; i < count; i++)
        share[i] = flops / b->between.step_s[i] * (yard_s[i - 1] + yard_s[i]) / 2 / yard_flops;
    double middle = of_steps(b, share);
    free(share);
    return middle;
}

// Medians of the timed steps, and what follows from them, as --json has them; the table is made of the same. null: not known
// here. "again": what the backward computes again, beside the model's flops.
static cJSON *figures_of(struct bench *b) {
    struct between *t = &b->between;
    const struct config *c = b->rank.config;
    const struct model_spec *spec = &b->rank.spec;
    const struct rank_report *r = &b->rank.result.report;
    struct token_flops a_token = model_flops_per_token(spec, (double)c->seq);
    struct token_flops again = recompute_flops_per_token(&c->recompute, spec, (double)c->seq);
    struct model_options model = train_model_options(c, spec, b->rank.layout);
    struct head_plan head = model_head_plan(&model);
    const char *source = "a CPU's peak is not in the table of datasheets";
    double known = r->on_gpu ? datasheet_flops(r->device.name, c->dtype, &source) : 0;
    double tokens = (double)(c->train_batch * c->seq), side = (double)b->side;
    double full = a_token.full * tokens, causal = a_token.causal * tokens;
    double a_product = 2 * side * side * side;
    // Before the medians, which sort what they are of.
    double of_product = share_of(b, full, a_product, t->product_s);
    double of_peak = t->peak ? share_of(b, full, t->peak->flops, t->peak_s) : NAN;
    double step_s = of_steps(b, t->step_s), product = a_product / of_steps(b, t->product_s),
           datasheet = known > 0 ? known : NAN;
    double peak = t->peak ? t->peak->flops / of_steps(b, t->peak_s) : NAN;
    double forward = of_steps(b, t->phase_s[PHASE_FORWARD]),
           backward = of_steps(b, t->phase_s[PHASE_BACKWARD]),
           optimizer = of_steps(b, t->phase_s[PHASE_OPTIMIZER]), all = forward + backward + optimizer;
    char peak_text[200] = "";
    if (t->peak) cpu_peak_text(t->peak, peak_text, sizeof peak_text);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "model", spec->name);
    json_put(o, "params", (double)b->rank.layout->params);
    json_put(o, "batch", (double)c->train_batch);
    json_put(o, "seq", (double)c->seq);
    cJSON_AddStringToObject(o, "dtype", dtype_name(c->dtype));
    json_put(o, "head_chunk_rows", (double)head.rows);
    json_put(o, "head_chunks", (double)head.chunks);
    json_put(o, "step_seconds", step_s);
    // The compute stream had nothing to do: the host between the end of one step and the start of the next, which in a run
    // overlaps with the updates.
    json_put(o, "idle_seconds", of_steps(b, t->idle_s));
    json_put(o, "host_waits_per_step", of_steps(b, t->waits));
    json_put(o, "tokens_per_second", tokens / step_s);
    json_put(o, "flops_per_step", full);
    json_put(o, "flops_per_step_causal", causal);
    cJSON_AddStringToObject(o, "flops_formula", "a token: " FLOPS_FULL "; causal: " FLOPS_CAUSAL);
    json_put(o, "flops_per_second", full / step_s);
    json_put(o, "flops_per_second_causal", causal / step_s);
    json_put(o, "recomputed_flops_per_step", again.full * tokens);
    json_put(o, "recomputed_flops_per_step_causal", again.causal * tokens);
    json_put(o, "hardware_flops_per_second", full / step_s + again.full * tokens / step_s);
    json_put(o, "hardware_flops_per_second_causal", causal / step_s + again.causal * tokens / step_s);
    json_put(o, "matmul_size", side);
    json_put(o, "matmul_flops_per_second", product);
    json_put(o, "share_of_matmul", of_product);
    json_put(o, "mfu", of_product);
    json_put(o, "mfu_causal", of_product * causal / full);
    cJSON_AddStringToObject(
        o, "mfu_formula",
        "flops_per_step / step seconds / flops per second of the products just before and behind "
        "the step; median over the steps");
    json_put(o, "peak_flops_per_second", peak);
    json_put(o, "share_of_peak", of_peak);
    json_put(o, "share_of_peak_causal", of_peak * causal / full);
    cJSON_AddBoolToObject(o, "shares_possible", !(of_product > 1) && !(of_peak > 1) && !(product > peak));
    json_put(o, "matmul_share_of_peak", product / peak);
    json_put_text(o, "peak", peak_text);
    json_put(o, "datasheet_flops_per_second", datasheet);
    json_put(o, "mfu_datasheet", full / step_s / datasheet);
    json_put(o, "mfu_datasheet_causal", causal / step_s / datasheet);
    cJSON_AddStringToObject(o, "datasheet", source);
    cJSON_AddStringToObject(o, "mfu_datasheet_formula",
                            "flops_per_step / step_seconds / datasheet_flops_per_second");
    // Of a step's work; logits and loss are the backward's.
    json_put(o, "forward_share", forward / all);
    json_put(o, "backward_share", backward / all);
    json_put(o, "optimizer_share", optimizer / all);
    json_put(o, "late_allocations", (double)r->late_allocations);
    cJSON_AddItemToObject(o, "device", r->on_gpu ? device_facts_json(&r->device) : cJSON_CreateNull());
    cJSON *products =
        products_json(b->rank.dev, &b->products);  // of a GPU: the large product among its shapes
    cJSON_AddItemToObject(o, "products", products ? products : cJSON_CreateNull());
    put_memory(cJSON_AddObjectToObject(o, "memory"), b);
    return o;
}

// ---------------------------------------------------------------- the table
// This text stands behind the shares where one is above 1.
#define IMPOSSIBLE \
    "shares above 1: the machine changed its speed between a step and the product; run it again, for longer (--steps)"

// One counting of attention: the step's rate, its share of the product and, of a GPU, of the datasheet.
static void print_mfu(const char *attention, double rate, double share, double of_datasheet,
                      const char *a_token) {
    printf("MFU, %-9s %.3f of the product", attention, share);
    if (isfinite(of_datasheet)) printf(", %.3f of the datasheet", of_datasheet);
    printf(": %.1f GFLOP/s, a token %s\n", rate * 1e-9, a_token);
}

static void print_table(const struct bench *b, const cJSON *f) {
    char line[DEVICE_FACTS_LINE], predicted[24], peak[24];
    const struct rank_report *r = &b->rank.result.report;
    const struct device_memory *m = &r->device_memory;
    const cJSON *memory = json_item(f, "memory"), *products = json_item(f, "products");
    const double side = json_number(f, "matmul_size"), full = json_number(f, "flops_per_step"),
                 causal = json_number(f, "flops_per_step_causal"),
                 again = json_number(f, "recomputed_flops_per_step"), chunks = json_number(f, "head_chunks"),
                 ledger = json_number(memory, "ledger_peak_bytes");
    if (r->on_gpu) {
        printf("device         %s\n               ", device_facts_line(line, &r->device));
        device_work_print(stdout, json_item(f, "device"));
    }
    products_print(stdout, "products       ", cJSON_IsNull(products) ? NULL : products);
    printf("model          %s, %.0f parameters\n", json_text(f, "model", ""), json_number(f, "params"));
    printf("tokens/s       %.1f\n", json_number(f, "tokens_per_second"));
    printf("step           B=%.0f T=%.0f %s: %.4f s (median)\n", json_number(f, "batch"),
           json_number(f, "seq"), json_text(f, "dtype", ""), json_number(f, "step_seconds"));
    printf("logits         %.0f chunk%s of %.0f rows\n", chunks, bench_plural((long)chunks),
           json_number(f, "head_chunk_rows"));
    printf("matmul         %.1f GFLOP/s (%.0f x %.0f x %.0f, same type, %s the steps, median)\n",
           json_number(f, "matmul_flops_per_second") * 1e-9, side, side, side,
           b->between.products > 1 ? "several in a row between" : "between");
    print_mfu("full", json_number(f, "flops_per_second"), json_number(f, "mfu"),
              json_number(f, "mfu_datasheet"), FLOPS_FULL);
    print_mfu("causal", json_number(f, "flops_per_second_causal"), json_number(f, "mfu_causal"),
              json_number(f, "mfu_datasheet_causal"), FLOPS_CAUSAL);
    printf(
        "               flops of a step / step seconds / rate; forward and backward, nothing recomputed\n");
    if (again > 0)
        printf(
            "recomputed     %.1f%% more than these flops (causal: %.1f%%): the hardware does %.1f GFLOP/s (%.1f)\n",
            100 * again / full, 100 * json_number(f, "recomputed_flops_per_step_causal") / causal,
            json_number(f, "hardware_flops_per_second") * 1e-9,
            json_number(f, "hardware_flops_per_second_causal") * 1e-9);
    if (isfinite(json_number(f, "peak_flops_per_second"))) {
        printf("peak           %.1f GFLOP/s (%s)\n", json_number(f, "peak_flops_per_second") * 1e-9,
               json_text(f, "peak", ""));
        printf("               %.3f of it the product, %.3f a step (attention in full), %.3f (causal)\n",
               json_number(f, "matmul_share_of_peak"), json_number(f, "share_of_peak"),
               json_number(f, "share_of_peak_causal"));
    }
    if (!cJSON_IsTrue(json_item(f, "shares_possible"))) puts("               " IMPOSSIBLE);
    if (isfinite(json_number(f, "datasheet_flops_per_second")))
        printf("datasheet      %.1f TFLOP/s (%s)\n", json_number(f, "datasheet_flops_per_second") * 1e-12,
               json_text(f, "datasheet", ""));
    else if (r->on_gpu)
        printf("datasheet      none: %s\n", json_text(f, "datasheet", ""));
    printf(
        "time           forward %.1f%%  backward %.1f%%  optimizer %.1f%%; %.3f ms per step without work\n",
        100 * json_number(f, "forward_share"), 100 * json_number(f, "backward_share"),
        100 * json_number(f, "optimizer_share"), json_number(f, "idle_seconds") * 1e3);
    printf("memory         %s predicted, %s counted at the peak: %s\n",
           format_bytes(predicted, json_number(memory, "predicted_bytes")), format_bytes(peak, ledger),
           json_number(memory, "predicted_bytes") == ledger ? "equal" : "DIFFERENT");
    if (r->on_gpu) {
        fputs("               ", stdout);
        device_memory_print(stdout, (double)m->used_bytes, (double)m->total_bytes, (double)m->ledger_bytes,
                            (double)m->workspace_bytes);
    }
    printf("allocations    %.0f after the first step\n", json_number(f, "late_allocations"));
}

// ---------------------------------------------------------------- the command
static int measure(struct bench *b, bool json) {
    struct train_observer observer = {.on_start = on_start, .on_step = on_step, .ctx = &b->between};
    int said = 0;
    if (bench_rank_train(&b->rank, &observer)) return -1;
    device_notes_say(b->rank.dev, &said);
    cJSON *f = figures_of(b);
    if (json)
        json_print(stdout, f);
    else
        print_table(b, f);
    cJSON_Delete(f);
    return 0;
}

static int run(const struct topology_table *topologies, const struct cli_args *a) {
    struct bench b = {.side = 0};
    long steps, side;
    int status = EXIT_USAGE;
    if (cli_integer(a, "steps", 1, 100000, 5, &steps) || cli_integer(a, "matmul", 1, 65536, 0, &side))
        return status;
    if (!prepare(&b, topologies, a, (int)steps + WARMUP_STEPS, side))
        status = measure(&b, cli_get(a, "json") != NULL) ? EXIT_RUN_FAILED : 0;
    else if (b.rank.ready)
        status = EXIT_RUN_FAILED;
    release(&b);
    return status;
}

const struct bench_program bench_step = {
    "tokens/s and the share of a matrix product's speed of one training step", &command, run};
