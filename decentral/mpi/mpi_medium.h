// The medium of Open MPI's messages: only shared memory or only tcp, if one is requested. It is set with Open MPI's
// own variables (OMPI_MCA_pml, OMPI_MCA_btl) in the environment of this process. So it does not matter what started
// the ranks: our mpirun, the user's, or a batch system.
//
//   asked   pml    btl                        else
//   shm     ob1    self, vader (sm from 5)    copies through a shared file if the kernel forbids reading a peer
//   tcp     ob1    self, tcp                  ranks of one host: its loopback, as the star's sockets
//   auto    -      -                          one host: as shm; several, or a user's own choice: Open MPI's
//
// If /dev/shm has no room for the files of shared memory, they are put into the temporary folder, after a warning.
//
// A variable that the user has set stays. If it contradicts the request, the run is refused and the variable is named.
//
// Threads     The main thread, once per process.
#ifndef STARRING_DECENTRAL_MPI_MPI_MEDIUM_H
#define STARRING_DECENTRAL_MPI_MPI_MEDIUM_H

#include <stdbool.h>

#include "shared/config/config.h"

struct mpi_medium {
    enum medium medium;  // the request; AUTO if none
    int ranks_here;      // on this host, as the launcher says; 0: not known
    int ranks;
    int local_rank;      // index among those on this host
    char *hidden;        // the name that this rank's segment had, or NULL; owned by the struct
    bool several_hosts;  // shm was requested and there are, or may be, several hosts: mpi_medium_meet checks
};

// Called before MPI_Init: sets this process's environment. m->medium receives the chosen medium (AUTO remains if Open
// MPI chooses). Returns 0, or -1 after logging the conflicting variable.
int mpi_medium_set(struct mpi_medium *m);
// Called by all ranks after MPI_Init_thread. Returns -1 after rank 0 has logged two different hosts: shared memory
// works only within one host.
int mpi_medium_meet(const struct mpi_medium *m);
// Called by all ranks after mpi_medium_meet. Removes the names of shared memory once all ranks have attached, so that
// the kernel frees it with the last rank, however the ranks end. Returns -1 after logging that a rank did not come.
int mpi_medium_hide(struct mpi_medium *m);
// Called before MPI_Finalize: Open MPI expects the name that it gave.
void mpi_medium_show(struct mpi_medium *m);
// Printed, and in summary.json: "shm", "tcp", or "mpi" if Open MPI has chosen by itself.
const char *mpi_medium_name(const struct mpi_medium *m);

#endif
