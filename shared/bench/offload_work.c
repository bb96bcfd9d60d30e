#include "shared/bench/offload_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/statistics.h"
#include "shared/config/json.h"
#include "shared/core/error.h"
#include "shared/core/text.h"

#define UPDATES 7  // and as many copies, of a round

// ---------------------------------------------------------------- life
static size_t unit_bytes(const struct offload_bench *b) { return 3 * sizeof(float) * (size_t)b->elements; }

static struct disk_range range_of(const struct offload_bench *b, int u) {
    return (struct disk_range){(size_t)u * unit_bytes(b), unit_bytes(b), "a unit of the bench"};
}

// Masters in (-1, 1), first moments in (-0.1, 0.1), second ones in (0, 0.01): no denormal numbers.
static void fill(const struct offload_bench *b) {
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
}

static int take_memory(struct offload_bench *b) {
    size_t of_one = (size_t)b->elements * dtype_size(b->dtype);
    b->truth = aligned_alloc(DISK_ALIGN, unit_bytes(b));
    b->grad = malloc(of_one);
    b->weight = calloc(1, of_one);
    b->copy = malloc(2 * (size_t)(offload_bench_update_bytes(b) / 2) * (size_t)b->elements);
    b->scalars = calloc(1, sizeof *b->scalars);
    bool all = b->truth && b->grad && b->weight && b->copy && b->scalars;
    for (int i = 0; i < b->buffers; i++) {
        b->buffer[i] = aligned_alloc(DISK_ALIGN, unit_bytes(b));
        if (b->buffer[i]) memset(b->buffer[i], 0, unit_bytes(b));
        all = all && b->buffer[i];
    }
    if (!all)
        return fail("bench offload: %d buffers of %zu bytes do not fit into memory: take a smaller --unit",
                    b->buffers + 1, unit_bytes(b));
    memset(b->copy, 0, 2 * (size_t)(offload_bench_update_bytes(b) / 2) * (size_t)b->elements);
    b->scalars->grad_scale = 1.0f;
    fill(b);
    return 0;
}

