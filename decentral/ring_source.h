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

// The facts that decide "auto".
struct ring_machine {
    enum launch_kind launch;  // how ranks are started: THREADS, PROCESSES or MPI
    bool cuda;                // they compute on GPUs
    int ranks_here;           // on this machine
    int gpus;                 // of this machine; 0: not known, every rank is taken to have its own
};
// RING_AUTO becomes: on CPUs local (threads), shm (processes) or mpi; on GPUs nccl when every rank has one of its
// own and NCCL is there, else the same. What was chosen stays.
enum ring_collective ring_collective_resolve(enum ring_collective asked, const struct ring_machine *m);

struct ring_place {
    enum ring_collective host;  // how ranks meet on the host: RING_THREADS, RING_SHM or RING_MPI
    void *world;                // a struct hub, or of MPI a struct mpi_world
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
