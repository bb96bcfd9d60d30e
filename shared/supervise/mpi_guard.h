// What mpirun leaves when it is killed by SIGKILL: its ranks, of which a stopped one would stay for ever, its session
// directory among the temporary files and, of ranks that had just begun, what they share in /dev/shm. A small process of ours
// outlives it, and whoever watches over it, and ends and removes all that. It costs nothing while mpirun lives, and nothing is
// left to do for it when mpirun has ended in order.
#ifndef STARRING_SHARED_SUPERVISE_MPI_GUARD_H
#define STARRING_SHARED_SUPERVISE_MPI_GUARD_H

#define MPI_GUARD_NAME     "starring-guard"
#define MPI_GUARD_VARIABLE "STARRING_MPIRUN"  // in the ranks' environment: mpirun's process

// Before this process becomes mpirun. 0, or -1 after logging.
int mpi_guard_start(void);

#endif
