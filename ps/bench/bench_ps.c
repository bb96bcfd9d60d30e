// `starring bench ps`: times pushes, pulls and latencies of a real star on this host, for each medium, and optionally
// ps-lite.
#include "ps/bench/bench_measure.h"

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

#define PAYLOAD_MOST ((size_t)256 << 20)
#define PARTITION    ((size_t)1 << 20)  // the default of parameter_server.partition_bytes
#define MEMORY_SHARE 0.9                // the share of the machine's free memory that the processes may use

struct range {
    int low, high;
};

struct bench_ps {
    struct bench_plan plan;  // the plan of the current row, without kind and medium
    size_t min_bytes, max_bytes, factor;
    int medium;  // index in media
    struct range servers, workers;
    const char *source;              // ps-lite's source folder; NULL: no peer
    char *peer;                      // the program that was built from it
    struct bench_stars s;            // the stars of the current row
    struct bench_role_options role;  // for a process that the bench has started
    const char *as, *role_plan;      // NULL: this process is the bench
};

static const char *const media[] = {"both", "tcp", "shm"};

static const struct bench_option options[] = {
    {"min-bytes", "B", "smallest payload; K, M and G are 1024's powers",
     BENCH_SIZE(bench_ps, min_bytes, 4 << 10)},
    {"max-bytes", "B", "largest payload (64M)", BENCH_SIZE(bench_ps, max_bytes, 0)},
    {"factor", "N", "from one size to the next", BENCH_INTEGER(bench_ps, factor, 2, 1 << 20, 4)},
    {"servers", "N", "servers, 1 to 4; 1-4: one after the other (1)", BENCH_ASKS},
    {"workers", "N", "workers, likewise (1)", BENCH_ASKS},
    {"threads", "N", "shard threads of a server", BENCH_INTEGER(bench_ps, plan.threads, 1, 4, 1)},
    {"partition", "B",
     "what the star sends of a payload in one message, at most, as parameter_server.partition_bytes",
     BENCH_SIZE(bench_ps, plan.partition, PARTITION)},
    {"medium", "M", "what payloads go through: tcp, shm or both", BENCH_CHOICE(bench_ps, medium, media)},
    {"dtype", "D", "fp32 or bf16", BENCH_DTYPE(bench_ps, plan.dtype, 3, DT_BF16)},
    {"peer", "DIR", "ps-lite's source folder: it is built, and measured in turn with tcp",
     BENCH_STRING(bench_ps, source, NULL)},
    // Internal: for the processes that the bench starts (bench_roles.h).
    {"as", "ROLE", NULL, BENCH_STRING(bench_ps, as, NULL)},
    {"plan", "PLAN", NULL, BENCH_STRING(bench_ps, role_plan, NULL)},
    {"rank", "R", NULL, BENCH_INTEGER(bench_ps, role.rank, 0, BENCH_RANKS_MOST - 1, -1)},
    {"address", "A", NULL, BENCH_STRING(bench_ps, role.address, NULL)},
    {"control", "FD", NULL, BENCH_INTEGER(bench_ps, role.control, 3, 1 << 20, -1)},
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
    bool good = behind && !*behind && out->low >= 1 && out->low <= out->high && out->high <= BENCH_RANKS_MOST;
    return good ? 0
                : fail("--%s %s: expected a number from 1 to %d, or a range of them as 1-%d", name,
                       cli_get(a, name), BENCH_RANKS_MOST, BENCH_RANKS_MOST);
}

// Checks the bytes of a payload, or of a partition.
static int check_blocks(const struct cli_args *a, const char *name, size_t bytes) {
    if (bytes && bytes % BENCH_BYTES_STEP == 0) return 0;
    return fail("--%s %s: a server's partitions are whole blocks of %d bytes; give a multiple of that", name,
                cli_get(a, name), BENCH_BYTES_STEP);
}

static int check_options(struct bench_ps *b, const struct cli_args *a) {
    const size_t largest = (size_t)64 << 20;
    if (check_blocks(a, "partition", b->plan.partition) || check_blocks(a, "min-bytes", b->min_bytes))
        return -1;
    if (!b->max_bytes) b->max_bytes = b->min_bytes > largest ? b->min_bytes : largest;
    if (b->max_bytes < b->min_bytes)
        return fail("--max-bytes %s is below --min-bytes; give at least %zu", cli_get(a, "max-bytes"),
                    b->min_bytes);
    if (b->max_bytes > PAYLOAD_MOST)
        return fail("--max-bytes %s: a payload has at most 256M; give that or less", cli_get(a, "max-bytes"));
    if (b->plan.dtype == DT_F16)
        return fail(
            "--dtype fp16: its updates always wait for the scheduler's decision about overflow, so a push "
            "has no latency of its own; use bf16, whose payloads are as large");
    if (read_range(a, "servers", &b->servers) || read_range(a, "workers", &b->workers)) return -1;
    if (b->source && b->medium == 2)
        return fail("--peer %s: ps-lite has no shared memory; give --medium tcp or both", b->source);
    return 0;
}

