// `starring bench ps`: how fast the star moves gradients and weights. A row's plan.
//
//     bench_ps.c        the bench: its options, its columns and its figures in JSON
//     bench_measure.c   the processes of a row and their measurements, one after the other (bench_measure.h)
//     bench_roles.c     the code of each process (bench_roles.h)
//     bench_plan.c      the plan of a row. Pure
#ifndef STARRING_PS_BENCH_BENCH_PLAN_H
#define STARRING_PS_BENCH_BENCH_PLAN_H

#include "shared/config/config.h"
#include "shared/core/unit.h"

enum bench_medium { BENCH_TCP, BENCH_SHM, BENCH_MEDIA };

// ---------------------------------------------------------------- a row
// One row of `starring bench ps`: an artificial layout with one payload per unit, split into partitions like a run's,
// and the configuration of a real star over it. Every process derives both from the plan.
//
//     stream    many payloads per step, gradients clipped: a step's pushes, updates and pulls are then separate,
//               because the servers wait for the scheduler's decision. After a non-finite gradient the decision is
//               "skip", and the weights are sent without an update: the bench measures pulls without updates.
//     latency   one payload per shard thread and step, nothing clipped: a server commits it on arrival
#define BENCH_BYTES_STEP 1024  // payloads are multiples of this: whole blocks of the exact sum of squares

enum bench_kind { BENCH_STREAM, BENCH_LATENCY, BENCH_KINDS };

struct bench_plan {
    enum bench_kind kind;
    enum bench_medium medium;
    enum dtype dtype;
    size_t bytes;  // bytes of a payload
    int servers, workers, threads;
    size_t partition;  // the most bytes of one message
};
int bench_keys(const struct bench_plan *p);  // Returns the number of payloads of a step.
// Returns bytes; a payload's last partition may be smaller.
size_t bench_partition(const struct bench_plan *p);
int64_t bench_elements(const struct bench_plan *p);

// A plan as text, which the bench passes to the processes that it starts. Reading returns 0, or -1 after logging.
#define BENCH_PLAN_TEXT 96
void bench_plan_text(const struct bench_plan *p, char text[BENCH_PLAN_TEXT]);
int bench_plan_read(struct bench_plan *p, const char *text);

// The caller frees them with config_destroy and layout_destroy. bench_config returns NULL after logging.
struct config *bench_config(const struct topology_table *t, const struct bench_plan *p);
struct layout *bench_layout(const struct bench_plan *p);

// Returns the most bytes that the processes of a row use, with one star per medium.
double bench_memory(const struct bench_plan *p, int media);

#endif
