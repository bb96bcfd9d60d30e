// DeepSpeed's learning rate schedules, and the momentum that OneCycle changes with them. Pure functions.
#ifndef STARRING_SHARED_MODEL_SCHEDULE_H
#define STARRING_SHARED_MODEL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

enum schedule_type {
    SCHEDULE_NONE,
    SCHEDULE_WARMUP,
    SCHEDULE_WARMUP_DECAY,
    SCHEDULE_WARMUP_COSINE,
    SCHEDULE_ONE_CYCLE,
    SCHEDULE_RANGE_TEST
};
enum warmup_type { WARMUP_LOG, WARMUP_LINEAR };
struct schedule_config {
    enum schedule_type type;
    double min_lr, max_lr;  // warmup_min_lr, warmup_max_lr
    int64_t warmup_steps, total_steps;
    enum warmup_type warmup;
    double warmup_min_ratio, cos_min_ratio;  // WarmupCosineLR, fractions of the optimizer's lr

    // OneCycle
    double cycle_min_lr, cycle_max_lr;
    int64_t cycle_first, cycle_second;    // updates of each half of the cycle: first >= 1, second >= 0
    int64_t first_stairs, second_stairs;  // 0: the half is continuous
    int64_t decay_step;                   // 0: no decay
    double decay_lr_rate;
    bool cycle_momentum;
    double min_mom, max_mom, decay_mom_rate;

    // LRRangeTest
    double range_min_lr, range_rate;
    int64_t range_step;  // at least 1
    bool range_staircase;
};

// Returns the learning rate of the update that follows `updates` applied updates, as in DeepSpeed's engine and
// runtime/lr_schedules.py: the scheduler's last_batch_iteration is updates - 1. (It starts at -1 and advances
// after each update, not on a skipped step.) With i = updates - 1, W = max(2, warmup_steps):
//     ramp(i)   log: ln(i+1)/ln(W)        linear: i/W
//     NONE      base_lr
//     WARMUP    i < W: min + (max-min) ramp(i); then max                               updates = 0: min
//     DECAY     i < W: the same; then min + (max-min) max(0, (total-i) / max(1, total-W))
//     COSINE    base_lr times   i < W: r + (1-r) ramp(i), r = warmup_min_ratio;        updates = 0: 0
//                               then c + (1-c) (1 + cos(pi p)) / 2, c = cos_min_ratio,
//                                    p = min(1, (i-W+1) / max(1, total-W))
//     CYCLE     min, max are cycle_min_lr, cycle_max_lr. i < first+second: min + (max-min) s(i+1), where
//               s rises from 0 to 1 in `first` updates and falls to 0 in `second`, in stairs if the half has
//               stairs; then
//               min / (1 + decay_lr_rate d), d = (i - first - second + 1) / decay_step; without decay: min
//     RANGE     range_min_lr (1 + range_rate (i+1)/range_step), the quotient rounded down with range_staircase
// (Smith 2018, "A disciplined approach to neural network hyper-parameters", for the last two.)
// Computed in double, rounded once.
float schedule_lr(const struct schedule_config *c, float base_lr, int64_t updates);

// Returns beta1 of the update that follows `updates` applied updates, if OneCycle lowers it while the learning rate rises
// (cycle_momentum): max_mom - (max_mom-min_mom) s(i+1), then max_mom (1 + decay_mom_rate d); updates = 0:
// min_mom. With cycle_momentum DeepSpeed sets beta2 to SCHEDULE_CYCLE_BETA2.
#define SCHEDULE_CYCLE_BETA2 0.99f
float schedule_beta1(const struct schedule_config *c, int64_t updates);

// Returns the number of global batches in `samples`, which a schedule counts as updates. If each worker's gradient is a
// separate update, pass the job's samples: then a slow worker uses the learning rate of the job's progress, not of its own.
static inline int64_t schedule_steps(int64_t samples, int64_t global_batch) { return samples / global_batch; }

#endif
