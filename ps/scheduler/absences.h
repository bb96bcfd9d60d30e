// Which workers the steps of a job went without, where they may come and go (--elastic), and why. Pure.
//
//     step       1 2 3 4 5 6 7 8            changed: worker 1 away from step 4 on, "died"
//     worker 1   x x x . . x x x                     worker 1 there from step 6 on
//
// A worker that is lost when its gradients have come, or is back before the next step, was never away.
#ifndef STARRING_PS_SCHEDULER_ABSENCES_H
#define STARRING_PS_SCHEDULER_ABSENCES_H

#include <stdbool.h>
#include <stdint.h>

// How a job lost a worker.
struct loss {
    const char *cause;  // "died", "silent", "left": it said that it had failed
    const char *why;    // in words
};

struct absence {
    int64_t step;  // 1, 2, ..: the first one that it concerns
    int worker;
    bool away;         // else it is back
    struct loss loss;  // NULLs where it is back
};

// The listener. changed may be NULL.
struct absence_port {
    void *ctx;
    void (*changed)(void *ctx, const struct absence *a);
};

struct absences;
struct absences *absences_create(int workers, const struct absence_port *port);  // all are there
void absences_destroy(struct absences **a);
// The job has lost it, for this reason; the texts are copied.
void absences_lost(struct absences *a, int worker, const struct loss *loss);
// Steps from this one on have these workers' gradients, until it is called again.
void absences_step(struct absences *a, int64_t step, uint64_t there);

#endif
