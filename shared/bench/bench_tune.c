// `starring bench tune`: the algorithm of each matrix product of a model on a GPU, measured in turn.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/bench/bench.h"
#include "shared/bench/bench_tune.h"
#include "shared/bench/bench_work.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/device/device_choice.h"
#include "shared/device/device_facts.h"
#include "shared/device/product_choice.h"
#include "shared/device/product_table.h"
#include "shared/hf/presets.h"
#include "shared/launch/local.h"
#include "shared/model/model.h"
#include "shared/report/metrics.h"
#include "shared/train/session.h"

#define STEPS 2  // the first also has whatever happens once

// A product of the step.
struct tuned {
    struct product_key key;
    uint64_t uses;  // per step
    struct product_timing timing;
};

struct tune {
    struct bench_rank rank;
    int rounds;
    char *out;                   // the file that the table is written to
    struct product_table table;  // it, as it was and as it will be
    int kept;                    // entries of it that are of other products, devices or versions
    struct device_facts facts;
    struct product_use *first;  // after the first step
    int first_count;
    struct tuned *products;
    int count;
};

#define VOCAB_ROOM 256  // rows of logits may be longer than the vocabulary: multiples of 64 or 128

// ---------------------------------------------------------------- what it is for

struct linear {
    const char *name;
    int64_t in, out;
};

// Of y = x w^T + b, w (out,in): the forward product is (R,out) by in, the gradient of x (R,in) by out, that
// of w (out,in) by R.
static const char *pass_of(const struct linear *l, const struct product_key *k) {
    bool head = !strcmp(l->name, "head");
    int64_t out = k->trans_a ? k->m : k->trans_b ? k->n : k->k, in = k->trans_b && !k->trans_a ? k->k : k->n;
    if (in != l->in || (head ? out < l->out || out >= l->out + VOCAB_ROOM : out != l->out)) return NULL;
    return k->trans_a ? "gradient of w" : k->trans_b ? "forward" : "gradient of x";
}

const char *product_purpose(char text[PRODUCT_PURPOSE_BYTES], const struct model_spec *s,
                            const struct product_key *k) {
    int64_t c = s->channels, heads = (int64_t)s->heads * s->head_size;
    const struct linear linears[] = {
        {"qkv", c, heads + 2 * (int64_t)s->kv_heads * s->head_size},
        {"attention out", heads, c},
        {s->traits.mlp == MLP_GELU ? "mlp up" : "mlp gate, up", c, model_up_width(s)},
        {"mlp down", s->ffn, c},
        {"head", c, s->vocab},
    };
    static const char *const epilogues[] = {[EPILOGUE_NONE] = "",
                                            [EPILOGUE_GELU] = ", GELU",
                                            [EPILOGUE_GELU_GRAD] = ", GELU's slope",
                                            [EPILOGUE_BIAS_GRAD] = " and b"};
    snprintf(text, PRODUCT_PURPOSE_BYTES, "-");
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        const char *pass = pass_of(&linears[i], k);
        if (!pass) continue;
        snprintf(text, PRODUCT_PURPOSE_BYTES, "%s, %s%s%s", linears[i].name, pass, epilogues[k->epilogue],
                 k->accumulate ? ", added" : "");
        break;
    }
    return text;
}

// ---------------------------------------------------------------- sums

// Seconds per step: of all products by the first heuristics, and by what is taken now.
static void totals(const struct tune *f, double *first_s, double *best_s) {
    *first_s = *best_s = 0;
    for (int i = 0; i < f->count; i++) {
        const struct product_timing *t = &f->products[i].timing;
        *first_s += (double)f->products[i].uses * t->first_s;
        *best_s += (double)f->products[i].uses * (t->none ? t->first_s : t->best_s);
    }
}

static double gain(double first_s, double best_s) { return first_s > 0 ? 1 - best_s / first_s : 0; }

// ---------------------------------------------------------------- the table

static void print_head(const struct tune *f) {
    char line[DEVICE_FACTS_LINE];
    printf("device  %s\n", device_facts_line(line, &f->facts));
    printf("model   %s, B=%lld T=%lld %s; each product: median of %d rounds\n\n", f->rank.spec.name,
           (long long)f->rank.config->train_batch, (long long)f->rank.config->seq,
           dtype_name(f->rank.config->dtype), f->rounds);
    printf("%-40s %7s %7s %7s %5s %9s %9s %6s  %s\n", "product", "m", "n", "k", "uses", "first ms", "best ms",
           "gain", "chosen");
    fflush(stdout);
}

