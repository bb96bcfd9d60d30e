// --launch mpi outside mpirun: becomes `mpirun -n N starring train <the same words>`.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_MPI_H
#define STARRING_SHARED_LAUNCH_LAUNCH_MPI_H

#include "shared/config/config.h"

// argv: what followed "train"; it, or the configuration, names the run directory. Replaces this process; returns -1 after
// logging only when mpirun cannot be started.
int launch_mpi(const struct config *c, int argc, char *const *argv);

#endif
