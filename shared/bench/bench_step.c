// `starring bench step`: times whole training steps of one rank. Compares them with a large matrix product and a copy
// in the same run, and with PyTorch.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/bench/bench.h"
#include "shared/bench/bench_peer.h"
#include "shared/bench/bench_work.h"
#include "shared/core/error.h"
#include "shared/core/numbers.h"
#include "shared/core/system.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/hf/presets.h"
#include "shared/launch/local.h"
#include "shared/model/head_plan.h"
#include "shared/model/model.h"
#include "shared/predict/memory_check.h"
#include "shared/predict/memory_need.h"
#include "shared/report/metrics.h"
#include "shared/train/train.h"

// The yardsticks. A square product this large runs at the library's best rate. The copy has a fixed number of fp32
// elements per element of the product, so it is larger than the caches; a larger product gets no larger copy. They are
// timed between steps, so that all see the same machine. On a GPU one takes a millisecond or two: several run in a
// row, so the host's wake-up time is negligible.
#define PRODUCT_HOST 2048
#define PRODUCT_GPU  8192
#define COPIES_HOST  4
#define COPIES_GPU   2
#define LAUNCHES_GPU 16
#define WARMUP_STEPS 2

// A yardstick, timed before and after each step.
enum yardstick_kind { YARDSTICK_PRODUCT, YARDSTICK_COPY, YARDSTICK_PEAK, YARDSTICKS };
struct yardstick {
    double amount;               // FLOP or bytes of one; 0: not timed
    double before_s, after_s;    // seconds of one, just before and just after the last step
    struct bench_series after;   // seconds just after each step
    struct bench_series around;  // mean of the seconds just before and just after each step
};

// The phases of a step; the yardsticks between the steps belong to none of them.
static const enum phase step_phases[] = {PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER};
#define STEP_PHASES (sizeof step_phases / sizeof *step_phases)

struct step {
    struct bench_run *run;
    // ---- the rank that trains
    struct config *config;
    struct model_spec spec;
    struct layout *layout;
    struct token_source *data;
    struct device *dev;
    struct stream *compute;
    struct topology *topology;
    struct train_parts parts;
    struct train_result result;
    _Atomic int stop;  // non-zero: training stops after the current step
    // ---- the yardsticks
    struct bench_device d;  // the rank's device
    int64_t side;           // side of the product
    struct yardstick yardsticks[YARDSTICKS];
    // ---- PyTorch
    char *python;             // NULL: no peer
    struct bench_peer *peer;  // NULL: only ours
    // ---- the timed steps, one value per step
    int steps, rounds;  // timed steps of a round; rounds with the peer
    int done;           // steps, including the warm-up
    struct bench_series idle_s, step_s,
        waits;                            // step_s: until its updates end; waits: the host's, for the device
    struct bench_series phase_s[PHASES];  // busy time of the compute stream in each phase
    struct stream_times busy;             // busy times of the compute stream so far
    struct op_work work[PHASES];          // work of the last step
    uint64_t waits_before;
};

static const struct bench_option options[] = {
    {"model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", BENCH_KEY("model")},
    {"batch", "B", "sequences per step (4)", BENCH_KEY("train_micro_batch_size_per_gpu")},
    {"seq", "T", "tokens a sequence (256)", BENCH_KEY("data.seq_len")},
    {"dtype", "D", "fp32, bf16 or fp16 (bf16)", BENCH_KEY("dtype")},
    {"device", "D", "auto, cpu or cuda (auto: a GPU if there is one)", BENCH_KEY("device")},
    {"threads", "N", "CPU threads (one per core)", BENCH_KEY("threads")},
    {"steps", "N", "timed steps, after two for warming up; with --peer of a round",
     BENCH_INTEGER(step, steps, 1, 100000, 5)},
    {"matmul", "N", "side of the large matrix product (2048; on a GPU 8192)",
     BENCH_INTEGER(step, side, 1, 65536, 0)},
    {"peer", "PYTHON", "the same step in PyTorch, of this interpreter, in turn with ours", BENCH_ASKS},
    {"rounds", "N", "with --peer: turns of ours, of PyTorch's eager and of its compiled step",
     BENCH_INTEGER(step, rounds, 1, BENCH_ROUNDS_MOST, 3)},
    {"set", "KEY=VALUE", "any configuration key", BENCH_KEY(CLI_SET)},
};

