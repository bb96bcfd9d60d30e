// Measures one row of `starring bench ps`: starts its processes, has each thing measured once a round, all in turn,
// so that what else the machine does falls on all of them, and ends them.
#ifndef STARRING_PS_BENCH_BENCH_MEASURE_H
#define STARRING_PS_BENCH_BENCH_MEASURE_H

#include "ps/bench/bench_plan.h"

struct bench_request {
    struct bench_plan plan;  // its kind and medium are the measuring's to choose
    bool media[BENCH_MEDIA];
    int rounds;        // after one that is not counted
    const char *peer;  // the program of bench_build.h; NULL: the star is alone
};

// Fills row, which bench_row_free empties in any case. The exit status; *interrupted: a signal that ended it, or 0.
int bench_measure_row(const struct bench_request *q, struct bench_row *row, int *interrupted);

#endif
