// Prints a run's table, and the few lines at the end of a run, from summary.json's document.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/device/device_facts.h"
#include "shared/report/figures.h"
#include "shared/report/summary.h"

static const char *text(const cJSON *o, const char *key) { return json_text(o, key, "-"); }

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

static void print_lost(FILE *f, double lost) {
    if (isfinite(lost)) fprintf(f, ", %.0f step%s done again", lost, lost == 1 ? "" : "s");
}

static void print_lives(FILE *f, const cJSON *s) {
    const cJSON *o = json_item(s, "lives");
    double count = json_number(o, "count"), earlier = json_number(o, "earlier");
    if (!o || count + earlier < 2) return;
    fprintf(f, "lives       %.0f", count);
    if (count > 1) fprintf(f, ": processes died and the run went back");
    print_lost(f, count > 1 ? json_number(o, "steps_lost") : NAN);
    if (earlier > 0) fprintf(f, "; %.0f before this start of the run", earlier);
    print_lost(f, earlier > 0 ? json_number(o, "earlier_steps_lost") : NAN);
    fprintf(f, " (history.jsonl)\n");
}

#define AWAY_PRINTED_MAX 6  // entries printed in the table

// Where steps may be closed without late ranks: prints how many each worker missed.
static void print_late(FILE *f, const cJSON *s) {
    const cJSON *late = json_item(s, "late_steps"), *missed = json_item(s, "missed_steps");
    for (int w = 0, printed = 0; w < cJSON_GetArraySize(late); w++) {
        double vain = cJSON_GetArrayItem(late, w)->valuedouble, without = vain;
        const cJSON *more = cJSON_GetArrayItem(missed, w);
        if (more) without += more->valuedouble;
        if (without > 0)
            fprintf(f, "%sworker %d in %.0f of %.0f steps (%.0f computed in vain)",
                    printed++ ? ", " : "late        ", w, without, json_number(s, "steps"), vain);
        if (printed && w + 1 == cJSON_GetArraySize(late)) fputc('\n', f);
    }
}

// Where old or late gradients are dropped: prints how many, out of all.
static void print_dropped(FILE *f, const cJSON *s) {
    const cJSON *x;
    double dropped = 0, all = 0;
    cJSON_ArrayForEach(x, json_item(s, "dropped_pushes")) dropped += x->valuedouble;
    cJSON_ArrayForEach(x, json_item(json_item(s, "staleness"), "histogram")) all += x->valuedouble;
    if (dropped > 0)
        fprintf(f, "dropped     %.0f of %.0f gradients of keys: too late, or too old\n", dropped,
                all + dropped);
}

static void print_away(FILE *f, const cJSON *s) {
    const cJSON *list = json_item(s, "away"), *o;
    int count = cJSON_GetArraySize(list), printed = 0;
    if (!count) return;
    fprintf(f, "away        ");
    cJSON_ArrayForEach(o, list) {
        double from = json_number(o, "from_step"), to = json_number(o, "to_step");
        if (printed == AWAY_PRINTED_MAX) break;
        fprintf(f, "%sworker %.0f ", printed++ ? ", " : "", json_number(o, "worker"));
        if (!cJSON_IsTrue(json_item(o, "returned")))
            fprintf(f, "from step %.0f on", from);
        else if (from == to)
            fprintf(f, "in step %.0f", from);
        else
            fprintf(f, "in steps %.0f-%.0f", from, to);
        fprintf(f, " (%s)", json_text(o, "cause", "-"));
    }
    if (count > printed) fprintf(f, " and %d more (history.jsonl)", count - printed);
    fputc('\n', f);
}

// Prints nothing for a complete run.
static void print_state(FILE *f, const cJSON *s) {
    if (summary_interrupted(s))
        fprintf(f, "state       interrupted after step %.0f of %.0f\n", json_number(s, "steps"),
                json_number(s, "steps_planned"));
    if (summary_unkept(s))
        fprintf(f, "state       unkept: all %.0f steps are done, and no checkpoint could be kept: %s\n",
                json_number(s, "steps"),
                json_text(json_item(s, "checkpoints"), "why", "there was no memory for them"));
}

