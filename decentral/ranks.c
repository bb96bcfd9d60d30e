#include "decentral/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/collective/hub.h"
#include "decentral/collective/rank_liveness.h"
#include "decentral/collective/ring_bootstrap.h"
#include "decentral/mpi/mpi_engine.h"
#include "decentral/nccl/nccl_engine.h"
#include "decentral/tcp/collective_tcp.h"
#include "shared/core/error.h"
#include "shared/core/segment.h"
#include "shared/device/device_choice.h"
#include "shared/fabric/address.h"
#include "shared/fabric/rendezvous.h"
#include "shared/launch/joined.h"
#include "shared/launch/stop.h"

#define LOST_POLLS       30
#define LOST_POLL_US     100000
#define SILENT_DEADLINES 1.6

// ---------------------------------------------------------------- sources of collectives
struct ring_source {
    struct collective_source source;
    struct tcp_world *tcp;
    struct job_key key;  // the key of tcp connections
    struct ring_bootstrap bootstrap;
    struct nccl_world *nccl;
};

// Returns how the ranks of one host connect if this program starts them with this --launch.
static enum ring_collective host_of(enum launch_kind launch) {
    return launch_rows[launch].by_others ? RING_MPI : launch_rows[launch].one_each ? RING_SHM : RING_THREADS;
}

// The same for ranks that another launcher may have started: over MPI if it is ready, in shared memory if all ranks are
// on one machine, else over tcp.
static enum ring_collective host_here(const struct config *c, const struct rank_env *e) {
    const char *why;
    if (e->kind == RANK_ENV_NONE || e->kind == RANK_ENV_OWN) return host_of(c->launch);
    if (c->collective == RING_TCP) return RING_TCP;
    if (e->mpi_ready && (e->kind == RANK_ENV_MPIRUN || mpi_available(&why))) return RING_MPI;
    return e->local_size == e->size && c->medium != MEDIUM_TCP ? RING_SHM : RING_TCP;
}

enum ring_collective ring_collective_resolve(enum ring_collective asked, const struct ring_machine *m) {
    const char *why;
    bool alone = m->host == RING_THREADS && m->ranks_here == 1,
         shared = m->gpus > 0 && m->ranks_here > m->gpus;
    if (asked != RING_AUTO) return asked;
    if (m->cuda && !alone && !shared && (m->gpus == 0 || nccl_available(&why))) return RING_NCCL;
    return m->host;
}

// The kinds by their --collective value.
static const struct collective_kind *const kinds[RING_COLLECTIVES] = {
    [RING_AUTO] = &collective_threads_kind,  // used only for predictions
    [RING_THREADS] = &collective_threads_kind, [RING_SHM] = &collective_shm_kind,
    [RING_MPI] = &collective_mpi_kind,         [RING_TCP] = &collective_tcp_kind,
    [RING_NCCL] = &collective_nccl_kind,
};

// r: its worlds that are open already are used.
static struct collective_source source_of(enum ring_collective kind, bool device_memory,
                                          const struct ring_connection *p, const struct ring_source *r) {
    void *world = kind == RING_NCCL ? (void *)r->nccl : kind == RING_TCP ? (void *)r->tcp : p->world;
    return (struct collective_source){.kind = kinds[kind],
                                      .world = world,
                                      .rank = p->rank,
                                      .size = p->size,
                                      .device_memory = device_memory};
}

struct collective_source ranks_predicted(const struct config *c, int rank) {
    return source_of(c->collective, config_device(c)->gpu,
                     &(struct ring_connection){.rank = rank, .size = c->workers}, &(struct ring_source){0});
}

// Each process has resolved "auto" on its own machine; the results may differ.
static int agree(struct ring_source *r, enum ring_collective kind, const struct ring_connection *p) {
    enum ring_collective first = kind;
    if (ring_bootstrap_broadcast(&r->bootstrap, 0, &first, sizeof first) != 0) return -1;
    if (first == kind) return 0;
    fail("rank %d would use --collective %s, rank 0 %s: their machines differ; choose one for all", p->rank,
         engine_rows[kind].name, engine_rows[first].name);
    collective_abort(r->bootstrap.under, error_last());
    return -1;
}

