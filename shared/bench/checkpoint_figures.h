// The results of `starring bench checkpoint`, and printing them as a table or as one JSON document.
#ifndef STARRING_SHARED_BENCH_CHECKPOINT_FIGURES_H
#define STARRING_SHARED_BENCH_CHECKPOINT_FIGURES_H

#include "shared/bench/checkpoint_work.h"

// What writing is to reach of the disk's own rate.
#define CHECKPOINT_TARGET 0.8

#define CHECKPOINT_ROUNDS_MAX 99

// Of every round, in turn.
struct checkpoint_rounds {
    struct checkpoint_times write[CHECKPOINT_ROUNDS_MAX];
    double plain[CHECKPOINT_ROUNDS_MAX], direct[CHECKPOINT_ROUNDS_MAX], hash[CHECKPOINT_ROUNDS_MAX];
    struct read_times read[CHECKPOINT_ROUNDS_MAX], read_plain[CHECKPOINT_ROUNDS_MAX];
    int count;
};

struct checkpoint_figures {
    const char *model;
    const struct checkpoint_bench *bench;
    const struct checkpoint_rounds *rounds;
    const char *where;  // as the user named it
};

void checkpoint_figures_json(const struct checkpoint_figures *f);
void checkpoint_figures_table(const struct checkpoint_figures *f);

#endif
