#include "decentral/ring.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decentral/collective/hub.h"
#include "decentral/mpi/mpi_load.h"
#include "decentral/nccl/nccl_world.h"
#include "decentral/ring_source.h"
#include "decentral/zero/zero.h"
#include "shared/core/error.h"
#include "shared/core/segment.h"
#include "shared/device/device_choice.h"
#include "shared/launch/launch_ranks.h"
#include "shared/launch/run.h"
#include "shared/launch/stop.h"

static const char *folder_of(const struct offload_config *o) {
    return o->device == OFFLOAD_NVME ? o->nvme_path : NULL;
}

static struct zero_options options_of(const struct config *c, const struct layout *l) {
    return (struct zero_options){.stage = c->variant,
                                 .layout = l,
                                 .dtype = c->dtype,
                                 .optimizer = c->optimizer,
                                 .reduce = c->reduce_native ? REDUCE_NATIVE : REDUCE_ORDERED,
                                 .group = (int)c->reduce_group,
                                 .hpz = (int)c->hpz,
                                 .in_turn = c->no_overlap,
                                 .prefetch = {.bounded = c->prefetch_elements != PREFETCH_AUTO,
                                              .elements = c->prefetch_elements,
                                              .live = c->live_elements},
                                 .buckets = {.reduce = c->reduce_elements, .gather = c->gather_elements},
                                 .accumulation = c->accumulation,
                                 .no_sync = c->no_sync,
                                 .sums_in_fp32 = config_sums_in_fp32(c),
                                 .offload = {.optimizer = c->offload_optimizer.device != OFFLOAD_NONE,
                                             .page_locked = c->offload_optimizer.pin_memory,
                                             .params = c->offload_param.device != OFFLOAD_NONE,
                                             .params_page_locked = c->offload_param.pin_memory,
                                             .ratio = c->offload_optimizer.ratio,
                                             .disk = folder_of(&c->offload_optimizer),
                                             .params_disk = folder_of(&c->offload_param),
                                             .block_bytes = (size_t)c->aio.block_bytes,
                                             .depth = (int)c->aio.depth},
                                 .deadline_s = (double)c->deadline_ms * 1e-3};
}

// ---------------------------------------------------------------- before anything starts
// The ranks of a machine follow each other, or "host" stays unresolved, for check_machine to say why.
static void resolve_group(struct config *c, const struct rank_env *e) {
    if (c->reduce_group != GROUP_HOST) return;
    if (e->kind == RANK_ENV_NONE)
        c->reduce_group = c->workers;
    else if (e->local_size && e->local_rank == e->rank % e->local_size)
        c->reduce_group = e->local_size;
}

// Ranks are processes where there are several, as the star's roles are. On GPUs threads are faster: they reach each other's
// memory. tcp is Open MPI's.
static enum launch_kind default_launch(const struct config *c) {
    if (c->medium == MEDIUM_TCP) return LAUNCH_MPI;
    if (c->medium == MEDIUM_SHM || c->collective == RING_SHM) return LAUNCH_PROCESSES;
    return c->workers > 1 && !config_device(c)->gpu && c->collective == RING_AUTO ? LAUNCH_PROCESSES
                                                                                  : LAUNCH_THREADS;
}

static void resolve(struct config *c, const struct rank_env *e) {
    resolve_group(c, e);
    bool started = e->kind != RANK_ENV_NONE;
    if (e->kind == RANK_ENV_OWN) c->launch = LAUNCH_PROCESSES;
    if (!started && c->launch == LAUNCH_DEFAULT) c->launch = default_launch(c);
    int told = e->local_size ? e->local_size : 1;
    struct ring_machine m = {.launch = started && e->kind != RANK_ENV_OWN ? LAUNCH_MPI : c->launch,
                             .cuda = config_device(c)->gpu,
                             .ranks_here = started ? told : c->workers,
                             .gpus = device_gpus(c)};
    if (c->medium != MEDIUM_AUTO && m.launch != LAUNCH_THREADS)
        m.cuda = false;  // NCCL chooses its own transports
    c->collective = ring_collective_resolve(c->collective, &m);
}

