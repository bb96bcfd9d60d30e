#include "shared/bench/step_figures.h"

#include <math.h>

#include "shared/config/json.h"
#include "shared/core/text.h"
#include "shared/device/product_choice.h"

static const char mfu_formula[] =
    "flops_per_step / step_seconds / matmul_flops_per_second (measured in this run)";
static const char datasheet_formula[] = "flops_per_step / step_seconds / datasheet_flops_per_second";

#define PEAK_TEXT 200

static double tokens_per_s(const struct step_figures *f) { return (double)(f->batch * f->seq) / f->step_s; }
static double rate(const struct step_figures *f) { return f->flops.full / f->step_s; }
static double causal_rate(const struct step_figures *f) { return f->flops.causal / f->step_s; }

static double product_rate(const struct step_figures *f) {
    double n = (double)f->product;
    return 2.0 * n * n * n / f->product_s;
}

static double peak_rate(const struct step_figures *f) { return f->peak->flops / f->peak_s; }

static double other_bytes(const struct device_memory *m) {
    return device_memory_other((double)m->used_bytes, (double)m->ledger_bytes, (double)m->workspace_bytes);
}

// ---------------------------------------------------------------- JSON
static void put_memory(cJSON *j, const struct step_figures *f) {
    cJSON *m = cJSON_AddObjectToObject(j, "memory");
    cJSON_AddNumberToObject(m, "predicted_bytes", (double)f->predicted_bytes);
    cJSON_AddNumberToObject(m, "ledger_peak_bytes", (double)f->peak_bytes);
    cJSON_AddNumberToObject(m, "pinned_peak_bytes", (double)f->pinned_bytes);
    if (!f->gpu) return;
    cJSON_AddNumberToObject(m, "ledger_bytes", (double)f->memory.ledger_bytes);
    cJSON_AddNumberToObject(m, "workspace_bytes", (double)f->memory.workspace_bytes);
    cJSON_AddNumberToObject(m, "used_bytes", (double)f->memory.used_bytes);
    cJSON_AddNumberToObject(m, "free_bytes", (double)f->memory.free_bytes);
    cJSON_AddNumberToObject(m, "total_bytes", (double)f->memory.total_bytes);
    cJSON_AddNumberToObject(m, "other_bytes", other_bytes(&f->memory));
    cJSON_AddStringToObject(m, "other", DEVICE_MEMORY_OTHER);
}

static void put_peak(cJSON *j, const struct step_figures *f) {
    char text[PEAK_TEXT];
    double peak = f->peak ? peak_rate(f) : NAN;
    json_put(j, "peak_flops_per_second", peak);
    json_put(j, "share_of_peak", rate(f) / peak);
    json_put(j, "share_of_peak_causal", causal_rate(f) / peak);
    json_put(j, "matmul_share_of_peak", product_rate(f) / peak);
    json_put_text(j, "peak", f->peak ? cpu_peak_text(f->peak, text, sizeof text) : NULL);
}

static void put_datasheet(cJSON *j, const struct step_figures *f) {
    double peak = f->datasheet_flops > 0 ? f->datasheet_flops : NAN;
    json_put(j, "datasheet_flops_per_second", peak);
    json_put(j, "mfu_datasheet", rate(f) / peak);
    json_put(j, "mfu_datasheet_causal", causal_rate(f) / peak);
    cJSON_AddStringToObject(j, "datasheet", f->datasheet);
    cJSON_AddStringToObject(j, "mfu_datasheet_formula", datasheet_formula);
}

void step_figures_json(const struct step_figures *f) {
    double all = f->forward_s + f->backward_s + f->optimizer_s;
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "model", f->model);
    cJSON_AddNumberToObject(j, "params", (double)f->params);
    cJSON_AddNumberToObject(j, "batch", (double)f->batch);
    cJSON_AddNumberToObject(j, "seq", (double)f->seq);
    cJSON_AddStringToObject(j, "dtype", dtype_name(f->dtype));
    cJSON_AddNumberToObject(j, "head_chunk_rows", (double)f->head.rows);
    cJSON_AddNumberToObject(j, "head_chunks", (double)f->head.chunks);
    cJSON_AddNumberToObject(j, "step_seconds", f->step_s);
    cJSON_AddNumberToObject(j, "idle_seconds", f->idle_s);
    cJSON_AddNumberToObject(j, "host_waits_per_step", f->host_waits);
    cJSON_AddNumberToObject(j, "tokens_per_second", tokens_per_s(f));
    cJSON_AddNumberToObject(j, "flops_per_step", f->flops.full);
    cJSON_AddNumberToObject(j, "flops_per_step_causal", f->flops.causal);
    cJSON_AddStringToObject(j, "flops_formula", "a token: " FLOPS_FULL "; causal: " FLOPS_CAUSAL);
    cJSON_AddNumberToObject(j, "flops_per_second", rate(f));
    cJSON_AddNumberToObject(j, "flops_per_second_causal", causal_rate(f));
    cJSON_AddNumberToObject(j, "recomputed_flops_per_step", f->again.full);
    cJSON_AddNumberToObject(j, "recomputed_flops_per_step_causal", f->again.causal);
    cJSON_AddNumberToObject(j, "hardware_flops_per_second", rate(f) + f->again.full / f->step_s);
    cJSON_AddNumberToObject(j, "hardware_flops_per_second_causal",
                            causal_rate(f) + f->again.causal / f->step_s);
    cJSON_AddNumberToObject(j, "matmul_size", (double)f->product);
    cJSON_AddNumberToObject(j, "matmul_flops_per_second", product_rate(f));
    cJSON_AddNumberToObject(j, "share_of_matmul", rate(f) / product_rate(f));
    cJSON_AddNumberToObject(j, "mfu", rate(f) / product_rate(f));
    cJSON_AddNumberToObject(j, "mfu_causal", causal_rate(f) / product_rate(f));
    cJSON_AddStringToObject(j, "mfu_formula", mfu_formula);
    put_peak(j, f);
    put_datasheet(j, f);
    cJSON_AddNumberToObject(j, "forward_share", f->forward_s / all);
    cJSON_AddNumberToObject(j, "backward_share", f->backward_s / all);
    cJSON_AddNumberToObject(j, "optimizer_share", f->optimizer_s / all);
    cJSON_AddNumberToObject(j, "late_allocations", (double)f->late_allocations);
    if (f->gpu)
        cJSON_AddItemToObject(j, "device", device_facts_json(&f->facts));
    else
        cJSON_AddNullToObject(j, "device");
    cJSON_AddItemToObject(j, "products",
                          f->algorithms ? cJSON_Duplicate(f->algorithms, 1) : cJSON_CreateNull());
    put_memory(j, f);
    json_print(stdout, j);
    cJSON_Delete(j);
}

