// --launch mpi outside mpirun: becomes `mpirun -n N starring train <the same words>`.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_MPI_H
#define STARRING_SHARED_LAUNCH_LAUNCH_MPI_H

#include "shared/config/config.h"

// argv: the words after "train"; they, or the configuration, name the run directory. Replaces this process. Returns -1
// after logging only if mpirun cannot be started.
int launch_mpi(const struct config *c, int argc, char *const *argv);

#endif
