// The learning rate schedules, as DeepSpeed's. A pure function.
#ifndef STARRING_SHARED_MODEL_SCHEDULE_H
#define STARRING_SHARED_MODEL_SCHEDULE_H

#include <stdint.h>

enum schedule_type { SCHEDULE_NONE, SCHEDULE_WARMUP, SCHEDULE_WARMUP_DECAY, SCHEDULE_WARMUP_COSINE };
enum warmup_type { WARMUP_LOG, WARMUP_LINEAR };
struct schedule_config {
    enum schedule_type type;
    double min_lr, max_lr;  // warmup_min_lr, warmup_max_lr
    int64_t warmup_steps, total_steps;
    enum warmup_type warmup;
    double warmup_min_ratio, cos_min_ratio;  // WarmupCosineLR, of the optimizer's lr
};

// The learning rate of the update that follows `updates` applied ones, as DeepSpeed's engine and
// runtime/lr_schedules.py give it: the scheduler's last_batch_iteration is updates - 1 (it starts at -1
// and advances after each update, not on a skipped step). With i = updates - 1, W = max(2, warmup_steps):
//     ramp(i)   log: ln(i+1)/ln(W)        linear: i/W
//     NONE      base_lr
//     WARMUP    i < W: min + (max-min) ramp(i); then max                               updates = 0: min
//     DECAY     i < W: the same; then min + (max-min) max(0, (total-i) / max(1, total-W))
//     COSINE    base_lr times   i < W: r + (1-r) ramp(i), r = warmup_min_ratio;        updates = 0: 0
//                               then c + (1-c) (1 + cos(pi p)) / 2, c = cos_min_ratio,
//                                    p = min(1, (i-W+1) / max(1, total-W))
// Computed in double, rounded once.
float schedule_lr(const struct schedule_config *c, float base_lr, int64_t updates);

// Global batches that so many samples make: what a schedule counts as updates. Where each worker's gradient is an
// update of its own, the job's samples count, so that a slow worker follows the job and not its own steps.
static inline int64_t schedule_steps(int64_t samples, int64_t global_batch) { return samples / global_batch; }

#endif
