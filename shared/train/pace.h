// Ranks that share a budget of batches go each at its own pace: where the run is, as the samples say, and its tail, in which
// some have run out of work.
#ifndef STARRING_SHARED_TRAIN_PACE_H
#define STARRING_SHARED_TRAIN_PACE_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/report/rank_report.h"
#include "shared/time/timeline.h"

// Of a rank's last steps, whose ends are known when the budget is used: others have a step or two to do then.
#define PACE_STEPS 16

struct pace {
    int64_t samples;               // of the job when the last step ended
    int64_t skipped;               // steps of this rank that updated nothing
    int64_t ended_ns[PACE_STEPS];  // when this rank's last steps ended
};

void pace_step(struct pace *p, int64_t step, int64_t samples, int64_t now_ns, bool skipped);

struct pace_end {
    struct topology *topology;
    struct timeline *timeline;
    int64_t end_ns;  // of this rank's last step
    int64_t
        told_ns;  // when it knew that there was no other; elastic: end_ns, for the answer is held back there
};
// Collective, behind the last step: the tail begins when the first rank knows that no work is left, and ends with the last step of
// all. 0 or -1.
int pace_tell(const struct pace *p, const struct pace_end *at, struct rank_report *out);

#endif
