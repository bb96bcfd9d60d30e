// Reads whether this process was started as one rank of many, and where the ranks meet. This program's own launchers,
// Open MPI's mpirun, Slurm's srun, torchrun and others (the table in rank_env.c) set variables in the environment. If
// a job exists and cannot be joined, that is an error: each of its processes would train the whole job into one
// directory. Pure: reads variables, changes nothing (except rank_env_supervise, _give and _take_back).
//
// The user's choice (--launch, or "launch" in the configuration) overrides variables that a batch script inherits. The
// variables that a rank needs to find its peers override both, so that ranks which mpirun starts with the same options
// do not start mpirun again:
//
//   variables of                          asked: nothing   threads, processes     mpi
//   the program's own launcher            rank             rank                   rank
//   none                                  ordinary run     as asked               starts mpirun
//   an sbatch script (SLURM_*, no step)   ordinary run     as asked               starts mpirun
//   srun (SLURM_STEP_ID)                  rank             as asked               starts mpirun
//   torchrun (RANK, WORLD_SIZE)           rank             as asked               starts mpirun
//   mpiexec (PMI_RANK), and others        rank             as asked               starts mpirun
//   srun --mpi=pmix (.., PMIX_RANK)       rank             as asked               rank
//   mpirun (OMPI_COMM_WORLD_*)            rank             as asked               rank
//
// The address of the rendezvous is the first of these that exists:
//
//   MASTER_ADDR, MASTER_PORT       torchrun's, or the user's. If torchrun itself holds that port
//                                  (TORCHELASTIC_USE_AGENT_STORE), the ranks use a port 1000 away from it
//   all ranks are on one machine   loopback, the port from the number of the job
//   Slurm                          the first host of the step, the port from the number of the job
//   others                         only MASTER_ADDR; without MASTER_PORT the port is 29500, and on one machine it is
//                                  derived from the number of the job, or from the process that has started all ranks
//   mpirun                         MPI sends rank 0's host name: host is "" until run_join has received it
#ifndef STARRING_SHARED_LAUNCH_RANK_ENV_H
#define STARRING_SHARED_LAUNCH_RANK_ENV_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/config/config.h"

enum rank_env_kind {
    RANK_ENV_NONE,
    RANK_ENV_OWN,
    RANK_ENV_MPIRUN,
    RANK_ENV_SLURM,
    RANK_ENV_TORCHRUN,
    RANK_ENV_OTHER  // only rank and size are known
};

struct rank_env {
    enum rank_env_kind kind;
    const char *by;  // the launcher's name: "mpirun", "Slurm's srun", "torchrun", "nobody"; static
    int rank, size;
    int local_size;  // ranks on this machine; 0: unknown
    int local_rank;  // index among the ranks of this machine; 0 if unknown
    bool mpi_ready;  // MPI_Init of this process will find its peers
    char host[256];  // address of the rendezvous; "": not known
    int port;
    bool batch;  // a batch script of several tasks; this process runs none of them
    int memory;  // descriptor of the ranks' shared memory, from this program's own launcher; else -1
};

// Returns 0 (kind NONE: not a rank of many), or -1 after logging the variable with a bad value.
int rank_env_read(struct rank_env *e);
// Returns whether this is one of several ranks that another program has started, each as a process.
bool rank_env_joins(const struct rank_env *e);
// out receives the first host of Slurm's "n[1-3,07],m2". Returns -1 if there is none.
int rank_env_first_host(const char *list, char *out, size_t size);
// Returns the value of e if the user asks for `told`, by the table above: kind NONE if this process is no rank.
struct rank_env rank_env_told(const struct rank_env *e, enum launch_kind told);
// Returns how many ranks a group of "reduce_group": "host" has, those of one machine; 0: not known, or they are not
// consecutive.
int rank_env_group(const struct rank_env *e, int workers);
// Called by a launcher before it starts children: rank_env_supervised is true in them.
void rank_env_supervise(void);
bool rank_env_supervised(void);  // Returns whether a launcher watches this process.
// Sets the variables of the children that are started until rank_env_take_back: the port of their launcher's
// rendezvous on this machine (0: none), and that the child is this rank. rank -1: the child is the whole run, and gets
// only the port. memory -1: none.
void rank_env_give(int port, int rank, int size, int memory);
// Returns the port of the launcher's rendezvous; 0 if this process is no launcher's child.
int rank_env_meeting(void);
void rank_env_take_back(void);

#endif