// Ranks over tcp exchange their addresses in the rendezvous, or on one host through the bootstrap.
static int exchange_by_rendezvous(void *rendezvous, const void *mine, size_t bytes, void *all) {
    return rendezvous_allgather(rendezvous, mine, bytes, all);
}

static int exchange_by_bootstrap(void *source, const void *mine, size_t bytes, void *all) {
    struct ring_source *r = source;
    int rc = 0;
    memcpy((char *)all + (size_t)r->source.rank * bytes, mine, bytes);
    for (int i = 0; i < r->source.size && !rc; i++)
        rc = ring_bootstrap_broadcast(&r->bootstrap, i, (char *)all + (size_t)i * bytes, bytes);
    return rc;
}

static int open_tcp(struct ring_source *r, const struct ring_connection *p) {
    bool joined = p->host == RING_TCP;
    r->source = (struct collective_source){.rank = p->rank, .size = p->size};
    char listen[ADDRESS_MAX + 32];
    const char *at = joined ? rendezvous_member(p->world, p->rank)->address : "127.0.0.1";
    endpoint_text(at, 0, listen, sizeof listen);
    // On one host no other user can read the traffic, and a token rejects strangers.
    int keyed = joined ? job_key_given(&r->key) : 0;
    if (keyed < 0) return -1;
    return tcp_world_open(
        &r->tcp, &(struct tcp_world_options){.rank = p->rank,
                                             .size = p->size,
                                             .lives = p->lives,
                                             .listen = listen,
                                             .key = keyed ? &r->key : NULL,
                                             .deadline_s = p->deadline_s,
                                             .meet = joined ? exchange_by_rendezvous : exchange_by_bootstrap,
                                             .ctx = joined ? p->world : r});
}

int ring_source_open(struct ring_source **out, enum ring_collective kind, const struct ring_connection *p) {
    bool device_memory = !dev_host_memory(p->dev), processes = p->host != RING_THREADS;
    bool joined = p->host == RING_TCP;
    struct ring_source *r = xcalloc(1, sizeof *r);
    int rc = joined ? open_tcp(r, p) : 0;
    *out = NULL;
    if (rc == 0 && (kind == RING_NCCL || (kind == RING_TCP && !joined) || (processes && device_memory))) {
        struct collective_source under = source_of(p->host, false, p, r);
        rc = ring_bootstrap_open(&r->bootstrap, &under, p->deadline_s);
        if (rc == 0 && processes && device_memory) rc = agree(r, kind, p);
    }
    if (rc == 0 && kind == RING_TCP && !joined) rc = open_tcp(r, p);
    if (rc == 0 && kind == RING_NCCL)
        rc = nccl_world_open(&r->nccl, &(struct nccl_world_options){.device = p->dev,
                                                                    .rank = p->rank,
                                                                    .size = p->size,
                                                                    .bootstrap = &r->bootstrap,
                                                                    .deadline_s = p->deadline_s});
    if (rc != 0) {
        ring_source_close(&r);
        return -1;
    }
    r->source = source_of(kind, device_memory, p, r);
    *out = r;
    return 0;
}

const struct collective_source *ring_source_get(const struct ring_source *r) { return &r->source; }

void ring_source_close(struct ring_source **source) {
    struct ring_source *r = *source;
    if (!r) return;
    nccl_world_close(&r->nccl);
    ring_bootstrap_close(&r->bootstrap);
    tcp_world_close(&r->tcp);
    job_key_forget(&r->key);
    free(r);
    *source = NULL;
}

// ---------------------------------------------------------------- before anything starts
const struct topology_role ranks_roles[] = {{"worker", offsetof(struct config, workers)}, {0}};

size_t ranks_segment_bytes(const struct config *c) { return SEGMENT_HEAD + hub_bytes(c->workers); }

// Several ranks are processes by default, like the star's roles. On GPUs threads are faster: they reach each other's
// memory.
static enum launch_kind default_launch(const struct config *c) {
    if (c->collective == RING_MPI && c->medium != MEDIUM_AUTO) return LAUNCH_MPI;
    if (c->medium != MEDIUM_AUTO || c->collective == RING_TCP || c->collective == RING_SHM)
        return LAUNCH_PROCESSES;
    return c->workers > 1 && !config_device(c)->gpu && c->collective == RING_AUTO ? LAUNCH_PROCESSES
                                                                                  : LAUNCH_THREADS;
}

