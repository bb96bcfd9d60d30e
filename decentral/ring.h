// The ring as starring.c sees it: predictions, and the ranks of a run from their start to their end.
//
// Threads     ring_run_threads starts one for each rank and joins them; ring_run_rank is one rank on the
// caller's.
#ifndef STARRING_DECENTRAL_RING_H
#define STARRING_DECENTRAL_RING_H

#include "shared/config/config.h"
#include "shared/core/topology.h"
#include "shared/train/session.h"

struct mpi_world;

// Which collectives the run takes, where c leaves it open. mpi: its ranks are processes that mpirun starts or
// has started, ranks_here of them on this machine; else threads, all here. c->device is resolved.
void ring_resolve(struct config *c, bool mpi, int ranks_here);
// Whether what they need is installed, and can do what was asked. 0, or -1 after saying what is missing.
int ring_check(const struct config *c);

// What rank needs and moves, without making anything. 0, or -1 after logging.
int ring_predict(const struct config *c, const struct layout *l, int rank, struct topology_memory *memory,
                 struct wire_prediction *wire);

// 0, or -1 after logging.
int ring_run_threads(const struct job *j);
int ring_run_rank(const struct job *j, struct mpi_world *world, int rank, int local_rank);

#endif
