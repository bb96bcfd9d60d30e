// A run's table, and the few lines that a run ends with, from summary.json's document.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/text.h"
#include "shared/device/product_choice.h"
#include "shared/report/summary_impl.h"

// Why a hash may be another than a neighbour's.
#define OTHER_BITS ": other bits than fma's, which --set cpu.kernel=fma gives everywhere"

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

// Nothing of a run that is complete.
static void print_state(FILE *f, const cJSON *s) {
    if (summary_interrupted(s))
        fprintf(f, "state       interrupted after step %.0f of %.0f\n", json_number(s, "steps"),
                json_number(s, "steps_planned"));
    if (summary_unkept(s))
        fprintf(f, "state       unkept: all %.0f steps are done, and no checkpoint could be kept: %s\n",
                json_number(s, "steps"),
                json_text(json_item(s, "checkpoints"), "why", "there was no memory for them"));
}

static void print_head(FILE *f, const cJSON *s) {
    char count[32];
    const cJSON *loss = json_item(s, "loss"), *step = json_item(s, "step_seconds");
    fputc('\n', f);
    print_state(f, s);
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
    fprintf(f, "loss        %.4f -> %.4f in %.0f step%s, %.0f %sskipped\n", json_number(loss, "first"),
            json_number(loss, "last"), json_number(s, "steps"), json_number(s, "steps") == 1 ? "" : "s",
            json_number(s, "skipped"), json_item(s, "batches") ? "batches " : "");
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
    double steps = fmax(summary_own_steps(s), 1);
    fprintf(f, "mean step   %.2f ms:", json_number(time, "total") / steps * 1e3);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        fprintf(f, " %s %.2f%s", names[i][0], json_number(time, names[i][1]) / steps * 1e3,
                i < 6   ? ","
                : i < 7 ? ";"
                        : "\n");
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

void summary_print_hash(FILE *f, const cJSON *s) {
    const char *hash = json_text(s, "weights_hash", NULL);
    const char *product = json_text(json_item(s, "cpu_kernel"), "product", text(s, "device"));
    if (hash)
        fprintf(f, "weights     hash %s (%s%s)\n", hash, product,
                strcmp(product, cpu_kernel_name(CPU_KERNEL_PAIRS)) ? "" : OTHER_BITS);
    else
        fputs("weights     hash -\n", f);
}

void summary_print(FILE *f, const char *dir, const struct cJSON *s) {
    print_head(f, s);
    print_time(f, s);
    summary_print_peers(f, s);
    summary_print_server_times(f, s);
    print_memory(f, s);
    summary_print_devices(f, s);
    summary_print_totals(f, s);
    if (strcmp(text(json_item(s, "wire")->child, "formula"), "0") != 0) print_wire(f, s);
    summary_print_offload(f, s);
    if (json_item(s, "checkpoints")) fputc('\n', f);
    summary_print_checkpoints(f, s);
    const cJSON *staleness = json_item(s, "staleness");
    if (staleness)
        fprintf(f, "\nstaleness   mean %.2f, max %.0f update%s\n", json_number(staleness, "mean"),
                json_number(staleness, "max"), json_number(staleness, "max") == 1 ? "" : "s");
    fputc('\n', f);
    summary_print_hash(f, s);
    fprintf(f, "files       %s\n", dir);
    fflush(f);
}

// ---------------------------------------------------------------- how a run ends: a few lines
#define SPREAD_BOUND 0.25  // of the steps, above which no time is told (as experiments/comparison)

// Two figures of one thing: "5.44 MiB =" where they agree to the byte, else both.
struct figure {
    double predicted, measured;
    bool exact;  // of every rank of the role
};

static void print_figure(FILE *f, const struct figure *g) {
    char a[24], b[24];
    if (g->exact)
        fprintf(f, "%s =", format_bytes(a, g->measured));
    else
        fprintf(f, "%s (predicted %s)", format_bytes(a, g->measured), format_bytes(b, g->predicted));
}

// One more rank: the figure is of the one that has most.
static void take(struct figure *g, double predicted, double measured) {
    g->exact &= fabs(predicted - measured) < 0.5;
    if (measured < g->measured || (measured == g->measured && predicted == measured)) return;
    g->predicted = predicted;
    g->measured = measured;
}

static const struct figure none = {.exact = true, .measured = -1};

static struct figure memory_of(const cJSON *s, const char *role) {
    struct figure g = none;
    const cJSON *r;
    cJSON_ArrayForEach(r, json_item(s, "memory")) {
        if (strcmp(json_text(r, "role", ""), role) != 0) continue;
        const cJSON *predicted = json_item(r, "predicted"), *peak = json_item(r, "peak");
        take(&g, summary_device_bytes(predicted), summary_device_bytes(peak));
        g.exact &= cJSON_Compare(predicted, peak, 1);
    }
    return g;
}

static struct figure wire_of(const cJSON *s, const char *role, const char *predicted, const char *measured) {
    struct figure g = none;
    const cJSON *r;
    cJSON_ArrayForEach(r, json_item(s, "wire")) if (!strcmp(json_text(r, "role", ""), role))
        take(&g, json_number(r, predicted), json_number(r, measured));
    return g;
}

// Ranks lie by role: the next entry of another role than r, or NULL.
static const cJSON *next_role(const cJSON *r) {
    const char *role = json_text(r, "role", "");
    while (r && !strcmp(json_text(r, "role", ""), role)) r = r->next;
    return r;
}

static void brief_memory(FILE *f, const cJSON *s) {
    const char *separator = "memory      ";
    for (const cJSON *r = json_item(s, "memory")->child; r; r = next_role(r)) {
        const char *role = json_text(r, "role", "");
        struct figure g = memory_of(s, role);
        fputs(separator, f);
        print_figure(f, &g);
        fprintf(f, " per %s", role);
        separator = ", ";
    }
    fputs("   (=: predicted and measured agree to the byte)\n", f);
}

static void brief_wire(FILE *f, const cJSON *s) {
    const cJSON *first = json_item(s, "wire")->child;
    const char *separator = "each step   ";
    if (!strcmp(json_text(first, "formula", "0"), "0")) return;
    for (const cJSON *r = first; r; r = next_role(r)) {
        const char *role = json_text(r, "role", "");
        struct figure sent = wire_of(s, role, "predicted_sent", "sent_per_step"),
                      received = wire_of(s, role, "predicted_received", "received_per_step");
        fprintf(f, "%sa %s sends ", separator, role);
        print_figure(f, &sent);
        fputs(" and receives ", f);
        print_figure(f, &received);
        separator = ", ";
    }
    fputc('\n', f);
}

static void brief_run(FILE *f, const cJSON *s) {
    char count[32];
    double servers = json_number(s, "servers"), workers = json_number(s, "workers");
    fputc('\n', f);
    print_state(f, s);
    fprintf(f, "run         %s, %.0f worker%s", text(s, "topology"), workers, workers == 1 ? "" : "s");
    if (servers > 0) fprintf(f, ", %.0f server%s", servers, servers == 1 ? "" : "s");
    fprintf(f, ", %s, %s (%s parameters), %s\n", text(s, "dtype"), text(s, "model"),
            format_count(count, (int64_t)json_number(s, "params")), text(s, "data"));
    if (isfinite(json_number(s, "resumed_from")))
        fprintf(f, "resumed     behind step %.0f; times, bytes and memory are of what came after it\n",
                json_number(s, "resumed_from"));
    summary_print_lives(f, s);
    summary_print_away(f, s);
}

static void brief_loss(FILE *f, const cJSON *s) {
    const cJSON *loss = json_item(s, "loss");
    fprintf(f, "loss        %.4f -> %.4f in %.0f step%s", json_number(loss, "first"),
            json_number(loss, "last"), json_number(s, "steps"), json_number(s, "steps") == 1 ? "" : "s");
    if (json_number(s, "skipped") > 0)
        fprintf(f, ", %.0f %s skipped", json_number(s, "skipped"),
                json_item(s, "batches") ? "batches" : "of them");
    if (isfinite(json_number(s, "val_loss")))
        fprintf(f, "; held out %.4f (unigram entropy of the text: %.4f nats)", json_number(s, "val_loss"),
                json_number(s, "unigram_entropy"));
    fputc('\n', f);
}

static void brief_speed(FILE *f, const cJSON *s) {
    char count[32];
    const cJSON *step = json_item(s, "step_seconds"), *staleness = json_item(s, "staleness");
    double median = json_number(step, "median"), spread = json_number(step, "spread"),
           most = json_number(staleness, "max");
    format_count(count, (int64_t)json_number(s, "tokens_per_second"));
    if (spread > SPREAD_BOUND)
        fprintf(
            f,
            "speed       noisy: steps spread over %.0f%% of their median, %.1f ms: %s tokens/s is not to be compared",
            100 * spread, median * 1e3, count);
    else
        fprintf(f, "speed       %s tokens/s; step %.1f ms median", count, median * 1e3);
    if (most > 0)  // a star that waits for all has none
        fprintf(f, "; staleness mean %.2f, max %.0f update%s", json_number(staleness, "mean"), most,
                most == 1 ? "" : "s");
    fputc('\n', f);
}

void summary_print_brief(FILE *f, const char *dir, const struct cJSON *s) {
    brief_run(f, s);
    brief_loss(f, s);
    brief_memory(f, s);
    brief_wire(f, s);
    brief_speed(f, s);
    summary_print_checkpoints(f, s);
    summary_print_hash(f, s);
    char program[PROGRAM_WORD], *word = shell_word(dir);
    fprintf(f, "files       %s   (every figure: %s summary %s)\n", dir, program_word(program), word);
    free(word);
    fflush(f);
}
