// The loss scaler of fp16: DeepSpeed's DynamicLossScaler, to the letter (0.19.6,
// runtime/fp16/loss_scaler.py), with scale factor 2. After each step attempt:
//
//     overflow      more than one of hysteresis left: one is used up; else the scale is halved, down to
//                   min_scale. At min_scale already: the run ends.
//     no overflow   good = steps since the last overflow, or since the start, before this one. When good > 0
//                   is a multiple of window: the scale is doubled and hysteresis refilled. With
//                   consecutive_hysteresis every step without an overflow refills it.
//
// Every topology uses it. DeepSpeed does for stages 1 to 3; its optimizer of stage 0 has no hysteresis and
// stays at the minimum.
#ifndef STARRING_SHARED_CORE_SCALER_H
#define STARRING_SHARED_CORE_SCALER_H

#include <stdbool.h>
#include <stdint.h>

struct scaler_config {
    bool enabled;         // fp16; false: the scale is 1 and never moves
    double static_scale;  // "loss_scale" > 0: the scale, which never moves
    int initial_power;    // of 2: the first scale
    int window;
    int hysteresis;  // overflows up to the first that halves the scale
    bool consecutive_hysteresis;
    double min_scale;
};
struct scaler {
    double scale;
    int64_t iter, last_overflow;
    int hysteresis_left;
};
void scaler_init(struct scaler *s, const struct scaler_config *c);
// -1 after fail() when a gradient overflowed although the scale is at its minimum already: DeepSpeed ends
// the run there (raise_error_at_min_scale), and so must the loop; the state is then unchanged. A static scale
// never fails.
int scaler_update(struct scaler *s, const struct scaler_config *c, bool overflow);
// The next overflow ends the run.
bool scaler_at_end(const struct scaler *s, const struct scaler_config *c);
// Logs that it has, and which gradient ("", or "whose: "); returns -1.
int scaler_ended(const struct scaler *s, const struct scaler_config *c, const char *where);

#endif