static int check_medium(const struct config *c) {
    const char *name = medium_names[c->medium];
    if (c->collective == RING_NCCL)
        return fail(
            "--medium %s: NCCL chooses its own transports; leave --medium out and steer it by NCCL_P2P_DISABLE=1 "
            "and NCCL_SHM_DISABLE=1, or use --collective shm or mpi",
            name);
    if (c->launch == LAUNCH_THREADS || c->collective == RING_THREADS)
        return fail(
            "--medium %s: ranks that are threads read each other's memory and talk through nothing; use --launch "
            "processes or mpi for ranks that are processes, or leave --medium out",
            name);
    if (c->collective == RING_SHM && c->medium == MEDIUM_TCP)
        return fail(
            "--medium tcp: ranks that are processes of one host share memory; use --launch mpi, whose Open MPI talks "
            "through tcp, or leave --medium out");
    return 0;
}

// Which collectives go with which way of starting ranks, and what to say of the others.
static int check_collective(const struct config *c) {
    static const struct {
        enum ring_collective collective;
        enum launch_kind launch;
        const char *says;
    } apart[] = {
        {RING_MPI, LAUNCH_THREADS,
         "the ranks share one process's memory; use --collective local, or --launch mpi"},
        {RING_MPI, LAUNCH_PROCESSES,
         "nobody tells them where MPI's others are; use --collective shm, or --launch mpi"},
        {RING_SHM, LAUNCH_THREADS,
         "the ranks share one process's memory; use --collective local, or --launch processes"},
        {RING_SHM, LAUNCH_MPI,
         "nobody gives them the memory to share; use --collective mpi, or --launch processes"},
        {RING_THREADS, LAUNCH_PROCESSES,
         "the ranks are processes of their own; use --collective shm, or --launch threads"},
        {RING_THREADS, LAUNCH_MPI,
         "the ranks are processes of their own; use --collective mpi, or --launch threads"},
    };
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        if (apart[i].collective == c->collective && apart[i].launch == c->launch)
            return fail("--collective %s: with --launch %s %s", engine_rows[c->collective].name,
                        launch_rows[c->launch].name, apart[i].says);
    if (c->collective == RING_NCCL && !config_device(c)->gpu)
        return fail(
            "--collective nccl: NCCL moves the memory of GPUs, and --device "
            "is %s; use --device cuda, or --collective auto",
            config_device(c)->name);
    return 0;
}

static int check_groups(const struct config *c) {
    int64_t g = c->reduce_group;
    if (g == GROUP_HOST) return 0;  // of this machine's rank: check_machine
    if (c->workers % g)
        return fail(
            "reduce_group %lld: --workers %d ranks are not groups of %lld; give a number that divides them",
            (long long)g, c->workers, (long long)g);
    if (g == 1 || g == c->workers) return 0;
    if (c->reduce_native)
        return fail(
            "reduce_group %lld: with \"reduce\": \"native\" the library sums in its own order; leave one of them out",
            (long long)g);
    if (c->collective == RING_NCCL)
        return fail(
            "reduce_group %lld: over NCCL ranks do not exchange in groups (NCCL finds the hosts itself, in its own order "
            "of sums); use --collective local, shm or mpi, or leave reduce_group out",
            (long long)g);
    return 0;
}

// Secondary shards of stage 3.
static int check_hpz(const struct config *c) {
    static const char key[] = "zero_optimization.zero_hpz_partition_size";
    int64_t g = c->reduce_group, h = c->hpz;
    if (c->workers % h)
        return fail("%s %lld: --workers %d ranks are not groups of %lld; give a number that divides them",
                    key, (long long)h, c->workers, (long long)h);
    if (h == 1 || h == c->workers) return 0;
    if (g > 1 && g < c->workers && g != h)
        return fail(
            "%s %lld: reduce_group is %lld, and both name the ranks of one host, whose traffic is counted apart; make them "
            "equal, or leave one of them out",
            key, (long long)h, (long long)g);
    if (c->reduce_native)
        return fail(
            "%s %lld: with \"reduce\": \"native\" nobody can tell which bytes of a sum leave a host; leave one of them out",
            key, (long long)h);
    if (c->collective == RING_NCCL)
        return fail(
            "%s %lld: over NCCL ranks do not exchange in groups; use --collective local, shm or mpi, or leave it out",
            key, (long long)h);
    return 0;
}