// ---------------------------------------------------------------- the table
static void print_memory(const struct step_figures *f) {
    char a[24], b[24];
    const struct device_memory *m = &f->memory;
    printf("memory         %s predicted, %s counted at the peak: %s\n",
           format_bytes(a, (double)f->predicted_bytes), format_bytes(b, (double)f->peak_bytes),
           f->predicted_bytes == f->peak_bytes ? "equal" : "DIFFERENT");
    if (!f->gpu) return;
    fputs("               ", stdout);
    device_memory_print(stdout, (double)m->used_bytes, (double)m->total_bytes, (double)m->ledger_bytes,
                        (double)m->workspace_bytes);
}

// One counting of attention: the step's rate, its share of the product and, of a GPU, of the datasheet.
static void print_mfu(const char *attention, const struct step_figures *f, double flops,
                      const char *a_token) {
    char peak[64] = "";
    double flops_per_s = flops / f->step_s;
    if (f->datasheet_flops > 0)
        snprintf(peak, sizeof peak, ", %.3f of the datasheet", flops_per_s / f->datasheet_flops);
    printf("MFU, %-9s %.3f of the product%s: %.1f GFLOP/s, a token %s\n", attention,
           flops_per_s / product_rate(f), peak, flops_per_s * 1e-9, a_token);
}

static void print_again(const struct step_figures *f) {
    printf(
        "recomputed     %.1f%% more than these flops (causal: %.1f%%): the hardware does %.1f GFLOP/s (%.1f)\n",
        100 * f->again.full / f->flops.full, 100 * f->again.causal / f->flops.causal,
        (rate(f) + f->again.full / f->step_s) * 1e-9, (causal_rate(f) + f->again.causal / f->step_s) * 1e-9);
}

static void print_peak(const struct step_figures *f) {
    char text[PEAK_TEXT];
    printf("peak           %.1f GFLOP/s (%s)\n", peak_rate(f) * 1e-9,
           cpu_peak_text(f->peak, text, sizeof text));
    printf("               %.3f of it the product, %.3f a step (attention in full), %.3f (causal)\n",
           product_rate(f) / peak_rate(f), rate(f) / peak_rate(f), causal_rate(f) / peak_rate(f));
}

void step_figures_table(const struct step_figures *f) {
    char line[DEVICE_FACTS_LINE];
    double all = f->forward_s + f->backward_s + f->optimizer_s;
    long long n = (long long)f->product;
    if (f->gpu) {
        cJSON *device = device_facts_json(&f->facts);
        printf("device         %s\n               ", device_facts_line(line, &f->facts));
        device_work_print(stdout, device);
        cJSON_Delete(device);
    }
    products_print(stdout, "products       ", f->algorithms);
    printf("model          %s, %lld parameters\n", f->model, (long long)f->params);
    printf("tokens/s       %.1f\n", tokens_per_s(f));
    printf("step           B=%lld T=%lld %s: %.4f s (median)\n", (long long)f->batch, (long long)f->seq,
           dtype_name(f->dtype), f->step_s);
    printf("logits         %lld chunk%s of %lld rows\n", (long long)f->head.chunks,
           f->head.chunks == 1 ? "" : "s", (long long)f->head.rows);
    printf("matmul         %.1f GFLOP/s (%lld x %lld x %lld, same type, %s the steps, median)\n",
           product_rate(f) * 1e-9, n, n, n, f->products > 1 ? "several in a row between" : "between");
    print_mfu("full", f, f->flops.full, FLOPS_FULL);
    print_mfu("causal", f, f->flops.causal, FLOPS_CAUSAL);
    printf(
        "               flops of a step / step seconds / rate; forward and backward, nothing recomputed\n");
    if (f->again.full > 0) print_again(f);
    if (f->peak) print_peak(f);
    if (f->datasheet_flops > 0)
        printf("datasheet      %.1f TFLOP/s (%s)\n", f->datasheet_flops * 1e-12, f->datasheet);
    else if (f->gpu)
        printf("datasheet      none: %s\n", f->datasheet);
    printf(
        "time           forward %.1f%%  backward %.1f%%  optimizer %.1f%%; %.3f ms per step without work\n",
        100 * f->forward_s / all, 100 * f->backward_s / all, 100 * f->optimizer_s / all, f->idle_s * 1e3);
    print_memory(f);
    printf("allocations    %llu after the first step\n", (unsigned long long)f->late_allocations);
}