// Checks the row that uses most memory, before the first row runs.
static int check_memory(const struct bench_ps *b) {
    struct bench_plan p = b->plan;
    char what[120];
    for (p.bytes = b->min_bytes; p.bytes <= b->max_bytes / b->factor; p.bytes *= b->factor) continue;
    p.servers = b->servers.high;
    p.workers = b->workers.high;
    double need = bench_memory(&p, (b->medium ? 1 : 2) + (b->source != NULL));
    snprintf(what, sizeof what, "bench ps: %zu bytes a payload, %d servers and %d workers take", p.bytes,
             p.servers, p.workers);
    return bench_check_memory(NULL, need / MEMORY_SHARE, what,
                              "give a smaller --max-bytes, fewer of them, or one --medium");
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
            "--peer %s: ps-lite could not be built from there; besides its source this needs c++, protoc and the headers "
            "of protobuf and libzmq (apt-get install g++ protobuf-compiler libprotobuf-dev libzmq3-dev)",
            source);
    bench_build_remove(&program);
    return NULL;
}

// ---------------------------------------------------------------- figures
static const char *const directions[BENCH_DIRECTIONS] = {"push", "pull"};

static double step_bytes(const struct bench_star *s) {  // bytes of one worker, each way
    return (double)bench_keys(&s->plan) * (double)s->plan.bytes;
}

static cJSON *put_timed(cJSON *o, const char *key, const struct bench_star *s,
                        const struct bench_series *seconds) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    BENCH_PUT(x, NUMBER("bytes", step_bytes(s)), NUMBER("seconds", bench_series_median(seconds)),
              NUMBER("bytes_per_second", bench_ratio(step_bytes(s), bench_series_median(seconds))),
              NUMBER("spread", bench_series_spread(seconds)), NUMBER("samples", seconds->count));
    return x;
}

static void put_latency(cJSON *o, const char *key, const struct bench_series *s) {
    cJSON *x = cJSON_AddObjectToObject(o, key);
    BENCH_PUT(x, NUMBER("median_us", 1e6 * bench_series_median(s)),
              NUMBER("p95_us", 1e6 * bench_series_quantile(s, 0.95)), NUMBER("samples", s->count));
}

static void put_cpu(cJSON *o, const struct bench_star *s) {
    double gb = 2e-9 * step_bytes(s) * s->plan.workers * s->moved[BENCH_PULL].count;
    BENCH_PUT(cJSON_AddObjectToObject(o, "cpu_seconds_per_gb"),
              NUMBER("worker", bench_ratio(s->cpu_s[BENCH_WORKER], gb)),
              NUMBER("server", bench_ratio(s->cpu_s[BENCH_SERVER], gb)),
              NUMBER("scheduler", bench_ratio(s->cpu_s[BENCH_SCHEDULER], gb)));
}

static void put_star(cJSON *o, const char *medium, const struct bench_star stars[BENCH_KINDS]) {
    const struct bench_star *s = &stars[BENCH_STREAM], *alone = &stars[BENCH_LATENCY];
    const struct bench_series *acknowledged =
        s->plan.medium == BENCH_TCP ? &s->acknowledged : &alone->acknowledged;
    cJSON *x = cJSON_AddObjectToObject(o, medium);
    for (int d = 0; d < BENCH_DIRECTIONS; d++) {
        cJSON *moved = put_timed(x, directions[d], s, &s->moved[d]);
        json_put(moved, "server_bytes_per_second",
                 json_number(moved, "bytes_per_second") * s->plan.workers / s->plan.servers);
    }
    put_cpu(x, s);
    put_timed(x, "whole_step", s, &s->step);
    put_latency(x, "push_to_acknowledgement", acknowledged);
    put_latency(x, "push_to_weights", &alone->landed);
    BENCH_PUT(cJSON_AddObjectToObject(x, "wire"), NUMBER("steps", s->steps),
              NUMBER("expected_bytes", (double)s->steps * step_bytes(s)),
              NUMBER("worker_sent_bytes", s->sent[BENCH_WORKER]),
              NUMBER("worker_received_bytes", s->received[BENCH_WORKER]),
              NUMBER("server_expected_bytes_per_step", step_bytes(s) * s->plan.workers / s->plan.servers),
              NUMBER("server_sent_bytes_per_step", s->sent[BENCH_SERVER]),
              NUMBER("server_received_bytes_per_step", s->received[BENCH_SERVER]));
}