// Every rank updates with the whole momentum that the exchange ends with, and masks by the whole variance.
static int check_onebit(const struct config *c) {
    if (c->reduce_group > 1 && c->reduce_group < c->workers)
        return fail(
            "optimizer.type %s: every rank tells every other its momentum in one bit, which is not done in groups; leave "
            "reduce_group out",
            c->optimizer.row->name);
    if (zero_policy_of(c->variant)->gather_grads) return 0;
    return fail(
        "optimizer.type %s: every rank keeps the whole momentum and variance, which zero:%d shards (DeepSpeed: "
        "\"1bit-Adam is not compatible with ZeRO\"); use --topology zero:0, or Adam",
        c->optimizer.row->name, c->variant);
}

// One reduction a step is for stages that have several.
static int check_no_sync(const struct config *c) {
    if (c->variant < 2)
        return fail("ring.no_sync: zero:%d reduces whole gradients once a step in any case; leave it out",
                    c->variant);
    if (c->accumulation < 2)
        return fail(
            "ring.no_sync: a step of one micro-batch reduces once in any case; leave it out, or set "
            "gradient_accumulation_steps above 1");
    return 0;
}

// The medium of a ring's ranks, and whether they are threads or processes.
static int check(const struct config *c) {
    if (c->medium != MEDIUM_AUTO && check_medium(c)) return -1;
    if (c->reduce_group && check_groups(c)) return -1;
    if (check_hpz(c)) return -1;
    if (c->no_sync && check_no_sync(c)) return -1;
    if (c->optimizer.row->onebit && check_onebit(c)) return -1;
    return check_collective(c);
}

static int check_rank(const struct config *c, const struct rank_env *e) {
    int most = config_device(c)->gpu ? REDUCE_GPU_MAX : REDUCE_MAX;
    if (c->launch == LAUNCH_PROCESSES && most > HUB_PROCESSES_MAX) most = HUB_PROCESSES_MAX;
    if (c->workers > most)
        return fail("--workers %d: a ring has at most %d ranks%s; --dry-run predicts any number", c->workers,
                    most, most == HUB_PROCESSES_MAX ? " that are processes (--launch threads: more)" : "");
    if (c->collective == RING_MPI && c->launch != LAUNCH_MPI && e->kind == RANK_ENV_NONE)
        return fail(
            "--collective mpi: nobody has started this process as a rank; add "
            "--launch mpi, start it by mpirun -n %d, or use --collective auto",
            c->workers);
    if (e->kind == RANK_ENV_NONE || e->kind == RANK_ENV_OWN) return 0;
    const char *by = rank_env_name(e->kind);
    if (c->collective == RING_THREADS || c->collective == RING_SHM)
        return fail(
            "--collective %s: started by %s, the ranks are processes of "
            "their own; use --collective mpi, or --launch threads or processes",
            engine_rows[c->collective].name, by);
    if (!e->mpi_ready)
        return fail(
            "started by %s as rank %d of %d: the ring meets over MPI in this version; use mpirun -n %d, srun "
            "--mpi=pmix, or --launch processes for ranks that this command starts itself",
            by, e->rank, e->size, e->size);
    if (c->workers != e->size)
        return fail("--workers %d, but %s started %d ranks: make them equal", c->workers, by, e->size);
    if (!c->out) return fail("started by %s: every rank must know the run directory; give --out DIR", by);
    return 0;
}

// A library's own sum needs a library that has one, for this type.
static int check_native(const struct config *c) {
    if (c->workers > 1 && (c->collective == RING_THREADS || c->collective == RING_SHM))
        return fail(
            "\"reduce\": \"native\": ranks of one host that load each other's numbers have no library whose sum could be "
            "taken; use --launch mpi or --collective nccl, or leave \"reduce\" out");
    if (c->workers > 1 && c->collective == RING_MPI && c->dtype != DT_F32)
        return fail(
            "\"reduce\": \"native\": Open MPI has no sum of %s; use --dtype fp32, or leave \"reduce\" out",
            dtype_name(c->dtype));
    return 0;
}

