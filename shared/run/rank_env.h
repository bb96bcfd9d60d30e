// Was this process started as one rank of many? Open MPI's mpirun, Slurm's srun and torchrun say so in
// the environment. Pure: reads variables, changes nothing.
#ifndef STARRING_SHARED_RUN_RANK_ENV_H
#define STARRING_SHARED_RUN_RANK_ENV_H

#include <stdbool.h>

enum rank_env_kind { RANK_ENV_NONE, RANK_ENV_MPIRUN, RANK_ENV_SLURM, RANK_ENV_TORCHRUN };

struct rank_env {
    enum rank_env_kind kind;
    int rank, size;
    int local_size;  // ranks on this machine; 0: not told
    int local_rank;  // which of them; 0 where it is not told
    bool mpi_ready;  // MPI_Init of this process will find its peers
};

// 0 (kind NONE: not a rank of many), or -1 after naming the variable that makes no sense.
int rank_env_read(struct rank_env *e);
const char *rank_env_name(enum rank_env_kind kind);  // "mpirun", "Slurm's srun", "torchrun"

#endif
