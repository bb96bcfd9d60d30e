// The list of all figures, document by document, from which `make docs` writes docs/files.md.
#include <stdlib.h>
#include <string.h>

#include "shared/core/error.h"
#include "shared/report/evals.h"
#include "shared/report/figures.h"
#include "shared/report/metrics.h"

#define DRY_RUN "train --dry-run --json"  // its name among the documents

// ---------------------------------------------------------------- the dry run, apart from the figures above
static const struct figure of_dry_runs[] = {
    {"textbook", NULL, "a row per topology and role, for the same model, workers and servers",
     .type = "list"},
    {"textbook[].topology", NULL, NULL, .type = "string"},
    {"textbook[].formula", NULL, "the formula of `formula_bytes`", .type = "string"},
    {"here", NULL, "whether the run's ranks on this machine fit its memory", .type = "object"},
    {"here.limits", NULL, "an element per limit of memory that is known", .type = "list"},
    {"here.limits[].limit", NULL, "its name", .type = "string"},
    {"here.limits[].predicted_bytes", "bytes", "what the ledger will count, of all ranks here",
     .type = "integer"},
    {"here.limits[].allowed_bytes", "bytes", "upper bound of what the ledger does not count",
     .type = "number"},
    {"here.limits[].available_bytes", "bytes", "what is left", .type = "number"},
    {"here.limits[].fits", NULL, NULL, .type = "boolean"},
    {"here.fits", NULL, "all of them", .type = "boolean"},
    {"here.missing", NULL, "why the run would not start here; null: it would", .type = "string or null"},
};

// ---------------------------------------------------------------- all of them
struct row_list {
    struct figure *rows;
    size_t count;
};

// rest: f's key, or the end of it, to put after prefix.
static struct figure *add_row(struct row_list *t, const struct figure *f, const char *prefix,
                              const char *rest) {
    t->rows = xrealloc(t->rows, (t->count + 1) * sizeof *t->rows);
    t->rows[t->count] = *f;
    t->rows[t->count].key = xasprintf("%s%s", prefix, rest);
    return &t->rows[t->count++];
}

// Adds the rows that list `in` includes, with all their members; removes the first `cut` characters of their keys.
static void add_taken(struct row_list *t, struct figure_rows rows, unsigned in, const char *prefix,
                      size_t cut) {
    for (const struct figure *f = rows.rows, *o; f < rows.rows + rows.count; f++) {
        size_t top = strcspn(f->key, ".[");
        for (o = rows.rows; strncmp(o->key, f->key, top) != 0 || o->key[top]; o++) continue;
        if (o->in & in) add_row(t, f, prefix, f->key + cut);
    }
}

static bool has_row(struct figure_rows rows, const char *key) {
    for (size_t i = 0; i < rows.count; i++)
        if (!strcmp(rows.rows[i].key, key)) return true;
    return false;
}

// Returns the rows of a document: its own, and after each of them those that it copies or joins from ranks' reports.
static struct row_list rows_of(struct figure_rows own) {
    static const struct {
        const char *after, *prefix;
        unsigned in;
        size_t cut;
    } lists[] = {{"memory", "memory[].", IN_MEMORY, 0},
                 {"wire", "wire[].", IN_WIRE, 0},
                 {"textbook", "textbook[].", IN_TEXTBOOK, 0},
                 {"server_time", "server_time[]", IN_SERVER_TIME, sizeof "server_time" - 1}};
    struct row_list t = {0};
    const struct figure_rows ranks = rank_figures();
    for (size_t i = 0; i < own.count; i++) {
        const char *key = own.rows[i].key;
        add_row(&t, &own.rows[i], "", key);
        if (!strcmp(key, "skipped")) add_taken(&t, run_figures(), IN_TOP, "", 0);
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++)
            if (!strcmp(key, lists[k].after))
                add_taken(&t, ranks, lists[k].in, lists[k].prefix, lists[k].cut);
        for (const struct figure *f = ranks.rows; f < ranks.rows + ranks.count; f++) {
            const char *to = f->to ? f->to : f->join ? f->key : "";
            bool member = !strncmp(to, key, strlen(key)) && to[strlen(key)] == '.' &&
                          !strchr(to + strlen(key) + 1, '.');
            // Joined figures at the top follow the time in which they were counted.
            bool top = !strcmp(key, "seconds") && *to && !strchr(to, '.') && !has_row(own, to);
            if (!member && !top) continue;
            struct figure *row = add_row(&t, f, "", to);
            row->predicted = false;
            if (f->join == JOIN_EACH) row->type = "list";
        }
    }
    return t;
}

static void describe_rows(cJSON *list, struct figure_rows own, const char *file, bool predicted) {
    struct row_list t = rows_of(own);
    figures_describe(list, &(struct figure_document){file, "", {t.rows, t.count}, .predicted = predicted});
    for (size_t i = 0; i < t.count; i++) free((char *)t.rows[i].key);
    free(t.rows);
}

cJSON *figures_of_summary(void) {
    cJSON *list = cJSON_CreateArray();
    describe_rows(list, summary_figures(), "summary.json", false);
    return list;
}

cJSON *figures_document(void) {
    cJSON *list = figures_of_summary();
    const struct figure_document documents[] = {
        {"ranks/worker-*.json", "", rank_figures(), .kind = NOT_OF_WORKERS},
        {"ranks/worker-*.json", "run.", run_figures(), .when = "worker 0"},
        {"ranks/server-*.json", "", rank_figures(), .kind = NOT_OF_SERVERS},
        {"metrics.jsonl", "", step_figures(), .kind = 0},
        {"evals.jsonl", "", eval_figures(), .kind = 0},
    };
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) figures_describe(list, &documents[i]);
    describe_rows(list, summary_figures(), DRY_RUN, true);
    describe_rows(list, FIGURE_ROWS(of_dry_runs), DRY_RUN, false);
    return list;
}
