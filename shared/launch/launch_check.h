// Which ways of starting a run go together with its topology. Pure: -1 after saying what to use instead.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_CHECK_H
#define STARRING_SHARED_LAUNCH_LAUNCH_CHECK_H

#include "shared/config/config.h"
#include "shared/launch/rank_env.h"

// --launch and --topology.
int launch_check(const struct config *c);
// What a process that mpirun, srun or torchrun has started as one of many cannot be.
int launch_check_rank(const struct config *c, const struct rank_env *e);

#endif
