// What `starring bench offload` times: a disk_store (shared/offload/) full of units, each a master and two moments of fp32
// behind each other, as a rank keeps them that offloads its optimizer to disk.
//
//     write     every unit, one after the other
//     read      likewise, into `buffers` buffers in turn; what came is compared with what was written
//     pipeline  read, AdamW, write of each unit over the same buffers: three streams ordered by events alone
//     update    AdamW over one unit in memory, beside a copy of as many bytes on the same threads
//
// fio       Reads, writes, and reads and writes at once, the same file: pieces, depth, O_DIRECT and engine are equal.
// Errors    -1 after fail() named file and reason.
#ifndef STARRING_SHARED_BENCH_OFFLOAD_WORK_H
#define STARRING_SHARED_BENCH_OFFLOAD_WORK_H

#include "shared/offload/disk_store.h"

#define OFFLOAD_ROUNDS_MAX  99
#define OFFLOAD_BUFFERS_MAX 8

enum offload_row { OFFLOAD_WRITE, OFFLOAD_READ, OFFLOAD_PIPELINE, OFFLOAD_ROWS };

struct offload_bench {
    // The caller's.
    const char *dir, *fio;  // fio: the program; NULL: not asked
    size_t bytes;           // wanted in the file
    size_t unit_bytes;      // wanted of a unit
    size_t block_bytes;
    int depth, buffers, threads;
    enum dtype dtype;  // of gradients and weights, which stay in memory
    enum disk_engine engine;
    // Ours.
    struct disk_store *store;
    char *path;
    int units;
    int64_t elements;  // of a unit: parameters
    struct device *dev;
    struct stream *reads, *updates, *writes;
    struct event *full[OFFLOAD_BUFFERS_MAX], *changed[OFFLOAD_BUFFERS_MAX], *empty[OFFLOAD_BUFFERS_MAX];
    char *buffer[OFFLOAD_BUFFERS_MAX], *truth;  // (unit_bytes) each, aligned; truth: what every unit holds
    void *grad, *weight, *copy;
    struct update_scalars *scalars;
};

// One round: seconds of ours, bytes per second of fio (0: not measured).
struct offload_round {
    double seconds[OFFLOAD_ROWS], fio_rate[OFFLOAD_ROWS], update_seconds, copy_seconds;
};

int offload_bench_open(struct offload_bench *b);
void offload_bench_close(struct offload_bench *b);  // also of one that is half open
// Where b->fio cannot be started it becomes NULL. version: "fio-3.33".
void offload_bench_find_fio(struct offload_bench *b, char version[32]);
int offload_bench_round(struct offload_bench *b, struct offload_round *out);
double offload_bench_bytes(const struct offload_bench *b, enum offload_row row);  // read and written
double offload_bench_update_bytes(const struct offload_bench *b);                 // of a parameter

#endif
