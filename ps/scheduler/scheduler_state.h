// What the scheduler's core holds; shared by scheduler_core.c (messages) and scheduler_setup.c (birth and
// death).
#ifndef STARRING_PS_SCHEDULER_SCHEDULER_STATE_H
#define STARRING_PS_SCHEDULER_SCHEDULER_STATE_H

#include "ps/consistency.h"
#include "ps/scheduler/scheduler_core.h"

struct member {
    bool present, gone;  // gone: said goodbye
    uint64_t incarnation;
    double seen_s;
    int64_t step;
    uint64_t progress;  // pushes and initial values taken so far, as its heartbeat says
    double progress_s;  // when that last grew
    char *endpoints;    // servers: one address a line
};

// What the workers and shards said of one step, and the answer.
struct round {
    int64_t step;
    bool *reported;  // (N)
    bool *summed;    // (shards)
    int reports, sums;
    double *loss;  // (N)
    float lr, loss_scale, clip;
    int first_worker;
    struct exact_sum sum;
    double first_s, last_s;  // when the first and the last word of this step came
};

struct gather {
    uint64_t seq;
    bool *have;        // (N)
    int count, words;  // workers heard; values each
    double *values;    // (N, WIRE_VALUES_MAX)
    double first_s;
};

struct scheduler_core {
    struct scheduler_core_options o;
    struct consistency_rule rule;
    int workers, servers, shards, members;
    int full_shards;   // shards that own keys
    struct member *m;  // (members)
    bool started, closing, done;
    double closing_s, shutdown_s;
    struct round round;
    struct wire_header step_done, decision, gathered;  // last answers; kind NONE: none yet
    struct gather gather;
    bool stop;  // some worker was asked to leave
    char error[WIRE_TEXT_MAX];
};

#endif
