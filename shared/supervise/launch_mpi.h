// --launch mpi outside mpirun: becomes `mpirun -n N starring train <the same words>`.
#ifndef STARRING_SHARED_SUPERVISE_LAUNCH_MPI_H
#define STARRING_SHARED_SUPERVISE_LAUNCH_MPI_H

#include <stdbool.h>

#define EXIT_NO_MPIRUN 127  // as shells say that a program cannot be started; why has been logged

struct launch_mpi_options {
    int ranks;
    int argc;
    char **argv;  // what followed "train"; it, or the configuration, names the run directory
};

// Whether all that it starts runs on this host. Not so, or not known: in a queue's job of several hosts, and where the
// environment names hosts, or interfaces to others, for Open MPI or NCCL.
bool launch_mpi_is_here(void);

// Replaces this process; returns -1 after logging only when mpirun cannot be started.
int launch_mpi(const struct launch_mpi_options *o);

#endif
