// `starring bench offload`: times the disk I/O that offload to disk needs. A disk_store (shared/offload/) is filled
// with units. Each unit is a master and two moments in fp32, one after the other, as a rank stores them that offloads
// its optimizer to disk.
//
//     write     every unit, one after the other
//     read      every unit, into `buffers` buffers in turn; the content is compared with what was written
//     pipeline  read, AdamW, write of each unit over the same buffers: three streams ordered only by events
//
// fio       Reads, writes, and both at once, on the same file, with equal block size, depth, O_DIRECT and engine.
// Errors    -1 after fail() named file and reason.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/bench/bench_operations.h"
#include "shared/core/error.h"
#include "shared/core/json.h"
#include "shared/core/system.h"
#include "shared/core/text.h"
#include "shared/offload/disk_store.h"

#define BUFFERS_MAX 8
#define TARGET      0.8  // target: share of fio's rate

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
        "writes each, all overlapped; beside fio on the same file with the same pieces, depth and flags.\n"
        "The file has no name, and nothing is left of it. bench adam times the update alone.",
    .examples =
        "  starring bench offload --dir /local_nvme\n"
        "  starring bench offload --dir /local_nvme --size 8G --depth 32 --json\n",
    CLI_OPTIONS(options),
};

enum row { WRITE, READ, PIPELINE, ROWS };
static const char *const row_names[ROWS] = {"write", "read", "pipeline"};

struct bench {
    const char *dir, *fio;  // fio: the program; NULL: not used
    size_t bytes;           // requested size of the file
    size_t unit_bytes;      // requested size of a unit
    size_t block_bytes;
    int depth, buffers, threads;
    enum dtype dtype;  // of gradients and weights, which stay in memory
    enum disk_engine engine;
    struct disk_store *store;
    char *path;
    int units;
    int64_t elements;  // of a unit: parameters
    struct device *dev;
    struct stream *reads, *updates, *writes;
    struct event *full[BUFFERS_MAX], *changed[BUFFERS_MAX], *empty[BUFFERS_MAX];
    char *buffer[BUFFERS_MAX], *truth;  // (unit_bytes) each, aligned; truth: the content of every unit
    void *grad, *weight;
    struct update_scalars *scalars;
    char version[32];  // "fio-3.33"; "": fio is not installed
    bool counts;       // the current round is counted
    // One value per round: seconds of ours and of fio.
    struct bench_series seconds[ROWS], fio_seconds[ROWS];
};

// ---------------------------------------------------------------- open and close
static size_t unit_bytes(const struct bench *b) { return 3 * sizeof(float) * (size_t)b->elements; }

// Bytes read and written.
static double bytes_of(const struct bench *b, enum row row) {
    return (row == PIPELINE ? 2.0 : 1.0) * b->units * (double)unit_bytes(b);
}

static struct disk_range range_of(const struct bench *b, int u) {
    return (struct disk_range){(size_t)u * unit_bytes(b), unit_bytes(b), "a unit of the bench"};
}

