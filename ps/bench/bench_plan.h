// The common ground of the files of `starring bench ps`: a row's plan, its measurements, the figures made of them.
//
//     bench_ps.c        the command, its table and its JSON
//     bench_measure.c   the processes of a row, and what is measured of them, all in turn
//     bench_roles.c     what each process does (bench_roles.h)
//     bench_plan.c      what the processes of a row have in common, and the figures made of measurements. Pure
#ifndef STARRING_PS_BENCH_BENCH_PLAN_H
#define STARRING_PS_BENCH_BENCH_PLAN_H

#include "shared/bench/bench.h"
#include "shared/config/config.h"
#include "shared/core/unit.h"

// ---------------------------------------------------------------- measurements and figures
// The same work, timed once a round.
struct bench_timed {
    double bytes;  // of one round
    struct bench_series seconds;
};
double bench_timed_rate(const struct bench_timed *t);  // bytes / median of the seconds; 0: not measured

// CPU time, all processes of a role added, over all rounds.
struct bench_cpu {
    double seconds, bytes;
};
static inline double bench_cpu_per_gb(const struct bench_cpu *c) {
    return c->bytes > 0 ? c->seconds / (c->bytes * 1e-9) : 0;
}

enum bench_role { BENCH_WORKER, BENCH_SERVER, BENCH_SCHEDULER, BENCH_ROLES };
enum bench_direction { BENCH_PUSH, BENCH_PULL, BENCH_DIRECTIONS };
enum bench_medium { BENCH_TCP, BENCH_SHM, BENCH_MEDIA };
const char *bench_medium_name(enum bench_medium m);
const char *bench_role_name(enum bench_role r);
const char *bench_direction_name(enum bench_direction d);

// Bytes that went over the wire beside those that the steps make.
struct bench_wire {
    double steps;
    double expected;                      // of a worker, each way
    double worker_sent, worker_received;  // mean over the workers
    double server_expected;               // of a server and step, each way
    double server_sent, server_received;  // mean over the servers, a step
};

struct bench_star {
    bool there;
    // Bytes of one worker, seconds from the first's start to the last's end.
    struct bench_timed moved[BENCH_DIRECTIONS];
    struct bench_timed step;            // pushes, update and pulls
    struct bench_cpu cpu[BENCH_ROLES];  // of steps without an update; bytes pushed and pulled
    struct bench_series acknowledged,
        landed;  // seconds of one partition: push -> ack, push -> commit -> pull
    struct bench_wire wire;
};

// One payload size, one number of servers and workers.
struct bench_row {
    size_t bytes;  // of a payload
    int servers, workers, threads, keys;
    struct bench_star star[BENCH_MEDIA];
    struct bench_star peer;  // beside tcp
};
void bench_row_free(struct bench_row *r);

// Goodput of a worker and of a server, bytes a second.
double bench_worker_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
double bench_server_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
double bench_shm_over_tcp(const struct bench_row *r, enum bench_direction d);  // 0: one is missing
// The star over tcp beside the peer: goodput over goodput, the median of the rounds' ratios; seconds over seconds of the
// acknowledgements' medians. 0: there is no peer.
double bench_over_peer(const struct bench_row *r, enum bench_direction d);
double bench_latency_over_peer(const struct bench_row *r);

// ---------------------------------------------------------------- a row
// The common facts of the processes of one row of `starring bench ps`: a layout made up of units of one payload each, cut into
// partitions as a run's are, and the configuration of a real star over it. Every process derives both from the same few numbers.
//
//     stream    many payloads a step, gradients clipped: a step's pushes, its updates and its pulls are then
//               apart, because the servers wait for the scheduler's decision. A gradient that is not finite
//               makes it "skip", and the weights come back without an update: pulls alone.
//     latency   a payload a shard thread and step, nothing clipped: it is committed as soon as it has come
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

// Bytes that the processes of a row take at most: stars over `media` media.
double bench_memory(const struct bench_plan *p, int media);

struct bench_request {
    struct bench_plan plan;  // its kind and medium are the measuring's to choose
    bool media[BENCH_MEDIA];
    int rounds;        // after one that is not counted
    const char *peer;  // the program of bench_build; NULL: the star is alone
};

// Measures one row: starts its processes, has each thing measured once a round, all in turn, so that what else the machine does
// falls on all of them, and ends them. Fills row, which bench_row_free empties in any case. The exit status; *interrupted: a signal that ended it, or 0.
int bench_measure_row(const struct bench_request *q, struct bench_row *row, int *interrupted);

#endif