void ranks_resolve(struct config *c, const struct rank_env *e) {
    // If the ranks of a machine are not consecutive, "host" stays unresolved, and check_machine reports why.
    int group = rank_env_group(e, c->workers);
    if (c->reduce_group == GROUP_HOST && group) c->reduce_group = group;
    bool started = e->kind != RANK_ENV_NONE;
    if (e->kind == RANK_ENV_OWN) c->launch = LAUNCH_PROCESSES;
    if (!started && c->launch == LAUNCH_DEFAULT) c->launch = default_launch(c);
    bool auto_engine = c->collective == RING_AUTO;
    struct ring_machine m = {.host = host_here(c, e),
                             .cuda = config_device(c)->gpu,
                             .ranks_here = !started        ? c->workers
                                           : e->local_size ? e->local_size
                                                           : 1,
                             .gpus = device_gpus(c)};
    if (c->medium != MEDIUM_AUTO && m.host != RING_THREADS)
        m.cuda = false;  // NCCL chooses its own transports
    c->collective = ring_collective_resolve(c->collective, &m);
    // Processes that connect in shared memory may use tcp for their collectives.
    if (auto_engine && c->collective == RING_SHM && c->medium == MEDIUM_TCP) c->collective = RING_TCP;
}

static int check_medium(const struct config *c) {
    if (c->medium == MEDIUM_AUTO) return 0;
    const char *name = medium_names[c->medium];
    if (c->collective == RING_NCCL)
        return fail(
            "--medium %s: NCCL chooses its own transports; leave --medium out and steer it by NCCL_P2P_DISABLE=1 "
            "and NCCL_SHM_DISABLE=1, or use --collective shm or mpi",
            name);
    if (c->launch == LAUNCH_THREADS || c->collective == RING_THREADS)
        return fail(
            "--medium %s: ranks that are threads read each other's memory and need no medium; use --launch "
            "processes or mpi for ranks that are processes, or leave --medium out",
            name);
    if (c->collective == RING_TCP && c->medium == MEDIUM_SHM)
        return fail(
            "--medium shm: --collective tcp shares no memory; use --collective shm, or leave --medium out");
    if (c->collective == RING_SHM && c->medium == MEDIUM_TCP)
        return fail(
            "--medium tcp: --collective shm is shared memory; use --collective tcp, or leave --collective out");
    return 0;
}

// The launch determines how ranks connect; a --collective that needs another connection is refused.
static int check_collective(const struct config *c) {
    static const enum launch_kind launch_of[RING_COLLECTIVES] = {[RING_THREADS] = LAUNCH_THREADS,
                                                                 [RING_SHM] = LAUNCH_PROCESSES,
                                                                 [RING_TCP] = LAUNCH_PROCESSES,
                                                                 [RING_MPI] = LAUNCH_MPI};
    enum ring_collective host = host_of(c->launch), asked = c->collective;
    const char *why = host == RING_THREADS    ? "the ranks share one process's memory"
                      : asked == RING_THREADS ? "the ranks are processes of their own"
                      : asked == RING_MPI     ? "MPI gives them no addresses of each other"
                      : asked == RING_TCP     ? "the ranks talk over MPI"
                                              : "they have no memory to share";
    if (c->launch != LAUNCH_DEFAULT && launch_of[asked] && c->launch != launch_of[asked])
        return fail("--collective %s: with --launch %s %s; use --collective %s, or --launch %s",
                    engine_rows[asked].name, launch_rows[c->launch].name, why, engine_rows[host].name,
                    launch_rows[launch_of[asked]].name);
    if (c->collective == RING_NCCL && !config_device(c)->gpu)
        return fail(
            "--collective nccl: NCCL moves the memory of GPUs, and --device "
            "is %s; use --device cuda, or --collective auto",
            config_device(c)->name);
    return 0;
}

// On one machine the rendezvous detects a silent rank first. Otherwise the ranks that wait for it do, and their
// message names the operation.
void ranks_rendezvous_options(const struct config *c, struct rendezvous_options *o) {
    if (c->collective != RING_SHM) o->silent_s = SILENT_DEADLINES * o->deadline_s;
    o->beat_s = rendezvous_heartbeat_s(o->deadline_s);
}

