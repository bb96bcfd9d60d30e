// `starring bench zero`: a rank's memory in each stage of ZeRO, counted and predicted.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/bench/bench_ring.h"
#include "decentral/collective/hub.h"
#include "decentral/zero/zero.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/launch/run.h"

#define DEADLINE_S 120.0

static const struct cli_option options[] = {
    {"units", NULL, "N", "layers of one matrix and one bias (20)", 0},
    {"width", NULL, "N", "inputs and outputs of each (2000)", 0},
    {"workers", NULL, "N", "ranks, threads of this process (2)", 0},
    {"stage", NULL, "S", "0, 1, 2 or 3 (all, one after the other)", 0},
    {"dtype", NULL, "D", "fp32, bf16 or fp16 (fp32)", 0},
    {"dry-run", NULL, NULL, "the prediction alone: nothing is allocated", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench zero",
    .usage = "[--stage S] [--units N] [--width N] [--workers N] [OPTIONS]",
    .summary =
        "The memory of rank 0 in each of ZeRO's stages, counted by class behind the topology's creation, before the first\n"
        "step's update and after it, beside the prediction and the textbook's formula. The model computes nothing:\n"
        "gradients are filled in, reduced and stepped with by AdamW. On CPUs.",
    .examples =
        "  starring bench zero\n"
        "  starring bench zero --stage 2 --workers 4 --dtype bf16 --json\n",
    CLI_OPTIONS(options),
};

enum moment { CREATED, BEFORE_STEP, AFTER_STEP, MOMENTS };
static const char *const moment_names[MOMENTS] = {"created", "before_step", "after_step"};

struct bench {
    struct layout *layout;
    enum dtype dtype;
    int workers, stage;  // stage: the current one
    bool json, dry;
    // Figures of rank 0.
    size_t bytes[MOMENTS][MEM_CLASSES], predicted[MEM_CLASSES], formula;
    double norm;
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

static double known_norm(const struct bench *b) {
    return b->workers * (b->workers + 1) / 2.0 * sqrt((double)b->layout->params);
}

// ---------------------------------------------------------------- one rank
static int load(struct topology *t) {
    int rc = 0;
    for (int u = 0; !rc && u < t->layout->count; u++) {
        float *zeros = xcalloc((unsigned long)t->layout->units[u].n_pad, sizeof *zeros);
        rc = topology_load_unit(t, u, zeros);
        free(zeros);
    }
    return rc;
}

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

static void look(struct bench *b, struct topology *t, enum moment m) {
    struct mem_usage usage;
    if (t->rank != 0) return;
    dev_usage(t->dev, &usage);
    memcpy(b->bytes[m], usage.current_bytes, sizeof b->bytes[m]);
}

static int train(struct bench *b, struct topology *t) {
    const double loss = 0;
    struct step_stats stats;
    struct step_input in = {.lr = 1e-3f, .loss_scale = 1, .loss_sum = &loss, .loss_tokens = 1};
    if (load(t)) return -1;
    look(b, t, CREATED);
    struct fill *fills = xcalloc((unsigned long)t->layout->count, sizeof *fills);
    int rc = pass_through(t, fills);
    look(b, t, BEFORE_STEP);
    rc = rc || topology_step(t, &in, &stats) || topology_finish(t) ? -1 : 0;
    look(b, t, AFTER_STEP);
    stream_sync(t->compute);
    free(fills);
    if (rc || t->rank != 0) return rc;
    b->norm = stats.grad_norm;
    memcpy(b->predicted, t->memory.predicted_bytes, sizeof b->predicted);
    b->formula = t->memory.formula_bytes;
    return 0;
}

static int run_rank(void *ctx, struct hub *hub, int rank) {
    struct bench *b = ctx;
    struct device *dev = NULL;
    const char *why;
    struct collective_source source = {&collective_threads_kind, hub, rank, b->workers};
    error_set_label("rank %d", rank);
    struct device_options d = {.threads = 1, .label = error_label()};
    if (dev_open(backend_find("cpu", &why), &d, &dev)) return fail("cannot open the cpu device");
    struct stream *compute = stream_create(dev, "compute");
    const struct optimizer *adam = optimizer_find("AdamW");
    struct zero_options o = {.stage = b->stage,
                             .layout = b->layout,
                             .dtype = b->dtype,
                             .dev = dev,
                             .compute = compute,
                             .optimizer = {adam, .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f},
                             .deadline_s = DEADLINE_S,
                             .source = &source};
    struct topology *t = compute ? zero_create(&o) : NULL;
    int rc = t ? train(b, t) : -1;
    if (rc && t) topology_abort(t, error_last());
    if (t) topology_destroy(&t);
    if (compute) stream_destroy(&compute);
    dev_close(&dev);
    return rc;
}

static int predict(struct bench *b) {
    struct collective_source source = {&collective_threads_kind, NULL, 0, b->workers};
    struct zero_options o = {.stage = b->stage,
                             .layout = b->layout,
                             .dtype = b->dtype,
                             .optimizer = {optimizer_find("AdamW")},
                             .source = &source};
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

static cJSON *row_json(const struct bench *b) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddNumberToObject(row, "stage", b->stage);
    for (int m = 0; m < MOMENTS && !b->dry; m++) put_classes(row, moment_names[m], b->bytes[m]);
    put_classes(row, "predicted", b->predicted);
    cJSON_AddNumberToObject(row, "formula", (double)b->formula);
    if (!b->dry) cJSON_AddNumberToObject(row, "gradient_norm", b->norm);
    return row;
}

// The table's columns of classes: the bytes counted after the step, or with --dry-run the predicted ones.
static const enum mem_class shown[] = {MEM_PARAMETER, MEM_GRADIENT, MEM_MASTER, MEM_OPTIMIZER, MEM_COMM};

static void print_head(const struct bench *b) {
    printf("# %d layers, %lld parameters, %d ranks, %s, AdamW: MB (10^6 bytes) that rank 0 %s\n",
           b->layout->count, (long long)b->layout->params, b->workers, dtype_name(b->dtype),
           b->dry ? "will hold" : "holds after the step");
    printf("# %-8s", "stage");
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) printf(" %13s", mem_class_name(shown[i]));
    if (!b->dry) printf(" %11s %11s %11s", "created", "before step", "after step");
    printf(" %11s %11s\n", "predicted", "formula");
}

static void print_row(const struct bench *b) {
    const size_t *bytes = b->dry ? b->predicted : b->bytes[AFTER_STEP];
    printf("  zero:%-3d", b->stage);
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        printf(" %13.2f", (double)bytes[shown[i]] * 1e-6);
    for (int m = 0; m < MOMENTS && !b->dry; m++)
        printf(" %11.2f", (double)mem_device_bytes(b->bytes[m]) * 1e-6);
    printf(" %11.2f %11.2f\n", (double)mem_device_bytes(b->predicted) * 1e-6, (double)b->formula * 1e-6);
    fflush(stdout);
}

// Compares every class at every moment, to the byte.
static int judge(const struct bench *b) {
    for (int m = 0; m < MOMENTS; m++)
        if (memcmp(b->bytes[m], b->predicted, sizeof b->predicted) != 0)
            return fail("bench zero: zero:%d, %s: %zu bytes were counted and %zu predicted", b->stage,
                        moment_names[m], mem_device_bytes(b->bytes[m]), mem_device_bytes(b->predicted));
    double want = known_norm(b);
    if (fabs(b->norm - want) <= 1e-5 * want) return 0;
    return fail("bench zero: zero:%d: the gradient's norm is %.9g, what was put in has %.9g", b->stage,
                b->norm, want);
}

// ---------------------------------------------------------------- the command
static int run_stages(struct bench *b, int first, int last) {
    cJSON *rows = cJSON_CreateArray();
    int rc = 0;
    if (!b->json) print_head(b);
    for (b->stage = first; !rc && b->stage <= last; b->stage++) {
        rc = b->dry ? predict(b) : hub_run(b->workers, "--workers", run_rank, b);
        if (!rc && b->json) cJSON_AddItemToArray(rows, row_json(b));
        if (!rc && !b->json) print_row(b);
        if (!rc && !b->dry) rc = judge(b);
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "bench", "zero");
    cJSON_AddNumberToObject(o, "units", b->layout->count);
    cJSON_AddNumberToObject(o, "params", (double)b->layout->params);
    cJSON_AddNumberToObject(o, "workers", b->workers);
    cJSON_AddStringToObject(o, "dtype", dtype_name(b->dtype));
    cJSON_AddItemToObject(o, "rows", rows);
    if (b->json && !rc) json_print(stdout, o);
    cJSON_Delete(o);
    return rc;
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    struct bench b = {.json = cli_get(a, "json") != NULL, .dry = cli_get(a, "dry-run") != NULL};
    long units, width, workers, stage;
    (void)t;
    if (cli_integer(a, "units", 1, 1000, 20, &units) || cli_integer(a, "width", 1, 16384, 2000, &width) ||
        cli_integer(a, "workers", 1, REDUCE_MAX, 2, &workers) ||
        cli_integer(a, "stage", 0, ZERO_STAGES - 1, 0, &stage) || bench_dtype(a, DT_F32, &b.dtype))
        return EXIT_USAGE;
    bool one = cli_get(a, "stage") != NULL;
    b.workers = (int)workers;
    b.layout = make_layout((int)units, width, b.workers);
    int status = run_stages(&b, (int)stage, one ? (int)stage : ZERO_STAGES - 1) ? EXIT_RUN_FAILED : 0;
    layout_destroy(&b.layout);
    return status;
}

const struct bench_program bench_zero = {
    "what a rank holds in each of ZeRO's stages, counted beside the prediction", &command, run};