static int open_bench(struct bench *b) {
    // 1. The file.
    size_t block = DISK_ALIGN / sizeof(float);  // elements: each of the three arrays is whole pages
    b->elements = (int64_t)((b->unit_bytes / (3 * sizeof(float)) + block - 1) / block * block);
    b->units = (int)((b->bytes + unit_bytes(b) - 1) / unit_bytes(b));
    struct disk_store_options o = {.dir = b->dir,
                                   .key = "--dir",
                                   .label = "bench offload",
                                   .bytes = (size_t)b->units * unit_bytes(b),
                                   .block_bytes = b->block_bytes,
                                   .depth = b->depth,
                                   .engine = b->engine};
    if (disk_store_create(&b->store, &o)) return -1;
    b->path = disk_store_path(b->store);
    // 2. Memory.
    size_t of_one = (size_t)b->elements * dtype_size(b->dtype);
    b->truth = aligned_alloc(DISK_ALIGN, unit_bytes(b));
    b->grad = malloc(of_one);
    b->weight = calloc(1, of_one);
    b->scalars = calloc(1, sizeof *b->scalars);
    bool all = b->truth && b->grad && b->weight && b->scalars;
    for (int i = 0; i < b->buffers; i++) {
        b->buffer[i] = aligned_alloc(DISK_ALIGN, unit_bytes(b));
        if (b->buffer[i]) memset(b->buffer[i], 0, unit_bytes(b));
        all = all && b->buffer[i];
    }
    if (!all)
        return fail("bench offload: %d buffers of %zu bytes do not fit into memory: take a smaller --unit",
                    b->buffers + 1, unit_bytes(b));
    b->scalars->grad_scale = 1.0f;
    // 3. Masters in (-1, 1), first moments in (-0.1, 0.1), second moments in (0, 0.01): no denormal numbers.
    float *x = (void *)b->truth;
    uint32_t seed = 1;
    for (int64_t i = 0; i < 3 * b->elements; i++) {
        seed = seed * 1664525u + 1013904223u;
        float y = (float)(seed >> 8) / (float)(1 << 24);
        x[i] = i < b->elements ? 2 * y - 1 : i < 2 * b->elements ? 0.2f * y - 0.1f : 0.01f * (y + 1e-3f);
    }
    for (int64_t i = 0; i < b->elements; i++) {
        seed = seed * 1664525u + 1013904223u;
        dtype_store(b->dtype, b->grad, (size_t)i, 2 * (float)(seed >> 8) / (float)(1 << 24) - 1);
    }
    // 4. Streams.
    const char *why;
    struct device_options d = {.threads = b->threads, .label = "bench"};
    if (dev_open(backend_find("cpu", &why), &d, &b->dev)) return fail("cannot open the cpu device");
    b->reads = stream_create(b->dev, "read");
    b->updates = stream_create(b->dev, "update");
    b->writes = stream_create(b->dev, "write");
    if (!b->reads || !b->updates || !b->writes) return fail("cannot create a stream: %s", dev_error(b->dev));
    for (int i = 0; i < b->buffers; i++) {
        b->full[i] = event_create(b->dev);
        b->changed[i] = event_create(b->dev);
        b->empty[i] = event_create(b->dev);
    }
    return 0;
}

// Also for a partly opened bench.
static void close_bench(struct bench *b) {
    for (int i = 0; i < BUFFERS_MAX; i++) {
        if (b->full[i]) event_destroy(&b->full[i]);
        if (b->changed[i]) event_destroy(&b->changed[i]);
        if (b->empty[i]) event_destroy(&b->empty[i]);
    }
    if (b->reads) stream_destroy(&b->reads);
    if (b->updates) stream_destroy(&b->updates);
    if (b->writes) stream_destroy(&b->writes);
    dev_close(&b->dev);
    disk_store_destroy(&b->store);
    for (int i = 0; i < BUFFERS_MAX; i++) free(b->buffer[i]);
    free(b->truth);
    free(b->grad);
    free(b->weight);
    free(b->scalars);
    free(b->path);
    for (int i = 0; i < ROWS; i++) {
        bench_series_free(&b->seconds[i]);
        bench_series_free(&b->fio_seconds[i]);
    }
}

// ---------------------------------------------------------------- ours
static void update(const struct bench *b, char *unit) {
    float *master = (void *)unit;
    struct update_args a = bench_update(b->dtype, b->elements);
    a.master = master;
    a.m = master + b->elements;
    a.v = master + 2 * b->elements;
    a.weight = b->weight;
    a.grad = b->grad;
    a.scalars = b->scalars;
    op_adamw(b->updates, &a);
}

static void enqueue_writes(struct bench *b) {
    for (int u = 0; u < b->units; u++) disk_store_write(b->store, b->writes, b->truth, range_of(b, u));
}

