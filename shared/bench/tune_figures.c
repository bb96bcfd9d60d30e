#include "shared/bench/tune_figures.h"

#include <math.h>
#include <string.h>

#include "shared/config/json.h"
#include "shared/device/device_facts.h"
#include "shared/device/product_table.h"

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
static void totals(const struct tune_figures *f, double *first_s, double *best_s) {
    *first_s = *best_s = 0;
    for (int i = 0; i < f->count; i++) {
        const struct product_timing *t = &f->products[i].timing;
        *first_s += (double)f->products[i].uses * t->first_s;
        *best_s += (double)f->products[i].uses * (t->none ? t->first_s : t->best_s);
    }
}

static double gain(double first_s, double best_s) { return first_s > 0 ? 1 - best_s / first_s : 0; }

// ---------------------------------------------------------------- the table

void tune_figures_begin(const struct tune_figures *f) {
    char line[DEVICE_FACTS_LINE];
    printf("device  %s\n", device_facts_line(line, &f->facts));
    printf("model   %s, B=%lld T=%lld %s; each product: median of %d rounds\n\n", f->spec->name,
           (long long)f->batch, (long long)f->seq, dtype_name(f->dtype), f->rounds);
    printf("%-40s %7s %7s %7s %5s %9s %9s %6s  %s\n", "product", "m", "n", "k", "uses", "first ms", "best ms",
           "gain", "chosen");
    fflush(stdout);
}

void tune_figures_row(const struct tune_figures *f, const struct tuned *t) {
    char text[PRODUCT_PURPOSE_BYTES];
    const struct product_timing *p = &t->timing;
    printf("%-40s %7lld %7lld %7lld %5llu %9.4f", product_purpose(text, f->spec, &t->key),
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

void tune_figures_end(const struct tune_figures *f) {
    double first_s, best_s;
    totals(f, &first_s, &best_s);
    printf("\nmatrix products of a step: %.3f ms by the first heuristics, %.3f ms by these: %.1f%% less\n",
           first_s * 1e3, best_s * 1e3, 100 * gain(first_s, best_s));
    printf("written to %s", f->file);
    if (f->kept) printf(", beside %d of other products, GPUs or versions", f->kept);
    putchar('\n');
}

// ---------------------------------------------------------------- JSON

static cJSON *row_json(const struct tune_figures *f, const struct tuned *t) {
    char text[PRODUCT_PURPOSE_BYTES];
    const struct product_timing *p = &t->timing;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "purpose", product_purpose(text, f->spec, &t->key));
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

void tune_figures_json(const struct tune_figures *f) {
    double first_s, best_s;
    totals(f, &first_s, &best_s);
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "model", f->spec->name);
    cJSON_AddNumberToObject(j, "batch", (double)f->batch);
    cJSON_AddNumberToObject(j, "seq", (double)f->seq);
    cJSON_AddStringToObject(j, "dtype", dtype_name(f->dtype));
    cJSON_AddNumberToObject(j, "rounds", f->rounds);
    cJSON_AddItemToObject(j, "device", device_facts_json(&f->facts));
    cJSON *list = cJSON_AddArrayToObject(j, "products");
    for (int i = 0; i < f->count; i++) cJSON_AddItemToArray(list, row_json(f, &f->products[i]));
    cJSON_AddNumberToObject(j, "first_seconds_per_step", first_s);
    cJSON_AddNumberToObject(j, "best_seconds_per_step", best_s);
    cJSON_AddNumberToObject(j, "saved_seconds_per_step", first_s - best_s);
    cJSON_AddStringToObject(j, "file", f->file);
    cJSON_AddNumberToObject(j, "kept", f->kept);
    json_print(stdout, j);
    cJSON_Delete(j);
}
