// --launch mpi outside mpirun: becomes `mpirun -n N starring train <the same words>`.
#ifndef STARRING_SHARED_LAUNCH_LAUNCH_MPI_H
#define STARRING_SHARED_LAUNCH_LAUNCH_MPI_H

struct launch_mpi_options {
    int ranks;
    int argc;
    char **argv;      // what followed "train"
    const char *out;  // run directory to add as --out, or NULL: argv or the configuration names it
};

// Replaces this process; returns -1 after logging only when mpirun cannot be started.
int launch_mpi(const struct launch_mpi_options *o);

#endif
