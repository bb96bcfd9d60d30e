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
#include "shared/core/text.h"
#include "shared/device/datasheet.h"
#include "shared/device/device_choice.h"
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
    if (cpu_kernel_choose(c)) return -1;
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
        int threads = c->threads ? c->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
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
// Medians of the timed steps, and what follows from them. NAN: not known here.
struct figures {
    const char *model, *dtype, *datasheet;  // datasheet: where it is from, or why it is not known
    char peak_text[200];
    int64_t params, batch, seq, product;  // product: side of the large matrix product
    struct head_plan head;
    double step_s, tokens_per_s;
    // Of it the compute stream had nothing to do: the host between the end of one step and the start of the next, which in a
    // run overlaps with the updates.
    double idle_s, host_waits;  // host_waits: a step, of the host for the device
    double flops, causal, again,
        again_causal;  // of a step; again: what the backward computes again, beside flops
    double rate, causal_rate, hardware_rate, hardware_causal_rate;  // a second
    double product_rate, share, causal_share;                       // of the product's rate
    double peak_rate, peak_share, peak_causal_share, product_peak_share;
    double datasheet_rate, datasheet_share, datasheet_causal_share;
    double forward_share, backward_share,
        optimizer_share;  // of a step's work; logits and loss are the backward's
    uint64_t late_allocations;
    size_t predicted_bytes, peak_bytes, pinned_bytes;  // the ledger; device memory, and host memory beside it
    const struct rank_report *report;
    struct cJSON *algorithms;  // of a GPU: products_json, the large product among its shapes
};

static const char mfu_formula[] =
    "flops_per_step / step_seconds / matmul_flops_per_second (measured in this run)";
static const char datasheet_formula[] = "flops_per_step / step_seconds / datasheet_flops_per_second";
static const char flops_formula[] = "a token: " FLOPS_FULL "; causal: " FLOPS_CAUSAL;

#define AT(m)       FIGURE_AT(figures, m)
#define WORDS(name) .kind = FIGURE_MADE, .put = put_##name
#define PUT_WORDS(name)                                                   \
    static void put_##name(cJSON *o, const char *key, const void *from) { \
        (void)from;                                                       \
        cJSON_AddStringToObject(o, key, name);                            \
    }
PUT_WORDS(mfu_formula)
PUT_WORDS(datasheet_formula)
PUT_WORDS(flops_formula)

static void put_device(cJSON *o, const char *key, const void *from) {
    const struct rank_report *r = ((const struct figures *)from)->report;
    cJSON_AddItemToObject(o, key, r->on_gpu ? device_facts_json(&r->device) : cJSON_CreateNull());
}

static void put_products(cJSON *o, const char *key, const void *from) {
    const struct figures *f = from;
    cJSON_AddItemToObject(o, key, f->algorithms ? cJSON_Duplicate(f->algorithms, 1) : cJSON_CreateNull());
}

static void put_memory(cJSON *j, const char *key, const void *from) {
    const struct figures *f = from;
    const struct device_memory *m = &f->report->device_memory;
    cJSON *o = cJSON_AddObjectToObject(j, key);
    json_put(o, "predicted_bytes", (double)f->predicted_bytes);
    json_put(o, "ledger_peak_bytes", (double)f->peak_bytes);
    json_put(o, "pinned_peak_bytes", (double)f->pinned_bytes);
    if (!f->report->on_gpu) return;
    json_put(o, "ledger_bytes", (double)m->ledger_bytes);
    json_put(o, "workspace_bytes", (double)m->workspace_bytes);
    json_put(o, "used_bytes", (double)m->used_bytes);
    json_put(o, "free_bytes", (double)m->free_bytes);
    json_put(o, "total_bytes", (double)m->total_bytes);
    json_put(o, "other_bytes",
             device_memory_other((double)m->used_bytes, (double)m->ledger_bytes, (double)m->workspace_bytes));
    cJSON_AddStringToObject(o, "other", DEVICE_MEMORY_OTHER);
}

