// A rank on its way into MPI_Init, where Open MPI's client may wait for ever: for an mpirun that has died, which only later it
// notices by itself, and for a rank that never comes. A thread of ours looks meanwhile, and ends the process.
#ifndef STARRING_DECENTRAL_MPI_MPI_PARENT_H
#define STARRING_DECENTRAL_MPI_MPI_PARENT_H

struct mpi_parent;

// The process is about to enter MPI_Init; whoever watches over mpirun is told so, and will name a rank that does not come
// within a deadline. Where nobody does, this gives up after many of them: ranks may be as slow as what they read before.
// deadline_s: 0 stands for 30. NULL where no thread can be had: then nobody looks.
struct mpi_parent *mpi_parent_watch(double deadline_s);
// It has come out. No later death ends the process. p may be NULL.
void mpi_parent_release(struct mpi_parent **p);

#endif
