// The rows of all figures of a run's files: what each is, where it lies, how those of ranks become one of the run.
#ifndef STARRING_SHARED_REPORT_FIGURES_H
#define STARRING_SHARED_REPORT_FIGURES_H

#include "shared/report/figure.h"
#include "shared/report/rank_report.h"

// Lists of summary.json that take members of a rank's report over: "memory[]", "wire[]", "server_time[]", and
// the top of worker 0's "run".
enum { IN_MEMORY = 1, IN_WIRE = 2, IN_TOP = 4, IN_SERVER_TIME = 8 };
// The roles whose reports lack a row.
enum { NOT_OF_WORKERS = 1, NOT_OF_SERVERS = 2 };

struct figure_rows rank_figures(void);  // of a rank's report
void rank_figures_put(cJSON *o, const struct rank_report *r);
struct figure_rows run_figures(void);   // of struct run_facts: "run" in worker 0's report
struct figure_rows step_figures(void);  // of struct step_record: a line of metrics.jsonl
struct figure_rows eval_figures(void);  // of struct eval_record: a line of evals.jsonl
// Of struct config, and what else summary.json has besides: put there by other code, or joined from the ranks' reports.
struct figure_rows summary_figures(void);

// All of them as one document (the caller deletes it): a list of what figures_tell tells, file by file.
cJSON *figures_document(void);
cJSON *figures_of_summary(void);  // summary.json's of them

#endif