static const struct figure rows[] = {
    {"model", AT(model)},
    {"params", AT(params)},
    {"batch", AT(batch)},
    {"seq", AT(seq)},
    {"dtype", AT(dtype)},
    {"head_chunk_rows", AT(head.rows)},
    {"head_chunks", AT(head.chunks)},
    {"step_seconds", AT(step_s)},
    {"idle_seconds", AT(idle_s)},
    {"host_waits_per_step", AT(host_waits)},
    {"tokens_per_second", AT(tokens_per_s)},
    {"flops_per_step", AT(flops)},
    {"flops_per_step_causal", AT(causal)},
    {"flops_formula", WORDS(flops_formula)},
    {"flops_per_second", AT(rate)},
    {"flops_per_second_causal", AT(causal_rate)},
    {"recomputed_flops_per_step", AT(again)},
    {"recomputed_flops_per_step_causal", AT(again_causal)},
    {"hardware_flops_per_second", AT(hardware_rate)},
    {"hardware_flops_per_second_causal", AT(hardware_causal_rate)},
    {"matmul_size", AT(product)},
    {"matmul_flops_per_second", AT(product_rate)},
    {"share_of_matmul", AT(share)},
    {"mfu", AT(share)},
    {"mfu_causal", AT(causal_share)},
    {"mfu_formula", WORDS(mfu_formula)},
    {"peak_flops_per_second", AT(peak_rate)},
    {"share_of_peak", AT(peak_share)},
    {"share_of_peak_causal", AT(peak_causal_share)},
    {"matmul_share_of_peak", AT(product_peak_share)},
    {"peak", AT(peak_text)},
    {"datasheet_flops_per_second", AT(datasheet_rate)},
    {"mfu_datasheet", AT(datasheet_share)},
    {"mfu_datasheet_causal", AT(datasheet_causal_share)},
    {"datasheet", AT(datasheet)},
    {"mfu_datasheet_formula", WORDS(datasheet_formula)},
    {"forward_share", AT(forward_share)},
    {"backward_share", AT(backward_share)},
    {"optimizer_share", AT(optimizer_share)},
    {"late_allocations", AT(late_allocations)},
    {"device", WORDS(device)},
    {"products", WORDS(products)},
    {"memory", WORDS(memory)},
};

// ---------------------------------------------------------------- the table
static void print_memory(const struct figures *f) {
    char a[24], b[24];
    const struct device_memory *m = &f->report->device_memory;
    printf("memory         %s predicted, %s counted at the peak: %s\n",
           format_bytes(a, (double)f->predicted_bytes), format_bytes(b, (double)f->peak_bytes),
           f->predicted_bytes == f->peak_bytes ? "equal" : "DIFFERENT");
    if (!f->report->on_gpu) return;
    fputs("               ", stdout);
    device_memory_print(stdout, (double)m->used_bytes, (double)m->total_bytes, (double)m->ledger_bytes,
                        (double)m->workspace_bytes);
}

// One counting of attention: the step's rate, its share of the product and, of a GPU, of the datasheet.
static void print_mfu(const char *attention, double rate, double share, double of_datasheet,
                      const char *a_token) {
    printf("MFU, %-9s %.3f of the product", attention, share);
    if (isfinite(of_datasheet)) printf(", %.3f of the datasheet", of_datasheet);
    printf(": %.1f GFLOP/s, a token %s\n", rate * 1e-9, a_token);
}

static void print_table(const struct figures *f, bool several) {
    char line[DEVICE_FACTS_LINE];
    const struct device_facts *facts = &f->report->device;
    bool gpu = f->report->on_gpu;
    long long n = (long long)f->product;
    if (gpu) {
        cJSON *device = device_facts_json(facts);
        printf("device         %s\n               ", device_facts_line(line, facts));
        device_work_print(stdout, device);
        cJSON_Delete(device);
    }
    products_print(stdout, "products       ", f->algorithms);
    printf("model          %s, %lld parameters\n", f->model, (long long)f->params);
    printf("tokens/s       %.1f\n", f->tokens_per_s);
    printf("step           B=%lld T=%lld %s: %.4f s (median)\n", (long long)f->batch, (long long)f->seq,
           f->dtype, f->step_s);
    printf("logits         %lld chunk%s of %lld rows\n", (long long)f->head.chunks,
           bench_plural(f->head.chunks), (long long)f->head.rows);
    printf("matmul         %.1f GFLOP/s (%lld x %lld x %lld, same type, %s the steps, median)\n",
           f->product_rate * 1e-9, n, n, n, several ? "several in a row between" : "between");
    print_mfu("full", f->rate, f->share, f->datasheet_share, FLOPS_FULL);
    print_mfu("causal", f->causal_rate, f->causal_share, f->datasheet_causal_share, FLOPS_CAUSAL);
    printf(
        "               flops of a step / step seconds / rate; forward and backward, nothing recomputed\n");
    if (f->again > 0)
        printf(
            "recomputed     %.1f%% more than these flops (causal: %.1f%%): the hardware does %.1f GFLOP/s (%.1f)\n",
            100 * f->again / f->flops, 100 * f->again_causal / f->causal, f->hardware_rate * 1e-9,
            f->hardware_causal_rate * 1e-9);
    if (isfinite(f->peak_rate)) {
        printf("peak           %.1f GFLOP/s (%s)\n", f->peak_rate * 1e-9, f->peak_text);
        printf("               %.3f of it the product, %.3f a step (attention in full), %.3f (causal)\n",
               f->product_peak_share, f->peak_share, f->peak_causal_share);
    }
    if (isfinite(f->datasheet_rate))
        printf("datasheet      %.1f TFLOP/s (%s)\n", f->datasheet_rate * 1e-12, f->datasheet);
    else if (gpu)
        printf("datasheet      none: %s\n", f->datasheet);
    printf(
        "time           forward %.1f%%  backward %.1f%%  optimizer %.1f%%; %.3f ms per step without work\n",
        100 * f->forward_share, 100 * f->backward_share, 100 * f->optimizer_share, f->idle_s * 1e3);
    print_memory(f);
    printf("allocations    %llu after the first step\n", (unsigned long long)f->late_allocations);
}

