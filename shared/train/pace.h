// Records a rank's last steps, for ranks that share a budget of batches and do not wait for each other. Measures the
// tail of the run, in which some ranks have no work left.
#ifndef STARRING_SHARED_TRAIN_PACE_H
#define STARRING_SHARED_TRAIN_PACE_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/report/rank_report.h"
#include "shared/time/timeline.h"

// Number of last steps whose end times are kept. When the budget is used up, other ranks need one or two more steps.
#define PACE_STEPS 16

struct pace {
    int64_t samples;               // samples of the job at the end of the last step
    int64_t skipped;               // steps of this rank that applied no update
    int64_t ended_ns[PACE_STEPS];  // end times of this rank's last steps
};

void pace_step(struct pace *p, int64_t step, int64_t samples, int64_t now_ns, bool skipped);

struct pace_end {
    struct topology *topology;
    struct timeline *timeline;
    int64_t end_ns;      // end of this rank's last step
    int64_t no_work_ns;  // when this rank learned that no step is left; elastic: end_ns (delayed answer)
};
// Collective, after the last step. The tail begins when the first rank learns that no work is left. It ends
// with the last step of all ranks. Returns 0 or -1.
int pace_report(const struct pace *p, const struct pace_end *at, struct rank_report *out);

#endif
