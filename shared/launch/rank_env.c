#include "shared/launch/rank_env.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/system.h"

#define LAUNCHER    "STARRING_LAUNCHER"  // the launcher's process id
#define OWN_RANK    "STARRING_RANK"
#define OWN_SIZE    "STARRING_RANKS"
#define OWN_MEMORY  "STARRING_MEMORY"
#define OWN_MEETING "STARRING_MEETING"

#define MASTER_PORT 29500  // torchrun's default port
#define AGENT_AWAY  1000   // added to the port that torchrun itself uses
// The first port that is made from a job's number; all are below the ephemeral ports.
#define PORT_FIRST 20000
#define PORTS      10000

struct rank_variables {
    enum rank_env_kind kind;
    const char *by, *rank, *size, *local_rank, *local_size;
    const char *nodes;       // the number of machines, where no variable has local_size
    const char *job, *step;  // variables with the job's number or name, and its step
    const char *needs;       // without this variable the others are only inherited, or belong to another row
};

// The first matching row wins. mpirun inside a Slurm job sets both, and its own count. A batch script has the
// variables of rank 0 but is no rank: it is in no step of srun. Hydra (MPICH, Intel MPI, MVAPICH) may itself run in a
// step, one of whose tasks starts all ranks of a node. srun --mpi=pmi2 sets PMI_RANK too, but not MPI_LOCALRANKID.
static const struct rank_variables variables[] = {
    {RANK_ENV_OWN, "its launcher", OWN_RANK, OWN_SIZE, .local_rank = OWN_RANK, .local_size = OWN_SIZE},
    {RANK_ENV_MPIRUN, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK", .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .job = "PMIX_NAMESPACE"},
    {RANK_ENV_TORCHRUN, "torchrun", "RANK", "WORLD_SIZE", .local_rank = "LOCAL_RANK",
     .local_size = "LOCAL_WORLD_SIZE"},
    {RANK_ENV_OTHER, "horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", .local_rank = "HOROVOD_LOCAL_RANK",
     .local_size = "HOROVOD_LOCAL_SIZE"},
    {RANK_ENV_OTHER, "MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
     .local_rank = "MV2_COMM_WORLD_LOCAL_RANK", .local_size = "MV2_COMM_WORLD_LOCAL_SIZE"},
    {RANK_ENV_OTHER, "MVAPICH's mpirun", "MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE",
     .local_rank = "MVP_COMM_WORLD_LOCAL_RANK", .local_size = "MVP_COMM_WORLD_LOCAL_SIZE"},
    {RANK_ENV_OTHER, "mpiexec", "PMI_RANK", "PMI_SIZE", .local_rank = "MPI_LOCALRANKID",
     .local_size = "MPI_LOCALNRANKS", .needs = "MPI_LOCALRANKID"},
    {RANK_ENV_OTHER, "jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
     .local_rank = "JSM_NAMESPACE_LOCAL_RANK", .local_size = "JSM_NAMESPACE_LOCAL_SIZE", .job = "LSB_JOBID"},
    {RANK_ENV_OTHER, "flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", .local_rank = "FLUX_TASK_LOCAL_ID",
     .nodes = "FLUX_JOB_NNODES", .job = "FLUX_JOB_ID"},
    {RANK_ENV_SLURM, "Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", .local_rank = "SLURM_LOCALID",
     .job = "SLURM_JOB_ID", .step = "SLURM_STEP_ID", .needs = "SLURM_STEP_ID"},
    {RANK_ENV_OTHER, "PMI", "PMI_RANK", "PMI_SIZE", .local_rank = "PMI_LOCAL_RANK",
     .local_size = "PMI_LOCAL_SIZE"},
    {RANK_ENV_OTHER, "paddle", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", .job = NULL},
};

// Variables of multi-process jobs that do not give a rank and a size. hosts: the value is JSON that lists one host or
// more.
static const struct {
    const char *name, *of;
    bool hosts;
} unread[] = {
    {"DMLC_ROLE", "ps-lite, which starts a process for each role", false},
    {"PMIX_RANK", "a PMIx launcher such as prterun, which does not report how many ranks there are", false},
    {"SM_HOSTS", "SageMaker, which starts one process on each host", true},
    {"TF_CONFIG", "TensorFlow, whose cluster this process belongs to", true},
};

static int read_count(const char *name, int low, int *out) {
    const char *text = getenv(name);
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > INT_MAX)
        return fail(
            "environment: %s=%s is not a count; unset it, or let the program that starts the ranks set it",
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
        // Takes the first number of each bracket as it is written: "n[07-12,20]" begins with n07.
        for (at++; *at && !strchr("-,]", *at) && n + 1 < size; at++) out[n++] = *at;
        at = strchr(at, ']');
        if (!at) return -1;
    }
    out[n] = 0;
    return n ? 0 : -1;
}

// Returns the number of ranks on this node, from Slurm's "4(x2),3" for nodes 0, 1, ..; 0: not known.
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

// Returns the process that has started the ranks of this machine: the first ancestor that is no rank, or whose
// environment cannot be read.
static int starter_of(const char *rank) {
    struct proc_look look = {.parent = getppid()};
    size_t length = strlen(rank);
    int pid;
    for (bool is_rank = true; (pid = (int)look.parent) > 1 && is_rank;) {
        char *path = xasprintf("/proc/%d/environ", pid), *line = NULL;
        FILE *f = fopen(path, "re");
        is_rank = false;
        for (size_t room = 0; f && !is_rank && getdelim(&line, &room, 0, f) > 0;)
            is_rank = !strncmp(line, rank, length) && line[length] == '=';
        if (f) fclose(f);
        free(line);
        free(path);
        if (is_rank && proc_look(pid, &look)) break;
    }
    return pid;
}

// Returns a port that is the same for all ranks of the job. If the launcher gives the job no number, only its process
// identifies the job, and only on one machine.
static int job_port(const struct rank_variables *v, bool one_machine) {
    const char *job = v->job ? getenv(v->job) : NULL, *step = v->step ? getenv(v->step) : NULL;
    if (!job && v->kind == RANK_ENV_OTHER && !one_machine) return MASTER_PORT;
    char *text = job || v->kind != RANK_ENV_OTHER ? xasprintf("%s.%s", job ? job : "", step ? step : "")
                                                  : xasprintf("%d", starter_of(v->rank));
    int port = PORT_FIRST + (int)(XXH64(text, strlen(text), 0) % PORTS);
    free(text);
    return port;
}

static int find_meeting(struct rank_env *e, const struct rank_variables *v) {
    const char *address = getenv("MASTER_ADDR"), *nodes = getenv("SLURM_STEP_NODELIST");
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (!nodes) nodes = getenv("SLURM_JOB_NODELIST");
    bool one_machine = e->local_size == e->size;
    e->port = e->kind == RANK_ENV_TORCHRUN ? MASTER_PORT : job_port(v, one_machine);
    const char *given = getenv("MASTER_PORT");
    char *end = NULL;
    long port = given ? strtol(given, &end, 10) : e->port;
    if (given && (end == given || *end || port < 1 || port > 65535))
        return fail("environment: MASTER_PORT=%s is no port: give a number from 1 to 65535", given);
    e->port = (int)port;
    if (e->kind == RANK_ENV_TORCHRUN && agent && !strcmp(agent, "True"))
        e->port += e->port + AGENT_AWAY > 65535 ? -AGENT_AWAY : AGENT_AWAY;
    // An IPv6 address in brackets, as in a URL.
    bool brackets = address && *address == '[' && address[strlen(address) - 1] == ']';
    if (address && *address)
        return snprintf(e->host, sizeof e->host, "%.*s", (int)strlen(address) - 2 * brackets,
                        address + brackets) < 0;
    if (one_machine) return snprintf(e->host, sizeof e->host, "127.0.0.1") < 0;
    if (e->kind == RANK_ENV_SLURM && nodes && rank_env_first_host(nodes, e->host, sizeof e->host))
        return fail("environment: no host can be read from the nodes %s; set MASTER_ADDR to that of rank 0",
                    nodes);
    if (*e->host || e->kind == RANK_ENV_MPIRUN) return 0;
    return fail(
        "environment: %s=%d of %s=%d, but the address of rank 0 is not given: set MASTER_ADDR to the host of rank 0, and "
        "MASTER_PORT, or unset %s",
        v->rank, e->rank, v->size, e->size, v->rank);
}

bool rank_env_joins(const struct rank_env *e) {
    return e->size > 1 && e->kind != RANK_ENV_NONE && e->kind != RANK_ENV_OWN;
}

// Returns whether text is a list of more than one host, or TF_CONFIG's cluster has more than one process.
static bool many_hosts(const char *text) {
    cJSON *json = cJSON_Parse(text);
    const cJSON *cluster = json_item(json, "cluster"), *role;
    int count = cJSON_IsArray(json) ? cJSON_GetArraySize(json) : 0;
    cJSON_ArrayForEach(role, cluster) count += cJSON_GetArraySize(role);
    cJSON_Delete(json);
    return count > 1;
}

// Fails if this process seems to be one of many but its rank or size is unknown: otherwise each process would train
// the whole job into one directory. alone: a readable row gives a world of one rank.
static int check_unread(const struct rank_variables *half, bool alone) {
    const char *size = half ? getenv(half->size) : NULL, *rank = half ? getenv(half->rank) : NULL;
    if (half && !alone)
        return fail("environment: %s=%s without %s: set both, or unset it", rank ? half->rank : half->size,
                    rank ? rank : size, rank ? half->size : half->rank);
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        const char *value = getenv(unread[i].name);
        bool excused = alone && !strcmp(unread[i].name, "PMIX_RANK");
        if (!value || excused || (unread[i].hosts && !many_hosts(value))) continue;
        return fail(
            "environment: %s=%.80s is of %s: this program cannot join such a job. On one machine one command starts all ranks "
            "and roles (--workers, --servers); on several, start one process for each rank with RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT set, or use srun, mpirun or torchrun. If it is left over from another job, unset %s",
            unread[i].name, value, unread[i].of, unread[i].name);
    }
    return 0;
}

