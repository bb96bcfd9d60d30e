// ZeRO stages 0-3 (Rajbhandari et al. 2020) as a struct topology over collectives.
//
//     zero             the hooks of a step, in order
//     zero_policy      the options; what each stage shards; bundles; the bytes of a step
//     zero_state       the state of a rank, and which stream waits for which
//     zero_create      buffers, events, streams and collectives; the prediction
//     zero_checkpoint  weights, masters and states for checkpoints, and loading them
//     zero_pack        reductions of gradients and gathers of updated weights, bundle by bundle
//     zero_offload     optimizer state, and weights, on the host and in files
//     zero_onebit      1-bit Adam
//     zero_time        transfers in the timeline
//     zero_tasks       a step as a graph of tasks, for predictions
#ifndef STARRING_DECENTRAL_ZERO_ZERO_H
#define STARRING_DECENTRAL_ZERO_ZERO_H

#include "decentral/zero/zero_policy.h"
#include "shared/model/step_tasks.h"

struct topology *zero_create(const struct zero_options *o);  // Returns NULL after logging.
// Predicts memory and traffic; allocates no buffer. The source needs no connected ranks. 0, or -1 after logging.
int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire);
// Adds the tasks of a step; t: micro-batches, and the steps of a round, are set. 0, or -1 after logging.
int zero_step_tasks(const struct zero_options *o, struct step_tasks *t);

#endif
