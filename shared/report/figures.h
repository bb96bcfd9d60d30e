// The rows of all figures of a run's files: their meaning, their offset, and how ranks' figures are combined for the
// run.
#ifndef STARRING_SHARED_REPORT_FIGURES_H
#define STARRING_SHARED_REPORT_FIGURES_H

#include "shared/report/figure.h"
#include "shared/report/rank_report.h"

// Lists of summary.json that copy members of a rank's report: "memory[]", "wire[]", "server_time[]", and worker 0's
// "run", which goes to the top level; and the dry run's list "textbook[]".
enum { IN_MEMORY = 1, IN_WIRE = 2, IN_TOP = 4, IN_SERVER_TIME = 8, IN_TEXTBOOK = 16 };
// Documents that do not have a row.
enum { NOT_OF_WORKERS = 1, NOT_OF_SERVERS = 2 };

struct figure_rows rank_figures(void);  // Returns the figures of a rank's report.
void rank_figures_put(cJSON *o, const struct rank_report *r);
// Puts only what is known before the run: r has its role, rank, prediction and steps.
void rank_figures_put_predicted(cJSON *o, const struct rank_report *r);
// Adds a rank's elements to the lists memory, wire and server_time of doc, from its report, with the topology's formulas.
void rank_figures_list(cJSON *doc, const struct config *c, const cJSON *report);

struct figure_rows run_figures(void);  // Returns the figures of struct run_facts: "run" in worker 0's report.
struct figure_rows step_figures(void);  // Returns the figures of struct step_record: a line of metrics.jsonl.
struct figure_rows eval_figures(void);  // Returns the figures of struct eval_record: a line of evals.jsonl.
struct figure_rows summary_figures(
    void);  // Returns the figures of struct config, and the rest of summary.json, which other code writes.

// All rows of the files as one document: the list that figures_describe writes, file by file. The caller deletes it.
cJSON *figures_document(void);
cJSON *figures_of_summary(void);  // Returns only those of summary.json.

// The row's formula. frozen: LoRA freezes weights, which workers have besides.
struct topology_formula topology_formula_of(const struct config *c, const char *role, bool frozen);

#endif
