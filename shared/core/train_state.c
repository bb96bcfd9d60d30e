#include "shared/core/train_state.h"

#include <limits.h>
#include <math.h>

#include "shared/core/error.h"
#include "shared/core/json.h"

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

// ---------------------------------------------------------------- train state
#define MAX_EXACT 9007199254740992.0  // 2^53: JSON numbers are read as doubles

struct cJSON *train_state_json(const struct train_state *s) {
    cJSON *o = cJSON_CreateObject();
    json_put(o, "step", (double)s->step);
    json_put(o, "updates", (double)s->updates);
    json_put(o, "samples", (double)s->samples);
    if (s->unapplied) json_put(o, "unapplied", (double)s->unapplied);
    json_put(o, "dealt", (double)s->handed_out);
    if (s->steps_of_run) json_put(o, "place", (double)s->steps_of_run);
    json_put(o, "skipped_in_a_row", s->skipped_in_a_row);
    cJSON *scaler = cJSON_AddObjectToObject(o, "scaler");
    json_put(scaler, "scale", s->scaler.scale);
    json_put(scaler, "iter", (double)s->scaler.iter);
    json_put(scaler, "last_overflow", (double)s->scaler.last_overflow);
    json_put(scaler, "hysteresis_left", s->scaler.hysteresis_left);
    return o;
}

// Reads a whole number in [low, high]. Returns 0, or -1 after fail().
static int read_whole(const struct cJSON *o, const char *file, const char *key, double low, double high,
                      int64_t *out) {
    double x = json_number(o, key);
    if (!(x >= low && x <= high) || x != floor(x))
        return fail("%s: \"%s\" is missing or no whole number from %.0f to %.0f", file, key, low, high);
    *out = (int64_t)x;
    return 0;
}

int train_state_read(const struct cJSON *object, const char *file, struct train_state *out) {
    struct train_state s = {0};
    int64_t skipped = 0, hysteresis = 0;
    const struct {
        const cJSON *o;
        const char *key;
        double low, high;
        int64_t *to;
    } numbers[] = {
        {object, "step", 0, MAX_EXACT, &s.step},
        {object, "updates", 0, MAX_EXACT, &s.updates},
        {object, "samples", 0, MAX_EXACT, &s.samples},
        {object, "dealt", 0, MAX_EXACT, &s.handed_out},
        {object, "skipped_in_a_row", 0, INT_MAX, &skipped},
        {json_item(object, "scaler"), "iter", 0, MAX_EXACT, &s.scaler.iter},
        {json_item(object, "scaler"), "last_overflow", -1, MAX_EXACT, &s.scaler.last_overflow},
        {json_item(object, "scaler"), "hysteresis_left", INT_MIN, INT_MAX, &hysteresis},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (read_whole(numbers[i].o, file, numbers[i].key, numbers[i].low, numbers[i].high, numbers[i].to))
            return -1;
    if (json_item(object, "place") && read_whole(object, file, "place", 0, MAX_EXACT, &s.steps_of_run))
        return -1;
    if (json_item(object, "unapplied") && read_whole(object, file, "unapplied", 0, MAX_EXACT, &s.unapplied))
        return -1;
    s.scaler.scale = json_number(json_item(object, "scaler"), "scale");
    if (!(s.scaler.scale >= 0)) return fail("%s: \"scale\" is missing or no number >= 0", file);
    s.skipped_in_a_row = (int)skipped;
    s.scaler.hysteresis_left = (int)hysteresis;
    *out = s;
    return 0;
}
