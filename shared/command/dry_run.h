// --dry-run: memory and bytes per step of a run, predicted without allocating any of it. This file only
// lays out what the topologies' rows predict.
#ifndef STARRING_SHARED_COMMAND_DRY_RUN_H
#define STARRING_SHARED_COMMAND_DRY_RUN_H

#include <stdio.h>

#include "shared/memory/memory_need.h"

// Prints the table, or with as_json one document whose "memory" and "wire" have summary.json's fields, and
// "textbook" one row per topology and role; "here" compares `part` of it with this machine's memory. 0, or -1
// after logging.
int dry_run(const struct job *j, const struct memory_part *part, FILE *f, bool as_json);

#endif