int ranks_check(const struct config *c) { return check_medium(c) || check_collective(c) ? -1 : 0; }

int ranks_check_rank(const struct config *c, const struct rank_env *e) {
    int most = config_device(c)->gpu ? REDUCE_GPU_MAX : REDUCE_MAX;
    if (c->launch == LAUNCH_PROCESSES && most > HUB_PROCESSES_MAX) most = HUB_PROCESSES_MAX;
    if (c->workers > most)
        return fail("--workers %d: a ring has at most %d ranks%s; --dry-run predicts any number", c->workers,
                    most, most == HUB_PROCESSES_MAX ? " that are processes (--launch threads: more)" : "");
    if (c->collective == RING_MPI && !launch_rows[c->launch].by_others && e->kind == RANK_ENV_NONE)
        return fail(
            "--collective mpi: this process was not started as a rank; add "
            "--launch mpi, start it by mpirun -n %d, or use --collective auto",
            c->workers);
    if (e->kind == RANK_ENV_NONE || e->kind == RANK_ENV_OWN) return 0;
    const char *by = e->by;
    enum ring_collective host = host_here(c, e);
    if (c->collective == RING_THREADS || (c->collective == RING_SHM && host != RING_SHM))
        return fail(
            "--collective %s: started by %s, the ranks are processes of "
            "their own%s; use --collective %s, or --launch threads or processes",
            engine_rows[c->collective].name, by,
            c->collective == RING_SHM ? ", and not known to be on one machine" : "", engine_rows[host].name);
    if (c->collective == RING_MPI && host != RING_MPI)
        return fail(
            "--collective mpi: started by %s, and MPI gives the ranks no addresses of each other; use --collective %s, mpirun -n "
            "%d or srun --mpi=pmix",
            by, engine_rows[host].name, e->size);
    if (c->workers != e->size)
        return fail("--workers %d, but %s started %d ranks: make them equal", c->workers, by, e->size);
    return 0;
}

// "native" needs a library that can sum this type.
static int check_native(const struct config *c) {
    if (c->workers > 1 && (c->collective == RING_THREADS || c->collective == RING_SHM))
        return fail(
            "\"reduce\": \"native\": ranks of one host that load each other's numbers have no library whose sum could be "
            "taken; use --launch mpi or --collective nccl, or leave \"reduce\" out");
    if (c->workers > 1 && c->collective == RING_TCP)
        return fail(
            "\"reduce\": \"native\": over tcp ranks sum themselves, in rank order; use --launch mpi or --collective nccl, or leave "
            "\"reduce\" out");
    if (c->workers > 1 && c->collective == RING_MPI && c->dtype != DT_F32)
        return fail(
            "\"reduce\": \"native\": Open MPI has no sum of %s; use --dtype fp32, or leave \"reduce\" out",
            dtype_name(c->dtype));
    return 0;
}

int ranks_check_machine(const struct config *c) {
    const char *why = "";
    if (c->reduce_group == GROUP_HOST)
        return fail(
            "\"reduce_group\": \"host\": the ranks of a machine must be known and follow each other (mpirun --map-by "
            "slot, srun --distribution=block); give reduce_group as the number of ranks of a group instead");
    if (c->reduce_native && check_native(c)) return -1;
    if (c->collective == RING_MPI && !mpi_available(&why)) return fail("Open MPI: %s", why);
    if (c->collective != RING_NCCL || nccl_available(&why)) return 0;
    return fail("--collective nccl: %s", why);
}

// ---------------------------------------------------------------- a rank
struct rank {
    const struct job *job;
    ranks_create *create;
    struct ring_connection place;
    struct ring_source *source;  // open as long as the topology exists
    struct mpi_medium medium;    // set with MPI
    const char *by;              // the name of another launcher that started the rank; NULL: this program's
};

