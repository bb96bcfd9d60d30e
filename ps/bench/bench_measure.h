// The stars of a row of `starring bench ps`: their processes, and what is measured on them.
//
// A star's launcher starts the processes and ends all of them when one dies. They communicate by lines (bench_roles.h).
// Each measurement is made once per round. Measurements alternate, so that other load of the machine affects all.
#ifndef STARRING_PS_BENCH_BENCH_MEASURE_H
#define STARRING_PS_BENCH_BENCH_MEASURE_H

#include <time.h>

#include "ps/bench/bench_plan.h"
#include "shared/bench/bench.h"

#define BENCH_RANKS_MOST 4

enum bench_role { BENCH_WORKER, BENCH_SERVER, BENCH_SCHEDULER, BENCH_ROLES };
enum bench_direction { BENCH_PUSH, BENCH_PULL, BENCH_DIRECTIONS };

struct bench_member {
    int control;  // socket; 0: not started
    clockid_t cpu;
};

struct bench_star {
    bool wanted;
    struct bench_plan plan;
    const char *program;  // the program of a peer's processes; NULL: a star
    struct bench_member members[BENCH_ROLES][BENCH_RANKS_MOST];
    // ---- the measurements, in seconds per round
    // From the first worker's start to the last worker's end; step: pushes, update and pulls.
    struct bench_series moved[BENCH_DIRECTIONS], step;
    // One payload: push -> acknowledgement, push -> commit -> pull.
    struct bench_series acknowledged, landed;
    // CPU seconds of the rounds' steps without an update, over all processes of a role.
    double cpu_s[BENCH_ROLES];
    int64_t steps;  // all steps, with those of the warm-up
    // Mean payload bytes of the processes of a role: sent, received. Workers: of all steps; servers: per step.
    double sent[BENCH_ROLES], received[BENCH_ROLES];
};
int bench_ranks(const struct bench_plan *p, enum bench_role role);

struct bench_stars {
    struct launcher *launcher;
    char *program;
    struct bench_star stars[BENCH_MEDIA][BENCH_KINDS], peer;  // peer: compared with the star over tcp
};
// Each returns the exit status after logging. After an error (128 + signal after a signal) the processes have ended.
// start: the caller has set wanted, plan and program of each star.
int bench_stars_start(struct bench_stars *s);
int bench_stars_round(struct bench_run *r, struct bench_stars *s);
int bench_stars_end(struct bench_stars *s);

#endif
