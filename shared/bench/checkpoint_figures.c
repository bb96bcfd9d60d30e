#include "shared/bench/checkpoint_figures.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "kernels/statistics.h"
#include "shared/config/json.h"
#include "shared/core/text.h"

// ---------------------------------------------------------------- medians
// Of the double at `offset` of every round's struct, `size` bytes apart.
static double middle(const void *first, size_t size, size_t offset, int count) {
    double values[CHECKPOINT_ROUNDS_MAX];
    for (int i = 0; i < count; i++)
        memcpy(&values[i], (const char *)first + (size_t)i * size + offset, sizeof *values);
    return median(values, count);
}
#define WRITTEN(f, member)                                                                                 \
    middle((f)->rounds->write, sizeof(struct checkpoint_times), offsetof(struct checkpoint_times, member), \
           (f)->rounds->count)
#define READ(f, which, member)                                                                 \
    middle((f)->rounds->which, sizeof(struct read_times), offsetof(struct read_times, member), \
           (f)->rounds->count)
#define PLAIN(f)  middle((f)->rounds->plain, sizeof(double), 0, (f)->rounds->count)
#define DIRECT(f) middle((f)->rounds->direct, sizeof(double), 0, (f)->rounds->count)
#define HASH(f)   middle((f)->rounds->hash, sizeof(double), 0, (f)->rounds->count)

// The faster of the two plain ways, by their medians.
static const double *disk(const struct checkpoint_figures *f) {
    double direct = DIRECT(f);
    return direct > 0 && direct < PLAIN(f) ? f->rounds->direct : f->rounds->plain;
}
#define DISK(f) middle(disk(f), sizeof(double), 0, (f)->rounds->count)

// A plain way's seconds over the checkpoint's, each of the same round: bytes are equal, so this is the share of its rate.
static double share(const struct checkpoint_figures *f, const double *plain) {
    double values[CHECKPOINT_ROUNDS_MAX];
    for (int i = 0; i < f->rounds->count; i++) values[i] = plain[i] / f->rounds->write[i].whole;
    return median(values, f->rounds->count);
}

static double read_share(const struct checkpoint_figures *f) {
    double values[CHECKPOINT_ROUNDS_MAX];
    for (int i = 0; i < f->rounds->count; i++)
        values[i] = f->rounds->read_plain[i].seconds / f->rounds->read[i].seconds;
    return median(values, f->rounds->count);
}

// (Largest - smallest) / median of the disk's own seconds.
static double spread(const struct checkpoint_figures *f) {
    double least = disk(f)[0], most = least;
    for (int i = 1; i < f->rounds->count; i++) {
        double x = disk(f)[i];
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    return (most - least) / DISK(f);
}

static double state_bytes(const struct checkpoint_figures *f) {
    return (double)f->bench->elements * sizeof(float);
}

// What there is to know of a place that is no disk.
static const char *remark(const char *file_system) {
    if (!strcmp(file_system, "tmpfs")) return "memory, no disk: nothing written there survives a reboot";
    if (!strcmp(file_system, "overlay")) return "an overlay: what is below it does the writing";
    if (!strcmp(file_system, "nfs") || !strcmp(file_system, "9p") || !strcmp(file_system, "fuse"))
        return "another machine or program does the writing";
    return NULL;
}

// ---------------------------------------------------------------- JSON
static void put_direct(cJSON *j, const struct checkpoint_figures *f) {
    if (DIRECT(f) > 0) {
        cJSON *d = cJSON_AddObjectToObject(j, "direct_write");
        json_put(d, "seconds", DIRECT(f));
        json_put(d, "bytes_per_second", checkpoint_bench_bytes(f->bench) / DIRECT(f));
    } else {
        cJSON_AddNullToObject(j, "direct_write");
    }
}

static void put_writing(cJSON *j, const struct checkpoint_figures *f) {
    double bytes = checkpoint_bench_bytes(f->bench), whole = WRITTEN(f, whole);
    cJSON *w = cJSON_AddObjectToObject(j, "write");
    json_put(w, "seconds", whole);
    json_put(w, "bytes_per_second", bytes / whole);
    json_put(w, "handing_over_seconds", WRITTEN(f, handing_over));
    json_put(w, "finishing_seconds", WRITTEN(f, finishing));
    json_put(w, "completing_seconds", WRITTEN(f, completing));
    json_put(w, "user_cpu_seconds", WRITTEN(f, user));
    json_put(w, "system_cpu_seconds", WRITTEN(f, system));
    cJSON *p = cJSON_AddObjectToObject(j, "plain_write");
    json_put(p, "seconds", PLAIN(f));
    json_put(p, "bytes_per_second", bytes / PLAIN(f));
    put_direct(j, f);
    cJSON *d = cJSON_AddObjectToObject(j, "disk");
    cJSON_AddStringToObject(d, "is", disk(f) == f->rounds->direct ? "direct_write" : "plain_write");
    json_put(d, "seconds", DISK(f));
    json_put(d, "bytes_per_second", bytes / DISK(f));
    json_put(d, "spread", spread(f));
    json_put(j, "share_of_disk", share(f, disk(f)));
    json_put(j, "share_of_plain_write", share(f, f->rounds->plain));
    json_put(j, "target_share_of_disk", CHECKPOINT_TARGET);
    cJSON *h = cJSON_AddObjectToObject(j, "xxh64");
    json_put(h, "seconds", HASH(f));
    json_put(h, "bytes_per_second", state_bytes(f) / HASH(f));
    json_put(h, "share_of_write", HASH(f) / whole);
}

static void put_reading(cJSON *j, const char *key, double bytes, double seconds, double cached) {
    cJSON *r = cJSON_AddObjectToObject(j, key);
    json_put(r, "seconds", seconds);
    json_put(r, "bytes_per_second", bytes / seconds);
    json_put(r, "cached", cached);
}

void checkpoint_figures_json(const struct checkpoint_figures *f) {
    char text[FILE_SYSTEM_BYTES];
    const struct checkpoint_bench *b = f->bench;
    double bytes = checkpoint_bench_bytes(b);
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "bench", "checkpoint");
    cJSON_AddStringToObject(j, "model", f->model);
    json_put(j, "params", (double)b->layout->params);
    cJSON_AddStringToObject(j, "optimizer", b->optimizer);
    json_put(j, "numbers_per_parameter", 1 + b->states);
    json_put(j, "files", b->files);
    json_put(j, "bytes", bytes);
    cJSON_AddStringToObject(j, "directory", f->where);
    cJSON_AddStringToObject(j, "file_system", file_system_of(b->dir, text));
    json_put_text(j, "file_system_remark", remark(text));
    json_put(j, "rounds", f->rounds->count);
    put_writing(j, f);
    put_reading(j, "read", bytes, READ(f, read, seconds), READ(f, read, cached));
    put_reading(j, "plain_read", bytes, READ(f, read_plain, seconds), READ(f, read_plain, cached));
    json_put(j, "share_of_plain_read", read_share(f));
    json_print(stdout, j);
    cJSON_Delete(j);
}

