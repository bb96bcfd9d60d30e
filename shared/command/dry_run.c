// --dry-run: prints the forecast of a run (shared/predict/forecast.h), as a table or as JSON.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/command/commands.h"
#include "shared/core/arena.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/model/recompute.h"
#include "shared/model/step_tasks.h"
#include "shared/predict/forecast.h"
#include "shared/predict/memory_check.h"
#include "shared/report/figures.h"
#include "shared/train/frozen.h"

static void put_ranks(cJSON *doc, const struct config *c, const struct forecast_ranks *ranks) {
    const int first = ranks->report.rank, last = first + ranks->count - 1;
    cJSON *report = cJSON_CreateObject();
    rank_figures_put_predicted(report, &ranks->report);
    rank_figures_list(doc, c, report);
    // cJSON: the first element's `prev` is the last element.
    cJSON *newest = cJSON_GetObjectItem(doc, "memory")->child->prev;
    if (last > first) cJSON_AddNumberToObject(newest, "last", last);
    cJSON_Delete(report);
}

// Adds a row of the textbook: the formula's result for another topology with the same P, N and dtype.
static int put_textbook(cJSON *doc, const struct job *j, const struct topology_row *row, int variant,
                        const char *role) {
    struct config c = *j->config;  // the original owns the strings
    struct prediction p = {0};
    struct rank_report report;
    struct topology_variant v;
    c.row = row;
    c.variant = variant;
    c.offload_optimizer = c.offload_param = (struct offload_config){0};  // not every stage supports offload
    row->variant(variant, &v);
    if (row->predict(&c, j->layout, role, 0, &p)) return -1;
    if (!strcmp(role, "worker")) p.memory.formula_bytes += frozen_formula(&c, j->layout);
    forecast_report(&c, role, 0, &p, &report);
    cJSON *line = cJSON_CreateObject(), *all = cJSON_CreateObject();
    cJSON_AddStringToObject(line, "topology", v.name);
    rank_figures_put_predicted(all, &report);
    figures_take(line, rank_figures(), IN_TEXTBOOK, all);
    cJSON_AddStringToObject(line, "formula", topology_formula_of(&c, role, j->layout->frozen > 0).memory);
    cJSON_AddItemToArray(cJSON_GetObjectItem(doc, "textbook"), line);
    cJSON_Delete(all);
    return 0;
}

// ---------------------------------------------------------------- the step
struct step {
    int rank;  // a worker's rank
    struct step_tasks tasks;
};

// The flops of one micro-batch of the model's unit u. In training the head computes in its backward pass only. frozen: only
// what is frozen of it, whose flops count here if nothing of it is trained.
static void put_unit(cJSON *list, const struct job *j, int u, bool frozen) {
    const struct config *c = j->config;
    const struct layout *model = layout_of_model(j->layout);
    const int trained = frozen ? -1 : layout_trained(j->layout, u);
    const struct unit *unit = frozen ? &model->units[u] : &j->layout->units[trained];
    const bool head = u == model->count - 1, computes = !frozen || layout_trained(j->layout, u) < 0;
    double tokens = computes ? (double)(c->micro_batch * c->seq) : 0, seq = (double)c->seq, elements = 0;
    struct unit_flops once = model_unit_flops(&j->spec, u, seq),
                      again = recompute_unit_flops(&c->recompute, &j->spec, u, seq);
    double forward = tokens * (once.products + once.attention);
    double backward = tokens * (once.gradients + 2 * once.attention);
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < unit->count && !frozen; i++) elements += (double)unit->tensors[i].numel;
    cJSON_AddStringToObject(o, "name", unit->name);
    json_put(o, "elements", elements);
    json_put(o, "padded", frozen ? 0 : (double)unit->n_pad);
    json_put(o, "forward_flops", head ? 0 : forward);
    json_put(o, "backward_flops",
             (head ? forward : 0) + backward + tokens * (again.products + again.attention));
    cJSON_AddItemToArray(list, o);
}

// Returns the worker that moves the most bytes.
static int busiest_worker(const struct forecast *f) {
    const struct forecast_ranks *most = NULL;
    for (const struct forecast_ranks *r = f->ranks; r < f->ranks + f->count; r++) {
        double bytes = rank_predicted_sent(&r->report) + rank_predicted_received(&r->report);
        bool worker = !strcmp(r->report.role, "worker");
        if (worker &&
            (!most || bytes > rank_predicted_sent(&most->report) + rank_predicted_received(&most->report)))
            most = r;
    }
    return most ? most->report.rank : 0;
}

// Gets the tasks of the busiest worker; none if there are too many to list.
static int step_of(const struct job *j, const struct forecast *f, struct step *out) {
    const struct config *c = j->config;
    out->rank = busiest_worker(f);
    out->tasks = (struct step_tasks){
        .micro_batches = c->accumulation, .every = c->local_steps.steps, .expanded = true};
    if (c->accumulation > STEP_TASKS_LISTED / (4 * layout_of_model(j->layout)->count)) return 0;
    return c->row->step_tasks(c, j->layout, out->rank, &out->tasks);
}

