// --dry-run: memory and bytes per step of a run, predicted without allocating any of it. This file only
// lays out what the topologies predict: `predict` is the program's bridge to them.
#ifndef STARRING_SHARED_RUN_DRY_RUN_H
#define STARRING_SHARED_RUN_DRY_RUN_H

#include <stdio.h>

#include "shared/run/session.h"

struct prediction {
    struct topology_memory memory;
    struct wire_prediction wire;
};

// Role "worker" or "server" of config c (layout padded for c->workers). 0, or -1 after logging.
typedef int (*predict_fn)(const struct config *c, const struct layout *l, const char *role, int rank,
                          struct prediction *out);

// Prints the table, or with as_json one document whose "memory" and "wire" have summary.json's fields, and
// "textbook" one row per topology and role. 0, or -1 after logging.
int dry_run(const struct job *j, predict_fn predict, FILE *f, bool as_json);

#endif