// ---------------------------------------------------------------- set up
static int64_t copy_bytes(const struct step *b, bool gpu) {
    int64_t most = gpu ? PRODUCT_GPU : PRODUCT_HOST, side = b->side < most ? b->side : most;
    return (int64_t)sizeof(float) * side * side * (gpu ? COPIES_GPU : COPIES_HOST);
}

// Device memory of the yardsticks.
static size_t yardstick_bytes(const struct step *b, bool gpu) {
    size_t side = (size_t)b->side;
    return 3 * dev_round(side * side * dtype_size(b->config->dtype)) +
           2 * dev_round((size_t)copy_bytes(b, gpu));
}

static int set_yardsticks(struct step *b) {
    struct bench_device *d = &b->d;
    int64_t n = b->side;
    void *x = bench_buffer(d, d->dt, n * n, 1.0f), *y = bench_buffer(d, d->dt, n * n, 1.0f);
    void *z = arena_take(&d->arena, MEM_WORKSPACE, (size_t)(n * n) * dtype_size(d->dt));
    if (!x || !y || d->arena.failed || bench_set_copy(d, copy_bytes(b, d->gpu))) return -1;
    BENCH_SET(&d->product, matmul, matmul_args, .c = z, .a = x, .b = y, .m = n, .n = n, .k = n,
              .trans_b = true, .dt = d->dt);
    b->yardsticks[YARDSTICK_PRODUCT].amount = d->product.work.flops;
    b->yardsticks[YARDSTICK_COPY].amount = d->copy.work.bytes;
    if (d->gpu) return 0;
    cpu_peak_init(&d->peak, b->config->cpu_kernel, d->dt,
                  b->config->threads ? b->config->threads : processors_given());
    b->yardsticks[YARDSTICK_PEAK].amount = d->peak.flops;
    return 0;
}

// Reads the configuration and its model. Returns 0, or -1 after logging.
static int read_config(struct step *b, const struct bench_run *r) {
    const struct cli_args *a = r->args;
    const char *who = r->bench->command.name, *python = cli_get(a, "peer");
    if (cli_get(a, "rounds") && !python)
        return fail("bench step: --rounds needs --peer: give both, or only --steps");
    if (!python) b->rounds = 1;
    char count[24];
    snprintf(count, sizeof count, "%d", WARMUP_STEPS + b->rounds * b->steps);
    const struct config_override set[] = {
        {"topology", "local", who},       {"model", "gpt2-124m", who},
        {"data.path", "demo", who},       {"train_micro_batch_size_per_gpu", "4", who},
        {"data.seq_len", "256", who},     {"dtype", "bf16", who},
        {"eval_batches", "0", who},       {"steps", count, who},
        {"gradient_clipping", "1.0", who}};
    struct config *c = b->config = cli_config(r->topologies, set, sizeof set / sizeof *set, a);
    if (!c || model_spec_load(c->model, &b->spec) || model_spec_check_seq(&b->spec, c->seq)) return -1;
    if (c->row != &topology_local)
        return fail(
            "bench step: --set topology=%s: one process is timed, --topology local; compare topologies with "
            "experiments/compare.py",
            c->topology);
    if (c->documents == DOCUMENTS_WHOLE)
        return fail(
            "bench step: data.documents whole: steps of one length are timed; other lengths with --seq");
    device_resolve(c);
    return python && !(b->python = bench_peer_check(python, c)) ? -1 : 0;
}

static struct job job_of(const struct step *b) {
    return (struct job){.config = b->config, .spec = b->spec, .layout = b->layout, .ranks_here = 1};
}

// Missing memory is reported before anything is allocated: a failing allocation would not know how much is missing,
// and on a CPU the system would kill the program without a message.
static int check_memory(const struct step *b, bool gpu) {
    const struct config *c = b->config;
    struct memory_ranks part = {.role = "worker", .count = 1, .processes = true, .gpus = device_gpus(c)};
    struct memory_need need;
    struct job job = job_of(b);
    char what[160];
    if (memory_need_of(&job, &part, &need)) return -1;
    (gpu ? &need.gpu[0] : &need.host)->predicted_bytes += (double)yardstick_bytes(b, gpu);
    snprintf(what, sizeof what, "%s with --batch %lld --seq %lld (smaller ones need less)", b->spec.name,
             (long long)c->micro_batch, (long long)c->seq);
    return memory_check(c, &need, what);
}

