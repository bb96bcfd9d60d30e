#include "shared/core/scaler.h"

#include <math.h>

#include "shared/core/error.h"

void scaler_init(struct scaler *s, const struct scaler_config *c) {
    *s = (struct scaler){.scale = 1, .last_overflow = -1, .hysteresis_left = c->hysteresis};
    if (c->enabled) s->scale = c->static_scale > 0 ? c->static_scale : ldexp(1, c->initial_power);
}

bool scaler_at_end(const struct scaler *s, const struct scaler_config *c) {
    return c->enabled && c->static_scale <= 0 && s->scale == c->min_scale &&
           (c->hysteresis == 1 || s->hysteresis_left == 1);
}

int scaler_ended(const struct scaler *s, const struct scaler_config *c, const char *where) {
    return fail(
        "step %lld: a gradient is not finite although the fp16 loss scale is at its minimum %g: %sthe run ends here, "
        "as in DeepSpeed; lower the learning rate, set fp16.min_loss_scale lower, or train in bf16",
        (long long)s->iter + 1, c->min_scale, where);
}

int scaler_update(struct scaler *s, const struct scaler_config *c, bool overflow) {
    if (!c->enabled || c->static_scale > 0) return 0;
    if (overflow) {
        if (c->hysteresis == 1 || s->hysteresis_left == 1) {
            if (scaler_at_end(s, c)) return scaler_ended(s, c, "");
            s->scale = fmax(s->scale / 2, c->min_scale);
        } else {
            s->hysteresis_left--;
        }
        s->last_overflow = s->iter;
    } else {
        int64_t good = s->iter - s->last_overflow - 1;  // steps between the last overflow and this step
        bool window_passed = good > 0 && good % c->window == 0;
        if (c->consecutive_hysteresis || window_passed) s->hysteresis_left = c->hysteresis;
        if (window_passed) s->scale *= 2;
    }
    s->iter++;
    return 0;
}
