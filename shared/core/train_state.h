// The loop's state of a run besides weights and optimizer: the counters after a step. All zero: the beginning (the
// configuration then sets the scaler).
#ifndef STARRING_SHARED_CORE_TRAIN_STATE_H
#define STARRING_SHARED_CORE_TRAIN_STATE_H

#include <stdint.h>

#include "shared/core/scaler.h"

struct cJSON;

struct train_state {
    int64_t step;     // attempts done, which is the number of the next one
    int64_t updates;  // attempts that were not skipped
    int64_t samples;  // samples whose gradients are in the weights
    // Samples that the schedule counts besides them: of workers that were late for steps that were closed without
    // them.
    int64_t unapplied;
    int64_t dealt;  // samples handed out; the order of the data is a function of (seed, dealt)
    int64_t place;  // with a shared budget: completed steps of the run; 0: `step` is this number
    int skipped_in_a_row;
    struct scaler scaler;
};

// Completed steps of the run. With a shared budget `step` is worker 0's own count.
static inline int64_t train_state_place(const struct train_state *s) { return s->place ? s->place : s->step; }

// Returns {"step", "updates", "samples", "unapplied" (unless 0), "dealt", "place" (unless 0), "skipped_in_a_row",
// "scaler": {"scale", "iter", "last_overflow", "hysteresis_left"}}. The numbers read back as the same bits. The
// caller deletes it.
struct cJSON *train_state_json(const struct train_state *s);
// Returns 0, or -1 after fail() named file, key and what is wrong.
int train_state_read(const struct cJSON *object, const char *file, struct train_state *out);

#endif
