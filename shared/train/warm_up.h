// One pass of the model before a rank has peers, so that a GPU's libraries load what they need: the first run
// of a product or of attention may load kernels and allocate, which may wait for everything that the device
// is doing. While collectives run, that may be a transfer that waits for a peer, who is about to do the same.
//
// Blocking   Until the device has gone through it.
// Memory     Weights and gradients of one unit (and of a tied embedding), outside of the ledger: taken and given
//            back before the topology takes its own, which is more than that unless the model is nearly all
//            embedding.
#ifndef STARRING_SHARED_TRAIN_WARM_UP_H
#define STARRING_SHARED_TRAIN_WARM_UP_H

#include "shared/model/model.h"

// Runs every unit of the model as training and evaluation will, with the shapes in o, on weights that are
// zero; accumulates: gradients are added to as well. Nothing on devices whose memory is the host's. 0, or -1
// after logging.
int warm_up(struct model *m, const struct model_options *o, bool accumulates);

#endif
