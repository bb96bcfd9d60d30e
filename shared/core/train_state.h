// The counters of a run after a step, and the loss scaler of fp16.
//
// The scaler is exactly DeepSpeed's DynamicLossScaler (0.19.6, runtime/fp16/loss_scaler.py), with scale
// factor 2. After each step attempt:
//
//     overflow      If hysteresis_left is above 1, it is reduced by 1. Otherwise the scale is halved, down to
//                   min_scale. If the scale is already min_scale, the run ends.
//     no overflow   good = steps after the last overflow, or after the start, without this one. When good > 0
//                   is a multiple of window, the scale is doubled and hysteresis is refilled. With
//                   consecutive_hysteresis every step without an overflow refills it.
//
// Every topology uses it. DeepSpeed uses it for stages 1 to 3; its optimizer of stage 0 has no hysteresis and stays
// at the minimum.
#ifndef STARRING_SHARED_CORE_TRAIN_STATE_H
#define STARRING_SHARED_CORE_TRAIN_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct scaler_config {
    bool enabled;         // fp16; false: the scale is always 1
    double static_scale;  // "loss_scale" > 0: the scale, which then never changes
    int initial_power;    // the first scale is 2 to this power
    int window;
    int hysteresis;  // n: the n-th overflow is the first that halves the scale
    bool consecutive_hysteresis;
    double min_scale;
};
struct scaler {
    double scale;
    int64_t iter, last_overflow;
    int hysteresis_left;
};
void scaler_init(struct scaler *s, const struct scaler_config *c);
// Returns -1 after fail() if a gradient overflowed while the scale was at its minimum. DeepSpeed ends the run there
// (raise_error_at_min_scale), and the loop must too; the state is then unchanged. A static scale never fails.
int scaler_update(struct scaler *s, const struct scaler_config *c, bool overflow);
// Returns whether the next overflow ends the run.
bool scaler_at_end(const struct scaler *s, const struct scaler_config *c);
// Logs that an overflow has ended the run. where names the gradient: "", or "..: ". Returns -1.
int scaler_ended(const struct scaler *s, const struct scaler_config *c, const char *where);

// ---------------------------------------------------------------- counters
// The loop's state of a run besides weights and optimizer: the counters after a step. All zero: the beginning of a run, for
// which the configuration sets the scaler.

struct cJSON;

struct train_state {
    int64_t step;     // steps done, and so the number of the next step
    int64_t updates;  // steps that were not skipped
    int64_t samples;  // samples whose gradients are in the weights
    // Samples that the schedule counts besides `samples`: those of workers that were too late for a step.
    int64_t unapplied;
    int64_t handed_out;    // samples; the order of the data is a function of (seed, handed_out)
    int64_t steps_of_run;  // with a shared budget: completed steps of the run; 0: `step` is this number
    int skipped_in_a_row;
    struct scaler scaler;
};

// Returns the completed steps of the run. With a shared budget, `step` is only worker 0's own count.
static inline int64_t train_state_steps(const struct train_state *s) {
    return s->steps_of_run ? s->steps_of_run : s->step;
}

// Returns {"step", "updates", "samples", "unapplied" (unless 0), "dealt", "place" (unless 0), "skipped_in_a_row",
// "scaler": {"scale", "iter", "last_overflow", "hysteresis_left"}}. The numbers read back as the same bits. The
// caller deletes it.
struct cJSON *train_state_json(const struct train_state *s);
// Returns 0, or -1 after fail() named file, key and what is wrong.
int train_state_read(const struct cJSON *object, const char *file, struct train_state *out);

#endif
