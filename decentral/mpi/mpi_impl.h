// Inside of decentral/mpi: the world, one communicator, and the functions that its files share. Only files that may
// see mpi.h include this.
//
//     collective_mpi   world, communicators, messages, the library's own reductions, the table
//     mpi_wait         waits: deadline and end
#ifndef STARRING_DECENTRAL_MPI_MPI_IMPL_H
#define STARRING_DECENTRAL_MPI_MPI_IMPL_H

#include <mpi.h>

#include "decentral/collective/collective_peers.h"
#include "decentral/mpi/mpi_medium.h"

#define MESSAGE_BYTES ((size_t)1 << 30)  // MPI counts are ints

struct mpi_world {
    int rank, size;
    struct mpi_medium medium;
    struct rank_lives *lives;
    atomic_bool broken;
};

struct collective_mpi {
    struct collective_peers peers;
    struct mpi_world *world;
    MPI_Comm comm, coming;  // comm: MPI_COMM_NULL until all ranks have it; coming: its future value
    MPI_Request *requests;  // (2*size): receive from i, send to i
};

// ---- mpi_wait.c: on the stream's thread
int mpi_fail(struct collective_mpi *m, const char *what, int mpi_code);  // keeps the error; returns -1
// Waits for all of m->requests; the deadline and an abort end it. expected[i]: bytes from rank i, or 0; NULL: not
// compared, and the requests are the library's own. Returns 0, or -1 after keeping the error.
int mpi_wait_all(struct collective_mpi *m, const char *what, const size_t *expected);
void mpi_give_up_requests(struct collective_mpi *m);

#endif