// ---------------------------------------------------------------- the table
static void print_rate(const char *what, double bytes, double seconds) {
    printf("%-14s %.3f s, %.1f MB/s", what, seconds, 1e-6 * bytes / seconds);
}

void checkpoint_figures_table(const struct checkpoint_figures *f) {
    char text[FILE_SYSTEM_BYTES];
    const struct checkpoint_bench *b = f->bench;
    double bytes = checkpoint_bench_bytes(b), whole = WRITTEN(f, whole);
    const char *words = remark(file_system_of(b->dir, text));
    printf("model          %s, %lld parameters, %s: %d numbers of 4 bytes each\n", f->model,
           (long long)b->layout->params, b->optimizer, 1 + b->states);
    printf("checkpoint     %.0f bytes in %d file%s, each from a thread of its own\n", bytes, b->files,
           b->files == 1 ? "" : "s");
    printf("place          %s: %s%s%s\n", f->where, text, words ? ", " : "", words ? words : "");
    print_rate("written", bytes, whole);
    printf(" (median of %d round%s, in turn with the next lines)\n", f->rounds->count,
           f->rounds->count == 1 ? "" : "s");
    print_rate("plain write", bytes, PLAIN(f));
    printf(" (write and fsync of the same bytes)\n");
    if (DIRECT(f) > 0) {
        print_rate("direct write", bytes, DIRECT(f));
        printf(" (likewise with O_DIRECT, room reserved)\n");
    }
    printf("share          %.2f of the plain write; %.2f of the faster one (its spread %.2f), wanted %.2f\n",
           share(f, f->rounds->plain), share(f, disk(f)), spread(f), CHECKPOINT_TARGET);
    printf("of it          handing over %.3f s, the rest to disk %.3f s, manifest and rename %.3f s\n",
           WRITTEN(f, handing_over), WRITTEN(f, finishing), WRITTEN(f, completing));
    printf("CPU            %.3f s of the program, %.3f s of the kernel\n", WRITTEN(f, user),
           WRITTEN(f, system));
    print_rate("xxh64", state_bytes(f), HASH(f));
    printf(": %.1f%% of the time of writing\n", 100 * HASH(f) / whole);
    print_rate("read, verified", bytes, READ(f, read, seconds));
    printf(" (%.0f%% was in memory)\n", 100 * READ(f, read, cached));
    print_rate("plain read", bytes, READ(f, read_plain, seconds));
    printf(" (%.0f%% was in memory)\n", 100 * READ(f, read_plain, cached));
    printf("share          %.2f of the plain read\n", read_share(f));
}