static int set_up(struct bench_run *r) {
    struct step *b = r->state;
    b->run = r;
    // 1. The options, and everything they name.
    if (read_config(b, r)) return EXIT_USAGE;
    const struct config *c = b->config;
    const struct backend *backend = device_backend(c);
    if (!backend || !(b->layout = model_layout_create(&b->spec, 1))) return EXIT_USAGE;
    struct data_options data = {
        .path = c->data, .tokenizer = c->tokenizer, .val_fraction = c->val_fraction, .vocab = b->spec.vocab};
    if (!(b->data = data_open(&data))) return EXIT_USAGE;
    // 2. The device.
    struct device_options device = {
        .threads = c->threads, .label = "bench", .kernel = c->cpu_kernel, .cuda = c->cuda};
    if (dev_open(backend, &device, &b->dev))
        return fail("cannot open the %s device", backend->name), EXIT_RUN_FAILED;
    if (!(b->compute = stream_create(b->dev, "compute")))
        return fail("cannot create a stream: %s", dev_error(b->dev)), EXIT_RUN_FAILED;
    // 3. The topology, if it and the yardsticks fit.
    bool gpu = !dev_host_memory(b->dev);
    if (!b->side) b->side = gpu ? PRODUCT_GPU : PRODUCT_HOST;
    if (check_memory(b, gpu)) return EXIT_RUN_FAILED;
    struct local_options local = local_options_of(c, b->layout);
    local.dev = b->dev;
    local.compute = b->compute;
    if (!(b->topology = local_create(&local))) return EXIT_RUN_FAILED;
    // 4. The yardsticks.
    b->d = (struct bench_device){.dev = b->dev, .s = b->compute, .gpu = gpu, .dt = c->dtype};
    arena_init(&b->d.arena, b->dev);
    if (set_yardsticks(b)) return EXIT_RUN_FAILED;
    // 5. PyTorch's process.
    int status = EXIT_RUN_FAILED;
    const struct bench_peer_job job = {c, &b->spec, b->layout, b->side, gpu ? LAUNCHES_GPU : 1};
    return b->python && !(b->peer = bench_peer_start(b->python, &job, &status)) ? status : 0;
}

static void tear_down(struct bench_run *r) {
    struct step *b = r->state;
    bench_peer_end(&b->peer);
    if (b->d.s) arena_release(&b->d.arena);
    train_parts_destroy(&b->parts);
    if (b->topology) topology_destroy(&b->topology);
    if (b->compute) stream_destroy(&b->compute);
    if (b->dev) dev_close(&b->dev);
    if (b->data) data_close(&b->data);
    layout_destroy(&b->layout);
    config_destroy(&b->config);
    free(b->python);
}

// ---------------------------------------------------------------- steps
static double time_yardstick(struct step *b, enum yardstick_kind kind) {
    if (kind == YARDSTICK_PEAK) return bench_peak(b->compute, &b->d.peak);
    int launches = b->d.gpu ? LAUNCHES_GPU : 1;
    return bench_launches(b->compute, kind == YARDSTICK_COPY ? &b->d.copy : &b->d.product, launches) /
           launches;
}

// Prepares the next step. again: the yardsticks are timed again; otherwise the times after the last step count.
static void begin_step(struct step *b, bool again) {
    for (int k = 0; k < YARDSTICKS; k++) {
        struct yardstick *y = &b->yardsticks[k];
        bool more = b->done < WARMUP_STEPS + b->rounds * b->steps;
        if (y->amount > 0)
            y->before_s = again && more ? time_yardstick(b, (enum yardstick_kind)k) : y->after_s;
    }
    stream_get_times(b->compute, &b->busy);
    b->waits_before = dev_host_waits(b->dev);
}

static void on_start(void *ctx, const struct config *c, const struct model_spec *s, const struct layout *l) {
    (void)c, (void)s, (void)l;
    begin_step(ctx, true);
}

