#include "ps/bench/bench_ps.h"

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
#include "shared/report/figure.h"

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
    {"rounds", NULL, "N", "measured rounds of each row, after one for warming up (7)", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
    // Internal: for the processes that the bench starts (bench_roles.h).
    {"as", NULL, "ROLE", NULL, 0},
    {"plan", NULL, "PLAN", NULL, 0},
    {"rank", NULL, "R", NULL, 0},
    {"address", NULL, "A", NULL, 0},
    {"control", NULL, "FD", NULL, 0},
};

static const struct cli_command command = {
    .name = "bench ps",
    .usage = "[--servers N] [--workers N] [--medium M] [OPTIONS]",
    .summary =
        "Runs the star's real scheduler, servers and workers as processes of this host, over payloads of --min-bytes\n"
        "to --max-bytes (units of a made-up model, in partitions of at most --partition), and times: pushes that servers sum, pulls, and both\n"
        "latencies of a payload that is alone (push to acknowledgement, push to new weights); the media in turn in every round.\n"
        "With --peer also ps-lite, whose server adds each push to a sum in fp32.\n"
        "bytes per worker / seconds is a worker's goodput; times workers, divided by servers, it is a server's.",
    .examples =
        "  starring bench ps --min-bytes 1M --max-bytes 1M\n"
        "  starring bench ps --servers 1-4 --workers 2 --medium tcp\n"
        "  starring bench ps --medium tcp --rounds 31 --peer ps-lite\n"
        "  starring bench ps --max-bytes 1M --factor 16 --rounds 3 --json\n",
    CLI_OPTIONS(options),
};

struct range {
    int low, high;
};