// Ratios of goodput are the median of the rounds' ratios; that of latency is of the medians.
static void put_peer(cJSON *o, const struct bench_star *peer, const struct bench_star *tcp) {
    cJSON *x = cJSON_AddObjectToObject(o, "peer");
    cJSON_AddStringToObject(x, "name", "ps-lite");
    cJSON *over = cJSON_AddObjectToObject(x, "star_over_peer");
    for (int d = 0; d < BENCH_DIRECTIONS; d++) {
        put_timed(x, directions[d], peer, &peer->moved[d]);
        json_put(over, directions[d], bench_series_ratio(&peer->moved[d], &tcp->moved[d]));
    }
    put_latency(x, "push_to_acknowledgement", &peer->acknowledged);
    put_cpu(x, peer);
    json_put(over, "push_to_acknowledgement",
             bench_ratio(bench_series_median(&tcp->acknowledged), bench_series_median(&peer->acknowledged)));
}

static void put_row(cJSON *o, const struct bench_stars *s) {
    const struct bench_star *tcp = &s->stars[BENCH_TCP][BENCH_STREAM],
                            *shm = &s->stars[BENCH_SHM][BENCH_STREAM];
    const struct bench_plan *p = tcp->wanted ? &tcp->plan : &shm->plan;
    BENCH_PUT(o, NUMBER("payload_bytes", p->bytes), NUMBER("servers", p->servers),
              NUMBER("workers", p->workers), NUMBER("threads", p->threads), NUMBER("keys", bench_keys(p)));
    cJSON *star = cJSON_AddObjectToObject(o, "star");
    if (tcp->wanted) put_star(star, "tcp", s->stars[BENCH_TCP]);
    if (shm->wanted) put_star(star, "shm", s->stars[BENCH_SHM]);
    if (s->peer.wanted) put_peer(o, &s->peer, tcp);
    if (!tcp->wanted || !shm->wanted) return;
    cJSON *over = cJSON_AddObjectToObject(o, "shm_over_tcp");
    for (int d = 0; d < BENCH_DIRECTIONS; d++)
        json_put(over, directions[d],
                 bench_ratio(bench_series_median(&tcp->moved[d]), bench_series_median(&shm->moved[d])));
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
    struct bench_ps *b = r->state;
    if (bench_plan_read(&b->role.plan, b->role_plan)) return EXIT_USAGE;
    b->role.topologies = r->topologies;
    error_set_label(b->role.rank >= 0 ? "%s %d" : "%s", b->as, b->role.rank);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(b->as, roles[i].name)) return roles[i].run(&b->role) ? EXIT_RUN_FAILED : BENCH_END;
    fail("bench ps --as %s is for processes that the bench starts itself", b->as);
    return EXIT_USAGE;
}

static int set_up(struct bench_run *r) {
    struct bench_ps *b = r->state;
    int status;
    if (b->as) return run_role(r);
    if (check_options(b, r->args) || check_memory(b)) return EXIT_USAGE;
    if (b->source && !(b->peer = bench_build(b->source, &status))) return status;
    BENCH_PUT(r->document, TEXT("dtype", dtype_name(b->plan.dtype)),
              NUMBER("cores", (double)sysconf(_SC_NPROCESSORS_ONLN)));
    put_load(r->document, "#load_before");
    return 0;
}

// Prepares a star for the next row; the frame has emptied its series.
static void prepare(struct bench_star *s, const struct bench_plan *p) {
    s->plan = *p;
    s->steps = 0;
    for (int role = 0; role < BENCH_ROLES; role++) s->cpu_s[role] = s->sent[role] = s->received[role] = 0;
}

// Selects the next row's plan: all sizes for each number of workers, these for each number of servers. Returns false
// after the last one.
static bool next_plan(struct bench_ps *b, bool first) {
    struct bench_plan *p = &b->plan;
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
    if (!next_plan(b, !r->at)) return BENCH_END;
    for (int i = 0; i < BENCH_MEDIA * BENCH_KINDS; i++) {
        struct bench_star *s = &b->s.stars[i / BENCH_KINDS][i % BENCH_KINDS];
        prepare(s, &b->plan);
        s->plan.medium = (enum bench_medium)(i / BENCH_KINDS);
        s->plan.kind = (enum bench_kind)(i % BENCH_KINDS);
        s->wanted = b->medium != (s->plan.medium == BENCH_TCP ? 2 : 1);
    }
    prepare(&b->s.peer, &b->plan);
    b->s.peer.program = b->peer;
    b->s.peer.wanted = b->peer != NULL;
    return bench_stars_start(&b->s);
}

static int measure(struct bench_run *r) {
    struct bench_ps *b = r->state;
    return bench_stars_round(r, &b->s);
}

static int put_figures(struct bench_run *r) {
    struct bench_ps *b = r->state;
    int status = bench_stars_end(&b->s);
    if (!status) put_row(bench_row(r, NULL), &b->s);
    return status;
}

static int finish(struct bench_run *r) {
    put_load(r->document, "load_at_the_end");
    return 0;
}

static void tear_down(struct bench_run *r) {
    struct bench_ps *b = r->state;
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
        },
    BENCH_OPTIONS(options),
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