static int check_machine(const struct config *c) {
    const char *why = "";
    if (c->reduce_group == GROUP_HOST)
        return fail(
            "\"reduce_group\": \"host\": the ranks of a machine must be known and follow each other (mpirun --map-by "
            "slot, srun --distribution=block); give reduce_group as the number of ranks of a group instead");
    if (c->reduce_native && check_native(c)) return -1;
    if (config_check_folders(c)) return -1;
    if (c->collective == RING_MPI && !mpi_available(&why)) return fail("Open MPI: %s", why);
    if (c->collective != RING_NCCL || nccl_available(&why)) return 0;
    return fail("--collective nccl: %s", why);
}

static int predict(const struct config *c, const struct layout *l, const char *role, int rank,
                   struct prediction *out) {
    (void)role;
    struct collective_source source =
        ring_source_predicted(c->collective, config_device(c)->gpu, rank, c->workers);
    struct zero_options z = options_of(c, l);
    z.device_memory = config_device(c)->gpu;
    z.source = &source;
    out->state_bytes = (size_t)(l->padded / l->world) * optimizer_bytes(c->optimizer.row, true);
    return zero_predict(&z, &out->memory, &out->wire);
}

static struct topology_formula formula(const struct config *c, const char *role) {
    struct zero_options o = options_of(c, NULL);
    const struct collective_source source = {.size = c->workers};
    o.source = &source;
    const struct zero_policy *p = zero_policy_for(&o);
    struct topology_formula f;
    (void)role;
    textbook_say(f.memory, zero_textbook(p, &o), 'N');
    zero_wire_say(f.wire, sizeof f.wire, p, c->accumulation);
    if (c->optimizer.row->onebit && p->gather_grads) {
        size_t n = strlen(f.wire);
        snprintf(f.wire + n, sizeof f.wire - n, "; compressed: U of 9/64 byte an element");
    }
    return f;
}

// The rounded copy of what this rank keeps of a unit.
static struct topology_allowance allowance(const struct config *c, const char *role,
                                           const struct prediction *p) {
    bool whole = zero_policy_of(c->variant)->weights == RESIDENT_FULL;
    (void)role, (void)p;
    return (struct topology_allowance){.loading_units = 1.0 / (whole ? 1 : c->workers)};
}

static void describe(const struct config *c, struct cJSON *summary) {
    cJSON_AddNumberToObject(summary, "stage", c->variant);
}

// ---------------------------------------------------------------- a rank
static size_t meeting_bytes(const struct config *c) { return SEGMENT_HEAD + hub_bytes(c->workers); }

struct rank {
    const struct job *job;
    struct ring_place place;
    struct ring_source *source;  // as long as the topology
    struct mpi_medium medium;    // of MPI's
};

static struct topology *create(void *ctx, struct device *dev, struct stream *compute) {
    struct rank *r = ctx;
    struct zero_options z = options_of(r->job->config, r->job->layout);
    z.offload.threads = job_threads(r->job);
    r->place.dev = z.dev = dev;
    r->place.deadline_s = z.deadline_s;
    if (ring_source_open(&r->source, r->job->config->collective, &r->place) != 0) return NULL;
    z.compute = compute;
    z.source = ring_source_get(r->source);
    struct topology *t = zero_create(&z);
    if (!t) return NULL;
    bool mpi = r->place.host == RING_MPI, shm = r->place.host == RING_SHM;
    t->launch = launch_rows[mpi ? LAUNCH_MPI : shm ? LAUNCH_PROCESSES : LAUNCH_THREADS].name;
    t->medium = r->job->config->collective == RING_NCCL ? "nccl"
                : mpi                                   ? mpi_medium_name(&r->medium)
                : shm                                   ? "shm"
                                                        : "threads";
    return t;
}

static void end(void *ctx) { ring_source_close(&((struct rank *)ctx)->source); }

static int train(struct rank *r, int local_rank) {
    return session_run(&(struct session_options){.job = r->job,
                                                 .rank = r->place.rank,
                                                 .local_rank = local_rank,
                                                 .create = create,
                                                 .end = end,
                                                 .ctx = r},
                       NULL);
}