struct bench {
    struct bench_request q;
    size_t min_bytes, max_bytes, factor;
    struct range servers, workers;
    const char *peer;  // ps-lite's source folder; NULL: no peer
    bool json;
    cJSON *rows;
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

static int read_options(struct bench *b, const struct cli_args *a) {
    static const char *const media[] = {"both", "tcp", "shm"}, *const types[] = {"bf16", "fp32"};
    const char *dtype = cli_get(a, "dtype");
    const size_t largest = (size_t)64 << 20;
    long rounds, threads, factor;
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
    int medium = bench_word(a, "medium", media, 3), type = bench_word(a, "dtype", types, 2);
    if (medium < 0 || type < 0 || read_range(a, "servers", &b->servers) ||
        read_range(a, "workers", &b->workers) || cli_integer(a, "threads", 1, 4, 1, &threads) ||
        cli_integer(a, "rounds", 1, BENCH_ROUNDS_MOST, 7, &rounds))
        return -1;
    b->q.media[BENCH_TCP] = medium != 2;
    b->q.media[BENCH_SHM] = medium != 1;
    b->q.plan.dtype = type ? DT_F32 : DT_BF16;
    b->q.plan.threads = (int)threads;
    b->q.rounds = (int)rounds;
    b->json = cli_get(a, "json") != NULL;
    b->peer = cli_get(a, "peer");
    if (b->peer && !b->q.media[BENCH_TCP])
        return fail("--peer %s: ps-lite has no shared memory; give --medium tcp or both", b->peer);
    return 0;
}

// Checks the row that uses most memory, before the first row runs.
static int check_memory(const struct bench *b) {
    struct bench_plan p = b->q.plan;
    struct memory_limit limit;
    for (p.bytes = b->min_bytes; p.bytes <= b->max_bytes / b->factor; p.bytes *= b->factor) continue;
    p.servers = b->servers.high;
    p.workers = b->workers.high;
    double need = bench_memory(&p, b->q.media[BENCH_TCP] + b->q.media[BENCH_SHM] + (b->peer != NULL));
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

#define GB(rate) ((rate)*1e-9)
#define US(s)    ((s)*1e6)

// ---------------------------------------------------------------- table
static void print_load(const char *when) {
    double load[1] = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(load, 1) == 1) printf("# load %s: %.1f on %ld cores\n", when, load[0], cores);
}

static void print_head(const struct bench_request *q) {
    printf(
        "# bench ps: %s, medians of %d rounds; GB/s of payload, each worker's (times workers / servers: each "
        "server's)\n",
        dtype_name(q->plan.dtype), q->rounds);
    print_load("before");
    printf("#%9s %3s %3s %5s %6s | %7s %7s | %8s %8s %8s %8s | %7s %7s\n", "bytes", "srv", "wrk", "keys",
           "medium", "push", "pull", "ack us", "p95", "pull us", "p95", "wk s/GB", "sv s/GB");
}

static void print_medium(const struct bench_row *r, enum bench_medium m) {
    const struct bench_star *s = &r->star[m];
    printf("%10zu %3d %3d %5d %6s | %7.3f %7.3f | %8.1f %8.1f %8.1f %8.1f | %7.2f %7.2f\n", r->bytes,
           r->servers, r->workers, r->keys, bench_medium_name(m), GB(bench_worker_rate(r, m, BENCH_PUSH)),
           GB(bench_worker_rate(r, m, BENCH_PULL)), US(bench_series_median(&s->acknowledged)),
           US(bench_series_quantile(&s->acknowledged, 0.95)), US(bench_series_median(&s->landed)),
           US(bench_series_quantile(&s->landed, 0.95)), bench_cpu_per_gb(&s->cpu[BENCH_WORKER]),
           bench_cpu_per_gb(&s->cpu[BENCH_SERVER]));
}

static void print_row(const struct bench_row *r) {
    const struct bench_star *p = &r->peer;
    for (int m = 0; m < BENCH_MEDIA; m++)
        if (r->star[m].there) print_medium(r, (enum bench_medium)m);
    if (bench_shm_over_tcp(r, BENCH_PUSH) > 0)
        printf("#%9zu shm / tcp: push %.2f, pull %.2f\n", r->bytes, bench_shm_over_tcp(r, BENCH_PUSH),
               bench_shm_over_tcp(r, BENCH_PULL));
    if (p->there)
        printf(
            "#%9zu ps-lite: push %.3f, pull %.3f, ack us %.1f; star / ps-lite: push %.2f, pull %.2f, ack %.2f\n",
            r->bytes, GB(bench_timed_rate(&p->moved[BENCH_PUSH])),
            GB(bench_timed_rate(&p->moved[BENCH_PULL])), US(bench_series_median(&p->acknowledged)),
            bench_over_peer(r, BENCH_PUSH), bench_over_peer(r, BENCH_PULL), bench_latency_over_peer(r));
    fflush(stdout);
}

// ---------------------------------------------------------------- JSON
#define WIRE(m) FIGURE_AT(bench_wire, m)
static const struct figure of_wire[] = {
    {"steps", WIRE(steps)},
    {"expected_bytes", WIRE(expected)},
    {"worker_sent_bytes", WIRE(worker_sent)},
    {"worker_received_bytes", WIRE(worker_received)},
    {"server_expected_bytes_per_step", WIRE(server_expected)},
    {"server_sent_bytes_per_step", WIRE(server_sent)},
    {"server_received_bytes_per_step", WIRE(server_received)},
};
#define ROW(m) FIGURE_AT(bench_row, m)
static const struct figure of_rows[] = {{"payload_bytes", ROW(bytes)},
                                        {"servers", ROW(servers)},
                                        {"workers", ROW(workers)},
                                        {"threads", ROW(threads)},
                                        {"keys", ROW(keys)}};

static cJSON *put_timed(cJSON *o, const char *key, const struct bench_timed *t) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    json_put(x, "bytes", t->bytes);
    json_put(x, "seconds", bench_series_median(&t->seconds));
    json_put(x, "bytes_per_second", bench_timed_rate(t));
    json_put(x, "spread", bench_series_spread(&t->seconds));
    json_put(x, "samples", t->seconds.count);
    return x;
}

