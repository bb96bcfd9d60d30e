// The dynamic loss scaler of fp16.
#ifndef STARRING_SHARED_MODEL_SCALER_H
#define STARRING_SHARED_MODEL_SCALER_H

#include <stdbool.h>
#include <stdint.h>

// DeepSpeed's DynamicLossScaler, to the letter (0.19.6, runtime/fp16/loss_scaler.py), scale factor 2:
//     overflow:  hysteresis == 1 or used up to 1: at min_scale already -> the run ends; else
//                scale = max(scale/2, min_scale). Otherwise one hysteresis is used up.
//     else:      good = good steps between the last overflow (or the start) and this one; good > 0 and
//                good % window == 0: scale *= 2, hysteresis refilled (consecutive_hysteresis: refilled
//                by every good step instead).
// Every topology uses it. DeepSpeed does for stages 1 to 3; its optimizer of stage 0 knows no hysteresis
// and stays at the minimum.
struct scaler_config {
    bool enabled;                 // fp16; false: scale is 1 and never moves
    double static_scale;          // "loss_scale" > 0: fixed
    int initial_power;            // 16
    int window;                   // 1000
    int hysteresis;               // 2
    bool consecutive_hysteresis;  // false
    double min_scale;             // 1
};
struct scaler {
    double scale;
    int64_t iter, last_overflow;
    int hysteresis_left;
};
void scaler_init(struct scaler *s, const struct scaler_config *c);
// After each step attempt. -1 after fail() when a gradient overflowed although the scale is at its
// minimum already: DeepSpeed ends the run there (raise_error_at_min_scale), and so must the loop; the
// state is then unchanged. A static scale never moves and never fails.
int scaler_update(struct scaler *s, const struct scaler_config *c, bool overflow);

#endif