static const char *s_of(double count) { return count == 1 ? "" : "s"; }

// "run         ps:sync, 2 workers, 1 server, fp32, demo (0.9M parameters)", without its end.
static void print_run(FILE *f, const cJSON *s) {
    char count[96];
    double workers = json_number(s, "workers"), servers = json_number(s, "servers"),
           round = json_number(s, "local_steps");
    fputc('\n', f);
    print_state(f, s);
    fprintf(f, "run         %s, %.0f worker%s", text(s, "topology"), workers, s_of(workers));
    if (servers > 0) fprintf(f, ", %.0f server%s", servers, s_of(servers));
    if (round > 0) fprintf(f, ", %.0f local step%s a round", round, s_of(round));
    fprintf(
        f, ", %s, %s (%s)", text(s, "dtype"), text(s, "model"),
        format_params(count, (int64_t)json_number(s, "params"), (int64_t)json_number(s, "frozen_params")));
}

// Not printed if everything is on one machine and this program started it.
static void print_placement(FILE *f, const cJSON *s) {
    const char *by = text(s, "launch");
    bool plain = !strcmp(by, "processes") || !strcmp(by, "threads");
    if (json_item(s, "placement") && !(plain && strstr(text(s, "placement"), "on 1 machine:")))
        fprintf(f, "started by  %s\n", text(s, "placement"));
}

static void print_resumed(FILE *f, const cJSON *s) {
    if (isfinite(json_number(s, "resumed_from")))
        fprintf(f, "resumed     after step %.0f; times, bytes and memory are of the steps after it\n",
                json_number(s, "resumed_from"));
    print_lives(f, s);
    print_away(f, s);
    print_late(f, s);
    print_dropped(f, s);
}