static int take_streams(struct offload_bench *b) {
    const char *why;
    struct device_options o = {.threads = b->threads, .label = "bench"};
    if (dev_open(backend_find("cpu", &why), &o, &b->dev)) return fail("cannot open the cpu device");
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

int offload_bench_open(struct offload_bench *b) {
    size_t block = DISK_ALIGN / sizeof(float);  // elements: each of the three parts is whole pages
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
    return take_memory(b) || take_streams(b) ? -1 : 0;
}

void offload_bench_close(struct offload_bench *b) {
    for (int i = 0; i < OFFLOAD_BUFFERS_MAX; i++) {
        if (b->full[i]) event_destroy(&b->full[i]);
        if (b->changed[i]) event_destroy(&b->changed[i]);
        if (b->empty[i]) event_destroy(&b->empty[i]);
    }
    if (b->reads) stream_destroy(&b->reads);
    if (b->updates) stream_destroy(&b->updates);
    if (b->writes) stream_destroy(&b->writes);
    dev_close(&b->dev);
    disk_store_destroy(&b->store);
    for (int i = 0; i < OFFLOAD_BUFFERS_MAX; i++) free(b->buffer[i]);
    free(b->truth);
    free(b->grad);
    free(b->weight);
    free(b->copy);
    free(b->scalars);
    free(b->path);
}

// ---------------------------------------------------------------- ours
double offload_bench_update_bytes(const struct offload_bench *b) {
    return 24.0 + 2.0 * (double)dtype_size(b->dtype);
}

double offload_bench_bytes(const struct offload_bench *b, enum offload_row row) {
    return (row == OFFLOAD_PIPELINE ? 2.0 : 1.0) * b->units * (double)unit_bytes(b);
}

static void update(const struct offload_bench *b, char *unit) {
    float *master = (void *)unit;
    op_adamw(b->updates, &(struct update_args){.master = master,
                                               .m = master + b->elements,
                                               .v = master + 2 * b->elements,
                                               .weight = b->weight,
                                               .grad = b->grad,
                                               .scalars = b->scalars,
                                               .n = b->elements,
                                               .ends = {b->elements},
                                               .weight_decay = {0.1f},
                                               .groups = 1,
                                               .lr = 1e-4f,
                                               .beta1 = 0.9f,
                                               .beta2 = 0.95f,
                                               .eps = 1e-8f,
                                               .inv_bc1 = 1.1f,
                                               .inv_sqrt_bc2 = 1.1f,
                                               .dt = b->dtype});
}

static void enqueue_writes(struct offload_bench *b) {
    for (int u = 0; u < b->units; u++) disk_store_write(b->store, b->writes, b->truth, range_of(b, u));
}

static void enqueue_reads(struct offload_bench *b) {
    for (int u = 0; u < b->units; u++)
        disk_store_read(b->store, b->reads, b->buffer[u % b->buffers], range_of(b, u));
}

static void enqueue_pipeline(struct offload_bench *b) {
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

static int timed(struct offload_bench *b, void (*enqueue)(struct offload_bench *b), double *seconds) {
    double start = now_seconds();
    enqueue(b);
    if (stream_sync(b->reads) || stream_sync(b->updates) || stream_sync(b->writes))
        return fail("bench offload: %s", dev_error(b->dev));
    *seconds = now_seconds() - start;
    return 0;
}

// What is on disk is the truth, to the bit: the first unit, the last, and one between.
static int check(struct offload_bench *b, const char *behind) {
    const int look[] = {0, b->units / 2, b->units - 1};
    for (int i = 0; i < 3; i++) {
        if (disk_store_load(b->store, b->buffer[0], range_of(b, look[i]))) return -1;
        if (memcmp(b->buffer[0], b->truth, unit_bytes(b)) != 0)
            return fail("bench offload: unit %d holds other bytes than it should, behind %s", look[i],
                        behind);
    }
    return 0;
}

static void enqueue_update(struct offload_bench *b) { update(b, b->truth); }

static void enqueue_copy(struct offload_bench *b) {
    int64_t n = (int64_t)(offload_bench_update_bytes(b) / 2) * b->elements / (int64_t)sizeof(float);
    float *from = b->copy;
    op_cast(b->updates,
            &(struct cast_args){.out = from + n, .in = from, .n = n, .from = DT_F32, .to = DT_F32});
}

static void enqueue_practice(struct offload_bench *b) { update(b, b->buffer[1]); }

// In turn with each other, on a unit that no longer matters: what else runs on the machine meets both.
static int time_update(struct offload_bench *b, struct offload_round *out) {
    double copies[UPDATES], updates[UPDATES];
    for (int i = 0; i < UPDATES; i++)
        if (timed(b, enqueue_copy, &copies[i]) || timed(b, enqueue_practice, &updates[i])) return -1;
    out->copy_seconds = median(copies, UPDATES);
    out->update_seconds = median(updates, UPDATES);
    return 0;
}

// ---------------------------------------------------------------- fio
// What the command prints, up to `room` bytes. 0, or -1: it failed.
static int output_of(const char *command, char *text, size_t room) {
    FILE *f = popen(command, "re");
    if (!f) return -1;
    size_t n = fread(text, 1, room - 1, f);
    text[n] = 0;
    char rest[4096];
    while (fread(rest, 1, sizeof rest, f) > 0) continue;
    return pclose(f) == 0 ? 0 : -1;
}

void offload_bench_find_fio(struct offload_bench *b, char version[32]) {
    char *word = b->fio ? shell_word(b->fio) : NULL,
         *command = word ? xasprintf("%s --version 2>/dev/null", word) : NULL;
    *version = 0;
    if (command && !output_of(command, version, 32)) version[strcspn(version, "\n")] = 0;
    if (!command || strncmp(version, "fio", 3) != 0) {
        *version = 0;
        b->fio = NULL;
    }
    free(command);
    free(word);
}

static double rate_in(const char *text, double bytes) {
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
    return slowest > 0 ? bytes / (1e-3 * slowest) : 0;
}

static int run_fio(const struct offload_bench *b, enum offload_row row, double *rate) {
    static const char *const jobs[OFFLOAD_ROWS] = {"--name=write --rw=write", "--name=read --rw=read",
                                                   "--name=read --rw=read --name=write --rw=write"};
    enum { ROOM = 1 << 18 };
    *rate = 0;
    if (!b->fio) return 0;
    bool uring = disk_store_engine(b->store) == DISK_ENGINE_URING;
    char *word = shell_word(b->fio), *text = xcalloc(1, ROOM);
    char *command = xasprintf(
        "%s --output-format=json --name=global --filename=%s --allow_file_create=0 --size=%.0f --bs=%zu --iodepth=%d "
        "--direct=%d --ioengine=%s %s 2>/dev/null",
        word, b->path, offload_bench_bytes(b, OFFLOAD_READ),
        b->block_bytes ? b->block_bytes : DISK_BLOCK_BYTES, b->depth ? b->depth : DISK_DEPTH,
        disk_store_direct(b->store), uring ? "io_uring" : "psync", jobs[row]);
    int rc = output_of(command, text, ROOM);
    if (!rc) *rate = rate_in(text, offload_bench_bytes(b, row));
    if (rc || *rate <= 0) rc = fail("bench offload: fio failed: %s (--fio none leaves it out)", command);
    free(command);
    free(word);
    free(text);
    return rc;
}

// fio's writes destroy what is there, so each of ours that is compared comes behind a write of ours.
int offload_bench_round(struct offload_bench *b, struct offload_round *out) {
    double unused;
    if (run_fio(b, OFFLOAD_WRITE, &out->fio_rate[OFFLOAD_WRITE]) ||
        timed(b, enqueue_writes, &out->seconds[OFFLOAD_WRITE]) ||
        run_fio(b, OFFLOAD_READ, &out->fio_rate[OFFLOAD_READ]) ||
        timed(b, enqueue_reads, &out->seconds[OFFLOAD_READ]) || check(b, "writing") ||
        timed(b, enqueue_pipeline, &out->seconds[OFFLOAD_PIPELINE]) || timed(b, enqueue_update, &unused) ||
        time_update(b, out) || check(b, "reading, updating and writing"))
        return -1;
    return run_fio(b, OFFLOAD_PIPELINE, &out->fio_rate[OFFLOAD_PIPELINE]);
}
