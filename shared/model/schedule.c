#include "shared/model/schedule.h"

#include <math.h>

#include "kernels/exact_math.h"

// Each function returns a type's learning rate for the update that follows i + 1 applied updates. i is DeepSpeed's
// last_batch_iteration, -1 before the first update.
typedef double rate_fn(const struct schedule_config *c, double base_lr, double i);

static double warmup_length(const struct schedule_config *c) {
    return c->warmup_steps > 2 ? (double)c->warmup_steps : 2;
}

// The fraction between the lowest and the highest learning rate, i steps into a warm-up of w steps.
static double ramp(const struct schedule_config *c, double i, double w) {
    return c->warmup == WARMUP_LOG ? 1.0 / exact_log(w) * exact_log(i + 1) : i / w;
}

static double warmed(const struct schedule_config *c, double i, double afterwards) {
    double w = warmup_length(c), gamma = i < 0 ? 0 : i < w ? ramp(c, i, w) : afterwards;
    return c->min_lr + (c->max_lr - c->min_lr) * gamma;
}

static double none(const struct schedule_config *c, double base_lr, double i) {
    (void)c, (void)i;
    return base_lr;
}

static double warmup(const struct schedule_config *c, double base_lr, double i) {
    (void)base_lr;
    return warmed(c, i, 1);
}

static double warmup_decay(const struct schedule_config *c, double base_lr, double i) {
    (void)base_lr;
    double total = (double)c->total_steps;
    return warmed(c, i, fmax(0.0, (total - i) / fmax(1.0, total - warmup_length(c))));
}

static double warmup_cosine(const struct schedule_config *c, double base_lr, double i) {
    double w = warmup_length(c);
    if (i < 0) return 0;
    if (i < w) return base_lr * (c->warmup_min_ratio + ramp(c, i, w) * (1.0 - c->warmup_min_ratio));
    // After the schedule's end the rate stays at the minimum, where the cosine would rise again.
    double progress = fmin(1.0, (i - w + 1) / fmax(1.0, (double)c->total_steps - w));
    double wave = (1 + exact_cosine(M_PI * progress)) / 2;
    return base_lr * fmax(0.0, c->cos_min_ratio + (1.0 - c->cos_min_ratio) * wave);
}

// The height of the cycle at its update n: 0 at both ends, 1 between the halves.
static double height(const struct schedule_config *c, int64_t n) {
    int64_t first = c->cycle_first, total = first + c->cycle_second;
    n %= total;
    bool up = n <= first;
    int64_t climbed = up ? n : total - n, length = up ? first : c->cycle_second;
    int64_t stairs = up ? c->first_stairs : c->second_stairs;
    double part = (double)climbed / (double)length;
    return stairs ? floor((double)climbed * (double)stairs / (double)length) / (double)stairs : part;
}

// Returns the decay intervals (decay_step) since the end of the cycle; below 0: the cycle is not over.
static double decay_intervals(const struct schedule_config *c, double i) {
    double behind = i - (double)(c->cycle_first + c->cycle_second);
    if (behind < 0) return -1;
    return c->decay_step ? (behind + 1) / (double)c->decay_step : 0;
}

static double one_cycle(const struct schedule_config *c, double base_lr, double i) {
    (void)base_lr;
    double decay = decay_intervals(c, i);
    if (decay < 0) return c->cycle_min_lr + (c->cycle_max_lr - c->cycle_min_lr) * height(c, (int64_t)i + 1);
    return c->cycle_min_lr / (1 + c->decay_lr_rate * decay);
}

static double range_test(const struct schedule_config *c, double base_lr, double i) {
    (void)base_lr;
    double intervals = (i + 1) / (double)c->range_step;
    return c->range_min_lr * (1 + c->range_rate * (c->range_staircase ? floor(intervals) : intervals));
}

static rate_fn *const rates[] = {[SCHEDULE_NONE] = none,
                                 [SCHEDULE_WARMUP] = warmup,
                                 [SCHEDULE_WARMUP_DECAY] = warmup_decay,
                                 [SCHEDULE_WARMUP_COSINE] = warmup_cosine,
                                 [SCHEDULE_ONE_CYCLE] = one_cycle,
                                 [SCHEDULE_RANGE_TEST] = range_test};

float schedule_lr(const struct schedule_config *c, float base_lr, int64_t updates) {
    return (float)rates[c->type](c, base_lr, (double)updates - 1);
}

float schedule_beta1(const struct schedule_config *c, int64_t updates) {
    double i = (double)updates - 1, decay = decay_intervals(c, i);
    if (updates == 0) return (float)c->min_mom;  // set by the scheduler's constructor; no step has changed it
    if (decay < 0) return (float)(c->max_mom - (c->max_mom - c->min_mom) * height(c, updates));
    return (float)(c->max_mom * (1 + c->decay_mom_rate * decay));
}