int rank_env_read(struct rank_env *e) {
    const char *tasks = getenv("SLURM_STEP_ID") ? NULL : getenv("SLURM_NTASKS");
    const struct rank_env none = {
        .by = "nobody", .size = 1, .memory = -1, .batch = tasks && strtol(tasks, NULL, 10) > 1};
    const struct rank_variables *half = NULL;
    bool alone = false;
    *e = none;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++, *e = none) {
        const struct rank_variables *v = &variables[i];
        bool rank = getenv(v->rank), size = getenv(v->size), torch = v->kind == RANK_ENV_TORCHRUN;
        if ((v->kind == RANK_ENV_OWN && !rank_env_supervised()) || (v->needs && !getenv(v->needs))) continue;
        if (!half && rank != size && (rank || torch)) half = v;
        if (!rank || !size) continue;
        if (read_count(v->rank, 0, &e->rank) || read_count(v->size, 1, &e->size)) return -1;
        if (v->local_size && getenv(v->local_size) && read_count(v->local_size, 1, &e->local_size)) return -1;
        if (v->local_rank && getenv(v->local_rank) && read_count(v->local_rank, 0, &e->local_rank)) return -1;
        int nodes = 0;
        if (v->nodes && getenv(v->nodes) && read_count(v->nodes, 1, &nodes)) return -1;
        if (nodes == 1) e->local_size = e->size;
        if (e->rank >= e->size)
            return fail("environment: %s=%d is not below %s=%d", v->rank, e->rank, v->size, e->size);
        e->kind = v->kind;
        e->by = v->by;
        if (v->kind == RANK_ENV_SLURM) e->local_size = slurm_local_size();
        if (v->kind == RANK_ENV_OWN && getenv(OWN_MEMORY) && read_count(OWN_MEMORY, 0, &e->memory)) return -1;
        // srun --mpi=pmix gives Open MPI its address book; plain srun does not, and --mpi=pmi2 does so only for some
        // builds.
        e->mpi_ready = v->kind == RANK_ENV_MPIRUN || (v->kind == RANK_ENV_SLURM && getenv("PMIX_RANK"));
        // One rank is an ordinary run, unless mpirun started it and waits for its MPI_Finalize. Later rows are still
        // checked: another launcher may have started several ranks from a shell that is the only rank of its job.
        if (e->size > 1 || v->kind == RANK_ENV_MPIRUN || v->kind == RANK_ENV_OWN)
            return rank_env_joins(e) ? find_meeting(e, v) : 0;
        alone = true;
        if (torch) half = NULL;
        if (torch) break;
    }
    *e = none;
    return check_unread(half, alone);
}

