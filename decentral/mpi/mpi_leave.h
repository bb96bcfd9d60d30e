// A rank leaves MPI. MPI_Finalize goes through mpirun, which a stranger's idle connection can hold up for ever, when all of
// this job's work is done: so all ranks meet first, and then it has a deadline.
#ifndef STARRING_DECENTRAL_MPI_MPI_LEAVE_H
#define STARRING_DECENTRAL_MPI_MPI_LEAVE_H

// Collective; the thread that has initialized MPI, nothing of which is under way. Waits for the others however long they
// write: who stands still meanwhile is for who watches over mpirun to find out. Where MPI_Finalize does not end, that is
// told too, and the process may go on without (stop_rank_stays).
void mpi_leave(void);

#endif
