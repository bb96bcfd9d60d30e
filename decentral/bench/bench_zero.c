// `starring bench zero`: a rank's memory in each stage of ZeRO, counted and predicted.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/collective/hub.h"
#include "decentral/zero/zero.h"
#include "shared/bench/bench.h"
#include "shared/core/error.h"
#include "shared/launch/run.h"

#define DEADLINE_MS 120000

// When rank 0's memory is counted.
enum sample { CREATED, BEFORE_STEP, AFTER_STEP, SAMPLES };
static const char *const sample_names[SAMPLES] = {"created", "before_step", "after_step"};

struct zero_bench {
    struct layout *layout;
    int units;
    int64_t width;
    enum dtype dtype;
    int workers, stage, last_stage;  // stage: the current one
    bool dry;                        // only the prediction
    // Figures of rank 0.
    size_t bytes[SAMPLES][MEM_CLASSES], predicted[MEM_CLASSES], formula;
    double norm;
};

static const struct bench_option options[] = {
    {"units", "N", "layers of one matrix and one bias", BENCH_INTEGER(zero_bench, units, 1, 1000, 20)},
    {"width", "N", "inputs and outputs of each", BENCH_INTEGER(zero_bench, width, 1, 16384, 2000)},
    {"workers", "N", "ranks, threads of this process", BENCH_INTEGER(zero_bench, workers, 1, REDUCE_MAX, 2)},
    {"stage", "S", "0, 1, 2 or 3 (all, one after the other)",
     BENCH_INTEGER(zero_bench, stage, 0, ZERO_STAGES - 1, -1)},
    {"dtype", "D", "fp32, bf16 or fp16", BENCH_DTYPE(zero_bench, dtype, 3, DT_F32)},
    {"dry-run", NULL, "only the prediction: nothing is allocated", BENCH_ASKS},
};

// ---------------------------------------------------------------- the model
static struct layout *make_layout(int units, int64_t width, int world) {
    struct layout *l = xcalloc(1, sizeof *l);
    l->count = units;
    l->units = xcalloc((unsigned long)units, sizeof *l->units);
    for (int u = 0; u < units; u++) {
        struct unit *unit = &l->units[u];
        snprintf(unit->name, sizeof unit->name, "linear.%d", u);
        unit->count = 2;
        unit->tensors[0] = (struct tensor){
            .name = "weight", .shape = {width, width}, .dims = 2, .numel = width * width, .decay = true};
        unit->tensors[1] = (struct tensor){.name = "bias", .shape = {width, 1}, .dims = 1, .numel = width};
    }
    layout_finish(l, world);
    return l;
}

// Every rank sets each element to its rank + 1: so the sum, and the norm, are known.
struct fill {
    const struct unit *unit;
    void *grad;
    enum dtype dtype;
    float value;
};

static int fill_gradient(void *arg) {
    struct fill *f = arg;
    for (int t = 0; t < f->unit->count; t++) {
        size_t at = (size_t)f->unit->tensors[t].offset;
        for (int64_t i = 0; i < f->unit->tensors[t].numel; i++)
            dtype_store(f->dtype, f->grad, at + (size_t)i, f->value);
    }
    return 0;
}

// ---------------------------------------------------------------- one rank
static int pass_through(struct topology *t, struct fill *fills) {
    struct unit_view view;
    int n = t->layout->count;
    if (topology_begin_micro(t, 0, 1)) return -1;
    for (int u = 0; u < n; u++)
        if (topology_acquire(t, u, PASS_FORWARD, &view) || topology_release(t, u, PASS_FORWARD)) return -1;
    for (int u = n - 1; u >= 0; u--) {
        if (topology_acquire(t, u, PASS_BACKWARD, &view)) return -1;
        fills[u] = (struct fill){&t->layout->units[u], view.grad, t->dtype, (float)(t->rank + 1)};
        stream_host(t->compute, "gradient", fill_gradient, &fills[u]);
        if (topology_grad_ready(t, u)) return -1;
    }
    return 0;
}

static void sample_memory(struct zero_bench *b, struct topology *t, enum sample m) {
    struct mem_usage usage;
    if (t->rank != 0) return;
    dev_usage(t->dev, &usage);
    memcpy(b->bytes[m], usage.current_bytes, sizeof b->bytes[m]);
}

