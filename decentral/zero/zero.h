// ZeRO stages 0-3 (Rajbhandari et al. 2020) as a struct topology over collectives.
//
//     zero_policy   the options; what each stage shards
//     zero_memory   the buffers
//     zero_state    the state of a rank, and which stream waits for which
//     zero_step     the end of a step, and other collective hooks
//     zero_weights  which rank gathers which weights, and when
//     zero_bundle   which units one collective moves together: pure
//     zero_pack     packing and unpacking of bundles
//     zero_grads    where gradients are written and how they are reduced
//     zero_offload  optimizer state on the host
//     zero_disk     weights in a file
//     zero_onebit   1-bit Adam
//     zero_time     transfers in the timeline
//     zero          the hooks during a step, create and destroy, the prediction
#ifndef STARRING_DECENTRAL_ZERO_ZERO_H
#define STARRING_DECENTRAL_ZERO_ZERO_H

#include "decentral/zero/zero_policy.h"

struct topology *zero_create(const struct zero_options *o);  // NULL after logging why
// Predicts memory and traffic; allocates no buffer. The source needs no connected ranks. 0, or -1 after logging.
int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire);

#endif
