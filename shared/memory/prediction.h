// What one rank of a run needs and moves, predicted without allocating any of it: the topology's part, as its row
// says, and a worker's activations and workspace on top.
#ifndef STARRING_SHARED_MEMORY_PREDICTION_H
#define STARRING_SHARED_MEMORY_PREDICTION_H

#include "shared/core/topology_row.h"
#include "shared/train/session.h"

// 0, or -1 after logging.
int prediction_of_rank(const struct job *j, const char *role, int rank, struct prediction *out);

#endif
