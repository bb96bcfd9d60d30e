#include "shared/bench/offload_figures.h"

#include <stdio.h>

#include "kernels/statistics.h"
#include "shared/bench/checkpoint_work.h"
#include "shared/config/json.h"
#include "shared/core/text.h"

static const char *const row_names[OFFLOAD_ROWS] = {"write", "read", "pipeline"};

// ---------------------------------------------------------------- medians
static double middle(const struct offload_figures *f, double (*of)(const struct offload_figures *, int, int),
                     int row) {
    double values[OFFLOAD_ROUNDS_MAX];
    for (int i = 0; i < f->count; i++) values[i] = of(f, i, row);
    return median(values, f->count);
}

static double rate(const struct offload_figures *f, int i, int row) {
    return offload_bench_bytes(f->bench, (enum offload_row)row) / f->rounds[i].seconds[row];
}
static double fio_rate(const struct offload_figures *f, int i, int row) { return f->rounds[i].fio_rate[row]; }
static double share(const struct offload_figures *f, int i, int row) {
    return rate(f, i, row) / f->rounds[i].fio_rate[row];
}

static double update_bytes(const struct offload_figures *f) {
    return offload_bench_update_bytes(f->bench) * (double)f->bench->elements;
}
static double update_rate(const struct offload_figures *f, int i, int row) {
    (void)row;
    return update_bytes(f) / f->rounds[i].update_seconds;
}
static double copy_rate(const struct offload_figures *f, int i, int row) {
    (void)row;
    return update_bytes(f) / f->rounds[i].copy_seconds;
}
static double copy_share(const struct offload_figures *f, int i, int row) {
    return update_rate(f, i, row) / copy_rate(f, i, row);
}

// ---------------------------------------------------------------- JSON
static void put_row(cJSON *j, const struct offload_figures *f, int row) {
    cJSON *o = cJSON_AddObjectToObject(j, row_names[row]);
    json_put(o, "bytes", offload_bench_bytes(f->bench, (enum offload_row)row));
    json_put(o, "bytes_per_second", middle(f, rate, row));
    if (*f->fio) {
        json_put(o, "fio_bytes_per_second", middle(f, fio_rate, row));
        json_put(o, "share_of_fio", middle(f, share, row));
    } else {
        cJSON_AddNullToObject(o, "fio_bytes_per_second");
        cJSON_AddNullToObject(o, "share_of_fio");
    }
}

static const char *engine_of(const struct disk_store *s) {
    return disk_store_engine(s) == DISK_ENGINE_URING ? "io_uring" : "threads";
}
static size_t block_of(const struct offload_bench *b) {
    return b->block_bytes ? b->block_bytes : DISK_BLOCK_BYTES;
}
static int depth_of(const struct offload_bench *b) { return b->depth ? b->depth : DISK_DEPTH; }

void offload_figures_json(const struct offload_figures *f) {
    const struct offload_bench *b = f->bench;
    char text[FILE_SYSTEM_BYTES];
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "bench", "offload");
    cJSON_AddStringToObject(j, "directory", b->dir);
    cJSON_AddStringToObject(j, "file_system", file_system_of(b->dir, text));
    cJSON_AddStringToObject(j, "engine", engine_of(b->store));
    cJSON_AddBoolToObject(j, "direct", disk_store_direct(b->store));
    json_put_text(j, "remark", disk_store_remark(b->store));
    json_put_text(j, "fio", *f->fio ? f->fio : NULL);
    json_put(j, "block_bytes", (double)block_of(b));
    json_put(j, "depth", depth_of(b));
    json_put(j, "units", b->units);
    json_put(j, "unit_parameters", (double)b->elements);
    json_put(j, "buffers", b->buffers);
    json_put(j, "rounds", f->count);
    for (int row = 0; row < OFFLOAD_ROWS; row++) put_row(j, f, row);
    cJSON *u = cJSON_AddObjectToObject(j, "update");
    cJSON_AddStringToObject(u, "dtype", dtype_name(b->dtype));
    json_put(u, "threads", b->threads);
    json_put(u, "bytes_per_parameter", offload_bench_update_bytes(b));
    json_put(u, "bytes_per_second", middle(f, update_rate, 0));
    json_put(u, "copy_bytes_per_second", middle(f, copy_rate, 0));
    json_put(u, "share_of_copy", middle(f, copy_share, 0));
    json_put(j, "target_share", OFFLOAD_TARGET);
    json_print(stdout, j);
    cJSON_Delete(j);
}

// ---------------------------------------------------------------- the table
void offload_figures_table(const struct offload_figures *f) {
    static const char *const words[OFFLOAD_ROWS] = {
        "", "", " (each unit read, updated by AdamW, written; both counted)"};
    const struct offload_bench *b = f->bench;
    char text[FILE_SYSTEM_BYTES], one[24], all[24], piece[24];
    int e = (int)dtype_size(b->dtype);
    printf("place     %s: %s, %s, %s, pieces of %s, %d under way\n", b->dir, file_system_of(b->dir, text),
           disk_store_direct(b->store) ? "O_DIRECT" : "through the kernel's cache", engine_of(b->store),
           format_bytes(piece, (double)block_of(b)), depth_of(b));
    if (disk_store_remark(b->store)) printf("remark    %s\n", disk_store_remark(b->store));
    printf("file      %s: %d unit%s of %s, %lld parameters with master and two moments in fp32; %d buffers\n",
           format_bytes(all, offload_bench_bytes(b, OFFLOAD_READ)), b->units, b->units == 1 ? "" : "s",
           format_bytes(one, 12.0 * (double)b->elements), (long long)b->elements, b->buffers);
    for (int row = 0; row < OFFLOAD_ROWS; row++) {
        printf("%-9s %.1f MB/s", row_names[row], 1e-6 * middle(f, rate, row));
        if (*f->fio)
            printf(", fio %.1f MB/s, share %.2f, wanted %.2f", 1e-6 * middle(f, fio_rate, row),
                   middle(f, share, row), OFFLOAD_TARGET);
        printf("%s\n", words[row]);
    }
    if (*f->fio)
        printf(
            "fio       %s on the same file, same pieces, depth and flags; for the pipeline a reader and a writer at once\n",
            f->fio);
    else
        printf("fio       not measured: it is not installed (apt-get install fio), or --fio none\n");
    printf(
        "update    AdamW %.1f GB/s, %d thread%s, %.0f bytes a parameter: gradient %d, master 4, moments 8 read, master 4, "
        "moments 8, weight %d written\n",
        1e-9 * middle(f, update_rate, 0), b->threads, b->threads == 1 ? "" : "s",
        offload_bench_update_bytes(b), e, e);
    printf(
        "copy      %.1f GB/s of as many bytes, half read and half written, same threads: share %.2f, wanted %.2f\n",
        1e-9 * middle(f, copy_rate, 0), middle(f, copy_share, 0), OFFLOAD_TARGET);
    printf(
        "%d round%s behind one that is not counted, medians, shares of the same round; what was read back was compared\n",
        f->count, f->count == 1 ? "" : "s");
}
