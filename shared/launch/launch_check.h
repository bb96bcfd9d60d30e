// Checks which ways of starting a run its topology allows. Pure: returns -1 after logging what to use instead.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_CHECK_H
#define STARRING_SHARED_LAUNCH_LAUNCH_CHECK_H

#include "shared/config/config.h"
#include "shared/launch/rank_env.h"

// Checks --launch against --topology.
int launch_check(const struct config *c);
// Checks the options of a process that mpirun, srun or torchrun has started as one of many ranks.
int launch_check_rank(const struct config *c, const struct rank_env *e);

#endif
