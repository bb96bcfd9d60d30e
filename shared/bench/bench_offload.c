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

// The timed operations.
enum work { WRITE, READ, PIPELINE, WORKS };
static const char *const work_names[WORKS] = {"write", "read", "pipeline"};

struct offload {
    const char *dir, *fio;  // fio: the program; NULL: not used
    size_t bytes;           // requested size of the file
    size_t unit_bytes;      // requested size of a unit
    size_t block_bytes;
    int depth, buffers, threads;
    enum dtype dtype;  // type of gradients and weights, which stay in memory
    enum disk_engine engine;
    struct disk_store *store;
    char *path;
    int units;
    int64_t elements;  // parameters of a unit
    struct device *dev;
    struct stream *reads, *updates, *writes;
    struct event *full[BUFFERS_MAX], *changed[BUFFERS_MAX], *empty[BUFFERS_MAX];
    char *buffer[BUFFERS_MAX], *content;  // (unit_bytes) each, aligned; content: the content of every unit
    void *grad, *weight;
    struct update_scalars *scalars;
    char version[32];  // "fio-3.33"; "": fio is not installed
    // One value per round: seconds of ours and of fio.
    struct bench_series seconds[WORKS], fio_seconds[WORKS];
};

static const char *const engines[] = {"auto", "io_uring", "threads"};  // enum disk_engine
static const struct bench_option options[] = {
    {"dir", "DIR", "where the file lies: a directory of the disk that is meant",
     BENCH_STRING(offload, dir, ".")},
    {"size", "SIZE", "of the file, in whole units", BENCH_SIZE(offload, bytes, 1 << 30)},
    {"unit", "SIZE", "of a unit's master and moments", BENCH_SIZE(offload, unit_bytes, 48 << 20)},
    {"block", "SIZE", "aio.block_size: of a piece, a multiple of 4K",
     BENCH_SIZE(offload, block_bytes, DISK_BLOCK_BYTES)},
    {"depth", "N", "aio.queue_depth: pieces under way",
     BENCH_INTEGER(offload, depth, 1, DISK_DEPTH_MAX, DISK_DEPTH)},
    {"buffers", "N", "units in memory at a time, 2 to 8", BENCH_INTEGER(offload, buffers, 2, BUFFERS_MAX, 3)},
    {"dtype", "D", "of gradients and weights: fp32, bf16 or fp16", BENCH_DTYPE(offload, dtype, 3, DT_BF16)},
    {"threads", "N", "that update (one per core)", BENCH_INTEGER(offload, threads, 1, 4096, 0)},
    {"engine", "E", "io_uring, threads, or auto: io_uring if the kernel allows it",
     BENCH_CHOICE(offload, engine, engines)},
    {"fio", "PROGRAM", "what it is compared with, if it is installed; none: nothing",
     BENCH_STRING(offload, fio, "fio")},
};

// ---------------------------------------------------------------- open and close
static size_t unit_bytes(const struct offload *b) { return 3 * sizeof(float) * (size_t)b->elements; }

// Bytes read and written.
static double bytes_of(const struct offload *b, enum work work) {
    return (work == PIPELINE ? 2.0 : 1.0) * b->units * (double)unit_bytes(b);
}

static struct disk_range range_of(const struct offload *b, int u) {
    return (struct disk_range){(size_t)u * unit_bytes(b), unit_bytes(b), "a unit of the bench"};
}