// This process is one of those that mpirun started.
static int run_mpi(struct run *r) {
    struct job *j = &r->job;
    struct mpi_world *world;
    struct mpi_medium medium = {.medium = j->config->medium,
                                .ranks_here = r->env.local_size,
                                .ranks = r->env.size,
                                .local_rank = r->env.local_rank};
    int rank, size;
    if (mpi_world_open(&world, &medium, &rank, &size)) return EXIT_RUN_FAILED;
    if (size != j->config->workers) {
        fail("MPI's world has %d ranks, --workers is %d: make them equal", size, j->config->workers);
        return EXIT_USAGE;
    }
    j->dir = j->config->out;
    j->stop = stop_install(rank == 0 ? "this step" : NULL);
    if (rank == 0 && !r->life && run_begin(r)) return EXIT_USAGE;
    if (rank != 0) job_resume_forget(j);
    struct rank own = {
        .job = j, .place = {.host = RING_MPI, .world = world, .rank = rank, .size = size}, .medium = medium};
    int status = stop_status(train(&own, r->env.local_rank), j->stop);
    // Leaving without MPI_Finalize makes mpirun end the other ranks. Where all went well they leave before rank 0
    // evaluates: ranks that wait for one in MPI take its cores.
    if (!status) mpi_world_close(&world);
    return rank == 0 && !r->life ? run_end(r, status, *j->stop) : status;
}

// Or one of those that this program's launcher did.
static int run_process(struct run *r) {
    struct job *j = &r->job;
    struct segment memory;
    int rank = r->env.rank, size = r->env.size, rc = -1;
    if (segment_adopt(&memory, r->env.meeting)) return EXIT_RUN_FAILED;
    if (memory.bytes < meeting_bytes(j->config))
        return fail("the ranks' memory is too small for %d", size), EXIT_RUN_FAILED;
    struct hub *hub = hub_join(segment_data(&memory), rank, size);
    struct rank own = {.job = j, .place = {.host = RING_SHM, .world = hub, .rank = rank, .size = size}};
    j->dir = j->config->out;
    j->stop = stop_install_role(true);
    if (hub) rc = train(&own, r->env.local_rank);
    if (hub && rc) hub_abort(hub, error_last());
    hub_destroy(&hub);
    segment_close(&memory);
    return stop_status(rc, j->stop);
}

static int train_thread(void *job, struct hub *hub, int rank) {
    const struct job *j = job;
    struct rank own = {
        .job = j, .place = {.host = RING_THREADS, .world = hub, .rank = rank, .size = j->config->workers}};
    return train(&own, rank);
}

static int train_threads(const struct job *j) {
    return hub_run(j->config->workers, "--workers", train_thread, (void *)j);
}

static int run(struct run *r) {
    if (r->env.kind == RANK_ENV_NONE) return run_here(r, train_threads);
    return r->env.kind == RANK_ENV_OWN ? run_process(r) : run_mpi(r);
}

// ---------------------------------------------------------------- the row
static bool variant(int stage, struct topology_variant *out) {
    const struct zero_policy *p = zero_policy_of(stage);
    *out = (struct topology_variant){0};
    if (p) snprintf(out->name, sizeof out->name, "%s", p->name);
    return p != NULL;
}

static int parse(const char *text, int *bound) {
    size_t digits = strncmp(text, "zero:", 5) ? 0 : strspn(text + 5, "0123456789");
    int stage = digits > 0 && digits < 10 && !text[5 + digits] ? atoi(text + 5) : -1;
    (void)bound;
    return zero_policy_of(stage) ? stage : -1;
}

const struct topology_row topology_ring = {
    .parse = parse,
    .variant = variant,
    .textbook = 4,
    .takes_stage = true,
    .roles = (const struct topology_role[]){{"worker", offsetof(struct config, workers)}, {0}},
    .default_workers = 2,
    .launches = 1 << LAUNCH_DEFAULT | 1 << LAUNCH_THREADS | 1 << LAUNCH_PROCESSES | 1 << LAUNCH_MPI,
    .launch_advice = "a ring's ranks are started in every way that there is",
    .meeting_bytes = meeting_bytes,
    .takes_groups = true,
    .collectives = true,
    .resolve = resolve,
    .check = check,
    .check_rank = check_rank,
    .check_machine = check_machine,
    .predict = predict,
    .formula = formula,
    .allowance = allowance,
    .describe = describe,
    .run = run,
};
