// The table at the end of a run, from summary.json's document.
#include <math.h>
#include <string.h>

#include "shared/core/text.h"
#include "shared/device/product_choice.h"
#include "shared/report/summary_impl.h"

static const char *text(const cJSON *o, const char *key) { return json_text(o, key, "-"); }

static const char *verdict(const cJSON *predicted, const cJSON *peak) {
    return cJSON_Compare(predicted, peak, 1) ? "equal" : "DIFFERENT";
}

static void print_rate(FILE *f, const cJSON *s) {
    fprintf(f, "rate        %.2f GFLOP/s with attention in full (a token: " FLOPS_FULL ")\n",
            json_number(s, "flops_per_second") * 1e-9);
    fprintf(f, "            %.2f GFLOP/s with causal attention (a token: " FLOPS_CAUSAL ")\n",
            json_number(s, "flops_per_second_causal") * 1e-9);
    if (json_number(s, "recomputed_flops_per_token") > 0)
        fprintf(
            f,
            "recomputed  %.1f%% more than that (causal: %.1f%%), which no rate here counts: the hardware does %.2f GFLOP/s (%.2f)\n",
            100 * json_number(s, "recomputed_flops_per_token") / json_number(s, "flops_per_token"),
            100 * json_number(s, "recomputed_flops_per_token_causal") /
                json_number(s, "flops_per_token_causal"),
            json_number(s, "hardware_flops_per_second") * 1e-9,
            json_number(s, "hardware_flops_per_second_causal") * 1e-9);
    if (isfinite(json_number(s, "mfu_datasheet_causal")))
        fprintf(f, "MFU         %.3f with attention in full, %.3f causal, of %.1f TFLOP/s (datasheet)\n",
                json_number(s, "mfu_datasheet"), json_number(s, "mfu_datasheet_causal"),
                json_number(s, "datasheet_flops_per_second") * 1e-12);
}

static void print_head(FILE *f, const cJSON *s) {
    char count[32];
    const cJSON *loss = json_item(s, "loss"), *step = json_item(s, "step_seconds");
    fputc('\n', f);
    if (summary_interrupted(s))
        fprintf(f, "state       interrupted after step %.0f of %.0f\n", json_number(s, "steps"),
                json_number(s, "steps_planned"));
    fprintf(f, "run         %s, %.0f worker%s", text(s, "topology"), json_number(s, "workers"),
            json_number(s, "workers") == 1 ? "" : "s");
    if (json_number(s, "servers") > 0)
        fprintf(f, ", %.0f server%s", json_number(s, "servers"), json_number(s, "servers") == 1 ? "" : "s");
    fprintf(f, ", %s, %s (%s parameters)\n", text(s, "dtype"), text(s, "model"),
            format_count(count, (int64_t)json_number(s, "params")));
    const cJSON *kernel = json_item(s, "cpu_kernel");
    if (cJSON_IsObject(kernel))
        fprintf(f, "cpu kernel  %s (program built for %s)\n", text(kernel, "product"),
                text(kernel, "built_for"));
    products_print(f, "products    ", json_item(s, "products"));
    const cJSON *head = json_item(s, "head");
    if (cJSON_IsObject(head) && json_number(head, "chunks") > 1)
        fprintf(f, "logits      %.0f chunks of %.0f rows a micro-batch%s\n", json_number(head, "chunks"),
                json_number(head, "chunk_rows"),
                cJSON_IsTrue(json_item(head, "apart")) ? ", added apart" : "");
    fprintf(f, "data        %s\n", text(s, "data"));
    if (isfinite(json_number(s, "resumed_from")))
        fprintf(f, "resumed     behind step %.0f; times, bytes and memory are of what came after it\n",
                json_number(s, "resumed_from"));
    summary_print_lives(f, s);
    summary_print_away(f, s);
    fprintf(f, "loss        %.4f -> %.4f in %.0f steps, %.0f skipped\n", json_number(loss, "first"),
            json_number(loss, "last"), json_number(s, "steps"), json_number(s, "skipped"));
    if (isfinite(json_number(s, "val_loss")))
        fprintf(f, "held out    %.4f (unigram entropy of the text: %.4f nats)\n", json_number(s, "val_loss"),
                json_number(s, "unigram_entropy"));
    fprintf(f, "speed       %s tokens/s; step %.1f ms median, %.1f p5, %.1f p95; %.1f s in all\n",
            format_count(count, (int64_t)json_number(s, "tokens_per_second")),
            json_number(step, "median") * 1e3, json_number(step, "p5") * 1e3, json_number(step, "p95") * 1e3,
            json_number(s, "wall_seconds"));
    print_rate(f, s);
}

