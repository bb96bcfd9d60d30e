// The words of the pulse over Open MPI: one message each on MPI_COMM_WORLD, which nobody else uses once mpi_medium is done
// with it.
#include <stdlib.h>

#include "decentral/mpi/mpi_impl.h"
#include "shared/core/error.h"

#define TAG_WORD   71   // of PULSE_ASK; the next one of PULSE_TELL
#define SETTLING_S 1.0  // for messages under way at the end

static void receive(struct mpi_words *w, int word) {
    if (MPI_Irecv(&w->in_text[word], 1, MPI_CHAR, MPI_ANY_SOURCE, TAG_WORD + word, MPI_COMM_WORLD,
                  &w->in[word]) != MPI_SUCCESS)
        w->in[word] = MPI_REQUEST_NULL;
}

// The sender of a message, or -1.
static int came(MPI_Request *request) {
    MPI_Status status;
    int done = 0;
    if (*request == MPI_REQUEST_NULL || MPI_Test(request, &done, &status) != MPI_SUCCESS || !done) return -1;
    return status.MPI_SOURCE;
}

static bool is_free(MPI_Request *request) {
    int done = 1;
    if (*request != MPI_REQUEST_NULL && MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
        return false;
    return done;
}

static void look(void *ctx, struct rank_pulse *p) {
    struct mpi_words *w = ctx;
    for (int word = 0; word < PULSE_WORDS; word++)
        for (int from; (from = came(&w->in[word])) >= 0; receive(w, word))
            rank_pulse_heard(p, from, (enum pulse_word)word, w->in_text[word]);
}

static bool send_word(void *ctx, int to, enum pulse_word word, char at) {
    struct mpi_words *w = ctx;
    if (!is_free(&w->out[word][to])) return false;
    w->out_text[word][to] = at;
    if (MPI_Isend(&w->out_text[word][to], 1, MPI_CHAR, to, TAG_WORD + (int)word, MPI_COMM_WORLD,
                  &w->out[word][to]) != MPI_SUCCESS)
        w->out[word][to] = MPI_REQUEST_NULL;
    return true;
}

struct mpi_words *mpi_words_start(int rank, int size) {
    static const struct pulse_ways ways = {.send = send_word, .look = look};
    struct mpi_words *w = xcalloc(1, sizeof *w);
    w->size = size;
    for (int word = 0; word < PULSE_WORDS; word++) {
        for (int i = 0; i < size; i++) w->out[word][i] = MPI_REQUEST_NULL;
        receive(w, word);
    }
    w->pulse = rank_pulse_start(rank, size, &ways, w);
    return w->pulse ? w : NULL;  // MPI refers to w until it ends
}

static void cancel(MPI_Request *request) {
    if (*request == MPI_REQUEST_NULL) return;
    MPI_Cancel(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
}

void mpi_words_stop(struct mpi_words **words, bool broken) {
    struct mpi_words *w = *words;
    if (!w) return;
    *words = NULL;
    rank_pulse_stop(&w->pulse);
    if (broken) return;
    bool settled = false;
    for (double until = now_seconds() + SETTLING_S; !settled && now_seconds() < until;) {
        settled = true;
        for (int i = 0; i < PULSE_WORDS * w->size; i++)
            settled = is_free(&w->out[i / w->size][i % w->size]) && settled;
    }
    for (int word = 0; word < PULSE_WORDS; word++) cancel(&w->in[word]);
    if (settled) free(w);
}