// Prints it as JSON, an element of a list per line.
static int print_step(FILE *f, const struct job *j, const struct step *step) {
    const struct config *c = j->config;
    fprintf(f, "{\n\t\t\"micro_batches\": %lld,\n\t\t\"every\": %lld,\n\t\t\"units\": [",
            (long long)c->accumulation, (long long)(c->local_steps.steps ? c->local_steps.steps : 1));
    // Trained units, then what is frozen of each (step_tasks_frozen).
    const int all = layout_of_model(j->layout)->count;
    const char *comma = "";
    for (int frozen = 0; frozen < 1 + (j->layout->model != NULL); frozen++)
        for (int u = 0; u < all; u++) {
            if (!frozen && layout_trained(j->layout, u) < 0) continue;
            cJSON *one = cJSON_CreateArray();
            put_unit(one, j, u, frozen);
            char *text = cJSON_PrintUnformatted(one->child);
            fprintf(f, "%s\n\t\t\t%s", comma, text);
            comma = ",";
            free(text);
            cJSON_Delete(one);
        }
    fputs("],", f);
    if (c->row->step_facts && c->row->step_facts(c, j->layout, f)) return -1;
    fprintf(f, "\n\t\t\"workers\": {\"rank\": %d, \"tasks\": %s", step->rank,
            step->tasks.count ? "" : "null");
    if (step->tasks.count) step_tasks_print(&step->tasks, f);
    fputs("}\n\t}", f);
    return 0;
}

// ---------------------------------------------------------------- the document
// step: NULL: the document needs none.
static int build(cJSON *doc, const struct job *j, struct step *step) {
    const struct config *c = j->config;
    struct forecast f;
    if (forecast_of(j, &f)) return -1;
    figures_put_predicted(doc, summary_figures(), c);
    figures_put_predicted(
        doc, run_figures(),
        &(struct run_facts){.params = j->layout->params, .frozen_params = j->layout->frozen});
    for (int i = 0; i < f.count; i++) put_ranks(doc, c, &f.ranks[i]);
    int rc = step ? step_of(j, &f, step) : 0;
    forecast_free(&f);
    if (rc) return -1;
    // "textbook": every variant that has its own formula; the last topology of the table comes first.
    cJSON_AddArrayToObject(doc, "textbook");
    const struct topology_table *t = c->topologies;
    int rows = 0;
    while (t->row[rows]) rows++;
    while (rows-- > 0)
        for (int v = 0; v < t->row[rows]->textbook; v++)
            for (const struct topology_role *role = t->row[rows]->roles; role->name; role++)
                if (put_textbook(doc, j, t->row[rows], v, role->name)) return -1;
    return 0;
}

// ---------------------------------------------------------------- as a table
static const char *word(const cJSON *o, const char *key) { return json_text(o, key, ""); }

// Prints a line for each row with a title that the lists `in` have and whose value is not 0, and after the memory of
// the device its classes.
static void print_figures(FILE *f, const cJSON *element, unsigned in) {
    const struct figure_rows rows = rank_figures();
    for (const struct figure *r = rows.rows, *parent; r < rows.rows + rows.count; r++) {
        char cell[FIGURE_CELL], title[40];
        double x = figure_number(element, r->key);
        parent = figure_parent(rows, r);
        if (!r->predicted || !r->title || !((parent ? parent : r)->in & in) || !(x > 0)) continue;
        snprintf(title, sizeof title, "%s%s%s", parent ? parent->title : "", parent ? ": " : "", r->title);
        fprintf(f, "  %-18s %10s", title, figure_cell(cell, r, x));
        const char *formula = !strcmp(r->key, "predicted_sent") ? word(element, "formula") : NULL;
        if (r->note) fprintf(f, " %s", r->note);
        if (formula) fprintf(f, " (%s)", formula);
        if (!strcmp(r->key, "predicted_bytes")) {
            const cJSON *class;
            fprintf(f, "   textbook %s = %s, without activations\n", word(element, "formula"),
                    format_bytes(cell, json_number(element, "formula_bytes")));
            cJSON_ArrayForEach(
                class,
                json_item(element, "predicted")) if (class->valuedouble > 0 &&
                                                     strcmp(class->string, mem_class_name(MEM_HOST)) != 0 &&
                                                     strcmp(class->string, mem_class_name(MEM_OFFLOAD)) != 0)
                fprintf(f, "    %-16s %10s   %.0f bytes\n", class->string,
                        format_bytes(cell, class->valuedouble), class->valuedouble);
            continue;
        }
        fputc('\n', f);
    }
}

