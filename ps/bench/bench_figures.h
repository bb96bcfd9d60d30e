// The measurements of `starring bench ps`, and the figures made of them. Pure.
#ifndef STARRING_PS_BENCH_BENCH_FIGURES_H
#define STARRING_PS_BENCH_BENCH_FIGURES_H

#include "shared/bench/bench.h"

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

struct bench_raw {
    struct bench_timed moved;
    struct bench_cpu sender, receiver;
};

// One payload size, one number of servers and workers.
struct bench_row {
    size_t bytes;  // of a payload
    int servers, workers, threads, keys;
    struct bench_timed copy, pieces, apply;  // one thread; copies count what they read and write
    struct bench_raw raw[BENCH_MEDIA];       // tcp: ZeroMQ alone; shm: the ring
    struct bench_star star[BENCH_MEDIA];
    struct bench_star peer;  // beside tcp
};
void bench_row_free(struct bench_row *r);

// Bytes that the server's arithmetic on n elements cannot do without: each gradient read, the sum written and
// read again between two of them, master and two moments read and written, a 16-bit weight written.
double bench_apply_bytes(int64_t n, int workers, enum dtype dt);
// Goodput of a worker and of a server, bytes a second.
double bench_worker_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
double bench_server_rate(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
// The rate through all servers together, as a share of the raw stream of the same medium.
double bench_share_of_raw(const struct bench_row *r, enum bench_medium m, enum bench_direction d);
double bench_shm_over_tcp(const struct bench_row *r, enum bench_direction d);  // 0: one is missing
// The star over tcp beside the peer: goodput over goodput, the median of the rounds' ratios; seconds over seconds of the
// acknowledgements' medians. 0: there is no peer.
double bench_over_peer(const struct bench_row *r, enum bench_direction d);
double bench_latency_over_peer(const struct bench_row *r);

#endif