static int train(struct zero_bench *b, struct topology *t) {
    const double loss = 0;
    struct step_stats stats;
    struct step_input in = {.lr = 1e-3f, .loss_scale = 1, .loss_sum = &loss, .loss_tokens = 1};
    // 1. All weights are zeros.
    int rc = 0;
    for (int u = 0; !rc && u < t->layout->count; u++) {
        float *zeros = xcalloc((unsigned long)t->layout->units[u].n_pad, sizeof *zeros);
        rc = topology_load_unit(t, u, zeros);
        free(zeros);
    }
    if (rc) return -1;
    sample_memory(b, t, CREATED);
    // 2. One step.
    struct fill *fills = xcalloc((unsigned long)t->layout->count, sizeof *fills);
    rc = pass_through(t, fills);
    sample_memory(b, t, BEFORE_STEP);
    rc = rc || topology_step(t, &in, &stats) || topology_finish(t) ? -1 : 0;
    sample_memory(b, t, AFTER_STEP);
    stream_sync(t->compute);
    free(fills);
    if (rc || t->rank != 0) return rc;
    b->norm = stats.grad_norm;
    memcpy(b->predicted, t->memory.predicted_bytes, sizeof b->predicted);
    b->formula = t->memory.formula_bytes;
    return 0;
}

