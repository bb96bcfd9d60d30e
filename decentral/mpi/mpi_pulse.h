// Slow is not dead: how a process knows, of the others over Open MPI, who lives and who is at work. A rank that has
// waited for half its deadline asks all others, again and again; a thread of each process answers. Nothing is sent
// while nobody waits long. A process that is stopped or gone does not answer.
//
//     waits on    while every rank that has not come answers, and some rank of the world is at work: its device, or the main
//                 thread beside it, which may stand in a file for long
//     gives up    at the deadline, or half a deadline after that has ceased
//
// Some rank, not the one that has not come: that one may itself wait for a third that is slow. Where none is at work,
// calls differ or a rank is stuck.
//
// Threads   mpi_pulse_start, _stop: the main thread, between MPI_Init and MPI_Finalize. The rest: any.
#ifndef STARRING_DECENTRAL_MPI_MPI_PULSE_H
#define STARRING_DECENTRAL_MPI_MPI_PULSE_H

#include <stdbool.h>

struct device;
struct mpi_pulse;

// A wait of this rank that has come to its deadline.
struct pulse_wait {
    const char *what;  // the operation, for people
    double waited_s, deadline_s;
    const bool *missing;  // (size) which ranks have not come
};

struct mpi_pulse *mpi_pulse_start(int rank, int size);  // NULL after logging
// broken: the world is; what MPI still refers to is left behind.
void mpi_pulse_stop(struct mpi_pulse **p, bool broken);
// The device that this process computes on from now on; NULL: none any more. Until it is told, the process is at work: on its way.
void mpi_pulse_computes(struct mpi_pulse *p, struct device *dev);
// The main thread itself begins, or ends, to wait for others.
void mpi_pulse_waits(struct mpi_pulse *p, bool waits);
// Others are asked for a while. Called all along the second half of a deadline, and beyond it.
void mpi_pulse_ask(struct mpi_pulse *p, double deadline_s);
// Whether the wait should go on. A slow rank is named, once a rank and job. silent: (size) out: of the missing, those
// that do not answer.
bool mpi_pulse_slow(struct mpi_pulse *p, const struct pulse_wait *w, bool *silent);

#endif