struct rank_env rank_env_told(const struct rank_env *e, enum launch_kind told) {
    bool stays =
        told == LAUNCH_DEFAULT || e->kind == RANK_ENV_OWN || (launch_rows[told].by_others && e->mpi_ready);
    return stays ? *e : (struct rank_env){.by = "nobody", .size = 1, .memory = -1};
}

int rank_env_group(const struct rank_env *e, int workers) {
    if (e->kind == RANK_ENV_NONE) return workers;
    return e->local_size && e->local_rank == e->rank % e->local_size ? e->local_size : 0;
}

void rank_env_supervise(void) {
    char number[16];
    snprintf(number, sizeof number, "%d", (int)getpid());
    setenv(LAUNCHER, number, 1);
}

bool rank_env_supervised(void) {
    const char *launcher = getenv(LAUNCHER);
    return launcher && atoi(launcher) == (int)getppid();
}

static const char *const own[] = {OWN_MEETING, OWN_RANK, OWN_SIZE, OWN_MEMORY};

void rank_env_give(int port, int rank, int size, int memory) {
    const int values[] = {port, rank, size, memory};
    for (size_t i = 0; i < sizeof own / sizeof *own && values[i] >= 0; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", values[i]);
        setenv(own[i], text, 1);
    }
}

int rank_env_meeting(void) {
    int port = 0;
    return rank_env_supervised() && getenv(OWN_MEETING) && !read_count(OWN_MEETING, 0, &port) ? port : 0;
}

void rank_env_take_back(void) {
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) unsetenv(own[i]);
}
