// The update, shared by every topology: an optimizer over any range of a unit, parameter groups, learning
// rate schedules and the dynamic loss scaler. Pure functions and small state; no rank, no message.
//
// An optimizer is a row of `optimizers` in optimizer.c. Whoever holds its states (the local topology, the
// ring's ranks, the star's servers) holds `state[]` and asks the row how many there are.
#ifndef STARRING_SHARED_MODEL_OPTIMIZER_H
#define STARRING_SHARED_MODEL_OPTIMIZER_H

#include "kernels/backend.h"
#include "shared/core/arena.h"
#include "shared/core/unit.h"

#define OPTIMIZER_STATES_MAX 2

struct optimizer;

// The settings: a row reads those that are its own.
struct optimizer_config {
    const struct optimizer *row;
    float lr, beta1, beta2, eps, weight_decay;
    bool l2_mode;             // "adam_w_mode": false
    bool no_bias_correction;  // "bias_correction": false
};

// Range [begin, end) of a unit, with buffers that hold only that range (element 0 = begin).
struct update_range {
    const struct unit *unit;
    int64_t begin, end;                  // elements of the unit, pads allowed
    float *master;                       // (end - begin)
    float *state[OPTIMIZER_STATES_MAX];  // (end - begin) each
    void *weight;                        // (end - begin) of dtype, or NULL
    const void *grad;                    // (end - begin) of dtype
    enum dtype dtype;
};

struct update_step {
    float lr;
    int64_t t;  // 1-based number of this update
    const struct update_scalars *scalars;
};

// The arguments of any row's operation.
union update_args {
    struct adamw_args adamw;
};

struct optimizer {
    const char *name;  // "optimizer.type"
    int states;        // per parameter, fp32 each, beside the master
    const char *state_names[OPTIMIZER_STATES_MAX];
    enum op op;  // the update
    void (*set_args)(union update_args *a, const struct optimizer_config *c, const struct update_range *r,
                     const struct update_step *step);
};
extern const struct optimizer optimizers[];                // ends with a row without a name
const struct optimizer *optimizer_find(const char *name);  // any case; NULL: there is none

// One operation for the whole range, its runs of equal weight decay as groups; a range may begin and end
// anywhere, also inside a tensor, a gap or the pad. Gaps belong to the run before them: they are zero and
// stay zero whatever the decay. An empty range launches nothing.
void optimizer_launch(struct stream *s, const struct optimizer_config *c, const struct update_range *r,
                      const struct update_step *step);
// The same, now, on the calling thread and `threads` threads (servers). 0, or -1 after fail().
int optimizer_apply(const struct optimizer_config *c, const struct update_range *r,
                    const struct update_step *step, int threads);

// Takes the states of n elements.
void optimizer_carve(struct arena *a, const struct optimizer *o, int64_t n, float **state);
// Bytes per parameter of the states and, where the weights are not the fp32 masters, of the master.
size_t optimizer_bytes(const struct optimizer *o, bool own_master);

// Learning rate of the update that follows `updates` applied ones, as DeepSpeed's engine and
// runtime/lr_schedules.py give it: the scheduler's last_batch_iteration is updates - 1 (it starts at -1
// and advances after each update, not on a skipped step). With i = updates - 1, W = max(2, warmup_steps):
//     ramp(i)      log: ln(i+1)/ln(W)        linear: i/W
//     WARMUP       i < W: min + (max-min) ramp(i), then max                    (updates = 0: min)
//     DECAY        the same, then min + (max-min) max(0, (total-i) / max(1, total-W))
//     COSINE       base_lr x: i < W: r + (1-r) ramp(i), r = warmup_min_ratio; then, c = cos_min_ratio,
//                  p = min(1, (i-W+1) / max(1, total-W)): c + (1-c) (1 + cos(pi p)) / 2   (updates = 0: 0)
// SCHEDULE_NONE: base_lr. Computed in double, rounded once.
enum schedule_type { SCHEDULE_NONE, SCHEDULE_WARMUP, SCHEDULE_WARMUP_DECAY, SCHEDULE_WARMUP_COSINE };
enum warmup_type { WARMUP_LOG, WARMUP_LINEAR };
struct schedule_config {
    enum schedule_type type;
    double min_lr, max_lr;  // warmup_min_lr, warmup_max_lr
    int64_t warmup_steps, total_steps;
    enum warmup_type warmup;
    double warmup_min_ratio, cos_min_ratio;  // WarmupCosineLR, of the optimizer's lr
};
float schedule_lr(const struct schedule_config *c, float base_lr, int64_t updates);

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
