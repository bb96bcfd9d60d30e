// `starring bench collective`: times the primitives of the ring and compares their results to the bit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "decentral/bench/bench_rank.h"
#include "decentral/collective/hub.h"
#include "decentral/collective/rank_liveness.h"
#include "decentral/mpi/mpi_engine.h"
#include "decentral/ranks.h"
#include "shared/bench/bench_work.h"
#include "shared/core/error.h"
#include "shared/core/segment.h"
#include "shared/core/system.h"
#include "shared/core/text.h"
#include "shared/device/device_facts.h"
#include "shared/launch/launch.h"
#include "shared/launch/rank_env.h"
#include "shared/launch/stop.h"

#define DEADLINE_S \
    120.0  // longer than checking the largest buffers takes; no heartbeats exist here, so it is final

struct collective_bench {
    struct bench_run *run;
    struct bench_rank_options o;
    int device;  // index in devices
    enum ring_collective kind;
    const struct backend *backend;
    struct rank_env env;
    enum ring_collective host;  // how the ranks connect
    int ranks, threads;         // threads: of a CPU rank's operations
    int64_t wrong;              // elements, of all ranks
};

static const char *const modes[] = {"ordered", "native"};  // enum reduce_mode
static const char *const devices[] = {"auto", "cpu", "cuda"};

static const struct bench_option options[] = {
    {"op", "LIST", "primitives, with commas between them (all)", BENCH_ASKS},
    {"ranks", "N", "threads, or with --engine shm or tcp processes (2); under mpirun its number of ranks",
     BENCH_INTEGER(collective_bench, ranks, 1, REDUCE_MAX, 0)},
    {"min-bytes", "B", "smallest size; K, M and G are 1024's powers",
     BENCH_SIZE(collective_bench, o.min_bytes, 1 << 10)},
    {"max-bytes", "B", "largest size", BENCH_SIZE(collective_bench, o.max_bytes, 4 << 20)},
    {"factor", "N", "from one size to the next", BENCH_INTEGER(collective_bench, o.factor, 2, 1 << 20, 4)},
    {"iterations", "N", "timed calls of each row",
     BENCH_INTEGER(collective_bench, o.iterations, 1, 1000000, 20)},
    {"warmup", "N", "calls before them", BENCH_INTEGER(collective_bench, o.warmup, 0, 1000000, 5)},
    {"dtype", "D", "fp32, bf16, fp16, fp64, int64 or uint8",
     BENCH_DTYPE(collective_bench, o.dt, DT_COUNT, DT_F32)},
    {"reduce", "R", "ordered: the same bits everywhere; native: the library's own order",
     BENCH_CHOICE(collective_bench, o.mode, modes)},
    {"reduction", "R", "how all_reduce, reduce and reduce_scatter join: sum, min, max, prod or lor",
     BENCH_CHOICE(collective_bench, o.reduction, reduction_names)},
    {"ones", NULL,
     "time nothing: each rank has a 1, all_reduce joins them, each prints what it got (4 ranks: 4.0 four times)",
     BENCH_ASKS},
    {"engine", "E", "auto, threads, shm, mpi, tcp or nccl (auto)", BENCH_ASKS},
    {"device", "D", "cpu, cuda, or auto: GPUs if there are any",
     BENCH_CHOICE(collective_bench, device, devices)},
};

// ---------------------------------------------------------------- the command line
static int read_op(const char *word, const char *list, struct bench_rank_options *o) {
    const char *names[COLLECTIVE_PRIMITIVES];
    int count = 0;
    for (int i = 0; i < COLLECTIVE_PRIMITIVES; i++) {
        enum collective_primitive p = (enum collective_primitive)i;
        if (!bench_has(p)) continue;
        names[count++] = bench_name(p);
        if (strcmp(word, bench_name(p)) != 0) continue;
        o->wanted[p] = true;
        if (collective_reduces(p) && o->dt == DT_U8)
            return fail("--op %s: there is no sum of uint8; use --dtype int64", word);
        return 0;
    }
    const char *near = text_nearest(word, names, count);
    char program[PROGRAM_WORD];
    return near ? fail("--op %s: no such primitive; did you mean %s?", word, near)
                : fail("--op %s: no primitive \"%s\"; %s bench collective --help lists them", list, word,
                       program_word(program));
}

