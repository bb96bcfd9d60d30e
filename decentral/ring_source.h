// Which collectives a ring's ranks use, and what these need for as long as the rank's topology lives: NCCL a
// rendezvous and a world, the others nothing.
//
// Ownership   A source belongs to its rank; close it after the collectives that it made, and before the
//             device and the hub or world that it was given.
// Threads     The rank's.
// Blocking    ring_source_open waits for all ranks where it has to agree with them (MPI on GPUs, NCCL), up to
//             deadline_s.
#ifndef STARRING_DECENTRAL_RING_SOURCE_H
#define STARRING_DECENTRAL_RING_SOURCE_H

#include "decentral/collective/collective.h"
#include "shared/config/config.h"

// What "auto" is decided by.
struct ring_machine {
    bool mpi;        // ranks are processes started by mpirun; else threads of one process
    bool cuda;       // they compute on GPUs
    int ranks_here;  // on this machine
    int gpus;        // of this machine; 0: not known, every rank is taken to have its own
};
// RING_AUTO becomes: on CPUs local (threads) or mpi (processes); on GPUs nccl when every rank has one of its
// own and NCCL is there, else again local or mpi. What was chosen stays.
enum ring_collective ring_collective_resolve(enum ring_collective asked, const struct ring_machine *m);

struct threads_hub;
struct mpi_world;

struct ring_place {
    struct threads_hub *hub;  // of ranks that are threads, or NULL
    struct mpi_world *world;  // of ranks that are processes, or NULL
    int rank, size;
    struct device *dev;
    double deadline_s;  // 0: none
};

struct ring_source;
// kind: not RING_AUTO. 0, or -1 after logging: what the kind needs is not there, or other ranks chose another
// one.
int ring_source_open(struct ring_source **out, enum ring_collective kind, const struct ring_place *place);
const struct collective_source *ring_source_get(const struct ring_source *r);
void ring_source_close(struct ring_source **r);
// For predictions alone: creates nothing.
struct collective_source ring_source_predicted(enum ring_collective kind, bool cuda, int rank, int size);

#endif
