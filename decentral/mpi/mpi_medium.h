// The medium of Open MPI's messages: shared memory or tcp alone, where one is asked for. Chosen by Open MPI's own
// variables (OMPI_MCA_pml, OMPI_MCA_btl) in the environment of this process, so that it does not matter who started
// the ranks: mpirun of ours, of the user, or a batch system.
//
//   asked   pml    btl                        else
//   shm     ob1    self, vader (sm from 5)    copies through a shared file where the kernel forbids to read a peer
//   tcp     ob1    self, tcp                  ranks of one host: its loopback, as the star's sockets
//   auto    -      -                          one host: as shm; several, or a user's own choice: Open MPI's
//
// Where /dev/shm has no room for shared memory's files they lie among the temporary ones, in words.
//
// A variable that the user has set stays. One that contradicts what is asked for is refused by name.
//
// Threads   The main thread, once a process.
#ifndef STARRING_DECENTRAL_MPI_MPI_MEDIUM_H
#define STARRING_DECENTRAL_MPI_MPI_MEDIUM_H

#include <stdbool.h>

#include "shared/config/config.h"

struct mpi_medium {
    enum medium medium;  // asked for; AUTO where nothing is
    int ranks_here;      // on this host, as the starter says; 0: not known
    int ranks;
    int local_rank;      // which of those on this host
    char *hidden;        // the name that this rank's segment had, or NULL; the struct's own
    bool several_hosts;  // shm was asked for and these are, or may be, several: mpi_medium_meet tells
};

// Before MPI_Init: sets this process's environment. The medium asked for becomes the medium taken (AUTO stays where Open
// MPI chooses). 0, or -1 after naming the variable.
int mpi_medium_set(struct mpi_medium *m);
// After MPI_Init_thread; collective. -1 after rank 0 has named two hosts: shared memory ends at a host's end.
int mpi_medium_meet(const struct mpi_medium *m);
// After mpi_medium_meet; collective. Shared memory loses its names once all ranks have it, so that the kernel frees it
// with the last of them, however they end. -1 after logging: a rank did not come.
int mpi_medium_hide(struct mpi_medium *m);
// Before MPI_Finalize: Open MPI looks for the name it gave.
void mpi_medium_show(struct mpi_medium *m);
// For people and summary.json: "shm", "tcp", or "mpi" for what Open MPI chose by itself.
const char *mpi_medium_name(const struct mpi_medium *m);

#endif