static void print_row(const struct tune *f, const struct tuned *t) {
    char text[PRODUCT_PURPOSE_BYTES];
    const struct product_timing *p = &t->timing;
    printf("%-40s %7lld %7lld %7lld %5llu %9.4f", product_purpose(text, &f->rank.spec, &t->key),
           (long long)t->key.m, (long long)t->key.n, (long long)t->key.k, (unsigned long long)t->uses,
           p->first_s * 1e3);
    if (p->none)
        printf(" %9s %6s  none of %d", "-", "-", p->candidates);
    else
        printf(" %9.4f %5.1f%%  %d of %d", p->best_s * 1e3, 100 * gain(p->first_s, p->best_s), p->rank + 1,
               p->candidates);
    if (p->unstable) printf(", %d did not repeat", p->unstable);
    if (p->wrong) printf(", %d wrong", p->wrong);
    if (p->failed) printf(", %d not usable", p->failed);
    putchar('\n');
    fflush(stdout);
}

static void print_end(const struct tune *f) {
    double first_s, best_s;
    totals(f, &first_s, &best_s);
    printf("\nmatrix products of a step: %.3f ms by the first heuristics, %.3f ms by these: %.1f%% less\n",
           first_s * 1e3, best_s * 1e3, 100 * gain(first_s, best_s));
    printf("written to %s", f->out);
    if (f->kept) printf(", beside %d of other products, GPUs or versions", f->kept);
    putchar('\n');
}

// ---------------------------------------------------------------- JSON

static cJSON *row_json(const struct tune *f, const struct tuned *t) {
    char text[PRODUCT_PURPOSE_BYTES];
    const struct product_timing *p = &t->timing;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "purpose", product_purpose(text, &f->rank.spec, &t->key));
    cJSON_AddNumberToObject(o, "m", (double)t->key.m);
    cJSON_AddNumberToObject(o, "n", (double)t->key.n);
    cJSON_AddNumberToObject(o, "k", (double)t->key.k);
    cJSON_AddBoolToObject(o, "trans_a", t->key.trans_a);
    cJSON_AddBoolToObject(o, "trans_b", t->key.trans_b);
    cJSON_AddBoolToObject(o, "accumulate", t->key.accumulate);
    cJSON_AddStringToObject(o, "epilogue", product_epilogue_name(t->key.epilogue));
    cJSON_AddBoolToObject(o, "bias", t->key.bias_align != 0);
    cJSON_AddNumberToObject(o, "uses_per_step", (double)t->uses);
    cJSON_AddNumberToObject(o, "first_seconds", p->first_s);
    json_put(o, "best_seconds", p->none ? NAN : p->best_s);
    json_put(o, "rank", p->none ? NAN : p->rank + 1);
    cJSON_AddNumberToObject(o, "candidates", p->candidates);
    cJSON_AddNumberToObject(o, "not_repeating", p->unstable);
    cJSON_AddNumberToObject(o, "wrong", p->wrong);
    cJSON_AddNumberToObject(o, "not_usable", p->failed);
    cJSON_AddNumberToObject(o, "operand_sets", p->sets);
    return o;
}

static void print_json(const struct tune *f) {
    double first_s, best_s;
    totals(f, &first_s, &best_s);
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "model", f->rank.spec.name);
    cJSON_AddNumberToObject(j, "batch", (double)f->rank.config->train_batch);
    cJSON_AddNumberToObject(j, "seq", (double)f->rank.config->seq);
    cJSON_AddStringToObject(j, "dtype", dtype_name(f->rank.config->dtype));
    cJSON_AddNumberToObject(j, "rounds", f->rounds);
    cJSON_AddItemToObject(j, "device", device_facts_json(&f->facts));
    cJSON *list = cJSON_AddArrayToObject(j, "products");
    for (int i = 0; i < f->count; i++) cJSON_AddItemToArray(list, row_json(f, &f->products[i]));
    cJSON_AddNumberToObject(j, "first_seconds_per_step", first_s);
    cJSON_AddNumberToObject(j, "best_seconds_per_step", best_s);
    cJSON_AddNumberToObject(j, "saved_seconds_per_step", first_s - best_s);
    cJSON_AddStringToObject(j, "file", f->out);
    cJSON_AddNumberToObject(j, "kept", f->kept);
    json_print(stdout, j);
    cJSON_Delete(j);
}

