// The ring as starring.c sees it: predictions, and the ranks of a run from their start to their end.
//
// Threads     ring_run_threads starts one for each rank and joins them; ring_run_rank is one rank on the
// caller's.
#ifndef STARRING_DECENTRAL_RING_H
#define STARRING_DECENTRAL_RING_H

#include "shared/config/config.h"
#include "shared/core/topology_row.h"
#include "shared/train/session.h"

struct mpi_world;

extern const struct topology_row topology_ring;

// 0, or -1 after logging.
int ring_run_threads(const struct job *j);
int ring_run_rank(const struct job *j, struct mpi_world *world, int rank, int local_rank);

#endif
