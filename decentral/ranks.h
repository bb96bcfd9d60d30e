// A ring's ranks, whatever they compute: how they are started, where they meet, and the collectives through which they talk.
// An algorithm without a server is a row (decentral/ring.h) whose hooks are these functions and its own ones, and a
// function that makes a rank's topology of collectives.
//
//     starting     threads of this process, processes of this program's launcher (shared/launch/launch_ranks.h), or of mpirun
//     meeting      a hub (decentral/collective/hub.h), or MPI's world
//     collectives  a source makes them: over what ranks meet in, or over NCCL, which needs a rendezvous and a world of its own
//
// Ownership   A source belongs to its rank; close it after the collectives that it made, and before the device and the hub or
//             world that it was given.
// Threads     The rank's.
// Blocking    ring_source_open waits for all ranks where it has to agree with them (processes on GPUs, NCCL), up to deadline_s.
#ifndef STARRING_DECENTRAL_RANKS_H
#define STARRING_DECENTRAL_RANKS_H

#include "decentral/collective/collective.h"
#include "shared/config/config.h"
#include "shared/core/topology_row.h"
#include "shared/launch/run.h"

// ---------------------------------------------------------------- of a row (shared/core/topology_row.h)
#define RANKS_LAUNCHES ((1 << LAUNCH_KINDS) - 1)  // all
extern const struct topology_role ranks_roles[];
size_t ranks_meeting_bytes(const struct config *c);
void ranks_resolve(struct config *c, const struct rank_env *e);
int ranks_check(const struct config *c);  // --medium, --collective and --launch
int ranks_check_rank(const struct config *c, const struct rank_env *e);
int ranks_check_machine(const struct config *c);
// Ranks that predictions are made with: nothing is created.
struct collective_source ranks_predicted(const struct config *c, int rank);

// A rank that is to make its topology. The source outlives the topology.
struct ring_rank {
    const struct job *job;
    const struct collective_source *source;
    struct device *dev;
    struct stream *compute;
};
typedef struct topology *ranks_create(const struct ring_rank *r);  // NULL after logging
int ranks_run(struct run *r, ranks_create *create);                // topology_row.run

// ---------------------------------------------------------------- sources
// The facts that decide "auto".
struct ring_machine {
    enum ring_collective host;  // how ranks meet on the host: THREADS, SHM, MPI or TCP
    bool cuda;                  // they compute on GPUs
    int ranks_here;             // on this machine
    int gpus;                   // of this machine; 0: not known, every rank is taken to have its own
};
// RING_AUTO becomes: on CPUs local (threads), shm (processes) or mpi; on GPUs nccl when every rank has one of its
// own and NCCL is there, else the same. What was chosen stays.
enum ring_collective ring_collective_resolve(enum ring_collective asked, const struct ring_machine *m);

struct ring_place {
    enum ring_collective
        host;     // how ranks meet: RING_THREADS, RING_SHM, RING_MPI, or RING_TCP: in a rendezvous
    void *world;  // a struct hub, of MPI a struct mpi_world, of RING_TCP the struct rendezvous
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

#endif
