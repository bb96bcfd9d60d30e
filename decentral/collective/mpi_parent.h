// A rank on its way into MPI_Init whose mpirun dies. Open MPI's client then may wait for an answer for ever: only later it
// notices such a death by itself. A thread of ours looks meanwhile, and ends the process when its parent has gone.
#ifndef STARRING_DECENTRAL_COLLECTIVE_MPI_PARENT_H
#define STARRING_DECENTRAL_COLLECTIVE_MPI_PARENT_H

struct mpi_parent;

// NULL where no thread can be had: then nobody looks.
struct mpi_parent *mpi_parent_watch(void);
// No later death ends the process. p may be NULL.
void mpi_parent_release(struct mpi_parent **p);

#endif
