// What one rank of a run needs and moves, predicted without allocating any of it: the topology's part through
// the program's bridge to the topologies, and a worker's activations and workspace on top.
#ifndef STARRING_SHARED_MEMORY_PREDICTION_H
#define STARRING_SHARED_MEMORY_PREDICTION_H

#include "shared/train/session.h"

struct prediction {
    struct topology_memory memory;
    struct wire_prediction wire;
};

// Role "worker" or "server" of config c (layout padded for c->workers). 0, or -1 after logging.
typedef int (*predict_fn)(const struct config *c, const struct layout *l, const char *role, int rank,
                          struct prediction *out);

// The whole rank. 0, or -1 after logging.
int prediction_of_rank(const struct job *j, predict_fn predict, const char *role, int rank,
                       struct prediction *out);

#endif
