// `starring bench step`: times whole training steps of one rank. Compares them with a large matrix product and a copy
// in the same run, and with PyTorch.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shared/bench/bench.h"
#include "shared/bench/bench_peer.h"
#include "shared/bench/bench_work.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/numbers.h"
#include "shared/core/system.h"
#include "shared/core/text.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/model/head_plan.h"
#include "shared/model/model.h"
#include "shared/predict/memory_need.h"
#include "shared/report/metrics.h"
#include "shared/train/train.h"

// The yardsticks. A square product this large runs at the library's best rate. The copy has a fixed number of fp32
// elements per element of the product, so it is larger than the caches; a larger product gets no larger copy. They are
// timed between steps, so that all see the same machine. On a GPU one takes a millisecond or two: several run in a
// row, so the host's wake-up time is negligible.
#define YARD_HOST    2048
#define YARD_GPU     8192
#define COPIES_HOST  4
#define COPIES_GPU   2
#define LAUNCHES_GPU 16
#define WARMUP_STEPS 2

static const struct cli_option options[] = {
    {"model", "model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", 0},
    {"batch", "train_micro_batch_size_per_gpu", "B", "sequences per step (4)", 0},
    {"seq", "data.seq_len", "T", "tokens a sequence (256)", 0},
    {"dtype", "dtype", "D", "fp32, bf16 or fp16 (bf16)", 0},
    {"device", "device", "D", "auto, cpu or cuda (auto: a GPU if there is one)", 0},
    {"threads", "threads", "N", "CPU threads (one per core)", 0},
    {"steps", NULL, "N", "timed steps, after two for warming up; with --peer of a round (5)", 0},
    {"matmul", NULL, "N", "side of the large matrix product (2048; on a GPU 8192)", 0},
    {"peer", NULL, "PYTHON", "the same step in PyTorch, of this interpreter, in turn with ours", 0},
    {"rounds", NULL, "N", "with --peer: turns of ours, of PyTorch's eager and of its compiled step (3)", 0},
    {"set", CLI_SET, "KEY=VALUE", "any configuration key", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench step",
    .usage = "[--model M] [--batch B] [--seq T] [--dtype D] [OPTIONS]",
    .summary =
        "Times whole training steps (forward, backward, clipping, AdamW) of one process and, between them,\n"
        "a large matrix product and a copy: the share of the product's rate that a step reaches is the figure\n"
        "to compare, and the share of its floor, the time that its products and bytes take at these two rates,\n"
        "says what can still be gained. On a CPU the peak of its multiply-add is timed as well. With --peer\n"
        "PyTorch does the same step in turn with ours: model, batch, length, type, threads, clipping, AdamW.",
    .examples =
        "  starring bench step --model gpt2-124m --batch 4 --seq 256 --dtype bf16\n"
        "  starring bench step --model gpt2-124m --batch 32 --seq 1024 --device cuda\n"
        "  starring bench step --model qwen2.5-0.5b --batch 1 --seq 512 --peer venv/bin/python\n"
        "  starring bench step --model demo --batch 8 --seq 128 --dtype fp32 --json\n",
    CLI_OPTIONS(options),
};

// One of the works that are timed between the steps, and the two times at each step.
enum yard_kind { YARD_PRODUCT, YARD_COPY, YARD_PEAK, YARDS };
enum yard_when { BEFORE, BEHIND, YARD_TIMES };
struct yard {
    double amount;          // FLOP or bytes of one; 0: not timed
    double *s[YARD_TIMES];  // seconds of one, just before and just after each step
};

struct between {
    struct stream *s;
    const struct bench_device *d;
    struct cpu_peak *peak;  // on a host; NULL on a GPU
    struct yard yards[YARDS];
    double *idle_s;           // one per step
    double *phase_s[PHASES];  // per step: busy time of the compute stream in each phase
    double *step_s, *waits;   // per step: until its updates end; the host's waits for the device
    double *measured;         // the memory of all these lists and the yards'
    int count, capacity;
    struct stream_times busy;     // of the compute stream so far
    struct op_work work[PHASES];  // of the last step
    uint64_t waits_before;
    struct bench_peer *peer;  // NULL: only ours
    int steps;                // of a round
    _Atomic int *stop;
};

struct bench {
    struct bench_rank rank;
    struct bench_device d;  // the rank's device, with the yardsticks
    struct between between;
    int64_t side;  // of the product
    int steps;     // timed steps of a round
    char *python;  // NULL: no peer
};

static int yard_launches(const struct between *b) { return b->d->gpu ? LAUNCHES_GPU : 1; }

static double time_yard(const struct between *b, enum yard_kind kind) {
    if (kind == YARD_PEAK) return bench_peak(b->s, b->peak);
    int launches = yard_launches(b);
    return bench_launches(b->s, kind == YARD_COPY ? &b->d->copy : &b->d->product, launches) / launches;
}

static void time_yards(struct between *b, enum yard_when when) {
    for (int k = 0; k < YARDS; k++)
        if (b->yards[k].amount > 0) b->yards[k].s[when][b->count] = time_yard(b, (enum yard_kind)k);
}

// The phases of a step; the yardsticks between the steps belong to none of them.
static const enum phase step_phases[] = {PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER};
#define STEP_PHASES (sizeof step_phases / sizeof *step_phases)

// Times the yardsticks before the next step, if there is one, and reads the stream's times so far. again: measure the
// yardsticks again; otherwise the times after the previous step are used.
static void begin_step(struct between *b, bool again) {
    int i = b->count;
    if (i < b->capacity && again) time_yards(b, BEFORE);
    for (int k = 0; k < YARDS && i < b->capacity && !again; k++)
        b->yards[k].s[BEFORE][i] = b->yards[k].s[BEHIND][i - 1];
    stream_get_times(b->s, &b->busy);
    b->waits_before = dev_host_waits(stream_device(b->s));
}

static void on_start(void *ctx, const struct config *c, const struct model_spec *s, int64_t params) {
    (void)c, (void)s, (void)params;
    begin_step(ctx, true);
}

// At the end of a round, runs the peer's round. If it fails, our training stops too. Returns whether the peer ran.
static bool take_turns(struct between *b) {
    int timed = b->count - WARMUP_STEPS;
    if (!b->peer || timed <= 0 || timed % b->steps) return false;
    struct bench_series ours = {.values = b->step_s + b->count - b->steps, .count = b->steps};
    if (bench_peer_round(b->peer, b->steps, WARMUP_STEPS, bench_series_median(&ours))) *b->stop = 1;
    return true;
}

// The step's updates are still running when its loss is known. The step is timed until they end, although in a run the
// next step would be queued after them.
static void on_step(void *ctx, const struct step_record *r) {
    struct between *b = ctx;
    int i = b->count;
    if (i == b->capacity || *b->stop) return;
    b->waits[i] = (double)(dev_host_waits(stream_device(b->s)) - b->waits_before);
    double end = now_seconds();
    stream_sync(b->s);
    struct stream_times busy;
    stream_get_times(b->s, &busy);
    b->idle_s[i] = b->step_s[i] = r->seconds + (now_seconds() - end);
    for (size_t k = 0; k < STEP_PHASES; k++) {
        enum phase phase = step_phases[k];
        b->phase_s[phase][i] = busy.busy_s[phase] - b->busy.busy_s[phase];
        b->idle_s[i] -= b->phase_s[phase][i];
        b->work[phase].flops = busy.work[phase].flops - b->busy.work[phase].flops;
        b->work[phase].bytes = busy.work[phase].bytes - b->busy.work[phase].bytes;
    }
    time_yards(b, BEHIND);
    b->count++;
    begin_step(b, take_turns(b));
}

static int64_t copy_bytes(const struct bench *b, bool gpu) {
    int64_t yard = gpu ? YARD_GPU : YARD_HOST, side = b->side < yard ? b->side : yard;
    return (int64_t)sizeof(float) * side * side * (gpu ? COPIES_GPU : COPIES_HOST);
}

// Device memory of the yardsticks.
static size_t yard_bytes(const struct bench *b, bool gpu) {
    size_t side = (size_t)b->side;
    return 3 * dev_round(side * side * dtype_size(b->rank.config->dtype)) +
           2 * dev_round((size_t)copy_bytes(b, gpu));
}

static int set_yards(struct bench *b) {
    struct between *t = &b->between;
    struct bench_device *d = &b->d;
    const struct config *c = b->rank.config;
    int64_t n = b->side;
    void *x = bench_buffer(d, d->dt, n * n, 1.0f), *y = bench_buffer(d, d->dt, n * n, 1.0f);
    void *z = arena_take(&d->arena, MEM_WORKSPACE, (size_t)(n * n) * dtype_size(d->dt));
    if (!x || !y || d->arena.failed || bench_set_copy(d, copy_bytes(b, d->gpu))) return -1;
    BENCH_SET(&d->product, matmul, matmul_args, .c = z, .a = x, .b = y, .m = n, .n = n, .k = n,
              .trans_b = true, .dt = d->dt);
    t->yards[YARD_PRODUCT].amount = d->product.work.flops;
    t->yards[YARD_COPY].amount = d->copy.work.bytes;
    if (d->gpu) return 0;
    cpu_peak_init(&d->peak, c->cpu_kernel, c->dtype, c->threads ? c->threads : processors_given());
    t->peak = &d->peak;
    t->yards[YARD_PEAK].amount = d->peak.flops;
    return 0;
}

static int prepare(struct bench *b, const struct topology_table *topologies, const struct cli_args *a,
                   int rounds, int64_t side) {
    char count[24];
    const struct config_override own[] = {{"steps", count, "bench step"},
                                          {"gradient_clipping", "1.0", "bench step"}};
    struct between *t = &b->between;
    int steps = WARMUP_STEPS + rounds * b->steps;
    // 1. The options, and everything they name.
    snprintf(count, sizeof count, "%d", steps);
    if (bench_rank_load(
            &b->rank, "bench step", topologies, own, 2, a,
            "one process is timed, --topology local; compare topologies with experiments/compare.py"))
        return -1;
    struct config *c = b->rank.config;
    device_resolve(c);
    if (cli_get(a, "peer") && !(b->python = bench_peer_check(cli_get(a, "peer"), c))) return -1;
    const struct backend *found = device_backend(c);
    if (!found || bench_rank_open(&b->rank, found)) return -1;
    struct device *dev = b->rank.dev;
    // 2. The rank, and the yardsticks of the same run.
    bool gpu = !dev_host_memory(dev);
    b->side = side ? side : gpu ? YARD_GPU : YARD_HOST;
    if (bench_rank_join(&b->rank, yard_bytes(b, gpu))) return -1;
    *t = (struct between){
        .s = b->rank.compute, .d = &b->d, .capacity = steps, .steps = b->steps, .stop = &b->rank.stop};
    double **lists[3 + STEP_PHASES + YARDS * YARD_TIMES] = {&t->idle_s, &t->step_s, &t->waits};
    size_t n = 3, each = (size_t)steps;
    for (size_t i = 0; i < STEP_PHASES; i++) lists[n++] = &t->phase_s[step_phases[i]];
    for (int k = 0; k < YARDS * YARD_TIMES; k++) lists[n++] = &t->yards[k / YARD_TIMES].s[k % YARD_TIMES];
    t->measured = xcalloc(n * each, sizeof(double));
    while (n--) *lists[n] = t->measured + n * each;
    b->d = (struct bench_device){.dev = dev, .s = t->s, .gpu = gpu, .dt = c->dtype};
    arena_init(&b->d.arena, dev);
    return set_yards(b);
}

static void release(struct bench *b) {
    struct between *t = &b->between;
    bench_peer_end(&t->peer);
    if (t->s) arena_release(&b->d.arena);
    bench_rank_close(&b->rank);
    free(t->measured);
    free(b->python);
}

// ---------------------------------------------------------------- figures
// Returns the predicted device memory of everything that is timed here.
static size_t predicted_bytes(const struct bench *b) {
    struct job job = bench_rank_job(&b->rank);
    struct prediction p;
    if (prediction_of_rank(&job, "worker", 0, &p)) return 0;
    return mem_device_bytes(p.memory.predicted_bytes) + yard_bytes(b, b->d.gpu);
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

static double yard_rate(const struct bench *b, enum yard_kind kind) {
    const struct yard *y = &b->between.yards[kind];
    return y->amount > 0 ? y->amount / of_steps(b, y->s[BEHIND]) : NAN;
}

// Returns the time that this work takes at the rates measured just before and just after step i, with FLOP at the rate
// of `kind`.
static double floor_of(const struct bench *b, const struct op_work *w, enum yard_kind kind, int i) {
    const struct yard *flops = &b->between.yards[kind], *bytes = &b->between.yards[YARD_COPY];
    return w->flops / flops->amount * (flops->s[BEFORE][i] + flops->s[BEHIND][i]) / 2 +
           w->bytes / bytes->amount * (bytes->s[BEFORE][i] + bytes->s[BEHIND][i]) / 2;
}

// Returns that time over the measured time, the median over the steps: a change of the machine's speed affects both.
// Call it before anything that sorts the measurements.
static double share_of(const struct bench *b, struct op_work w, enum yard_kind kind, const double *taken_s) {
    int count = (int)b->rank.result.steps;
    if (!(b->between.yards[kind].amount > 0)) return NAN;
    double *share = xcalloc((unsigned long)count, sizeof *share);
    for (int i = WARMUP_STEPS; i < count; i++) share[i] = floor_of(b, &w, kind, i) / taken_s[i];
    double middle = of_steps(b, share);
    free(share);
    return middle;
}

// Writes the floor of a step and of its phases: its products, including attention's, at the rate of the large product,
// and the bytes of all other operations at the rate of the copy. Returns false if a share is above 1, for example if
// tensors stay in the caches.
static bool put_floor(cJSON *o, const struct bench *b) {
    static const char *const names[STEP_PHASES] = {"forward_share", "backward_share", "optimizer_share"};
    const struct between *t = &b->between;
    struct op_work all = {0};
    double shares[STEP_PHASES];
    for (size_t i = 0; i < STEP_PHASES; i++) {
        const struct op_work *w = &t->work[step_phases[i]];
        all.flops += w->flops;
        all.bytes += w->bytes;
        shares[i] = share_of(b, *w, YARD_PRODUCT, t->phase_s[step_phases[i]]);
    }
    double of_all = share_of(b, all, YARD_PRODUCT, t->step_s);
    double products = all.flops / yard_rate(b, YARD_PRODUCT), bytes = all.bytes / yard_rate(b, YARD_COPY);
    bool possible = !(of_all > 1);
    json_put(o, "seconds", products + bytes);
    json_put(o, "product_seconds", products);
    json_put(o, "product_flops", all.flops);
    json_put(o, "copy_seconds", bytes);
    json_put(o, "copy_bytes", all.bytes);
    json_put(o, "copy_bytes_per_second", yard_rate(b, YARD_COPY));
    json_put(o, "share", of_all);
    for (size_t i = 0; i < STEP_PHASES; i++) {
        json_put(o, names[i], shares[i]);
        possible &= !(shares[i] > 1);
    }
    return possible;
}

// Returns the medians of the timed steps and the values computed from them, as in --json; the table uses them too.
// null: not known here. "again": what the backward pass recomputes, not included in the model's FLOP.
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
    // Before the medians, which sort their values.
    const struct op_work counted = {.flops = full};
    double of_product = share_of(b, counted, YARD_PRODUCT, t->step_s);
    double of_peak = share_of(b, counted, YARD_PEAK, t->step_s);
    cJSON *o = cJSON_CreateObject(), *floor = cJSON_CreateObject();
    bool possible = put_floor(floor, b) && !(of_product > 1) && !(of_peak > 1);
    double step_s = of_steps(b, t->step_s), product = yard_rate(b, YARD_PRODUCT),
           peak = yard_rate(b, YARD_PEAK), datasheet = known > 0 ? known : NAN;
    double forward = of_steps(b, t->phase_s[PHASE_FORWARD]),
           backward = of_steps(b, t->phase_s[PHASE_BACKWARD]),
           optimizer = of_steps(b, t->phase_s[PHASE_OPTIMIZER]), all = forward + backward + optimizer;
    char peak_text[200] = "";
    if (t->peak) cpu_peak_text(t->peak, peak_text, sizeof peak_text);
    cJSON_AddStringToObject(o, "model", spec->name);
    json_put(o, "params", (double)b->rank.layout->params);
    json_put(o, "batch", (double)c->train_batch);
    json_put(o, "seq", (double)c->seq);
    cJSON_AddStringToObject(o, "dtype", dtype_name(c->dtype));
    json_put(o, "head_chunk_rows", (double)head.rows);
    json_put(o, "head_chunks", (double)head.chunks);
    json_put(o, "step_seconds", step_s);
    // Time in which the compute stream had no work: the host, between the end of one step and the start of the next.
    // In a run it overlaps with the updates.
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
    cJSON_AddBoolToObject(o, "shares_possible", possible && !(product > peak));
    json_put(o, "matmul_share_of_peak", product / peak);
    json_put_text(o, "peak", peak_text);
    json_put(o, "datasheet_flops_per_second", datasheet);
    json_put(o, "mfu_datasheet", full / step_s / datasheet);
    json_put(o, "mfu_datasheet_causal", causal / step_s / datasheet);
    cJSON_AddStringToObject(o, "datasheet", source);
    cJSON_AddStringToObject(o, "mfu_datasheet_formula",
                            "flops_per_step / step_seconds / datasheet_flops_per_second");
    // Shares of a step's work; logits and loss belong to the backward pass.
    json_put(o, "forward_share", forward / all);
    json_put(o, "backward_share", backward / all);
    json_put(o, "optimizer_share", optimizer / all);
    cJSON_AddItemToObject(o, "floor", floor);
    cJSON_AddItemToObject(o, "peer", t->peer ? bench_peer_figures(t->peer, tokens) : cJSON_CreateNull());
    json_put(o, "late_allocations", (double)r->late_allocations);
    cJSON_AddItemToObject(o, "device", r->on_gpu ? device_facts_json(&r->device) : cJSON_CreateNull());
    put_memory(cJSON_AddObjectToObject(o, "memory"), b);
    return o;
}

// ---------------------------------------------------------------- the table
// Printed after the shares if one is above 1.
#define IMPOSSIBLE                                                                                                          \
    "shares above 1: the machine changed its speed between a step and the product, so run it again, for longer (--steps); " \
    "of the floor also: tensors stay in the caches"

// For one counting of attention: the step's rate, its share of the product's and, on a GPU, of the datasheet's.
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
    const cJSON *memory = json_item(f, "memory");
    const double side = json_number(f, "matmul_size"), full = json_number(f, "flops_per_step"),
                 causal = json_number(f, "flops_per_step_causal"),
                 again = json_number(f, "recomputed_flops_per_step"), chunks = json_number(f, "head_chunks"),
                 ledger = json_number(memory, "ledger_peak_bytes");
    if (r->on_gpu) {
        printf("device         %s\n               ", device_facts_line(line, &r->device));
        device_work_print(stdout, json_item(f, "device"));
    }
    printf("model          %s, %.0f parameters\n", json_text(f, "model", ""), json_number(f, "params"));
    printf("tokens/s       %.1f\n", json_number(f, "tokens_per_second"));
    printf("step           B=%.0f T=%.0f %s: %.4f s (median)\n", json_number(f, "batch"),
           json_number(f, "seq"), json_text(f, "dtype", ""), json_number(f, "step_seconds"));
    printf("logits         %.0f chunk%s of %.0f rows\n", chunks, bench_plural((long)chunks),
           json_number(f, "head_chunk_rows"));
    printf("matmul         %.1f GFLOP/s (%.0f x %.0f x %.0f, same type, %s the steps, median)\n",
           json_number(f, "matmul_flops_per_second") * 1e-9, side, side, side,
           b->d.gpu ? "several in a row between" : "between");
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
    const cJSON *floor = json_item(f, "floor");
    printf(
        "floor          %.4f s: products %.4f (%.4g GFLOP at the product's rate), the rest %.4f (%.3g GB at the copy's, %.1f GB/s)\n",
        json_number(floor, "seconds"), json_number(floor, "product_seconds"),
        json_number(floor, "product_flops") * 1e-9, json_number(floor, "copy_seconds"),
        json_number(floor, "copy_bytes") * 1e-9, json_number(floor, "copy_bytes_per_second") * 1e-9);
    printf(
        "               %.3f of the step's time; forward %.3f, backward %.3f, optimizer %.3f of their own\n",
        json_number(floor, "share"), json_number(floor, "forward_share"),
        json_number(floor, "backward_share"), json_number(floor, "optimizer_share"));
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
    if (b->between.peer) bench_peer_print(json_item(f, "peer"), json_number(f, "matmul_flops_per_second"));
}

