// Collectives between processes over Open MPI: MPI_Init_thread(MULTIPLE) once, then one duplicate of
// MPI_COMM_WORLD a channel; every rank creates its channels in the same order.
//
// Staging     Reductions need it, but for all_reduce and reduce by the library: a channel created without any refuses
//             them. Where device memory is not the
//             host's, every operation, reductions too, passes through host staging instead, which the
//             channels of one stream may share.
// Failure     After one, mpi_world_close leaves MPI without MPI_Finalize, which would wait for the lost: end
//             the process with an error and mpirun ends the job.
#ifndef STARRING_DECENTRAL_MPI_MPI_LOAD_H
#define STARRING_DECENTRAL_MPI_MPI_LOAD_H

#include "decentral/collective/collective.h"
#include "decentral/mpi/mpi_medium.h"

struct mpi_world;
struct rank_lives;
// Whether there is an Open MPI that this program can use; if not, why.
bool mpi_available(const char **why);
// medium: what is asked for; it becomes what is taken. lives outlives the world. 0, or -1 after logging; the process then
// ends with an error, and without MPI_Finalize.
int mpi_world_open(struct mpi_world **out, struct mpi_medium *medium, struct rank_lives *lives, int *rank,
                   int *size);
void mpi_world_close(struct mpi_world **w);

// All ranks that mpirun has started, before or after their world is opened: rank 0's text becomes everybody's. 0, or -1 after
// logging.
int mpi_tell(char *text, size_t bytes);

// world: struct mpi_world. staged: for ranks whose device memory is not the host's.
extern const struct collective_kind collective_mpi_kind, collective_mpi_staged_kind;

// ---- What libstarring_mpi.so, the one part of the program that is linked with Open MPI, gives to the rest, which opens it
// where ranks talk over MPI. It takes of the program what it needs of it: errors, the queue, what a collective means.
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