// At the end of a round, runs the peer's round. If it fails, our training stops too. Returns whether the peer ran.
static bool run_peer(struct step *b) {
    int timed = b->step_s.count;
    if (!b->peer || !timed || timed % b->steps) return false;
    struct bench_series ours = {.values = b->step_s.values + timed - b->steps, .count = b->steps};
    if (bench_peer_round(b->peer, b->steps, WARMUP_STEPS, bench_series_median(&ours))) b->stop = 1;
    return true;
}

// The step's updates are still running when its loss is known. The step is timed until they end, although in a run the
// next step would be queued after them.
static void on_step(void *ctx, const struct step_record *r) {
    struct step *b = ctx;
    if (b->stop) return;
    bool timed = b->done++ >= WARMUP_STEPS;
    double waits = (double)(dev_host_waits(b->dev) - b->waits_before), end = now_seconds();
    stream_sync(b->compute);
    struct stream_times busy;
    stream_get_times(b->compute, &busy);
    double seconds = r->seconds + (now_seconds() - end), idle = seconds;
    for (size_t k = 0; k < STEP_PHASES; k++) {
        enum phase phase = step_phases[k];
        double phase_s = busy.busy_s[phase] - b->busy.busy_s[phase];
        idle -= phase_s;
        if (timed) bench_measured(b->run, &b->phase_s[phase], phase_s);
        b->work[phase].flops = busy.work[phase].flops - b->busy.work[phase].flops;
        b->work[phase].bytes = busy.work[phase].bytes - b->busy.work[phase].bytes;
    }
    if (timed) {
        bench_measured(b->run, &b->step_s, seconds);
        bench_measured(b->run, &b->idle_s, idle);
        bench_measured(b->run, &b->waits, waits);
    }
    for (int k = 0; k < YARDSTICKS; k++) {
        struct yardstick *y = &b->yardsticks[k];
        if (y->amount > 0) y->after_s = time_yardstick(b, (enum yardstick_kind)k);
        if (!timed || !(y->amount > 0)) continue;
        bench_measured(b->run, &y->after, y->after_s);
        bench_measured(b->run, &y->around, (y->before_s + y->after_s) / 2);
    }
    begin_step(b, run_peer(b));
}

static int train(struct bench_run *r) {
    struct step *b = r->state;
    struct train_observer observer = {.on_start = on_start, .on_step = on_step, .ctx = b};
    const struct job job = {
        .config = b->config, .spec = b->spec, .layout = b->layout, .data = b->data, .stop = &b->stop};
    struct train_options o = {
        .job = &job, .topology = b->topology, .observer = &observer, .parts = &b->parts};
    return train_run(&o, &b->result) || b->stop ? EXIT_RUN_FAILED : 0;
}

// ---------------------------------------------------------------- figures
static void put_memory(cJSON *o, const struct step *b) {
    const struct rank_report *r = &b->result.report;
    const struct device_memory *m = &r->device_memory;
    double used = (double)m->used_bytes, ledger = (double)m->ledger_bytes,
           workspace = (double)m->workspace_bytes;
    struct job job = job_of(b);
    struct prediction p;
    size_t predicted = 0, peak = mem_device_bytes(r->peak_bytes);
    if (!prediction_of_rank(&job, "worker", 0, &p))
        predicted = mem_device_bytes(p.memory.predicted_bytes) + yardstick_bytes(b, b->d.gpu);
    BENCH_PUT(o, NUMBER("predicted_bytes", predicted), NUMBER("ledger_peak_bytes", peak),
              FLAG("#equal", predicted == peak), NUMBER("pinned_peak_bytes", r->peak_bytes[MEM_HOST]));
    if (!r->on_gpu) return;
    BENCH_PUT(o, NUMBER("ledger_bytes", ledger), NUMBER("workspace_bytes", workspace),
              NUMBER("used_bytes", used), NUMBER("free_bytes", m->free_bytes),
              NUMBER("total_bytes", m->total_bytes),
              NUMBER("other_bytes", device_memory_other(used, ledger, workspace)),
              TEXT("other", DEVICE_MEMORY_OTHER));
}

static double yardstick_rate(const struct step *b, enum yardstick_kind kind) {
    const struct yardstick *y = &b->yardsticks[kind];
    return y->amount > 0 ? y->amount / bench_series_median(&y->after) : NAN;
}

