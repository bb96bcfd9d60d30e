// What mpirun leaves when it is killed by SIGKILL: its session directory among the temporary files and, of ranks that had
// just begun, what they share in /dev/shm. A small process of ours outlives it and removes both. It costs nothing while
// mpirun lives, and nothing is left to do for it when mpirun has ended in order.
#ifndef STARRING_SHARED_LAUNCH_MPI_GUARD_H
#define STARRING_SHARED_LAUNCH_MPI_GUARD_H

// Before this process becomes mpirun. 0, or -1 after logging.
int mpi_guard_start(void);

#endif
