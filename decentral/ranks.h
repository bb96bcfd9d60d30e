// A ring's ranks: how they are started, how they connect, and the collectives through which they communicate. An
// algorithm without a server is a row (decentral/ring.h), whose hooks are these functions and its own, and a function
// that creates a rank's topology over collectives.
//
//     starting     threads of this process, processes of this program's launcher (shared/launch/launch_ranks.h), or of
//                  another launcher: mpirun, srun, torchrun ..
//     connecting   a hub (decentral/collective/hub.h), MPI's world, or a rendezvous (tcp)
//     collectives  a source creates them: over the same connection, or over NCCL, which needs a bootstrap and a world
//
// Ownership   A source belongs to its rank. Close it after the collectives that it created, and before the device and
//             the hub or world that it was given.
// Threads     The rank's.
// Blocking    ring_source_open blocks up to deadline_s if all ranks must agree (processes on GPUs, NCCL, tcp).
#ifndef STARRING_DECENTRAL_RANKS_H
#define STARRING_DECENTRAL_RANKS_H

#include "decentral/collective/collective.h"
#include "shared/config/config.h"
#include "shared/core/topology_row.h"
#include "shared/launch/run.h"

// ---------------------------------------------------------------- hooks of a row (shared/core/topology_row.h)
#define RANKS_LAUNCHES ((1 << LAUNCH_KINDS) - 1)  // all kinds of launch
extern const struct topology_role ranks_roles[];
size_t ranks_segment_bytes(const struct config *c);
void ranks_resolve(struct config *c, const struct rank_env *e);
void ranks_rendezvous_options(const struct config *c, struct rendezvous_options *o);
int ranks_check(const struct config *c);  // --medium, --collective and --launch
int ranks_check_rank(const struct config *c, const struct rank_env *e);
int ranks_check_machine(const struct config *c);
// Returns a source for predictions; nothing is created.
struct collective_source ranks_predicted(const struct config *c, int rank);

// The arguments with which a rank creates its topology. The source outlives the topology.
struct ring_rank {
    const struct job *job;
    const struct collective_source *source;
    struct device *dev;
    struct stream *compute;
};
typedef struct topology *ranks_create(const struct ring_rank *r);  // Returns NULL after logging.
int ranks_run(struct run *r, ranks_create *create);                // topology_row.run

// ---------------------------------------------------------------- sources
// The facts that decide "auto".
struct ring_machine {
    enum ring_collective host;  // how the ranks' host memory is connected: THREADS, SHM, MPI or TCP
    bool cuda;                  // the ranks compute on GPUs
    int ranks_here;             // ranks on this machine
    int gpus;                   // GPUs of this machine; 0: unknown, each rank is assumed to have its own
};
// Resolves RING_AUTO. On CPUs: `host`, which is local (threads), shm (processes), mpi or tcp. On GPUs: nccl if every
// rank has a GPU of its own and NCCL is available, else `host`. Any other `asked` is returned unchanged.
enum ring_collective ring_collective_resolve(enum ring_collective asked, const struct ring_machine *m);

struct ring_connection {
    enum ring_collective
        host;     // how ranks are connected: RING_THREADS, RING_SHM, RING_MPI or RING_TCP (by a rendezvous)
    void *world;  // a struct hub; for RING_MPI a struct mpi_world; for RING_TCP the struct rendezvous
    struct rank_liveness *lives;  // only for processes
    int rank, size;
    struct device *dev;
    double deadline_s;  // 0: no deadline
};

struct ring_source;
// kind: not RING_AUTO. Returns 0, or -1 after logging: the machine cannot run the kind, or the ranks chose different
// kinds.
int ring_source_open(struct ring_source **out, enum ring_collective kind,
                     const struct ring_connection *place);
const struct collective_source *ring_source_get(const struct ring_source *r);
void ring_source_close(struct ring_source **r);

#endif