static int read_ops(const struct cli_args *a, struct bench_rank_options *o) {
    const char *list = cli_get(a, "op");
    bool all = !list || !strcmp(list, "all");
    for (int i = 0; i < COLLECTIVE_PRIMITIVES; i++) {
        enum collective_primitive p = (enum collective_primitive)i;
        o->wanted[i] = all && bench_has(p) && !(collective_reduces(p) && o->dt == DT_U8);
    }
    if (all) return 0;
    char *words = xstrdup(list), *rest = words;
    int rc = 0;
    for (char *word; !rc && (word = strsep(&rest, ","));) rc = read_op(word, list, o);
    free(words);
    return rc;
}

static int read_kind(struct collective_bench *b, const struct cli_args *a) {
    const char *names[RING_COLLECTIVES];
    bool cuda = !b->backend->host_memory, mpi = b->env.mpi_ready;
    for (int i = 0; i < RING_COLLECTIVES; i++) names[i] = i == RING_THREADS ? "threads" : engine_rows[i].name;
    const char *asked = cli_get(a, "engine");
    if (asked && !strcmp(asked, "gloo"))
        return fail(
            "--engine gloo was removed: use --engine tcp; experiments/gloo_peer.py times PyTorch's Gloo");
    int kind = bench_choice(a, "engine", names, RING_COLLECTIVES);
    char program[PROGRAM_WORD];
    if (kind < 0) return -1;
    if (kind == RING_MPI && !mpi)
        return fail("--engine mpi: start the ranks with mpirun -n N %s bench collective ..",
                    program_word(program));
    if ((kind == RING_THREADS || kind == RING_SHM || kind == RING_TCP) && mpi)
        return fail("--engine %s: its ranks are %s; start it without mpirun", names[kind],
                    kind == RING_THREADS ? "threads of one process" : "processes that this command starts");
    if (kind == RING_NCCL && !cuda)
        return fail("--engine nccl: NCCL is for GPUs; use --device cuda, or --engine %s",
                    mpi ? "mpi" : "threads");
    int here = mpi && b->env.local_size ? b->env.local_size : b->ranks;
    b->kind =
        ring_collective_resolve((enum ring_collective)kind,
                                &(struct ring_machine){.host = mpi                           ? RING_MPI
                                                               : b->env.kind == RANK_ENV_OWN ? RING_SHM
                                                                                             : RING_THREADS,
                                                       .cuda = cuda,
                                                       .ranks_here = here,
                                                       .gpus = cuda ? backend_devices(b->backend) : 0});
    b->host = mpi ? RING_MPI : kind == RING_SHM || kind == RING_TCP ? RING_SHM : RING_THREADS;
    if (b->kind == RING_TCP && b->o.mode == REDUCE_NATIVE)
        return fail("--reduce native: over tcp ranks sum themselves, in rank order; use --reduce ordered");
    bool half = b->o.dt == DT_BF16 || b->o.dt == DT_F16;
    if (b->kind == RING_MPI && half && b->o.mode == REDUCE_NATIVE)
        return fail("--reduce native: Open MPI has no sum of %s; use --reduce ordered", dtype_name(b->o.dt));
    b->threads = processors_share(here, mpi && processors_bound());
    return 0;
}

