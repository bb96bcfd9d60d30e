// The summary of a run: each rank writes DIR/ranks/ROLE-RANK.json. Then one process (the launcher, or rank 0) merges
// these, config.json and metrics.jsonl into DIR/summary.json (docs/files.md).
//
// Units: bytes, seconds, nats per token; "units" and "formulas" in the document explain them.
#ifndef STARRING_SHARED_REPORT_SUMMARY_H
#define STARRING_SHARED_REPORT_SUMMARY_H

#include <stdio.h>

#include "shared/config/config.h"
#include "shared/model/model.h"
#include "shared/report/rank_report.h"

struct cJSON;

// Writes DIR/ranks/ROLE-RANK.json atomically. facts: worker 0, else NULL. Returns 0, or -1 after logging.
int summary_write_rank(const char *dir, const struct rank_report *r, const struct run_facts *facts);

// Returns the reports of all ranks that belong to one job (the caller deletes them); adds the names of the others to
// missing.
struct cJSON *summary_reports(const struct config *c, const char *dir, struct cJSON *missing);
// Reads the ranks' files and returns the document (the caller deletes it with cJSON_Delete), or NULL after logging.
// Ranks whose files are missing, or belong to another job than the first, are listed under "missing_reports".
struct cJSON *summary_build(const struct topology_table *t, const char *dir);
// Warns of missing reports, if there are any.
void summary_warn_missing(const struct cJSON *summary, const char *dir);
// As summary_build, then writes the document to DIR/summary.json.
struct cJSON *summary_merge(const struct topology_table *t, const char *dir);
// Returns whether the document is of a run that ended before its last step.
bool summary_interrupted(const struct cJSON *summary);
// State of a complete run whose checkpoints were all given up: no run can resume from it.
#define STATE_UNKEPT "unkept"
bool summary_unkept(const struct cJSON *summary);

// ---- shared by the files of the summary
// Returns the number of steps in the ranks' reports: those after the checkpoint that the run resumed from.
double summary_own_steps(const struct cJSON *summary);
struct metrics_totals;
// Returns tokens per second over all steps except the first (which warms up caches and libraries); NAN: unknown.
double summary_rate(const struct metrics_totals *m, double tokens_per_step);

// Prints the table.
void summary_print(FILE *f, const char *dir, const struct cJSON *summary);
// Prints the few lines at the end of a run.
void summary_print_brief(FILE *f, const char *dir, const struct cJSON *summary);

#endif
