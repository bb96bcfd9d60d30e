// The end of a run, when all updates have been applied: its weights are hashed, evaluated and written.
#ifndef STARRING_SHARED_TRAIN_TRAIN_WEIGHTS_H
#define STARRING_SHARED_TRAIN_TRAIN_WEIGHTS_H

#include "shared/evaluation/snapshots.h"
#include "shared/train/train.h"

// Every rank calls it. now: what a snapshot of them says. 0, or -1 after logging.
int train_weights(const struct train_options *o, const struct snapshot_info *now, struct train_result *r);

#endif
