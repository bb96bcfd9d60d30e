#include "shared/model/schedule.h"

#include <math.h>

#include "kernels/exact_math.h"

// Share of the way from the lowest to the highest learning rate, i steps into a warm-up of w.
static double ramp(const struct schedule_config *c, double i, double w) {
    return c->warmup == WARMUP_LOG ? 1.0 / exact_log(w) * exact_log(i + 1) : i / w;
}

static double cosine_ratio(const struct schedule_config *c, double i, double w) {
    if (i < w) return c->warmup_min_ratio + ramp(c, i, w) * (1.0 - c->warmup_min_ratio);
    // Past its end the schedule stays at the floor; the cosine alone would climb again.
    double progress = fmin(1.0, (i - w + 1) / fmax(1.0, (double)c->total_steps - w));
    double wave = (1 + exact_cosine(M_PI * progress)) / 2;
    return fmax(0.0, c->cos_min_ratio + (1.0 - c->cos_min_ratio) * wave);
}

float schedule_lr(const struct schedule_config *c, float base_lr, int64_t updates) {
    double i = (double)updates - 1;  // DeepSpeed's last_batch_iteration
    double w = c->warmup_steps > 2 ? (double)c->warmup_steps : 2;
    if (c->type == SCHEDULE_NONE) return base_lr;
    if (c->type == SCHEDULE_WARMUP_COSINE) return i < 0 ? 0 : (float)(base_lr * cosine_ratio(c, i, w));
    double gamma = 1;
    if (i < 0)
        gamma = 0;
    else if (i < w)
        gamma = ramp(c, i, w);
    else if (c->type == SCHEDULE_WARMUP_DECAY)
        gamma = fmax(0.0, ((double)c->total_steps - i) / fmax(1.0, (double)c->total_steps - w));
    return (float)(c->min_lr + (c->max_lr - c->min_lr) * gamma);
}
