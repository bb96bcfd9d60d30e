// `starring bench ps`: how fast the star moves gradients and weights. A row's plan, its measurements and its figures.
//
//     bench_ps.c        the bench: its options, its columns and its figures in JSON
//     bench_measure.c   the processes of a row and their measurements, one after the other
//     bench_roles.c     the code of each process (bench_roles.h)
//     bench_plan.c      the plan of a row, and the figures computed from measurements. Pure
#ifndef STARRING_PS_BENCH_BENCH_PLAN_H
#define STARRING_PS_BENCH_BENCH_PLAN_H

#include "shared/bench/bench.h"
#include "shared/config/config.h"
#include "shared/core/unit.h"

// ---------------------------------------------------------------- measurements and figures
// The same work, timed once per round.
struct bench_timed {
    double bytes;  // of one round
    struct bench_series seconds;
};
double bench_timed_rate(const struct bench_timed *t);  // bytes / median of the seconds; 0: not measured

// CPU time of all processes of a role, over all rounds.
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

// Bytes that moved, and bytes that the steps should move.
struct bench_wire {
    double steps;
    double expected;                      // per worker, each way
    double worker_sent, worker_received;  // mean over the workers
    double server_expected;               // per server and step, each way
    double server_sent, server_received;  // mean over the servers, per step
};

struct bench_star {
    bool there;
    // Bytes of one worker; seconds from the first worker's start to the last worker's end.
    struct bench_timed moved[BENCH_DIRECTIONS];
    struct bench_timed step;            // pushes, update and pulls
    struct bench_cpu cpu[BENCH_ROLES];  // of steps without an update; bytes: pushed and pulled
    // Seconds of one payload: push -> acknowledgement, push -> commit -> pull.
    struct bench_series acknowledged, landed;
    struct bench_wire wire;
};

// One payload size, one number of servers and workers.
struct bench_row {
    size_t bytes;  // of a payload
    int servers, workers, threads, keys;
    struct bench_star star[BENCH_MEDIA];
    struct bench_star peer;  // to be compared with tcp
};
void bench_row_free(struct bench_row *r);

// Goodput of one worker, and of one server, in bytes per second.
double bench_worker_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
double bench_server_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
double bench_shm_over_tcp(const struct bench_row *r, enum bench_direction d);  // 0: a medium is missing
// The star over tcp divided by the peer: goodput, as the median of the rounds' ratios; median seconds of the
// acknowledgements. 0: no peer.
double bench_over_peer(const struct bench_row *r, enum bench_direction d);
double bench_latency_over_peer(const struct bench_row *r);

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
    size_t bytes;  // of a payload
    int servers, workers, threads;
    size_t partition;  // the most bytes of one message
};
int bench_keys(const struct bench_plan *p);          // payloads of a step
size_t bench_partition(const struct bench_plan *p);  // bytes; a payload's last partition may be smaller
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

struct bench_request {
    struct bench_plan plan;  // without kind and medium, which the measurement sets
    bool media[BENCH_MEDIA];
    const char *peer;  // path of the peer's program (bench_ps.c); NULL: no peer
};

// A row: its processes are started, each measurement is made once per round, and the processes are ended. Measurements
// alternate, so that other load of the machine affects all of them. All return the exit status after logging; after an
// error (128 + signal after a signal) the processes have ended and *p is NULL. The caller keeps q and row until the end.
struct bench_processes;
// Starts the processes and clears row, which the measurements fill; the caller passes it to bench_row_free.
int bench_processes_start(struct bench_processes **p, const struct bench_request *q, struct bench_row *row);
int bench_processes_round(struct bench_processes **p, bool counts);  // counts: false for the warm-up
int bench_processes_end(struct bench_processes **p);

#endif
