// The end of a run whose gradients are not finite although the loss scale is at its minimum: whose, and of which tensor.
#ifndef STARRING_SHARED_TRAIN_OVERFLOW_H
#define STARRING_SHARED_TRAIN_OVERFLOW_H

#include "shared/core/topology.h"
#include "shared/model/model.h"
#include "shared/model/scaler.h"

// Behind a watched step (shared/model/grad_watch.h) that was skipped with the scale at its end (scaler_at_end). Where all
// ranks end at the same step they tell each other what they have counted, and all say the same; where each goes at
// its own pace (elastic stars, ps:async) a rank speaks for itself. Logs; returns -1.
int overflow_end(struct topology *t, struct model *m, const struct scaler *s, const struct scaler_config *c);

#endif