static void print_time(FILE *f, const cJSON *s) {
    static const char *const names[][2] = {
        {"forward", "forward"}, {"backward", "backward"},          {"optimizer", "optimizer"},
        {"wait", "wait"},       {"exposed", "comm_exposed"},       {"host", "host"},
        {"data", "data"},       {"overlapped", "comm_overlapped"},
    };
    const cJSON *time = json_item(s, "time");
    double steps = summary_own_steps(s);
    fprintf(f, "ms per step");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fprintf(f, " %s %.2f%s", names[i][0], json_number(time, names[i][1]) / steps * 1e3,
                i < 7 ? "," : "\n");
}

static void print_memory(FILE *f, const cJSON *s) {
    char a[24], b[24], c[24], d[24];
    const cJSON *r;
    fprintf(f, "\nmemory       %12s %12s   %-10s %-22s %10s\n", "predicted", "measured", "", "textbook",
            "resident");
    cJSON_ArrayForEach(r, json_item(s, "memory")) {
        const cJSON *predicted = json_item(r, "predicted"), *peak = json_item(r, "peak");
        char book[64];
        snprintf(book, sizeof book, "%s %s", format_bytes(c, json_number(r, "formula_bytes")),
                 text(r, "formula"));
        fprintf(f, "  %-7s %2.0f %12s %12s   %-10s %-22s %10s\n", text(r, "role"), json_number(r, "rank"),
                format_bytes(a, summary_device_bytes(predicted)), format_bytes(b, summary_device_bytes(peak)),
                verdict(predicted, peak), book, format_bytes(d, json_number(r, "rss_bytes")));
    }
    summary_print_beside(f, s);
}

static void print_wire(FILE *f, const cJSON *s) {
    char a[24], b[24], c[24], d[24];
    const cJSON *r;
    fprintf(f, "\nper step     %12s %12s %12s %12s   (control out)\n", "sent: pred.", "measured",
            "recv: pred.", "measured");
    cJSON_ArrayForEach(r, json_item(s, "wire")) {
        fprintf(f, "  %-7s %2.0f %12s %12s %12s %12s   %.0f\n", text(r, "role"), json_number(r, "rank"),
                format_bytes(a, json_number(r, "predicted_sent")),
                format_bytes(b, json_number(r, "sent_per_step")),
                format_bytes(c, json_number(r, "predicted_received")),
                format_bytes(d, json_number(r, "received_per_step")),
                json_number(r, "control_sent_per_step"));
        summary_print_phases(f, r);
    }
    summary_print_across(f, s);
    summary_print_replicas(f, s);
}

void summary_print(FILE *f, const char *dir, const struct cJSON *s) {
    print_head(f, s);
    print_time(f, s);
    summary_print_server_times(f, s);
    print_memory(f, s);
    summary_print_devices(f, s);
    summary_print_totals(f, s);
    if (strcmp(text(json_item(s, "wire")->child, "formula"), "0") != 0) print_wire(f, s);
    summary_print_offload(f, s);
    summary_print_checkpoints(f, s);
    const cJSON *staleness = json_item(s, "staleness");
    if (staleness)
        fprintf(f, "\nstaleness   mean %.2f, max %.0f updates\n", json_number(staleness, "mean"),
                json_number(staleness, "max"));
    fprintf(f, "\nweights     hash %s\nfiles       %s\n", text(s, "weights_hash"), dir);
    fflush(f);
}