// Returns the floor of this work over the measured time, the median over the steps: a change of the machine's speed
// affects both. The floor is the time that the FLOP take at the rate of `kind` and the bytes at the rate of the copy,
// both measured just before and just after the step.
static double share_of(const struct step *b, struct op_work w, enum yardstick_kind kind,
                       const struct bench_series *taken_s) {
    const struct yardstick *flops = &b->yardsticks[kind], *bytes = &b->yardsticks[YARDSTICK_COPY];
    struct bench_series floor_s = {0};
    for (int i = 0; i < flops->around.count; i++)
        bench_series_add(&floor_s, w.flops / flops->amount * flops->around.values[i] +
                                       w.bytes / bytes->amount * bytes->around.values[i]);
    double share = floor_s.count ? bench_series_ratio(&floor_s, taken_s) : NAN;
    bench_series_free(&floor_s);
    return share;
}

// Writes the floor of a step and of its phases: its products, including attention's, at the rate of the large product,
// and the bytes of all other operations at the rate of the copy. Returns false if a share is above 1, for example if
// tensors stay in the caches.
static bool put_floor(cJSON *o, const struct step *b) {
    static const char *const names[STEP_PHASES] = {"forward_share", "backward_share", "optimizer_share"};
    struct op_work all = {0};
    for (size_t i = 0; i < STEP_PHASES; i++) {
        all.flops += b->work[step_phases[i]].flops;
        all.bytes += b->work[step_phases[i]].bytes;
    }
    double copy = yardstick_rate(b, YARDSTICK_COPY), share = share_of(b, all, YARDSTICK_PRODUCT, &b->step_s);
    double products = all.flops / yardstick_rate(b, YARDSTICK_PRODUCT), bytes = all.bytes / copy;
    bool possible = !(share > 1);
    BENCH_PUT(o, NUMBER("seconds", products + bytes), NUMBER("product_seconds", products),
              NUMBER("product_flops", all.flops), NUMBER("copy_seconds", bytes),
              NUMBER("copy_bytes", all.bytes), NUMBER("copy_bytes_per_second", copy), NUMBER("share", share));
    for (size_t i = 0; i < STEP_PHASES; i++) {
        enum phase phase = step_phases[i];
        share = share_of(b, b->work[phase], YARDSTICK_PRODUCT, &b->phase_s[phase]);
        json_put(o, names[i], share);
        possible &= !(share > 1);
    }
    return possible;
}

// Printed below the shares if one is above 1.
#define IMPOSSIBLE                                                                                                          \
    "shares above 1: the machine changed its speed between a step and the product, so run it again, for longer (--steps); " \
    "of the floor also: tensors stay in the caches"

