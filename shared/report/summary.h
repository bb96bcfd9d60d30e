// The summary of a run: each rank writes DIR/ranks/ROLE-RANK.json; when all have, one of them (the
// launcher, or rank 0) merges these, config.json and metrics.jsonl into DIR/summary.json (docs/files.md).
//
// Units: bytes, seconds, nats per token; "units" and "formulas" in the document say so in words.
#ifndef STARRING_SHARED_REPORT_SUMMARY_H
#define STARRING_SHARED_REPORT_SUMMARY_H

#include <stdio.h>

#include "shared/config/config.h"
#include "shared/model/model.h"
#include "shared/report/rank_report.h"

struct cJSON;

// DIR/ranks/ROLE-RANK.json, whole or not at all. facts: worker 0, else NULL. 0, or -1 after logging.
int summary_write_rank(const char *dir, const struct rank_report *r, const struct run_facts *facts);

// The reports of all ranks that left one, of one job (the caller deletes them); the names of the others are added to missing.
struct cJSON *summary_reports(const struct config *c, const char *dir, struct cJSON *missing);
// Reads what the ranks left and returns the document (the caller deletes it with cJSON_Delete), or NULL after
// logging. Ranks whose files are not there, or are of another job than the first's, are named under
// "missing_reports".
struct cJSON *summary_build(const struct topology_table *t, const char *dir);
void summary_warn_missing(const struct cJSON *summary, const char *dir);  // of those, if there are any
// The same, and writes it to DIR/summary.json.
struct cJSON *summary_merge(const struct topology_table *t, const char *dir);
// Whether the document tells of a run that ended before its last step.
bool summary_interrupted(const struct cJSON *summary);
// Of one that is complete, and whose checkpoints were all given up: nothing can be gone on from.
#define STATE_UNKEPT "unkept"
bool summary_unkept(const struct cJSON *summary);

// ---- shared by the files of the summary
// Steps that the ranks' reports tell of: those before the checkpoint that they went on from are none of them.
double summary_own_steps(const struct cJSON *summary);
struct metrics_totals;
// Tokens per second of all steps but the first (which warms caches and libraries up); NAN: nothing to tell.
double summary_rate(const struct metrics_totals *m, double tokens_per_step);

// The table for people.
void summary_print(FILE *f, const char *dir, const struct cJSON *summary);
// The few lines with which a run ends.
void summary_print_brief(FILE *f, const char *dir, const struct cJSON *summary);

#endif