static struct topology *create(void *ctx, struct device *dev, struct stream *compute) {
    struct rank *r = ctx;
    r->place.dev = dev;
    r->place.deadline_s = (double)r->job->config->deadline_ms * 1e-3;
    if (ring_source_open(&r->source, r->job->config->collective, &r->place) != 0) return NULL;
    struct topology *t = r->create(&(struct ring_rank){
        .job = r->job, .source = ring_source_get(r->source), .dev = dev, .compute = compute});
    if (!t) return NULL;
    bool mpi = r->place.host == RING_MPI, shm = r->place.host == RING_SHM;
    t->launch = r->by ? r->by : mpi ? "mpirun" : launch_rows[shm ? LAUNCH_PROCESSES : LAUNCH_THREADS].name;
    t->medium = r->job->config->collective == RING_NCCL  ? "nccl"
                : r->job->config->collective == RING_TCP ? "tcp"
                : mpi                                    ? mpi_medium_name(&r->medium)
                : shm                                    ? "shm"
                                                         : "threads";
    return t;
}

static void end(void *ctx) { ring_source_close(&((struct rank *)ctx)->source); }

static int train_rank(struct rank *r, int local_rank) {
    return session_run(&(struct session_options){.job = r->job,
                                                 .rank = r->place.rank,
                                                 .local_rank = local_rank,
                                                 .create = create,
                                                 .end = end,
                                                 .ctx = r},
                       NULL);
}

// Opens the memory that the ranks of one machine share. Their launcher has created it before any rank starts, or rank 0
// creates it and the others open it by its name. The rendezvous reports dead ranks.
static struct hub *join_memory(struct run *r, struct segment *memory, struct rank_liveness *lives) {
    static const char name[] = "ring/memory";
    int rank = r->env.rank, size = r->env.size;
    char text[SEGMENT_NAME_MAX] = "", why[SEGMENT_WHY_MAX];
    *memory = (struct segment){.fd = -1};
    if (r->env.memory >= 0) {
        if (segment_adopt(memory, r->env.memory)) return NULL;
    } else if (rank == 0) {
        if (segment_create(memory, ranks_segment_bytes(r->job.config))) return NULL;
        segment_name(memory, text);
        if (rendezvous_put(r->meet, name, text, sizeof text)) return NULL;
    } else {
        char *found = rendezvous_get(r->meet, name, &(size_t){0});
        if (!found) return NULL;
        int rc = segment_open(memory, found, SEGMENT_WRITE, why);
        free(found);
        if (rc)
            return fail("rank %d cannot share rank 0's memory: %s; use --collective tcp", rank, why), NULL;
    }
    return hub_join(segment_data(memory), rank, size, lives);
}

// The rendezvous of ranks that our launcher's mpirun has started: only MPI can send them its address. Returns 0, or -1
// after logging.
static int open_rendezvous_over_mpi(struct run *r) {
    struct rendezvous_options o = {.rank = r->env.rank,
                                   .size = r->env.size,
                                   .deadline_s = (double)r->config->deadline_ms * 1e-3,
                                   .no_wait = true};
    char host[64] = "127.0.0.1", place[80] = "";
    if (r->env.local_size != o.size) gethostname(host, sizeof host - 1);
    o.host = host;
    ranks_rendezvous_options(r->config, &o);
    if (o.rank == 0 && (r->meet = rendezvous_open(&o)))
        snprintf(place, sizeof place, "%d %s", rendezvous_port(r->meet), host);
    if (r->tell(place, sizeof place) || sscanf(place, "%d %63s", &o.port, host) != 2) return -1;
    if (o.rank) r->meet = rendezvous_open(&o);
    return r->meet ? rendezvous_wait(r->meet, NULL) : -1;
}

// A collective's error names the missing rank. The rendezvous learns shortly afterwards that its machine is gone.
static void log_lost(struct run *r, struct rank_liveness *lives) {
    const char *said = rank_liveness_end_reason(lives);
    for (int i = 0; i < LOST_POLLS && rendezvous_machines(r->meet) > 1; i++, usleep(LOST_POLL_US)) {
        int rank = rendezvous_lost(r->meet);
        const char *why = rendezvous_end_reason(r->meet);
        if (rank < 0 && (!why || (said && strstr(said, why)))) continue;
        if (rank < 0)
            fail("%s", why);
        else
            fail("rank %d on %s has gone", rank, rendezvous_member(r->meet, rank)->host);
        return;
    }
}

