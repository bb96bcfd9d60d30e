// `starring bench offload`: moving state between memory and the host or a disk.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/bench/bench.h"
#include "shared/bench/offload_figures.h"
#include "shared/command/cli.h"
#include "shared/core/error.h"

static const struct cli_option options[] = {
    {"dir", NULL, "DIR", "where the file lies: a directory of the disk that is meant (.)", 0},
    {"size", NULL, "SIZE", "of the file, in whole units (1G)", 0},
    {"unit", NULL, "SIZE", "of a unit's master and moments (48M)", 0},
    {"block", NULL, "SIZE", "aio.block_size: of a piece, a multiple of 4K (1M)", 0},
    {"depth", NULL, "N", "aio.queue_depth: pieces under way (16)", 0},
    {"buffers", NULL, "N", "units in memory at a time, 2 to 8 (3)", 0},
    {"dtype", NULL, "D", "of gradients and weights: fp32, bf16 or fp16 (bf16)", 0},
    {"threads", NULL, "N", "that update (one per core)", 0},
    {"rounds", NULL, "N", "rounds, after one that is not counted; medians count (3)", 0},
    {"engine", NULL, "E", "io_uring, threads, or auto: io_uring if the kernel allows it (auto)", 0},
    {"fio", NULL, "PROGRAM", "what it is measured beside, if it is installed; none: nothing (fio)", 0},
    {"json", NULL, NULL, "print one JSON document instead of the table", 0},
};

static const struct cli_command command = {
    .name = "bench offload",
    .usage = "[--dir DIR] [--size SIZE] [OPTIONS]",
    .summary =
        "Writes and reads units of optimizer state as a rank does that offloads them to disk, then reads, updates and\n"
        "writes each, all overlapped; beside fio on the same file with the same pieces, depth and flags. Then AdamW on\n"
        "the host's cores beside a copy of as many bytes. The file has no name, and nothing is left of it.",
    .examples =
        "  starring bench offload --dir /local_nvme\n"
        "  starring bench offload --dir /local_nvme --size 8G --depth 32 --json\n",
    CLI_OPTIONS(options),
};

static int read_words(const struct cli_args *a, struct offload_bench *b) {
    const char *dtype = cli_get(a, "dtype"), *engine = cli_get(a, "engine"), *fio = cli_get(a, "fio");
    static const char *const engines[] = {"auto", "io_uring", "threads"};
    int e = 0, d = DT_F32;
    if (!dtype) dtype = "bf16";
    while (d <= DT_F16 && strcmp(dtype_name((enum dtype)d), dtype) != 0) d++;
    if (d > DT_F16) return fail("bench offload: --dtype %s: expected fp32, bf16 or fp16", dtype);
    while (engine && e < 3 && strcmp(engines[e], engine) != 0) e++;
    if (e == 3) return fail("bench offload: --engine %s: expected auto, io_uring or threads", engine);
    b->dtype = (enum dtype)d;
    b->engine = (enum disk_engine)e;
    b->dir = cli_get(a, "dir") ? cli_get(a, "dir") : ".";
    b->fio = !fio ? "fio" : strcmp(fio, "none") ? fio : NULL;
    return 0;
}

static int read_options(const struct cli_args *a, struct offload_bench *b, long *rounds) {
    long depth, buffers, threads;
    if (read_words(a, b) || cli_bytes(a, "size", (size_t)1 << 30, &b->bytes) ||
        cli_bytes(a, "unit", (size_t)48 << 20, &b->unit_bytes) ||
        cli_bytes(a, "block", DISK_BLOCK_BYTES, &b->block_bytes) ||
        cli_integer(a, "depth", 1, DISK_DEPTH_MAX, DISK_DEPTH, &depth) ||
        cli_integer(a, "buffers", 2, OFFLOAD_BUFFERS_MAX, 3, &buffers) ||
        cli_integer(a, "threads", 1, 4096, 0, &threads) ||
        cli_integer(a, "rounds", 1, OFFLOAD_ROUNDS_MAX, 3, rounds))
        return -1;
    if (b->block_bytes % DISK_ALIGN || b->block_bytes > (size_t)1 << 30)
        return fail("bench offload: --block %zu: expected a multiple of %zu up to 1G", b->block_bytes,
                    DISK_ALIGN);
    b->depth = (int)depth;
    b->buffers = (int)buffers;
    b->threads = (int)(threads ? threads : sysconf(_SC_NPROCESSORS_ONLN));
    return 0;
}

static int run(struct offload_bench *b, const struct cli_args *args, int count) {
    struct offload_round rounds[OFFLOAD_ROUNDS_MAX], first;
    char version[32];
    offload_bench_find_fio(b, version);
    if (offload_bench_open(b) || offload_bench_round(b, &first)) return -1;
    for (int i = 0; i < count; i++)
        if (offload_bench_round(b, &rounds[i])) return -1;
    struct offload_figures f = {b, rounds, count, version};
    (cli_get(args, "json") ? offload_figures_json : offload_figures_table)(&f);
    return 0;
}

int bench_offload(int argc, char **argv) {
    struct cli_args args;
    struct offload_bench *b = xcalloc(1, sizeof *b);
    long rounds;
    enum cli_outcome outcome = cli_parse(&command, argc, argv, &args);
    int status = outcome == CLI_HELP_SHOWN ? 0 : EXIT_USAGE;
    if (outcome == CLI_RUN && !read_options(&args, b, &rounds)) {
        status = run(b, &args, (int)rounds) ? EXIT_RUN_FAILED : 0;
        offload_bench_close(b);
    }
    cli_args_free(&args);
    free(b);
    return status;
}
