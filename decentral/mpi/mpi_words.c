// The words of the pulse over Open MPI: one message each on MPI_COMM_WORLD, which nobody else uses once mpi_medium is done
// with it.
#include <stdlib.h>

#include "decentral/mpi/mpi_impl.h"
#include "shared/core/error.h"

#define TAG_WORD   71   // of PULSE_ASK; the next ones of the others
#define SETTLING_S 1.0  // for messages under way at the end

static void receive(struct mpi_words *w, int kind) {
    if (MPI_Irecv(&w->in_word[kind], sizeof *w->in_word, MPI_BYTE, MPI_ANY_SOURCE, TAG_WORD + kind,
                  MPI_COMM_WORLD, &w->in[kind]) != MPI_SUCCESS)
        w->in[kind] = MPI_REQUEST_NULL;
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
    for (int kind = 0; kind < PULSE_KINDS; kind++)
        for (int from; (from = came(&w->in[kind])) >= 0; receive(w, kind))
            rank_pulse_heard(p, from, &w->in_word[kind]);
}

// Short enough for MPI to send at once, before the receiver takes part.
static bool send_word(void *ctx, int to, const struct pulse_word *word) {
    struct mpi_words *w = ctx;
    int bytes = word->kind == PULSE_END ? sizeof *word : offsetof(struct pulse_word, why);
    struct pulse_word *out = &w->out_word[(int)word->kind][to];
    MPI_Request *request = &w->out[(int)word->kind][to];
    if (!is_free(request)) return false;
    *out = *word;
    if (MPI_Isend(out, bytes, MPI_BYTE, to, TAG_WORD + word->kind, MPI_COMM_WORLD, request) != MPI_SUCCESS)
        *request = MPI_REQUEST_NULL;
    return true;
}

struct mpi_words *mpi_words_start(int rank, int size) {
    static const struct pulse_ways ways = {.send = send_word, .look = look};
    struct mpi_words *w = xcalloc(1, sizeof *w);
    w->size = size;
    for (int kind = 0; kind < PULSE_KINDS; kind++) {
        w->out[kind] = xcalloc((unsigned long)size, sizeof *w->out[kind]);
        w->out_word[kind] = xcalloc((unsigned long)size, sizeof *w->out_word[kind]);
        for (int i = 0; i < size; i++) w->out[kind][i] = MPI_REQUEST_NULL;
        receive(w, kind);
    }
    w->pulse = rank_pulse_start(rank, size, &ways, w, NULL);
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
        for (int i = 0; i < PULSE_KINDS * w->size; i++)
            settled = is_free(&w->out[i / w->size][i % w->size]) && settled;
    }
    for (int kind = 0; kind < PULSE_KINDS; kind++) {
        cancel(&w->in[kind]);
        if (settled) free(w->out[kind]), free(w->out_word[kind]);
    }
    if (settled) free(w);
}