static int check_options(struct collective_bench *b, const struct cli_args *a) {
    static const char *const of_times[] = {"op",         "min-bytes", "max-bytes", "factor",
                                           "iterations", "warmup",    "dtype",     "json"};
    const char *why = NULL;
    int asked = b->ranks;
    b->o.ones = cli_get(a, "ones") != NULL;
    b->o.deadline_s = DEADLINE_S;
    for (size_t i = 0; b->o.ones && i < sizeof of_times / sizeof *of_times; i++)
        if (cli_get(a, of_times[i]))
            return fail("--ones times nothing and joins ones of fp32: leave --%s out", of_times[i]);
    b->ranks = b->env.mpi_ready || b->env.kind == RANK_ENV_OWN ? b->env.size : asked ? asked : 2;
    if (asked && b->ranks != asked)
        return fail("--ranks %d: mpirun started %d; leave --ranks out", asked, b->ranks);
    if (read_ops(a, &b->o)) return -1;
    if (b->o.max_bytes < b->o.min_bytes)
        return fail("--max-bytes %zu is below --min-bytes %zu", b->o.max_bytes, b->o.min_bytes);
    b->backend = backend_find(devices[b->device ? b->device : 2], &why);
    if (!b->backend && !b->device) b->backend = backend_find("cpu", &why);
    if (!b->backend) return fail("--device %s: %s", devices[b->device], why);
    if (read_kind(b, a)) return -1;
    // Each rank on this machine has send, receive and staging buffers of the largest size. Host memory is checked here,
    // because an allocation does not fail when it is short.
    int here = b->env.mpi_ready && b->env.local_size ? b->env.local_size : b->ranks;
    char what[80];
    snprintf(what, sizeof what, "--max-bytes %zu: buffers of %d rank%s here take", b->o.max_bytes, here,
             here == 1 ? "" : "s");
    return b->backend->host_memory
               ? bench_check_memory(NULL, 3 * (double)b->o.max_bytes * here, what, "give less")
               : 0;
}

// ---------------------------------------------------------------- figures of rank 0
static void put_figure(cJSON *row, const char *key, const struct bench_row *r, enum bench_place place) {
    const struct bench_figure *f = &r->figure[place];
    if (!f->measured) {
        cJSON_AddNullToObject(row, key);
        return;
    }
    cJSON *o = cJSON_AddObjectToObject(row, key);
    BENCH_PUT(o, NUMBER("seconds", f->seconds),
              NUMBER("algorithm_bytes_per_second", bench_algorithm_rate(r, place)),
              NUMBER("bus_bytes_per_second", bench_bus_rate(r, place)), NUMBER("wrong", f->wrong));
}

static void on_row(void *ctx, const struct bench_row *r) {
    struct collective_bench *b = ctx;
    const struct bench_shape *s = &r->shape;
    cJSON *o = bench_row(b->run, NULL);
    BENCH_PUT(o, TEXT("operation", bench_name(s->what)), NUMBER("size", (double)bench_shape_bytes(s)),
              NUMBER("count", s->count), TEXT("type", s->count ? dtype_name(s->dt) : "none"),
              TEXT("redop", collective_reduces(s->what) ? reduction_names[s->reduction] : "none"),
              NUMBER("root", collective_rooted(s->what) ? 0 : -1), TEXT("by", r->by));
    put_figure(o, "out_of_place", r, OUT_OF_PLACE);
    put_figure(o, "in_place", r, IN_PLACE);
    bench_print_rows(b->run);
}

// ---------------------------------------------------------------- ranks
// Runs a rank. Rank 0 writes the figures.
static int run_rank(struct collective_bench *b, void *world, struct rank_liveness *lives, int rank,
                    int64_t *wrong) {
    struct bench_rank_options o = b->o;
    struct device *dev = NULL;
    struct ring_source *source = NULL;
    struct device_facts facts;
    error_set_label("rank %d", rank);
    struct device_options d = {
        .threads = b->threads, .label = error_label(), .index = rank % backend_devices(b->backend)};
    if (dev_open(b->backend, &d, &dev)) return fail("cannot open the %s device", b->backend->name);
    struct ring_connection place = {.host = b->host,
                                    .world = world,
                                    .lives = lives,
                                    .rank = rank,
                                    .size = b->ranks,
                                    .dev = dev,
                                    .deadline_s = b->o.deadline_s};
    int rc = ring_source_open(&source, b->kind, &place);
    if (rank == 0) o.on_row = on_row, o.ctx = b;
    if (!rc && rank == 0 && !b->backend->host_memory) {
        rc = dev_facts(dev, &facts) ? fail("bench collective: asking the device: %s", dev_error(dev)) : 0;
        if (!rc) bench_put_device(b->run->document, &facts);
    }
    if (!rc) rc = bench_rank_run(&o, ring_source_get(source), dev, wrong);
    ring_source_close(&source);
    dev_close(&dev);
    return rc;
}