static void enqueue_reads(struct bench *b) {
    for (int u = 0; u < b->units; u++)
        disk_store_read(b->store, b->reads, b->buffer[u % b->buffers], range_of(b, u));
}

static void enqueue_pipeline(struct bench *b) {
    for (int u = 0; u < b->units; u++) {
        int i = u % b->buffers;
        stream_wait_event(b->reads, b->empty[i]);
        disk_store_read(b->store, b->reads, b->buffer[i], range_of(b, u));
        event_record(b->full[i], b->reads);
        stream_wait_event(b->updates, b->full[i]);
        update(b, b->buffer[i]);
        event_record(b->changed[i], b->updates);
        stream_wait_event(b->writes, b->changed[i]);
        disk_store_write(b->store, b->writes, b->buffer[i], range_of(b, u));
        event_record(b->empty[i], b->writes);
    }
}

// Adds the seconds to the series, if one is given.
static int timed(struct bench *b, void (*enqueue)(struct bench *b), struct bench_series *seconds) {
    double start = now_seconds();
    enqueue(b);
    if (stream_sync(b->reads) || stream_sync(b->updates) || stream_sync(b->writes))
        return fail("bench offload: %s", dev_error(b->dev));
    if (seconds && b->counts) bench_series_add(seconds, now_seconds() - start);
    return 0;
}

// Compares the disk's content bit by bit: the first unit, the middle one and the last.
static int check(struct bench *b, const char *behind) {
    const int look[] = {0, b->units / 2, b->units - 1};
    for (int i = 0; i < 3; i++) {
        if (disk_store_load(b->store, b->buffer[0], range_of(b, look[i]))) return -1;
        if (memcmp(b->buffer[0], b->truth, unit_bytes(b)) != 0)
            return fail("bench offload: unit %d holds other bytes than it should, behind %s", look[i],
                        behind);
    }
    return 0;
}

static void enqueue_update(struct bench *b) { update(b, b->truth); }

// ---------------------------------------------------------------- fio
// Reads the output of the command, at most room - 1 bytes. Returns 0, or -1: it failed.
static int output_of(const char *line, char *text, size_t room) {
    FILE *f = popen(line, "re");
    if (!f) return -1;
    size_t n = fread(text, 1, room - 1, f);
    text[n] = 0;
    char rest[4096];
    while (fread(rest, 1, sizeof rest, f) > 0) continue;
    return pclose(f) == 0 ? 0 : -1;
}

// Sets b->fio to NULL if it cannot be started.
static void find_fio(struct bench *b) {
    char *version = b->version;
    char *word = b->fio ? shell_word(b->fio) : NULL,
         *line = word ? xasprintf("%s --version 2>/dev/null", word) : NULL;
    *version = 0;
    if (line && !output_of(line, version, sizeof b->version)) version[strcspn(version, "\n")] = 0;
    if (!line || strncmp(version, "fio", 3) != 0) {
        *version = 0;
        b->fio = NULL;
    }
    free(line);
    free(word);
}

// Returns the seconds of the slowest of fio's jobs; 0: not in the output.
static double seconds_in(const char *text) {
    const char *at = strchr(text, '{');
    cJSON *j = at ? cJSON_Parse(at) : NULL;
    const cJSON *job;
    double slowest = 0;  // ms
    cJSON_ArrayForEach(job, json_item(j, "jobs")) {
        double r = json_number(json_item(job, "read"), "runtime"),
               w = json_number(json_item(job, "write"), "runtime");
        slowest = r > slowest ? r : slowest;
        slowest = w > slowest ? w : slowest;
    }
    cJSON_Delete(j);
    return 1e-3 * slowest;
}

