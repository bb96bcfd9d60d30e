// Collectives between processes over Open MPI: MPI_Init_thread(MULTIPLE) once, then one duplicate of MPI_COMM_WORLD
// per channel. All ranks create their channels in the same order.
//
// Staging     Reductions need it, except all_reduce and reduce by the library: a channel that was created without
//             staging refuses them. If device memory is not the host's, every operation, reductions too, uses host
//             staging instead, which the channels of one stream may share.
// Failure     After a failure, mpi_world_close leaves MPI without MPI_Finalize, which would wait for lost ranks: exit
//             the process with an error, and mpirun ends the job.
#ifndef STARRING_DECENTRAL_MPI_MPI_ENGINE_H
#define STARRING_DECENTRAL_MPI_MPI_ENGINE_H

#include "decentral/collective/collective.h"
#include "shared/config/config.h"

// ---------------------------------------------------------------- the medium of messages (mpi_medium.c)
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
struct mpi_medium {
    enum medium medium;  // the requested medium; AUTO if none is requested
    int ranks_here;      // ranks on this host, by the launcher's variables; 0: not known
    int ranks;
    int local_rank;  // index among those on this host
    char *hidden;    // the name that this rank's segment had, or NULL; owned by the struct
    bool
        several_hosts;  // shm was requested and there are, or may be, several hosts: mpi_medium_check_hosts checks
};

// Called before MPI_Init: sets this process's environment. m->medium receives the chosen medium (AUTO remains if Open
// MPI chooses). Returns 0, or -1 after logging the conflicting variable.
int mpi_medium_set(struct mpi_medium *m);
// Called by all ranks after MPI_Init_thread. Returns -1 after rank 0 has logged two different hosts: shared memory
// works only within one host.
int mpi_medium_check_hosts(const struct mpi_medium *m);
// Called by all ranks after mpi_medium_check_hosts. Removes the names of shared memory once all ranks have attached, so that
// the kernel frees it with the last rank, however the ranks end. Returns -1 after logging that a rank did not come.
int mpi_medium_unlink(struct mpi_medium *m);
// Called before MPI_Finalize: Open MPI expects the name that it gave.
void mpi_medium_relink(struct mpi_medium *m);
// Printed, and in summary.json: "shm", "tcp", or "mpi" if Open MPI has chosen by itself.
const char *mpi_medium_name(const struct mpi_medium *m);

// ---------------------------------------------------------------- the world, and its collectives
struct mpi_world;
struct rank_liveness;
// Returns whether this program can use an Open MPI; if not, *why receives the reason.
bool mpi_available(const char **why);
// medium: the requested one; it receives the chosen one. lives outlives the world. Returns 0, or -1 after logging; the
// process then exits with an error, and without MPI_Finalize.
int mpi_world_open(struct mpi_world **out, struct mpi_medium *medium, struct rank_liveness *lives, int *rank,
                   int *size);
void mpi_world_close(struct mpi_world **w);

// Called by all ranks that mpirun has started, before or after their world is opened: broadcasts rank 0's text.
// Returns 0, or -1 after logging.
int mpi_broadcast_text(char *text, size_t bytes);

extern const struct collective_kind collective_mpi_kind;  // world: struct mpi_world

// ---------------------------------------------------------------- the library (mpi_load.c)
// The interface of libstarring_mpi.so, the only part of the program that is linked with Open MPI. The program
// opens it if ranks use MPI. The library uses the program's code for errors, streams and the plans of collectives.
#define MPI_ENGINE_FILE   "libstarring_mpi.so"
#define MPI_ENGINE_SYMBOL "starring_mpi_engine"

struct mpi_engine {
    int (*open)(struct mpi_world **out, struct mpi_medium *medium, struct rank_liveness *lives, int *rank,
                int *size);
    void (*close)(struct mpi_world **w);
    struct collective *(*create)(void *world, int rank, int channel, const struct collective_options *o);
    int (*broadcast_text)(char *text, size_t bytes);
};

#endif
