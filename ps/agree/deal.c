#include "ps/agree/deal.h"

#include <math.h>

enum {
    DEALT,
    SAMPLES,
    UPDATES,
    CONTRIBUTORS,
    SKIPPED,
    SCALE,
    ITERATION,
    OVERFLOW_AT,
    HYSTERESIS,
    DEAL_VALUES
};

// Whole numbers below 2^53 are themselves as doubles.
void deal_write(const struct step_deal *d, struct wire_header *h) {
    const struct train_state *x = &d->state;
    double *v = h->values;
    h->mask = d->members;
    h->count = DEAL_VALUES;
    v[DEALT] = (double)x->dealt;
    v[SAMPLES] = (double)x->samples;
    v[UPDATES] = (double)x->updates;
    v[CONTRIBUTORS] = d->contributors;
    v[SKIPPED] = x->skipped_in_a_row;
    v[SCALE] = x->scaler.scale;
    v[ITERATION] = (double)x->scaler.iter;
    v[OVERFLOW_AT] = (double)x->scaler.last_overflow;
    v[HYSTERESIS] = x->scaler.hysteresis_left;
}

// Whether value i can be what deal_write makes of a deal: a whole number, below 2^31 where an int holds it.
static bool is_value(int i, double x) {
    bool is_int = i == CONTRIBUTORS || i == SKIPPED || i == HYSTERESIS;
    return x >= -1 && x < (is_int ? 0x1p31 : 0x1p53) && (i == SCALE || x == floor(x));
}

int deal_read(const struct wire_header *h, struct step_deal *d) {
    const double *v = h->values;
    if (h->count != DEAL_VALUES) return -1;
    for (int i = 0; i < DEAL_VALUES; i++)
        if (!is_value(i, v[i])) return -1;
    *d = (struct step_deal){.members = h->mask,
                            .contributors = (int)v[CONTRIBUTORS],
                            .state = {.step = h->step,
                                      .updates = (int64_t)v[UPDATES],
                                      .samples = (int64_t)v[SAMPLES],
                                      .dealt = (int64_t)v[DEALT],
                                      .skipped_in_a_row = (int)v[SKIPPED],
                                      .scaler = {.scale = v[SCALE],
                                                 .iter = (int64_t)v[ITERATION],
                                                 .last_overflow = (int64_t)v[OVERFLOW_AT],
                                                 .hysteresis_left = (int)v[HYSTERESIS]}}};
    return 0;
}