static int run_fio(struct bench *b, enum row row) {
    static const char *const jobs[ROWS] = {"--name=write --rw=write", "--name=read --rw=read",
                                           "--name=read --rw=read --name=write --rw=write"};
    enum { ROOM = 1 << 18 };
    if (!b->fio) return 0;
    bool uring = disk_store_engine(b->store) == DISK_ENGINE_URING;
    char *word = shell_word(b->fio), *text = xcalloc(1, ROOM);
    char *line = xasprintf(
        "%s --output-format=json --name=global --filename=%s --allow_file_create=0 --size=%.0f --bs=%zu --iodepth=%d "
        "--direct=%d --ioengine=%s %s 2>/dev/null",
        word, b->path, bytes_of(b, READ), b->block_bytes, b->depth, disk_store_direct(b->store),
        uring ? "io_uring" : "psync", jobs[row]);
    int rc = output_of(line, text, ROOM);
    double seconds = rc ? 0 : seconds_in(text);
    if (!rc && b->counts && seconds > 0) bench_series_add(&b->fio_seconds[row], seconds);
    if (rc || seconds <= 0) rc = fail("bench offload: fio failed: %s (--fio none leaves it out)", line);
    free(line);
    free(word);
    free(text);
    return rc;
}

// fio's writes overwrite the content, so each of our reads that is compared follows a write of ours.
static int run_round(struct bench *b) {
    if (run_fio(b, WRITE) || timed(b, enqueue_writes, &b->seconds[WRITE]) || run_fio(b, READ) ||
        timed(b, enqueue_reads, &b->seconds[READ]) || check(b, "writing") ||
        timed(b, enqueue_pipeline, &b->seconds[PIPELINE]) || timed(b, enqueue_update, NULL))
        return -1;
    return check(b, "reading, updating and writing") || run_fio(b, PIPELINE) ? -1 : 0;
}

// ---------------------------------------------------------------- figures
static double rate(const struct bench *b, int row) {
    return bench_ratio(bytes_of(b, (enum row)row), bench_series_median(&b->seconds[row]));
}
static double fio_rate(const struct bench *b, int row) {
    return bench_ratio(bytes_of(b, (enum row)row), bench_series_median(&b->fio_seconds[row]));
}
static double share(const struct bench *b, int row) {
    return bench_series_ratio(&b->fio_seconds[row], &b->seconds[row]);
}

static const char *engine_of(const struct disk_store *s) {
    return disk_store_engine(s) == DISK_ENGINE_URING ? "io_uring" : "threads";
}

static void print_json(const struct bench *b) {
    char text[FILE_SYSTEM_BYTES];
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "bench", "offload");
    cJSON_AddStringToObject(j, "directory", b->dir);
    cJSON_AddStringToObject(j, "file_system", file_system_of(b->dir, text));
    cJSON_AddStringToObject(j, "engine", engine_of(b->store));
    cJSON_AddBoolToObject(j, "direct", disk_store_direct(b->store));
    json_put_text(j, "remark", disk_store_remark(b->store));
    json_put_text(j, "fio", b->version);
    json_put(j, "block_bytes", (double)b->block_bytes);
    json_put(j, "depth", b->depth);
    json_put(j, "units", b->units);
    json_put(j, "unit_parameters", (double)b->elements);
    json_put(j, "buffers", b->buffers);
    json_put(j, "rounds", b->seconds[READ].count);
    json_put(j, "threads", b->threads);
    cJSON_AddStringToObject(j, "dtype", dtype_name(b->dtype));
    for (int row = 0; row < ROWS; row++) {
        cJSON *o = cJSON_AddObjectToObject(j, row_names[row]);
        json_put(o, "bytes", bytes_of(b, (enum row)row));
        json_put(o, "bytes_per_second", rate(b, row));
        json_put(o, "fio_bytes_per_second", b->fio ? fio_rate(b, row) : NAN);
        json_put(o, "share_of_fio", b->fio ? share(b, row) : NAN);
    }
    json_put(j, "target_share", TARGET);
    json_print(stdout, j);
    cJSON_Delete(j);
}