// Writes the medians of the timed steps and the values computed from them. null: not known here. "again": what the
// backward pass recomputes, not included in the model's FLOP.
static int put_figures(struct bench_run *run) {
    struct step *b = run->state;
    const struct config *c = b->config;
    const struct model_spec *spec = &b->spec;
    const struct rank_report *r = &b->result.report;
    int reported = 0;
    device_notes_print(b->dev, &reported);
    struct token_flops a_token = model_flops_per_token(spec, (double)c->seq);
    struct token_flops again = recompute_flops_per_token(&c->recompute, spec, (double)c->seq);
    struct model_options model = train_model_options(c, spec, b->layout);
    struct head_plan head = model_head_plan(&model);
    const char *source = "a CPU's peak is not in the table of datasheets";
    double known = r->on_gpu ? datasheet_flops(r->device.name, c->dtype, &source) : 0;
    double tokens = (double)(c->train_batch * c->seq), side = (double)b->side;
    double full = a_token.full * tokens, causal = a_token.causal * tokens;
    const struct op_work counted = {.flops = full};
    double of_product = share_of(b, counted, YARDSTICK_PRODUCT, &b->step_s);
    double of_peak = share_of(b, counted, YARDSTICK_PEAK, &b->step_s);
    cJSON *o = run->document, *floor = cJSON_CreateObject();
    bool possible = put_floor(floor, b) && !(of_product > 1) && !(of_peak > 1);
    double step_s = bench_series_median(&b->step_s), product = yardstick_rate(b, YARDSTICK_PRODUCT),
           peak = yardstick_rate(b, YARDSTICK_PEAK), datasheet = known > 0 ? known : NAN;
    double forward = bench_series_median(&b->phase_s[PHASE_FORWARD]),
           backward = bench_series_median(&b->phase_s[PHASE_BACKWARD]),
           optimizer = bench_series_median(&b->phase_s[PHASE_OPTIMIZER]),
           all = forward + backward + optimizer;
    char peak_text[200] = "";
    if (!b->d.gpu) cpu_peak_text(&b->d.peak, peak_text, sizeof peak_text);
    BENCH_PUT(o, TEXT("model", spec->name), NUMBER("params", b->layout->params),
              NUMBER("batch", c->train_batch), NUMBER("seq", c->seq), TEXT("dtype", dtype_name(c->dtype)),
              NUMBER("head_chunk_rows", head.rows), NUMBER("head_chunks", head.chunks),
              NUMBER("step_seconds", step_s));
    // Time in which the compute stream had no work: the host, between the end of one step and the start of the next.
    // In a run it overlaps with the updates.
    BENCH_PUT(o, NUMBER("idle_seconds", bench_series_median(&b->idle_s)),
              NUMBER("host_waits_per_step", bench_series_median(&b->waits)),
              NUMBER("tokens_per_second", tokens / step_s), NUMBER("flops_per_step", full),
              NUMBER("flops_per_step_causal", causal));
    cJSON_AddStringToObject(o, "flops_formula", "a token: " FLOPS_FULL "; causal: " FLOPS_CAUSAL);
    BENCH_PUT(o, NUMBER("flops_per_second", full / step_s),
              NUMBER("flops_per_second_causal", causal / step_s),
              NUMBER("recomputed_flops_per_step", again.full * tokens),
              NUMBER("recomputed_flops_per_step_causal", again.causal * tokens),
              NUMBER("hardware_flops_per_second", full / step_s + again.full * tokens / step_s),
              NUMBER("hardware_flops_per_second_causal", causal / step_s + again.causal * tokens / step_s),
              NUMBER("matmul_size", side), NUMBER("matmul_flops_per_second", product),
              NUMBER("share_of_matmul", of_product), NUMBER("mfu", of_product),
              NUMBER("mfu_causal", of_product * causal / full));
    cJSON_AddStringToObject(
        o, "mfu_formula",
        "flops_per_step / step seconds / flops per second of the products just before and behind "
        "the step; median over the steps");
    BENCH_PUT(o, NUMBER("peak_flops_per_second", peak), NUMBER("share_of_peak", of_peak),
              NUMBER("share_of_peak_causal", of_peak * causal / full),
              FLAG("shares_possible", possible && !(product > peak)),
              NUMBER("matmul_share_of_peak", product / peak), TEXT("peak", peak_text),
              NUMBER("datasheet_flops_per_second", datasheet),
              NUMBER("mfu_datasheet", full / step_s / datasheet),
              NUMBER("mfu_datasheet_causal", causal / step_s / datasheet), TEXT("datasheet", source));
    cJSON_AddStringToObject(o, "mfu_datasheet_formula",
                            "flops_per_step / step_seconds / datasheet_flops_per_second");
    // Shares of a step's work; logits and loss belong to the backward pass.
    BENCH_PUT(o, NUMBER("forward_share", forward / all), NUMBER("backward_share", backward / all),
              NUMBER("optimizer_share", optimizer / all));
    cJSON_AddItemToObject(o, "floor", floor);
    cJSON_AddItemToObject(o, "peer", b->peer ? bench_peer_figures(b->peer, tokens) : cJSON_CreateNull());
    json_put(o, "late_allocations", (double)r->late_allocations);
    if (r->on_gpu)
        bench_put_device(o, &r->device);
    else
        cJSON_AddNullToObject(o, "device");
    put_memory(cJSON_AddObjectToObject(o, "memory"), b);
    // For the table.
    cJSON_AddStringToObject(o, "#between", b->d.gpu ? "several in a row between" : "between");
    if (again.full > 0)
        BENCH_PUT(o, NUMBER("#again", again.full / a_token.full),
                  NUMBER("#again_causal", again.causal / a_token.causal));
    if (r->on_gpu && !(known > 0)) cJSON_AddStringToObject(o, "#no_datasheet", source);
    if (!cJSON_IsTrue(json_item(o, "shares_possible"))) cJSON_AddStringToObject(o, "#impossible", IMPOSSIBLE);
    double theirs = json_number(json_item(o, "peer"), "matmul_flops_per_second");
    if (b->peer) json_put(o, "#product_over_peer", product / theirs);
    return 0;
}

