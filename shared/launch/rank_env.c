#include "shared/launch/rank_env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/launch/stop.h"

#define OWN_RANK    "STARRING_RANK"
#define OWN_SIZE    "STARRING_RANKS"
#define OWN_MEETING "STARRING_MEETING"

#define MASTER_PORT 29500  // torchrun's own, where nobody says another
#define AGENT_AWAY  1000   // from a port that torchrun holds
#define PORT_FIRST  20000  // of those that are made of a job's number; below the ports that kernels hand out
#define PORTS       10000

struct rank_variables {
    enum rank_env_kind kind;
    const char *rank, *size, *local_size, *local_rank;
    const char *job, *step;  // its number, or name; step: without it the variables are only inherited
};

// In this order: mpirun inside a Slurm job sets both, and its own count. A batch script has the variables of a rank 0, and is
// none: it is in no step that srun has started.
static const struct rank_variables variables[] = {
    {RANK_ENV_OWN, OWN_RANK, OWN_SIZE, OWN_SIZE, OWN_RANK, NULL, NULL},
    {RANK_ENV_MPIRUN, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_NAMESPACE", NULL},
    {RANK_ENV_TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK", NULL, NULL},
    {RANK_ENV_SLURM, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", NULL, "SLURM_LOCALID", "SLURM_JOB_ID",
     "SLURM_STEP_ID"},
};

static int read_count(const char *name, int low, int *out) {
    const char *text = getenv(name);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > INT_MAX)
        return fail("environment: %s=%s is not a count; unset it, or have it set by what starts the ranks",
                    name, text);
    *out = (int)value;
    return 0;
}

int rank_env_first_host(const char *list, char *out, size_t size) {
    size_t n = 0;
    for (const char *at = list; *at && *at != ',' && n + 1 < size; at++) {
        if (*at != '[') {
            out[n++] = *at;
            continue;
        }
        // Of each bracket the first number, as it is written: "n[07-12,20]" begins with n07.
        for (at++; *at && !strchr("-,]", *at) && n + 1 < size; at++) out[n++] = *at;
        at = strchr(at, ']');
        if (!at) return -1;
    }
    out[n] = 0;
    return n ? 0 : -1;
}

// The ranks of this node, of Slurm's "4(x2),3" for nodes 0, 1, ..; 0: not known.
static int slurm_local_size(void) {
    const char *at = getenv("SLURM_STEP_TASKS_PER_NODE"), *node = getenv("SLURM_NODEID");
    long left = node ? strtol(node, NULL, 10) : 0;
    while (at && node && *at) {
        char *end;
        long tasks = strtol(at, &end, 10), times = 1;
        if (end == at || tasks < 1 || tasks > INT_MAX) return 0;
        if (!strncmp(end, "(x", 2)) times = strtol(end + 2, &end, 10);
        if (left < times) return (int)tasks;
        left -= times;
        end += *end == ')';
        at = *end == ',' ? end + 1 : "";
    }
    return 0;
}

static int job_port(const struct rank_variables *v) {
    const char *job = v->job ? getenv(v->job) : NULL, *step = v->step ? getenv(v->step) : NULL;
    char *text = xasprintf("%s.%s", job ? job : "", step ? step : "");
    int port = PORT_FIRST + (int)(XXH64(text, strlen(text), 0) % PORTS);
    free(text);
    return port;
}

static int find_meeting(struct rank_env *e, const struct rank_variables *v) {
    const char *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (!nodes) nodes = getenv("SLURM_JOB_NODELIST");
    e->port = e->kind == RANK_ENV_TORCHRUN || e->kind == RANK_ENV_SSH ? MASTER_PORT : job_port(v);
    const char *given = getenv("MASTER_PORT");
    char *end = NULL;
    long port = given ? strtol(given, &end, 10) : e->port;
    if (given && (end == given || *end || port < 1 || port > 65535))
        return fail("environment: MASTER_PORT=%s is no port: give a number from 1 to 65535", given);
    e->port = (int)port;
    if (e->kind == RANK_ENV_TORCHRUN && agent && !strcmp(agent, "True"))
        e->port += e->port + AGENT_AWAY > 65535 ? -AGENT_AWAY : AGENT_AWAY;
    if (address && *address) return snprintf(e->host, sizeof e->host, "%s", address) < 0;
    if (e->local_size == e->size) return snprintf(e->host, sizeof e->host, "127.0.0.1") < 0;
    if (e->kind == RANK_ENV_SLURM && nodes && rank_env_first_host(nodes, e->host, sizeof e->host))
        return fail("environment: no host can be read from the nodes %s; set MASTER_ADDR to that of rank 0",
                    nodes);
    if (*e->host || e->kind == RANK_ENV_MPIRUN) return 0;
    return fail(
        "environment: %s=%d of %s=%d, but where the ranks meet is not said: set MASTER_ADDR to the host of rank 0, and "
        "MASTER_PORT, or unset %s",
        v->rank, e->rank, v->size, e->size, v->rank);
}

bool rank_env_joins(const struct rank_env *e) {
    return e->size > 1 && e->kind != RANK_ENV_NONE && e->kind != RANK_ENV_OWN;
}

int rank_env_read(struct rank_env *e) {
    const char *by = getenv("STARRING_STARTED_BY");
    const char *tasks = getenv("SLURM_STEP_ID") ? NULL : getenv("SLURM_NTASKS");
    *e = (struct rank_env){.size = 1, .meeting = -1, .batch = tasks && strtol(tasks, NULL, 10) > 1};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const struct rank_variables *v = &variables[i];
        if (!getenv(v->rank) || !getenv(v->size) || (v->kind == RANK_ENV_OWN && !stop_supervised())) continue;
        if (v->step && !getenv(v->step)) continue;
        if (read_count(v->rank, 0, &e->rank) || read_count(v->size, 1, &e->size)) return -1;
        if (v->local_size && getenv(v->local_size) && read_count(v->local_size, 1, &e->local_size)) return -1;
        if (getenv(v->local_rank) && read_count(v->local_rank, 0, &e->local_rank)) return -1;
        if (e->rank >= e->size)
            return fail("environment: %s=%d is not below %s=%d", v->rank, e->rank, v->size, e->size);
        e->kind = v->kind == RANK_ENV_TORCHRUN && by && !strcmp(by, "ssh") ? RANK_ENV_SSH : v->kind;
        if (v->kind == RANK_ENV_SLURM) e->local_size = slurm_local_size();
        if (v->kind == RANK_ENV_OWN && read_count(OWN_MEETING, 0, &e->meeting)) return -1;
        // srun --mpi=pmix or pmi2 gives MPI its address book; plain srun does not.
        e->mpi_ready = v->kind == RANK_ENV_MPIRUN ||
                       (v->kind == RANK_ENV_SLURM && (getenv("PMIX_RANK") || getenv("PMI_RANK")));
        // One rank alone is an ordinary run, unless mpirun started it and waits for its MPI_Finalize.
        if (e->size == 1 && v->kind != RANK_ENV_MPIRUN && v->kind != RANK_ENV_OWN) e->kind = RANK_ENV_NONE;
        return rank_env_joins(e) ? find_meeting(e, v) : 0;
    }
    // Ranks that are told half of it would each train all of it, into one directory.
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    if (!rank != !size)
        return fail("environment: %s=%s without %s: set both, or unset it", rank ? "RANK" : "WORLD_SIZE",
                    rank ? rank : size, rank ? "WORLD_SIZE" : "RANK");
    return 0;
}

struct rank_env rank_env_told(const struct rank_env *e, enum launch_kind told) {
    bool stays = told == LAUNCH_DEFAULT || told == LAUNCH_SSH || e->kind == RANK_ENV_OWN ||
                 (launch_rows[told].by_others && e->mpi_ready);
    return stays ? *e : (struct rank_env){.size = 1, .meeting = -1};
}

int rank_env_group(const struct rank_env *e, int workers) {
    if (e->kind == RANK_ENV_NONE) return workers;
    return e->local_size && e->local_rank == e->rank % e->local_size ? e->local_size : 0;
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
    static const char *const names[] = {"nobody",       "its launcher", "mpirun",
                                        "Slurm's srun", "torchrun",     "ssh"};
    return names[kind];
}
