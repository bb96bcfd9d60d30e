// Evaluates the snapshots that a run has left, for the end of a run and for `starring evaluate`.
#ifndef STARRING_SHARED_LAUNCH_EVALUATE_DIR_H
#define STARRING_SHARED_LAUNCH_EVALUATE_DIR_H

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

#endif
