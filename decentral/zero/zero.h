// ZeRO stages 0-3 (Rajbhandari et al. 2020) as a struct topology over collectives.
//
//     zero_policy   what is asked, and what a stage keeps where
//     zero_memory   the buffers
//     zero_state    what a rank holds, and which stream waits for which
//     zero_step     the end of a step, and what else all ranks do together
//     zero_weights  who gathers what weights when
//     zero_bundle   which units travel together: pure
//     zero_pack     their way through one buffer
//     zero_grads    where gradients are written and how they are reduced
//     zero          the hooks during a step, the topology's life, and its prediction
#ifndef STARRING_DECENTRAL_ZERO_ZERO_H
#define STARRING_DECENTRAL_ZERO_ZERO_H

#include "decentral/zero/zero_policy.h"

struct topology *zero_create(const struct zero_options *o);  // NULL after logging why
// Predictions alone; allocates nothing. The source needs no world.
int zero_predict(const struct zero_options *o, struct topology_memory *mem, struct wire_prediction *wire);

#endif
