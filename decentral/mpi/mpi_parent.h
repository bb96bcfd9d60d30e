// A rank on its way into MPI_Init, where Open MPI's client may wait for ever: for an mpirun that has died, which only later it
// notices by itself, and for a rank that never comes. A thread of ours looks meanwhile, and ends the process.
#ifndef STARRING_DECENTRAL_MPI_MPI_PARENT_H
#define STARRING_DECENTRAL_MPI_MPI_PARENT_H

struct mpi_parent;

// The process is about to enter MPI_Init; whoever watches over mpirun is told so, and sees of all ranks on its machine whether
// one is stopped. Where ranks are elsewhere, or nobody watches, this gives up after many deadlines: ranks may be as slow as
// what they read before. deadline_s: 0 stands for 30, INFINITY for no end. NULL where no thread can be had: then nobody looks.
struct mpi_parent *mpi_parent_watch(double deadline_s);
// It has come out. No later death ends the process. p may be NULL.
void mpi_parent_release(struct mpi_parent **p);

#endif