// ---------------------------------------------------------------- the command
// Device memory of everything that is timed here.
static size_t predicted_bytes(const struct bench *b) {
    struct job job = bench_rank_job(&b->rank);
    struct prediction p;
    if (prediction_of_rank(&job, "worker", 0, &p)) return 0;
    return mem_device_bytes(p.memory.predicted_bytes) + product_bytes(b);
}

static double of_steps(const struct bench *b, double *values) {
    return median(values + WARMUP_STEPS, (int)b->rank.result.steps - WARMUP_STEPS);
}

static void set_figures(struct bench *b, struct figures *f) {
    struct between *t = &b->between;
    const struct config *c = b->rank.config;
    const struct model_spec *spec = &b->rank.spec;
    const struct rank_report *r = &b->rank.result.report;
    double tokens = (double)(c->train_batch * c->seq), side = (double)b->side;
    struct token_flops model = model_flops_per_token(spec, c->seq);
    struct token_flops again = recompute_flops_per_token(&c->recompute, spec, c->seq);
    struct model_options model_options = train_model_options(c, spec, b->rank.layout);
    double forward = of_steps(b, t->phase_s[PHASE_FORWARD]),
           backward = of_steps(b, t->phase_s[PHASE_BACKWARD]),
           optimizer = of_steps(b, t->phase_s[PHASE_OPTIMIZER]), all = forward + backward + optimizer;
    *f = (struct figures){.model = spec->name,
                          .dtype = dtype_name(c->dtype),
                          .datasheet = "a CPU's peak is not in the table of datasheets",
                          .params = b->rank.layout->params,
                          .batch = c->train_batch,
                          .seq = c->seq,
                          .product = b->side,
                          .head = model_head_plan(&model_options),
                          .step_s = of_steps(b, t->step_s),
                          .idle_s = of_steps(b, t->idle_s),
                          .host_waits = of_steps(b, t->waits),
                          .flops = model.full * tokens,
                          .causal = model.causal * tokens,
                          .again = again.full * tokens,
                          .again_causal = again.causal * tokens,
                          .product_rate = 2 * side * side * side / of_steps(b, t->product_s),
                          .peak_rate = t->peak ? t->peak->flops / of_steps(b, t->peak_s) : NAN,
                          .datasheet_rate = NAN,
                          .forward_share = forward / all,
                          .backward_share = backward / all,
                          .optimizer_share = optimizer / all,
                          .late_allocations = r->late_allocations,
                          .predicted_bytes = predicted_bytes(b),
                          .peak_bytes = mem_device_bytes(r->peak_bytes),
                          .pinned_bytes = r->peak_bytes[MEM_HOST],
                          .report = r,
                          .algorithms = products_json(b->rank.dev, &b->products)};
    f->tokens_per_s = tokens / f->step_s;
    f->rate = f->flops / f->step_s;
    f->causal_rate = f->causal / f->step_s;
    f->hardware_rate = f->rate + f->again / f->step_s;
    f->hardware_causal_rate = f->causal_rate + f->again_causal / f->step_s;
    f->share = f->rate / f->product_rate;
    f->causal_share = f->causal_rate / f->product_rate;
    if (t->peak) cpu_peak_text(t->peak, f->peak_text, sizeof f->peak_text);
    f->peak_share = f->rate / f->peak_rate;
    f->peak_causal_share = f->causal_rate / f->peak_rate;
    f->product_peak_share = f->product_rate / f->peak_rate;
    if (r->on_gpu) {
        double known = datasheet_flops(r->device.name, c->dtype, &f->datasheet);
        if (known > 0) f->datasheet_rate = known;
    }
    f->datasheet_share = f->rate / f->datasheet_rate;
    f->datasheet_causal_share = f->causal_rate / f->datasheet_rate;
}

static int measure(struct bench *b, bool json) {
    struct train_observer observer = {.on_start = on_start, .on_step = on_step, .ctx = &b->between};
    struct figures f;
    int said = 0;
    if (bench_rank_train(&b->rank, &observer)) return -1;
    device_notes_say(b->rank.dev, &said);
    set_figures(b, &f);
    if (json) {
        cJSON *j = cJSON_CreateObject();
        figures_put(j, FIGURE_ROWS(rows), &f);
        json_print(stdout, j);
        cJSON_Delete(j);
    } else {
        print_table(&f, b->between.products > 1);
    }
    cJSON_Delete(f.algorithms);
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