static const struct bench_line lines[] = {
    {"device", "{#device}"},
    {"", "{#device_work}"},
    {"model", "{model}, {params} parameters"},
    {"tokens/s", "{tokens_per_second:.1}"},
    {"step", "B={batch} T={seq} {dtype}: {step_seconds:.4} s (median)"},
    {"logits", "{head_chunks} chunk{head_chunks:s} of {head_chunk_rows} rows"},
    {"matmul",
     "{matmul_flops_per_second:.1G} GFLOP/s ({matmul_size} x {matmul_size} x {matmul_size}, same type, {#between} the steps, median)"},
    {"MFU, full", "{mfu:.3} of the product: {flops_per_second:.1G} GFLOP/s, a token " FLOPS_FULL},
    {"MFU, causal",
     "{mfu_causal:.3} of the product: {flops_per_second_causal:.1G} GFLOP/s, a token " FLOPS_CAUSAL},
    {"", "flops of a step / step seconds / rate; forward and backward, nothing recomputed"},
    {"recomputed",
     "{#again:.1%}% more than these flops (causal: {#again_causal:.1%}%): the hardware does {hardware_flops_per_second:.1G} GFLOP/s ({hardware_flops_per_second_causal:.1G})"},
    {"peak", "{peak_flops_per_second:.1G} GFLOP/s ({peak})"},
    {"",
     "{matmul_share_of_peak:.3} of it the product, {share_of_peak:.3} a step (attention in full), {share_of_peak_causal:.3} (causal)"},
    {"floor",
     "{floor.seconds:.4} s: products {floor.product_seconds:.4} ({floor.product_flops:.4G} GFLOP at the product's rate), the rest {floor.copy_seconds:.4} ({floor.copy_bytes:.3G} GB at the copy's, {floor.copy_bytes_per_second:.1G} GB/s)"},
    {"",
     "{floor.share:.3} of the step's time; forward {floor.forward_share:.3}, backward {floor.backward_share:.3}, optimizer {floor.optimizer_share:.3} of their own"},
    {"", "{#impossible}"},
    {"datasheet",
     "{datasheet_flops_per_second:.1T} TFLOP/s ({datasheet}); MFU {mfu_datasheet:.3} of it in full, {mfu_datasheet_causal:.3} causal"},
    {"datasheet", "none: {#no_datasheet}"},
    {"time",
     "forward {forward_share:.1%}%  backward {backward_share:.1%}%  optimizer {optimizer_share:.1%}%; {idle_seconds:.3m} ms per step without work"},
    {"memory",
     "{memory.predicted_bytes:B} predicted, {memory.ledger_peak_bytes:B} counted at the peak: {memory.#equal?equal:DIFFERENT}"},
    {"",
     "in use {memory.used_bytes:B} of {memory.total_bytes:B}: {memory.ledger_bytes:B} counted, {memory.workspace_bytes:B} workspaces"},
    {"", "and {memory.other_bytes:B} {memory.other}"},
    {"allocations", "{late_allocations} after the first step"},
    {"peer",
     "PyTorch {peer.pytorch}, {peer.threads} thread{peer.threads:s}: {peer.eager.tokens_per_second:.1} tokens/s eager, {peer.compiled.tokens_per_second:.1} tokens/s compiled"},
    {"peer",
     "PyTorch {peer.pytorch}, {peer.threads} thread{peer.threads:s}: {peer.eager.tokens_per_second:.1} tokens/s eager, not compiled ({peer.not_compiled})"},
    {"",
     "{peer.ratio:.2} times the better, {peer.better}, is this step: {peer.ratio_least:.2} to {peer.ratio_most:.2} over {peer.#rounds} round{peer.#rounds:s} in turn"},
    {"",
     "its product of the same size {peer.matmul_flops_per_second:.1G} GFLOP/s, ours {#product_over_peer:.2} times that"},
    {0}};

const struct bench bench_step = {
    .about = "tokens/s and the share of a matrix product's speed of one training step",
    .command =
        {
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
        },
    BENCH_OPTIONS(options),
    .state_bytes = sizeof(struct step),
    .set_up = set_up,
    .round = train,
    .rows = put_figures,
    .tear_down = tear_down,
    .head = lines,
};