static struct config config_of(const struct zero_bench *b) {
    return (struct config){
        .variant = b->stage,
        .workers = b->workers,
        .dtype = b->dtype,
        .optimizer = {optimizer_find("AdamW"), .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
        .prefetch_elements = PREFETCH_AUTO,
        .deadline_ms = DEADLINE_MS};
}

static int run_rank(void *ctx, struct hub *hub, int rank) {
    struct zero_bench *b = ctx;
    struct device *dev = NULL;
    const char *why;
    struct collective_source source = {&collective_threads_kind, hub, rank, b->workers, false};
    error_set_label("rank %d", rank);
    struct device_options d = {.threads = 1, .label = error_label()};
    if (dev_open(backend_find("cpu", &why), &d, &dev)) return fail("cannot open the cpu device");
    struct stream *compute = stream_create(dev, "compute");
    const struct config config = config_of(b);
    struct zero_options o = {
        .config = &config, .layout = b->layout, .dev = dev, .compute = compute, .source = &source};
    struct topology *t = compute ? zero_create(&o) : NULL;
    int rc = t ? train(b, t) : -1;
    if (rc && t) topology_abort(t, error_last());
    if (t) topology_destroy(&t);
    if (compute) stream_destroy(&compute);
    dev_close(&dev);
    return rc;
}

static int predict(struct zero_bench *b) {
    struct collective_source source = {&collective_threads_kind, NULL, 0, b->workers, false};
    const struct config config = config_of(b);
    struct zero_options o = {.config = &config, .layout = b->layout, .source = &source};
    struct topology_memory memory;
    struct wire_prediction wire;
    if (zero_predict(&o, &memory, &wire)) return -1;
    memcpy(b->predicted, memory.predicted_bytes, sizeof b->predicted);
    b->formula = memory.formula_bytes;
    return 0;
}

// ---------------------------------------------------------------- output
static void put_classes(cJSON *row, const char *name, const size_t bytes[MEM_CLASSES]) {
    cJSON *o = cJSON_AddObjectToObject(row, name);
    for (int c = 0; c < MEM_CLASSES; c++)
        if (bytes[c]) cJSON_AddNumberToObject(o, mem_class_name((enum mem_class)c), (double)bytes[c]);
    cJSON_AddNumberToObject(o, "total", (double)mem_device_bytes(bytes));
}

// ---------------------------------------------------------------- the bench
static int set_up(struct bench_run *r) {
    struct zero_bench *b = r->state;
    b->dry = cli_get(r->args, "dry-run") != NULL;
    // begin goes to the next stage.
    b->last_stage = b->stage < 0 ? ZERO_STAGES - 1 : b->stage;
    b->stage = b->stage < 0 ? -1 : b->stage - 1;
    b->layout = make_layout(b->units, b->width, b->workers);
    BENCH_PUT(r->document, NUMBER("units", b->layout->count), NUMBER("params", b->layout->params),
              NUMBER("workers", b->workers), TEXT("dtype", dtype_name(b->dtype)), FLAG("#dry", b->dry));
    return 0;
}

static int begin(struct bench_run *r) {
    struct zero_bench *b = r->state;
    return ++b->stage <= b->last_stage ? 0 : BENCH_END;
}

static int measure(struct bench_run *r) {
    struct zero_bench *b = r->state;
    int rc = b->dry ? predict(b) : hub_run(b->workers, "--workers", run_rank, b);
    return rc ? EXIT_RUN_FAILED : 0;
}

// Compares every class in every sample, to the byte, and the norm with that of the gradients that were filled in.
static int check(const struct zero_bench *b) {
    for (int m = 0; m < SAMPLES; m++)
        if (memcmp(b->bytes[m], b->predicted, sizeof b->predicted) != 0)
            return fail("bench zero: zero:%d, %s: %zu bytes were counted and %zu predicted", b->stage,
                        sample_names[m], mem_device_bytes(b->bytes[m]), mem_device_bytes(b->predicted));
    double want = b->workers * (b->workers + 1) / 2.0 * sqrt((double)b->layout->params);
    if (fabs(b->norm - want) <= 1e-5 * want) return 0;
    return fail("bench zero: zero:%d: the gradient's norm is %.9g, what was put in has %.9g", b->stage,
                b->norm, want);
}

static int put_row(struct bench_run *r) {
    const struct zero_bench *b = r->state;
    cJSON *row = bench_row(r, NULL);
    json_put(row, "stage", b->stage);
    for (int m = 0; m < SAMPLES && !b->dry; m++) put_classes(row, sample_names[m], b->bytes[m]);
    put_classes(row, "predicted", b->predicted);
    json_put(row, "formula", (double)b->formula);
    if (b->dry) return 0;
    json_put(row, "gradient_norm", b->norm);
    return check(b) ? EXIT_RUN_FAILED : 0;
}

static void tear_down(struct bench_run *r) {
    struct zero_bench *b = r->state;
    layout_destroy(&b->layout);
}

// A class: the bytes counted after the step, or with --dry-run the predicted ones.
#define CLASS(name) \
    { name, "MB", "{after_step." name "|predicted." name ":.2M}" }

const struct bench bench_zero = {
    .about = "what a rank holds in each of ZeRO's stages, counted and predicted",
    .command =
        {
            .name = "bench zero",
            .usage = "[--stage S] [--units N] [--width N] [--workers N] [OPTIONS]",
            .summary =
                "The memory of rank 0 in each of ZeRO's stages, counted by class behind the topology's creation, before the first\n"
                "step's update and after it, beside the prediction and the textbook's formula. The model computes nothing:\n"
                "gradients are filled in, reduced and stepped with by AdamW. On CPUs.",
            .examples = "  starring bench zero\n"
                        "  starring bench zero --stage 2 --workers 4 --dtype bf16 --json\n",
        },
    BENCH_OPTIONS(options),
    .state_bytes = sizeof(struct zero_bench),
    .set_up = set_up,
    .begin = begin,
    .round = measure,
    .rows = put_row,
    .tear_down = tear_down,
    .list = "rows",
    .head = BENCH_LINES(
        {NULL,
         "{units} layers, {params} parameters, {workers} rank{workers:s}, {dtype}, AdamW: MB (10^6 bytes) that rank 0 {#dry?will hold:holds after the step}"}),
    .columns = BENCH_COLUMNS(
        {"stage", NULL, "<zero:{stage}"}, CLASS("parameter"), CLASS("gradient"), CLASS("master"),
        CLASS("optimizer"), CLASS("communication"), {"total|created", "MB", "{created.total:.2M}"},
        {"before step", "MB", "{before_step.total:.2M}"}, {"after step", "MB", "{after_step.total:.2M}"},
        {"predicted", "MB", "{predicted.total:.2M}"}, {"formula", "MB", "{formula:.2M}"}),
};
