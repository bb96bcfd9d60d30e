#include "ps/bench/bench_ps.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/bench/bench_build.h"
#include "ps/bench/bench_roles.h"
#include "ps/bench/bench_table.h"
#include "ps/bench/bench_team.h"
#include "shared/command/cli.h"
#include "shared/core/error.h"
#include "shared/core/text.h"
#include "shared/memory/memory_limits.h"

#define RANKS_MOST   4
#define PAYLOAD_MOST ((size_t)256 << 20)
#define PARTITION    ((size_t)1 << 20)  // as parameter_server.partition_bytes
#define MEMORY_SHARE 0.9                // of what the machine has left

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
    // Between the bench and the processes that it starts (bench_roles.h).
    {"as", NULL, "ROLE", NULL, 0},
    {"plan", NULL, "PLAN", NULL, 0},
    {"rank", NULL, "R", NULL, 0},
    {"address", NULL, "A", NULL, 0},
    {"control", NULL, "FD", NULL, 0},
    {"ring", NULL, "FD", NULL, 0},
};

static const struct cli_command command = {
    .name = "bench ps",
    .usage = "[--servers N] [--workers N] [--medium M] [OPTIONS]",
    .summary =
        "Runs the star's real scheduler, servers and workers as processes of this host, over payloads of --min-bytes\n"
        "to --max-bytes (units of a made-up model, in partitions of at most --partition), and times: pushes that servers sum, pulls, both latencies\n"
        "of a payload that is alone (push to acknowledgement, push to new weights), and a shard thread's arithmetic\n"
        "(sum, AdamW, weights in the run's dtype). Beside them, in turn in every round: ZeroMQ without a star and a\n"
        "ring of shared memory, whose receivers read every byte once, and memcpy. Shares are ratios of medians.\n"
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
// "2" or "1-4".
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

static int read_media(const struct cli_args *a, bool media[BENCH_MEDIA]) {
    const char *text = cli_get(a, "medium");
    bool both = !text || !strcmp(text, "both");
    media[BENCH_TCP] = both || !strcmp(text, "tcp");
    media[BENCH_SHM] = both || !strcmp(text, "shm");
    return media[BENCH_TCP] || media[BENCH_SHM] ? 0 : fail("--medium %s: expected tcp, shm or both", text);
}

static int read_dtype(const struct cli_args *a, enum dtype *dt) {
    const char *text = cli_get(a, "dtype");
    *dt = !text || !strcmp(text, "bf16") ? DT_BF16 : DT_F32;
    if (!text || !strcmp(text, "bf16") || !strcmp(text, "fp32")) return 0;
    if (!strcmp(text, "fp16"))
        return fail(
            "--dtype fp16: its updates always wait for the scheduler's decision about overflow, so a push "
            "has no latency of its own; use bf16, whose payloads are as large");
    return fail("--dtype %s: expected fp32 or bf16", text);
}

static int read_sizes(const struct cli_args *a, struct bench *b) {
    long factor;
    if (cli_bytes(a, "min-bytes", (size_t)4 << 10, &b->min_bytes) ||
        cli_bytes(
            a, "max-bytes",
            cli_get(a, "min-bytes") && b->min_bytes > (size_t)64 << 20 ? b->min_bytes : (size_t)64 << 20,
            &b->max_bytes) ||
        cli_integer(a, "factor", 2, 1 << 20, 4, &factor))
        return -1;
    b->factor = (size_t)factor;
    if (cli_bytes(a, "partition", PARTITION, &b->q.plan.partition)) return -1;
    if (b->q.plan.partition % BENCH_BYTES_STEP || !b->q.plan.partition)
        return fail(
            "--partition %s: a server's partitions are whole blocks of %d bytes; give a multiple of that",
            cli_get(a, "partition"), BENCH_BYTES_STEP);
    if (b->min_bytes % BENCH_BYTES_STEP)
        return fail(
            "--min-bytes %s: a server's partitions are whole blocks of %d bytes; give a multiple of that",
            cli_get(a, "min-bytes"), BENCH_BYTES_STEP);
    if (b->max_bytes < b->min_bytes)
        return fail("--max-bytes %s is below --min-bytes; give at least %zu", cli_get(a, "max-bytes"),
                    b->min_bytes);
    if (b->max_bytes > PAYLOAD_MOST)
        return fail("--max-bytes %s: a payload has at most 256M; give that or less", cli_get(a, "max-bytes"));
    return 0;
}

static int read_options(struct bench *b, const struct cli_args *a) {
    long rounds, threads;
    if (read_sizes(a, b) || read_range(a, "servers", &b->servers) || read_range(a, "workers", &b->workers) ||
        read_media(a, b->q.media) || read_dtype(a, &b->q.plan.dtype) ||
        cli_integer(a, "threads", 1, 4, 1, &threads) ||
        cli_integer(a, "rounds", 1, BENCH_ROUNDS_MOST, 7, &rounds))
        return -1;
    b->q.plan.threads = (int)threads;
    b->q.rounds = (int)rounds;
    b->json = cli_get(a, "json") != NULL;
    b->peer = cli_get(a, "peer");
    if (b->peer && !b->q.media[BENCH_TCP])
        return fail("--peer %s: ps-lite has no shared memory; give --medium tcp or both", b->peer);
    return 0;
}

// The row that takes most: what does not fit is said before the first one runs.
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

// ---------------------------------------------------------------- rows
static int run_row(struct bench *b) {
    struct bench_row row;
    int interrupted, status = bench_measure_row(&b->q, &row, &interrupted);
    if (!status && b->json) cJSON_AddItemToArray(b->rows, bench_row_json(&row));
    if (!status && !b->json) bench_table_row(&row);
    bench_row_free(&row);
    return status;
}

static int run_sizes(struct bench *b) {
    for (size_t bytes = b->min_bytes; bytes <= b->max_bytes; bytes *= b->factor) {
        b->q.plan.bytes = bytes;
        int status = run_row(b);
        if (status) return status;
        if (bytes > SIZE_MAX / b->factor) break;
    }
    return 0;
}

static int run_rows(struct bench *b) {
    b->rows = b->json ? cJSON_CreateArray() : NULL;
    if (!b->json) bench_table_head(&b->q);
    for (int s = b->servers.low; s <= b->servers.high; s++)
        for (int w = b->workers.low; w <= b->workers.high; w++) {
            b->q.plan.servers = s;
            b->q.plan.workers = w;
            int status = run_sizes(b);
            if (status) {
                cJSON_Delete(b->rows);
                return status;
            }
        }
    if (!b->json) {
        bench_table_notes();
        return 0;
    }
    cJSON *o = bench_document(&b->q, b->rows);
    char *text = cJSON_Print(o);
    puts(text);
    free(text);
    cJSON_Delete(o);
    return 0;
}

static int run(struct bench *b) {
    char *peer = NULL;
    int status;
    if (check_memory(b) != 0) return EXIT_USAGE;
    if (b->peer && !(peer = bench_build(b->peer, &status))) return status;
    b->q.peer = peer;
    status = run_rows(b);
    bench_build_remove(&peer);
    return status;
}

// A process that the bench has started.
static int take_part(const struct topology_table *t, const struct cli_args *a) {
    static const struct {
        const char *name;
        int (*run)(const struct bench_seat *s);
    } roles[] = {{"scheduler", bench_scheduler}, {"server", bench_server}, {"worker", bench_worker},
                 {"receiver", bench_receiver},   {"sender", bench_sender}, {"solo", bench_solo}};
    struct bench_seat s = {.topologies = t, .address = cli_get(a, "address")};
    const char *as = cli_get(a, "as");
    long rank, control, ring;
    if (bench_plan_read(&s.plan, cli_get(a, "plan")) ||
        cli_integer(a, "rank", 0, RANKS_MOST - 1, -1, &rank) ||
        cli_integer(a, "control", 3, 1 << 20, -1, &control) || cli_integer(a, "ring", 3, 1 << 20, 0, &ring))
        return EXIT_USAGE;
    s.rank = (int)rank;
    s.control = (int)control;
    s.ring = (int)ring;
    error_set_label(rank >= 0 ? "%s %ld" : "%s", as, rank);
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(as, roles[i].name)) return roles[i].run(&s) ? EXIT_RUN_FAILED : 0;
    fail("bench ps --as %s is for processes that the bench starts itself", as);
    return EXIT_USAGE;
}

int bench_ps(const struct topology_table *t, int argc, char **argv) {
    struct cli_args args;
    struct bench b = {.json = false};
    enum cli_outcome outcome = cli_parse(&command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && cli_get(&args, "as"))
        status = take_part(t, &args);
    else if (outcome == CLI_RUN && !read_options(&b, &args))
        status = run(&b);
    cli_args_free(&args);
    return status;
}