static int open_store(struct offload *b) {
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
    b->content = aligned_alloc(DISK_ALIGN, unit_bytes(b));
    b->grad = malloc(of_one);
    b->weight = calloc(1, of_one);
    b->scalars = calloc(1, sizeof *b->scalars);
    bool all = b->content && b->grad && b->weight && b->scalars;
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
    float *x = (void *)b->content;
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
static void tear_down(struct bench_run *r) {
    struct offload *b = r->state;
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
    free(b->content);
    free(b->grad);
    free(b->weight);
    free(b->scalars);
    free(b->path);
}

// ---------------------------------------------------------------- ours
static void update(const struct offload *b, char *unit) {
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

static void enqueue_writes(struct offload *b) {
    for (int u = 0; u < b->units; u++) disk_store_write(b->store, b->writes, b->content, range_of(b, u));
}

static void enqueue_reads(struct offload *b) {
    for (int u = 0; u < b->units; u++)
        disk_store_read(b->store, b->reads, b->buffer[u % b->buffers], range_of(b, u));
}

static void enqueue_pipeline(struct offload *b) {
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

// Adds the seconds to the series, if one is given and the round counts.
static int timed(struct bench_run *r, void (*enqueue)(struct offload *b), struct bench_series *seconds) {
    struct offload *b = r->state;
    double start = now_seconds();
    enqueue(b);
    if (stream_sync(b->reads) || stream_sync(b->updates) || stream_sync(b->writes))
        return fail("bench offload: %s", dev_error(b->dev));
    if (seconds) bench_measured(r, seconds, now_seconds() - start);
    return 0;
}

// Compares the disk's content bit by bit: the first unit, the middle one and the last.
static int check(struct offload *b, const char *after) {
    const int look[] = {0, b->units / 2, b->units - 1};
    for (int i = 0; i < 3; i++) {
        if (disk_store_load(b->store, b->buffer[0], range_of(b, look[i]))) return -1;
        if (memcmp(b->buffer[0], b->content, unit_bytes(b)) != 0)
            return fail("bench offload: unit %d has wrong bytes after %s", look[i], after);
    }
    return 0;
}

static void enqueue_update(struct offload *b) { update(b, b->content); }

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
static void find_fio(struct offload *b) {
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
    double slowest = 0;  // milliseconds
    cJSON_ArrayForEach(job, json_item(j, "jobs")) {
        double r = json_number(json_item(job, "read"), "runtime"),
               w = json_number(json_item(job, "write"), "runtime");
        slowest = r > slowest ? r : slowest;
        slowest = w > slowest ? w : slowest;
    }
    cJSON_Delete(j);
    return 1e-3 * slowest;
}

static int run_fio(struct bench_run *r, enum work work) {
    struct offload *b = r->state;
    static const char *const jobs[WORKS] = {"--name=write --rw=write", "--name=read --rw=read",
                                            "--name=read --rw=read --name=write --rw=write"};
    enum { ROOM = 1 << 18 };
    if (!b->fio) return 0;
    bool uring = disk_store_engine(b->store) == DISK_ENGINE_URING;
    char *word = shell_word(b->fio), *text = xcalloc(1, ROOM);
    char *line = xasprintf(
        "%s --output-format=json --name=global --filename=%s --allow_file_create=0 --size=%.0f --bs=%zu --iodepth=%d "
        "--direct=%d --ioengine=%s %s 2>/dev/null",
        word, b->path, bytes_of(b, READ), b->block_bytes, b->depth, disk_store_direct(b->store),
        uring ? "io_uring" : "psync", jobs[work]);
    int rc = output_of(line, text, ROOM);
    double seconds = rc ? 0 : seconds_in(text);
    if (!rc && seconds > 0) bench_measured(r, &b->fio_seconds[work], seconds);
    if (rc || seconds <= 0) rc = fail("bench offload: fio failed: %s (--fio none leaves it out)", line);
    free(line);
    free(word);
    free(text);
    return rc;
}

// fio's writes overwrite the content, so each of our reads that is compared follows a write of ours.
static int measure(struct bench_run *r) {
    struct offload *b = r->state;
    bool failed = run_fio(r, WRITE) || timed(r, enqueue_writes, &b->seconds[WRITE]) || run_fio(r, READ) ||
                  timed(r, enqueue_reads, &b->seconds[READ]) || check(b, "writing") ||
                  timed(r, enqueue_pipeline, &b->seconds[PIPELINE]) || timed(r, enqueue_update, NULL) ||
                  check(b, "reading, updating and writing") || run_fio(r, PIPELINE);
    return failed ? EXIT_RUN_FAILED : 0;
}

static int put_rows(struct bench_run *r) {
    const struct offload *b = r->state;
    for (int work = 0; work < WORKS; work++) {
        cJSON *o = bench_row(r, work_names[work]);
        double bytes = bytes_of(b, (enum work)work);
        const struct bench_series *ours = &b->seconds[work], *fio = &b->fio_seconds[work];
        BENCH_PUT(o, NUMBER("bytes", bytes),
                  NUMBER("bytes_per_second", bench_ratio(bytes, bench_series_median(ours))),
                  NUMBER("fio_bytes_per_second", b->fio ? bench_ratio(bytes, bench_series_median(fio)) : NAN),
                  NUMBER("share_of_fio", b->fio ? bench_series_ratio(fio, ours) : NAN));
    }
    return 0;
}

// ---------------------------------------------------------------- the bench
static int set_up(struct bench_run *r) {
    struct offload *b = r->state;
    char text[FILE_SYSTEM_BYTES];
    cJSON *j = r->document;
    if (b->block_bytes % DISK_ALIGN || b->block_bytes > (size_t)1 << 30)
        return fail("bench offload: --block %zu: expected a multiple of %zu up to 1G", b->block_bytes,
                    DISK_ALIGN),
               EXIT_USAGE;
    if (!b->threads) b->threads = processors_given();
    if (!strcmp(b->fio, "none")) b->fio = NULL;
    find_fio(b);
    if (open_store(b)) return EXIT_RUN_FAILED;
    BENCH_PUT(j, TEXT("directory", b->dir), TEXT("file_system", file_system_of(b->dir, text)),
              TEXT("engine", disk_store_engine(b->store) == DISK_ENGINE_URING ? "io_uring" : "threads"),
              FLAG("direct", disk_store_direct(b->store)), TEXT("remark", disk_store_remark(b->store)),
              TEXT("fio", b->version));
    cJSON_AddStringToObject(
        j, "#fio",
        b->fio ? b->version : "fio not measured: it is not installed (apt-get install fio), or --fio none");
    BENCH_PUT(j, NUMBER("block_bytes", b->block_bytes), NUMBER("depth", b->depth), NUMBER("units", b->units),
              NUMBER("#unit_bytes", (double)unit_bytes(b)), NUMBER("unit_parameters", b->elements),
              NUMBER("buffers", b->buffers), NUMBER("threads", b->threads),
              TEXT("dtype", dtype_name(b->dtype)), NUMBER("target_share", TARGET));
    return 0;
}

const struct bench bench_offload = {
    .about = "states on disk, read, updated and written, beside fio",
    .command =
        {
            .name = "bench offload",
            .usage = "[--dir DIR] [--size SIZE] [OPTIONS]",
            .summary =
                "Writes and reads units of optimizer state as a rank does that offloads them to disk, then reads, updates and\n"
                "writes each, all overlapped; beside fio on the same file with the same pieces, depth and flags.\n"
                "The file has no name, and nothing is left of it. bench adam times the update alone.",
            .examples = "  starring bench offload --dir /local_nvme\n"
                        "  starring bench offload --dir /local_nvme --size 8G --depth 32 --json\n",
        },
    BENCH_OPTIONS(options),
    .state_bytes = sizeof(struct offload),
    .rounds = 3,
    .warm_up = 1,
    .set_up = set_up,
    .round = measure,
    .rows = put_rows,
    .tear_down = tear_down,
    .head = BENCH_LINES(
        {NULL,
         "bench offload: {write.bytes:B} in {units} units of {#unit_bytes:B}, {buffers} in memory; pieces of {block_bytes:B}, {depth} in flight, {direct?O_DIRECT:through the kernel's cache}, {engine}"},
        {NULL,
         "{directory}: {file_system}; {#fio}; medians of {rounds} round{rounds:s}, what was read back was compared"},
        {NULL, "{remark}"}),
    .columns = BENCH_COLUMNS({"", NULL, "<{@}"}, {"rate", "MB/s", "{bytes_per_second:.1M}"},
                             {"fio", "MB/s", "{fio_bytes_per_second:.1M}"},
                             {"share", "of fio", "{share_of_fio:.2}"}, {"target", NULL, "{target_share:.2}"}),
};
