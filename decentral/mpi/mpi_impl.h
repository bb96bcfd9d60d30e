// Inside of decentral/mpi: the world, one communicator, and what its parts call of each other. Only files that may see
// mpi.h include this.
//
//     collective_mpi   world, communicators, messages, the library's own reductions, the table
//     mpi_wait         waits: deadline and abort
//     mpi_words        the pulse's words
#ifndef STARRING_DECENTRAL_MPI_MPI_IMPL_H
#define STARRING_DECENTRAL_MPI_MPI_IMPL_H

#include <mpi.h>

#include "decentral/collective/collective_peers.h"
#include "decentral/mpi/mpi_medium.h"

#define MESSAGE_BYTES ((size_t)1 << 30)  // MPI counts are ints
#define TAG_ABORT     COLLECTIVE_PRIMITIVES

// Of the pulse (decentral/collective/rank_pulse.h): one message a peer and kind is under way at most.
struct mpi_words {
    int size;
    struct rank_pulse *pulse;
    MPI_Request in[PULSE_WORDS], out[PULSE_WORDS][REDUCE_MAX];
    char in_text[PULSE_WORDS], out_text[PULSE_WORDS][REDUCE_MAX];
};

struct mpi_world {
    int rank, size;
    struct mpi_medium medium;
    struct mpi_words *words;
    atomic_bool broken;
    atomic_bool lost;  // this rank has given up another one
};

// The message of a rank that aborts to the others.
struct abort_word {
    bool lost;  // it has given up another one, which is as good as that one's death
    char why[255];
};

struct collective_mpi {
    struct collective_peers peers;
    struct mpi_world *world;
    MPI_Comm comm, coming;  // MPI_COMM_NULL until all ranks have it; what it will be
    MPI_Request *requests;  // (2*size): receive from i, send to i
    MPI_Request abort_in;   // the posted receive
    struct abort_word word_in;
    MPI_Request *abort_out;  // (size)
    struct abort_word word_out;
    pthread_mutex_t abort_lock;  // guards abort_in: one thread at a time asks
    atomic_flag abort_begun;
    atomic_bool abort_sent;  // abort_out and word_out are complete
};

// ---- mpi_words.c: the main thread's, between MPI_Init and MPI_Finalize
struct mpi_words *mpi_words_start(int rank, int size);  // with a pulse that uses them; NULL after logging
// broken: the world is; what MPI still refers to is left behind.
void mpi_words_stop(struct mpi_words **w, bool broken);

// ---- mpi_wait.c: on the stream's thread, but for mpi_check_abort
int mpi_fail(struct collective_mpi *m, const char *what, int mpi_code);  // keeps the error; -1
// -1 once somebody has aborted this communicator. Any thread.
int mpi_check_abort(struct collective_mpi *m, const char *what);
// Waits for all of m->requests; the deadline and an abort end it. expected[i]: bytes from rank i, or 0; NULL: not
// compared, and the requests are the library's own. 0, or -1 after keeping the error.
int mpi_wait_all(struct collective_mpi *m, const char *what, const size_t *expected);
void mpi_give_up_requests(struct collective_mpi *m);

#endif