// Runs this process as a rank that another program, or this program's launcher, has started.
static int run_rank(struct run *r, ranks_create *create_one, struct rank_liveness *lives) {
    struct job *j = &r->job;
    bool child = r->env.kind == RANK_ENV_OWN, joins = run_meets(r);
    struct mpi_world *world = NULL;
    struct segment memory = {.fd = -1};
    struct rank own = {.job = j,
                       .create = create_one,
                       .place = {.host = host_here(j->config, &r->env),
                                 .lives = lives,
                                 .rank = r->env.rank,
                                 .size = r->env.size},
                       .medium = {.medium = j->config->medium,
                                  .ranks_here = r->env.local_size,
                                  .ranks = r->env.size,
                                  .local_rank = r->env.local_rank},
                       .by = child ? NULL : r->env.by};
    int rank = own.place.rank, status = 0, local_rank = r->env.local_rank;
    bool mpi = own.place.host == RING_MPI;
    if (mpi && mpi_world_open(&world, &own.medium, lives, &own.place.rank, &own.place.size))
        return EXIT_RUN_FAILED;
    if (own.place.size != j->config->workers) {
        fail("MPI's world has %d ranks, --workers is %d: make them equal", own.place.size,
             j->config->workers);
        return EXIT_USAGE;
    }
    j->dir = j->config->out;
    // 1. All ranks enter a rendezvous, and rank 0 begins the run. Children of this program's launcher use its
    //    rendezvous; the ranks of its mpirun open their own.
    if (child && run_join_launcher(r)) return EXIT_RUN_FAILED;
    if (mpi && !joins && r->env.size > 1 && open_rendezvous_over_mpi(r)) return EXIT_RUN_FAILED;
    if (joins && run_join(r, &status)) return status;
    if (!joins && rank == 0 && !r->life && run_begin(r)) return EXIT_USAGE;
    if (!joins && !child && rank != 0) job_resume_clear(j);
    if (joins && !r->env.local_size) local_rank = rendezvous_member(r->meet, rank)->local_rank;
    if (r->meet) rank_liveness_set_rendezvous(lives, r->meet);
    // 2. They train.
    j->stop = child ? stop_install_role(true) : stop_install(rank == 0 && !r->life ? "this step" : NULL);
    struct hub *hub = own.place.host == RING_SHM ? join_memory(r, &memory, lives) : NULL;
    own.place.world = mpi ? (void *)world : hub ? (void *)hub : r->meet;
    status = own.place.host == RING_SHM && !hub ? -1 : train_rank(&own, local_rank);
    if (joins && status) log_lost(r, lives);
    if (child && hub && status) hub_abort(hub, error_last());
    if (child)
        run_leave_launcher(r, !status ? NULL : hub ? end_reason_get(segment_data(&memory)) : error_last());
    if (!child && !joins && r->meet && status) rendezvous_abort(r->meet, error_last());
    if (!child && !joins && rendezvous_close(&r->meet) && !status) status = -1;
    hub_destroy(&hub);
    segment_close(&memory);
    status = stop_status(status, j->stop);
    // 3. A rank that exits without MPI_Finalize makes mpirun kill the other ranks. After a success all ranks finalize
    // before rank 0 evaluates: ranks that wait for a rank in MPI use up its cores.
    if (joins) status = run_part(r, status);
    if (!status) mpi_world_close(&world);
    if (joins) return run_leave(r, status, *j->stop);
    return rank == 0 && !r->life ? run_end(r, status, *j->stop) : status;
}

static int train_thread(void *ctx, struct hub *hub, int rank) {
    struct rank own = *(const struct rank *)ctx;
    own.place = (struct ring_connection){
        .host = RING_THREADS, .world = hub, .rank = rank, .size = own.job->config->workers};
    return train_rank(&own, rank);
}

static int train_threads(void *ctx, const struct job *j) {
    struct rank r = {.job = j, .create = *(ranks_create *const *)ctx};
    return hub_run(j->config->workers, "--workers", train_thread, &r);
}

int ranks_run(struct run *r, ranks_create *create_one) {
    if (r->env.kind == RANK_ENV_NONE) return run_here(r, train_threads, &create_one);
    struct rank_liveness *lives = rank_liveness_open(r->env.rank, r->env.size);
    int status = run_rank(r, create_one, lives);
    rank_liveness_close(&lives);
    return status;
}