// Ranks that differ only in their number share a block: "worker 0-63, each".
static void print_ranks(FILE *f, const cJSON *doc) {
    const cJSON *m = json_item(doc, "memory")->child, *w = json_item(doc, "wire")->child;
    for (; m; m = m->next, w = w->next) {
        fprintf(f, "\n%s %.0f", word(m, "role"), json_number(m, "rank"));
        if (json_item(m, "last")) fprintf(f, "-%.0f, each", json_number(m, "last"));
        fputc('\n', f);
        print_figures(f, m, IN_MEMORY);
        print_figures(f, w, IN_WIRE);
    }
}

static void print(FILE *f, const cJSON *doc, const struct config *c) {
    char a[96], b[24];
    fprintf(f, "%s: %s, %s, %s, %.0f worker%s", word(doc, "model"),
            format_params(a, (int64_t)json_number(doc, "params"), (int64_t)json_number(doc, "frozen_params")),
            word(doc, "dtype"), word(doc, "topology"), json_number(doc, "workers"),
            json_number(doc, "workers") > 1 ? "s" : "");
    if (json_number(doc, "servers") > 0)
        fprintf(f, ", %.0f server%s", json_number(doc, "servers"),
                json_number(doc, "servers") > 1 ? "s" : "");
    fprintf(f, ", micro-batch %.0f x %s%.0f tokens; a dry run\n", json_number(doc, "micro_batch_size"),
            c->documents == DOCUMENTS_WHOLE ? "up to " : "", json_number(doc, "seq_len"));
    print_ranks(f, doc);
    fputs("\nAll ranks on this machine:\n", f);
    memory_check_print(f, doc);
    if (config_device(c)->gpu)
        fprintf(
            f,
            "\n"
            "Each rank also takes GPU memory that cannot be predicted: scratch of cuBLASLt, cuDNN and\n"
            "kernels (8 MiB per stream, 32 MiB more for products, and what attention asks for), CUDA's context, NCCL.\n"
            "The GPU line of a run says how much it was.\n");
    fprintf(f, "\nThe textbook, per rank, for these P, N and dtype (%s; no activations):\n",
            c->optimizer.row->textbook);
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(doc, "textbook"))
        fprintf(f, "  %-8s %-7s %-11s %10s   sent %10s per step\n", word(row, "topology"), word(row, "role"),
                word(row, "formula"), format_bytes(a, json_number(row, "formula_bytes")),
                format_bytes(b, json_number(row, "predicted_sent")));
}

// ---------------------------------------------------------------- as JSON
// Prints one entry per rank. A row may cover several ranks: ranks[i] gives the ranks of rows[i].
static void print_each(FILE *f, const cJSON *rows, const cJSON *ranks) {
    const char *comma = "";
    const cJSON *row = rows->child, *of = ranks->child;
    for (; row; row = row->next, of = of->next) {
        int first = (int)json_number(of, "rank"),
            last = json_item(of, "last") ? (int)json_number(of, "last") : first;
        cJSON *rest = cJSON_Duplicate(row, 1);
        cJSON_DeleteItemFromObject(rest, "rank");
        cJSON_DeleteItemFromObject(rest, "last");
        char *text = cJSON_PrintUnformatted(rest);
        for (int rank = first; rank <= last; rank++, comma = ",")
            fprintf(f, "%s\n\t\t{\"rank\":%d,%s", comma, rank, text + 1);
        free(text);
        cJSON_Delete(rest);
    }
    fputs("]", f);
}

// The table has one row for equal ranks; the JSON has one entry per rank. Entries are created while printing, because
// a job may have 65,536.
static int print_json(FILE *f, cJSON *doc, const struct job *j, const struct step *step) {
    static const char *const names[] = {"memory", "wire"};
    cJSON *rows[2];
    for (int i = 0; i < 2; i++) {
        rows[i] = cJSON_DetachItemFromObject(doc, names[i]);
        cJSON_AddArrayToObject(doc, names[i]);
    }
    char *text = cJSON_Print(doc), *at = text;
    for (int i = 0; i < 2; i++) {
        char *mark = xasprintf("\"%s\":\t[", names[i]), *found = strstr(at, mark);
        char *after = found + strlen(mark);
        fwrite(at, 1, (size_t)(after - at), f);
        print_each(f, rows[i], rows[0]);
        at = after + 1;
        free(mark);
    }
    fprintf(f, "%.*s,\n\t\"step\": ", (int)strlen(at) - 2, at);  // without the document's last line
    int rc = print_step(f, j, step);
    fputs("\n}\n", f);
    free(text);
    cJSON_Delete(rows[0]);
    cJSON_Delete(rows[1]);
    return rc;
}

int dry_run(const struct job *j, const struct memory_ranks *part, FILE *f, bool as_json) {
    cJSON *doc = cJSON_CreateObject();
    struct step step = {0};
    int rc = build(doc, j, as_json ? &step : NULL);
    if (!rc) rc = memory_check_put(doc, j, part);
    if (!rc && as_json)
        rc = print_json(f, doc, j, &step);
    else if (!rc)
        print(f, doc, j->config);
    step_tasks_free(&step.tasks);
    cJSON_Delete(doc);
    return rc;
}