static int run_thread(void *ctx, struct hub *hub, int rank) {
    struct collective_bench *b = ctx;
    int64_t wrong = 0;
    int rc = run_rank(b, hub, NULL, rank, &wrong);
    if (rank == 0) b->wrong = wrong;
    return rc;
}

// A failed rank exits without MPI_Finalize, and mpirun kills the others.
static int64_t run_mpi(struct collective_bench *b) {
    int rank, size;
    int64_t wrong = 0;
    struct mpi_world *world;
    struct rank_liveness *lives = rank_liveness_open(b->env.rank, b->env.size);
    if (mpi_world_open(&world, &(struct mpi_medium){0}, lives, &rank, &size) ||
        run_rank(b, world, lives, rank, &wrong))
        wrong = -1;
    else
        mpi_world_close(&world);
    rank_liveness_close(&lives);
    return wrong;
}

// Runs this process as a rank that start_processes has started.
static int64_t run_process(struct collective_bench *b) {
    struct segment memory;
    int64_t wrong = -1;
    if (segment_adopt(&memory, b->env.memory)) return -1;
    struct rank_liveness *lives = rank_liveness_open(b->env.rank, b->env.size);
    struct hub *hub = hub_join(segment_data(&memory), b->env.rank, b->env.size, lives);
    if (run_rank(b, hub, lives, b->env.rank, &wrong)) wrong = -1;
    if (wrong < 0) hub_abort(hub, error_last());
    hub_destroy(&hub);
    rank_liveness_close(&lives);
    segment_close(&memory);
    return wrong;
}

// Starts the same command once per rank. Returns the exit status.
static int start_processes(const struct collective_bench *b, const struct cli_args *a) {
    struct segment memory;
    char *program = launch_self(), **words = xcalloc(2 * a->given_count + 4, sizeof *words);
    size_t n = 0;
    words[n++] = program;
    words[n++] = (char *)"bench";
    words[n++] = (char *)"collective";
    for (size_t i = 0; i < a->given_count; i++) {
        words[n++] = xasprintf("--%s", a->given[i].option->name);
        if (a->given[i].option->metavar) words[n++] = xstrdup(a->given[i].value);
    }
    if (!program || segment_create(&memory, SEGMENT_HEAD + hub_bytes(b->ranks))) return EXIT_RUN_FAILED;
    struct launcher *l = launcher_create(&(struct launch_options){.grace_s = 1, .together = true});
    for (int i = 0, rc = 0; i < b->ranks && !rc; i++) {
        rank_env_give(0, i, b->ranks, memory.fd);
        rc = launcher_start(
            l, &(struct launch_child){
                   .role = "rank", .rank = i, .program = program, .argv = words, .keep_fd = memory.fd});
        if (rc) launcher_end_all(l);
    }
    rank_env_take_back();
    int status = launcher_wait(l);
    launcher_destroy(&l);
    segment_close(&memory);
    for (size_t i = 3; i < n; i++) free(words[i]);
    free(words);
    free(program);
    return status;
}

// ---------------------------------------------------------------- the bench
static int set_up(struct bench_run *r) {
    struct collective_bench *b = r->state;
    cJSON *j = r->document;
    b->run = r;
    // Every rank reads the same options; only rank 0 logs their errors.
    bool ready = !rank_env_read(&b->env);
    error_quiet(b->env.kind != RANK_ENV_NONE && b->env.rank > 0);
    ready = ready && !check_options(b, r->args);
    error_quiet(0);
    if (!ready) return EXIT_USAGE;
    if (b->host == RING_SHM && b->env.kind != RANK_ENV_OWN) {
        int status = start_processes(b, r->args);
        return status ? status : BENCH_END;
    }
    r->silent = b->o.ones || (b->env.kind != RANK_ENV_NONE && b->env.rank > 0);
    BENCH_PUT(j, TEXT("collective", engine_rows[b->kind].name), NUMBER("ranks", b->ranks),
              TEXT("ranks_are", b->host != RING_THREADS ? "processes" : "threads"),
              TEXT("reduce", b->o.mode == REDUCE_NATIVE ? "native" : "ordered"),
              NUMBER("iterations", b->o.iterations), NUMBER("warmup", b->o.warmup));
    return 0;
}

