// The results of `starring bench offload`: medians over the rounds, shares of the same round.
#ifndef STARRING_SHARED_BENCH_OFFLOAD_FIGURES_H
#define STARRING_SHARED_BENCH_OFFLOAD_FIGURES_H

#include "shared/bench/offload_work.h"

#define OFFLOAD_TARGET 0.8  // of fio; of the copy

struct offload_figures {
    const struct offload_bench *bench;
    const struct offload_round *rounds;
    int count;
    const char *fio;  // its version; "": not there
};

void offload_figures_table(const struct offload_figures *f);
void offload_figures_json(const struct offload_figures *f);  // one document on stdout

#endif
