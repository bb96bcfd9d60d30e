// --dry-run: predicts a run's memory and bytes per step without allocating any of it. This file only formats the
// predictions of the topologies' rows.
#ifndef STARRING_SHARED_COMMAND_DRY_RUN_H
#define STARRING_SHARED_COMMAND_DRY_RUN_H

#include <stdio.h>

#include "shared/predict/memory_need.h"

// Prints the table, or one JSON document with as_json. "memory" and "wire" have summary.json's fields. "textbook" has
// one row per topology and role. "here" compares `part` with this machine's memory. Returns 0, or -1 after logging.
int dry_run(const struct job *j, const struct memory_ranks *part, FILE *f, bool as_json);

#endif
