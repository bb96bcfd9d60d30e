// The common facts of the processes of one row of `starring bench ps`: a layout made up of units of one payload each, cut into
// partitions as a run's are, and the configuration of a real star over it. Every process derives both from the same few numbers.
//
//     stream    many payloads a step, gradients clipped: a step's pushes, its updates and its pulls are then
//               apart, because the servers wait for the scheduler's decision. A gradient that is not finite
//               makes it "skip", and the weights come back without an update: pulls alone.
//     latency   a payload a shard thread and step, nothing clipped: it is committed as soon as it has come
#ifndef STARRING_PS_BENCH_BENCH_PLAN_H
#define STARRING_PS_BENCH_BENCH_PLAN_H

#include "ps/bench/bench_figures.h"
#include "shared/config/config.h"
#include "shared/core/unit.h"

#define BENCH_BYTES_STEP 1024  // payloads are multiples of this: whole blocks of the exact sum of squares

enum bench_kind { BENCH_STREAM, BENCH_LATENCY, BENCH_KINDS };

struct bench_plan {
    enum bench_kind kind;
    enum bench_medium medium;
    enum dtype dtype;
    size_t bytes;  // of a payload
    int servers, workers, threads;
    size_t partition;  // bytes that are sent in one message, at most
};
int bench_keys(const struct bench_plan *p);          // payloads of a step
size_t bench_partition(const struct bench_plan *p);  // bytes, but for a payload's last one
int64_t bench_elements(const struct bench_plan *p);

// A plan in words, as the bench hands it to the processes that it starts, and back: 0, or -1 after logging.
#define BENCH_PLAN_TEXT 96
void bench_plan_text(const struct bench_plan *p, char text[BENCH_PLAN_TEXT]);
int bench_plan_read(struct bench_plan *p, const char *text);

// Both malloc'd: config_destroy, layout_destroy. The configuration is NULL after logging.
struct config *bench_config(const struct topology_table *t, const struct bench_plan *p);
struct layout *bench_layout(const struct bench_plan *p);

// Bytes that the processes of a row take at most: stars over `media` media, raw streams and arithmetic.
double bench_memory(const struct bench_plan *p, int media);

#endif
