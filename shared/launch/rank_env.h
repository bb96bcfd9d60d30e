// Was this process started as one rank of many? This program's own launchers, Open MPI's mpirun, Slurm's srun, torchrun and
// others (the table of rank_env.c) say so in the environment, and where the ranks meet (peer.h). A job that is there and
// cannot be joined is an error: each of its processes would train all of it, into one directory. Reading it is pure: reads variables, changes nothing.
//
// The user's choice (--launch, or "launch" in the configuration) wins over the variables that a batch
// script inherits; what a rank needs to find its peers wins over both, so that the ranks which mpirun starts
// with the same options do not start it again:
//
//   variables of                          asked: nothing   threads, processes     mpi
//   the program's own launcher            rank             rank                   rank
//   nobody                                ordinary run     as asked               starts mpirun
//   an sbatch script (SLURM_*, no step)   ordinary run     as asked               starts mpirun
//   srun (SLURM_STEP_ID)                  rank             as asked               starts mpirun
//   torchrun (RANK, WORLD_SIZE)           rank             as asked               starts mpirun
//   mpiexec (PMI_RANK), and others  rank             as asked               starts mpirun
//   srun --mpi=pmix (.., PMIX_RANK)       rank             as asked               rank
//   mpirun (OMPI_COMM_WORLD_*)            rank             as asked               rank
//
// The meeting point, of the first that is there:
//
//   MASTER_ADDR, MASTER_PORT       torchrun's, or the user's. Where torchrun itself holds that port
//                                  (TORCHELASTIC_USE_AGENT_STORE), the ranks take one 1000 away from it
//   all ranks are on one machine   loopback, the port from the number of the job
//   Slurm                          the first host of the step, the port from the number of the job
//   others                         only MASTER_ADDR says it; without MASTER_PORT the port is 29500, and on one machine one made
//                                  of the number of the job, or of the process that has started all
//   mpirun                         where rank 0 is, is told over MPI: host is "" until run_join has asked
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
    RANK_ENV_OTHER  // it names rank and size, and no more
};

struct rank_env {
    enum rank_env_kind kind;
    const char *by;  // what has started it, in words: "mpirun", "Slurm's srun", "torchrun", "nobody"; static
    int rank, size;
    int local_size;  // ranks on this machine; 0: unknown
    int local_rank;  // which of them; 0 where it is unknown
    bool mpi_ready;  // MPI_Init of this process will find its peers
    char host[256];  // where the ranks meet; "": it is not known
    int port;
    bool batch;  // a batch script of several tasks, none of which runs here
    int memory;  // of the own launcher, if it gave one: the descriptor of what the ranks share; else -1
};

// 0 (kind NONE: not a rank of many), or -1 after naming the variable that makes no sense.
int rank_env_read(struct rank_env *e);
// Whether it is one of several ranks, each started by somebody else as a process of its own.
bool rank_env_joins(const struct rank_env *e);
// The first host of Slurm's "n[1-3,07],m2" into out. -1: there is none.
int rank_env_first_host(const char *list, char *out, size_t size);
// The value of e when the user asks for `told`, by the table above: kind NONE where this process is no rank.
struct rank_env rank_env_told(const struct rank_env *e, enum launch_kind told);
// How many ranks a group of "reduce_group": "host" has, one machine's; 0: it is not known, or they do not follow each other.
int rank_env_group(const struct rank_env *e, int workers);
// The launcher, before it starts children: they will know it.
void rank_env_supervise(void);
bool rank_env_supervised(void);  // whether a launcher watches over this process
// For the children that are started until it is taken back: at which port of this machine their launcher's meeting is (0: there
// is none), and that they are that rank; rank -1: the whole run, which is told no more. memory: -1: none.
void rank_env_give(int port, int rank, int size, int memory);
int rank_env_meeting(void);  // the port, of a launcher's child; else 0
void rank_env_take_back(void);

#endif