// ---------------------------------------------------------------- the command
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

// ---------------------------------------------------------------- preparing

static int prepare(struct tune *t, const struct topology_table *topologies, const struct cli_args *a) {
    static const struct config_override own[] = {{"device", "cuda", "bench tune"}};
    if (bench_rank_load(&t->rank, "bench tune", topologies, own, 1, a,
                        "one process is measured, --topology local; what it finds serves every topology"))
        return -1;
    struct config *c = t->rank.config;
    c->steps = STEPS;
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
    const struct backend *found = device_backend(c);
    if (!found) return -1;
    // The file's earlier contents stay, so it must be a table that can be read and written.
    t->out = cli_get(a, "out") ? xstrdup(cli_get(a, "out")) : products_beside_program();
    if (access(t->out, F_OK) == 0 && product_table_read(t->out, &t->table))
        return fail(
            "bench tune: %s is there, and no table to add to: remove it, or name another file with --out",
            t->out);
    return product_table_writable(t->out) || bench_rank_open(&t->rank, found) || bench_rank_join(&t->rank, 0)
               ? -1
               : 0;
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
    if (!t->first) t->first = uses_of(t->rank.dev, &t->first_count);
}

// The products that the second step used, in the order of its first uses.
static void list_products(struct tune *t) {
    int count;
    struct product_use *uses = uses_of(t->rank.dev, &count);
    t->products = xcalloc((size_t)count + 1, sizeof *t->products);
    for (int i = 0; i < count; i++) {
        uint64_t calls = uses[i].calls - (i < t->first_count ? t->first[i].calls : 0);
        if (uses[i].source == PRODUCT_ABSENT || calls == 0) continue;
        t->products[t->count++] = (struct tuned){.key = uses[i].key, .uses = calls};
    }
    free(uses);
}

// ---------------------------------------------------------------- measuring

static void keep(struct tune *t, const struct tuned *p) {
    struct product_entry e;
    if (p->timing.none) return;
    memset(&e, 0, sizeof e);
    e.choice = (struct product_choice){p->key, p->timing.algo};
    snprintf(e.device, sizeof e.device, "%s", t->facts.name);
    e.sm = t->facts.sm_version;
    e.library = t->facts.blas_version;
    e.rank = p->timing.rank;
    e.first_s = p->timing.first_s;
    e.best_s = p->timing.best_s;
    product_table_put(&t->table, &e);
}

static int measure(struct tune *t, bool json) {
    struct bench_rank *r = &t->rank;
    struct train_observer observer = {.on_step = on_step, .ctx = t};
    int said = 0;
    if (bench_rank_train(r, &observer)) return -1;
    list_products(t);
    topology_destroy(&r->topology);   // its memory is the operands' now
    device_notes_say(r->dev, &said);  // an epilogue that the library does not have is no product to measure
    if (dev_facts(r->dev, &t->facts)) return fail("bench tune: %s", dev_error(r->dev));
    if (!json) print_head(t);
    int kept = 0;
    for (int i = 0; i < t->count; i++) {
        struct tuned *p = &t->products[i];
        if (stream_tune_product(r->compute, &p->key, t->rounds, &p->timing))
            return fail("bench tune: %s", dev_error(r->dev));
        keep(t, p);
        kept += !p->timing.none;
        if (!json) print_row(t, p);
    }
    t->kept = t->table.count - kept;
    if (product_table_write(t->out, &t->table)) return -1;
    (json ? print_json : print_end)(t);
    return 0;
}

static int run(const struct topology_table *topologies, const struct cli_args *a) {
    struct tune t = {.count = 0};
    long rounds;
    int status = EXIT_USAGE;
    if (cli_integer(a, "rounds", 1, PRODUCT_ROUNDS_MAX, 7, &rounds)) return status;
    t.rounds = (int)rounds;
    if (!prepare(&t, topologies, a))
        status = measure(&t, cli_get(a, "json") != NULL) ? EXIT_RUN_FAILED : 0;
    else if (t.rank.ready)
        status = EXIT_RUN_FAILED;
    bench_rank_close(&t.rank);
    product_table_free(&t.table);
    free(t.out);
    free(t.first);
    free(t.products);
    return status;
}

const struct bench_program bench_tune = {
    "which of cuBLASLt's algorithms each matrix product of a model takes on this GPU", &command, run};
