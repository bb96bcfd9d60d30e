// `starring bench tune`: the algorithm of each matrix product of a model on a GPU, measured in turn.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/bench/bench.h"
#include "shared/bench/bench_work.h"
#include "shared/bench/tune_figures.h"
#include "shared/command/cli.h"
#include "shared/core/error.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/device/product_choice.h"
#include "shared/device/product_table.h"
#include "shared/hf/presets.h"
#include "shared/model/model.h"
#include "shared/report/metrics.h"
#include "shared/train/local.h"
#include "shared/train/session.h"

#define STEPS 2  // the first also has whatever happens once

static const struct cli_option options[] = {
    {"model", "model", "M", "preset, Hugging Face config.json or directory (gpt2-124m)", 0},
    {"batch", "train_micro_batch_size_per_gpu", "B", "sequences per step (4)", 0},
    {"seq", "data.seq_len", "T", "tokens a sequence (256)", 0},
    {"dtype", "dtype", "D", "fp32, bf16 or fp16 (bf16)", 0},
    {"device", "device", "D", "cuda: algorithms are cuBLASLt's, and measured on a GPU (cuda)", 0},
    {"rounds", NULL, "N", "measurements of each algorithm, in turn; the median counts (7)", 0},
    {"out", NULL, "FILE",
     "the table, made or added to (starring-products.json in the program's folder, where runs find it)", 0},
    {"set", CLI_SET, "KEY=VALUE", "any configuration key", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench tune",
    .usage = "[--model M] [--batch B] [--seq T] [--dtype D] [--out FILE] [OPTIONS]",
    .summary =
        "Measures, for every matrix product of a model's training step, up to 16 algorithms that cuBLASLt\n"
        "names for it, and writes the fastest of those that repeat to the bit into a table. Runs with the\n"
        "same GPU and version of cuBLASLt read it where it lies beside the program, or where they are given\n"
        "it (--set cuda.products=FILE; none: not at all). Other algorithms round differently: a table\n"
        "changes the last bits of a run, the same way in every run and topology.",
    .examples =
        "  starring bench tune --model gpt2-124m --batch 32 --seq 1024\n"
        "  starring bench tune --model qwen2.5-0.5b --batch 8 --seq 1024 --out h200.json\n"
        "  starring train --model gpt2-124m --batch 32 --seq 1024 --set cuda.products=h200.json\n",
    CLI_OPTIONS(options),
};

struct tune {
    const struct topology_table *topologies;
    struct config *config;
    struct model_spec spec;
    char *out;
    struct product_table table;  // the file, as it was and as it will be
    bool ready;                  // what the user gave is in order
    struct device *dev;
    struct stream *compute;
    struct layout *layout;
    struct token_source *data;
    struct topology *topology;
    struct train_result result;
    struct product_use *first;  // after the first step
    int first_count;
    struct tuned *products;
    int count;
};

// ---------------------------------------------------------------- preparing

static int load_config(struct tune *t, const struct cli_args *a) {
    const struct config_override defaults[] = {
        {"topology", "local", "bench tune"},   {"model", "gpt2-124m", "bench tune"},
        {"data.path", "demo", "bench tune"},   {"train_micro_batch_size_per_gpu", "4", "bench tune"},
        {"data.seq_len", "256", "bench tune"}, {"dtype", "bf16", "bench tune"},
        {"eval_batches", "0", "bench tune"},   {"device", "cuda", "bench tune"},
    };
    t->config = cli_config(t->topologies, defaults, sizeof defaults / sizeof *defaults, a);
    struct config *c = t->config;
    if (!c || model_spec_load(c->model, &t->spec) || model_spec_check_seq(&t->spec, c->seq)) return -1;
    c->steps = STEPS;
    if (c->row != &topology_local)
        return fail(
            "bench tune: --set topology=%s: one process is measured, "
            "--topology local; what it finds serves every topology",
            c->topology);
    if (c->device == DEVICE_AUTO) c->device = DEVICE_CUDA;
    if (c->device != DEVICE_CUDA)
        return fail(
            "bench tune: --device %s: the algorithms are cuBLASLt's, and "
            "measured on a GPU: leave --device out, or say cuda",
            config_device(c)->name);
    if (strcmp(c->products, "auto"))
        return fail(
            "bench tune: --set cuda.products=%s: here products are "
            "measured, not chosen; --out FILE is where they go",
            c->products);
    return 0;
}

// The file's earlier contents stay, so it must be a table that can be read and written.
static int open_table(struct tune *t, const struct cli_args *a) {
    const char *given = cli_get(a, "out");
    t->out = given ? xstrdup(given) : products_beside_program();
    if (access(t->out, F_OK) == 0 && product_table_read(t->out, &t->table))
        return fail(
            "bench tune: %s is there, and no table to add to: remove it, or name another file with --out",
            t->out);
    return product_table_writable(t->out);
}

static int prepare(struct tune *t, const struct cli_args *a) {
    if (load_config(t, a)) return -1;
    const struct backend *found = device_backend(t->config);
    if (!found || open_table(t, a)) return -1;
    struct data_options data = {.path = t->config->data,
                                .tokenizer = t->config->tokenizer,
                                .val_fraction = t->config->val_fraction,
                                .vocab = t->spec.vocab};
    t->layout = model_layout_create(&t->spec, 1);
    if (!t->layout || !(t->data = data_open(&data))) return -1;
    t->ready = true;
    if (dev_open(found, &(struct device_options){.label = "bench", .cuda = t->config->cuda}, &t->dev))
        return fail("cannot open the cuda device");
    if (!(t->compute = stream_create(t->dev, "compute")))
        return fail("cannot create a stream: %s", dev_error(t->dev));
    struct job job = {.config = t->config, .spec = t->spec, .layout = t->layout, .ranks_here = 1};
    if (bench_check_memory(&job, 0)) return -1;
    struct local_options local = local_options_of(t->config, t->layout);
    local.dev = t->dev;
    local.compute = t->compute;
    return (t->topology = local_create(&local)) ? 0 : -1;
}

static void release(struct tune *t) {
    train_result_free(&t->result);
    if (t->topology) topology_destroy(&t->topology);
    if (t->compute) stream_destroy(&t->compute);
    if (t->dev) dev_close(&t->dev);
    if (t->data) data_close(&t->data);
    layout_destroy(&t->layout);
    config_destroy(&t->config);
    product_table_free(&t->table);
    free(t->out);
    free(t->first);
    free(t->products);
}

// ---------------------------------------------------------------- the step's products

static struct product_use *uses_of(struct device *dev, int *count) {
    *count = dev_products(dev, NULL, 0);
    struct product_use *uses = xcalloc((size_t)*count + 1, sizeof *uses);
    *count = dev_products(dev, uses, *count);
    return uses;
}

static void on_step(void *ctx, const struct step_record *r) {
    struct tune *t = ctx;
    (void)r;
    if (!t->first) t->first = uses_of(t->dev, &t->first_count);
}

// What the second step used, in the order of its first uses.
static void list_products(struct tune *t) {
    int count;
    struct product_use *uses = uses_of(t->dev, &count);
    t->products = xcalloc((size_t)count + 1, sizeof *t->products);
    for (int i = 0; i < count; i++) {
        uint64_t calls = uses[i].calls - (i < t->first_count ? t->first[i].calls : 0);
        if (uses[i].source == PRODUCT_ABSENT || calls == 0) continue;
        t->products[t->count++] = (struct tuned){.key = uses[i].key, .uses = calls};
    }
    free(uses);
}

static int run_steps(struct tune *t) {
    struct train_observer observer = {.on_step = on_step, .ctx = t};
    struct train_options o = {.config = t->config,
                              .spec = &t->spec,
                              .data = t->data,
                              .topology = t->topology,
                              .observer = &observer};
    if (train_run(&o, &t->result)) return -1;
    list_products(t);
    topology_destroy(&t->topology);  // its memory is the operands' now
    return 0;
}

// ---------------------------------------------------------------- measuring

static void keep(struct tune *t, const struct tuned *p, const struct device_facts *facts) {
    struct product_entry e;
    if (p->timing.none) return;
    memset(&e, 0, sizeof e);
    e.choice = (struct product_choice){p->key, p->timing.algo};
    snprintf(e.device, sizeof e.device, "%s", facts->name);
    e.sm = facts->sm_version;
    e.library = facts->blas_version;
    e.rank = p->timing.rank;
    e.first_s = p->timing.first_s;
    e.best_s = p->timing.best_s;
    product_table_put(&t->table, &e);
}

static int run(struct tune *t, int rounds, bool json) {
    struct tune_figures f = {.spec = &t->spec,
                             .batch = t->config->train_batch,
                             .seq = t->config->seq,
                             .dtype = t->config->dtype,
                             .rounds = rounds,
                             .file = t->out};
    int said = 0;
    if (run_steps(t)) return -1;
    device_notes_say(t->dev, &said);  // an epilogue that the library does not have is no product to measure
    if (dev_facts(t->dev, &f.facts)) return fail("bench tune: %s", dev_error(t->dev));
    f.products = t->products;
    f.count = t->count;
    if (!json) tune_figures_begin(&f);
    int kept = 0;
    for (int i = 0; i < t->count; i++) {
        struct tuned *p = &t->products[i];
        if (stream_tune_product(t->compute, &p->key, rounds, &p->timing))
            return fail("bench tune: %s", dev_error(t->dev));
        keep(t, p, &f.facts);
        kept += !p->timing.none;
        if (!json) tune_figures_row(&f, p);
    }
    f.kept = t->table.count - kept;
    if (product_table_write(t->out, &t->table)) return -1;
    (json ? tune_figures_json : tune_figures_end)(&f);
    return 0;
}

int bench_tune(const struct topology_table *topologies, int argc, char **argv) {
    struct cli_args args;
    struct tune t = {.topologies = topologies};
    long rounds;
    enum cli_outcome outcome = cli_parse(&command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !cli_integer(&args, "rounds", 1, PRODUCT_ROUNDS_MAX, 7, &rounds)) {
        if (prepare(&t, &args))
            status = t.ready ? EXIT_RUN_FAILED : EXIT_USAGE;
        else
            status = run(&t, (int)rounds, cli_get(&args, "json") != NULL) ? EXIT_RUN_FAILED : 0;
    }
    release(&t);
    cli_args_free(&args);
    return status;
}
