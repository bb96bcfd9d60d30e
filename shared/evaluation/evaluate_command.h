// `starring evaluate RUN`, and the same for whoever closes a run.
#ifndef STARRING_SHARED_EVALUATION_EVALUATE_COMMAND_H
#define STARRING_SHARED_EVALUATION_EVALUATE_COMMAND_H

#include "shared/evaluation/evaluate.h"

struct evaluate_dir_options {
    const struct topology_table *topologies;
    const char *dir;
    bool keep;                // also where the configuration does not say so
    const _Atomic int *stop;  // or NULL
    FILE *say;                // or NULL
};
// Evaluates the snapshots that wait in dir as dir/config.json says. Opens model and data only where there are any.
enum evaluated evaluate_dir(const struct evaluate_dir_options *o);

// The program's exit status: 0; 1 failed, interrupted, or a snapshot is not whole; 2 no run directory.
int evaluate_command(const struct topology_table *t, int argc, char **argv);

#endif
