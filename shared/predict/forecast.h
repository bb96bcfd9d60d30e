// The forecast of a run: the memory and bytes of each rank, and of all of them, before anything is allocated. --dry-run
// prints one forecast; plan (shared/predict/plan_search.h) compares many.
//
// The figures of a rank are the predicted rows of its report (shared/report/figures.h), so a forecast and the summary
// of the run have them under the same keys.
#ifndef STARRING_SHARED_PREDICT_FORECAST_H
#define STARRING_SHARED_PREDICT_FORECAST_H

#include "shared/predict/memory_need.h"
#include "shared/report/rank_report.h"

// The predicted report of `count` ranks of a role, from report.rank on, which need the same.
struct forecast_ranks {
    int count;
    struct rank_report report;
};

// Sums over the ranks.
struct forecast_sums {
    double device_bytes;             // of a worker: the ledger; on a GPU plus the allowance of memory_need.h
    double host_bytes;               // of all roles together, including their allowances
    double disk_bytes;               // of all workers
    double server_bytes;             // of the largest server's ledger; 0: no servers
    double wire_bytes;               // per step: the busiest rank's larger direction
    struct offload_traffic offload;  // of a worker's step
    int64_t tokens;                  // per step, of all workers
    // One worker's step: FLOP of the model, FLOP and bytes of recomputation, bytes of the masters and optimizer states
    // that are updated. They are used only to order plans.
    double flop, recomputed_flop, recomputed_bytes, updated_bytes;
};

struct forecast {
    struct forecast_ranks *ranks;  // of all roles, workers first; owned
    int count;
    struct forecast_sums sums;
};

// Returns 0, or -1 after logging: then nothing is owned.
int forecast_of(const struct job *j, struct forecast *out);
void forecast_free(struct forecast *f);

// *out receives the predicted report of one rank of the run that c describes: means over the run's steps.
void forecast_report(const struct config *c, const char *role, int rank, const struct prediction *p,
                     struct rank_report *out);

#endif
