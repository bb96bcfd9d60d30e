// The ring's memory: one function that measures and carves, and the predictions that come of it.
//
//   class       what                                                        elements
//   parameter   weights, or their shard                                     n_pad | S   of the run's type
//   gradient    gradients, or their shard                                   n_pad | S   of the run's type
//   master      fp32 masters of 16-bit runs; in fp32 the weights are they   n_pad | S   fp32
//   optimizer   the optimizer's states                                      n_pad | S   fp32, each
//   comm        slots of what is sharded but used whole, staging of reductions
//   workspace   norm, decision, losses
//   pinned      what the host reads of these, and what a device's collectives over the host pass through;
//               none where the device's memory is the host's
#ifndef STARRING_DECENTRAL_ZERO_ZERO_MEMORY_H
#define STARRING_DECENTRAL_ZERO_ZERO_MEMORY_H

#include "decentral/zero/zero_state.h"

// Takes every buffer through z->arena, which measures or allocates.
void zero_carve(struct zero *z);
// Predictions alone; allocates nothing. The source needs no world.
int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire);

#endif