// ---------------------------------------------------------------- the command
// Returns the exit status.
static int measure(struct bench *b, bool json) {
    struct between *t = &b->between;
    struct train_observer observer = {.on_start = on_start, .on_step = on_step, .ctx = t};
    const struct bench_rank *r = &b->rank;
    int said = 0, status = EXIT_RUN_FAILED;
    const struct bench_peer_job job = {r->config, &r->spec, r->layout, b->side, yard_launches(t)};
    if (b->python && !(t->peer = bench_peer_start(b->python, &job, &status))) return status;
    if (bench_rank_train(&b->rank, &observer) || b->rank.stop) return EXIT_RUN_FAILED;
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
    long steps, side, rounds;
    int status = EXIT_USAGE;
    if (cli_integer(a, "steps", 1, 100000, 5, &steps) || cli_integer(a, "matmul", 1, 65536, 0, &side) ||
        cli_integer(a, "rounds", 1, BENCH_ROUNDS_MOST, 3, &rounds))
        return status;
    bool peer = cli_get(a, "peer") != NULL;
    if (cli_get(a, "rounds") && !peer) {
        fail("bench step: --rounds are of --peer: give both, or --steps alone");
        return status;
    }
    b.steps = (int)steps;
    if (!prepare(&b, topologies, a, peer ? (int)rounds : 1, side))
        status = measure(&b, cli_get(a, "json") != NULL);
    else if (b.rank.ready)
        status = EXIT_RUN_FAILED;
    release(&b);
    return status;
}

const struct bench_program bench_step = {
    "tokens/s and the share of a matrix product's speed of one training step", &command, run};