static void put_latency(cJSON *o, const char *key, const struct bench_series *s) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    json_put(x, "median_us", US(bench_series_median(s)));
    json_put(x, "p95_us", US(bench_series_quantile(s, 0.95)));
    json_put(x, "samples", s->count);
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
    figures_put(cJSON_AddObjectToObject(x, "wire"), FIGURE_ROWS(of_wire), &s->wire);
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

static cJSON *row_json(const struct bench_row *r) {
    cJSON *o = cJSON_CreateObject();
    figures_put(o, FIGURE_ROWS(of_rows), r);
    cJSON *star = cJSON_AddObjectToObject(o, "star");
    for (int m = 0; m < BENCH_MEDIA; m++)
        if (r->star[m].there) put_star(star, r, (enum bench_medium)m);
    if (r->peer.there) put_peer(o, r);
    if (r->star[BENCH_TCP].there && r->star[BENCH_SHM].there) {
        cJSON *over = cJSON_AddObjectToObject(o, "shm_over_tcp");
        json_put(over, "push", bench_shm_over_tcp(r, BENCH_PUSH));
        json_put(over, "pull", bench_shm_over_tcp(r, BENCH_PULL));
    }
    return o;
}

// ---------------------------------------------------------------- rows
static int run_row(struct bench *b) {
    struct bench_row row;
    int interrupted, status = bench_measure_row(&b->q, &row, &interrupted);
    if (!status && b->json) cJSON_AddItemToArray(b->rows, row_json(&row));
    if (!status && !b->json) print_row(&row);
    bench_row_free(&row);
    return status;
}

static int run_rows(struct bench *b) {
    struct bench_plan *p = &b->q.plan;
    for (p->servers = b->servers.low; p->servers <= b->servers.high; p->servers++)
        for (p->workers = b->workers.low; p->workers <= b->workers.high; p->workers++)
            for (p->bytes = b->min_bytes; p->bytes <= b->max_bytes; p->bytes *= b->factor) {
                int status = run_row(b);
                if (status) return status;
                if (p->bytes > SIZE_MAX / b->factor) break;
            }
    return 0;
}

static int run_all(struct bench *b) {
    char *peer = NULL;
    int status;
    double load[1] = {0};
    if (check_memory(b) != 0) return EXIT_USAGE;
    if (b->peer && !(peer = bench_build(b->peer, &status))) return status;
    b->q.peer = peer;
    b->rows = b->json ? cJSON_CreateArray() : NULL;
    if (!b->json) print_head(&b->q);
    status = run_rows(b);
    bench_build_remove(&peer);
    if (status) {
        cJSON_Delete(b->rows);
        return status;
    }
    if (!b->json) {
        print_load("after");
        return 0;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "bench", "ps");
    cJSON_AddStringToObject(o, "dtype", dtype_name(b->q.plan.dtype));
    json_put(o, "rounds", b->q.rounds);
    json_put(o, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    if (getloadavg(load, 1) == 1) json_put(o, "load_at_the_end", load[0]);
    cJSON_AddItemToObject(o, "rows", b->rows);
    json_print(stdout, o);
    cJSON_Delete(o);
    return 0;
}

// Runs a process that the bench has started.
static int take_part(const struct topology_table *t, const struct cli_args *a) {
    static const struct {
        const char *name;
        int (*run)(const struct bench_seat *s);
    } roles[] = {{"scheduler", bench_scheduler}, {"server", bench_server}, {"worker", bench_worker}};
    struct bench_seat s = {.topologies = t, .address = cli_get(a, "address")};
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
        if (!strcmp(as, roles[i].name)) return roles[i].run(&s) ? EXIT_RUN_FAILED : 0;
    fail("bench ps --as %s is for processes that the bench starts itself", as);
    return EXIT_USAGE;
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    struct bench b = {.json = false};
    if (cli_get(a, "as")) return take_part(t, a);
    return read_options(&b, a) ? EXIT_USAGE : run_all(&b);
}

const struct bench_program bench_ps = {"the star: push, pull and latency of a payload", &command, run};
