// The functions that the parts of the summary share.
#ifndef STARRING_SHARED_REPORT_SUMMARY_IMPL_H
#define STARRING_SHARED_REPORT_SUMMARY_IMPL_H

#include "shared/core/json.h"
#include "shared/report/summary.h"

// Steps that the ranks' reports tell of: those before the checkpoint that they went on from are none of them.
double summary_own_steps(const cJSON *summary);
struct metrics_totals;
// Tokens per second of all steps but the first (which warms caches and libraries up); NAN: nothing to tell.
double summary_rate(const struct metrics_totals *m, double tokens_per_step);

#endif
