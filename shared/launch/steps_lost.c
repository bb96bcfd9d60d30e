#include "shared/launch/steps_lost.h"

#include "shared/core/error.h"
#include "shared/state/checkpoint.h"

void steps_lost_say(const char *dir, int64_t done) {
    long long kept = checkpoint_latest_step(dir), step = done;
    if (step < 1 || kept >= step) return;
    if (kept < 0)
        warn("%s has no checkpoint: the %lld steps that were done are lost", dir, step);
    else
        warn("the newest checkpoint of %s is step-%lld: the %lld steps after it are lost", dir, kept,
             step - kept);
}