static void print_table(const struct bench *b) {
    char text[FILE_SYSTEM_BYTES], one[24], all[24], piece[24];
    printf("# bench offload: %s in %d units of %s, %d in memory; pieces of %s, %d under way, %s, %s\n",
           format_bytes(all, bytes_of(b, READ)), b->units, format_bytes(one, (double)unit_bytes(b)),
           b->buffers, format_bytes(piece, (double)b->block_bytes), b->depth,
           disk_store_direct(b->store) ? "O_DIRECT" : "through the kernel's cache", engine_of(b->store));
    printf("# %s: %s; %s; medians of %d round%s, what was read back was compared\n", b->dir,
           file_system_of(b->dir, text),
           b->fio ? b->version : "fio not measured: it is not installed (apt-get install fio), or --fio none",
           b->seconds[READ].count, bench_plural(b->seconds[READ].count));
    if (disk_store_remark(b->store)) printf("# %s\n", disk_store_remark(b->store));
    printf("%-9s %9s %9s %7s %7s\n", "", "MB/s", "fio MB/s", "share", "wanted");
    for (int row = 0; row < ROWS; row++)
        if (b->fio)
            printf("%-9s %9.1f %9.1f %7.2f %7.2f\n", row_names[row], 1e-6 * rate(b, row),
                   1e-6 * fio_rate(b, row), share(b, row), TARGET);
        else
            printf("%-9s %9.1f %9s %7s %7.2f\n", row_names[row], 1e-6 * rate(b, row), "-", "-", TARGET);
}

// ---------------------------------------------------------------- the command
static int read_options(const struct cli_args *a, struct bench *b, long *rounds) {
    static const char *const engines[] = {"auto", "io_uring", "threads"};  // enum disk_engine
    const char *fio = cli_get(a, "fio");
    long depth, buffers, threads;
    int engine = bench_word(a, "engine", engines, 3);
    if (engine < 0 || bench_dtype(a, DT_BF16, &b->dtype) ||
        cli_bytes(a, "size", (size_t)1 << 30, &b->bytes) ||
        cli_bytes(a, "unit", (size_t)48 << 20, &b->unit_bytes) ||
        cli_bytes(a, "block", DISK_BLOCK_BYTES, &b->block_bytes) ||
        cli_integer(a, "depth", 1, DISK_DEPTH_MAX, DISK_DEPTH, &depth) ||
        cli_integer(a, "buffers", 2, BUFFERS_MAX, 3, &buffers) ||
        cli_integer(a, "threads", 1, 4096, 0, &threads) ||
        cli_integer(a, "rounds", 1, BENCH_ROUNDS_MOST, 3, rounds))
        return -1;
    if (b->block_bytes % DISK_ALIGN || b->block_bytes > (size_t)1 << 30)
        return fail("bench offload: --block %zu: expected a multiple of %zu up to 1G", b->block_bytes,
                    DISK_ALIGN);
    b->engine = (enum disk_engine)engine;
    b->dir = cli_get(a, "dir") ? cli_get(a, "dir") : ".";
    b->fio = !fio ? "fio" : strcmp(fio, "none") ? fio : NULL;
    b->depth = (int)depth;
    b->buffers = (int)buffers;
    b->threads = threads ? (int)threads : processors_given();
    return 0;
}

static int run(const struct topology_table *t, const struct cli_args *a) {
    struct bench b = {0};
    long rounds;
    (void)t;
    if (read_options(a, &b, &rounds)) return EXIT_USAGE;
    find_fio(&b);
    int rc = open_bench(&b);
    for (long i = 0; i <= rounds && !rc; i++) {
        b.counts = i > 0;
        rc = run_round(&b);
    }
    if (!rc) (cli_get(a, "json") ? print_json : print_table)(&b);
    close_bench(&b);
    return rc ? EXIT_RUN_FAILED : 0;
}

const struct bench_program bench_offload = {"states on disk, read, updated and written, beside fio", &command,
                                            run};
