// `starring bench ps`: times pushes, pulls and latencies of a real star on this host, for each medium, and optionally
// ps-lite.
#include "ps/bench/bench_plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ps/bench/bench_roles.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/text.h"
#include "shared/launch/launch.h"
#include "shared/predict/memory_limits.h"

#define RANKS_MOST   4
#define PAYLOAD_MOST ((size_t)256 << 20)
#define PARTITION    ((size_t)1 << 20)  // the default of parameter_server.partition_bytes
#define MEMORY_SHARE 0.9                // of the machine's free memory

static const struct cli_option options[] = {
    {"min-bytes", NULL, "B", "smallest payload; K, M and G are 1024's powers (4K)", 0},
    {"max-bytes", NULL, "B", "largest payload (64M)", 0},
    {"factor", NULL, "N", "from one size to the next (4)", 0},
    {"servers", NULL, "N", "servers, 1 to 4; 1-4: one after the other (1)", 0},
    {"workers", NULL, "N", "workers, likewise (1)", 0},
    {"threads", NULL, "N", "shard threads of a server (1)", 0},
    {"partition", NULL, "B",
     "what the star sends of a payload in one message, at most, as parameter_server.partition_bytes (1M)", 0},
    {"medium", NULL, "M", "what payloads go through: tcp, shm or both (both)", 0},
    {"dtype", NULL, "D", "fp32 or bf16 (bf16)", 0},
    {"peer", NULL, "DIR", "ps-lite's source folder: it is built, and takes its turns beside tcp", 0},
    // Internal: for the processes that the bench starts (bench_roles.h).
    {"as", NULL, "ROLE", NULL, 0},
    {"plan", NULL, "PLAN", NULL, 0},
    {"rank", NULL, "R", NULL, 0},
    {"address", NULL, "A", NULL, 0},
    {"control", NULL, "FD", NULL, 0},
};

struct range {
    int low, high;
};

struct bench_ps {
    struct bench_request q;
    size_t min_bytes, max_bytes, factor;
    struct range servers, workers;
    const char *source;                 // ps-lite's source folder; NULL: no peer
    char *peer;                         // the program that was built of it
    struct bench_processes *processes;  // of the current row
    struct bench_row row;
};

// ---------------------------------------------------------------- the command line
// Reads "2" or "1-4".
static int read_range(const struct cli_args *a, const char *name, struct range *out) {
    const char *text = cli_get(a, name);
    *out = (struct range){1, 1};
    if (!text) return 0;
    const char *behind = text_count(text, &out->low);
    out->high = out->low;
    if (behind && *behind == '-') behind = text_count(behind + 1, &out->high);
    bool good = behind && !*behind && out->low >= 1 && out->low <= out->high && out->high <= RANKS_MOST;
    return good ? 0
                : fail("--%s %s: expected a number from 1 to %d, or a range of them as 1-%d", name,
                       cli_get(a, name), RANKS_MOST, RANKS_MOST);
}

// Checks the bytes of a payload, or of a partition.
static int check_blocks(const struct cli_args *a, const char *name, size_t bytes) {
    if (bytes && bytes % BENCH_BYTES_STEP == 0) return 0;
    return fail("--%s %s: a server's partitions are whole blocks of %d bytes; give a multiple of that", name,
                cli_get(a, name), BENCH_BYTES_STEP);
}

