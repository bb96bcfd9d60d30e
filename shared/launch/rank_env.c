#include "shared/launch/rank_env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define OWN_RANK    "STARRING_RANK"
#define OWN_SIZE    "STARRING_RANKS"
#define OWN_MEETING "STARRING_MEETING"

struct rank_variables {
    enum rank_env_kind kind;
    const char *rank, *size, *local_size, *local_rank;
};

// In this order: mpirun inside a Slurm job sets both, and its own count.
static const struct rank_variables variables[] = {
    {RANK_ENV_OWN, OWN_RANK, OWN_SIZE, OWN_SIZE, OWN_RANK},
    {RANK_ENV_MPIRUN, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK"},
    {RANK_ENV_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"},
    {RANK_ENV_SLURM, "SLURM_PROCID", "SLURM_NTASKS", NULL, "SLURM_LOCALID"},
};

static int read_count(const char *name, int low, int *out) {
    const char *text = getenv(name);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > INT_MAX)
        return fail("environment: %s=%s is not a count; unset it or start the ranks with mpirun", name, text);
    *out = (int)value;
    return 0;
}

int rank_env_read(struct rank_env *e) {
    *e = (struct rank_env){.size = 1, .meeting = -1};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const struct rank_variables *v = &variables[i];
        if (!getenv(v->rank) || !getenv(v->size) || (v->kind == RANK_ENV_OWN && !stop_supervised())) continue;
        if (read_count(v->rank, 0, &e->rank) || read_count(v->size, 1, &e->size)) return -1;
        if (v->local_size && getenv(v->local_size) && read_count(v->local_size, 1, &e->local_size)) return -1;
        if (getenv(v->local_rank) && read_count(v->local_rank, 0, &e->local_rank)) return -1;
        if (e->rank >= e->size)
            return fail("environment: %s=%d is not below %s=%d", v->rank, e->rank, v->size, e->size);
        e->kind = v->kind;
        if (v->kind == RANK_ENV_OWN && read_count(OWN_MEETING, 0, &e->meeting)) return -1;
        // srun --mpi=pmix or pmi2 gives MPI its address book; plain srun does not.
        e->mpi_ready = v->kind == RANK_ENV_MPIRUN ||
                       (v->kind == RANK_ENV_SLURM && (getenv("PMIX_RANK") || getenv("PMI_RANK")));
        // One rank alone is an ordinary run, unless mpirun started it and waits for its MPI_Finalize.
        if (e->size == 1 && v->kind != RANK_ENV_MPIRUN && v->kind != RANK_ENV_OWN) e->kind = RANK_ENV_NONE;
        return 0;
    }
    return 0;
}

struct rank_env rank_env_told(const struct rank_env *e, enum launch_kind told) {
    bool stays = told == LAUNCH_DEFAULT || told == LAUNCH_SSH || e->kind == RANK_ENV_OWN ||
                 (launch_rows[told].by_others && e->mpi_ready);
    return stays ? *e : (struct rank_env){.size = 1, .meeting = -1};
}

void rank_env_give(int rank, int size, int meeting) {
    const struct {
        const char *name;
        int value;
    } all[] = {{OWN_RANK, rank}, {OWN_SIZE, size}, {OWN_MEETING, meeting}};
    for (size_t i = rank < 0 ? 2 : 0; i < sizeof all / sizeof *all; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", all[i].value);
        setenv(all[i].name, text, 1);
    }
}

int rank_env_meeting(void) {
    int fd = -1;
    return stop_supervised() && getenv(OWN_MEETING) && !read_count(OWN_MEETING, 0, &fd) ? fd : -1;
}

void rank_env_take_back(void) {
    unsetenv(OWN_RANK);
    unsetenv(OWN_SIZE);
    unsetenv(OWN_MEETING);
}

const char *rank_env_name(enum rank_env_kind kind) {
    static const char *const names[] = {"nobody", "its launcher", "mpirun", "Slurm's srun", "torchrun"};
    return names[kind];
}