static void print_head(FILE *f, const cJSON *s) {
    char count[32];
    const cJSON *loss = json_item(s, "loss"), *step = json_item(s, "step_seconds");
    print_run(f, s);
    fputc('\n', f);
    const cJSON *kernel = json_item(s, "cpu_kernel");
    if (cJSON_IsObject(kernel))
        fprintf(f, "cpu kernel  %s (program built for %s)\n", text(kernel, "name"),
                text(kernel, "built_for"));
    const cJSON *head = json_item(s, "head");
    if (cJSON_IsObject(head) && json_number(head, "chunks") > 1)
        fprintf(f, "logits      %.0f chunks of %.0f rows a micro-batch%s\n", json_number(head, "chunks"),
                json_number(head, "chunk_rows"),
                cJSON_IsTrue(json_item(head, "apart")) ? ", added separately" : "");
    fprintf(f, "data        %s\n", text(s, "data"));
    print_placement(f, s);
    print_resumed(f, s);
    fprintf(f, "loss        %.4f -> %.4f in %.0f step%s, %.0f %sskipped\n", json_number(loss, "first"),
            json_number(loss, "last"), json_number(s, "steps"), s_of(json_number(s, "steps")),
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

// Prints ranks with at least `least` seconds.
static void print_peers(FILE *f, const char *words, const cJSON *list, double least, double per,
                        const char *unit) {
    const cJSON *o;
    bool any = false;
    cJSON_ArrayForEach(o, list) {
        double seconds = json_number(o, "seconds");
        if (!(seconds >= least)) continue;
        fprintf(f, "%s%s %.0f %.2f %s", any ? ", " : words, json_text(o, "role", "-"), json_number(o, "rank"),
                seconds * per, unit);
        any = true;
    }
    if (any) fputc('\n', f);
}

// Prints the figures of `object` that have titles, in ms of each step.
static void print_parts(FILE *f, const cJSON *o, const char *object, double steps) {
    const struct figure_rows rows = rank_figures();
    const char *separator = "";
    for (const struct figure *r = rows.rows, *parent; r < rows.rows + rows.count; r++) {
        if (!r->title || !(parent = figure_parent(rows, r)) || strcmp(parent->key, object) != 0) continue;
        fprintf(f, "%s %s %.2f", separator, r->title, json_number(o, strrchr(r->key, '.') + 1) / steps * 1e3);
        separator = ",";
    }
}

static void print_time(FILE *f, const cJSON *s) {
    const cJSON *time = json_item(s, "time");
    double steps = fmax(summary_own_steps(s), 1);
    fprintf(f, "mean step   %.2f ms:", json_number(time, "total") / steps * 1e3);
    print_parts(f, time, "time", steps);
    fputc('\n', f);
    double least = 0.01 * json_number(time, "total");
    print_peers(f, "waited for  ", json_item(time, "waited_for"), least, 1e3 / steps, "ms");
    print_peers(f, "stood still ", json_item(s, "stood_still"), fmax(least, 0.1), 1, "s");
}

static void print_servers(FILE *f, const cJSON *s) {
    const cJSON *r;
    cJSON_ArrayForEach(r, json_item(s, "server_time")) {
        fprintf(f, "  server %2.0f  ", json_number(r, "rank"));
        print_parts(f, r, "server_time", fmax(summary_own_steps(s), 1));
        if (json_number(r, "threads") > 1) fprintf(f, " (%.0f threads added)", json_number(r, "threads"));
        fputc('\n', f);
    }
}

// ---------------------------------------------------------------- predicted and measured, rank by rank
// A table of one of the summary's lists. Its columns are the predicted rows with a title of an element, or of an object
// in it, each with the measured figure that it names; columns of zeros are left out.
struct pair_table {
    const char *title;
    const cJSON *list;
    unsigned in;                  // the flags `in` of struct figure
    const struct figure *object;  // NULL: the element itself
    // Prints the last columns of an element; NULL: their titles.
    void (*print_rest)(FILE *f, const cJSON *element);
};
#define COLUMNS_MAX 16

static bool is_column(const struct pair_table *t, const struct figure *r) {
    const struct figure *parent = figure_parent(rank_figures(), r);
    const cJSON *e;
    if (!r->predicted || !r->title || r->kind == FIGURE_OBJECT || parent != t->object ||
        !((parent ? parent : r)->in & t->in))
        return false;
    cJSON_ArrayForEach(e, t->list) if (figure_number(e, r->key) > 0 ||
                                       (r->measured && figure_number(e, r->measured) > 0)) return true;
    return false;
}

static int width_of(const struct figure *r) {
    int width = (int)strlen(r->title) + (r->measured ? 7 : 0);
    return width < 12 ? 12 : width;
}

// o: the element, or a phase of it.
static void print_pairs_of(FILE *f, const cJSON *o, const struct figure *const *columns, int count) {
    char cell[FIGURE_CELL];
    for (int i = 0; i < count; i++) {
        const struct figure *r = columns[i];
        fprintf(f, " %*s", width_of(r), figure_cell(cell, r, figure_number(o, r->key)));
        if (r->measured) fprintf(f, " %12s", figure_cell(cell, r, figure_number(o, r->measured)));
    }
}

static void print_pairs(FILE *f, const struct pair_table *t) {
    const struct figure_rows rows = rank_figures();
    const struct figure *columns[COLUMNS_MAX];
    const cJSON *e, *phase;
    int count = 0;
    for (const struct figure *r = rows.rows; r < rows.rows + rows.count; r++)
        if (count < COLUMNS_MAX && is_column(t, r)) columns[count++] = r;
    if (!count) return;
    fprintf(f, "\n%-12s", t->title);
    for (int i = 0; i < count; i++) {
        const struct figure *r = columns[i];
        char title[64];
        snprintf(title, sizeof title, "%s%s", r->title, r->measured ? ": pred." : "");
        fprintf(f, " %*s", width_of(r), title);
        if (r->measured) fprintf(f, " %12s", "measured");
    }
    if (t->print_rest) t->print_rest(f, NULL);
    fputc('\n', f);
    cJSON_ArrayForEach(e, t->list) {
        if (t->object && !json_item(e, t->object->key)) continue;
        fprintf(f, "  %-7s %2.0f", text(e, "role"), json_number(e, "rank"));
        print_pairs_of(f, e, columns, count);
        if (t->print_rest) t->print_rest(f, e);
        fputc('\n', f);
        const cJSON *phases = t->object ? NULL : json_item(e, "phases");
        cJSON_ArrayForEach(phase, phases) {
            fprintf(f, "  %-10s", text(phase, "name"));
            print_pairs_of(f, phase, columns, count);
            fprintf(f, "   (%.0f steps)\n", json_number(phase, "steps"));
        }
    }
}

static void print_rest_of_memory(FILE *f, const cJSON *e) {
    char formula[24], resident[24], book[64];
    const bool equal = cJSON_Compare(json_item(e, "predicted"), json_item(e, "peak"), 1);
    snprintf(book, sizeof book, "%s %s", format_bytes(formula, json_number(e, "formula_bytes")),
             text(e, "formula"));
    fprintf(f, "   %-10s %-22s %10s",
            !e      ? ""
            : equal ? "equal"
                    : "DIFFERENT",
            e ? book : "textbook", e ? format_bytes(resident, json_number(e, "rss_bytes")) : "resident");
}

static void print_rest_of_wire(FILE *f, const cJSON *e) {
    if (e)
        fprintf(f, "   %.0f", json_number(e, "control_sent_per_step"));
    else
        fputs("   (control out)", f);
}

static void print_ranks(FILE *f, const cJSON *s) {
    const struct figure_rows rows = rank_figures();
    const cJSON *memory = json_item(s, "memory"), *wire = json_item(s, "wire");
    print_pairs(f, &(struct pair_table){"memory", memory, IN_MEMORY, NULL, print_rest_of_memory});
    print_pairs(f, &(struct pair_table){"per step", wire, IN_WIRE, NULL, print_rest_of_wire});
    for (const struct figure *r = rows.rows; r < rows.rows + rows.count; r++)
        if (r->kind == FIGURE_OBJECT && r->title && r->in & IN_WIRE)
            print_pairs(f, &(struct pair_table){r->title, wire, IN_WIRE, r, NULL});
}

static void print_devices(FILE *f, const cJSON *s) {
    const cJSON *gpu;
    cJSON_ArrayForEach(gpu, json_item(s, "devices")) {
        fprintf(f, "\n%s  %s, %s, compute capability %s, driver %s, CUDA %s\n",
                gpu == json_item(s, "devices")->child ? "GPU       " : "          ", text(gpu, "name"),
                text(gpu, "bus_id"), text(gpu, "compute_capability"), text(gpu, "driver"),
                text(gpu, "runtime"));
        fputs("  ", f);
        device_memory_print(f, json_number(gpu, "used_bytes"), json_number(gpu, "memory_bytes"),
                            json_number(gpu, "ledger_bytes"), json_number(gpu, "workspace_bytes"));
        fputs("  ", f);
        device_work_print(f, gpu);
        fputs("  ranks on it:", f);
        const cJSON *rank, *note;
        cJSON_ArrayForEach(rank, json_item(gpu, "ranks"))
            fprintf(f, " %s%s", cJSON_GetStringValue(rank), rank->next ? "," : "\n");
        cJSON_ArrayForEach(note, json_item(gpu, "notes"))
            fprintf(f, "  note: %s\n", cJSON_GetStringValue(note));
    }
}

static void print_totals(FILE *f, const struct cJSON *summary) {
    const struct figure_rows rows = rank_figures();
    const cJSON *lines[] = {NULL, json_item(summary, "totals"), json_item(summary, "busiest")};
    static const char *const names[] = {"\nwhole job   ", "  all roles ", "  busiest   "};
    if (!lines[1]) return;
    double pss = json_number(lines[1], "pss_bytes");  // NAN for a single process: its peak is printed instead
    for (int i = 0; i < 3; i++) {
        const cJSON *o = lines[i];
        char cell[FIGURE_CELL];
        fputs(names[i], f);
        for (const struct figure *r = rows.rows; r < rows.rows + rows.count; r++) {
            if (r->join != JOIN_BOTH || !r->title) continue;
            fprintf(f, " %12s", o ? figure_cell(cell, r, json_number(o, strchr(r->to, '.') + 1)) : r->title);
        }
        if (!o) {
            fprintf(f, " %12s %8s\n", "resident", "CPU s");
            continue;
        }
        double resident = !isfinite(pss) ? json_number(o, "rss_bytes") : i == 1 ? pss : NAN;
        fprintf(f, " %12s %8.2f\n", isfinite(resident) ? format_bytes(cell, resident) : "-",
                json_number(o, "cpu_seconds"));
    }
}

static void print_checkpoints(FILE *f, const cJSON *s) {
    char bytes[24], rate[24];
    const cJSON *o = json_item(s, "checkpoints");
    if (!o) return;
    double written = json_number(o, "written"), failed = json_number(o, "failed");
    fprintf(f, "checkpoints %.0f written", written);
    if (failed > 0) fprintf(f, ", %.0f given up", failed);
    if (written > 0)
        fprintf(f, ", %s each at %s/s", format_bytes(bytes, json_number(o, "bytes") / written),
                format_bytes(rate, json_number(o, "bytes_per_second")));
    const cJSON *step = json_item(o, "step_slowed_seconds");
    if (written + failed > 0)
        fprintf(f, "; a step waited %.1f ms for one, at most %.1f ms", json_number(step, "mean") * 1e3,
                json_number(step, "max") * 1e3);
    fputc('\n', f);
}

static void print_hash(FILE *f, const cJSON *s) {
    const char *hash = json_text(s, "weights_hash", NULL);
    bool own = !isnan(json_number(s, "consensus_distance")), rounds = json_number(s, "local_steps") > 0;
    const char *of = own ? " of the mean of all ranks" : rounds ? " of the anchor of all ranks" : "";
    if (hash)
        fprintf(f, "weights     hash %s%s\n", hash, of);
    else
        fputs("weights     hash -\n", f);
}

void summary_print(FILE *f, const char *dir, const struct cJSON *s) {
    print_head(f, s);
    print_time(f, s);
    print_servers(f, s);
    print_ranks(f, s);
    print_devices(f, s);
    print_totals(f, s);
    if (json_item(s, "checkpoints")) fputc('\n', f);
    print_checkpoints(f, s);
    const cJSON *staleness = json_item(s, "staleness");
    if (staleness)
        fprintf(f, "\nstaleness   mean %.2f, max %.0f update%s\n", json_number(staleness, "mean"),
                json_number(staleness, "max"), s_of(json_number(staleness, "max")));
    fputc('\n', f);
    print_hash(f, s);
    fprintf(f, "files       %s\n", dir);
    fflush(f);
}

// ---------------------------------------------------------------- the few lines at the end of a run
// With a larger spread of step times, times are marked ~ (as in experiments/comparison).
#define SPREAD_BOUND 0.25

// A predicted and a measured figure: printed as "5.44 MiB =" if they agree to the byte, else both.
struct pair {
    double predicted, measured;
    bool exact;  // true for every rank of the role
};

static void print_pair(FILE *f, const struct pair *g) {
    char a[24], b[24];
    if (g->exact)
        fprintf(f, "%s =", format_bytes(a, g->measured));
    else
        fprintf(f, "%s (predicted %s)", format_bytes(a, g->measured), format_bytes(b, g->predicted));
}

// Adds one rank: the figure printed is the largest rank's.
static void add_rank(struct pair *g, double predicted, double measured) {
    g->exact &= fabs(predicted - measured) < 0.5;
    if (measured < g->measured || (measured == g->measured && predicted == measured)) return;
    g->predicted = predicted;
    g->measured = measured;
}

// Ranks are sorted by role: returns the next entry with another role than r, or NULL.
static const cJSON *next_role(const cJSON *r) {
    const char *role = json_text(r, "role", "");
    while (r && !strcmp(json_text(r, "role", ""), role)) r = r->next;
    return r;
}

#define NO_PAIR \
    { .exact = true, .measured = -1 }

static void brief_memory(FILE *f, const cJSON *s) {
    const char *separator = "memory      ";
    for (const cJSON *r = json_item(s, "memory")->child, *next; r; r = next) {
        struct pair memory = NO_PAIR;
        const char *role = json_text(r, "role", "");
        next = next_role(r);
        for (; r != next; r = r->next) {
            const cJSON *predicted = json_item(r, "predicted"), *peak = json_item(r, "peak");
            add_rank(&memory, json_number(r, "predicted_bytes"), json_number(r, "device_bytes"));
            memory.exact &= cJSON_Compare(predicted, peak, 1);
        }
        fputs(separator, f);
        print_pair(f, &memory);
        fprintf(f, " per %s", role);
        separator = ", ";
    }
    fputs("   (=: predicted and measured agree to the byte)\n", f);
}

static void brief_wire(FILE *f, const cJSON *s) {
    const cJSON *first = json_item(s, "wire")->child;
    const char *separator = "each step   ";
    if (!strcmp(json_text(first, "formula", "0"), "0")) return;
    for (const cJSON *r = first, *next; r; r = next) {
        struct pair sent = NO_PAIR, received = NO_PAIR;
        fprintf(f, "%sa %s sends ", separator, json_text(r, "role", ""));
        next = next_role(r);
        for (; r != next; r = r->next) {
            add_rank(&sent, json_number(r, "predicted_sent"), json_number(r, "sent_per_step"));
            add_rank(&received, json_number(r, "predicted_received"), json_number(r, "received_per_step"));
        }
        print_pair(f, &sent);
        fputs(" and receives ", f);
        print_pair(f, &received);
        separator = ", ";
    }
    fputc('\n', f);
}

static void brief_speed(FILE *f, const cJSON *s) {
    char count[32];
    const cJSON *step = json_item(s, "step_seconds"), *staleness = json_item(s, "staleness");
    double median = json_number(step, "median"), spread = json_number(step, "spread"),
           most = json_number(staleness, "max");
    format_count(count, (int64_t)json_number(s, "tokens_per_second"));
    bool sure = !(spread > SPREAD_BOUND);
    fprintf(f, "speed       %s%s tokens/s; step %.1f ms median", count, sure ? "" : " ~", median * 1e3);
    if (!sure)
        fprintf(f, ", spread over %.0f%% of it: experiments/compare.py compares such runs in turns",
                100 * spread);
    if (most > 0)  // not printed for a synchronous star, which has no staleness
        fprintf(f, "; staleness mean %.2f, max %.0f update%s", json_number(staleness, "mean"), most,
                s_of(most));
    fputc('\n', f);
}

void summary_print_brief(FILE *f, const char *dir, const struct cJSON *s) {
    const cJSON *loss = json_item(s, "loss");
    double steps = json_number(s, "steps"), skipped = json_number(s, "skipped");
    print_run(f, s);
    fprintf(f, ", %s\n", text(s, "data"));
    print_placement(f, s);
    print_resumed(f, s);
    fprintf(f, "loss        %.4f -> %.4f in %.0f step%s", json_number(loss, "first"),
            json_number(loss, "last"), steps, s_of(steps));
    if (skipped > 0)
        fprintf(f, ", %.0f %s skipped", skipped, json_item(s, "batches") ? "batches" : "of them");
    if (isfinite(json_number(s, "val_loss")))
        fprintf(f, "; held out %.4f (unigram entropy of the text: %.4f nats)", json_number(s, "val_loss"),
                json_number(s, "unigram_entropy"));
    fputc('\n', f);
    brief_memory(f, s);
    brief_wire(f, s);
    brief_speed(f, s);
    print_checkpoints(f, s);
    print_hash(f, s);
    char program[PROGRAM_WORD], *word = shell_word(dir);
    fprintf(f, "files       %s   (every figure: %s summary %s)\n", dir, program_word(program), word);
    free(word);
    fflush(f);
}