static int read_options(struct bench_ps *b, const struct cli_args *a) {
    static const char *const media[] = {"both", "tcp", "shm"}, *const types[] = {"bf16", "fp32"};
    const char *dtype = cli_get(a, "dtype");
    const size_t largest = (size_t)64 << 20;
    long threads, factor;
    // 1. Sizes.
    if (cli_bytes(a, "min-bytes", (size_t)4 << 10, &b->min_bytes) ||
        cli_bytes(a, "max-bytes", b->min_bytes > largest ? b->min_bytes : largest, &b->max_bytes) ||
        cli_integer(a, "factor", 2, 1 << 20, 4, &factor) ||
        cli_bytes(a, "partition", PARTITION, &b->q.plan.partition) ||
        check_blocks(a, "partition", b->q.plan.partition) || check_blocks(a, "min-bytes", b->min_bytes))
        return -1;
    b->factor = (size_t)factor;
    if (b->max_bytes < b->min_bytes)
        return fail("--max-bytes %s is below --min-bytes; give at least %zu", cli_get(a, "max-bytes"),
                    b->min_bytes);
    if (b->max_bytes > PAYLOAD_MOST)
        return fail("--max-bytes %s: a payload has at most 256M; give that or less", cli_get(a, "max-bytes"));
    // 2. Processes and media.
    if (dtype && !strcmp(dtype, "fp16"))
        return fail(
            "--dtype fp16: its updates always wait for the scheduler's decision about overflow, so a push "
            "has no latency of its own; use bf16, whose payloads are as large");
    int medium = bench_choice(a, "medium", media, 3), type = bench_choice(a, "dtype", types, 2);
    if (medium < 0 || type < 0 || read_range(a, "servers", &b->servers) ||
        read_range(a, "workers", &b->workers) || cli_integer(a, "threads", 1, 4, 1, &threads))
        return -1;
    b->q.media[BENCH_TCP] = medium != 2;
    b->q.media[BENCH_SHM] = medium != 1;
    b->q.plan.dtype = type ? DT_F32 : DT_BF16;
    b->q.plan.threads = (int)threads;
    b->source = cli_get(a, "peer");
    if (b->source && !b->q.media[BENCH_TCP])
        return fail("--peer %s: ps-lite has no shared memory; give --medium tcp or both", b->source);
    return 0;
}

// Checks the row that uses most memory, before the first row runs.
static int check_memory(const struct bench_ps *b) {
    struct bench_plan p = b->q.plan;
    struct memory_limit limit;
    for (p.bytes = b->min_bytes; p.bytes <= b->max_bytes / b->factor; p.bytes *= b->factor) continue;
    p.servers = b->servers.high;
    p.workers = b->workers.high;
    double need = bench_memory(&p, b->q.media[BENCH_TCP] + b->q.media[BENCH_SHM] + (b->source != NULL));
    if (memory_limit_read("", &limit) != 0 || need <= MEMORY_SHARE * limit.free_bytes) return 0;
    return fail(
        "bench ps: %zu bytes a payload, %d servers and %d workers take about %.1f GiB, and %s leaves %.1f GiB; "
        "give a smaller --max-bytes, fewer of them, or one --medium",
        p.bytes, p.servers, p.workers, need / (1 << 30), limit.name, limit.free_bytes / (1 << 30));
}

// ---------------------------------------------------------------- the peer
#define GRACE_S 2.0

// The source text of the peer's program (Makefile).
__asm__(
    ".section .rodata\n"
    "pslite_peer_begin: .incbin \"ps/bench/pslite_peer.cc\"\n"
    "pslite_peer_end:\n"
    ".previous\n");
extern const char pslite_peer_begin[], pslite_peer_end[];

// $1: the source folder, $2: the build folder.
static const char script[] =
    "protoc --cpp_out=\"$2\" --proto_path=\"$1/src\" \"$1/src/meta.proto\" && "
    "c++ -std=c++17 -O3 -march=native -w -I\"$1/include\" -I\"$2\" -o \"$2/peer\" \"$2/peer.cc\" \"$2/meta.pb.cc\" "
    "\"$1/src/customer.cc\" \"$1/src/postoffice.cc\" \"$1/src/van.cc\" -lprotobuf-lite -lzmq -pthread";

// Removes the program and its directory, and sets *program to NULL. Nothing for NULL.
static void bench_build_remove(char **program) {
    static const char *const files[] = {"peer", "peer.cc", "meta.pb.cc", "meta.pb.h"};
    if (!*program) return;
    *strrchr(*program, '/') = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *path = xasprintf("%s/%s", *program, files[i]);
        unlink(path);
        free(path);
    }
    rmdir(*program);
    free(*program);
    *program = NULL;
}

static char *write_source(void) {
    const char *tmp = getenv("TMPDIR");
    char *dir = xasprintf("%s/starring-peer-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(dir)) {
        fail("%s: %s", dir, strerror(errno));
        free(dir);
        return NULL;
    }
    char *program = xasprintf("%s/peer", dir), *path = xasprintf("%s.cc", program);
    size_t size = (uintptr_t)pslite_peer_end - (uintptr_t)pslite_peer_begin;
    FILE *f = fopen(path, "w");
    size_t written = f ? fwrite(pslite_peer_begin, 1, size, f) : 0;
    if (!f || fclose(f) != 0 || written != size) {
        fail("%s: %s", path, strerror(errno));
        bench_build_remove(&program);
    }
    free(path);
    free(dir);
    return program;
}