// All ranks of this process, with all their rows.
static int measure(struct bench_run *r) {
    struct collective_bench *b = r->state;
    if (b->env.kind == RANK_ENV_OWN)
        b->wrong = run_process(b);
    else if (b->env.mpi_ready)
        b->wrong = run_mpi(b);
    else if (hub_run(b->ranks, "--ranks", run_thread, b))
        b->wrong = -1;
    return b->wrong < 0 ? EXIT_RUN_FAILED : 0;
}

static int put_wrong(struct bench_run *r) {
    struct collective_bench *b = r->state;
    json_put(r->document, "wrong", (double)b->wrong);
    return 0;
}

static int finish(struct bench_run *r) {
    struct collective_bench *b = r->state;
    if (!b->wrong) return 0;
    fail("bench collective: %lld elements are not what they must be", (long long)b->wrong);
    return EXIT_RUN_FAILED;
}

static void tear_down(struct bench_run *r) { (void)r; }

#define PLACE(title, key)                                                \
    {title "|time", "(us)", "{" key ".seconds:.2u}"},                    \
        {"algbw", "(GB/s)", "{" key ".algorithm_bytes_per_second:.3G}"}, \
        {"busbw", "(GB/s)", "{" key ".bus_bytes_per_second:.3G}"}, {     \
        "#wrong", NULL, "{" key ".wrong}"                                \
    }

const struct bench bench_collective = {
    .about = "the ring's primitives, checked, in the columns of nccl-tests",
    .command =
        {
            .name = "bench collective",
            .usage = "[--op LIST] [--ranks N] [--engine E] [OPTIONS]",
            .summary =
                "Times every primitive that the ring uses, at sizes from --min-bytes to --max-bytes, and compares every\n"
                "element of its results to the bit. Columns and bandwidths are those of nccl-tests: algbw = size / time,\n"
                "busbw = algbw x 2(N-1)/N for all_reduce, x 1 for broadcast, reduce and send_recv, else x (N-1)/N.\n"
                "The primitives: broadcast, scatter, reduce, all_reduce, gather, all_gather, reduce_scatter, all_to_all,\n"
                "send_recv (around a circle in which even ranks send first), barrier. The last column says what the engine really\n"
                "did: memory (ranks load from each other), exchange (messages between two ranks, and sums of our own, in rank order)\n"
                "or library (a collective of the engine's library: its sum is in its own order).",
            .examples =
                "  starring bench collective --ranks 4 --op all_gather,reduce_scatter --dtype bf16 --max-bytes 64M\n"
                "  starring bench collective --ranks 4 --engine shm --op all_reduce\n"
                "  starring bench collective --ranks 4 --engine tcp --dtype bf16\n"
                "  mpirun -n 4 starring bench collective --op all_reduce\n"
                "  starring bench collective --ranks 4 --ones\n"
                "  starring bench collective --device cuda --ranks 2 --json\n",
        },
    BENCH_OPTIONS(options),
    .state_bytes = sizeof(struct collective_bench),
    .set_up = set_up,
    .round = measure,
    .rows = put_wrong,
    .finish = finish,
    .tear_down = tear_down,
    .list = "rows",
    .head = BENCH_LINES(
        {NULL,
         "{collective}, {ranks} rank{ranks:s} as {ranks_are}, reductions {reduce}, {iterations} calls a row after {warmup} for warming up"},
        {NULL, "rank 0: {#device}"}),
    .columns = BENCH_COLUMNS(
        {"operation", NULL, "<{operation}"}, {"size", "(B)", "{size}"}, {"count", "(elements)", "{count}"},
        {"type", NULL, "{type}"}, {"redop", NULL, "{redop}"}, {"root", NULL, "{root}"},
        PLACE("out of place", "out_of_place"), PLACE("in place", "in_place"), {"by", NULL, "<{by}"}),
    .foot = BENCH_LINES({NULL, "elements that are wrong: {wrong}"}),
};
