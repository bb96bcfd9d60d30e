// The loop's state of a run besides weights and optimizer: the counters behind a step. All zero: from the beginning
// (the scaler is then what the configuration makes of it).
#ifndef STARRING_SHARED_CORE_TRAIN_STATE_H
#define STARRING_SHARED_CORE_TRAIN_STATE_H

#include <stdint.h>

#include "shared/core/scaler.h"

struct cJSON;

struct train_state {
    int64_t step;     // attempts done: the next one's number
    int64_t updates;  // attempts that were not skipped
    int64_t samples;  // whose gradients are in the weights
    int64_t
        unapplied;  // beside them the schedule counts these: of workers that were late for steps that were made without them
    int64_t dealt;  // handed out: data order is a function of (seed, dealt)
    int64_t place;  // where ranks share a budget: steps of the run that the samples make; 0: `step`
    int skipped_in_a_row;
    struct scaler scaler;
};

// How many of the run's steps are done: of one that shares a budget `step` is worker 0's own count.
static inline int64_t train_state_place(const struct train_state *s) { return s->place ? s->place : s->step; }

// {"step", "updates", "samples", "unapplied" (unless 0), "dealt", "place" (unless 0), "skipped_in_a_row", "scaler": {"scale", "iter", "last_overflow",
// "hysteresis_left"}}: numbers that read back as the same bits. The caller deletes it.
struct cJSON *train_state_json(const struct train_state *s);
// 0, or -1 after fail() named file, key and what is wrong.
int train_state_read(const struct cJSON *object, const char *file, struct train_state *out);

#endif