// Returns the compiler's exit status, or 128 + signal.
static int compile(const char *source, const char *program) {
    struct launch_options o = {.grace_s = GRACE_S};
    char *dir = xasprintf("%.*s", (int)(strrchr(program, '/') - program), program);
    char *const argv[] = {"sh", "-c", (char *)script, "sh", (char *)source, dir, NULL};
    struct launch_child child = {.role = "compiler", .rank = -1, .program = "/bin/sh", .argv = argv};
    struct launcher *l = launcher_create(&o);
    int status = launcher_start(l, &child) ? EXIT_RUN_FAILED : launcher_wait(l);
    launcher_destroy(&l);
    free(dir);
    return status;
}

// Builds ps-lite from its source folder with the bench's own program (pslite_peer.cc), in a temporary directory. Blocks
// until the compiler ends. Returns the path of the program, which the caller passes to bench_build_remove, or NULL
// after logging. *status receives the exit status: 2 if the folder has no source of ps-lite, 128 + signal after a
// signal.
static char *bench_build(const char *source, int *status) {
    char *wanted = xasprintf("%s/src/meta.proto", source), *program = NULL;
    *status = access(wanted, R_OK) ? EXIT_USAGE : EXIT_RUN_FAILED;
    if (*status == EXIT_USAGE)
        fail("--peer %s: %s: %s; give the source folder of ps-lite (github.com/dmlc/ps-lite)", source, wanted,
             strerror(errno));
    else
        program = write_source();
    free(wanted);
    if (!program || !(*status = compile(source, program))) return program;
    if (*status < 128)
        fail(
            "--peer %s: ps-lite could not be built from there; beside its source it takes c++, protoc and the headers "
            "of protobuf and libzmq (apt-get install g++ protobuf-compiler libprotobuf-dev libzmq3-dev)",
            source);
    bench_build_remove(&program);
    return NULL;
}

// ---------------------------------------------------------------- figures
#define US(s) ((s)*1e6)

static cJSON *put_timed(cJSON *o, const char *key, const struct bench_timed *t) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    BENCH_PUT(x, NUMBER("bytes", t->bytes), NUMBER("seconds", bench_series_median(&t->seconds)),
              NUMBER("bytes_per_second", bench_timed_rate(t)),
              NUMBER("spread", bench_series_spread(&t->seconds)), NUMBER("samples", t->seconds.count));
    return x;
}

static void put_latency(cJSON *o, const char *key, const struct bench_series *s) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    BENCH_PUT(x, NUMBER("median_us", US(bench_series_median(s))),
              NUMBER("p95_us", US(bench_series_quantile(s, 0.95))), NUMBER("samples", s->count));
}

static void put_cpu(cJSON *o, const struct bench_star *s) {
    cJSON *cpu = cJSON_AddObjectToObject(o, "cpu_seconds_per_gb");
    for (int role = 0; role < BENCH_ROLES; role++)
        json_put(cpu, bench_role_name((enum bench_role)role), bench_cpu_per_gb(&s->cpu[role]));
}

static void put_star(cJSON *o, const struct bench_row *r, enum bench_medium m) {
    const struct bench_star *s = &r->star[m];
    cJSON *x = cJSON_AddObjectToObject(o, bench_medium_name(m));
    for (int i = 0; i < BENCH_DIRECTIONS; i++) {
        enum bench_direction d = (enum bench_direction)i;
        cJSON *moved = put_timed(x, bench_direction_name(d), &s->moved[d]);
        json_put(moved, "server_bytes_per_second", bench_server_rate(r, m, d));
    }
    put_cpu(x, s);
    put_timed(x, "whole_step", &s->step);
    put_latency(x, "push_to_acknowledgement", &s->acknowledged);
    put_latency(x, "push_to_weights", &s->landed);
    const struct bench_wire *w = &s->wire;
    BENCH_PUT(cJSON_AddObjectToObject(x, "wire"), NUMBER("steps", w->steps),
              NUMBER("expected_bytes", w->expected), NUMBER("worker_sent_bytes", w->worker_sent),
              NUMBER("worker_received_bytes", w->worker_received),
              NUMBER("server_expected_bytes_per_step", w->server_expected),
              NUMBER("server_sent_bytes_per_step", w->server_sent),
              NUMBER("server_received_bytes_per_step", w->server_received));
}

