// Collectives between processes over Open MPI: MPI_Init_thread(MULTIPLE) once, then one duplicate of MPI_COMM_WORLD
// per channel. All ranks create their channels in the same order.
//
// Staging     Reductions need it, except all_reduce and reduce by the library: a channel that was created without
//             staging refuses them. If device memory is not the host's, every operation, reductions too, uses host
//             staging instead, which the channels of one stream may share.
// Failure     After a failure, mpi_world_close leaves MPI without MPI_Finalize, which would wait for lost ranks: exit
//             the process with an error, and mpirun ends the job.
#ifndef STARRING_DECENTRAL_MPI_MPI_LOAD_H
#define STARRING_DECENTRAL_MPI_MPI_LOAD_H

#include "decentral/collective/collective.h"
#include "decentral/mpi/mpi_medium.h"

struct mpi_world;
struct rank_lives;
// Returns whether this program can use an Open MPI; if not, *why receives the reason.
bool mpi_available(const char **why);
// medium: the requested one; it receives the chosen one. lives outlives the world. Returns 0, or -1 after logging; the
// process then exits with an error, and without MPI_Finalize.
int mpi_world_open(struct mpi_world **out, struct mpi_medium *medium, struct rank_lives *lives, int *rank,
                   int *size);
void mpi_world_close(struct mpi_world **w);

// Called by all ranks that mpirun has started, before or after their world is opened: broadcasts rank 0's text.
// Returns 0, or -1 after logging.
int mpi_tell(char *text, size_t bytes);

// world: struct mpi_world. staged: for ranks whose device memory is not the host's.
extern const struct collective_kind collective_mpi_kind, collective_mpi_staged_kind;

// ---- The interface of libstarring_mpi.so, the only part of the program that is linked with Open MPI. The program
// opens it if ranks use MPI. The library uses the program's code for errors, streams and the plans of collectives.
#define MPI_ENGINE_FILE   "libstarring_mpi.so"
#define MPI_ENGINE_SYMBOL "starring_mpi_engine"

struct mpi_engine {
    int (*open)(struct mpi_world **out, struct mpi_medium *medium, struct rank_lives *lives, int *rank,
                int *size);
    void (*close)(struct mpi_world **w);
    struct collective *(*create)(void *world, int rank, int channel, const struct collective_options *o);
    int (*tell)(char *text, size_t bytes);
};

#endif