static void put_peer(cJSON *o, const struct bench_row *r) {
    cJSON *x = cJSON_AddObjectToObject(o, "peer");
    cJSON_AddStringToObject(x, "name", "ps-lite");
    cJSON *over = cJSON_AddObjectToObject(x, "star_over_peer");
    for (int i = 0; i < BENCH_DIRECTIONS; i++) {
        enum bench_direction d = (enum bench_direction)i;
        put_timed(x, bench_direction_name(d), &r->peer.moved[d]);
        json_put(over, bench_direction_name(d), bench_over_peer(r, d));
    }
    put_latency(x, "push_to_acknowledgement", &r->peer.acknowledged);
    put_cpu(x, &r->peer);
    json_put(over, "push_to_acknowledgement", bench_latency_over_peer(r));
}

static void put_row(cJSON *o, const struct bench_row *r) {
    BENCH_PUT(o, NUMBER("payload_bytes", r->bytes), NUMBER("servers", r->servers),
              NUMBER("workers", r->workers), NUMBER("threads", r->threads), NUMBER("keys", r->keys));
    cJSON *star = cJSON_AddObjectToObject(o, "star");
    for (int m = 0; m < BENCH_MEDIA; m++)
        if (r->star[m].there) put_star(star, r, (enum bench_medium)m);
    if (r->peer.there) put_peer(o, r);
    if (r->star[BENCH_TCP].there && r->star[BENCH_SHM].there) {
        cJSON *over = cJSON_AddObjectToObject(o, "shm_over_tcp");
        BENCH_PUT(over, NUMBER("push", bench_shm_over_tcp(r, BENCH_PUSH)),
                  NUMBER("pull", bench_shm_over_tcp(r, BENCH_PULL)));
    }
}

static void put_load(cJSON *document, const char *key) {
    double load[1] = {0};
    if (getloadavg(load, 1) == 1) json_put(document, key, load[0]);
}

// ---------------------------------------------------------------- the bench
// Runs a process that the bench has started. Returns the exit status.
static int run_role(const struct bench_run *r) {
    static const struct {
        const char *name;
        int (*run)(const struct bench_role_options *s);
    } roles[] = {{"scheduler", bench_scheduler}, {"server", bench_server}, {"worker", bench_worker}};
    const struct cli_args *a = r->args;
    struct bench_role_options s = {.topologies = r->topologies, .address = cli_get(a, "address")};
    const char *as = cli_get(a, "as");
    long rank, control;
    if (bench_plan_read(&s.plan, cli_get(a, "plan")) ||
        cli_integer(a, "rank", 0, RANKS_MOST - 1, -1, &rank) ||
        cli_integer(a, "control", 3, 1 << 20, -1, &control))
        return EXIT_USAGE;
    s.rank = (int)rank;
    s.control = (int)control;
    error_set_label(rank >= 0 ? "%s %ld" : "%s", as, rank);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(as, roles[i].name)) return roles[i].run(&s) ? EXIT_RUN_FAILED : BENCH_END;
    fail("bench ps --as %s is for processes that the bench starts itself", as);
    return EXIT_USAGE;
}

static int set_up(struct bench_run *r) {
    struct bench_ps *b = r->state;
    int status;
    if (cli_get(r->args, "as")) return run_role(r);
    if (read_options(b, r->args) || check_memory(b)) return EXIT_USAGE;
    if (b->source && !(b->peer = bench_build(b->source, &status))) return status;
    b->q.peer = b->peer;
    BENCH_PUT(r->document, TEXT("dtype", dtype_name(b->q.plan.dtype)),
              NUMBER("cores", (double)sysconf(_SC_NPROCESSORS_ONLN)));
    put_load(r->document, "#load_before");
    return 0;
}

// Selects the next row's plan: all sizes for each number of workers, these for each number of servers. Returns false
// after the last one.
static bool next_plan(struct bench_ps *b, bool first) {
    struct bench_plan *p = &b->q.plan;
    if (!first && p->bytes <= b->max_bytes / b->factor) return p->bytes *= b->factor, true;
    p->bytes = b->min_bytes;
    if (first) {
        p->servers = b->servers.low;
        p->workers = b->workers.low;
    } else if (++p->workers > b->workers.high) {
        p->workers = b->workers.low;
        p->servers++;
    }
    return p->servers <= b->servers.high;
}

static int begin(struct bench_run *r) {
    struct bench_ps *b = r->state;
    return next_plan(b, !r->at) ? bench_processes_start(&b->processes, &b->q, &b->row) : BENCH_END;
}

static int measure(struct bench_run *r) {
    struct bench_ps *b = r->state;
    return bench_processes_round(&b->processes, r->round >= 0);
}

static int put_figures(struct bench_run *r) {
    struct bench_ps *b = r->state;
    int status = bench_processes_end(&b->processes);
    if (!status) put_row(bench_row(r, NULL), &b->row);
    bench_row_free(&b->row);
    return status;
}

static int finish(struct bench_run *r) {
    put_load(r->document, "load_at_the_end");
    return 0;
}

static void tear_down(struct bench_run *r) {
    struct bench_ps *b = r->state;
    bench_row_free(&b->row);
    bench_build_remove(&b->peer);
}

const struct bench bench_ps = {
    .about = "the star: push, pull and latency of a payload",
    .command =
        {
            .name = "bench ps",
            .usage = "[--servers N] [--workers N] [--medium M] [OPTIONS]",
            .summary =
                "Runs the star's real scheduler, servers and workers as processes of this host, over payloads of --min-bytes\n"
                "to --max-bytes (units of a made-up model, in partitions of at most --partition), and times: pushes that servers sum, pulls, and both\n"
                "latencies of a payload that is alone (push to acknowledgement, push to new weights); the media in turn in every round.\n"
                "With --peer also ps-lite, whose server adds each push to a sum in fp32.\n"
                "bytes per worker / seconds is a worker's goodput; times workers, divided by servers, it is a server's.",
            .examples = "  starring bench ps --min-bytes 1M --max-bytes 1M\n"
                        "  starring bench ps --servers 1-4 --workers 2 --medium tcp\n"
                        "  starring bench ps --medium tcp --rounds 31 --peer ps-lite\n"
                        "  starring bench ps --max-bytes 1M --factor 16 --rounds 3 --json\n",
            CLI_OPTIONS(options),
        },
    .state_bytes = sizeof(struct bench_ps),
    .rounds = 7,
    .warm_up = 1,
    .set_up = set_up,
    .begin = begin,
    .round = measure,
    .rows = put_figures,
    .finish = finish,
    .tear_down = tear_down,
    .list = "rows",
    .each = "star",
    .head = BENCH_LINES(
        {NULL,
         "bench ps: {dtype}, medians of {rounds} round{rounds:s}; GB/s of payload, each worker's (times workers / servers: each server's)"},
        {NULL, "load before: {#load_before:.1} on {cores} cores"}),
    .columns = BENCH_COLUMNS({"payload", "bytes", "{payload_bytes}"}, {"servers", NULL, "{servers}"},
                             {"workers", NULL, "{workers}"}, {"keys", NULL, "{keys}"},
                             {"medium", NULL, "<{@}"}, {"push", "GB/s", "{push.bytes_per_second:.3G}"},
                             {"pull", "GB/s", "{pull.bytes_per_second:.3G}"},
                             {"acknowledged|median", "us", "{push_to_acknowledgement.median_us:.1}"},
                             {"p95", "us", "{push_to_acknowledgement.p95_us:.1}"},
                             {"new weights|median", "us", "{push_to_weights.median_us:.1}"},
                             {"p95", "us", "{push_to_weights.p95_us:.1}"},
                             {"processor|worker", "s/GB", "{cpu_seconds_per_gb.worker:.2}"},
                             {"server", "s/GB", "{cpu_seconds_per_gb.server:.2}"}),
    .below = BENCH_LINES(
        {NULL, "{payload_bytes} shm / tcp: push {shm_over_tcp.push:.2}, pull {shm_over_tcp.pull:.2}"},
        {NULL,
         "{payload_bytes} ps-lite: push {peer.push.bytes_per_second:.3G}, pull {peer.pull.bytes_per_second:.3G}, ack us {peer.push_to_acknowledgement.median_us:.1}; star / ps-lite: push {peer.star_over_peer.push:.2}, pull {peer.star_over_peer.pull:.2}, ack {peer.star_over_peer.push_to_acknowledgement:.2}"}),
    .foot = BENCH_LINES({NULL, "load after: {load_at_the_end:.1} on {cores} cores"}),
};
